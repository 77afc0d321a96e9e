/* metrics.h - records of a run: metrics.jsonl, one JSON object a line, with TRL's names.
 *
 *   loss                                     mean of the steps' losses since the last record
 *   grad_norm, learning_rate                 of the last step
 *   mean_token_accuracy, entropy, aux_loss   means over the micro-steps since the last record
 *   num_tokens                               distinct tokens so far, all ranks
 *   tokens_per_second                        distinct tokens since the last record over its seconds
 *   tflops                                   useful operations likewise, 1e12 a second (train/flops.h)
 *   mfu                                      the same over the rate of a plain product, where that is known
 *   epoch, step
 *
 * A step whose loss is not finite (nonfinite: skip) is left out of the mean.
 *
 * A run that goes on from a checkpoint finds its sums again (tt_metrics_save, _restore) and the records that were written
 * until then (history), so that its file is in the end the one of a run that never stopped, but for times.
 */
#ifndef TT_TRAIN_METRICS_H
#define TT_TRAIN_METRICS_H

#include "base/clock.h"
#include "train/step.h"

#include <jansson.h>

#include <stdio.h>

typedef struct tt_metrics {
    FILE *file; /* NULL on ranks other than 0 */
    int64_t steps, micro_steps, tokens; /* since the last record */
    double loss, accuracy, entropy, balance; /* sums */
    double flops;          /* useful operations since the last record */
    double rate;           /* of a plain product, operations a second; 0: not known */
    double since;          /* seconds, monotonic, of the last record */
    int64_t total_tokens, total_steps;
    double total_loss;
    bool with_balance;
    json_t *history; /* rank 0: the records so far, without what `extra` added */
} tt_metrics;

/* tt_metrics_open - PATH is created anew; NULL for ranks that do not write. Local. */
tt_status tt_metrics_open(tt_metrics *m, const char *path, bool with_balance);
/* tt_metrics_continue - the same for a run that goes on. The file gets a line for each record of history (an array, taken
 * over as it is): that of the file that stands at `path`, as far as its lines are those records, else one made anew. What the
 * file has behind them goes. Local. */
tt_status tt_metrics_continue(tt_metrics *m, const char *path, const json_t *history, bool with_balance);

/* tt_metrics_save - what the next records go on from, for tt_metrics_restore; NULL when out of memory. */
json_t *tt_metrics_save(const tt_metrics *m);
/* saved: untrusted; `where` names its file. TT_EFORMAT. */
tt_status tt_metrics_restore(tt_metrics *m, const json_t *saved, const char *where);

/* tt_metrics_add - one step of `micro_steps` micro-steps. */
void tt_metrics_add(tt_metrics *m, const tt_step_result *r, int micro_steps);
/* tt_metrics_record - write a line and start anew. extra (may be NULL): further members of the record. */
tt_status tt_metrics_record(tt_metrics *m, int64_t step, double epoch, double learning_rate, double grad_norm,
                            json_t *extra);
/* tt_metrics_final - the last line: train_runtime, train_steps_per_second, train_samples_per_second, train_loss.
 * seconds, steps, samples: of this process. */
tt_status tt_metrics_final(tt_metrics *m, int64_t step, double epoch, double seconds, int64_t steps, int64_t samples);
/* Accepts a zeroed struct. */
void tt_metrics_close(tt_metrics *m);

#endif
