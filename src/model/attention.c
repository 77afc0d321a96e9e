/* attention.c - grouped-query attention with rotary positions: projections, optional norms of queries and keys, optional
 * clamping, rotation, softmax attention within documents, output projection. docs/model.md section "Attention".
 *
 * Query and key norms: per head ([head_dim] weight, rows are (token, head)) or over the whole projection (rows are
 * tokens). Both are RMSNorm on a reshaped view. */
#include "model/block.h"

#include <math.h>

tt_status tt_project(tt_pass *p, tt_mat x, int64_t weight, int64_t bias, bool accumulate, tt_mat y)
{
    tt_kernel *k = p->m->kernel;
    return k->ops->linear(k, x, tt_weight_mat(p, weight), tt_optional(p, bias), accumulate, y);
}

tt_status tt_project_back(tt_pass *p, tt_mat dy, tt_mat x, int64_t weight, int64_t bias, bool accumulate, tt_mat dx)
{
    tt_kernel *k = p->m->kernel;
    bool add;
    tt_mat dw = tt_unit_gradient_out(p->m->shards, weight, &add);
    TT_TRY(k->ops->linear_dw(k, dy, x, add, dw));
    if (bias >= 0) k->ops->bias_db(k, dy, tt_unit_gradient(p->m->shards, k, bias));
    if (dx.data) TT_TRY(k->ops->linear_dx(k, dy, tt_weight_mat(p, weight), accumulate, dx));
    return TT_OK;
}

static tt_attention_shape shape_of(const tt_model_config *c)
{
    return (tt_attention_shape){
        .heads = c->num_heads,
        .kv_heads = c->num_kv_heads,
        .qk_dim = c->head_dim,
        .v_dim = c->head_dim,
        .scale = 1 / sqrt((double)c->head_dim),
        .window = c->window,
    };
}

/* Width of a row of the query or key norm. */
static int64_t norm_width(const tt_model_config *c, tt_mat m)
{
    return c->qk_norm == TT_QK_NORM_WIDE ? m.cols : c->head_dim;
}

/* From projection to what attention reads: norm -> clamp -> rotate. raw is kept when a norm follows, mid when a clamp
 * does; otherwise they are the same memory as `out`. */
static tt_status refine(tt_pass *p, int64_t norm, int64_t heads, bool rotate, tt_mat raw, tt_mat *rstd, tt_mat *mid,
                        tt_mat *out)
{
    const tt_model_config *c = p->m->config;
    tt_kernel *k = p->m->kernel;
    TT_PHASE(k->profile, OTHER);
    *mid = raw;
    if (norm >= 0) {
        int64_t width = norm_width(c, raw);
        TT_TRY(tt_grant_mat(p->m->work, raw.dtype, raw.rows, raw.cols, mid));
        TT_TRY(tt_grant_mat(p->m->work, tt_real(p), raw.rows * raw.cols / width, 1, rstd));
        k->ops->rmsnorm(k, tt_mat_reshape(raw, width), tt_weight_mat(p, norm), c->norm_eps,
                        tt_mat_reshape(*mid, width), rstd->data);
    }
    *out = *mid;
    if (c->clip_qkv > 0) {
        TT_TRY(tt_grant_mat(p->m->work, raw.dtype, raw.rows, raw.cols, out));
        k->ops->clamp(k, *mid, c->clip_qkv, *out);
    }
    if (rotate) k->ops->rope(k, *out, heads, p->cosine, p->sine, false, false);
    return TT_OK;
}

/* The same backwards, in place on d. */
static void refine_back(tt_pass *p, int64_t norm, int64_t heads, bool rotate, tt_mat raw, tt_mat rstd, tt_mat mid,
                        tt_mat d)
{
    const tt_model_config *c = p->m->config;
    tt_kernel *k = p->m->kernel;
    TT_PHASE(k->profile, OTHER);
    if (rotate) k->ops->rope(k, d, heads, p->cosine, p->sine, false, true);
    if (c->clip_qkv > 0) k->ops->clamp_back(k, d, mid, c->clip_qkv, d);
    if (norm < 0) return;
    int64_t width = norm_width(c, raw);
    k->ops->rmsnorm_back(k, tt_mat_reshape(d, width), tt_mat_reshape(raw, width), tt_weight_mat(p, norm), rstd.data,
                         false, tt_mat_reshape(d, width), tt_unit_gradient(p->m->shards, k, norm));
}

tt_status tt_attention_forward(tt_pass *p, const tt_layer_params *l, tt_mat x_TD, tt_mat y_TD, tt_attention_cache *c)
{
    const tt_model_config *cfg = p->m->config;
    tt_kernel *k = p->m->kernel;
    tt_attention_shape shape = shape_of(cfg);
    int64_t T = p->T, q_width = shape.heads * shape.qk_dim, kv_width = shape.kv_heads * shape.qk_dim;
    tt_mat v_raw;
    *c = (tt_attention_cache){.x = x_TD};
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), T, cfg->hidden_size, &c->normed));
    TT_TRY(tt_grant_mat(p->m->work, tt_real(p), T, 1, &c->rstd));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), T, q_width, &c->q_raw));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), T, kv_width, &c->k_raw));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), T, kv_width, &v_raw));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), T, q_width, &c->o));
    TT_TRY(tt_grant_mat(p->m->work, tt_real(p), T, shape.heads, &c->lse));
    k->ops->rmsnorm(k, x_TD, tt_weight_mat(p, l->norm_attention), cfg->norm_eps, c->normed, c->rstd.data);
    TT_PHASE(k->profile, ATTENTION);
    TT_TRY(tt_project(p, c->normed, l->q, l->q_bias, false, c->q_raw));
    TT_TRY(tt_project(p, c->normed, l->k, l->k_bias, false, c->k_raw));
    TT_TRY(tt_project(p, c->normed, l->v, l->v_bias, false, v_raw));
    TT_TRY(refine(p, l->q_norm, shape.heads, true, c->q_raw, &c->q_rstd, &c->q_mid, &c->q));
    TT_TRY(refine(p, l->k_norm, shape.kv_heads, true, c->k_raw, &c->k_rstd, &c->k_mid, &c->k));
    TT_TRY(refine(p, -1, shape.kv_heads, false, v_raw, NULL, &c->v_mid, &c->v));
    TT_TRY(k->ops->attention(k, &shape, &p->micro->batch->docs, c->q, c->k, c->v, c->o, c->lse));
    return tt_project(p, c->o, l->o, l->o_bias, true, y_TD);
}

tt_status tt_attention_backward(tt_pass *p, const tt_layer_params *l, const tt_attention_cache *c, tt_mat dx_TD)
{
    const tt_model_config *cfg = p->m->config;
    tt_kernel *k = p->m->kernel;
    tt_attention_shape shape = shape_of(cfg);
    tt_arena_mark mark = tt_arena_save(p->m->work);
    tt_arena *work = p->m->work;
    tt_mat dy, d_o, dq, dk, dv, dnormed;
    TT_TRY(tt_grant_mat(work, tt_compute(p), p->T, cfg->hidden_size, &dy));
    TT_TRY(tt_grant_mat(work, tt_compute(p), p->T, c->o.cols, &d_o));
    TT_TRY(tt_grant_mat(work, tt_compute(p), p->T, c->q.cols, &dq));
    TT_TRY(tt_grant_mat(work, tt_compute(p), p->T, c->k.cols, &dk));
    TT_TRY(tt_grant_mat(work, tt_compute(p), p->T, c->v.cols, &dv));
    TT_TRY(tt_grant_mat(work, tt_real(p), p->T, cfg->hidden_size, &dnormed));
    k->ops->copy(k, dx_TD, dy);
    TT_PHASE(k->profile, ATTENTION);
    TT_TRY(tt_project_back(p, dy, c->o, l->o, l->o_bias, false, d_o));
    TT_TRY(k->ops->attention_back(k, &shape, &p->micro->batch->docs, d_o, c->q, c->k, c->v, c->o, c->lse, dq, dk, dv));
    refine_back(p, l->q_norm, shape.heads, true, c->q_raw, c->q_rstd, c->q_mid, dq);
    refine_back(p, l->k_norm, shape.kv_heads, true, c->k_raw, c->k_rstd, c->k_mid, dk);
    refine_back(p, -1, shape.kv_heads, false, c->v_mid, (tt_mat){0}, c->v_mid, dv);
    TT_TRY(tt_project_back(p, dq, c->normed, l->q, l->q_bias, false, dnormed));
    TT_TRY(tt_project_back(p, dk, c->normed, l->k, l->k_bias, true, dnormed));
    TT_TRY(tt_project_back(p, dv, c->normed, l->v, l->v_bias, true, dnormed));
    TT_PHASE(k->profile, OTHER);
    k->ops->rmsnorm_back(k, dnormed, c->x, tt_weight_mat(p, l->norm_attention), c->rstd.data, true, dx_TD,
                         tt_unit_gradient(p->m->shards, k, l->norm_attention));
    tt_arena_restore(work, mark);
    return TT_OK;
}
