/* state.h - what a checkpoint tells of training, and what a run that goes on from it must find again.
 *
 *   "train" of the manifest   what the run was: dataset, order, seeds, model, rows of a step, settings; where it was: position
 *                             in the epoch's order; what its next record goes on from: sums of metrics and statistics
 *   trainer_state.json        progress and records in the common trainer's schema
 *
 * There is no other state: the order of rows is a function of (data_seed, epoch), stochastic rounding of (seed, step,
 * parameter, element), the learning rate of the step.
 *
 * Of what the run was, some must be the same again: model, optimizer, rows of a step and of an epoch. Some must be unless
 * resume_override names it: dataset, order, seed, data_seed. The rest - learning rate, length, precision - may change, with a
 * warning that tells both values. Mesh, dispatcher and the split of a step's rows change nothing and are only told.
 */
#ifndef TT_TRAIN_STATE_H
#define TT_TRAIN_STATE_H

#include "checkpoint/checkpoint.h"
#include "model/table.h"
#include "train/config.h"
#include "train/metrics.h"
#include "train/statistics.h"
#include "train/steps.h"

/* A run as far as checkpoints tell of it; the same on every rank. Borrowed. */
typedef struct tt_run {
    const tt_config *config;
    const tt_params *params;
    const tt_steps *steps;
    uint64_t dataset; /* fingerprint of the rows */
} tt_run;

/* tt_state_train - "train" behind `step` steps. Collective (statistics are summed); *out is owned by the caller. */
tt_status tt_state_train(const tt_run *run, int64_t step, const tt_metrics *metrics, const tt_statistics *statistics,
                         json_t **out);
/* tt_state_trainer - trainer_state.json behind `step` steps; NULL when out of memory. interval: save_steps in steps. Rank 0. */
json_t *tt_state_trainer(const tt_run *run, int64_t step, const tt_metrics *metrics);

/* tt_state_check - whether `run` may go on from c. TT_ECONFIG with both values and the remedy; warnings for what changes.
 * Local; the same on every rank. */
tt_status tt_state_check(const tt_run *run, const tt_checkpoint *c);
/* tt_state_restore - metrics and statistics as they were. Local. */
tt_status tt_state_restore(const tt_checkpoint *c, tt_metrics *metrics, tt_statistics *statistics);

/* tt_state_history - log_history of c's trainer_state.json, a new reference. TT_EIO, TT_EFORMAT. Rank 0. */
tt_status tt_state_history(const tt_checkpoint *c, json_t **out);

#endif
