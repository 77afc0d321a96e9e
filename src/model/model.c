#include "model/model.h"
#include "base/checked.h"
#include "base/fault.h"
#include "model/block.h"

#include <string.h>

tt_status tt_model_init(tt_model *m, const tt_model_config *config, const tt_model_table *table, tt_shards *shards,
                        tt_kernel *kernel)
{
    *m = (tt_model){
        .config = config,
        .table = table,
        .mesh = tt_shards_mesh(shards),
        .shards = shards,
        .kernel = kernel,
        .recompute = true,
        .kept_layers = TT_KEPT_LAYERS,
        .loss_chunk = TT_LOSS_CHUNK,
    };
    TT_TRY(tt_arena_create("activations kept for backward", &m->keep));
    return tt_arena_create("activations of one block", &m->work);
}

void tt_model_fini(tt_model *m)
{
    tt_arena_destroy(&m->keep);
    tt_arena_destroy(&m->work);
}

int tt_model_moe_index(const tt_model_config *c, int layer)
{
    int index = 0;
    for (int i = 0; i < layer; i++) index += c->is_moe[i];
    return index;
}

/* --- one block ----------------------------------------------------------------------------------------------- */

static void tap(tt_pass *p, const char *what, int layer, tt_mat m)
{
    if (p->m->tap) p->m->tap(p->m->tap_user, what, layer, m);
}

static int64_t exchanged(const tt_pass *p)
{
    return p->m->expert_bytes ? tt_dispatch_bytes(p->m->mesh->comm) : 0;
}

/* What has been exchanged since it was `before` goes to the layer's account. */
static void count_exchange(tt_pass *p, int layer, bool backward, int64_t before)
{
    if (!p->m->expert_bytes) return;
    p->m->expert_bytes[2 * tt_model_moe_index(p->m->config, layer) + backward] += exchanged(p) - before;
}

static tt_status feed_forward(tt_pass *p, int layer, const tt_layer_params *l, tt_mat y_TD, tt_block_state *state,
                              tt_block_cache *c)
{
    tt_model *m = p->m;
    tt_kernel *k = m->kernel;
    if (l->expert_unit < 0) return tt_mlp_forward(p, l->gate, l->up, l->down, c->normed, y_TD, &c->mlp);
    int64_t before = exchanged(p);
    if (p->again && tt_fault(TT_FAULT_ROUTED_AGAIN) && m->mesh->world_size > 1) {
        k->ops->scale(k, -1, c->normed);
        TT_TRY(tt_route(p, layer, l, c->normed, &state->routing));
        k->ops->scale(k, -1, c->normed);
    }
    if (!state->routing) TT_TRY(tt_route(p, layer, l, c->normed, &state->routing));
    if (l->shared_gate >= 0)
        TT_TRY(tt_mlp_forward(p, l->shared_gate, l->shared_up, l->shared_down, c->normed, y_TD, &c->mlp));
    if (p->again) return TT_OK; /* experts follow in their backward pass, round by round */
    TT_TRY(tt_unit_gather(m->shards, k, l->expert_unit));
    TT_TRY(tt_experts_forward(p, l, state->routing, c->normed, y_TD, &c->experts));
    tt_unit_release(m->shards, l->expert_unit);
    count_exchange(p, layer, false, before);
    return TT_OK;
}

/* x_TD: residual stream, in and out. The dense unit is gathered. */
static tt_status block_forward(tt_pass *p, int layer, tt_mat x_TD, tt_block_state *state, tt_block_cache *c)
{
    tt_model *m = p->m;
    tt_kernel *k = m->kernel;
    const tt_layer_params *l = &m->table->layers[layer];
    tt_mat x;
    *c = (tt_block_cache){0};
    TT_TRY(tt_grant_mat(p->m->work, tt_real(p), p->T, x_TD.cols, &x));
    TT_TRY(tt_grant_mat(p->m->work, tt_real(p), p->T, x_TD.cols, &c->u));
    TT_TRY(tt_grant_mat(p->m->work, tt_compute(p), p->T, x_TD.cols, &c->normed));
    TT_TRY(tt_grant_mat(p->m->work, tt_real(p), p->T, 1, &c->rstd));
    k->ops->copy(k, x_TD, x);
    TT_TRY(tt_attention_forward(p, l, x, x_TD, &c->attention));
    k->ops->copy(k, x_TD, c->u);
    k->ops->rmsnorm(k, c->u, tt_weight_mat(p, l->norm_mlp), m->config->norm_eps, c->normed, c->rstd.data);
    return feed_forward(p, layer, l, x_TD, state, c);
}

static tt_status end_unit(tt_pass *p, int unit)
{
    TT_TRY(tt_unit_gradient_end(p->m->shards, p->m->kernel, unit));
    tt_unit_release(p->m->shards, unit);
    return TT_OK;
}

/* Behind the backward pass of a layer's experts: where units come and go in messages, the next one's weights and this one's
 * gradient have all of attention to travel. The weights set out first: they are wanted sooner, and take the memory of this one's.
 * Where memory is shared, ranks would only meet once more. */
static bool experts_leave_early(const tt_model *m, int layer)
{
    return m->table->layers[layer].expert_unit >= 0 && !tt_shards_are_shared(m->shards);
}

static tt_status end_experts(tt_pass *p, int layer)
{
    tt_model *m = p->m;
    const tt_layer_params *layers = m->table->layers;
    tt_unit_release(m->shards, layers[layer].expert_unit);
    if (layer > 0 && layers[layer - 1].expert_unit >= 0)
        TT_TRY(tt_unit_prefetch(m->shards, m->kernel, layers[layer - 1].expert_unit));
    return tt_unit_gradient_end(m->shards, m->kernel, layers[layer].expert_unit);
}

/* dx_TD (real): gradient of the block's output in, of its input out. Units are gathered, gradients begun. */
static tt_status block_backward(tt_pass *p, int layer, const tt_block_state *state, const tt_block_cache *c, tt_mat dx_TD)
{
    tt_model *m = p->m;
    tt_kernel *k = m->kernel;
    const tt_layer_params *l = &m->table->layers[layer];
    tt_arena_mark mark = tt_arena_save(m->work);
    tt_mat dy, dnormed;
    TT_TRY(tt_grant_mat(m->work, tt_compute(p), p->T, dx_TD.cols, &dy));
    TT_TRY(tt_grant_mat(m->work, tt_real(p), p->T, dx_TD.cols, &dnormed));
    k->ops->copy(k, dx_TD, dy);
    k->ops->zero(k, dnormed);
    if (l->expert_unit < 0) {
        TT_TRY(tt_mlp_backward(p, l->gate, l->up, l->down, &c->mlp, c->normed, dy, dnormed));
    } else {
        if (l->shared_gate >= 0)
            TT_TRY(tt_mlp_backward(p, l->shared_gate, l->shared_up, l->shared_down, &c->mlp, c->normed, dy, dnormed));
        int64_t before = exchanged(p);
        TT_TRY(tt_experts_backward(p, l, state->routing, &c->experts, c->normed, dy, dnormed));
        count_exchange(p, layer, true, before);
    }
    k->ops->rmsnorm_back(k, dnormed, c->u, tt_weight_mat(p, l->norm_mlp), c->rstd.data, true, dx_TD,
                         tt_unit_gradient(m->shards, k, l->norm_mlp));
    tt_arena_restore(m->work, mark);
    if (experts_leave_early(m, layer)) TT_TRY(end_experts(p, layer));
    return tt_attention_backward(p, l, &c->attention, dx_TD);
}

/* --- all blocks ---------------------------------------------------------------------------------------------- */

/* Start gathering what comes next while this block computes. */
static tt_status prefetch_layer(tt_pass *p, int layer)
{
    const tt_model *m = p->m;
    if (layer < 0 || layer >= m->config->num_layers) return TT_OK;
    return tt_unit_prefetch(m->shards, m->kernel, m->table->layers[layer].unit);
}

static bool recomputes(const tt_model *m, int layer)
{
    return m->recompute && layer < m->config->num_layers - m->kept_layers;
}

static tt_status forward_layer(tt_pass *p, int layer, tt_mat x_TD, tt_block_state *state)
{
    tt_model *m = p->m;
    tt_kernel *k = m->kernel;
    const tt_layer_params *l = &m->table->layers[layer];
    bool keeps = p->micro->backward && !recomputes(m, layer);
    tt_block_cache *cache;
    state->mark = tt_arena_save(m->work);
    if (p->micro->backward && !keeps) {
        TT_TRY(tt_grant_mat(m->keep, tt_compute(p), p->T, x_TD.cols, &state->input));
        k->ops->copy(k, x_TD, state->input);
    }
    TT_TRY(tt_arena_grant(p->m->work, 1, sizeof *cache, (void **)&cache));
    TT_TRY(tt_unit_gather(m->shards, k, l->unit));
    if (l->expert_unit >= 0) TT_TRY(tt_unit_prefetch(m->shards, k, l->expert_unit));
    TT_TRY(prefetch_layer(p, layer + 1));
    TT_TRY(block_forward(p, layer, x_TD, state, cache));
    tt_unit_release(m->shards, l->unit);
    if (keeps)
        state->cache = cache;
    else
        tt_arena_restore(m->work, state->mark);
    tap(p, "block", layer, x_TD);
    return TT_OK;
}

/* All but the experts. */
static tt_status recompute_layer(tt_pass *p, int layer, tt_block_state *state)
{
    tt_model *m = p->m;
    tt_mat x;
    state->mark = tt_arena_save(m->work);
    TT_TRY(tt_arena_grant(m->work, 1, sizeof *state->cache, (void **)&state->cache));
    TT_TRY(tt_grant_mat(m->work, tt_real(p), p->T, state->input.cols, &x));
    m->kernel->ops->copy(m->kernel, state->input, x);
    p->again = true;
    TT_STAGE(m->kernel->profile, RECOMPUTE);
    tt_status status = block_forward(p, layer, x, state, state->cache);
    p->again = false;
    return status;
}

static tt_status backward_layer(tt_pass *p, int layer, tt_mat dx_TD, tt_block_state *state)
{
    tt_model *m = p->m;
    tt_kernel *k = m->kernel;
    const tt_layer_params *l = &m->table->layers[layer];
    bool experts = l->expert_unit >= 0;
    if (experts) TT_TRY(tt_unit_prefetch(m->shards, k, l->expert_unit));
    TT_TRY(tt_unit_gather(m->shards, k, l->unit));
    if (experts) TT_TRY(tt_unit_gradient_begin(m->shards, k, l->expert_unit));
    TT_TRY(tt_unit_gradient_begin(m->shards, k, l->unit));
    TT_TRY(prefetch_layer(p, layer - 1));
    if (!state->cache) TT_TRY(recompute_layer(p, layer, state));
    if (experts) TT_TRY(tt_unit_gather(m->shards, k, l->expert_unit));
    TT_TRY(block_backward(p, layer, state, state->cache, dx_TD));
    if (experts && !experts_leave_early(m, layer)) TT_TRY(end_unit(p, l->expert_unit));
    TT_TRY(end_unit(p, l->unit));
    tt_arena_restore(m->work, state->mark);
    return TT_OK;
}

/* --- ends ---------------------------------------------------------------------------------------------------- */

static tt_status embed(tt_pass *p, tt_mat x_TD)
{
    tt_model *m = p->m;
    int unit = m->table->embedding_unit;
    TT_TRY(tt_unit_gather(m->shards, m->kernel, unit));
    TT_TRY(prefetch_layer(p, 0));
    m->kernel->ops->embed(m->kernel, p->micro->batch->ids, tt_weight_mat(p, m->table->embedding), x_TD);
    tt_unit_release(m->shards, unit);
    tap(p, "embed", 0, x_TD);
    return TT_OK;
}

static tt_status embed_back(tt_pass *p, tt_mat dx_TD)
{
    tt_model *m = p->m;
    int unit = m->table->embedding_unit;
    TT_TRY(tt_unit_gradient_begin(m->shards, m->kernel, unit));
    m->kernel->ops->embed_back(m->kernel, p->micro->batch->ids, dx_TD, (int32_t)m->config->pad_token,
                               tt_unit_gradient(m->shards, m->kernel, m->table->embedding));
    return tt_unit_gradient_end(m->shards, m->kernel, unit);
}

static tt_status prepare(tt_pass *p)
{
    tt_model *m = p->m;
    const tt_model_config *c = m->config;
    TT_TRY(tt_grant_mat(m->keep, tt_real(p), p->T, c->rotary_dim / 2, &p->cosine));
    TT_TRY(tt_grant_mat(m->keep, tt_real(p), p->T, c->rotary_dim / 2, &p->sine));
    m->kernel->ops->rope_table(m->kernel, p->micro->batch->positions, p->T, c->rotary_dim, c->rope_theta, p->cosine,
                               p->sine);
    TT_TRY(tt_arena_grant_zero(m->keep, c->num_experts, sizeof(double), (void **)&p->balance_counts));
    return tt_arena_grant_zero(m->keep, c->num_experts, sizeof(double), (void **)&p->balance_sums);
}

/* dx_TD is overwritten with the gradient of the last block's output, when the micro-step goes backward. */
static tt_status forward(tt_pass *p, tt_mat dx_TD, tt_block_state *states, tt_micro_result *out)
{
    tt_model *m = p->m;
    tt_mat x;
    TT_STAGE(m->kernel->profile, FORWARD);
    tt_comm_set_phase(m->mesh->comm, "forward");
    TT_TRY(tt_grant_mat(m->keep, tt_real(p), p->T, m->config->hidden_size, &x));
    TT_TRY(embed(p, x));
    for (int i = 0; i < m->config->num_layers; i++) TT_TRY(forward_layer(p, i, x, &states[i]));
    if (p->micro->balance != 0) TT_TRY(tt_balance_finish(p, &out->balance_loss));
    return tt_head(p, x, dx_TD, &out->sums);
}

static tt_status backward(tt_pass *p, tt_mat dx_TD, tt_block_state *states)
{
    tt_model *m = p->m;
    TT_STAGE(m->kernel->profile, BACKWARD);
    tt_comm_set_phase(m->mesh->comm, "backward");
    for (int i = (int)m->config->num_layers - 1; i >= 0; i--) {
        tap(p, "block_gradient", i, dx_TD);
        TT_TRY(backward_layer(p, i, dx_TD, &states[i]));
    }
    tap(p, "embed_gradient", 0, dx_TD);
    return embed_back(p, dx_TD);
}

static tt_status run(tt_pass *p, tt_micro_result *out)
{
    tt_model *m = p->m;
    tt_block_state *states;
    tt_mat dx = {0};
    TT_TRY(prepare(p));
    TT_TRY(tt_arena_grant_zero(m->keep, m->config->num_layers, sizeof *states, (void **)&states));
    if (p->micro->backward) TT_TRY(tt_grant_mat(m->keep, tt_real(p), p->T, m->config->hidden_size, &dx));
    TT_TRY(forward(p, dx, states, out));
    if (!p->micro->backward) return TT_OK;
    TT_TRY(backward(p, dx, states));
    return tt_shards_finish_gradients(m->shards, m->kernel);
}

tt_status tt_model_micro_step(tt_model *m, const tt_micro *micro, tt_micro_result *out)
{
    tt_pass pass = {.m = m, .micro = micro, .T = micro->batch->T};
    tt_arena_mark keep = tt_arena_save(m->keep), work = tt_arena_save(m->work);
    *out = (tt_micro_result){0};
    TT_CHECK(micro->balance == 0 || m->config->has_balance_loss, TT_ECONFIG,
             "models of family %s have no balance loss; leave router_aux_loss_coef unset or 0", m->config->family);
    TT_TRY(run(&pass, out));
    tt_arena_restore(m->keep, keep);
    tt_arena_restore(m->work, work);
    return TT_OK;
}

/* --- one part alone ------------------------------------------------------------------------------------------ */

int tt_model_part_units(const tt_model *m, int part, int units[2])
{
    const tt_model_table *t = m->table;
    int layers = (int)m->config->num_layers, num = 0;
    if (part >= 1 && part <= layers) {
        units[num++] = t->layers[part - 1].unit;
        if (t->layers[part - 1].expert_unit >= 0) units[num++] = t->layers[part - 1].expert_unit;
        return num;
    }
    if (part == 0 || m->config->tied) units[num++] = t->embedding_unit;
    if (part > layers) units[num++] = t->head_unit;
    return num;
}

static tt_status block_alone(tt_pass *p, int layer, tt_mat x_TD, tt_mat dx_TD, tt_balance *balance)
{
    tt_block_state state = {0};
    TT_TRY(forward_layer(p, layer, x_TD, &state));
    if (p->micro->balance != 0) {
        for (int64_t e = 0; e < p->m->config->num_experts; e++) balance->sums[e] += p->balance_sums[e];
        tt_balance_use(p, balance);
    }
    return backward_layer(p, layer, dx_TD, &state);
}

tt_status tt_model_part(tt_model *m, const tt_micro *micro, int part, tt_mat x_TD, tt_mat dx_TD, tt_balance *balance,
                        tt_loss_sums *sums)
{
    tt_pass p = {.m = m, .micro = micro, .T = micro->batch->T};
    tt_arena_mark keep = tt_arena_save(m->keep), work = tt_arena_save(m->work);
    TT_TRY(prepare(&p));
    if (part > m->config->num_layers) {
        TT_TRY(tt_head(&p, x_TD, dx_TD, sums));
    } else if (part > 0) {
        TT_TRY(block_alone(&p, part - 1, x_TD, dx_TD, balance));
    } else {
        TT_TRY(embed(&p, x_TD));
        TT_TRY(embed_back(&p, dx_TD));
    }
    TT_TRY(tt_shards_finish_gradients(m->shards, m->kernel));
    tt_arena_restore(m->keep, keep);
    tt_arena_restore(m->work, work);
    return TT_OK;
}
