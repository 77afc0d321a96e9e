/* block.h - the parts of a decoder block, forward beside backward. Internal to src/model.
 *
 * Each part has a cache: what its forward pass keeps for its backward pass. It and scratch are granted from tt_model.work:
 * the cache of a block that is kept stays there until its backward pass (model.h, Memory).
 * Gradients of weights are added to the unit's full gradient (tt_unit_gradient, tt_unit_gradient_out).
 */
#ifndef TT_MODEL_BLOCK_H
#define TT_MODEL_BLOCK_H

#include "model/model.h"

/* One micro-step on its way through the model. */
typedef struct tt_pass {
    tt_model *m;
    const tt_micro *micro;
    int64_t T;
    tt_mat cosine, sine;    /* [T, rotary/2] */
    bool again;             /* this forward only serves backward: outputs of the block are not needed */
    double *balance_counts, *balance_sums; /* [E] over all MoE layers */
    double balance_rows;    /* rows behind them; after tt_balance_finish what the gradient is divided by */
} tt_pass;

typedef struct tt_attention_cache {
    tt_mat x;              /* [T,D] real: input of the block */
    tt_mat normed, rstd;   /* [T,D] compute; [T,1] */
    tt_mat q_raw, k_raw;   /* projections, before their norms */
    tt_mat q_rstd, k_rstd;
    tt_mat q_mid, k_mid, v_mid; /* before clamping; the same as q, k, v without it */
    tt_mat q, k, v;        /* as attention reads them: normed, clamped, rotated */
    tt_mat o, lse;
} tt_attention_cache;

typedef struct tt_mlp_cache {
    tt_mat gate, up; /* [T,F] compute: before the activation */
} tt_mlp_cache;

typedef struct tt_expert_cache { /* of one round; not there when it is computed again */
    tt_mat rows;     /* [P,D] compute: inputs by pair */
    tt_mat gate, up; /* [P,F] compute */
} tt_expert_cache;

typedef struct tt_block_cache {
    tt_attention_cache attention;
    tt_mat u;            /* [T,D] real: after attention */
    tt_mat normed, rstd; /* input of the feed-forward part, compute */
    tt_mlp_cache mlp;    /* dense, or shared experts */
    tt_expert_cache experts; /* of the only round */
} tt_block_cache;

/* What stays of a block between forward and backward. */
typedef struct tt_block_state {
    tt_routing *routing;   /* MoE layers */
    tt_mat input;          /* [T,D] compute: what the block is computed again from */
    tt_block_cache *cache; /* kept by the forward pass, or made again from `input` */
    tt_arena_mark mark;    /* of `work`, in front of the cache */
} tt_block_state;

/* y_TD (real) += attention of x_TD; c is filled. */
tt_status tt_attention_forward(tt_pass *p, const tt_layer_params *l, tt_mat x_TD, tt_mat y_TD, tt_attention_cache *c);
/* dx_TD (real): in, gradient of the attention's output; out, plus what flows through to its input. */
tt_status tt_attention_backward(tt_pass *p, const tt_layer_params *l, const tt_attention_cache *c, tt_mat dx_TD);

/* Gated MLP with the weights gate, up, down: y_TD (real) += ...; in `again` passes y is left alone. */
tt_status tt_mlp_forward(tt_pass *p, int64_t gate, int64_t up, int64_t down, tt_mat x_TD, tt_mat y_TD, tt_mlp_cache *c);
/* dy_TD compute; dx_TD (real) += gradient of the input x_TD. */
tt_status tt_mlp_backward(tt_pass *p, int64_t gate, int64_t up, int64_t down, const tt_mlp_cache *c, tt_mat x_TD,
                          tt_mat dy_TD, tt_mat dx_TD);

/* Router: fills the routing handle (ids, gates, probs, plan) from `keep`. Collective over the ep group. */
tt_status tt_route(tt_pass *p, int layer, const tt_layer_params *l, tt_mat x_TD, tt_routing **out);
/* Routed experts: y_TD (real) += ...; gathered expert unit. The cache is that of a single round: where a rank receives more than
 * fits into one, no more than one round's is ever held. Collective over the ep group. */
tt_status tt_experts_forward(tt_pass *p, const tt_layer_params *l, const tt_routing *r, tt_mat x_TD, tt_mat y_TD,
                             tt_expert_cache *c);
/* dy_TD compute; dx_TD (real) += gradient through experts and router. Without a cache each round is computed again from x_TD.
 * Gathered expert unit. Collective over the ep group. */
tt_status tt_experts_backward(tt_pass *p, const tt_layer_params *l, const tt_routing *r, const tt_expert_cache *kept,
                              tt_mat x_TD, tt_mat dy_TD, tt_mat dx_TD);
/* After all blocks' forward: balance_counts become shares, *value the balance loss of the micro-step, the same on every
 * rank. Collective over the world. */
tt_status tt_balance_finish(tt_pass *p, double *value);
/* What the backward passes of all blocks need: these statistics. Local. */
void tt_balance_use(tt_pass *p, const tt_balance *b);

/* Final norm, head, loss: dx_TD (real) is overwritten with the gradient of the last block's output (backward passes).
 * Gathers and releases its units. Collective over the world. */
tt_status tt_head(tt_pass *p, tt_mat x_TD, tt_mat dx_TD, tt_loss_sums *sums);

/* --- small things the parts share ---------------------------------------------------------------------------- */

static inline tt_dtype tt_compute(const tt_pass *p)
{
    return tt_shards_precision(p->m->shards).compute;
}
static inline tt_dtype tt_real(const tt_pass *p)
{
    return p->m->kernel->ops->real;
}
static inline tt_status tt_grant_mat(tt_arena *a, tt_dtype type, int64_t rows, int64_t cols, tt_mat *out)
{
    void *data;
    TT_TRY(tt_arena_grant(a, rows * cols, tt_dtype_size(type), &data));
    *out = tt_mat_of(data, type, rows, cols);
    return TT_OK;
}
static inline tt_mat tt_weight_mat(const tt_pass *p, int64_t param)
{
    return tt_unit_weight(p->m->shards, param);
}
/* A view of no data where a layer has no such parameter. */
static inline tt_mat tt_optional(const tt_pass *p, int64_t param)
{
    return param < 0 ? (tt_mat){0} : tt_weight_mat(p, param);
}

/* y = x w^T + b, and its backward: gradients of weight and bias added, dx set or added to (dx.data NULL: none). */
tt_status tt_project(tt_pass *p, tt_mat x, int64_t weight, int64_t bias, bool accumulate, tt_mat y);
tt_status tt_project_back(tt_pass *p, tt_mat dy, tt_mat x, int64_t weight, int64_t bias, bool accumulate, tt_mat dx);

#endif
