#include "support/kernel_cases.h"
#include "support/test.h"

#include "base/checked.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- matrices between guards ------------------------------------------------------------------------------------ */

enum { GUARD = 64 };

typedef struct rig_buffer {
    unsigned char *bytes;
    size_t size; /* with both guards */
    tt_mat m;
} rig_buffer;

double kernel_get(tt_mat m, int64_t row, int64_t col)
{
    double x;
    assert_true(row >= 0 && row < m.rows && col >= 0 && col < m.cols);
    tt_convert(&x, TT_F64, (char *)tt_mat_row(m, row) + (size_t)col * tt_dtype_size(m.dtype), m.dtype, 1);
    return x;
}

void kernel_set(tt_mat m, int64_t row, int64_t col, double x)
{
    assert_true(row >= 0 && row < m.rows && col >= 0 && col < m.cols);
    tt_convert((char *)tt_mat_row(m, row) + (size_t)col * tt_dtype_size(m.dtype), m.dtype, &x, TT_F64, 1);
}

void kernel_set_all(tt_mat m, double x)
{
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t j = 0; j < m.cols; j++) kernel_set(m, i, j, x);
}

tt_mat kernel_rig_mat(kernel_rig *r, tt_dtype type, int64_t rows, int64_t cols, bool spaced)
{
    rig_buffer b = {.m = {NULL, type, rows, cols, spaced ? cols + 3 : cols}};
    b.size = (size_t)(rows * b.m.ld) * tt_dtype_size(type) + 2 * GUARD;
    b.bytes = malloc(b.size);
    assert_non_null(b.bytes);
    memset(b.bytes, 0xFF, b.size);
    b.m.data = b.bytes + GUARD;
    r->buffers = realloc(r->buffers, (size_t)(r->num_buffers + 1) * sizeof b);
    assert_non_null(r->buffers);
    r->buffers[r->num_buffers++] = b;
    return b.m;
}

tt_mat kernel_rig_fill(kernel_rig *r, tt_mat m, double centre, double spread)
{
    uint64_t key = r->seed++;
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t j = 0; j < m.cols; j++) {
            float x;
            tt_rng_normal(key, i * m.cols + j, 1, &x);
            kernel_set(m, i, j, (double)(float)(centre + spread * (double)x));
        }
    return m;
}

static bool all_ones(const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != 0xFF) return false;
    return true;
}

void kernel_rig_check_guards(const kernel_rig *r)
{
    for (int i = 0; i < r->num_buffers; i++) {
        const rig_buffer *b = &r->buffers[i];
        size_t size = tt_dtype_size(b->m.dtype), gap = (size_t)(b->m.ld - b->m.cols) * size;
        bool good = all_ones(b->bytes, GUARD) && all_ones(b->bytes + b->size - GUARD, GUARD);
        for (int64_t row = 0; row < b->m.rows; row++)
            good = good && all_ones((unsigned char *)tt_mat_row(b->m, row) + (size_t)b->m.cols * size, gap);
        if (!good)
            fail_msg("%s, %s: matrix %d [%lld,%lld] was written outside of its elements", r->c->name, r->k->ops->name,
                     i, (long long)b->m.rows, (long long)b->m.cols);
    }
}

static void *bytes(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size);
    assert_non_null(p);
    return p;
}

kernel_rig *kernel_rig_create(const kernel_case *c, const tt_ops *ops, tt_dtype compute, int threads)
{
    kernel_rig *r = bytes(1, sizeof *r);
    r->c = c;
    r->real = ops->real;
    r->compute = compute;
    r->seed = 1;
    assert_ok(tt_kernel_create(ops, threads, &r->k));
    if (c->build) c->build(r);
    return r;
}

void kernel_rig_destroy(kernel_rig **rig)
{
    kernel_rig *r = *rig;
    for (int i = 0; i < r->num_buffers; i++) free(r->buffers[i].bytes);
    free(r->buffers);
    free(r->ids);
    free(r->offset);
    free((void *)r->docs.offset);
    free((void *)r->docs.column);
    free(r->weights);
    free(r->views);
    free(r->factors);
    tt_kernel_destroy(&r->k);
    free(r);
    *rig = NULL;
}

void kernel_rig_forward(kernel_rig *r)
{
    for (int i = 0; i < r->num_out; i++) kernel_set_all(r->out[i], (double)NAN);
    r->c->forward(r);
}

void kernel_rig_backward(kernel_rig *r)
{
    for (int i = 0; i < r->num_in; i++)
        if (r->din[i].data) kernel_set_all(r->din[i], r->base[i] != 0 ? r->base[i] : (double)NAN);
    r->c->backward(r);
}

double kernel_rig_objective(const kernel_rig *r, double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    for (int i = 0; i < r->num_out; i++)
        for (int64_t row = 0; row < r->out[i].rows && r->dout[i].data; row++)
            for (int64_t col = 0; col < r->out[i].cols; col++) {
                double term = kernel_get(r->out[i], row, col) * kernel_get(r->dout[i], row, col);
                sum += term;
                *magnitude += fabs(term);
            }
    return sum;
}

/* --- comparison -------------------------------------------------------------------------------------------------- */

static double largest(tt_mat m)
{
    double size = 0;
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t j = 0; j < m.cols; j++) size = fmax(size, fabs(kernel_get(m, i, j)));
    return size;
}

/* A float sum of n terms lies within n eps/2 sum |terms| of the sum in double. Measured against the largest element
 * of the tensor, since what cancels in one does not in another; 8 more for the functions in it. The gradient of
 * attention is made of differences dp - <dO, O> between numbers of about 1, which may cancel everywhere (a window of
 * one). An element of BF16 may round the other way besides: one place, at most 2^-7 of it. */
static void compare(const kernel_rig *got, tt_mat x, tt_mat y, const char *who, const char *what, int i)
{
    double eps = FLT_EPSILON * (double)(got->c->terms + 8) + (x.dtype == TT_BF16 ? 0x1p-7 : 0);
    double tolerance = eps * fmax(largest(y), strncmp(got->c->name, "attention", 9) == 0 ? 1 : 1e-3);
    for (int64_t row = 0; row < x.rows; row++)
        for (int64_t col = 0; col < x.cols; col++) {
            double p = kernel_get(x, row, col), q = kernel_get(y, row, col);
            if (!(fabs(p - q) <= tolerance))
                fail_msg("%s (%lld, %lld, %lld), %s, %s, %d threads: %s %d at [%lld,%lld] is %.9g, not %.9g "
                         "(tolerance %.2g)",
                         got->c->name, (long long)got->c->size[0], (long long)got->c->size[1],
                         (long long)got->c->size[2], who, tt_dtype_name(got->compute), got->k->threads, what, i,
                         (long long)row, (long long)col, p, q, tolerance);
        }
}

void kernel_rig_compare(const kernel_rig *got, const kernel_rig *expected, const char *what)
{
    for (int i = 0; i < got->num_out; i++) compare(got, got->out[i], expected->out[i], what, "output", i);
    for (int i = 0; i < got->num_in; i++)
        if (got->din[i].data) compare(got, got->din[i], expected->din[i], what, "gradient", i);
}

void kernel_same_bits(tt_mat a, tt_mat b, const kernel_case *c, const char *what)
{
    for (int64_t i = 0; i < a.rows; i++)
        if (memcmp(tt_mat_row(a, i), tt_mat_row(b, i), (size_t)a.cols * tt_dtype_size(a.dtype)) != 0)
            fail_msg("%s (%lld, %lld, %lld): %s: row %lld differs", c->name, (long long)c->size[0],
                     (long long)c->size[1], (long long)c->size[2], what, (long long)i);
}

static bool has(const kernel_rig *r, int flag)
{
    return (r->c->flags & flag) != 0;
}

static void copy_all(tt_mat from, tt_mat to)
{
    for (int64_t i = 0; i < from.rows; i++)
        for (int64_t j = 0; j < from.cols; j++) kernel_set(to, i, j, kernel_get(from, i, j));
}

static tt_mat normal(kernel_rig *r, tt_dtype type, int64_t rows, int64_t cols)
{
    return kernel_rig_fill(r, kernel_rig_mat(r, type, rows, cols, true), 0, 1);
}

static tt_mat empty(kernel_rig *r, tt_dtype type, int64_t rows, int64_t cols)
{
    return kernel_rig_mat(r, type, rows, cols, true);
}

/* The type of results. */
static tt_dtype result(const kernel_rig *r)
{
    return has(r, CASE_NARROW) ? r->compute : r->real;
}

/* --- products: T, K, N (grouped: rows, K, N, groups, who has the rows) ------------------------------------------ */

static void linear_build(kernel_rig *r)
{
    int64_t T = r->c->size[0], K = r->c->size[1], N = r->c->size[2];
    r->in[0] = normal(r, r->compute, T, K);
    r->in[1] = normal(r, r->compute, N, K);
    r->in[2] = has(r, CASE_BIAS) ? normal(r, r->real, 1, N) : (tt_mat){0};
    r->num_in = has(r, CASE_BIAS) ? 3 : 2;
    r->out[0] = empty(r, result(r), T, N);
    r->dout[0] = normal(r, r->compute, T, N);
    r->num_out = 1;
    r->din[0] = empty(r, result(r), T, K);
    r->din[1] = empty(r, r->real, N, K);
    r->base[0] = r->base[1] = has(r, CASE_ACCUMULATE) ? 1 : 0;
    if (has(r, CASE_BIAS)) r->din[2] = empty(r, r->real, 1, N), r->base[2] = 1;
}

static void linear_forward(kernel_rig *r)
{
    if (has(r, CASE_ACCUMULATE)) kernel_set_all(r->out[0], 1);
    assert_ok(r->k->ops->linear(r->k, r->in[0], r->in[1], r->in[2], has(r, CASE_ACCUMULATE), r->out[0]));
}

static void linear_backward(kernel_rig *r)
{
    assert_ok(r->k->ops->linear_dx(r->k, r->dout[0], r->in[1], has(r, CASE_ACCUMULATE), r->din[0]));
    assert_ok(r->k->ops->linear_dw(r->k, r->dout[0], r->in[0], has(r, CASE_ACCUMULATE), r->din[1]));
    if (has(r, CASE_BIAS)) r->k->ops->bias_db(r->k, r->dout[0], r->din[2]);
}

/* Where the rows of group g end, which begin at `begin`; the last groups without rows get the rest. */
static int64_t group_end(int64_t who, int64_t P, int64_t G, int64_t g, int64_t begin)
{
    switch (who) {
    case 1: return g < G / 2 ? 0 : P;                            /* one group has all */
    case 2: return tt_min_i64(begin + 1, P);                     /* one row each, the last of them the rest */
    case 3: return begin + (P - begin + 1) / 2;                  /* half of what is left, and so on */
    default: return g % 3 == 0 ? begin : tt_max_i64(begin, P * (g + 1) / G); /* the first and every third are empty */
    }
}

static void grouped_build(kernel_rig *r)
{
    int64_t P = r->c->size[0], K = r->c->size[1], N = r->c->size[2], G = r->c->size[3];
    r->in[0] = normal(r, r->compute, P, K);
    r->in[1] = normal(r, r->compute, G * N, K);
    r->num_in = 2;
    r->out[0] = empty(r, result(r), P, N);
    r->dout[0] = normal(r, r->compute, P, N);
    r->num_out = 1;
    r->din[0] = empty(r, result(r), P, K);
    r->din[1] = empty(r, r->real, G * N, K);
    r->base[0] = r->base[1] = has(r, CASE_ACCUMULATE) ? 1 : 0;
    r->weights = bytes((size_t)G, sizeof *r->weights);
    r->views = bytes((size_t)G, sizeof *r->views);
    r->offset = bytes((size_t)G + 1, sizeof *r->offset);
    for (int64_t g = 0; g < G; g++) {
        r->weights[g] = tt_mat_rows(r->in[1], g * N, (g + 1) * N);
        r->views[g] = tt_mat_rows(r->din[1], g * N, (g + 1) * N);
        r->offset[g + 1] = group_end(r->c->size[4], P, G, g, r->offset[g]);
    }
    for (int64_t g = G; g > 0 && r->offset[g] == r->offset[G]; g--) r->offset[g] = P;
}

static void grouped_forward(kernel_rig *r)
{
    assert_ok(r->k->ops->grouped_linear(r->k, r->in[0], r->weights, r->c->size[3], r->offset, r->out[0]));
}

static void grouped_backward(kernel_rig *r)
{
    int64_t G = r->c->size[3];
    assert_ok(r->k->ops->grouped_dx(r->k, r->dout[0], r->weights, G, r->offset, has(r, CASE_ACCUMULATE), r->din[0]));
    assert_ok(r->k->ops->grouped_dw(r->k, r->dout[0], r->in[0], G, r->offset, has(r, CASE_ACCUMULATE), r->views));
}

/* --- elementwise: rows, cols ------------------------------------------------------------------------------------ */

static void elementwise_build(kernel_rig *r)
{
    int64_t rows = r->c->size[0], n = r->c->size[1];
    r->in[0] = normal(r, r->compute, rows, n);
    r->in[1] = normal(r, r->real, rows, n);
    r->num_in = 2;
    for (int i = 0; i < 4; i++) r->out[i] = empty(r, result(r), rows, n);
    r->num_out = 4;
}

static void elementwise_forward(kernel_rig *r)
{
    r->k->ops->copy(r->k, r->in[0], r->out[0]);
    r->k->ops->copy(r->k, r->in[1], r->out[1]);
    r->k->ops->add(r->k, r->in[0], r->out[1]);
    r->k->ops->copy(r->k, r->in[1], r->out[2]);
    r->k->ops->scale(r->k, 0.3, r->out[2]);
    r->k->ops->zero(r->k, r->out[3]);
}

/* --- rmsnorm: rows, n, heads (0: the whole row) ----------------------------------------------------------------- */

static const double norm_eps = 1e-2; /* large enough for finite differences to see a wrong place of it */

static void rmsnorm_build(kernel_rig *r)
{
    int64_t rows = r->c->size[0], n = r->c->size[1], heads = r->c->size[2];
    bool per_head = heads > 0;
    int64_t cols = per_head ? heads * n : n, norms = per_head ? rows * heads : rows;
    r->in[0] = kernel_rig_fill(r, kernel_rig_mat(r, r->real, rows, cols, !per_head), 0.3, 0.6);
    r->in[1] = kernel_rig_fill(r, empty(r, r->real, 1, n), 1, 0.2);
    r->num_in = 2;
    r->out[0] = kernel_rig_mat(r, result(r), rows, cols, !per_head);
    r->out[1] = kernel_rig_mat(r, r->real, norms, 1, false);
    r->num_out = 2;
    r->dout[0] = kernel_rig_fill(r, kernel_rig_mat(r, has(r, CASE_ALIAS) ? r->real : result(r), rows, cols, !per_head), 0, 1);
    r->din[0] = kernel_rig_mat(r, r->real, rows, cols, !per_head);
    r->din[1] = empty(r, r->real, 1, n);
    r->base[0] = has(r, CASE_ACCUMULATE) ? 1 : 0;
    r->base[1] = 1;
}

static tt_mat by_head(const kernel_rig *r, tt_mat m)
{
    return r->c->size[2] > 0 ? tt_mat_reshape(m, r->c->size[1]) : m;
}

static void rmsnorm_forward(kernel_rig *r)
{
    r->k->ops->rmsnorm(r->k, by_head(r, r->in[0]), r->in[1], norm_eps, by_head(r, r->out[0]), r->out[1].data);
}

static void rmsnorm_backward(kernel_rig *r)
{
    tt_mat dy = r->dout[0];
    if (has(r, CASE_ALIAS)) {
        copy_all(dy, r->din[0]);
        dy = r->din[0];
    }
    r->k->ops->rmsnorm_back(r->k, by_head(r, dy), by_head(r, r->in[0]), r->in[1], r->out[1].data,
                            has(r, CASE_ACCUMULATE), by_head(r, r->din[0]), r->din[1]);
}

/* --- rope: T, heads, width, rotary ------------------------------------------------------------------------------ */

static void rope_build(kernel_rig *r)
{
    int64_t T = r->c->size[0], cols = r->c->size[1] * r->c->size[2], half = r->c->size[3] / 2;
    r->in[0] = normal(r, result(r), T, cols);
    r->num_in = 1;
    r->out[0] = empty(r, result(r), T, cols);
    r->dout[0] = normal(r, result(r), T, cols);
    r->num_out = 3;
    r->out[1] = empty(r, r->real, T, half);
    r->out[2] = empty(r, r->real, T, half);
    r->din[0] = empty(r, result(r), T, cols);
    r->ids = bytes((size_t)T, sizeof *r->ids);
    for (int64_t t = 0; t < T; t++) r->ids[t] = (int32_t)(t < 3 ? t * 7 : t - 3);
}

static void rope_forward(kernel_rig *r)
{
    int64_t T = r->c->size[0];
    r->k->ops->rope_table(r->k, r->ids, T, r->c->size[3], 100.0, r->out[1], r->out[2]);
    r->k->ops->copy(r->k, r->in[0], r->out[0]);
    r->k->ops->rope(r->k, r->out[0], r->c->size[1], r->out[1], r->out[2], has(r, CASE_INTERLEAVED), false);
}

static void rope_backward(kernel_rig *r)
{
    r->k->ops->copy(r->k, r->dout[0], r->din[0]);
    r->k->ops->rope(r->k, r->din[0], r->c->size[1], r->out[1], r->out[2], has(r, CASE_INTERLEAVED), true);
}

/* --- clamp, swiglu: rows, n ------------------------------------------------------------------------------------- */

static void clamp_build(kernel_rig *r)
{
    int64_t rows = r->c->size[0], n = r->c->size[1];
    r->in[0] = normal(r, result(r), rows, n);
    r->num_in = 1;
    r->out[0] = empty(r, result(r), rows, n);
    r->dout[0] = normal(r, result(r), rows, n);
    r->num_out = 1;
    r->din[0] = empty(r, result(r), rows, n);
}

static void clamp_forward(kernel_rig *r)
{
    tt_mat x = r->in[0];
    if (has(r, CASE_ALIAS)) {
        copy_all(x, r->out[0]);
        x = r->out[0];
    }
    r->k->ops->clamp(r->k, x, 0.7, r->out[0]);
}

static void clamp_backward(kernel_rig *r)
{
    tt_mat dy = r->dout[0];
    if (has(r, CASE_ALIAS)) {
        copy_all(dy, r->din[0]);
        dy = r->din[0];
    }
    r->k->ops->clamp_back(r->k, dy, r->in[0], 0.7, r->din[0]);
}

static void swiglu_build(kernel_rig *r)
{
    int64_t rows = r->c->size[0], n = r->c->size[1];
    r->in[0] = normal(r, r->compute, rows, n);
    r->in[1] = normal(r, r->compute, rows, n);
    r->num_in = 2;
    if (has(r, CASE_GATED)) {
        r->in[2] = kernel_rig_fill(r, kernel_rig_mat(r, r->real, rows, 1, false), 0.5, 0.3);
        r->din[2] = kernel_rig_mat(r, r->real, rows, 1, false);
        r->num_in = 3;
    }
    r->out[0] = empty(r, result(r), rows, n);
    r->dout[0] = normal(r, r->real, rows, n);
    r->out[1] = empty(r, result(r), rows, n); /* h again, from backward */
    r->num_out = 2;
    r->din[0] = empty(r, r->compute, rows, n);
    r->din[1] = empty(r, r->compute, rows, n);
}

static void swiglu_forward(kernel_rig *r)
{
    r->k->ops->swiglu(r->k, r->in[0], r->in[1], r->out[0]);
    for (int64_t i = 0; i < r->out[0].rows && has(r, CASE_GATED); i++)
        r->k->ops->scale(r->k, kernel_get(r->in[2], i, 0), tt_mat_rows(r->out[0], i, i + 1));
}

static void swiglu_backward(kernel_rig *r)
{
    tt_mat a = r->in[0], b = r->in[1];
    void *ds = r->din[2].data;
    if (has(r, CASE_ALIAS)) {
        copy_all(a, r->din[0]);
        copy_all(b, r->din[1]);
        a = r->din[0];
        b = r->din[1];
    }
    r->k->ops->swiglu_back(r->k, r->dout[0], a, b, r->in[2].data, ds, r->din[0], r->din[1], r->out[1]);
}

/* --- tokens ----------------------------------------------------------------------------------------------------- */

/* T, V, D */
static void embed_build(kernel_rig *r)
{
    int64_t T = r->c->size[0], V = r->c->size[1], D = r->c->size[2];
    r->in[0] = normal(r, r->compute, V, D);
    r->num_in = 1;
    r->out[0] = empty(r, r->real, T, D);
    r->dout[0] = normal(r, r->real, T, D);
    r->num_out = 1;
    r->din[0] = empty(r, r->real, V, D);
    r->base[0] = 1;
    r->ids = bytes((size_t)T, sizeof *r->ids);
    for (int64_t t = 0; t < T; t++) r->ids[t] = (int32_t)((t * t + t / 2) % V); /* some rows often, some never */
}

static void embed_forward(kernel_rig *r)
{
    r->k->ops->embed(r->k, r->ids, r->in[0], r->out[0]);
}

static void embed_backward(kernel_rig *r)
{
    r->k->ops->embed_back(r->k, r->ids, r->dout[0], -1, r->din[0]);
}

/* rows of x, rows of y, cols. A look-up and its gradient, the sum of rows. */
static void gather_build(kernel_rig *r)
{
    int64_t from = r->c->size[0], to = r->c->size[1], n = r->c->size[2], items = 0;
    r->in[0] = normal(r, r->compute, from, n);
    r->num_in = 1;
    r->out[0] = empty(r, result(r), to, n);
    r->dout[0] = normal(r, r->real, to, n);
    r->num_out = 1;
    r->din[0] = empty(r, r->real, from, n);
    r->base[0] = has(r, CASE_ACCUMULATE) ? 1 : 0;
    /* ids: the index of each row of y, then for each row of x the rows of y that read it, ascending. */
    r->ids = bytes((size_t)(2 * to), sizeof *r->ids);
    r->offset = bytes((size_t)from + 1, sizeof *r->offset);
    for (int64_t i = 0; i < to; i++) r->ids[i] = (int32_t)((5 * i * i + 3) % from);
    for (int64_t row = 0; row < from; row++) {
        for (int64_t i = 0; i < to; i++)
            if (r->ids[i] == row) r->ids[to + items++] = (int32_t)i;
        r->offset[row + 1] = items;
    }
}

static void gather_forward(kernel_rig *r)
{
    r->k->ops->gather_rows(r->k, r->in[0], r->ids, r->out[0]);
}

static void gather_backward(kernel_rig *r)
{
    r->k->ops->sum_rows(r->k, r->dout[0], r->offset, r->ids + r->c->size[1], NULL, has(r, CASE_ACCUMULATE),
                        r->din[0]);
}

/* tokens, K, cols: the combine, a weighted sum of K rows for each token but the second. Its gradient is a
 * look-up, each row weighted. */
static void combine_build(kernel_rig *r)
{
    int64_t T = r->c->size[0], K = r->c->size[1], n = r->c->size[2], P = (T - 1) * K;
    r->in[0] = normal(r, r->compute, P, n);
    r->in[1] = kernel_rig_fill(r, kernel_rig_mat(r, r->real, P, 1, false), 0.4, 0.2);
    r->num_in = 2;
    r->out[0] = empty(r, result(r), T, n);
    r->dout[0] = normal(r, r->real, T, n);
    r->num_out = 1;
    r->din[0] = empty(r, r->real, P, n);
    r->ids = bytes((size_t)(2 * P), sizeof *r->ids);
    r->offset = bytes((size_t)T + 1, sizeof *r->offset);
    for (int64_t t = 0; t < T; t++) r->offset[t + 1] = r->offset[t] + (t == 1 ? 0 : K);
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = r->offset[t]; i < r->offset[t + 1]; i++) {
            r->ids[i] = (int32_t)(P - 1 - i);
            r->ids[P + r->ids[i]] = (int32_t)t;
        }
}

static void combine_forward(kernel_rig *r)
{
    bool accumulate = has(r, CASE_ACCUMULATE);
    if (accumulate) kernel_set_all(r->out[0], 1);
    r->k->ops->sum_rows(r->k, r->in[0], r->offset, r->ids, r->in[1].data, accumulate, r->out[0]);
}

static void combine_backward(kernel_rig *r)
{
    r->k->ops->gather_rows(r->k, r->dout[0], r->ids + r->in[0].rows, r->din[0]);
    for (int64_t i = 0; i < r->din[0].rows; i++)
        r->k->ops->scale(r->k, kernel_get(r->in[1], i, 0), tt_mat_rows(r->din[0], i, i + 1));
}

/* --- router: T, E, K, groups, kept ------------------------------------------------------------------------------ */

static tt_route_shape route_shape(const kernel_rig *r)
{
    const int64_t *n = r->c->size;
    return (tt_route_shape){n[1], n[2], has(r, CASE_NORMALISE), n[3] ? n[3] : 1, n[4] ? n[4] : 1, 1.7};
}

static void logits_build(kernel_rig *r)
{
    int64_t T = r->c->size[0], D = r->c->size[1], E = r->c->size[2];
    r->in[0] = normal(r, r->real, T, D);
    r->in[1] = normal(r, r->real, E, D);
    r->num_in = 2;
    r->out[0] = empty(r, r->real, T, E);
    r->num_out = 1;
}

static void logits_forward(kernel_rig *r)
{
    r->k->ops->router_logits(r->k, r->in[0], r->in[1], r->out[0]);
}

static void route_build(kernel_rig *r)
{
    int64_t T = r->c->size[0], E = r->c->size[1], K = r->c->size[2];
    r->in[0] = normal(r, r->real, T, E);
    r->num_in = 1;
    r->out[0] = empty(r, r->real, T, K);
    r->dout[0] = normal(r, r->real, T, K);
    r->out[1] = empty(r, r->real, T, E);
    r->num_out = 2;
    r->din[0] = empty(r, r->real, T, E);
    r->ids = bytes((size_t)(T * K), sizeof *r->ids);
    r->extra[0] = has(r, CASE_BIAS) ? kernel_rig_fill(r, empty(r, r->real, 1, E), 0, 0.3) : (tt_mat){0};
}

static void softmax_forward(kernel_rig *r)
{
    tt_route_shape s = route_shape(r);
    r->k->ops->route_softmax(r->k, &s, r->in[0], r->replay, r->ids, r->out[0], r->out[1]);
    r->replay = true;
}

static void softmax_backward(kernel_rig *r)
{
    tt_route_shape s = route_shape(r);
    r->k->ops->route_softmax_back(r->k, &s, r->dout[0], r->ids, r->out[0], r->out[1], r->din[0]);
}

static void sigmoid_forward(kernel_rig *r)
{
    tt_route_shape s = route_shape(r);
    r->k->ops->route_sigmoid(r->k, &s, r->in[0], r->extra[0], r->replay, r->ids, r->out[0], r->out[1]);
    r->replay = true;
}

static void sigmoid_backward(kernel_rig *r)
{
    tt_route_shape s = route_shape(r);
    r->k->ops->route_sigmoid_back(r->k, &s, r->dout[0], r->ids, r->out[0], r->out[1], r->din[0]);
}

/* The balance loss c sum_t sum_e f_e p[t,e]; out[1]: counts and sums. */
static void balance_build(kernel_rig *r)
{
    int64_t T = r->c->size[0], E = r->c->size[1];
    route_build(r);
    r->out[1] = r->out[0]; /* gates, without a gradient here */
    r->dout[1] = (tt_mat){0};
    r->out[0] = empty(r, r->real, T, E);
    r->dout[0] = empty(r, TT_F64, T, E);
    r->out[2] = kernel_rig_mat(r, TT_F64, 2, E, true);
    r->num_out = 3;
    r->base[0] = 1;
    r->factors = bytes((size_t)E, sizeof *r->factors);
    for (int64_t e = 0; e < E; e++) {
        r->factors[e] = 0.1 * (double)(e * e % 7);
        for (int64_t t = 0; t < T; t++) kernel_set(r->dout[0], t, e, 0.9 * r->factors[e]);
    }
}

static void balance_forward(kernel_rig *r)
{
    tt_route_shape s = route_shape(r);
    r->k->ops->route_softmax(r->k, &s, r->in[0], r->replay, r->ids, r->out[1], r->out[0]);
    r->replay = true;
    kernel_set_all(r->out[2], 0);
    r->k->ops->route_stats(r->k, r->ids, s.chosen, r->out[0], r->out[2].data, tt_mat_row(r->out[2], 1));
}

static void balance_backward(kernel_rig *r)
{
    r->k->ops->balance_back(r->k, r->out[0], r->factors, 0.9, r->din[0]);
}

/* --- attention: T, heads, kv heads, qk, v, window, documents ----------------------------------------------------- */

static tt_attention_shape attention_shape(const kernel_rig *r)
{
    const int64_t *n = r->c->size;
    return (tt_attention_shape){n[1], n[2], n[3], n[4], 0.4, n[5]};
}

/* Lengths of documents, up to one that takes the rest. */
static const int64_t *document_lengths(int64_t kind)
{
    static const int64_t mixed[] = {1, 0, 5, -1}, one[] = {-1}, blocks[] = {127, 1, 128, 129, 0, 64, -1}, tiny[] = {1, 2, 1, 3, 1, 1, 13, 1, 14, 15, -1};
    const int64_t *const kinds[] = {mixed, one, blocks, tiny};
    return kinds[kind];
}

static void attention_build(kernel_rig *r)
{
    tt_attention_shape s = attention_shape(r);
    int64_t T = r->c->size[0];
    const int64_t *length = document_lengths(r->c->size[6]);
    int64_t num = 0, *offset = bytes(16, sizeof *offset);
    int32_t *column = bytes((size_t)T, sizeof *column);
    for (bool more = true; more; num++) {
        more = length[num] >= 0;
        offset[num + 1] = more ? tt_min_i64(offset[num] + length[num], T) : T;
    }
    r->docs = (tt_docs){num, offset, column};
    /* Columns with holes: every third place of the row belongs to something else. */
    for (int64_t d = 0; d < num; d++)
        for (int64_t t = offset[d]; t < offset[d + 1]; t++) column[t] = (int32_t)(2 + t + (t - offset[d]) / 2);
    r->in[0] = normal(r, r->compute, T, s.heads * s.qk_dim);
    r->in[1] = normal(r, r->compute, T, s.kv_heads * s.qk_dim);
    r->in[2] = normal(r, r->compute, T, s.kv_heads * s.v_dim);
    r->num_in = 3;
    r->out[0] = empty(r, result(r), T, s.heads * s.v_dim);
    r->dout[0] = normal(r, r->compute, T, s.heads * s.v_dim);
    r->out[1] = empty(r, r->real, T, s.heads);
    r->num_out = 2;
    for (int i = 0; i < 3; i++) r->din[i] = empty(r, result(r), T, r->in[i].cols);
}

static void attention_forward(kernel_rig *r)
{
    tt_attention_shape s = attention_shape(r);
    assert_ok(r->k->ops->attention(r->k, &s, &r->docs, r->in[0], r->in[1], r->in[2], r->out[0], r->out[1]));
}

static void attention_backward(kernel_rig *r)
{
    tt_attention_shape s = attention_shape(r);
    assert_ok(r->k->ops->attention_back(r->k, &s, &r->docs, r->dout[0], r->in[0], r->in[1], r->in[2], r->out[0],
                                        r->out[1], r->din[0], r->din[1], r->din[2]));
}

/* --- cross entropy: M, V ---------------------------------------------------------------------------------------- */

static const double loss_scale = 0.37;

static void loss_build(kernel_rig *r)
{
    int64_t M = r->c->size[0], V = r->c->size[1];
    r->in[0] = kernel_rig_fill(r, empty(r, r->real, M, V), 0, 2);
    r->num_in = 1;
    r->out[0] = kernel_rig_mat(r, TT_F64, 1, 1, false);
    r->dout[0] = kernel_rig_mat(r, TT_F64, 1, 1, false);
    kernel_set(r->dout[0], 0, 0, loss_scale);
    r->out[1] = kernel_rig_mat(r, TT_F64, 1, 3, false);
    r->num_out = 2;
    r->din[0] = empty(r, has(r, CASE_ALIAS) ? r->real : result(r), M, V);
    r->ids = bytes((size_t)M, sizeof *r->ids);
    for (int64_t i = 0; i < M; i++) r->ids[i] = (int32_t)(i % 4 == 2 ? -100 : i * 37 % V);
}

static void loss_run(kernel_rig *r, tt_mat logits, tt_mat dlogits)
{
    tt_loss_sums sums = {0};
    r->k->ops->cross_entropy(r->k, logits, r->ids, loss_scale, dlogits, &sums);
    kernel_set(r->out[0], 0, 0, sums.nll);
    kernel_set(r->out[1], 0, 0, sums.entropy);
    kernel_set(r->out[1], 0, 1, (double)sums.targets);
    kernel_set(r->out[1], 0, 2, (double)sums.correct);
}

static void loss_forward(kernel_rig *r)
{
    loss_run(r, r->in[0], (tt_mat){0});
}

static void loss_backward(kernel_rig *r)
{
    if (has(r, CASE_ALIAS)) copy_all(r->in[0], r->din[0]);
    loss_run(r, has(r, CASE_ALIAS) ? r->din[0] : r->in[0], r->din[0]);
}

/* --- optimizer: elements ---------------------------------------------------------------------------------------- */

static void update_build(kernel_rig *r)
{
    int64_t n = r->c->size[0];
    tt_dtype type = has(r, CASE_BF16) ? TT_BF16 : r->real;
    r->in[0] = normal(r, r->real, 1, n);                         /* g */
    r->in[1] = normal(r, type, 1, n);                            /* p */
    r->in[2] = kernel_rig_fill(r, empty(r, type, 1, n), 0, 0.5); /* m */
    r->in[3] = kernel_rig_fill(r, empty(r, type, 1, n), 1, 0.1); /* v */
    r->num_in = 4;
    for (int i = 0; i < 4; i++) r->out[i] = empty(r, type, 1, n);
    r->out[4] = kernel_rig_mat(r, TT_F64, 1, 1, false);
    r->num_out = 5;
}

static void update_forward(kernel_rig *r)
{
    tt_adamw a = {0.01, 0.9, 0.99, 1e-8, 0.1, 0.8, 3, 99, 5};
    for (int i = 1; i < 4; i++) copy_all(r->in[i], r->out[i - 1]);
    copy_all(r->in[1], r->out[3]);
    r->k->ops->adamw(r->k, &a, r->out[0], r->in[0], r->out[1], r->out[2]);
    r->k->ops->sgd(r->k, &a, r->out[3], r->in[0]);
    kernel_set(r->out[4], 0, 0, r->k->ops->sum_squares(r->k, r->in[0]));
}

/* --- the list --------------------------------------------------------------------------------------------------- */

#define LINEAR    linear_build, linear_forward, linear_backward
#define GROUPED   grouped_build, grouped_forward, grouped_backward
#define RMSNORM   rmsnorm_build, rmsnorm_forward, rmsnorm_backward
#define ROPE      rope_build, rope_forward, rope_backward
#define CLAMP     clamp_build, clamp_forward, clamp_backward
#define SWIGLU    swiglu_build, swiglu_forward, swiglu_backward
#define EMBED     embed_build, embed_forward, embed_backward
#define GATHER    gather_build, gather_forward, gather_backward
#define COMBINE   combine_build, combine_forward, combine_backward
#define SOFTMAX   route_build, softmax_forward, softmax_backward
#define SIGMOID   route_build, sigmoid_forward, sigmoid_backward
#define BALANCE   balance_build, balance_forward, balance_backward
#define ATTENTION attention_build, attention_forward, attention_backward
#define LOSS      loss_build, loss_forward, loss_backward

/* Sizes lie around the pieces and tiles that backends work in: 16 and 64 in products, 256 in rows. */
const kernel_case kernel_cases[] = {
    {"linear, small", LINEAR, {3, 5, 4}, 0, 8},
    {"linear, bias", LINEAR, {5, 7, 6}, CASE_BIAS, 8},
    {"linear, one row", LINEAR, {1, 64, 64}, CASE_BIAS, 64},
    {"linear, over the edge of a tile", LINEAR, {17, 65, 66}, CASE_BIAS, 66},
    {"linear, accumulate", LINEAR, {16, 128, 63}, CASE_BIAS | CASE_ACCUMULATE, 128},
    {"linear, no rows", LINEAR, {0, 5, 4}, CASE_BIAS, 1},
    {"linear, deep", LINEAR, {35, 300, 20}, 0, 300},
    {"grouped, empty groups", GROUPED, {11, 6, 5, 5}, 0, 12},
    {"grouped, accumulate", GROUPED, {70, 40, 66, 4}, CASE_ACCUMULATE, 70},
    {"grouped, one group", GROUPED, {9, 20, 7, 1}, 0, 20},
    {"grouped, no rows", GROUPED, {0, 6, 5, 3}, 0, 1},
    {"elementwise", elementwise_build, elementwise_forward, NULL, {3, 259}, 0, 2},
    {"elementwise, no rows", elementwise_build, elementwise_forward, NULL, {0, 5}, 0, 1},
    {"rmsnorm", RMSNORM, {4, 9, 0}, 0, 16},
    {"rmsnorm, wide", RMSNORM, {3, 600, 0}, CASE_ALIAS, 600},
    {"rmsnorm, accumulate", RMSNORM, {5, 256, 0}, CASE_ACCUMULATE, 256},
    {"rmsnorm, per head", RMSNORM, {6, 8, 3}, 0, 18},
    {"rmsnorm, no rows", RMSNORM, {0, 8, 0}, 0, 1},
    {"rope", ROPE, {7, 2, 8, 8}, 0, 2},
    {"rope, partial", ROPE, {7, 3, 10, 4}, 0, 2},
    {"rope, interleaved", ROPE, {7, 2, 8, 8}, CASE_INTERLEAVED, 2},
    {"rope, interleaved and partial", ROPE, {7, 3, 7, 6}, CASE_INTERLEAVED, 2},
    {"rope, wide", ROPE, {2, 1, 600, 530}, 0, 2},
    {"rope, interleaved and wide", ROPE, {2, 1, 600, 530}, CASE_INTERLEAVED, 2},
    {"rope, no rows", ROPE, {0, 2, 8, 8}, 0, 1},
    {"clamp", CLAMP, {5, 300}, 0, 1},
    {"clamp, in place", CLAMP, {5, 13}, CASE_ALIAS, 1},
    {"clamp, no rows", CLAMP, {0, 13}, 0, 1},
    {"swiglu", SWIGLU, {4, 7}, 0, 8},
    {"swiglu, gated", SWIGLU, {4, 300}, CASE_GATED, 300},
    {"swiglu, gated and in place", SWIGLU, {4, 7}, CASE_GATED | CASE_ALIAS, 8},
    {"swiglu, no rows", SWIGLU, {0, 7}, CASE_GATED, 1},
    {"embed", EMBED, {12, 7, 9}, 0, 6},
    {"embed, no rows", EMBED, {0, 7, 9}, 0, 1},
    {"gather and sum of rows", GATHER, {5, 9, 11}, 0, 6},
    {"gather and sum of rows, accumulate", GATHER, {5, 9, 300}, CASE_ACCUMULATE, 6},
    {"gather and sum of rows, no rows", GATHER, {5, 0, 3}, 0, 1},
    {"combine", COMBINE, {6, 3, 10}, 0, 4},
    {"combine, accumulate", COMBINE, {6, 3, 10}, CASE_ACCUMULATE, 4},
    {"router logits", logits_build, logits_forward, NULL, {19, 70, 9}, 0, 70},
    {"router softmax", SOFTMAX, {6, 8, 3}, 0, 8},
    {"router softmax, normalised", SOFTMAX, {6, 8, 3}, CASE_NORMALISE, 8},
    {"router softmax, all chosen", SOFTMAX, {4, 5, 5}, CASE_NORMALISE, 8},
    {"router softmax, many", SOFTMAX, {3, 130, 8}, 0, 130},
    {"router softmax, no rows", SOFTMAX, {0, 8, 3}, 0, 1},
    {"router sigmoid", SIGMOID, {6, 8, 3}, 0, 8},
    {"router sigmoid, normalised, bias", SIGMOID, {6, 8, 3}, CASE_NORMALISE | CASE_BIAS, 8},
    {"router sigmoid, groups", SIGMOID, {6, 8, 3, 4, 2}, CASE_NORMALISE | CASE_BIAS, 8},
    {"router sigmoid, all chosen", SIGMOID, {4, 6, 6}, CASE_NORMALISE, 8},
    {"router sigmoid, no rows", SIGMOID, {0, 8, 3, 4, 2}, CASE_BIAS, 1},
    {"balance loss, no rows", BALANCE, {0, 6, 2}, 0, 1},
    {"balance loss", BALANCE, {9, 6, 2}, 0, 9},
    {"attention", ATTENTION, {11, 2, 2, 4, 4, 0}, 0, 40},
    {"attention, grouped queries", ATTENTION, {13, 6, 2, 5, 3, 0}, 0, 60},
    {"attention, window", ATTENTION, {19, 2, 1, 4, 6, 5}, 0, 40},
    {"attention, window of one", ATTENTION, {9, 2, 1, 4, 4, 1}, 0, 20},
    {"attention, longer", ATTENTION, {90, 4, 2, 16, 24, 0}, 0, 400},
    {"attention, no tokens", ATTENTION, {0, 2, 1, 4, 4, 0}, 0, 1},
    {"cross entropy", LOSS, {7, 9}, 0, 16},
    {"cross entropy, in place", LOSS, {5, 700}, CASE_ALIAS, 700},
    {"cross entropy, no rows", LOSS, {0, 9}, 0, 1},
    {"update", update_build, update_forward, NULL, {700}, 0, 700},
    {"update, no elements", update_build, update_forward, NULL, {0}, 0, 1},
    {"update, bf16", update_build, update_forward, NULL, {700}, CASE_BF16, 700},
};
const int num_kernel_cases = sizeof kernel_cases / sizeof *kernel_cases;

kernel_case kernel_case_of(const kernel_resized *more, int i)
{
    if (i < num_kernel_cases) return kernel_cases[i];
    const kernel_resized *other = &more[i - num_kernel_cases];
    const kernel_case *c = kernel_cases;
    while (strcmp(c->name, other->like) != 0) c++;
    kernel_case made = *c;
    memcpy(made.size, other->size, sizeof made.size);
    made.terms = other->terms;
    return made;
}
