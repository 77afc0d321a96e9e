#include "train/step.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/rng.h"
#include "train/flops.h"
#include "train/nonfinite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Counts and statistics of tokens come from one rank of those that share a batch. */
static bool counts_here(const tt_mesh *mesh)
{
    return mesh->tp_rank == 0;
}

tt_status tt_count_targets(const tt_mesh *mesh, const tt_batch *micros, int num, int64_t *targets)
{
    *targets = 0;
    for (int i = 0; i < num && counts_here(mesh); i++) *targets += micros[i].num_targets;
    return tt_allreduce_i64(mesh->world, "count-targets", targets, 1);
}

static bool trained(const tt_model *m, const tt_piece *piece)
{
    return tt_shards_params(m->shards)->at[piece->param].trained;
}

tt_status tt_gradient_norm(tt_model *m, double *norm)
{
    int64_t num;
    double sum = 0;
    TT_PHASE(m->kernel->profile, OPTIMIZER);
    const tt_piece *pieces = tt_shards_pieces(m->shards, &num);
    for (int64_t i = 0; i < num; i++)
        if (trained(m, &pieces[i]))
            sum += m->kernel->ops->sum_squares(m->kernel, tt_shards_view(m->shards, &pieces[i], TT_PART_GRADIENT));
    tt_group *group = tt_fault(TT_FAULT_NORM_OF_ONE_AXIS) ? m->mesh->ep : m->mesh->world;
    TT_TRY(tt_allreduce_f64(group, "gradient-norm", &sum, 1));
    *norm = sqrt(sum);
    return TT_OK;
}

double tt_clip_factor(double max_norm, double norm)
{
    return max_norm > 0 ? fmin(1, max_norm / (norm + 1e-6)) : 1;
}

void tt_update(tt_model *m, const tt_step_options *o, double clip)
{
    int64_t num;
    TT_PHASE(m->kernel->profile, OPTIMIZER);
    const tt_ops *ops = m->kernel->ops;
    const tt_piece *pieces = tt_shards_pieces(m->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        const tt_param *p = &tt_shards_params(m->shards)->at[pieces[i].param];
        if (!p->trained) continue;
        tt_adamw a = {
            .lr = o->lr,
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->eps,
            .weight_decay = p->decay ? o->weight_decay : 0,
            .clip = clip,
            .step = o->step,
            /* Numbered by the parameter's own elements, so that rounding does not depend on the mesh. */
            .key = tt_rng_key(o->seed ^ (uint64_t)o->step << 20, p->name),
            .first = pieces[i].first,
        };
        tt_mat w = tt_shards_view(m->shards, &pieces[i], TT_PART_WEIGHT);
        tt_mat g = tt_shards_view(m->shards, &pieces[i], TT_PART_GRADIENT);
        if (o->optimizer == TT_OPTIM_SGD)
            ops->sgd(m->kernel, &a, w, g);
        else
            ops->adamw(m->kernel, &a, w, g, tt_shards_view(m->shards, &pieces[i], TT_PART_MOMENT1),
                       tt_shards_view(m->shards, &pieces[i], TT_PART_MOMENT2));
    }
}

/* --- what is logged of a step -------------------------------------------------------------------------------- */

enum { NLL, ENTROPY, TARGETS, CORRECT, TOKENS, PAIRS, NUM_SUMS };

static tt_status micro_step(tt_model *m, const tt_batch *b, const tt_step_options *o, int64_t targets, double *sums,
                            double *nll, double *balance)
{
    tt_micro micro = {
        .batch = b,
        .backward = true,
        .scale = targets > 0 ? 1 / (double)targets : 0,
        .balance = o->balance,
        .balance_scope = o->balance_scope,
    };
    tt_micro_result r;
    TT_TRY(tt_model_micro_step(m, &micro, &r));
    *nll = r.sums.nll;
    *balance = r.balance_loss;
    if (!counts_here(m->mesh)) return TT_OK;
    sums[NLL] = r.sums.nll;
    sums[ENTROPY] = r.sums.entropy;
    sums[TARGETS] = (double)r.sums.targets;
    sums[CORRECT] = (double)r.sums.correct;
    sums[TOKENS] = (double)b->T;
    sums[PAIRS] = (double)tt_flops_pairs(&b->docs, m->config->window);
    return TT_OK;
}

static void summarise(const tt_model *m, const double *sums, const double *balance, int num, int64_t targets,
                      double weight, tt_step_result *r)
{
    double pairs = 0;
    *r = (tt_step_result){.targets = targets};
    for (int i = 0; i < num; i++) {
        const double *s = sums + i * NUM_SUMS;
        r->nll += s[NLL];
        r->tokens += (int64_t)s[TOKENS];
        pairs += s[PAIRS];
        r->balance_loss += balance[i] / num;
        r->loss += weight * balance[i];
        if (s[TARGETS] == 0) continue;
        r->accuracy += s[CORRECT] / s[TARGETS] / num;
        r->entropy += s[ENTROPY] / s[TARGETS] / num;
    }
    if (targets > 0) r->loss += r->nll / (double)targets;
    r->flops = tt_flops_useful(m->config, &m->table->params, (double)r->tokens, (double)targets, pairs);
}

/* --- the step ------------------------------------------------------------------------------------------------ */

tt_status tt_train_step(tt_model *m, const tt_batch *micros, int num, const tt_step_options *o,
                        tt_step_result *result)
{
    int64_t targets;
    double *sums, *balance, *nll; /* nll: of this rank alone */
    tt_arena_mark mark = tt_arena_save(m->keep);
    TT_TRY(tt_arena_grant_zero(m->keep, num * NUM_SUMS, sizeof *sums, (void **)&sums));
    TT_TRY(tt_arena_grant_zero(m->keep, num, sizeof *balance, (void **)&balance));
    TT_TRY(tt_arena_grant_zero(m->keep, num, sizeof *nll, (void **)&nll));
    tt_comm_set_step(m->mesh->comm, o->step);
    TT_TRY(tt_count_targets(m->mesh, micros, num, &targets));
    if (targets == 0) tt_warn("step %lld: no token of its rows is trained; only weight decay and momentum act",
                              (long long)o->step);
    tt_shards_zero_gradients(m->shards, m->kernel);
    for (int i = 0; i < num; i++)
        TT_TRY(micro_step(m, &micros[i], o, targets, sums + i * NUM_SUMS, &nll[i], &balance[i]));
    tt_comm_set_phase(m->mesh->comm, "step");
    TT_TRY(tt_allreduce_f64(m->mesh->world, "step-statistics", sums, num * NUM_SUMS));
    summarise(m, sums, balance, num, targets, o->balance, result);
    TT_TRY(tt_gradient_norm(m, &result->grad_norm));
    /* Both are sums over all ranks with the same bits on each, so all decide alike. */
    bool finite = isfinite(result->loss) && isfinite(result->grad_norm);
    if (!finite) TT_TRY(tt_nonfinite_report(m, micros, nll, num, o, result));
    tt_arena_restore(m->keep, mark);
    result->skipped = !finite;
    if (finite) tt_update(m, o, tt_clip_factor(o->max_grad_norm, result->grad_norm));
    return TT_OK;
}
