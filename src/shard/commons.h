/* commons.h - what the ranks of one group share when they see each other's memory: weights in place, and buffers of units in
 * use.
 *
 *   weights   flats whose resident and compute types agree lie here whole, in rank order: gathering is to know that all have
 *             written their shards
 *   units     gathered copies of other flats (each rank converts its shard into its part), and the ranks' full gradients
 *             (each rank's own behind that of the one before)
 *
 *   a unit in use, three ranks:   copy | rank 0's shard | rank 1's | rank 2's |       read by all
 *                             gradient | rank 0's: all of the unit | rank 1's | rank 2's |     each adds up its range of all
 *
 * Who may touch what is settled by meetings: a rank that has ended one knows that all others have begun it, and so have done
 * all that stands before it in their program. Three rules:
 *
 *   1. A rank begins a meeting when its part is written, and reads the others' parts after its end.
 *   2. Memory that was given back may still be read by others. It is taken again behind a meeting that was begun after
 *      that: usually the next unit's has been, else tt_commons_take meets once more.
 *   3. Weights in place are written (load, init, resume, update) behind an operation of the group that stands behind the
 *      last release; and read behind the meeting of a gather that was begun after the writing. In a training step the sum
 *      of the gradient's norm, of all ranks, is the first: a rank that has its result knows that no rank is in backward
 *      any more, and a rank in its update is waited for by the next gather of all others.
 *
 * Every rank of the group takes and gives the same sizes in the same order, so that all have the same places without a word.
 */
#ifndef TT_SHARD_COMMONS_H
#define TT_SHARD_COMMONS_H

#include "comm/shared.h"

typedef struct tt_commons tt_commons;

/* tt_commons_create - for `weights` bytes in place and buffers of at most `units` bytes in all; *out NULL when the ranks do not
 * share memory. Collective. */
tt_status tt_commons_create(tt_group *group, int64_t weights, int64_t units, tt_commons **out);
void tt_commons_destroy(tt_commons **c);
tt_group *tt_commons_group(const tt_commons *c);
void *tt_commons_weights(const tt_commons *c);
/* Memory behind it all, divided by the ranks. */
int64_t tt_commons_bytes(const tt_commons *c);

/* tt_commons_take - a buffer of so many bytes (of all ranks together), with anything in it; should a meeting be needed first
 * it has that name. Memory grows when there is none yet. Collective. tt_commons_give - back. Local. */
tt_status tt_commons_take(tt_commons *c, const char *name, int64_t bytes, void **out);
void tt_commons_give(tt_commons *c, void *base);

/* A meeting of the group, in two halves: one byte goes to every other rank, so that it is counted, watched and named as any
 * operation. Zero it before its first use; several may be under way, ended in the order of their beginnings. */
typedef struct tt_meeting {
    tt_request *request;
    int64_t number;
    unsigned char *signs; /* one of each rank */
} tt_meeting;
tt_status tt_meeting_begin(tt_commons *c, const char *name, tt_meeting *m);
/* Nothing when none is under way. */
tt_status tt_meeting_end(tt_commons *c, tt_meeting *m);
/* Ends what is under way, whatever comes of it. */
void tt_meeting_free(tt_meeting *m);

#endif
