/* checkpoints.h - the checkpoints that a run writes: when, which stay, and writing them beside training.
 *
 *   async_save: false   the ranks write, and training waits
 *   async_save: true    begin copies weights and optimizer state; a thread of each rank writes the copy. The checkpoint gets
 *                       its name behind the first step at which all ranks have written, for which ranks exchange one number
 *                       a step anyway; a save that failed ends the run there. At most one is under way: the next waits for
 *                       it, and so does the end.
 *
 * Costs of a copy: this rank's weights and moments once more, as long as it is written. The last checkpoint of a run is
 * written without one, since nothing changes behind it.
 */
#ifndef TT_TRAIN_CHECKPOINTS_H
#define TT_TRAIN_CHECKPOINTS_H

#include "checkpoint/checkpoint.h"
#include "train/config.h"

typedef struct tt_checkpoints {
    /* given; borrowed */
    const tt_config *config;
    const tt_shards *shards;
    tt_save_options model;
    int64_t total;      /* steps of the run */
    const char *spare;  /* a checkpoint that is not pruned; NULL: none */
    /* found */
    struct tt_flight *flight; /* the save under way, or NULL */
    tt_checkpoint_copy copy;  /* that it writes from, kept for the next */
    int num;                  /* written */
    int64_t newest;           /* step of the last one */
    double seconds;           /* that training waited for them */
} tt_checkpoints;

/* tt_checkpoints_due - whether one is written behind `done` steps. epoch_ends: the step was the last of an epoch; last: of
 * the run, be it complete or stopped. Pure. */
bool tt_checkpoints_due(const tt_checkpoints *c, int64_t done, bool epoch_ends, bool last);

/* tt_checkpoints_save - output_dir/checkpoint-STEP. train, state: as for tt_checkpoint_options. Collective. */
tt_status tt_checkpoints_save(tt_checkpoints *c, int64_t step, bool last, const json_t *train, const json_t *state);

/* tt_checkpoints_pending - a number whose maximum over all ranks goes to tt_checkpoints_poll, which gives the save under way
 * its name when all have written. pending: local; poll: collective. */
int64_t tt_checkpoints_pending(const tt_checkpoints *c);
tt_status tt_checkpoints_poll(tt_checkpoints *c, int64_t pending);

/* tt_checkpoints_end - wait for the save under way. status: what the run has come to, which is returned if it is a failure;
 * one that all ranks know of (tt_comm_agreed) does not keep a save from being completed, any other one does. Collective,
 * then. */
tt_status tt_checkpoints_end(tt_checkpoints *c, tt_status status);

#endif
