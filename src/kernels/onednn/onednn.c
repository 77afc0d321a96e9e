/* onednn.c - tt_ops_cpu with its matrix products done by oneDNN: a library that others keep, to hold the own
 * products against, and for machines where it is the faster one.
 *
 * Shapes. Every size and stride is left open until a product runs (DNNL_RUNTIME_DIM_VAL), so ten primitives, made
 * when the context is opened, serve all products. Primitives made for one shape are faster in some cases and slower
 * in as many, cost 0.3 ms and more each, and the rows of an expert change with every micro-step.
 *
 * Types. Sums are F32. C in F32 is written by the library; C in BF16 by way of scratch, so that what is added to it
 * is rounded once, with the sum. BF16 operands go to the library as they are where the machine multiplies them faster
 * than F32 (tt_onednn.bf16); elsewhere, and when only one of two is BF16, they are widened in scratch: the same
 * products. (On a core of Intel's without AMX, 128 rows and more with a weight of 2048 x 2048: 50 to 60 GF/s as they
 * are, 57 to 96 widened.)
 *
 * Threads. The library takes the team of the calling thread; it is set to the context's for the call. The same
 * call with the same number of threads adds in the same order; another number may cut the depth elsewhere.
 *
 * Memory. The library allocates its blocks of operands in each call, outside of the arena.
 * TARTAN_ISA does not bind the library; its own variable is ONEDNN_MAX_CPU_ISA.
 */
#include "kernels/onednn/onednn.h"
#include "kernels/element.h"
#include "base/checked.h"

#include <dnnl_debug.h>
#include <omp.h>
#include <stdlib.h>

/* 16 MiB in F32, so that scratch does not grow with the vocabulary. */
#define BLOCK (INT64_C(1) << 22)

/* From about 100 x 100 x 100 on both take the same time; below, the own products win by their smaller fixed cost.
 * A weight's gradient from few rows is little more than a walk over dw, for which the library takes several
 * times as long. */
#define SMALLEST   (INT64_C(1) << 20)
#define SHALLOWEST 32

typedef struct product {
    tt_onednn_form form;
    tt_mat a, b, c; /* as they lie in memory: A and B are read transposed where `transposed` says so */
    bool add;
} product;

static const struct {
    bool a, b;
} transposed[TT_ONEDNN_FORMS] = {[TT_ONEDNN_FORWARD] = {false, true}, [TT_ONEDNN_WEIGHT] = {true, false}};

static tt_onednn *state_of(const tt_kernel *k)
{
    return k->state;
}

static tt_status status_of(dnnl_status_t s, const char *what)
{
    if (s == dnnl_success) return TT_OK;
    return tt_error_set(s == dnnl_out_of_memory ? TT_ENOMEM : TT_EINTERNAL,
                        "oneDNN: %s: %s; without TARTAN_KERNELS=onednn tartan's own products are used", what,
                        dnnl_status2str(s));
}

/* --- one product ------------------------------------------------------------------------------------------------- */

static dnnl_status_t describe(dnnl_memory_desc_t *d, dnnl_data_type_t type, int64_t rows, int64_t cols, int64_t ld,
                              bool flip)
{
    dnnl_dims_t dims = {flip ? cols : rows, flip ? rows : cols}, strides = {flip ? 1 : ld, flip ? ld : 1};
    return dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides);
}

static dnnl_status_t wrap(dnnl_memory_t *out, const tt_onednn *o, tt_mat m, bool flip)
{
    dnnl_memory_desc_t d;
    dnnl_status_t s = describe(&d, m.dtype == TT_BF16 ? dnnl_bf16 : dnnl_f32, m.rows, m.cols, m.ld, flip);
    return s == dnnl_success ? dnnl_memory_create(out, &d, o->engine, m.data) : s;
}

/* A and B of one type that the library takes, C in F32. */
static tt_status run(tt_kernel *k, const product *p)
{
    tt_onednn *o = state_of(k);
    dnnl_memory_t a = NULL, b = NULL, c = NULL;
    dnnl_status_t s = wrap(&a, o, p->a, transposed[p->form].a);
    if (s == dnnl_success) s = wrap(&b, o, p->b, transposed[p->form].b);
    if (s == dnnl_success) s = wrap(&c, o, p->c, false);
    if (s == dnnl_success) {
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
        int before = omp_get_max_threads();
        omp_set_num_threads(k->threads);
        s = dnnl_primitive_execute(o->product[p->a.dtype == TT_BF16][p->form][p->add], o->stream, 3, args);
        if (s == dnnl_success) s = dnnl_stream_wait(o->stream);
        omp_set_num_threads(before);
    }
    dnnl_memory_destroy(c);
    dnnl_memory_destroy(b);
    dnnl_memory_destroy(a);
    return status_of(s, "product");
}

static tt_status scratch_mat(tt_kernel *k, int64_t rows, int64_t cols, tt_mat *out)
{
    void *room;
    TT_TRY(tt_arena_grant(k->scratch, rows * cols, sizeof(float), &room));
    *out = tt_mat_of(room, TT_F32, rows, cols);
    return TT_OK;
}

static tt_mat columns(tt_mat m, int64_t begin, int64_t end)
{
    return (tt_mat){tt_element_at(m, 0, begin), m.dtype, m.rows, end - begin, m.ld};
}

/* The part of a product that needs rows [begin, end) of B as it lies: columns of C, or a part of the depth. */
static product part_of(const product *p, int64_t begin, int64_t end)
{
    product q = *p;
    q.b = tt_mat_rows(p->b, begin, end);
    if (p->form == TT_ONEDNN_FORWARD) {
        q.c = columns(p->c, begin, end);
        return q;
    }
    q.a = p->form == TT_ONEDNN_WEIGHT ? tt_mat_rows(p->a, begin, end) : columns(p->a, begin, end);
    q.add = p->add || begin > 0;
    return q;
}

static tt_status run_widened(tt_kernel *k, product p)
{
    tt_mat a = p.a, room;
    if (a.dtype != TT_F32) {
        TT_TRY(scratch_mat(k, a.rows, a.cols, &p.a));
        k->ops->copy(k, a, p.a);
    }
    if (p.b.dtype == TT_F32) return run(k, &p);
    int64_t most = tt_min_i64(p.b.rows, tt_max_i64(state_of(k)->block / p.b.cols, 1));
    TT_TRY(scratch_mat(k, most, p.b.cols, &room));
    for (int64_t begin = 0; begin < p.b.rows; begin += most) {
        product q = part_of(&p, begin, tt_min_i64(begin + most, p.b.rows));
        tt_mat wide = tt_mat_rows(room, 0, q.b.rows);
        k->ops->copy(k, q.b, wide);
        q.b = wide;
        TT_TRY(run(k, &q));
    }
    return TT_OK;
}

static tt_status multiply(tt_kernel *k, product p, tt_mat bias)
{
    tt_status status = TT_OK;
    tt_mat out = p.c;
    bool add = p.add, straight = out.dtype == TT_F32;
    tt_arena_mark mark = tt_arena_save(k->scratch);
    if (!straight) {
        TT_GO(scratch_mat(k, out.rows, out.cols, &p.c));
        p.add = false;
    }
    bool as_is = p.a.dtype == p.b.dtype && (p.a.dtype == TT_F32 || state_of(k)->bf16);
    TT_GO(as_is ? run(k, &p) : run_widened(k, p));
    for (int64_t i = 0; bias.data && i < out.rows; i++) k->ops->add(k, bias, tt_mat_rows(p.c, i, i + 1));
    if (!straight) (add ? k->ops->add : k->ops->copy)(k, p.c, out);
fail:
    tt_arena_restore(k->scratch, mark);
    return status;
}

/* --- the ops ------------------------------------------------------------------------------------------------------ */

/* Whether a product of so many rows is the library's. Never without rows: nothing is asked of it then. */
static bool is_large(const tt_kernel *k, tt_onednn_form form, int64_t rows, int64_t N, int64_t K)
{
    const tt_onednn *o = state_of(k);
    double work = (double)rows * (double)N * (double)K;
    if (form == TT_ONEDNN_WEIGHT && rows < o->shallowest) return false;
    return work > 0 && work >= (double)o->smallest;
}

/* The same for groups: by their mean, since small ones run better side by side, which tt_ops_cpu does. */
static bool are_large(const tt_kernel *k, tt_onednn_form form, const int64_t *offset, int64_t G, int64_t N, int64_t K)
{
    int64_t used = 0;
    for (int64_t g = 0; g < G; g++) used += offset[g] < offset[g + 1];
    return used > 0 && is_large(k, form, (offset[G] - offset[0]) / used, N, K);
}

static tt_status linear(tt_kernel *k, tt_mat x, tt_mat w, tt_mat bias, bool accumulate, tt_mat y)
{
    if (!is_large(k, TT_ONEDNN_FORWARD, x.rows, w.rows, w.cols))
        return state_of(k)->cpu.ops.linear(k, x, w, bias, accumulate, y);
    return multiply(k, (product){TT_ONEDNN_FORWARD, x, w, y, accumulate}, bias);
}

static tt_status linear_dx(tt_kernel *k, tt_mat dy, tt_mat w, bool accumulate, tt_mat dx)
{
    if (!is_large(k, TT_ONEDNN_INPUT, dy.rows, w.rows, w.cols))
        return state_of(k)->cpu.ops.linear_dx(k, dy, w, accumulate, dx);
    return multiply(k, (product){TT_ONEDNN_INPUT, dy, w, dx, accumulate}, (tt_mat){0});
}

static tt_status linear_dw(tt_kernel *k, tt_mat dy, tt_mat x, bool accumulate, tt_mat dw)
{
    if (!is_large(k, TT_ONEDNN_WEIGHT, x.rows, dw.rows, dw.cols))
        return state_of(k)->cpu.ops.linear_dw(k, dy, x, accumulate, dw);
    return multiply(k, (product){TT_ONEDNN_WEIGHT, dy, x, dw, accumulate}, (tt_mat){0});
}

static tt_status grouped_linear(tt_kernel *k, tt_mat x, const tt_mat *w, int64_t G, const int64_t *offset, tt_mat y)
{
    if (!are_large(k, TT_ONEDNN_FORWARD, offset, G, y.cols, x.cols))
        return state_of(k)->cpu.ops.grouped_linear(k, x, w, G, offset, y);
    for (int64_t g = 0; g < G; g++) {
        int64_t begin = offset[g], end = offset[g + 1];
        if (begin == end) continue;
        TT_TRY(linear(k, tt_mat_rows(x, begin, end), w[g], (tt_mat){0}, false, tt_mat_rows(y, begin, end)));
    }
    return TT_OK;
}

static tt_status grouped_dx(tt_kernel *k, tt_mat dy, const tt_mat *w, int64_t G, const int64_t *offset,
                            bool accumulate, tt_mat dx)
{
    if (!are_large(k, TT_ONEDNN_INPUT, offset, G, dy.cols, dx.cols))
        return state_of(k)->cpu.ops.grouped_dx(k, dy, w, G, offset, accumulate, dx);
    for (int64_t g = 0; g < G; g++) {
        int64_t begin = offset[g], end = offset[g + 1];
        if (begin == end) continue;
        TT_TRY(linear_dx(k, tt_mat_rows(dy, begin, end), w[g], accumulate, tt_mat_rows(dx, begin, end)));
    }
    return TT_OK;
}

static tt_status grouped_dw(tt_kernel *k, tt_mat dy, tt_mat x, int64_t G, const int64_t *offset, bool accumulate,
                            const tt_mat *dw)
{
    if (!are_large(k, TT_ONEDNN_WEIGHT, offset, G, dy.cols, x.cols))
        return state_of(k)->cpu.ops.grouped_dw(k, dy, x, G, offset, accumulate, dw);
    for (int64_t g = 0; g < G; g++) {
        int64_t begin = offset[g], end = offset[g + 1];
        TT_TRY(linear_dw(k, tt_mat_rows(dy, begin, end), tt_mat_rows(x, begin, end), accumulate, dw[g]));
    }
    return TT_OK;
}

/* --- the context --------------------------------------------------------------------------------------------------- */

/* sum: C += A B, by the post-op that adds what C holds. */
static dnnl_status_t attributes(bool sum, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t s = dnnl_primitive_attr_create(out);
    if (s != dnnl_success || !sum) return s;
    s = dnnl_post_ops_create(&ops);
    if (s == dnnl_success) s = dnnl_post_ops_append_sum(ops, 1);
    if (s == dnnl_success) s = dnnl_primitive_attr_set_post_ops(*out, ops);
    dnnl_post_ops_destroy(ops);
    return s;
}

static dnnl_status_t make_product(tt_onednn *o, dnnl_data_type_t type, tt_onednn_form form, bool sum,
                                  dnnl_primitive_t *out)
{
    const int64_t any = DNNL_RUNTIME_DIM_VAL;
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t d = NULL;
    dnnl_status_t s = attributes(sum, &attr);
    if (s == dnnl_success) s = describe(&a, type, any, any, any, transposed[form].a);
    if (s == dnnl_success) s = describe(&b, type, any, any, any, transposed[form].b);
    if (s == dnnl_success) s = describe(&c, dnnl_f32, any, any, any, false);
    if (s == dnnl_success) s = dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c);
    if (s == dnnl_success) s = dnnl_primitive_desc_create(&d, &matmul, attr, o->engine, NULL);
    if (s == dnnl_success) s = dnnl_primitive_create(out, d);
    dnnl_primitive_desc_destroy(d);
    dnnl_primitive_attr_destroy(attr);
    return s;
}

static tt_status make_products(tt_onednn *o)
{
    for (int half = 0; half <= o->has_bf16; half++)
        for (int form = 0; form < TT_ONEDNN_FORMS; form++)
            for (int sum = 0; sum < 2; sum++)
                TT_TRY(status_of(make_product(o, half ? dnnl_bf16 : dnnl_f32, (tt_onednn_form)form, sum,
                                              &o->product[half][form][sum]),
                                 "making a product"));
    return TT_OK;
}

/* The rule of tt_cpu.pairs, and AMX, of which the own products know nothing. */
static void choose_bf16(tt_onednn *o)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    bool amx = (isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
    o->has_bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    o->bf16 = o->has_bf16 && (amx || o->cpu.pairs);
}

static void fill(tt_ops *ops)
{
    ops->name = tt_ops_onednn.name;
    ops->open = tt_ops_onednn.open;
    ops->close = tt_ops_onednn.close;
    ops->linear = linear;
    ops->linear_dx = linear_dx;
    ops->linear_dw = linear_dw;
    ops->grouped_linear = grouped_linear;
    ops->grouped_dx = grouped_dx;
    ops->grouped_dw = grouped_dw;
}

static void release(tt_onednn *o)
{
    dnnl_primitive_t *all = &o->product[0][0][0];
    for (size_t i = 0; i < sizeof o->product / sizeof *all; i++) dnnl_primitive_destroy(all[i]);
    dnnl_stream_destroy(o->stream);
    dnnl_engine_destroy(o->engine);
    free(o);
}

static tt_status open_onednn(tt_kernel *k)
{
    tt_status status = TT_OK;
    tt_onednn *o = calloc(1, sizeof *o);
    TT_CHECK(o, TT_ENOMEM, "kernels: out of memory");
    TT_GO(tt_cpu_init(&o->cpu));
    TT_GO(status_of(dnnl_engine_create(&o->engine, dnnl_cpu, 0), "engine"));
    TT_GO(status_of(dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags), "stream"));
    choose_bf16(o);
    o->smallest = SMALLEST;
    o->shallowest = SHALLOWEST;
    o->block = BLOCK;
    TT_GO(make_products(o));
    o->ops = o->cpu.ops;
    fill(&o->ops);
    k->state = o;
    k->ops = &o->ops;
    return TT_OK;
fail:
    release(o);
    return status;
}

static void close_onednn(tt_kernel *k)
{
    release(k->state);
    k->state = NULL;
    k->ops = &tt_ops_onednn;
}

const tt_ops tt_ops_onednn = {.name = "onednn", .real = TT_F32, .open = open_onednn, .close = close_onednn};
