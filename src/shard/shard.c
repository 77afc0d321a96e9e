#include "shard/shard.h"
#include "base/checked.h"
#include "base/fault.h"
#include "shard/commons.h"

#include <stdlib.h>
#include <string.h>

typedef struct flat {
    tt_flat_layout layout;
    tt_dtype resident, compute;
    bool trained;      /* at least one parameter in it is */
    void *weight;      /* [shard] resident */
    void *whole;       /* [shard * group] where shards lie in place: `weight` in a group of one, else in the commons; or NULL */
    void *gradient;    /* [shard] real */
    void *moment[2];   /* [shard] */
    void *copy;        /* while gathered: [shard * group] compute, or `whole` */
    void *full;        /* between gradient_begin and _end: [shard * group] real, or `gradient` itself */
    void *fulls;       /* meanwhile in the commons: those of all ranks, [group][shard * group] */
    tt_request *request;
    void *pieces;        /* while the sum is on its way: this rank's range of all ranks' full gradients, [group][shard] real */
    tt_request *summing;
} flat;

typedef struct unit_state {
    tt_group *group;
    tt_commons *commons; /* NULL: others' shards come in messages */
    flat flats[2];
    int users;      /* gathers not yet released */
    bool in_flight; /* prefetched: posted, not waited for */
    tt_meeting written, added;
} unit_state;

/* Buffers of units in use are kept for the next unit: steady state calls no allocator. */
typedef struct buffer {
    void *base;
    size_t bytes;
    bool used;
} buffer;

struct tt_shards {
    const tt_params *params;
    const tt_mesh *mesh;
    tt_precision precision;
    unit_state *units;
    int64_t *offset; /* per parameter of the table, in its flat, -1: not on this ep rank */
    bool *written;   /* per parameter: its gradient has been since it began, or, in a group of one, since it was to be 0 */
    tt_piece *pieces;
    int64_t num_pieces;
    tt_commons *commons[2]; /* of the world, and of efsdp where that is another group */
    buffer *buffers;
    int num_buffers;
    int reducing[TT_REDUCING], num_reducing; /* units whose sums are on their way, the oldest first */
    tt_shard_bytes bytes;
    int64_t in_use;
};

/* --- buffers ------------------------------------------------------------------------------------------------- */

static void fill(void *p, size_t bytes)
{
#ifdef TT_DEBUG_MEMORY
    memset(p, 0xFF, bytes);
#else
    (void)p, (void)bytes;
#endif
}

static void use(tt_shards *s, int64_t bytes)
{
    s->in_use += bytes;
    s->bytes.units_peak = tt_max_i64(s->bytes.units_peak, s->in_use);
}

static tt_status take(tt_shards *s, size_t bytes, void **out)
{
    buffer *best = NULL;
    for (int i = 0; i < s->num_buffers; i++) {
        buffer *b = &s->buffers[i];
        if (!b->used && b->bytes >= bytes && (!best || b->bytes < best->bytes)) best = b;
    }
    if (!best) {
        buffer *grown = realloc(s->buffers, (size_t)(s->num_buffers + 1) * sizeof *grown);
        TT_CHECK(grown, TT_ENOMEM, "out of memory");
        s->buffers = grown;
        best = &s->buffers[s->num_buffers];
        *best = (buffer){.bytes = bytes};
        TT_TRY(tt_alloc("gathered unit", (int64_t)bytes, 1, &best->base));
        s->num_buffers++;
    }
    best->used = true;
    use(s, (int64_t)best->bytes);
    fill(best->base, best->bytes);
    *out = best->base;
    return TT_OK;
}

static void give(tt_shards *s, void *base)
{
    for (int i = 0; i < s->num_buffers; i++) {
        buffer *b = &s->buffers[i];
        if (b->base != base) continue;
        fill(b->base, b->bytes);
        b->used = false;
        use(s, -(int64_t)b->bytes);
        return;
    }
}

/* --- life ---------------------------------------------------------------------------------------------------- */

static tt_group *group_of(const tt_mesh *mesh, const tt_unit *u)
{
    return u->kind == TT_UNIT_EXPERTS ? mesh->efsdp : mesh->world;
}

static bool in_place(const flat *b)
{
    return b->resident == b->compute;
}

static int64_t flat_bytes(const flat *b, tt_dtype type)
{
    return b->layout.shard * (int64_t)tt_dtype_size(type);
}

static tt_status lay_out(tt_shards *s, int unit)
{
    const tt_unit *u = &s->params->units[unit];
    unit_state *state = &s->units[unit];
    tt_flat_layout layouts[2];
    TT_TRY(tt_unit_layout(s->params, unit, tt_group_size(state->group), s->mesh->ep_size, s->mesh->ep_rank,
                          s->offset + u->first, layouts));
    for (int f = 0; f < 2; f++) {
        flat *b = &state->flats[f];
        b->layout = layouts[f];
        b->resident = f ? s->precision.real : s->precision.resident;
        b->compute = f ? s->precision.real : s->precision.compute;
    }
    for (int64_t i = 0; i < u->count; i++) {
        const tt_param *p = &s->params->at[u->first + i];
        if (s->offset[u->first + i] >= 0 && p->trained) state->flats[p->exact].trained = true;
    }
    return TT_OK;
}

/* What one group shares, at the most: every flat in place, or every copy, and every full gradient. First fit leaves in front
 * of each buffer in use a gap that is less than the next one wants; a layer with its neighbours uses fewer than 16. */
static tt_status create_commons(tt_shards *s, tt_group *group, const tt_group *other, tt_commons **out)
{
    int64_t weights = 0, units = 0, most = 0, size = tt_group_size(group);
    if (size == 1) return TT_OK;
    for (int u = 0; u < s->params->num_units; u++)
        for (int f = 0; f < 2 && (s->units[u].group == group || s->units[u].group == other); f++) {
            const flat *b = &s->units[u].flats[f];
            int64_t copy = in_place(b) ? 0 : flat_bytes(b, b->compute) * size;
            int64_t fulls = flat_bytes(b, s->precision.real) * size * size;
            if (in_place(b)) weights += flat_bytes(b, b->resident) * size;
            units += copy + fulls;
            most = tt_max_i64(most, tt_max_i64(copy, fulls));
        }
    return tt_commons_create(group, weights, units + 16 * most, out);
}

/* Collective over the world. The groups have the same ranks when ep_size is 1: then they share one. */
static tt_status share(tt_shards *s)
{
    bool same = s->mesh->ep_size == 1;
    tt_group *world = s->mesh->world, *efsdp = s->mesh->efsdp;
    TT_TRY(create_commons(s, world, same ? efsdp : NULL, &s->commons[0]));
    if (!same) TT_TRY(create_commons(s, efsdp, NULL, &s->commons[1]));
    for (int u = 0; u < s->params->num_units; u++) {
        unit_state *state = &s->units[u];
        state->commons = s->commons[!same && state->group == efsdp];
    }
    return TT_OK;
}

/* Where a flat's shard lies; *at: bytes of the commons' weights that are taken. */
static tt_status place(tt_shards *s, unit_state *state, flat *b, int64_t *at)
{
    int64_t bytes = flat_bytes(b, b->resident);
    s->bytes.weights += bytes;
    if (!in_place(b) || !state->commons) {
        TT_TRY(tt_alloc("weights", bytes, 1, &b->weight));
        if (in_place(b) && tt_group_size(state->group) == 1) b->whole = b->weight;
        return TT_OK;
    }
    b->whole = (char *)tt_commons_weights(state->commons) + *at;
    b->weight = (char *)b->whole + bytes * tt_group_rank(state->group);
    *at += bytes * tt_group_size(state->group);
    return TT_OK;
}

static tt_status place_all(tt_shards *s)
{
    int64_t at[2] = {0, 0};
    for (int u = 0; u < s->params->num_units; u++)
        for (int f = 0; f < 2; f++) {
            unit_state *state = &s->units[u];
            if (state->flats[f].layout.shard == 0) continue;
            TT_TRY(place(s, state, &state->flats[f], &at[state->commons && state->commons == s->commons[1]]));
        }
    return TT_OK;
}

/* The part of parameter i that lies in this rank's range of its flat. */
static bool piece_of(const tt_shards *s, int64_t i, tt_piece *out)
{
    const tt_param *p = &s->params->at[i];
    const unit_state *state = &s->units[p->unit];
    const flat *b = &state->flats[p->exact];
    if (s->offset[i] < 0) return false;
    int64_t lo = b->layout.shard * tt_group_rank(state->group), hi = lo + b->layout.shard;
    int64_t begin = tt_max_i64(s->offset[i], lo), end = tt_min_i64(s->offset[i] + p->count, hi);
    if (begin >= end) return false;
    *out = (tt_piece){i, p->exact, begin - s->offset[i], end - begin, begin - lo};
    return true;
}

static tt_status create_pieces(tt_shards *s)
{
    s->pieces = calloc((size_t)s->params->num + 1, sizeof *s->pieces);
    TT_CHECK(s->pieces, TT_ENOMEM, "out of memory for the shard table");
    for (int64_t i = 0; i < s->params->num; i++)
        if (piece_of(s, i, &s->pieces[s->num_pieces])) s->num_pieces++;
    return TT_OK;
}

/* units NULL: all of them. */
static tt_status create(const tt_params *params, const tt_mesh *mesh, tt_precision precision, const int *units, int num,
                        tt_shards **out)
{
    tt_status status = TT_OK;
    tt_shards *s = calloc(1, sizeof *s);
    TT_CHECK(s, TT_ENOMEM, "out of memory");
    *s = (tt_shards){.params = params, .mesh = mesh, .precision = precision};
    s->units = calloc((size_t)params->num_units + 1, sizeof *s->units);
    s->offset = calloc((size_t)params->num + 1, sizeof *s->offset);
    s->written = calloc((size_t)params->num + 1, sizeof *s->written);
    if (!s->units || !s->offset || !s->written) status = tt_error_set(TT_ENOMEM, "out of memory for the shard table");
    for (int u = 0; u < params->num_units && s->units; u++) s->units[u].group = group_of(mesh, &params->units[u]);
    for (int i = 0; i < num && status == TT_OK; i++) status = lay_out(s, units ? units[i] : i);
    if (status == TT_OK) status = create_pieces(s);
    status = tt_agree(mesh->world, "create-shards", status);
    if (status == TT_OK) status = share(s);
    if (status == TT_OK) status = place_all(s);
    if (status != TT_OK) tt_shards_destroy(&s);
    *out = s;
    return status;
}

tt_status tt_shards_create(const tt_params *params, const tt_mesh *mesh, tt_precision precision, tt_shards **out)
{
    return create(params, mesh, precision, NULL, params->num_units, out);
}

tt_status tt_shards_create_units(const tt_params *params, const tt_mesh *mesh, tt_precision precision, const int *units,
                                 int num, tt_shards **out)
{
    static const int none;
    return create(params, mesh, precision, units ? units : &none, num, out);
}

tt_status tt_shards_train(tt_shards *s, bool moments)
{
    for (int u = 0; u < s->params->num_units; u++)
        for (int f = 0; f < 2; f++) {
            flat *b = &s->units[u].flats[f];
            if (b->layout.shard == 0 || !b->trained) continue;
            TT_TRY(tt_alloc("gradients", b->layout.shard, tt_dtype_size(s->precision.real), &b->gradient));
            s->bytes.gradients += b->layout.shard * (int64_t)tt_dtype_size(s->precision.real);
            for (int m = 0; m < 2 && moments; m++) {
                /* Vectors and the router keep exact moments: they are few. */
                tt_dtype type = f ? s->precision.real : s->precision.moments;
                TT_TRY(tt_alloc("optimizer state", b->layout.shard, tt_dtype_size(type), &b->moment[m]));
                s->bytes.moments += b->layout.shard * (int64_t)tt_dtype_size(type);
            }
        }
    return TT_OK;
}

void tt_shards_destroy(tt_shards **s)
{
    if (!*s) return;
    for (int u = 0; (*s)->units && u < (*s)->params->num_units; u++)
        for (int f = 0; f < 2; f++) {
            flat *b = &(*s)->units[u].flats[f];
            /* A transfer in flight writes into memory that is about to go. */
            if (b->request) tt_request_end(&b->request);
            if (b->summing) tt_request_end(&b->summing);
            if (!(*s)->units[u].commons || !in_place(b)) tt_free(b->weight);
            tt_free(b->gradient);
            tt_free(b->moment[0]);
            tt_free(b->moment[1]);
        }
    for (int u = 0; (*s)->units && u < (*s)->params->num_units; u++) {
        tt_meeting_free(&(*s)->units[u].written);
        tt_meeting_free(&(*s)->units[u].added);
    }
    for (int i = 0; i < 2; i++) tt_commons_destroy(&(*s)->commons[i]);
    for (int i = 0; i < (*s)->num_buffers; i++) tt_free((*s)->buffers[i].base);
    free((*s)->buffers);
    free((*s)->units);
    free((*s)->offset);
    free((*s)->written);
    free((*s)->pieces);
    free(*s);
    *s = NULL;
}

const tt_params *tt_shards_params(const tt_shards *s)
{
    return s->params;
}

const tt_mesh *tt_shards_mesh(const tt_shards *s)
{
    return s->mesh;
}

tt_precision tt_shards_precision(const tt_shards *s)
{
    return s->precision;
}

bool tt_shards_are_shared(const tt_shards *s)
{
    return s->commons[0] != NULL;
}

const tt_piece *tt_shards_pieces(const tt_shards *s, int64_t *num)
{
    *num = s->num_pieces;
    return s->pieces;
}

tt_shard_bytes tt_shards_bytes(const tt_shards *s)
{
    tt_shard_bytes bytes = s->bytes;
    for (int i = 0; i < 2; i++)
        if (s->commons[i]) bytes.shared += tt_commons_bytes(s->commons[i]);
    return bytes;
}

static bool is_alone(const unit_state *state)
{
    return tt_group_size(state->group) == 1;
}

/* A gradient of a group of one that nothing has been added to since it was to be 0. */
static void zero_in_shard(const tt_shards *s, int64_t param)
{
    const tt_param *p = &s->params->at[param];
    size_t size = tt_dtype_size(s->precision.real);
    if (s->written[param]) return;
    memset((char *)s->units[p->unit].flats[p->exact].gradient + (size_t)s->offset[param] * size, 0, (size_t)p->count * size);
    s->written[param] = true;
}

tt_mat tt_shards_view(const tt_shards *s, const tt_piece *piece, tt_shard_part part)
{
    const unit_state *state = &s->units[s->params->at[piece->param].unit];
    const flat *b = &state->flats[piece->flat];
    tt_dtype moments = piece->flat ? s->precision.real : s->precision.moments;
    void *base[] = {b->weight, b->gradient, b->moment[0], b->moment[1]};
    tt_dtype type[] = {b->resident, s->precision.real, moments, moments};
    TT_ASSERT(base[part]);
    if (part == TT_PART_GRADIENT && is_alone(state)) zero_in_shard(s, piece->param);
    return tt_mat_of((char *)base[part] + (size_t)piece->at * tt_dtype_size(type[part]), type[part], 1, piece->count);
}

static void forget_written(tt_shards *s, int unit)
{
    const tt_unit *u = &s->params->units[unit];
    memset(s->written + u->first, 0, (size_t)u->count * sizeof *s->written);
}

void tt_shards_zero_gradients(tt_shards *s, tt_kernel *k)
{
    TT_PHASE(k->profile, OPTIMIZER);
    for (int u = 0; u < s->params->num_units; u++) {
        if (is_alone(&s->units[u])) forget_written(s, u);
        for (int f = 0; f < 2 && !is_alone(&s->units[u]); f++) {
            flat *b = &s->units[u].flats[f];
            if (b->gradient) k->ops->zero(k, tt_mat_of(b->gradient, s->precision.real, 1, b->layout.shard));
        }
    }
}

/* --- units in use -------------------------------------------------------------------------------------------- */

static bool is_empty(const unit_state *state)
{
    return state->flats[0].layout.shard == 0 && state->flats[1].layout.shard == 0;
}

static tt_status begin_flat(tt_shards *s, tt_kernel *k, unit_state *state, flat *b)
{
    int size = tt_group_size(state->group);
    b->copy = b->whole;
    if (b->layout.shard == 0 || b->whole) return TT_OK;
    TT_PHASE(k->profile, GATHER);
    int64_t bytes = flat_bytes(b, b->compute);
    TT_TRY(state->commons ? tt_commons_take(state->commons, "gather-unit", bytes * size, &b->copy)
                          : take(s, (size_t)(bytes * size), &b->copy));
    if (state->commons) use(s, bytes);
    char *mine = (char *)b->copy + bytes * tt_group_rank(state->group);
    k->ops->copy(k, tt_mat_of(b->weight, b->resident, 1, b->layout.shard),
                 tt_mat_of(mine, b->compute, 1, b->layout.shard));
    if (size == 1 || state->commons) return TT_OK;
    return tt_allgather_begin(state->group, "gather-unit", mine, b->copy, (size_t)bytes, &b->request);
}

tt_status tt_unit_prefetch(tt_shards *s, tt_kernel *k, int unit)
{
    unit_state *state = &s->units[unit];
    if (state->users > 0 || state->in_flight) return TT_OK;
    state->in_flight = true;
    for (int f = 0; f < 2; f++) TT_TRY(begin_flat(s, k, state, &state->flats[f]));
    if (!state->commons || is_empty(state)) return TT_OK;
    return tt_meeting_begin(state->commons, "gather-unit", &state->written);
}

tt_status tt_unit_gather(tt_shards *s, tt_kernel *k, int unit)
{
    unit_state *state = &s->units[unit];
    TT_TRY(tt_unit_prefetch(s, k, unit));
    if (state->in_flight && state->commons) TT_TRY(tt_meeting_end(state->commons, &state->written));
    for (int f = 0; f < 2 && state->in_flight; f++)
        if (state->flats[f].request) TT_TRY(tt_request_end(&state->flats[f].request));
    state->in_flight = false;
    state->users++;
    return TT_OK;
}

void tt_unit_release(tt_shards *s, int unit)
{
    unit_state *state = &s->units[unit];
    TT_ASSERT(state->users > 0);
    if (--state->users > 0) return;
    for (int f = 0; f < 2; f++) {
        flat *b = &state->flats[f];
        if (b->copy && b->copy != b->whole) {
            if (state->commons) {
                tt_commons_give(state->commons, b->copy);
                use(s, -flat_bytes(b, b->compute));
            } else {
                give(s, b->copy);
            }
        }
        b->copy = NULL;
    }
}

static tt_mat view(const tt_shards *s, int64_t param, void *base, tt_dtype type)
{
    const tt_param *p = &s->params->at[param];
    TT_ASSERT(base && s->offset[param] >= 0);
    int64_t rows = p->ndim == 2 ? p->shape[0] : 1, cols = p->ndim == 2 ? p->shape[1] : p->shape[0];
    return tt_mat_of((char *)base + (size_t)s->offset[param] * tt_dtype_size(type), type, rows, cols);
}

tt_mat tt_unit_weight(const tt_shards *s, int64_t param)
{
    const tt_param *p = &s->params->at[param];
    const flat *b = &s->units[p->unit].flats[p->exact];
    return view(s, param, b->copy, b->compute);
}

/* Elements of a full gradient. */
static int64_t full_count(const unit_state *state, const flat *b)
{
    return b->layout.shard * tt_group_size(state->group);
}

static tt_status take_full(tt_shards *s, unit_state *state, flat *b)
{
    int64_t bytes = full_count(state, b) * (int64_t)tt_dtype_size(s->precision.real);
    if (!state->commons) return take(s, (size_t)bytes, &b->full);
    TT_TRY(tt_commons_take(state->commons, "reduce-gradient", bytes * tt_group_size(state->group), &b->fulls));
    use(s, bytes);
    b->full = (char *)b->fulls + bytes * tt_group_rank(state->group);
    return TT_OK;
}

static void give_full(tt_shards *s, unit_state *state, flat *b)
{
    if (state->commons) {
        tt_commons_give(state->commons, b->fulls);
        use(s, -full_count(state, b) * (int64_t)tt_dtype_size(s->precision.real));
    } else {
        give(s, b->full);
    }
    b->full = b->fulls = NULL;
}

tt_status tt_unit_gradient_begin(tt_shards *s, tt_kernel *k, int unit)
{
    unit_state *state = &s->units[unit];
    TT_PHASE(is_alone(state) ? NULL : k->profile, REDUCE);
    for (int i = s->num_reducing - 1; i >= 0; i--) /* a tied matrix: its sum of before is still on its way */
        if (s->reducing[i] == unit) TT_TRY(tt_shards_finish_gradients(s, k));
    for (int f = 0; f < 2; f++) {
        flat *b = &state->flats[f];
        if (!b->gradient) continue;
        TT_ASSERT(!b->full);
        if (is_alone(state)) b->full = b->gradient;
        else TT_TRY(take_full(s, state, b));
    }
    if (!is_alone(state)) forget_written(s, unit);
    return TT_OK;
}

tt_mat tt_unit_gradient_out(tt_shards *s, int64_t param, bool *accumulate)
{
    const tt_param *p = &s->params->at[param];
    *accumulate = s->written[param];
    s->written[param] = true;
    return view(s, param, s->units[p->unit].flats[p->exact].full, s->precision.real);
}

tt_mat tt_unit_gradient(tt_shards *s, tt_kernel *k, int64_t param)
{
    bool written;
    tt_mat g = tt_unit_gradient_out(s, param, &written);
    if (!written) k->ops->zero(k, g);
    return g;
}

static void zero_full(const tt_shards *s, tt_kernel *k, const flat *b, int64_t begin, int64_t end)
{
    char *at = (char *)b->full + (size_t)begin * tt_dtype_size(s->precision.real);
    k->ops->zero(k, tt_mat_of(at, s->precision.real, 1, end - begin));
}

/* Full gradients of several ranks: 0 where nothing was written, between parameters too. */
static void fill_full(const tt_shards *s, tt_kernel *k, int unit)
{
    const tt_unit *u = &s->params->units[unit];
    const unit_state *state = &s->units[unit];
    int64_t done[2] = {0, 0}; /* elements of each flat */
    for (int64_t i = u->first; i < u->first + u->count; i++) {
        const tt_param *p = &s->params->at[i];
        const flat *b = &state->flats[p->exact];
        if (!b->full || s->offset[i] < 0) continue;
        int64_t end = s->offset[i] + p->count;
        zero_full(s, k, b, done[p->exact], s->written[i] ? s->offset[i] : end);
        done[p->exact] = end;
    }
    for (int f = 0; f < 2; f++)
        if (state->flats[f].full) zero_full(s, k, &state->flats[f], done[f], full_count(state, &state->flats[f]));
}

/* The sum over all ranks of this rank's range is added to its shard. pieces: that of rank r lies at r stride elements. */
static void add_pieces(const tt_shards *s, tt_kernel *k, tt_group *g, const flat *b, const void *pieces, int64_t stride)
{
    int64_t count = b->layout.shard;
    if (s->precision.real == TT_F64) tt_add_in_order_f64(g, pieces, stride, b->gradient, count, k->threads);
    else tt_add_in_order_f32(g, pieces, stride, b->gradient, count, k->threads);
}

/* In messages: the oldest of the sums that are on their way. */
static tt_status finish_oldest(tt_shards *s, tt_kernel *k)
{
    unit_state *state = &s->units[s->reducing[0]];
    TT_PHASE(k->profile, REDUCE);
    s->num_reducing--;
    for (int i = 0; i < s->num_reducing; i++) s->reducing[i] = s->reducing[i + 1];
    for (int f = 0; f < 2; f++) {
        flat *b = &state->flats[f];
        if (!b->pieces) continue;
        TT_TRY(tt_request_end(&b->summing));
        add_pieces(s, k, state->group, b, b->pieces, b->layout.shard);
        give(s, b->pieces);
        b->pieces = NULL;
        give_full(s, state, b);
    }
    return TT_OK;
}

tt_status tt_shards_finish_gradients(tt_shards *s, tt_kernel *k)
{
    while (s->num_reducing > 0) TT_TRY(finish_oldest(s, k));
    return TT_OK;
}

static tt_status begin_sums(tt_shards *s, tt_kernel *k, int unit)
{
    unit_state *state = &s->units[unit];
    if (s->num_reducing == TT_REDUCING) TT_TRY(finish_oldest(s, k));
    s->reducing[s->num_reducing++] = unit;
    for (int f = 0; f < 2; f++) {
        flat *b = &state->flats[f];
        size_t bytes = (size_t)flat_bytes(b, s->precision.real);
        if (!b->full) continue;
        TT_TRY(take(s, bytes * (size_t)tt_group_size(state->group), &b->pieces));
        TT_TRY(tt_alltoall_begin(state->group, "reduce-gradient", b->full, b->pieces, bytes, &b->summing));
    }
    return TT_OK;
}

/* Where ranks see each other's gradients. */
static tt_status sum_in_place(tt_shards *s, tt_kernel *k, int unit)
{
    unit_state *state = &s->units[unit];
    if (!state->flats[0].full && !state->flats[1].full) return TT_OK;
    TT_TRY(tt_meeting_begin(state->commons, "reduce-gradient", &state->added));
    TT_TRY(tt_meeting_end(state->commons, &state->added));
    for (int f = 0; f < 2; f++) {
        flat *b = &state->flats[f];
        if (!b->full) continue;
        const char *mine = (char *)b->fulls + flat_bytes(b, s->precision.real) * tt_group_rank(state->group);
        add_pieces(s, k, state->group, b, mine, full_count(state, b));
        give_full(s, state, b);
    }
    return TT_OK;
}

tt_status tt_unit_gradient_end(tt_shards *s, tt_kernel *k, int unit)
{
    unit_state *state = &s->units[unit];
    /* Ranks that share a batch produce the same gradient of everything but experts: each brings its share of it. */
    bool experts = s->params->units[unit].kind == TT_UNIT_EXPERTS;
    double factor = experts || tt_fault(TT_FAULT_DENSE_TIMES_TP) ? 1 : 1.0 / s->mesh->tp_size;
    if (experts && tt_fault(TT_FAULT_EXPERT_TIMES_EP)) factor = s->mesh->ep_size;
    if (is_alone(state)) {
        state->flats[0].full = state->flats[1].full = NULL;
        return TT_OK;
    }
    TT_PHASE(k->profile, REDUCE);
    fill_full(s, k, unit);
    for (int f = 0; f < 2; f++) {
        flat *b = &state->flats[f];
        if (b->full && factor != 1) k->ops->scale(k, factor, tt_mat_of(b->full, s->precision.real, 1, full_count(state, b)));
    }
    return state->commons ? sum_in_place(s, k, unit) : begin_sums(s, k, unit);
}
