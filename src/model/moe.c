/* moe.c - router and routed experts. docs/model.md section "Mixture of experts".
 *
 * An expert is a gated MLP; the rows that chose it are compact and sorted by expert, so that all local experts run as one
 * grouped product. With g the gate of a pair (row x, expert):
 *     y += g Wd (silu(Wg x) * (Wu x))
 * Backward runs the down product on the unweighted gradient, so the gradient of the gate needs no stored output:
 *     dh' = Wd^T dy,  dg = <dh', h>,  dh = g dh',  dWd += dy (g h)^T
 */
#include "base/fault.h"
#include "model/block.h"

#include <string.h>

/* --- router -------------------------------------------------------------------------------------------------- */

static tt_route_shape route_shape(const tt_model_config *c)
{
    return (tt_route_shape){
        .experts = c->num_experts,
        .chosen = c->experts_per_token,
        .normalise = c->normalise_gates,
        .groups = c->expert_groups,
        .kept_groups = c->kept_groups,
        .scale = c->gate_scale,
    };
}

static void tap(tt_pass *p, const char *what, int layer, tt_mat m)
{
    if (p->m->tap) p->m->tap(p->m->tap_user, what, layer, m);
}

/* Choices and gates from logits; replayed choices stay. */
static tt_status choose(tt_pass *p, int layer, const tt_layer_params *l, tt_mat x_TD, tt_routing *r)
{
    tt_kernel *k = p->m->kernel;
    const tt_micro *micro = p->micro;
    tt_route_shape shape = route_shape(p->m->config);
    int index = tt_model_moe_index(p->m->config, layer);
    size_t bytes = (size_t)(r->T * r->K) * sizeof *r->ids;
    tt_arena_mark mark = tt_arena_save(k->scratch);
    tt_mat logits;
    TT_TRY(tt_grant_mat(k->scratch, tt_real(p), r->T, r->E, &logits));
    k->ops->router_logits(k, x_TD, tt_weight_mat(p, l->router), logits);
    tap(p, "router_logits", layer, logits);
    if (micro->replay) memcpy(r->ids, micro->replay[index], bytes);
    bool replay = micro->replay != NULL;
    tt_mat bias = tt_optional(p, l->router_bias);
    if (bias.data && tt_fault(TT_FAULT_BIAS_IN_BF16) && k->ops != &tt_ops_ref && k->ops != &tt_ops_alt) {
        tt_mat narrow;
        TT_TRY(tt_grant_mat(k->scratch, TT_BF16, 1, r->E, &narrow));
        k->ops->copy(k, bias, narrow);
        bias = narrow;
    }
    if (p->m->config->router == TT_ROUTER_SOFTMAX)
        k->ops->route_softmax(k, &shape, logits, replay, r->ids, r->gates, r->probs);
    else
        k->ops->route_sigmoid(k, &shape, logits, bias, replay, r->ids, r->gates, r->probs);
    tap(p, "gates", layer, r->gates);
    if (micro->record) memcpy(micro->record[index], r->ids, bytes);
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

tt_status tt_route(tt_pass *p, int layer, const tt_layer_params *l, tt_mat x_TD, tt_routing **out)
{
    const tt_model_config *c = p->m->config;
    tt_kernel *k = p->m->kernel;
    tt_arena *keep = p->m->keep;
    tt_routing *r;
    TT_PHASE(k->profile, ROUTER);
    TT_TRY(tt_arena_grant_zero(keep, 1, sizeof *r, (void **)&r));
    r->T = p->T, r->K = c->experts_per_token, r->E = c->num_experts;
    TT_TRY(tt_arena_grant(keep, r->T * r->K, sizeof *r->ids, (void **)&r->ids));
    TT_TRY(tt_grant_mat(keep, tt_real(p), r->T, r->K, &r->gates));
    TT_TRY(tt_grant_mat(keep, tt_real(p), r->T, r->E, &r->probs));
    TT_TRY(choose(p, layer, l, x_TD, r));
    int64_t *counts = p->m->expert_counts;
    if (counts && p->m->mesh->tp_rank == 0) { /* ranks that share a batch hold the same choices */
        counts += tt_model_moe_index(c, layer) * r->E;
        for (int64_t i = 0; i < r->T * r->K; i++) counts[r->ids[i]]++;
    }
    if (p->micro->balance != 0) {
        k->ops->route_stats(k, r->ids, r->K, r->probs, p->balance_counts, p->balance_sums);
        p->balance_rows += (double)r->T;
    }
    *out = r;
    return tt_dispatch_plan(p->m->mesh, k, keep, p->m->booked_pairs, r);
}

double tt_balance_value(const tt_balance *b, int64_t E)
{
    double value = 0;
    for (int64_t e = 0; e < E && b->rows > 0; e++)
        value += (double)E * (b->counts[e] / b->rows) * b->sums[e] / b->rows;
    return value;
}

void tt_balance_use(tt_pass *p, const tt_balance *b)
{
    for (int64_t e = 0; e < p->m->config->num_experts && b->rows > 0; e++)
        p->balance_counts[e] = b->counts[e] / b->rows; /* f, from here on */
    p->balance_rows = b->rows;
}

static tt_status balance_of_all(tt_pass *p, double *value)
{
    int64_t E = p->m->config->num_experts;
    double *all;
    TT_TRY(tt_arena_grant(p->m->keep, 2 * E + 1, sizeof *all, (void **)&all));
    memcpy(all, p->balance_counts, (size_t)E * sizeof *all);
    memcpy(all + E, p->balance_sums, (size_t)E * sizeof *all);
    all[2 * E] = p->balance_rows;
    /* Ranks that share a batch hold the same tokens: they count once. */
    if (p->m->mesh->tp_rank > 0) memset(all, 0, (size_t)(2 * E + 1) * sizeof *all);
    if (!tt_fault(TT_FAULT_BALANCE_PER_RANK))
        TT_TRY(tt_allreduce_f64(p->m->mesh->world, "balance-statistics", all, 2 * E + 1));
    tt_balance b = {.rows = all[2 * E], .counts = all, .sums = all + E};
    tt_balance_use(p, &b);
    *value = tt_balance_value(&b, E);
    return TT_OK;
}

/* Ranks that share a batch have the same statistics of it, bit by bit; one of them speaks for it. */
static tt_status balance_of_ranks(tt_pass *p, double *value)
{
    enum { SUM, BATCHES };
    double mean[2];
    tt_balance own = {.rows = p->balance_rows, .counts = p->balance_counts, .sums = p->balance_sums};
    bool counts = p->m->mesh->tp_rank == 0 && own.rows > 0;
    mean[SUM] = counts ? tt_balance_value(&own, p->m->config->num_experts) : 0;
    mean[BATCHES] = counts ? 1 : 0;
    TT_TRY(tt_allreduce_f64(p->m->mesh->world, "balance-statistics", mean, 2));
    tt_balance_use(p, &own);
    p->balance_rows *= mean[BATCHES];
    *value = mean[BATCHES] > 0 ? mean[SUM] / mean[BATCHES] : 0;
    return TT_OK;
}

tt_status tt_balance_finish(tt_pass *p, double *value)
{
    TT_PHASE(p->m->kernel->profile, ROUTER);
    return p->micro->balance_scope == TT_BALANCE_RANK ? balance_of_ranks(p, value) : balance_of_all(p, value);
}

/* Gradient of the router from that of the gates: dx += ..., dW_router += .... */
static tt_status router_back(tt_pass *p, const tt_layer_params *l, const tt_routing *r, tt_mat x_TD, tt_mat dgates,
                             tt_mat dx_TD)
{
    const tt_model_config *c = p->m->config;
    tt_kernel *k = p->m->kernel;
    tt_route_shape shape = route_shape(c);
    tt_arena_mark mark = tt_arena_save(p->m->work);
    tt_mat dlogits, x = x_TD;
    TT_PHASE(k->profile, ROUTER);
    if (tt_fault(TT_FAULT_ROUTER_MISSING) && p->m->mesh->world_size > 1) return TT_OK;
    TT_TRY(tt_grant_mat(p->m->work, tt_real(p), r->T, r->E, &dlogits));
    (c->router == TT_ROUTER_SOFTMAX ? k->ops->route_softmax_back : k->ops->route_sigmoid_back)(
        k, &shape, dgates, r->ids, r->gates, r->probs, dlogits);
    if (p->micro->balance != 0 && p->balance_rows > 0)
        k->ops->balance_back(k, r->probs, p->balance_counts,
                             p->micro->balance * (double)r->E / p->balance_rows, dlogits);
    if (x.dtype != tt_real(p)) { /* the router's products are exact in every precision */
        TT_TRY(tt_grant_mat(p->m->work, tt_real(p), x.rows, x.cols, &x));
        k->ops->copy(k, x_TD, x);
    }
    TT_TRY(tt_project_back(p, dlogits, x, l->router, -1, true, dx_TD));
    tt_arena_restore(p->m->work, mark);
    return TT_OK;
}

/* --- experts ------------------------------------------------------------------------------------------------- */

/* The local experts' matrices: part 0 gate, 1 up, 2 down. */
static tt_status local_weights(tt_pass *p, const tt_layer_params *l, const tt_routing *r, int part, tt_mat **out)
{
    int64_t begin, end;
    tt_mesh_experts(r->E, p->m->mesh->ep_size, p->m->mesh->ep_rank, &begin, &end);
    TT_TRY(tt_arena_grant(p->m->kernel->scratch, end - begin, sizeof **out, (void **)out));
    for (int64_t e = begin; e < end; e++) (*out)[e - begin] = tt_unit_weight(p->m->shards, l->experts + 3 * e + part);
    if (tt_fault(TT_FAULT_SWAPPED_EXPERTS) && p->m->mesh->world_size > 1 && end - begin > 1) {
        tt_mat first = (*out)[0];
        (*out)[0] = (*out)[1], (*out)[1] = first;
    }
    return TT_OK;
}

/* Their gradients, to be written by a product, or added to; all of a part alike. */
static tt_status local_gradients(tt_pass *p, const tt_layer_params *l, const tt_routing *r, int part, bool *add, tt_mat **out)
{
    int64_t begin, end;
    tt_mesh_experts(r->E, p->m->mesh->ep_size, p->m->mesh->ep_rank, &begin, &end);
    TT_TRY(tt_arena_grant(p->m->kernel->scratch, end - begin, sizeof **out, (void **)out));
    for (int64_t e = begin; e < end; e++)
        (*out)[e - begin] = tt_unit_gradient_out(p->m->shards, l->experts + 3 * e + part, add);
    return TT_OK;
}

/* What a round's outputs and backward pass start from. */
static tt_status round_inputs(tt_pass *p, const tt_layer_params *l, const tt_routing *r, int round, tt_mat x_TD,
                              tt_expert_cache *c)
{
    const tt_model_config *cfg = p->m->config;
    const tt_round *q = &r->rounds[round];
    tt_kernel *k = p->m->kernel;
    int64_t D = cfg->hidden_size, F = cfg->expert_width, G = r->local_experts;
    tt_mat *gate, *up;
    tt_mat received;
    TT_PHASE(k->profile, DISPATCH);
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), q->P, D, &c->rows));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), q->P, F, &c->gate));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), q->P, F, &c->up));
    tt_arena_mark mark = tt_arena_save(k->scratch);
    TT_TRY(tt_dispatch_rows(p->m->mesh, k, k->scratch, r, round, "dispatch-tokens", x_TD, &received));
    k->ops->gather_rows(k, received, q->pair_row, c->rows);
    TT_PHASE(k->profile, EXPERTS);
    TT_TRY(local_weights(p, l, r, 0, &gate));
    TT_TRY(local_weights(p, l, r, 1, &up));
    TT_TRY(k->ops->grouped_linear(k, c->rows, gate, G, q->expert_begin, c->gate));
    TT_TRY(k->ops->grouped_linear(k, c->rows, up, G, q->expert_begin, c->up));
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

static tt_status round_outputs(tt_pass *p, const tt_layer_params *l, const tt_routing *r, int round, const tt_expert_cache *c,
                               tt_mat y_TD)
{
    const tt_mesh *mesh = p->m->mesh;
    const tt_round *q = &r->rounds[round];
    tt_kernel *k = p->m->kernel;
    int64_t D = c->rows.cols, F = c->gate.cols, G = r->local_experts;
    tt_mat *down;
    tt_mat h, by_pair, by_row;
    TT_PHASE(k->profile, EXPERTS);
    tt_arena_mark mark = tt_arena_save(k->scratch);
    TT_TRY(local_weights(p, l, r, 2, &down));
    TT_TRY(tt_grant_mat(k->scratch, tt_compute(p), q->P, F, &h));
    TT_TRY(tt_grant_mat(k->scratch, tt_real(p), q->P, D, &by_pair));
    TT_TRY(tt_grant_mat(k->scratch, tt_real(p), q->R, D, &by_row));
    k->ops->swiglu(k, c->gate, c->up, h);
    TT_TRY(k->ops->grouped_linear(k, h, down, G, q->expert_begin, by_pair));
    TT_PHASE(k->profile, DISPATCH);
    tt_mat written = by_row;
    if (tt_fault(TT_FAULT_UNWRITTEN_ROW) && mesh->world_size > 1 && q->R > 0) written.rows--;
    k->ops->sum_rows(k, by_pair, q->row_begin, q->row_pair, q->pair_gate.data, false, written);
    TT_TRY(tt_combine_rows(mesh, k, k->scratch, r, round, "return-outputs", by_row, y_TD));
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

/* Where a rank's own part of a result is gathered before replicas share it; `whole` itself when there are none. */
static tt_status begin_shared(tt_pass *p, tt_mat whole, tt_mat *part)
{
    *part = whole;
    if (!tt_shares_rows(p->m->mesh)) return TT_OK;
    TT_TRY(tt_grant_mat(p->m->work, whole.dtype, whole.rows, whole.cols, part));
    p->m->kernel->ops->zero(p->m->kernel, *part);
    return TT_OK;
}

static tt_status end_shared(tt_pass *p, const char *name, tt_mat part, tt_mat whole)
{
    if (!tt_shares_rows(p->m->mesh)) return TT_OK;
    TT_TRY(tt_share_rows(p->m->mesh, p->m->kernel, name, part));
    p->m->kernel->ops->add(p->m->kernel, part, whole);
    return TT_OK;
}

tt_status tt_experts_forward(tt_pass *p, const tt_layer_params *l, const tt_routing *r, tt_mat x_TD, tt_mat y_TD,
                             tt_expert_cache *c)
{
    tt_mat part;
    TT_TRY(begin_shared(p, y_TD, &part));
    for (int q = 0; q < r->num_rounds; q++) {
        tt_arena_mark mark = tt_arena_save(p->m->work);
        TT_TRY(round_inputs(p, l, r, q, x_TD, c));
        TT_TRY(round_outputs(p, l, r, q, c, part));
        if (r->num_rounds == 1) break;
        tt_arena_restore(p->m->work, mark);
        *c = (tt_expert_cache){0};
    }
    return end_shared(p, "share-outputs", part, y_TD);
}

static tt_status round_backward(tt_pass *p, const tt_layer_params *l, const tt_routing *r, int round,
                                const tt_expert_cache *c, tt_mat dy_TD, tt_mat dgates_TK, tt_mat dx_TD)
{
    const tt_mesh *mesh = p->m->mesh;
    const tt_round *q = &r->rounds[round];
    tt_kernel *k = p->m->kernel;
    int64_t D = c->rows.cols, F = c->gate.cols, G = r->local_experts;
    tt_mat *gate, *up, *down;
    tt_mat *dgate, *dup, *ddown;
    bool add = false; /* the three are written together */
    tt_mat received, dy, dh, da = c->gate, db = c->up, h, dpair, dx_pair, dx_row; /* the cache is read for the last time */
    TT_PHASE(k->profile, DISPATCH);
    tt_arena_mark mark = tt_arena_save(k->scratch);
    TT_TRY(local_weights(p, l, r, 0, &gate));
    TT_TRY(local_weights(p, l, r, 1, &up));
    TT_TRY(local_weights(p, l, r, 2, &down));
    TT_TRY(local_gradients(p, l, r, 0, &add, &dgate));
    TT_TRY(local_gradients(p, l, r, 1, &add, &dup));
    TT_TRY(local_gradients(p, l, r, 2, &add, &ddown));
    TT_TRY(tt_grant_mat(k->scratch, tt_compute(p), q->P, D, &dy));
    TT_TRY(tt_grant_mat(k->scratch, tt_real(p), q->P, F, &dh));
    TT_TRY(tt_grant_mat(k->scratch, tt_compute(p), q->P, F, &h));
    TT_TRY(tt_grant_mat(k->scratch, tt_real(p), q->P, 1, &dpair));
    TT_TRY(tt_grant_mat(k->scratch, tt_real(p), q->P, D, &dx_pair));
    TT_TRY(tt_grant_mat(k->scratch, tt_real(p), q->R, D, &dx_row));
    TT_TRY(tt_dispatch_rows(mesh, k, k->scratch, r, round, "dispatch-gradients", dy_TD, &received));
    k->ops->gather_rows(k, received, q->pair_row, dy);
    TT_PHASE(k->profile, EXPERTS);
    TT_TRY(k->ops->grouped_dx(k, dy, down, G, q->expert_begin, false, dh));
    k->ops->swiglu_back(k, dh, c->gate, c->up, q->pair_gate.data, dpair.data, da, db, h);
    TT_TRY(k->ops->grouped_dw(k, dy, h, G, q->expert_begin, add, ddown));
    TT_TRY(k->ops->grouped_dw(k, da, c->rows, G, q->expert_begin, add, dgate));
    TT_TRY(k->ops->grouped_dw(k, db, c->rows, G, q->expert_begin, add, dup));
    TT_TRY(k->ops->grouped_dx(k, da, gate, G, q->expert_begin, false, dx_pair));
    TT_TRY(k->ops->grouped_dx(k, db, up, G, q->expert_begin, true, dx_pair));
    TT_PHASE(k->profile, DISPATCH);
    k->ops->sum_rows(k, dx_pair, q->row_begin, q->row_pair, NULL, false, dx_row);
    TT_TRY(tt_return_gate_gradients(mesh, k, k->scratch, r, round, dpair, dgates_TK));
    TT_TRY(tt_combine_rows(mesh, k, k->scratch, r, round, "return-gradients", dx_row, dx_TD));
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

/* Computed again where there is no cache. */
static tt_status round_again(tt_pass *p, const tt_layer_params *l, const tt_routing *r, int round, tt_mat x_TD,
                             tt_expert_cache *c)
{
    if (c->rows.data) return TT_OK;
    TT_STAGE(p->m->kernel->profile, RECOMPUTE);
    return round_inputs(p, l, r, round, x_TD, c);
}

tt_status tt_experts_backward(tt_pass *p, const tt_layer_params *l, const tt_routing *r, const tt_expert_cache *kept,
                              tt_mat x_TD, tt_mat dy_TD, tt_mat dx_TD)
{
    tt_arena *work = p->m->work;
    tt_mat dgates, part;
    tt_arena_mark mark = tt_arena_save(work);
    TT_TRY(tt_grant_mat(work, tt_real(p), r->T, r->K, &dgates));
    p->m->kernel->ops->zero(p->m->kernel, dgates);
    TT_TRY(begin_shared(p, dx_TD, &part));
    for (int q = 0; q < r->num_rounds; q++) {
        tt_arena_mark round = tt_arena_save(work);
        tt_expert_cache c = *kept;
        TT_TRY(round_again(p, l, r, q, x_TD, &c));
        TT_TRY(round_backward(p, l, r, q, &c, dy_TD, dgates, part));
        tt_arena_restore(work, round);
    }
    /* The router's backward needs the gradients of all gates, and then runs alike on all replicas. */
    TT_TRY(tt_share_rows(p->m->mesh, p->m->kernel, "share-gates", dgates));
    TT_TRY(end_shared(p, "share-gradients", part, dx_TD));
    TT_TRY(router_back(p, l, r, x_TD, dgates, dx_TD));
    tt_arena_restore(work, mark);
    return TT_OK;
}
