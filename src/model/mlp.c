/* mlp.c - the gated MLP of dense layers and of shared experts: y = (silu(x Wg^T) * (x Wu^T)) Wd^T.
 * docs/model.md section "Gated MLP". */
#include "model/block.h"

tt_status tt_mlp_forward(tt_pass *p, int64_t gate, int64_t up, int64_t down, tt_mat x_TD, tt_mat y_TD, tt_mlp_cache *c)
{
    tt_kernel *k = p->m->kernel;
    int64_t F = tt_shards_params(p->m->shards)->at[gate].shape[0];
    TT_PHASE(k->profile, MLP);
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), p->T, F, &c->gate));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), p->T, F, &c->up));
    TT_TRY(tt_project(p, x_TD, gate, -1, false, c->gate));
    TT_TRY(tt_project(p, x_TD, up, -1, false, c->up));
    if (p->again) return TT_OK;
    tt_mat h;
    tt_arena_mark mark = tt_arena_save(k->scratch);
    TT_TRY(tt_grant_mat(k->scratch, tt_compute(p), p->T, F, &h));
    k->ops->swiglu(k, c->gate, c->up, h);
    TT_TRY(tt_project(p, h, down, -1, true, y_TD));
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

tt_status tt_mlp_backward(tt_pass *p, int64_t gate, int64_t up, int64_t down, const tt_mlp_cache *c, tt_mat x_TD,
                          tt_mat dy_TD, tt_mat dx_TD)
{
    tt_kernel *k = p->m->kernel;
    int64_t F = c->gate.cols;
    bool add;
    tt_mat dw_down = tt_unit_gradient_out(p->m->shards, down, &add);
    tt_mat dh, da = c->gate, db = c->up, h; /* the cache is read for the last time */
    TT_PHASE(k->profile, MLP);
    tt_arena_mark mark = tt_arena_save(p->m->work);
    TT_TRY(tt_grant_mat(p->m->work, tt_real(p), p->T, F, &dh));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), p->T, F, &h));
    TT_TRY(k->ops->linear_dx(k, dy_TD, tt_weight_mat(p, down), false, dh));
    k->ops->swiglu_back(k, dh, c->gate, c->up, NULL, NULL, da, db, h);
    TT_TRY(k->ops->linear_dw(k, dy_TD, h, add, dw_down));
    TT_TRY(tt_project_back(p, da, x_TD, gate, -1, true, dx_TD));
    TT_TRY(tt_project_back(p, db, x_TD, up, -1, true, dx_TD));
    tt_arena_restore(p->m->work, mark);
    return TT_OK;
}
