/* source.h - a model folder matched against a parameter table: which tensor of which file each parameter is.
 *
 * Matching is strict: a parameter without a tensor, a tensor without a parameter, a shape that differs, are errors that
 * name the tensor and the nearest known name. Documented exceptions are listed, never silent:
 *   - "*.rotary_emb.inv_freq" buffers are ignored;
 *   - "lm_head.weight" beside a tied embedding is accepted when its values are the same, refused otherwise.
 */
#ifndef TT_CHECKPOINT_SOURCE_H
#define TT_CHECKPOINT_SOURCE_H

#include "checkpoint/safetensors.h"
#include "params/params.h"

typedef struct tt_source {
    tt_st_folder folder;
    int64_t num_params;
    int64_t *tensor;      /* [num_params] index into folder.tensors */
    int64_t num_ignored;  /* tensors that have no parameter and are allowed not to */
} tt_source;

/* tt_source_open - read the headers of a model folder, match, and set `stored` of every table entry to the type on disk.
 * tied: lm_head shares the embedding. Local; reads no weights except to compare a tied head. Errors: TT_EMISMATCH,
 * TT_EFORMAT, TT_EIO. */
tt_status tt_source_open(const char *folder, tt_params *params, bool tied, tt_source *out);
void tt_source_close(tt_source *s);

#endif
