/* source.h - a model folder matched against a parameter table: where in which file each parameter is.
 *
 * A layer's experts lie one tensor each ("mlp.experts.3.up_proj.weight") or stacked ("mlp.experts.gate_up_proj", gate above
 * up for each expert, and "mlp.experts.down_proj"); the files decide, layer by layer. Types are F32, BF16 and F16, each tensor
 * its own, and F8_E4M3 for matrices that have a tensor NAME_scale_inv beside them, F32 or BF16: one factor for each block of
 * 128 x 128 elements, with w = e4m3(q) * factor formed in F32. What config.json says about quantisation decides nothing here.
 *
 * Matching is strict: a parameter without a tensor, a tensor without a parameter, a shape that differs, are errors that
 * name the tensor and the nearest known name. Documented exceptions are listed, never silent:
 *   - "*.rotary_emb.inv_freq" buffers: carried, that is, copied byte by byte when the model is saved;
 *   - layers for the prediction of further tokens, whose number is num_hidden_layers or above and which have the tensor
 *     "eh_proj.weight": carried. A surplus layer without that tensor contradicts config.json and is refused;
 *   - "lm_head.weight" beside a tied embedding: accepted when its values are the same, refused otherwise; not saved again,
 *     since training moves what it is a copy of.
 */
#ifndef TT_CHECKPOINT_SOURCE_H
#define TT_CHECKPOINT_SOURCE_H

#include "checkpoint/safetensors.h"
#include "params/params.h"

/* What a tensor of the files is to the model. */
typedef enum tt_source_role {
    TT_SOURCE_UNKNOWN, /* only while the source is opened */
    TT_SOURCE_WEIGHT,  /* one parameter, or a stack of them */
    TT_SOURCE_SCALES,  /* factors of an FP8 matrix: not saved, as weights are saved dequantised */
    TT_SOURCE_CARRIED, /* no part of training; goes into the saved model as it is */
    TT_SOURCE_COPY     /* a tied head */
} tt_source_role;

typedef struct tt_source {
    tt_st_folder folder;
    int64_t num_params;
    int64_t *tensor; /* [num_params] index into folder.tensors */
    int64_t *first;  /* [num_params] element of that tensor at which the parameter begins: 0 but in a stack */
    int64_t *scales; /* [num_params] index of the factors of its blocks, -1 unless it is F8_E4M3 */
    tt_source_role *role; /* [folder.num_tensors] */
    int64_t num_ignored;  /* tensors that have no parameter and are allowed not to: carried, or copies */
    int64_t carried_bytes;
} tt_source;

/* tt_source_open - read the headers of a model folder, match, and set `stored` of every table entry to the type on disk; an
 * FP8 entry keeps what the table says, the type of the configuration, in which it will be saved.
 * tied: lm_head shares the embedding. Local; reads no weights except to compare a tied head. Says in one line what was left
 * out. Errors: TT_EMISMATCH, TT_EFORMAT, TT_EIO. */
tt_status tt_source_open(const char *folder, tt_params *params, bool tied, tt_source *out);
void tt_source_close(tt_source *s);

#endif
