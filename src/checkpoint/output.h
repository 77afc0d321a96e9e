/* output.h - files that exist at full size, and the ranges that a rank writes into them. For the files of this folder.
 *
 * Rank 0 creates the files of a layout, with their headers; then every rank writes its own ranges, converted while copying,
 * in pieces of at most TT_OUTPUT_PIECE bytes, each hashed as it goes out. A range is cut at TT_OUTPUT_RANGE bytes, so that
 * a checksum says where damage is and many can be verified at once. The disk begins with what was written every
 * TT_OUTPUT_FLUSH bytes, while the next are hashed: a system that gathers it in memory would else stand still for minutes
 * at the end. Memory: one piece.
 */
#ifndef TT_CHECKPOINT_OUTPUT_H
#define TT_CHECKPOINT_OUTPUT_H

#include "checkpoint/layout.h"

#include <stdatomic.h>

#define TT_OUTPUT_PIECE ((int64_t)4 << 20)
#define TT_OUTPUT_RANGE ((int64_t)64 << 20)
#define TT_OUTPUT_FLUSH ((int64_t)32 << 20)

/* Bytes [begin, end) of a file, and their XXH64 with seed 0. */
typedef struct tt_stretch {
    int64_t file, begin, end;
    uint64_t hash;
} tt_stretch;

typedef struct tt_stretches {
    int64_t num, capacity;
    tt_stretch *at;
} tt_stretches;

tt_status tt_stretches_add(tt_stretches *s, tt_stretch stretch);

/* One rank's part of a layout. Files are FOLDER/NAME SUFFIX. */
typedef struct tt_output {
    const char *folder, *suffix;
    const tt_layout *layout;
    const tt_save_range *ranges;
    int64_t num_ranges;
    int64_t carried_begin, carried_end; /* bytes of all that is carried */
    tt_stretches *written;              /* what was written is added to it, with first_file added; NULL: no hashes */
    int64_t first_file;
    _Atomic int64_t *done;              /* counts bytes; may be NULL */
    int64_t bytes;                      /* of tensors, written so far */
} tt_output;

/* tt_output_path - FOLDER/NAME SUFFIX. */
tt_status tt_output_path(char *out, size_t size, const char *folder, const char *name, const char *suffix);

/* tt_output_share - sets the part of what is carried that this rank copies. */
void tt_output_share(tt_output *o, const tt_mesh *mesh);

/* tt_output_bytes - what tt_output_write will write on this rank. Pure. */
int64_t tt_output_bytes(const tt_output *o);

/* tt_output_create - the files with their headers, which are added to `written`. Local: rank 0. */
tt_status tt_output_create(tt_output *o);

/* tt_output_write - this rank's ranges, file by file, flushed to the disk. Files without a range of this rank are not
 * opened. Local. */
tt_status tt_output_write(tt_output *o);

/* --- what a saved model and a checkpoint have in common (save.c) -------------------------------------------------- */

#define TT_SAVE_MAX_SMALL 16

/* Names of the files beside the weights. */
typedef struct tt_save_small {
    int num;
    const char *names[TT_SAVE_MAX_SMALL];
} tt_save_small;

/* tt_save_small_files - tokenizer files, config.json, and the index last, each as FOLDER/NAME SUFFIX, flushed. Local: rank
 * 0. */
tt_status tt_save_small_files(const char *folder, const char *suffix, const tt_layout *l, const tt_save_options *o,
                              tt_save_small *out);

/* tt_save_list_weights - where this rank's pieces go, one range for each piece; freed by the caller. Local. */
tt_status tt_save_list_weights(const tt_shards *shards, const tt_layout *l, tt_save_range **out, int64_t *num);

/* tt_save_total_bytes - of all files; INT64_MAX when 63 bits cannot count them. */
int64_t tt_save_total_bytes(const tt_st_plan *files);

#endif
