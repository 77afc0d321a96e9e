/* sft.h - supervised fine-tuning: from a configuration to a fine-tuned model.
 *
 *   check      everything that can be refused before money is spent: keys, output folder, mesh, tokenizer, data
 *   prepare    rows of ids and labels, the same on every rank; for a run that goes on, whether it may (train/state.h)
 *   open       weights into shards, and the state of a checkpoint
 *   train      steps; a record in metrics.jsonl at logging steps, checkpoints (train/checkpoints.h)
 *   save       the final model in output_dir, in the source's names, types and files
 *
 * A run can be asked to end early (tt_sft_hooks.stop). Ranks agree on it at the end of each phase before training, which
 * then leaves nothing behind, and after each step, which is then the last: records are those of a run that ends there, and
 * it leaves a checkpoint, or the model when no checkpoints are wanted (save_strategy: no).
 */
#ifndef TT_TRAIN_SFT_H
#define TT_TRAIN_SFT_H

#include "data/dataset.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/planner.h"
#include "train/profiler.h"
#include "train/steps.h"

/* Told after every step, on rank 0 (as all hooks are). */
typedef struct tt_progress {
    int64_t step, total;
    double epoch, loss, grad_norm, learning_rate;
    double tokens_per_second; /* distinct tokens, since the last step */
    double seconds_left;
} tt_progress;

typedef struct tt_sft_report {
    int64_t steps, total;       /* done, and those of the whole run; 0, 0: stopped before they were counted */
    int stopped;                /* what the stop hook answered, the largest of all ranks; 0: the run is complete */
    int64_t tokens;             /* of this process, as seconds are */
    double seconds, train_loss; /* mean of all steps' losses */
    tt_memory_choice choice;    /* what was planned, for the largest micro-step there could be; 0 ranks: stopped before */
    int64_t measured;           /* peak resident bytes of this process; of memory that ranks share only its own part */
    int64_t resident_before;    /* resident bytes before the model was opened */
    int64_t resumed;            /* step that the run went on from; 0: it began anew */
    int64_t checkpoint;         /* step of the newest checkpoint that it wrote; 0: none */
    int checkpoints;            /* that it wrote */
    double save_seconds;        /* that training waited for them */
    tt_profile_report profile;  /* steps 0: none was asked for */
} tt_sft_report;

typedef struct tt_sft_hooks {
    void (*progress)(void *user, const tt_progress *p); /* may be NULL */
    /* While weights are read, when that takes more than about two seconds: bytes of this rank. May be NULL. */
    void (*loading)(void *user, int64_t done, int64_t total, double seconds);
    /* Asked on every rank: not 0, on any of them, ends the run early on all. The number is the caller's, such as that of a
     * signal. May be NULL. */
    int (*stop)(void *user);
    void *user;
} tt_sft_hooks;

/* tt_sft_same_config - TT_ECONFIG with the first key that differs unless all ranks have the same configuration. For programs
 * that read it on every rank. Collective over the world. */
tt_status tt_sft_same_config(tt_comm *comm, const tt_config *config);

/* tt_sft - config is resolved (tt_config_resolve). Collective over the world; all ranks return the same status. */
tt_status tt_sft(tt_comm *comm, const tt_config *config, const tt_sft_hooks *hooks, tt_sft_report *report);

/* --- its preparation, for render ---------------------------------------------------------------------------------- */

/* Tokenizer and rows as training sees them. */
typedef struct tt_sft_data {
    tt_tokenizer *tokenizer;
    tt_dataset *rows;
    int64_t *shuffled; /* order after shuffle_dataset; NULL: that of the file */
} tt_sft_data;

/* tt_sft_load_model_config - config.json of model_name_or_path, with a warning of its unknown keys. Local. */
tt_status tt_sft_load_model_config(const tt_config *config, tt_model_config *out);

/* vocab_size: ids must be below; 0 = the tokenizer's. Local. */
tt_status tt_sft_load_data(const tt_config *config, int64_t vocab_size, int threads, tt_sft_data *out);
void tt_sft_data_free(tt_sft_data *d);

#endif
