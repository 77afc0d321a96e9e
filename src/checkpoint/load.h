/* load.h - weights into shards: each rank reads exactly the byte ranges that it owns. */
#ifndef TT_CHECKPOINT_LOAD_H
#define TT_CHECKPOINT_LOAD_H

#include "checkpoint/source.h"
#include "shard/shard.h"

typedef struct tt_load_report {
    int64_t elements;   /* read by this rank = owned by this rank: checked */
    int64_t bytes_read; /* by this rank */
    double seconds;
} tt_load_report;

/* tt_load_weights - every piece of this rank from its tensor, converted while copying. Several threads read at a time.
 * Pieces are disjoint by their layout; TT_EINTERNAL unless as many elements were filled as
 * are owned. Local; callers agree on the outcome (tt_agree). */
tt_status tt_load_weights(const tt_source *source, tt_shards *shards, int threads, tt_load_report *report);

/* tt_init_weights - random weights: element i of a parameter is number i of the stream of (seed, name), times the
 * configuration's deviation; norms 1, biases 0. The same weights on every mesh. Local. */
void tt_init_weights(tt_shards *shards, uint64_t seed);

#endif
