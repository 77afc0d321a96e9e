/* Forward passes of the reference operations against the formulas written out a second time, in the plainest
 * way, and against values worked out by hand. Finite differences alone would accept a wrong forward with a
 * matching backward. */
#include "support/test.h"
#include "support/kernel_cases.h"

#include <math.h>
#include <string.h>

static kernel_rig *rig_named(const char *name, const tt_ops *ops)
{
    for (int c = 0; c < num_kernel_cases; c++)
        if (strcmp(kernel_cases[c].name, name) == 0)
            return kernel_rig_create(&kernel_cases[c], ops, ops->real, 1);
    fail_msg("no case is named %s", name);
    return NULL;
}

/* A rig without a case, for values by hand. */
static kernel_rig *rig_empty(const tt_ops *ops)
{
    static const kernel_case none = {.name = "by hand"};
    return kernel_rig_create(&none, ops, ops->real, 1);
}

static tt_mat mat_of(kernel_rig *r, int64_t rows, int64_t cols, const double *values)
{
    tt_mat m = kernel_rig_mat(r, r->real, rows, cols, false);
    for (int64_t i = 0; i < rows * cols && values; i++) kernel_set(m, i / cols, i % cols, values[i]);
    return m;
}

/* In double every formula below is a sum of at most 400 terms around 1: 1e-13 is 400 eps and more. */
static const double exact = 1e-13;

static void products_are_sums(void **state)
{
    (void)state;
    kernel_rig *r = rig_named("linear, over the edge of a tile", &tt_ops_ref_f64);
    kernel_rig_forward(r);
    for (int64_t t = 0; t < r->out[0].rows; t++)
        for (int64_t n = 0; n < r->out[0].cols; n++) {
            double y = kernel_get(r->in[2], 0, n);
            for (int64_t k = 0; k < r->in[0].cols; k++)
                y += kernel_get(r->in[0], t, k) * kernel_get(r->in[1], n, k);
            assert_close(kernel_get(r->out[0], t, n), y, exact);
        }
    kernel_rig_destroy(&r);

    r = rig_named("linear, accumulate", &tt_ops_ref_f64);
    kernel_rig_forward(r);
    for (int64_t t = 0; t < r->out[0].rows; t++) {
        double y = kernel_get(r->in[2], 0, 3) + 1;
        for (int64_t k = 0; k < r->in[0].cols; k++)
            y += kernel_get(r->in[0], t, k) * kernel_get(r->in[1], 3, k);
        assert_close(kernel_get(r->out[0], t, 3), y, exact);
    }
    kernel_rig_destroy(&r);

    r = rig_named("grouped, empty groups", &tt_ops_ref_f64);
    kernel_rig_forward(r);
    int64_t N = r->out[0].cols, empty = 0;
    for (int64_t g = 0; g < r->c->size[3]; g++) {
        empty += r->offset[g] == r->offset[g + 1];
        for (int64_t p = r->offset[g]; p < r->offset[g + 1]; p++)
            for (int64_t n = 0; n < N; n++) {
                double y = 0;
                for (int64_t k = 0; k < r->in[0].cols; k++)
                    y += kernel_get(r->in[0], p, k) * kernel_get(r->in[1], g * N + n, k);
                assert_close(kernel_get(r->out[0], p, n), y, exact);
            }
    }
    assert_true(empty > 0 && r->offset[r->c->size[3]] == r->in[0].rows);
    kernel_rig_destroy(&r);
}

static void groups_without_rows(void **state)
{
    (void)state;
    kernel_rig *r = rig_empty(&tt_ops_ref);
    tt_mat dw[2] = {mat_of(r, 1, 2, (double[]){-0.0, 7}), mat_of(r, 1, 2, (double[]){1, 2})};
    tt_mat x = mat_of(r, 1, 2, (double[]){3, 4}), dy = mat_of(r, 1, 1, (double[]){10});
    assert_ok(tt_ops_ref.grouped_dw(r->k, dy, x, 2, (int64_t[]){0, 0, 1}, true, dw));
    assert_true(signbit(kernel_get(dw[0], 0, 0)));
    assert_close(kernel_get(dw[0], 0, 1), 7, 0);
    assert_close(kernel_get(dw[1], 0, 0), 31, 0);
    assert_close(kernel_get(dw[1], 0, 1), 42, 0);
    /* No rows at all: not even -0 becomes 0. */
    assert_ok(tt_ops_ref.linear_dw(r->k, tt_mat_rows(dy, 0, 0), tt_mat_rows(x, 0, 0), true, dw[0]));
    assert_true(signbit(kernel_get(dw[0], 0, 0)));
    /* Nothing to add to: groups without rows are 0. */
    assert_ok(tt_ops_ref.grouped_dw(r->k, dy, x, 2, (int64_t[]){0, 0, 1}, false, dw));
    for (int g = 0; g < 2; g++)
        for (int j = 0; j < 2; j++) assert_close(kernel_get(dw[g], 0, j), g * (j + 3) * 10, 0);
    kernel_rig_destroy(&r);
}

static void elementwise_values(void **state)
{
    (void)state;
    kernel_rig *r = rig_named("elementwise", &tt_ops_ref);
    kernel_rig_forward(r);
    for (int64_t i = 0; i < r->in[0].rows; i++)
        for (int64_t j = 0; j < r->in[0].cols; j++) {
            double a = kernel_get(r->in[0], i, j), b = kernel_get(r->in[1], i, j);
            assert_close(kernel_get(r->out[0], i, j), a, 0);
            assert_close(kernel_get(r->out[1], i, j), (double)(float)(a + b), 0);
            assert_close(kernel_get(r->out[2], i, j), (double)(float)(0.3 * b), 0);
            assert_close(kernel_get(r->out[3], i, j), 0, 0);
        }
    kernel_rig_destroy(&r);
}

/* Every pair of element types, with one rounding:
 * 1 + 2^-9 lies halfway between bf16 neighbours, the even one wins. */
static void elements_of_every_type(void **state)
{
    (void)state;
    const tt_dtype types[] = {TT_F64, TT_F32, TT_F16, TT_BF16};
    const double held[] = {0x1p-52, 0x1p-23, 0x1p-10, 0x1p-7};
    kernel_rig *r = rig_empty(&tt_ops_ref);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++) {
            int coarse = from > to ? from : to;
            tt_mat x = kernel_rig_mat(r, types[from], 2, 5, true),
                   y = kernel_rig_mat(r, types[to], 2, 5, true);
            kernel_set_all(x, 1 + held[coarse]);
            tt_ops_ref.copy(r->k, x, y);
            assert_close(kernel_get(y, 1, 4), 1 + held[coarse], 0);
        }
    tt_mat x = mat_of(r, 1, 2, (double[]){1 + 0x1p-8, 1 + 0x3p-8}),
           y = kernel_rig_mat(r, TT_BF16, 1, 2, true);
    tt_ops_ref.copy(r->k, x, y);
    assert_close(kernel_get(y, 0, 0), 1, 0);
    assert_close(kernel_get(y, 0, 1), 1 + 0x1p-6, 0);
    kernel_rig_check_guards(r);
    kernel_rig_destroy(&r);
}

static void rmsnorm_values(void **state)
{
    (void)state;
    kernel_rig *r = rig_named("rmsnorm, wide", &tt_ops_ref_f64);
    kernel_rig_forward(r);
    for (int64_t i = 0; i < r->in[0].rows; i++) {
        double mean = 0;
        int64_t n = r->in[0].cols;
        for (int64_t j = 0; j < n; j++) mean += pow(kernel_get(r->in[0], i, j), 2) / (double)n;
        assert_close(kernel_get(r->out[1], i, 0), 1 / sqrt(mean + 1e-2), exact);
        for (int64_t j = 0; j < n; j++)
            assert_close(kernel_get(r->out[0], i, j),
                         kernel_get(r->in[1], 0, j) * kernel_get(r->in[0], i, j) / sqrt(mean + 1e-2), exact);
    }
    kernel_rig_destroy(&r);
}

/* Angles in float as the common library forms them; at these positions the
 * rounding moves an angle by some thousandths. */
static void rope_angles_are_rounded_to_float(void **state)
{
    (void)state;
    const struct {
        double theta;
        int64_t rotary;
        int32_t position;
        int64_t pair;
        float angle;
    } known[] = {{10000, 128, 100000, 0, 0x1.86a0000000000p+16f},
                 {10000, 128, 100000, 5, 0x1.7c71820000000p+15f},
                 {1e+06, 64, 40959, 3, 0x1.5e825a0000000p+13f},
                 {1e+06, 128, 131071, 1, 0x1.9c968c0000000p+16f}};
    kernel_rig *r = rig_empty(&tt_ops_ref), *wide = rig_empty(&tt_ops_ref_f64);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int64_t half = known[i].rotary / 2, j = known[i].pair;
        tt_mat c = kernel_rig_mat(r, TT_F32, 1, half, true), s = kernel_rig_mat(r, TT_F32, 1, half, true);
        tt_ops_ref.rope_table(r->k, &known[i].position, 1, known[i].rotary, known[i].theta, c, s);
        assert_close(kernel_get(c, 0, j), (double)(float)cos((double)known[i].angle), 0);
        assert_close(kernel_get(s, 0, j), (double)(float)sin((double)known[i].angle), 0);
        tt_mat c2 = kernel_rig_mat(wide, TT_F64, 1, half, true),
               s2 = kernel_rig_mat(wide, TT_F64, 1, half, true);
        tt_ops_ref_f64.rope_table(wide->k, &known[i].position, 1, known[i].rotary, known[i].theta, c2, s2);
        double angle = known[i].position / pow(known[i].theta, 2 * (double)j / (double)known[i].rotary);
        /* position * eps rounding of the angle itself */
        assert_close(kernel_get(c2, 0, j), cos(angle), 1e-10);
        assert_close(kernel_get(s2, 0, j), sin(angle), 1e-10);
    }
    kernel_rig_destroy(&r);
    kernel_rig_destroy(&wide);
}

static void rope_values(void **state)
{
    (void)state;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        kernel_rig *r =
            rig_named(interleaved ? "rope, interleaved and partial" : "rope, partial", &tt_ops_ref_f64);
        kernel_rig_forward(r);
        int64_t heads = r->c->size[1], width = r->c->size[2], rotary = r->c->size[3];
        for (int64_t t = 0; t < r->in[0].rows; t++)
            for (int64_t h = 0; h < heads; h++) {
                for (int64_t j = 0; j < rotary / 2; j++) {
                    int64_t u = h * width + (interleaved ? 2 * j : j);
                    int64_t v = interleaved ? u + 1 : u + rotary / 2;
                    double a = r->ids[t] * pow(100, -2 * (double)j / (double)rotary);
                    double x = kernel_get(r->in[0], t, u), y = kernel_get(r->in[0], t, v);
                    assert_close(kernel_get(r->out[0], t, u), x * cos(a) - y * sin(a), exact);
                    assert_close(kernel_get(r->out[0], t, v), x * sin(a) + y * cos(a), exact);
                }
                for (int64_t j = rotary; j < width; j++)
                    assert_close(kernel_get(r->out[0], t, h * width + j),
                                 kernel_get(r->in[0], t, h * width + j), 0);
            }
        kernel_rig_destroy(&r);
    }
}

static void activation_values(void **state)
{
    (void)state;
    kernel_rig *r = rig_named("swiglu, gated", &tt_ops_ref_f64);
    kernel_rig_forward(r);
    kernel_rig_backward(r);
    for (int64_t i = 0; i < r->in[0].rows; i++)
        for (int64_t j = 0; j < r->in[0].cols; j++) {
            double a = kernel_get(r->in[0], i, j), b = kernel_get(r->in[1], i, j),
                   s = kernel_get(r->in[2], i, 0);
            assert_close(kernel_get(r->out[0], i, j), s * b * a / (1 + exp(-a)), exact);
            assert_close(kernel_get(r->out[1], i, j), kernel_get(r->out[0], i, j), exact); /* h of backward */
        }
    tt_mat x = mat_of(r, 1, 6, (double[]){-3, -0.5, 0, 0.5, 3, NAN}), dy = mat_of(r, 1, 6, NULL);
    r->k->ops->clamp(r->k, x, 0.5, x);
    const double expected[] = {-0.5, -0.5, 0, 0.5, 0.5};
    for (int j = 0; j < 5; j++) assert_close(kernel_get(x, 0, j), expected[j], 0);
    assert_true(isnan(kernel_get(x, 0, 5)));
    /* At the border itself the gradient passes. */
    kernel_set_all(dy, 2);
    r->k->ops->clamp_back(r->k, dy, mat_of(r, 1, 6, (double[]){-3, -0.5, 0, 0.5, 3, 0}), 0.5, dy);
    const double passed[] = {0, 2, 2, 2, 0, 2};
    for (int j = 0; j < 6; j++) assert_close(kernel_get(dy, 0, j), passed[j], 0);
    /* Far out: no overflow of exp may reach the result. */
    tt_mat a = mat_of(r, 1, 2, (double[]){-1e4, 1e4}), b = mat_of(r, 1, 2, (double[]){1, 1}),
           h = mat_of(r, 1, 2, NULL);
    r->k->ops->swiglu(r->k, a, b, h);
    assert_close(kernel_get(h, 0, 0), 0, 0);
    assert_close(kernel_get(h, 0, 1), 1e4, 0);
    kernel_rig_destroy(&r);
}

static void token_values(void **state)
{
    (void)state;
    kernel_rig *r = rig_empty(&tt_ops_ref);
    tt_mat table = mat_of(r, 3, 2, (double[]){1, 2, 3, 4, 5, 6}), x = mat_of(r, 4, 2, NULL);
    const int32_t ids[] = {2, 0, 2, 1};
    tt_ops_ref.embed(r->k, ids, table, x);
    for (int t = 0; t < 4; t++) assert_close(kernel_get(x, t, 1), 2 + 2 * ids[t], 0);
    tt_mat d = mat_of(r, 3, 2, (double[]){1, 1, 1, 1, 1, 1});
    tt_ops_ref.embed_back(r->k, ids, x, 0, d);
    assert_close(kernel_get(d, 0, 0), 1, 0);
    assert_close(kernel_get(d, 1, 0), 4, 0);
    assert_close(kernel_get(d, 2, 0), 11, 0);
    tt_ops_ref.embed_back(r->k, ids, x, -1, d);
    assert_close(kernel_get(d, 0, 0), 2, 0);

    /* Row 0 sums two items, row 1 none, row 2 one item. */
    const int64_t begin[] = {0, 2, 2, 3};
    const int32_t item[] = {3, 0, 1};
    const float weight[] = {10, 100, 1000, 1};
    tt_mat y = mat_of(r, 3, 2, NULL);
    tt_ops_ref.sum_rows(r->k, x, begin, item, weight, false, y);
    assert_close(kernel_get(y, 0, 0), 3 + 50, 0);
    assert_close(kernel_get(y, 1, 0), 0, 0);
    assert_close(kernel_get(y, 2, 1), 200, 0);
    tt_ops_ref.sum_rows(r->k, x, begin, item, NULL, true, y);
    assert_close(kernel_get(y, 0, 0), 53 + 8, 0);
    assert_close(kernel_get(y, 1, 0), 0, 0);
    assert_close(kernel_get(y, 2, 1), 202, 0);
    kernel_rig_destroy(&r);
}

/* Every pair (t, s) of the whole sequence, judged by the words of ops.h alone. */
static bool sees(const kernel_rig *r, int64_t window, int64_t t, int64_t s)
{
    for (int64_t d = 0; d < r->docs.num; d++)
        if (r->docs.offset[d] <= t && t < r->docs.offset[d + 1])
            return r->docs.offset[d] <= s && s <= t &&
                   (window == 0 || r->docs.column[t] - r->docs.column[s] < window);
    return false;
}

static void check_attention(const char *name)
{
    kernel_rig *r = rig_named(name, &tt_ops_ref_f64);
    const int64_t *n = r->c->size, T = n[0], heads = n[1], ratio = n[1] / n[2], qk = n[3], dim = n[4];
    kernel_rig_forward(r);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t t = 0; t < T; t++) {
            double o[64] = {0}, sum = 0;
            for (int64_t s = 0; s < T; s++) {
                double score = 0;
                if (!sees(r, n[5], t, s)) continue;
                for (int64_t j = 0; j < qk; j++)
                    score +=
                        kernel_get(r->in[0], t, h * qk + j) * kernel_get(r->in[1], s, h / ratio * qk + j);
                double p = exp(0.4 * score);
                sum += p;
                for (int64_t j = 0; j < dim; j++) o[j] += p * kernel_get(r->in[2], s, h / ratio * dim + j);
            }
            for (int64_t j = 0; j < dim; j++)
                assert_close(kernel_get(r->out[0], t, h * dim + j), o[j] / sum, exact);
            assert_close(kernel_get(r->out[1], t, h), log(sum), exact);
        }
    kernel_rig_destroy(&r);
}

static void attention_values(void **state)
{
    (void)state;
    check_attention("attention");
    check_attention("attention, grouped queries");
    check_attention("attention, window");
    check_attention("attention, window of one");
    check_attention("attention, longer");
}

static void softmax_router_by_hand(void **state)
{
    (void)state;
    kernel_rig *r = rig_empty(&tt_ops_ref_f64);
    /* exp gives 1, 4, 2, 1: probabilities 1/8, 1/2, 1/4, 1/8. */
    tt_mat z = mat_of(r, 1, 4, (double[]){0, log(4), log(2), 0}), p = mat_of(r, 1, 4, NULL),
           g = mat_of(r, 1, 3, NULL);
    int32_t ids[3];
    tt_route_shape s = {4, 3, false, 1, 1, 5};
    r->k->ops->route_softmax(r->k, &s, z, false, ids, g, p);
    const int32_t best[] = {1, 2, 0};
    assert_memory_equal(ids, best, sizeof best); /* 0 and 3 tie: the lower index */
    const double chance[] = {0.125, 0.5, 0.25, 0.125};
    for (int e = 0; e < 4; e++) assert_close(kernel_get(p, 0, e), chance[e], exact);
    for (int i = 0; i < 3; i++) assert_close(kernel_get(g, 0, i), chance[best[i]], exact);
    s.normalise = true;
    ids[0] = 3, ids[1] = 2, ids[2] = 0;
    r->k->ops->route_softmax(r->k, &s, z, true, ids, g, p);
    assert_int_equal(ids[0], 3);
    assert_close(kernel_get(g, 0, 0), 0.25, exact);
    assert_close(kernel_get(g, 0, 1), 0.5, exact);
    double counts[4] = {0, 0, 1, 0}, sums[4] = {1, 0, 0, 0};
    r->k->ops->route_stats(r->k, ids, 3, p, counts, sums);
    assert_close(counts[0], 1, 0);
    assert_close(counts[1], 0, 0);
    assert_close(counts[2], 2, 0);
    assert_close(sums[0], 1.125, exact);
    assert_close(sums[1], 0.5, exact);
    kernel_rig_destroy(&r);
}

static void sigmoid_router_by_hand(void **state)
{
    (void)state;
    kernel_rig *r = rig_empty(&tt_ops_ref_f64);
    /* Scores by expert; groups (0 1)(2 3)(4 5). */
    const double score[] = {0.9, 0.1, 0.6, 0.5, 0.8, 0.2};
    double logits[6];
    for (int e = 0; e < 6; e++) logits[e] = log(score[e] / (1 - score[e]));
    tt_mat z = mat_of(r, 1, 6, logits), p = mat_of(r, 1, 6, NULL), g = mat_of(r, 1, 2, NULL);
    tt_mat bias = mat_of(r, 1, 6, (double[]){0, 0, 0, 0.3, 0, 0});
    int32_t ids[2];
    tt_route_shape s = {6, 2, false, 1, 1, 2.5};
    r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, false, ids, g, p);
    assert_int_equal(ids[0], 0);
    assert_int_equal(ids[1], 4);
    assert_close(kernel_get(g, 0, 1), 2.5 * 0.8, exact);
    /* Groups count 1.0, 1.1, 1.0: the middle one is best, though it holds neither of the two best experts. */
    s.groups = 3, s.kept_groups = 1;
    r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, false, ids, g, p);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 3);
    /* The bias moves the choice to 3 before 2; the weight is that of the score without it. */
    s.normalise = true;
    r->k->ops->route_sigmoid(r->k, &s, z, bias, false, ids, g, p);
    assert_int_equal(ids[0], 3);
    assert_int_equal(ids[1], 2);
    assert_close(kernel_get(g, 0, 0), 2.5 * 0.5 / 1.1, exact);
    /* A large bias brings an expert in, with its group, and still does not count in its weight. */
    kernel_set(bias, 0, 5, 10);
    r->k->ops->route_sigmoid(r->k, &s, z, bias, false, ids, g, p);
    assert_int_equal(ids[0], 5);
    assert_int_equal(ids[1], 4);
    assert_close(kernel_get(g, 0, 0), 2.5 * 0.2 / 1.0, exact);
    kernel_rig_destroy(&r);
}

static void loss_values(void **state)
{
    (void)state;
    kernel_rig *r = rig_named("cross entropy", &tt_ops_ref_f64);
    kernel_rig_forward(r);
    double nll = 0, entropy = 0, correct = 0, rows = 0;
    for (int64_t i = 0; i < r->in[0].rows; i++) {
        double sum = 0;
        int64_t V = r->in[0].cols, best = 0;
        if (r->ids[i] < 0) continue;
        for (int64_t v = 0; v < V; v++) sum += exp(kernel_get(r->in[0], i, v));
        for (int64_t v = 0; v < V; v++) {
            double p = exp(kernel_get(r->in[0], i, v)) / sum;
            entropy -= p * log(p);
            if (kernel_get(r->in[0], i, v) > kernel_get(r->in[0], i, best)) best = v;
        }
        nll -= log(exp(kernel_get(r->in[0], i, r->ids[i])) / sum);
        correct += best == r->ids[i];
        rows++;
    }
    assert_close(kernel_get(r->out[0], 0, 0), nll, exact);
    assert_close(kernel_get(r->out[1], 0, 0), entropy, exact);
    assert_close(kernel_get(r->out[1], 0, 1), rows, 0);
    assert_close(kernel_get(r->out[1], 0, 2), correct, 0);
    kernel_rig_destroy(&r);
}

static void kernels_open_and_close(void **state)
{
    (void)state;
    tt_kernel *k = NULL;
    tt_kernel_destroy(&k);
    assert_ok(tt_kernel_create(&tt_ops_alt, 3, &k));
    assert_int_equal(k->threads, 3);
    assert_ptr_equal(k->ops, &tt_ops_alt);
    assert_string_equal(k->ops->name, "alt");
    tt_kernel_destroy(&k);
    assert_null(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_open_and_close),
        cmocka_unit_test(products_are_sums),
        cmocka_unit_test(groups_without_rows),
        cmocka_unit_test(elementwise_values),
        cmocka_unit_test(elements_of_every_type),
        cmocka_unit_test(rmsnorm_values),
        cmocka_unit_test(rope_values),
        cmocka_unit_test(rope_angles_are_rounded_to_float),
        cmocka_unit_test(activation_values),
        cmocka_unit_test(token_values),
        cmocka_unit_test(attention_values),
        cmocka_unit_test(softmax_router_by_hand),
        cmocka_unit_test(sigmoid_router_by_hand),
        cmocka_unit_test(loss_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
