/* statistics.h - what people look at beside the loss: how evenly experts are used, and what travels between ranks.
 *
 * Added to a record of metrics.jsonl:
 *   experts     one object per MoE layer, over all tokens since the last record: "layer"; "entropy" of the experts' shares
 *               of the choices, divided by ln E (1: even); "largest_share"; "idle": experts that nobody chose; with several
 *               ranks "bytes_forward" and "bytes_backward": what its exchange sent to other ranks, all ranks together
 *               (moe/dispatch.h has the formulas)
 *   bytes_sent  by operation, all ranks together, since the last record: bytes that went to another rank. dispatch-tokens and
 *               return-outputs are the forward exchange of the MoE layers, dispatch-gradients and return-gradients the
 *               backward one (recomputation dispatches tokens again); gather-unit and reduce-gradient move weights
 */
#ifndef TT_TRAIN_STATISTICS_H
#define TT_TRAIN_STATISTICS_H

#include "model/model.h"

#include <jansson.h>

typedef struct tt_statistics {
    tt_model *model;
    int64_t *counts;  /* [MoE layers, E] choices and [MoE layers, 2] bytes sent by their exchange, forward and backward;
                       * since the last record, this rank's; the model adds to them */
    int64_t *bytes;   /* per operation at the last record */
} tt_statistics;

/* tt_statistics_begin - start counting in the model. Local. */
tt_status tt_statistics_begin(tt_statistics *s, tt_model *model);
/* tt_statistics_record - sum over ranks, add "experts" and "bytes_sent" to record (rank 0's matters), start anew.
 * Collective over the world. */
tt_status tt_statistics_record(tt_statistics *s, json_t *record);
/* tt_statistics_save - the same sums, for tt_statistics_restore, and go on counting. Collective over the world. */
tt_status tt_statistics_save(const tt_statistics *s, json_t **out);
/* tt_statistics_restore - on any mesh: rank 0 counts what all ranks had. saved: untrusted; `where` names its file; without
 * counts that fit the model they start anew. Local. */
tt_status tt_statistics_restore(tt_statistics *s, const json_t *saved, const char *where);
/* Accepts a zeroed struct. */
void tt_statistics_end(tt_statistics *s);

#endif
