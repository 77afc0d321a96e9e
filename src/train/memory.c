#include "train/memory.h"
#include "base/checked.h"

#include <stdlib.h>

const char *tt_memory_term_name(tt_memory_term t)
{
    static const char *const names[] = {
        "weights",           "gradients",         "optimizer state", "units in use",
        "kept activations", "block activations", "scratch", "checkpoint copy",
    };
    return names[t];
}

static int64_t size_of(tt_dtype t)
{
    return (int64_t)tt_dtype_size(t);
}

/* Bytes of a unit for one rank: what it owns, what a gathered copy and a full gradient take, and what that takes while its sum
 * is on its way. */
typedef struct unit_bytes {
    int64_t weights, gradients, moments, copy, full, sum;
} unit_bytes;

static tt_status measure_unit(const tt_model_table *t, int unit, const tt_memory_shape *s, int64_t *offsets,
                              unit_bytes *out)
{
    const tt_unit *u = &t->params.units[unit];
    int ep = (int)s->mesh.ep_size, group = u->kind == TT_UNIT_EXPERTS ? s->world_size / ep : s->world_size;
    tt_flat_layout flats[2];
    *out = (unit_bytes){0};
    TT_TRY(tt_unit_layout(&t->params, unit, group, ep, 0, offsets, flats));
    for (int f = 0; f < 2; f++) {
        tt_dtype resident = f ? s->precision.real : s->precision.resident;
        tt_dtype compute = f ? s->precision.real : s->precision.compute;
        tt_dtype moments = f ? s->precision.real : s->precision.moments;
        int64_t n = flats[f].shard, gradient = s->train ? n * size_of(s->precision.real) : 0;
        out->weights += n * size_of(resident);
        out->gradients += gradient;
        out->moments += s->train && s->moments ? 2 * n * size_of(moments) : 0;
        bool seen = group > 1 && s->shared; /* shards in place, or one copy that each rank fills its part of */
        if (resident != compute) out->copy += n * (seen ? 1 : group) * size_of(compute);
        else if (group > 1 && !seen) out->copy += n * group * size_of(compute);
        if (group > 1) out->full += gradient * group;
        if (group > 1 && !s->shared) out->sum += 2 * gradient * group;
    }
    return TT_OK;
}

/* Units in use on their way through a backward pass. */
typedef struct walk {
    int64_t held; /* by units in use */
    int64_t sums[TT_REDUCING], peak;
} walk;

static void use_unit(walk *w, const unit_bytes *u)
{
    w->held += u->copy + u->full;
}

static void see_peak(walk *w)
{
    int64_t bytes = w->held;
    for (int i = 0; i < TT_REDUCING; i++) bytes += w->sums[i];
    w->peak = tt_max_i64(w->peak, bytes);
}

/* Its sum takes the place of the oldest (tt_unit_gradient_end). */
static void end_gradient(walk *w, const unit_bytes *u)
{
    w->held -= u->full;
    if (u->sum == 0) return;
    for (int i = 0; i + 1 < TT_REDUCING; i++) w->sums[i] = w->sums[i + 1];
    w->sums[TT_REDUCING - 1] = u->sum;
    see_peak(w);
}

/* Most that units in use hold at one time: head, a layer in backward with the next one on its way, or embedding. */
static int64_t units_peak(const tt_model_table *t, const unit_bytes *u, int layers, bool tied)
{
    walk w = {0};
    for (int i = layers; i >= -1; i--) {
        int units[2] = {t->head_unit, tied ? t->embedding_unit : -1};
        if (i < 0) units[0] = t->embedding_unit, units[1] = -1;
        else if (i < layers) units[0] = t->layers[i].expert_unit, units[1] = t->layers[i].unit;
        w.held = i > 0 && i < layers ? u[t->layers[i - 1].unit].copy : 0;
        for (int k = 0; k < 2; k++)
            if (units[k] >= 0) use_unit(&w, &u[units[k]]);
        see_peak(&w);
        for (int k = 0; k < 2; k++)
            if (units[k] >= 0) end_gradient(&w, &u[units[k]]);
    }
    return w.peak;
}

/* Counts per token of one layer's activations, in elements of compute and of real type. */
typedef struct elements {
    int64_t compute, real;
} elements;

static int64_t bytes_of(elements e, const tt_memory_shape *s)
{
    return e.compute * size_of(s->precision.compute) + e.real * size_of(s->precision.real);
}

/* What goes to experts and comes in one layer: src/moe/dispatch.c. */
typedef struct exchange {
    int64_t slice;     /* tokens that the rank sends out; ranks of a shared batch part it */
    int64_t sent, received; /* rows, those that stay included */
    int64_t pairs;     /* received in a round */
    bool moves;        /* rows are copied to be sent */
    bool shares;       /* replicas put their parts of a result together */
} exchange;

static exchange exchange_of(const tt_model_config *c, const tt_memory_shape *s)
{
    int64_t ep = s->mesh.ep_size, tp = tt_max_i64(s->mesh.tp_size, 1), K = c->experts_per_token, T = s->tokens;
    bool in_place = s->mesh.dispatch == TT_DISPATCH_ALLREDUCE, everywhere = s->mesh.dispatch == TT_DISPATCH_ALLGATHER;
    int64_t slice = in_place ? T : tt_div_up(T, tp), group = in_place ? T : slice * ep; /* tokens of all */
    int64_t rows = in_place ? T : slice * (everywhere ? ep : tt_min_i64(K, ep));
    exchange x = {.slice = slice, .sent = rows, .received = tt_min_i64(2 * rows, group)};
    x.pairs = tt_min_i64(2 * tt_div_up(group * K, ep) + (ep > 1 ? ep * K : 0), group * K); /* each source rounds up to a row */
    x.moves = ep > 1 && !in_place;
    x.shares = in_place ? ep > 1 : tp > 1;
    return x;
}

/* What tt_attention_forward and block_forward grant as cache. `outputs`: those of the experts are formed too. */
static elements cache_of(const tt_model_config *c, const tt_memory_shape *s, int layer, bool outputs)
{
    int64_t T = s->tokens, D = c->hidden_size, q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
    int64_t widths = q + 2 * kv + q; /* projections and output */
    if (c->qk_norm != TT_QK_NORM_NONE) widths += q + kv;
    if (c->clip_qkv > 0) widths += q + 2 * kv;
    elements e = {T * (2 * D + widths), T * (2 * D + c->num_heads + 2 + 2 * c->num_heads)};
    int64_t mlp = c->is_moe[layer] ? c->shared_width : c->dense_width;
    e.compute += T * 2 * mlp;
    if (!c->is_moe[layer]) return e;
    exchange x = exchange_of(c, s);
    e.compute += x.pairs * (D + 2 * c->expert_width);
    if (x.shares && outputs) e.real += T * D;
    return e;
}

/* What tt_route leaves: choices, gates, probabilities, and who sends and receives what. */
static int64_t routing_bytes(const tt_model_config *c, const tt_memory_shape *s)
{
    int64_t T = s->tokens, K = c->experts_per_token, E = c->num_experts, real = size_of(s->precision.real);
    exchange x = exchange_of(c, s);
    return T * (K * (4 + real) + E * real) + x.sent * 8 + x.slice * K * 4 + T * 8 + x.received * 8 + x.pairs * (12 + real) +
           E * 8;
}

/* Backward of a block beside its cache: gradients of its parts; the larger of feed-forward and attention. */
static elements backward_of(const tt_model_config *c, const tt_memory_shape *s, int layer)
{
    int64_t T = s->tokens, D = c->hidden_size, q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
    elements attention = {T * (D + 2 * q + 2 * kv), T * D}, mlp = {T * D, T * D}, router = mlp;
    int64_t width = c->is_moe[layer] ? c->shared_width : c->dense_width;
    mlp.compute += T * width;
    mlp.real += T * width;
    if (c->is_moe[layer]) {
        router.real += T * (c->experts_per_token + c->num_experts);
        if (s->precision.compute != s->precision.real) router.real += T * D;
        if (exchange_of(c, s).shares) router.real += T * D;
    }
    if (bytes_of(router, s) > bytes_of(mlp, s)) mlp = router;
    return bytes_of(attention, s) > bytes_of(mlp, s) ? attention : mlp;
}

/* Scratch of a layer: of a round of experts, forward or backward; where replicas share a result; of an MLP. */
static int64_t scratch_of(const tt_model_config *c, const tt_memory_shape *s, int layer)
{
    int64_t T = s->tokens, D = c->hidden_size, F = c->expert_width, real = size_of(s->precision.real);
    int64_t width = c->is_moe[layer] ? c->shared_width : c->dense_width, mlp = T * width * size_of(s->precision.compute);
    if (!c->is_moe[layer]) return mlp;
    exchange x = exchange_of(c, s);
    int64_t P = x.pairs, sends = x.slice * c->experts_per_token;
    elements round = {P * (D + F), P * (F + D + 1) + x.received * D};
    if (x.moves) round = (elements){round.compute + (x.sent + x.received) * D, round.real + x.sent * D};
    int64_t gates = P * real + sends * (real + 4) + T * c->experts_per_token * 8; /* on their way back */
    int64_t share = x.shares ? 2 * (T + s->mesh.ep_size) * D * real : 0;
    return tt_max_i64(tt_max_i64(mlp, share), bytes_of(round, s) + gates);
}

static int64_t head_bytes(const tt_model_config *c, const tt_memory_shape *s)
{
    int64_t T = s->tokens, D = c->hidden_size, chunk = tt_min_i64(s->loss_chunk, s->targets);
    elements e = {T * D + chunk * D, T + s->targets * D + T * D + chunk * c->vocab_size};
    if (s->precision.compute != s->precision.real) e.compute += chunk * c->vocab_size;
    return bytes_of(e, s);
}

static void add_activations(const tt_model_config *c, const tt_memory_shape *s, tt_memory *m)
{
    int64_t T = s->tokens, D = c->hidden_size, real = size_of(s->precision.real);
    int64_t kept = 2 * T * D * real + T * c->rotary_dim * real, caches = 0, block = 0, scratch = 0;
    for (int i = 0; i < c->num_layers; i++) {
        bool again = s->recompute && i < c->num_layers - s->kept_layers;
        int64_t cache = bytes_of(cache_of(c, s, i, !again), s), backward = bytes_of(backward_of(c, s, i), s);
        if (again) kept += T * D * size_of(s->precision.compute);
        if (!again) caches += cache;
        if (c->is_moe[i]) kept += routing_bytes(c, s);
        block = tt_max_i64(block, backward + (again ? cache + T * D * real : caches));
        scratch = tt_max_i64(scratch, scratch_of(c, s, i));
    }
    m->bytes[TT_MEMORY_KEPT] = kept;
    m->bytes[TT_MEMORY_BLOCK] = tt_max_i64(block, caches + head_bytes(c, s));
    m->bytes[TT_MEMORY_SCRATCH] = scratch;
}

tt_status tt_memory_plan(const tt_model_config *config, const tt_model_table *table, const tt_memory_shape *shape,
                         tt_memory *out)
{
    int num = table->params.num_units;
    int64_t most = 1;
    *out = (tt_memory){0};
    TT_ASSERT(num > 0);
    for (int u = 0; u < num; u++) most = tt_max_i64(most, table->params.units[u].count);
    unit_bytes *units = calloc((size_t)num, sizeof *units);
    int64_t *offsets = malloc((size_t)most * sizeof *offsets);
    tt_status status = units && offsets ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the memory plan");
    for (int u = 0; u < num && status == TT_OK; u++) {
        status = measure_unit(table, u, shape, offsets, &units[u]);
        out->bytes[TT_MEMORY_WEIGHTS] += units[u].weights;
        out->bytes[TT_MEMORY_GRADIENTS] += units[u].gradients;
        out->bytes[TT_MEMORY_MOMENTS] += units[u].moments;
    }
    if (status == TT_OK) {
        if (shape->copy) out->bytes[TT_MEMORY_COPY] = out->bytes[TT_MEMORY_WEIGHTS];
        if (shape->copy && shape->copy_moments) out->bytes[TT_MEMORY_COPY] += out->bytes[TT_MEMORY_MOMENTS];
        out->bytes[TT_MEMORY_UNITS] = units_peak(table, units, (int)config->num_layers, config->tied);
        if (shape->tokens > 0) add_activations(config, shape, out);
        for (int t = 0; t < TT_MEMORY_NUM_TERMS; t++) out->total += out->bytes[t];
    }
    free(units);
    free(offsets);
    return status;
}

int64_t tt_memory_with_margin(const tt_memory *plan, int ranks)
{
    return (plan->total + plan->total / 20) * ranks;
}

/* A kept layer more takes more, except that the last one may take less: in backward it holds no input of its own beside the
 * rest. So all numbers are tried, from the largest on. */
tt_status tt_memory_keep(const tt_model_config *config, const tt_model_table *table, const tt_memory_shape *shape, int ranks,
                         int64_t limit, int64_t *kept, tt_memory *plan)
{
    tt_memory_shape s = *shape;
    for (int64_t n = config->num_layers; n >= (shape->recompute ? 0 : config->num_layers); n--) {
        tt_memory next;
        s.kept_layers = n;
        TT_TRY(tt_memory_plan(config, table, &s, &next));
        bool fits = tt_memory_with_margin(&next, ranks) <= limit;
        if (fits || n == config->num_layers || next.total < plan->total) *plan = next;
        if (!fits) continue;
        *kept = n;
        return TT_OK;
    }
    *kept = -1;
    return TT_OK;
}
