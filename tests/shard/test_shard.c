/* Layout of units, shards, gathering and reducing: pure arithmetic for many worlds, and the real thing on ranks that are
 * threads. The parameters are made up, with sizes below, at and above the alignment of 64. */
#include "support/test.h"

#include "base/checked.h"
#include "shard/shard.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EMBEDDING, DENSE, EXPERTS, HEAD };

/* Four units. Sizes: a matrix of one element, vectors of 1, 63, 64 and 65, experts of 2 x 35, 65 and 1 elements. */
static void make_params(tt_params *p, int64_t experts)
{
    int unit;
    tt_param *e;
    *p = (tt_params){.num_experts = experts};
    assert_ok(tt_params_add_unit(p, TT_UNIT_EMBEDDING, -1, &unit));
    assert_ok(tt_params_add(p, "embedding.weight", 13, 11, NULL));
    assert_ok(tt_params_add_unit(p, TT_UNIT_DENSE, 0, &unit));
    static const int64_t shapes[][2] = {{1, 0}, {1, 1}, {63, 0}, {8, 8}, {64, 0}, {3, 67}, {65, 0}, {130, 2}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char name[32];
        snprintf(name, sizeof name, "dense.%zu", i);
        assert_ok(tt_params_add(p, name, shapes[i][0], shapes[i][1], &e));
        if (i == 4) e->trained = false;
    }
    assert_ok(tt_params_add_unit(p, TT_UNIT_EXPERTS, 0, &unit));
    for (int64_t x = 0; x < experts; x++) {
        static const int64_t parts[][2] = {{2, 35}, {5, 13}, {1, 1}};
        for (int i = 0; i < 3; i++) {
            char name[32];
            snprintf(name, sizeof name, "expert.%lld.%d", (long long)x, i);
            assert_ok(tt_params_add(p, name, parts[i][0], parts[i][1], &e));
            e->expert = x;
        }
    }
    assert_ok(tt_params_add_unit(p, TT_UNIT_HEAD, -1, &unit));
    assert_ok(tt_params_add(p, "norm.weight", 33, 0, NULL));
    assert_int_equal(unit, HEAD);
}

/* --- layout ---------------------------------------------------------------------------------------------------- */

typedef struct cover {
    const tt_params *params;
    int ep;
    const int64_t *begin; /* of each parameter in count */
    int *count;           /* owners of each element */
} cover;

/* Pieces of this rank: within the shard, one behind the other without overlap, within their parameters. */
static tt_status count_pieces(tt_comm *comm, void *arg)
{
    cover *c = arg;
    tt_mesh *mesh;
    tt_shards *s = NULL;
    TT_TRY(tt_mesh_create(comm, (tt_mesh_sizes){.ep_size = c->ep}, c->params->num_experts, &mesh));
    tt_status status = tt_shards_create(c->params, mesh, (tt_precision){TT_F32, TT_F32, TT_F32, TT_F32}, &s);
    int64_t num = 0, next[8][2] = {{0}}, last = -1;
    const tt_piece *pieces = status == TT_OK ? tt_shards_pieces(s, &num) : NULL;
    for (int64_t i = 0; i < num && status == TT_OK; i++) {
        const tt_piece *q = &pieces[i];
        const tt_param *p = &c->params->at[q->param];
        if (q->param <= last || q->count < 1 || q->first < 0 || q->first + q->count > p->count ||
            q->at < next[p->unit][q->flat] || q->flat != (int)p->exact)
            status = tt_error_set(TT_EVERDICT, "rank %d: piece %lld of '%s' [%lld, +%lld) at %lld", mesh->rank,
                                  (long long)i, p->name, (long long)q->first, (long long)q->count, (long long)q->at);
        last = q->param;
        next[p->unit][q->flat] = q->at + q->count;
        for (int64_t k = 0; k < q->count; k++)
            __atomic_fetch_add(&c->count[c->begin[q->param] + q->first + k], 1, __ATOMIC_RELAXED);
    }
    tt_shards_destroy(&s);
    tt_mesh_destroy(&mesh);
    return status;
}

static int64_t total_of(const tt_params *p, int64_t *begin)
{
    int64_t total = 0;
    for (int64_t i = 0; i < p->num; i++) {
        begin[i] = total;
        total += p->at[i].count;
    }
    return total;
}

static void every_element_has_one_owner(void **state)
{
    (void)state;
    static const int64_t experts[] = {1, 5, 8, 13};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        for (int world = 1; world <= 12; world++)
            for (int ep = 1; ep <= world; ep++) {
                tt_params params;
                int64_t begin[256];
                if (world % ep || ep > experts[i]) continue;
                make_params(&params, experts[i]);
                int64_t total = total_of(&params, begin);
                cover c = {&params, ep, begin, calloc((size_t)total, sizeof(int))};
                assert_ok(tt_comm_run_threads(world, count_pieces, &c));
                for (int64_t k = 0; k < total; k++)
                    if (c.count[k] != 1)
                        fail_msg("%lld experts, world %d, ep %d: element %lld has %d owners", (long long)experts[i],
                                 world, ep, (long long)k, c.count[k]);
                free(c.count);
                tt_params_free(&params);
            }
}

/* What the header promises of offsets and sizes, by the function alone. */
static void layout_is_aligned_and_large_enough(void **state)
{
    (void)state;
    tt_params params;
    make_params(&params, 13);
    for (int ep = 1; ep <= 13; ep++)
        for (int rank = 0; rank < ep; rank++)
            for (int group = 1; group <= 12; group++)
                for (int unit = 0; unit < params.num_units; unit++) {
                    int64_t offset[64], end[2] = {0}, lo, hi;
                    tt_flat_layout flats[2];
                    const tt_unit *u = &params.units[unit];
                    assert_ok(tt_unit_layout(&params, unit, group, ep, rank, offset, flats));
                    tt_mesh_experts(13, ep, rank, &lo, &hi);
                    for (int64_t i = 0; i < u->count; i++) {
                        const tt_param *p = &params.at[u->first + i];
                        bool mine = p->expert < 0 || (p->expert >= lo && p->expert < hi);
                        assert_int_equal(offset[i] >= 0, mine);
                        if (!mine) continue;
                        assert_true(offset[i] % TT_FLAT_ALIGN == 0 && offset[i] >= end[p->exact]);
                        end[p->exact] = offset[i] + p->count;
                    }
                    for (int f = 0; f < 2; f++) {
                        assert_true(flats[f].total >= end[f] && flats[f].total < end[f] + TT_FLAT_ALIGN);
                        assert_true(flats[f].shard % TT_FLAT_ALIGN == 0);
                        assert_true(flats[f].shard * group >= flats[f].total);
                    }
                }
    tt_params_free(&params);
}

/* Tensors beyond 2^31 elements keep exact offsets; units that cannot be counted are refused. */
static void sizes_are_64_bits_wide(void **state)
{
    (void)state;
    tt_params params = {.num_experts = 3};
    int unit;
    tt_param *e;
    int64_t offset[3], each = ((int64_t)1 << 17) * (((int64_t)1 << 16) + 1);
    tt_flat_layout flats[2];
    assert_ok(tt_params_add_unit(&params, TT_UNIT_EXPERTS, 0, &unit));
    for (int64_t x = 0; x < 3; x++) {
        assert_ok(tt_params_add(&params, "expert", (int64_t)1 << 17, ((int64_t)1 << 16) + 1, &e));
        e->expert = x;
    }
    assert_ok(tt_unit_layout(&params, 0, 5, 1, 0, offset, flats));
    for (int64_t x = 0; x < 3; x++) assert_int_equal(offset[x], x * each);
    assert_int_equal(flats[0].total, 3 * each);
    assert_int_equal(flats[0].shard, tt_round_up(tt_div_up(3 * each, 5), 64));
    assert_ok(tt_unit_layout(&params, 0, 1, 2, 1, offset, flats));
    assert_true(offset[0] == -1 && offset[1] == -1 && offset[2] == 0);
    tt_params_free(&params);

    params = (tt_params){0};
    assert_ok(tt_params_add_unit(&params, TT_UNIT_DENSE, 0, &unit));
    assert_ok(tt_params_add(&params, "a", INT64_MAX / 17, 0, NULL));
    assert_ok(tt_params_add(&params, "b", INT64_MAX / 17, 0, NULL));
    assert_error(tt_unit_layout(&params, 0, 1, 1, 0, offset, flats), TT_ENOMEM, "'b'");
    tt_params_free(&params);
}

/* --- gathering and reducing ------------------------------------------------------------------------------------ */

typedef struct unit_job {
    const tt_params *params;
    int ep;
    tt_precision precision;
    tt_shard_bytes bytes; /* of rank 0 */
    bool shared;          /* its ranks share memory */
} unit_job;

typedef struct rank_state {
    const unit_job *job;
    tt_mesh *mesh;
    tt_kernel *kernel;
    tt_shards *shards;
} rank_state;

/* A value that F32 holds and BF16 does not. */
static double value(int64_t param, int64_t element)
{
    return (float)(sin((double)(param * 977 + element)) + 1e-3);
}

/* What rank r adds to a gradient: of such different sizes that the order of a sum shows. */
static double share(int64_t param, int64_t element, int rank)
{
    return (float)(sin((double)(param * 31 + element + 7 * rank)) * pow(10, (double)((rank * 5 + element) % 7)));
}

static double element(tt_mat m, int64_t i)
{
    double x;
    tt_convert(&x, TT_F64, (char *)m.data + (size_t)i * tt_dtype_size(m.dtype), m.dtype, 1);
    return x;
}

static void set_element(tt_mat m, int64_t i, double x)
{
    tt_convert((char *)m.data + (size_t)i * tt_dtype_size(m.dtype), m.dtype, &x, TT_F64, 1);
}

static double rounded(double x, tt_dtype type)
{
    char bits[8];
    tt_convert(bits, type, &x, TT_F64, 1);
    tt_convert(&x, TT_F64, bits, type, 1);
    return x;
}

static bool mine(const rank_state *r, int64_t param)
{
    const tt_param *p = &r->job->params->at[param];
    return p->expert < 0 ||
           tt_mesh_expert_owner(r->job->params->num_experts, r->mesh->ep_size, p->expert) == r->mesh->ep_rank;
}

static tt_status check_weights(const rank_state *r, int unit)
{
    const tt_unit *u = &r->job->params->units[unit];
    for (int64_t i = u->first; i < u->first + u->count; i++) {
        const tt_param *p = &r->job->params->at[i];
        if (!mine(r, i)) continue;
        tt_precision t = r->job->precision;
        tt_mat w = tt_unit_weight(r->shards, i);
        int64_t cols = p->ndim == 2 ? p->shape[1] : p->count;
        TT_CHECK(w.dtype == (p->exact ? t.real : t.compute) && w.cols == cols && w.rows * w.cols == p->count,
                 TT_EVERDICT, "'%s' is gathered as %s [%lld, %lld]", p->name, tt_dtype_name(w.dtype),
                 (long long)w.rows, (long long)w.cols);
        for (int64_t k = 0; k < p->count; k++) {
            double x = rounded(value(i, k), p->exact ? t.real : t.resident);
            x = rounded(x, w.dtype);
            TT_CHECK(element(w, k) == x, TT_EVERDICT, "rank %d: '%s'[%lld] is gathered as %.9g, expected %.9g",
                     r->mesh->rank, p->name, (long long)k, element(w, k), x);
        }
    }
    return TT_OK;
}

/* Nested gathers, with and without a prefetch in front, and the next unit on its way meanwhile. */
static tt_status gather_all(const rank_state *r)
{
    int num = r->job->params->num_units;
    for (int u = 0; u < num; u++) {
        if (u % 2) TT_TRY(tt_unit_prefetch(r->shards, r->kernel, u));
        if (u % 2) TT_TRY(tt_unit_prefetch(r->shards, r->kernel, u));
        TT_TRY(tt_unit_gather(r->shards, r->kernel, u));
        TT_TRY(tt_unit_prefetch(r->shards, r->kernel, (u + 1) % num));
        TT_TRY(tt_unit_prefetch(r->shards, r->kernel, u));
        TT_TRY(tt_unit_gather(r->shards, r->kernel, u));
        TT_TRY(check_weights(r, u));
        tt_unit_release(r->shards, u);
        TT_TRY(check_weights(r, u)); /* still held once */
        TT_TRY(tt_unit_gather(r->shards, r->kernel, (u + 1) % num));
        TT_TRY(check_weights(r, (u + 1) % num));
        TT_TRY(check_weights(r, u));
        tt_unit_release(r->shards, u);
        TT_TRY(check_weights(r, (u + 1) % num));
        tt_unit_release(r->shards, (u + 1) % num);
    }
    return TT_OK;
}

/* Of three parameters one is added to, one written where that is allowed, and one, with `some`, left alone. */
static bool left_alone(int64_t param, bool some)
{
    return some && param % 3 == 2;
}

static void add_share(const rank_state *r, int unit, bool some)
{
    const tt_unit *u = &r->job->params->units[unit];
    for (int64_t i = u->first; i < u->first + u->count; i++) {
        if (!mine(r, i) || !r->job->params->at[i].trained || left_alone(i, some)) continue;
        bool add = true;
        tt_mat g = i % 3 == 1 ? tt_unit_gradient_out(r->shards, i, &add) : tt_unit_gradient(r->shards, r->kernel, i);
        for (int64_t k = 0; k < r->job->params->at[i].count; k++)
            set_element(g, k, (add ? element(g, k) : 0) + share(i, k, r->mesh->rank));
    }
}

/* The sum over the unit's group in rank order, in real, `times` times added to 0. */
static double expected_sum(const rank_state *r, int64_t param, int64_t k, int times)
{
    bool expert = r->job->params->at[param].expert >= 0;
    tt_dtype real = r->job->precision.real;
    double sum = 0, total = 0;
    int step = expert ? r->mesh->ep_size : 1, first = expert ? r->mesh->ep_rank : 0;
    for (int rank = first; rank < r->mesh->world_size; rank += step)
        sum = rank == first ? share(param, k, rank) : rounded(sum + share(param, k, rank), real);
    for (int i = 0; i < times; i++) total = rounded(total + sum, real);
    return total;
}

static tt_status check_gradients(const rank_state *r, int times, bool some)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(r->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        const tt_param *p = &r->job->params->at[pieces[i].param];
        if (!p->trained) continue;
        tt_mat g = tt_shards_view(r->shards, &pieces[i], TT_PART_GRADIENT);
        for (int64_t k = 0; k < pieces[i].count; k++) {
            bool none = left_alone(pieces[i].param, some);
            double want = none ? 0 : expected_sum(r, pieces[i].param, pieces[i].first + k, times);
            TT_CHECK(element(g, k) == want, TT_EVERDICT, "rank %d: gradient of '%s'[%lld] is %.17g, expected %.17g",
                     r->mesh->rank, p->name, (long long)(pieces[i].first + k), element(g, k), want);
        }
    }
    return TT_OK;
}

/* Two uses of every unit, as of a tied head, add up; then all is zeroed and done again, with some parameters left alone. */
static tt_status reduce_all(const rank_state *r)
{
    int num = r->job->params->num_units;
    for (int pass = 0; pass < 2; pass++) {
        tt_shards_zero_gradients(r->shards, r->kernel);
        for (int times = 1; times <= 2; times++) {
            /* Two units at a time, as an expert unit beside its layer. */
            for (int u = 0; u < num; u += 2) {
                for (int i = u; i < u + 2; i++) TT_TRY(tt_unit_gradient_begin(r->shards, r->kernel, i));
                for (int i = u; i < u + 2; i++) add_share(r, i, pass == 1);
                for (int i = u; i < u + 2; i++) TT_TRY(tt_unit_gradient_end(r->shards, r->kernel, i));
            }
            TT_TRY(tt_shards_finish_gradients(r->shards, r->kernel));
            TT_TRY(check_gradients(r, times, pass == 1));
        }
    }
    return TT_OK;
}

static tt_status use_shards(const rank_state *r)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(r->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        tt_mat w = tt_shards_view(r->shards, &pieces[i], TT_PART_WEIGHT);
        for (int64_t k = 0; k < pieces[i].count; k++) set_element(w, k, value(pieces[i].param, pieces[i].first + k));
    }
    TT_TRY(gather_all(r));
    TT_TRY(reduce_all(r));
    /* Buffers are kept: a second time takes no more. */
    int64_t peak = tt_shards_bytes(r->shards).units_peak;
    TT_TRY(gather_all(r));
    TT_TRY(reduce_all(r));
    TT_CHECK(tt_shards_bytes(r->shards).units_peak == peak, TT_EVERDICT, "units take %lld bytes, then %lld",
             (long long)peak, (long long)tt_shards_bytes(r->shards).units_peak);
    return TT_OK;
}

/* What one gather and one reduction of a unit send: this rank's shard, and the others' shards of its gradient, to each; or one
 * byte each, where they are shared. A buffer that was just given back costs another byte. */
static tt_status count_unit(const rank_state *r, int unit)
{
    static const char *const names[] = {"gather-unit", "reduce-gradient"};
    const tt_params *params = r->job->params;
    bool experts = params->units[unit].kind == TT_UNIT_EXPERTS, shared = tt_shards_are_shared(r->shards);
    int64_t offset[64], sent[2], size = tt_group_size(experts ? r->mesh->efsdp : r->mesh->world), expected[2] = {0};
    tt_flat_layout flats[2];
    TT_TRY(tt_unit_layout(params, unit, (int)size, r->mesh->ep_size, r->mesh->ep_rank, offset, flats));
    for (int f = 0; f < 2; f++) {
        tt_dtype real = r->job->precision.real;
        expected[0] += (size - 1) * flats[f].shard * (int64_t)tt_dtype_size(f ? real : r->job->precision.compute);
        expected[1] += (size - 1) * flats[f].shard * (int64_t)tt_dtype_size(real);
    }
    for (int i = 0; i < 2; i++) sent[i] = -tt_comm_bytes_sent(r->mesh->comm, names[i]);
    TT_TRY(tt_unit_gather(r->shards, r->kernel, unit));
    TT_TRY(tt_unit_gradient_begin(r->shards, r->kernel, unit));
    TT_TRY(tt_unit_gradient_end(r->shards, r->kernel, unit));
    TT_TRY(tt_shards_finish_gradients(r->shards, r->kernel));
    tt_unit_release(r->shards, unit);
    for (int i = 0; i < 2; i++) {
        sent[i] += tt_comm_bytes_sent(r->mesh->comm, names[i]);
        int64_t most = shared ? 2 * (size - 1) : expected[i], least = shared ? size - 1 : expected[i];
        TT_CHECK(sent[i] >= least && sent[i] <= most, TT_EVERDICT, "rank %d: %s of unit %d sends %lld bytes, expected %lld to %lld",
                 r->mesh->rank, names[i], unit, (long long)sent[i], (long long)least, (long long)most);
    }
    return TT_OK;
}

static tt_status check_traffic(const rank_state *r)
{
    for (int u = 0; u < r->job->params->num_units; u++) TT_TRY(count_unit(r, u));
    return TT_OK;
}

static tt_status unit_main(tt_comm *comm, void *arg)
{
    unit_job *j = arg;
    rank_state r = {.job = j};
    tt_comm_set_timeout(comm, 60);
    tt_status status = tt_mesh_create(comm, (tt_mesh_sizes){.ep_size = j->ep}, j->params->num_experts, &r.mesh);
    const tt_ops *ops = j->precision.real == TT_F64 ? &tt_ops_ref_f64 : &tt_ops_ref;
    if (status == TT_OK) status = tt_kernel_create(ops, 1, &r.kernel);
    if (status == TT_OK) status = tt_shards_create(j->params, r.mesh, j->precision, &r.shards);
    if (status == TT_OK) status = tt_shards_train(r.shards, true);
    if (status == TT_OK) status = use_shards(&r);
    if (status == TT_OK) status = check_traffic(&r);
    if (status == TT_OK && r.mesh->rank == 0) j->bytes = tt_shards_bytes(r.shards), j->shared = tt_shards_are_shared(r.shards);
    tt_shards_destroy(&r.shards);
    tt_kernel_destroy(&r.kernel);
    tt_mesh_destroy(&r.mesh);
    return status;
}

static void whole_units_come_and_go(void **state)
{
    (void)state;
    static const tt_precision precisions[] = {{TT_F32, TT_F32, TT_F32, TT_F32},
                                              {TT_F32, TT_BF16, TT_F32, TT_F32},
                                              {TT_BF16, TT_BF16, TT_F32, TT_BF16},
                                              {TT_BF16, TT_F32, TT_F32, TT_F32},
                                              {TT_F64, TT_F64, TT_F64, TT_F64}};
    tt_params params;
    make_params(&params, 7);
    for (size_t i = 0; i < 2 * (sizeof precisions / sizeof *precisions); i++)
        for (int world = 1; world <= 8; world++)
            for (int ep = 1; ep <= world && ep <= 7; ep++) {
                if (world % ep) continue;
                const tt_precision *p = &precisions[i / 2];
                unit_job j = {.params = &params, .ep = ep, .precision = *p};
                setenv("TARTAN_SHARED", i % 2 ? "0" : "1", 1);
                tt_status status = tt_comm_run_threads(world, unit_main, &j);
                if (status != TT_OK)
                    fail_msg("world %d, ep %d, %s held, %s gathered, %s: %s", world, ep, tt_dtype_name(p->resident),
                             tt_dtype_name(p->compute), i % 2 ? "in messages" : "shared", tt_error_text());
                assert_int_equal(j.shared, world > 1 && i % 2 == 0);
                /* One process whose types agree holds no second copy; others share what they hold. */
                bool one = world == 1 && p->resident == p->compute;
                assert_int_equal(j.bytes.units_peak == 0, one);
            }
    unsetenv("TARTAN_SHARED");
    tt_params_free(&params);
}

/* A rank's share is about 1/W of all bytes: at most one padding of 64 elements per flat more. */
static void shares_are_even(void **state)
{
    (void)state;
    tt_params params;
    make_params(&params, 8);
    int64_t total = tt_params_total(&params) + 64 * params.num; /* with alignment */
    for (int world = 1; world <= 8; world *= 2) {
        unit_job j = {.params = &params, .ep = world, .precision = {TT_F32, TT_F32, TT_F32, TT_F32}};
        assert_ok(tt_comm_run_threads(world, unit_main, &j));
        assert_true(j.bytes.weights <= 4 * (total / world + 64 * 2 * params.num_units));
        assert_int_equal(j.bytes.moments, 2 * j.bytes.gradients);
        assert_true(j.bytes.gradients <= j.bytes.weights);
    }
    tt_params_free(&params);
}

/* --- some units only ------------------------------------------------------------------------------------------- */

static bool same_piece(const tt_piece *a, const tt_piece *b)
{
    return a->param == b->param && a->flat == b->flat && a->first == b->first && a->count == b->count && a->at == b->at;
}

/* Shards of some units: as those of all, without the pieces and bytes of the others, which may be gathered all the same. */
static tt_status hold_some(tt_comm *comm, void *arg)
{
    const tt_params *params = arg;
    const tt_precision precision = {TT_F32, TT_F32, TT_F32, TT_F32};
    static const int lists[][2] = {{DENSE, EXPERTS}, {HEAD, EMBEDDING}, {EXPERTS, DENSE}};
    tt_mesh *mesh;
    tt_kernel *kernel;
    tt_shards *all, *some;
    TT_TRY(tt_mesh_create(comm, (tt_mesh_sizes){.ep_size = tt_comm_size(comm) / 2}, params->num_experts, &mesh));
    TT_TRY(tt_kernel_create(&tt_ops_ref, 1, &kernel));
    TT_TRY(tt_shards_create(params, mesh, precision, &all));
    for (int list = 0; list < 4; list++) {
        int num = list < 3 ? 2 : 0;
        int64_t num_all, num_some, next = 0, elements = 0;
        TT_TRY(tt_shards_create_units(params, mesh, precision, num ? lists[list] : NULL, num, &some));
        TT_TRY(tt_shards_train(some, false));
        const tt_piece *a = tt_shards_pieces(all, &num_all), *b = tt_shards_pieces(some, &num_some);
        for (int64_t i = 0; i < num_all; i++) {
            int unit = params->at[a[i].param].unit;
            if (num == 0 || (unit != lists[list][0] && unit != lists[list][1])) continue;
            elements += a[i].count;
            if (next >= num_some || !same_piece(&a[i], &b[next++]))
                return tt_error_set(TT_EVERDICT, "list %d: piece %lld differs", list, (long long)i);
        }
        int64_t bytes = tt_shards_bytes(some).weights, most = tt_shards_bytes(all).weights;
        if (next != num_some || bytes < 4 * elements || bytes >= most || (num == 0 && bytes + tt_shards_bytes(some).gradients))
            return tt_error_set(TT_EVERDICT, "list %d: %lld pieces of %lld, %lld bytes", list, (long long)next,
                                (long long)num_some, (long long)bytes);
        for (int unit = EMBEDDING; unit <= HEAD; unit++) {
            TT_TRY(tt_unit_gather(some, kernel, unit));
            TT_TRY(tt_unit_gradient_begin(some, kernel, unit));
            TT_TRY(tt_unit_gradient_end(some, kernel, unit));
            tt_unit_release(some, unit);
        }
        tt_shards_destroy(&some);
    }
    tt_shards_destroy(&all);
    tt_kernel_destroy(&kernel);
    tt_mesh_destroy(&mesh);
    return TT_OK;
}

static void some_units_alone(void **state)
{
    (void)state;
    tt_params params;
    make_params(&params, 5);
    for (int world = 2; world <= 4; world += 2) assert_ok(tt_comm_run_threads(world, hold_some, &params));
    tt_params_free(&params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_has_one_owner),
        cmocka_unit_test(layout_is_aligned_and_large_enough),
        cmocka_unit_test(sizes_are_64_bits_wide),
        cmocka_unit_test(whole_units_come_and_go),
        cmocka_unit_test(shares_are_even),
        cmocka_unit_test(some_units_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
