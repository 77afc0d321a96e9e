/* step.h - one optimizer step: micro-steps, global norm, clipping, update of the owned shards.
 *
 * The objective is (1/N) sum of nll over the supervised targets of the step, all ranks and micro-steps, plus the balance
 * loss; N is counted before the first micro-step, so every gradient is a partial sum and nothing is ever averaged. The
 * split into ranks and micro-steps therefore does not matter (docs/design.md, "Loss, scale, norm").
 */
#ifndef TT_TRAIN_STEP_H
#define TT_TRAIN_STEP_H

#include "model/model.h"

typedef enum tt_optimizer_kind { TT_OPTIM_ADAMW, TT_OPTIM_SGD } tt_optimizer_kind;
typedef enum tt_nonfinite { TT_NONFINITE_STOP, TT_NONFINITE_SKIP } tt_nonfinite;

typedef struct tt_step_options {
    tt_optimizer_kind optimizer;
    double lr, beta1, beta2, eps, weight_decay;
    double max_grad_norm; /* <= 0: no clipping */
    int64_t step;         /* counts from 1 */
    double balance;       /* weight of the balance loss in each micro-step: coefficient / micro-steps */
    tt_balance_scope balance_scope;
    uint64_t seed;        /* stochastic rounding of bf16 weights */
    tt_nonfinite nonfinite;
    /* What a message calls the row that tt_batch_add was given as number `row`, the same on every rank. NULL: its number. */
    void (*row_name)(void *user, int32_t row, char *out, size_t size);
    void *row_user;
} tt_step_options;

typedef struct tt_step_result {
    double loss;          /* objective: nll / N + sum of weighted balance losses */
    double nll;           /* sum over all ranks */
    int64_t targets;      /* N */
    double balance_loss;  /* mean of the micro-steps' balance losses, 0 when off */
    double grad_norm;     /* before clipping */
    double accuracy;      /* mean over micro-steps of correct / targets over all ranks, 0 for one without targets */
    double entropy;       /* likewise, nats per target */
    int64_t tokens;       /* distinct tokens of the step, all ranks */
    double flops;         /* useful operations, all ranks (train/flops.h) */
    bool skipped;         /* the norm was not finite and nothing was updated */
} tt_step_result;

/* tt_train_step - micros[num] are this rank's batches, the same number on every rank; some may be empty.
 * A loss or norm that is not finite: nothing is updated, and TT_ENONFINITE names step, rows and first bad tensor
 * (TT_NONFINITE_SKIP: a warning does, and result->skipped is set). train/nonfinite.h. Collective over the mesh. */
tt_status tt_train_step(tt_model *m, const tt_batch *micros, int num, const tt_step_options *o,
                        tt_step_result *result);

/* --- its parts, for those who need one alone (certify) ----------------------------------------------------------- */

/* Targets of all ranks and micro-steps: N. Collective. */
tt_status tt_count_targets(const tt_mesh *mesh, const tt_batch *micros, int num, int64_t *targets);
/* Global norm of the gradient shards: every trained element is owned by one rank. Collective. */
tt_status tt_gradient_norm(tt_model *m, double *norm);
/* Factor min(1, max_norm / (norm + 1e-6)); 1 without clipping. */
double tt_clip_factor(double max_norm, double norm);
/* Update the owned shards from their gradients. Local. */
void tt_update(tt_model *m, const tt_step_options *o, double clip);

#endif
