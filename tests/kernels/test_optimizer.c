/* The update rules of the reference: three steps of AdamW by hand, what cutting a shard changes (nothing),
 * and bf16 parameters whose steps are far below their precision. */
#include "support/test.h"
#include "support/kernel_cases.h"

#include "kernels/element.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static tt_kernel *kernel_of(const tt_ops *ops)
{
    tt_kernel *k;
    assert_ok(tt_kernel_create(ops, 1, &k));
    return k;
}

/* p = 1, g = 0.5, -1, 2; lr 0.1, betas 0.9 and 0.99, weight decay 0.5, clip 1, eps 0. Worked out in decimals:
 *   step 1  m = 0.05    v = 0.0025      m^ = 0.5           v^ = 0.25                 p = 0.95 - 0.1 * 1 = 0.85
 *   step 2  m = -0.055  v = 0.012475    m^ = -0.055/0.19   v^ = 0.012475/0.0199
 *   step 3  m = 0.1505  v = 0.05235025  m^ = 0.1505/0.271  v^ = 0.05235025/0.029701 */
static void adamw_three_steps_by_hand(void **state)
{
    (void)state;
    const tt_ops *ops[] = {&tt_ops_ref_f64, &tt_ops_ref, &tt_ops_alt};
    const double gradient[] = {0.5, -1, 2}, m_after[] = {0.05, -0.055, 0.1505};
    const double v_after[] = {0.0025, 0.012475, 0.05235025};
    const double p_after[] = {0.85, 0.84406077133348822, 0.76002720298429856};
    for (int b = 0; b < 3; b++) {
        tt_kernel *k = kernel_of(ops[b]);
        double memory[4] = {0};
        tt_mat p = {&memory[0], ops[b]->real, 1, 1, 1}, g = {&memory[1], ops[b]->real, 1, 1, 1};
        tt_mat m = {&memory[2], ops[b]->real, 1, 1, 1}, v = {&memory[3], ops[b]->real, 1, 1, 1};
        /* A dozen roundings of numbers around 1 in a step; in double also 1 - 0.99, which magnifies that of
         * 0.99 a hundredfold (in float too it is formed in double). */
        double eps = ops[b]->real == TT_F64 ? 100 * DBL_EPSILON : 12 * FLT_EPSILON;
        kernel_set(p, 0, 0, 1);
        for (int t = 0; t < 3; t++) {
            /* The gradient arrives four times too large and is clipped by a quarter. */
            tt_adamw a = {
                .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.5, .clip = 0.25, .step = t + 1};
            kernel_set(g, 0, 0, 4 * gradient[t]);
            ops[b]->adamw(k, &a, p, g, m, v);
            assert_close(kernel_get(m, 0, 0), m_after[t], eps);
            assert_close(kernel_get(v, 0, 0), v_after[t], eps);
            assert_close(kernel_get(p, 0, 0), p_after[t], (t + 1) * eps);
        }
        tt_kernel_destroy(&k);
    }
}

static void adamw_eps_stands_outside_the_root(void **state)
{
    (void)state;
    tt_kernel *k = kernel_of(&tt_ops_ref_f64);
    double p[1] = {0}, g[1] = {1e-8}, m[1] = {0}, v[1] = {0};
    tt_adamw a = {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip = 1, .step = 1};
    k->ops->adamw(k, &a, tt_mat_of(p, TT_F64, 1, 1), tt_mat_of(g, TT_F64, 1, 1), tt_mat_of(m, TT_F64, 1, 1),
                  tt_mat_of(v, TT_F64, 1, 1));
    /* 1 - 0.999 loses three digits of sixteen. */
    assert_close(p[0], -0.5, 1e-12);
    /* No gradient, no moments: decay alone, not 0/0. */
    p[0] = 2, g[0] = m[0] = v[0] = 0, a.weight_decay = 0.25;
    k->ops->adamw(k, &a, tt_mat_of(p, TT_F64, 1, 1), tt_mat_of(g, TT_F64, 1, 1), tt_mat_of(m, TT_F64, 1, 1),
                  tt_mat_of(v, TT_F64, 1, 1));
    assert_close(p[0], 1.5, 0);
    tt_kernel_destroy(&k);
}

static void sgd_by_hand(void **state)
{
    (void)state;
    tt_kernel *k = kernel_of(&tt_ops_ref);
    float p[2] = {2, -1}, g[2] = {8, 4};
    tt_adamw a = {.lr = 0.5, .weight_decay = 0.25, .clip = 0.125};
    k->ops->sgd(k, &a, tt_mat_of(p, TT_F32, 1, 2), tt_mat_of(g, TT_F32, 1, 2));
    assert_close(p[0], 2 - 0.5 * (1 + 0.5), 0);
    assert_close(p[1], -1 - 0.5 * (0.5 - 0.25), 0);
    tt_kernel_destroy(&k);
}

static void squares_add_up(void **state)
{
    (void)state;
    enum { N = 1000 };
    tt_kernel *k = kernel_of(&tt_ops_ref);
    float g[N];
    double sum = 0;
    for (int i = 0; i < N; i++)
        g[i] = (float)(i % 17) * 1e15f, sum += (double)g[i] * g[i]; /* squares beyond float */
    assert_close(k->ops->sum_squares(k, tt_mat_of(g, TT_F32, 1, N)) / sum, 1, N * DBL_EPSILON);
    assert_close(k->ops->sum_squares(k, tt_mat_of(NULL, TT_F32, 1, 0)), 0, 0);
    assert_close(k->ops->sum_squares(k, tt_mat_of(NULL, TT_F32, 0, 5)), 0, 0);
    tt_kernel_destroy(&k);
}

/* --- stochastic rounding ---------------------------------------------------------------------------------------- */

/* All 65536 random halves: a value at the fraction f rounds away from zero exactly 65536 f times. */
static void stochastic_rounding_is_unbiased(void **state)
{
    (void)state;
    const float x[] = {1 + 0x1p-8f, 1 + 0x1p-9f, -(1 + 0x3p-9f), 1 + 0x1p-23f, 3.0f, -0.0f, 1e-40f};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        double sum = 0;
        for (uint32_t random = 0; random < 65536; random++)
            sum += (double)tt_bf16_to_f32(tt_bf16_stochastic(x[i], random));
        assert_close(sum / 65536, (double)x[i], 0);
    }
    /* Only the lower half of the word counts; what is not finite stays. */
    assert_int_equal(tt_bf16_stochastic(x[0], 0xFFFF0000u), tt_bf16_stochastic(x[0], 0));
    assert_true(isinf(tt_bf16_to_f32(tt_bf16_stochastic(-INFINITY, 0xFFFF))));
    assert_true(isnan(tt_bf16_to_f32(tt_bf16_stochastic(NAN, 0xFFFF))));
}

/* The bits of an element depend on its number in the stream, not on how the parameter is cut into calls or rows. */
static void cuts_do_not_change_the_rounding(void **state)
{
    (void)state;
    enum { N = 1500 };
    tt_kernel *k = kernel_of(&tt_ops_ref);
    uint16_t whole[N], parts[N];
    float g[N];
    for (int i = 0; i < N; i++) whole[i] = parts[i] = tt_f32_to_bf16(1), g[i] = (float)(i % 7);
    tt_adamw a = {.lr = 1e-3, .clip = 1, .key = 42, .first = 1001};
    k->ops->sgd(k, &a, tt_mat_of(whole, TT_BF16, 1, N), tt_mat_of(g, TT_F32, 1, N));
    for (int at = 0, n = 1; at < N; at += n, n = n * 2 + 1) {
        if (at + n > N) n = N - at;
        a.first = 1001 + at;
        k->ops->sgd(k, &a, tt_mat_of(parts + at, TT_BF16, 1, n), tt_mat_of(g + at, TT_F32, 1, n));
    }
    assert_memory_equal(whole, parts, sizeof whole);
    /* The documented rule, element by element. */
    for (int i = 0; i < N; i++) {
        uint32_t word[4];
        uint64_t e = 1001 + (uint64_t)i;
        tt_rng_block(42, 0, e / 8, word);
        uint32_t bits = word[e % 8 / 2] >> 16 * (e % 2);
        uint16_t expected = tt_bf16_stochastic((float)(1 - 1e-3 * (double)g[i]), bits);
        assert_int_equal(whole[i], expected);
    }
    tt_kernel_destroy(&k);
}

/* Weights near 1, rate 1e-6, 1000 equal gradients: the mean moves as fp32 weights do, within 1 %.
 *
 * Each step of size d moves a weight by one bf16 place u = 2^-8 (below 1; 2^-7 above) with probability d/u,
 * so after 1000 steps its distance has the variance 1000 d u, about 4e-6 or 8e-6 for the two; the mean over n
 * weights has the deviation sqrt(6e-6/n). For n = 2^18 that is 4.8e-6 of 1e-3, half of 1 %: the numbers are
 * drawn once and for all, and 1 % stands at two deviations. The test would see weights that do not move
 * (100 % off) or move always by a place. */
static void tiny_steps_move_bf16_weights(const tt_ops *ops, bool adam, int64_t n, double tolerance)
{
    tt_kernel *k = kernel_of(ops);
    uint16_t *narrow = malloc((size_t)n * sizeof *narrow);
    float *wide = malloc((size_t)n * sizeof *wide), *g = malloc((size_t)n * sizeof *g);
    float *m = calloc((size_t)n, sizeof *m), *v = calloc((size_t)n, sizeof *v);
    float *m2 = calloc((size_t)n, sizeof *m2), *v2 = calloc((size_t)n, sizeof *v2);
    assert_true(narrow && wide && g && m && v && m2 && v2);
    double before = 0, after_wide = 0, after_narrow = 0;
    for (int64_t i = 0; i < n; i++) {
        narrow[i] = tt_f32_to_bf16(0.95f + 0.1f * (float)(i % 32) / 32);
        wide[i] = tt_bf16_to_f32(narrow[i]);
        g[i] = 1;
        before += (double)wide[i];
    }
    for (int64_t t = 1; t <= 1000; t++) {
        tt_adamw a = {
            .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip = 1, .step = t, .key = (uint64_t)t};
        /* In pieces that stay in the cache, each with its place in the stream. */
        for (int64_t at = 0; at < n; at += 4096) {
            a.first = at;
            tt_mat p = tt_mat_of(narrow + at, TT_BF16, 1, 4096), q = tt_mat_of(wide + at, TT_F32, 1, 4096);
            tt_mat dp = tt_mat_of(g + at, TT_F32, 1, 4096);
            if (adam) {
                ops->adamw(k, &a, p, dp, tt_mat_of(m + at, TT_F32, 1, 4096),
                           tt_mat_of(v + at, TT_F32, 1, 4096));
                ops->adamw(k, &a, q, dp, tt_mat_of(m2 + at, TT_F32, 1, 4096),
                           tt_mat_of(v2 + at, TT_F32, 1, 4096));
            } else {
                ops->sgd(k, &a, p, dp);
                if (at == 0) ops->sgd(k, &a, q, dp); /* fp32: 32 different weights say all */
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        after_narrow += (double)tt_bf16_to_f32(narrow[i]);
        after_wide += (double)wide[adam ? i : i % 32];
    }
    double moved = (after_narrow - before) / (double)n, expected = (after_wide - before) / (double)n;
    print_message("# %s: moved by %.6g, in fp32 by %.6g\n", adam ? "adamw" : "sgd", moved, expected);
    assert_true(expected < -0.9e-3);
    assert_close(moved / expected, 1, tolerance);
    free(narrow), free(wide), free(g), free(m), free(v), free(m2), free(v2);
    tt_kernel_destroy(&k);
}

static void tiny_steps_of_sgd_move_bf16_weights(void **state)
{
    (void)state;
    tiny_steps_move_bf16_weights(&tt_ops_ref, false, 1 << 18, 0.01);
}

/* Four times the deviation of 2^14 weights, 1.9e-5 of 1e-3. */
static void tiny_steps_of_adamw_move_bf16_weights(void **state)
{
    (void)state;
    tiny_steps_move_bf16_weights(&tt_ops_ref, true, 1 << 14, 0.08);
}

/* --- moments in bf16 -------------------------------------------------------------------------------------------- */

/* The 24 numbers of a block, three for each of eight elements: each bit of each is set as often as not, and no two
 * know of each other. Per pair four counts of N/4 with the deviation sqrt(3 N / 16), of which six are allowed. */
static void bits_of_a_block_do_not_know_each_other(void **state)
{
    (void)state;
    enum { N = 1 << 14, KINDS = 24 };
    const double room = 6 * sqrt(3.0 * N / 16);
    static uint16_t bits[KINDS][N];
    for (uint64_t block = 0; block < N; block++) {
        uint32_t word[4];
        tt_rng_block(7, 0, block, word);
        for (int i = 0; i < KINDS; i++) bits[i][block] = (uint16_t)tt_rounding_bits(word, i / 3, (tt_rounded)(i % 3));
    }
    for (int a = 0; a < KINDS; a++)
        for (int b = a + 1; b < KINDS; b++)
            for (int bit = 0; bit < 16; bit += 5) {
                int64_t count[4] = {0};
                for (int i = 0; i < N; i++) count[2 * (bits[a][i] >> bit & 1) + (bits[b][i] >> bit & 1)]++;
                for (int i = 0; i < 4; i++) assert_close((double)count[i], N / 4.0, room);
            }
}

/* Second moments behind 2000 steps of gradients 0.5 + z, z normal, then 2000 of a third of that, then 2000 of three times
 * it: in bf16 over what they are in float, in the mean over N elements.
 *
 *   steps                            2000    4000    6000
 *   rounded to nearest               1.16    5.2     1.20    it does not shrink at all: a step is below half a place
 *   rounded stochastically, ops      1.000   1.000   1.000   each element within 2 to 4 % of its root
 *
 * A step of size d rounds with the variance d u at most, u the distance of two neighbours, up to 2^-7 of v; d is about
 * 1e-3 of E|d^2 - v| <= 2 v; the factor b2 leaves 500 steps of these in sight, so an element's deviation is
 * sqrt(500 * 2e-3 * 2^-7) = 9 % at most, and that of the mean of N = 4096 elements 64 times less: 0.14 %. Five are
 * allowed; what float and bf16 share, the gradients, does not count. First moments the same with 1e-1 of E|d - m| and 5
 * steps: sqrt(5 * 0.1 * 2^-7) = 6 % of d at most, and 0.1 % in the mean. */
static void bf16_moments_follow_those_in_float(const tt_ops *ops)
{
    enum { N = 4096 };
    tt_kernel *k = kernel_of(ops);
    float *x = calloc(4 * N, sizeof *x), *m = x + N, *v = m + N, *g = v + N;
    uint16_t *narrow = calloc(2 * N, sizeof *narrow), *nearest = calloc(N, sizeof *nearest);
    assert_true(x && narrow && nearest);
    for (int t = 1; t <= 6000; t++) {
        tt_adamw a = {.lr = 0, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip = 1, .step = t, .key = (uint64_t)t};
        float size = t <= 2000 ? 1 : t <= 4000 ? 0.3f : 3;
        tt_rng_normal((uint64_t)t << 32, 0, N, g);
        for (int i = 0; i < N; i++) {
            g[i] = size * (g[i] + 0.5f);
            nearest[i] = tt_f32_to_bf16(0.999f * tt_bf16_to_f32(nearest[i]) + 0.001f * g[i] * g[i]);
        }
        tt_mat p = tt_mat_of(x, TT_F32, 1, N), dp = tt_mat_of(g, TT_F32, 1, N);
        k->ops->adamw(k, &a, p, dp, tt_mat_of(m, TT_F32, 1, N), tt_mat_of(v, TT_F32, 1, N));
        k->ops->adamw(k, &a, p, dp, tt_mat_of(narrow, TT_BF16, 1, N), tt_mat_of(narrow + N, TT_BF16, 1, N));
        if (t % 2000 != 0) continue;
        double sum[5] = {0};
        for (int i = 0; i < N; i++) {
            sum[0] += (double)m[i], sum[1] += (double)tt_bf16_to_f32(narrow[i]);
            sum[2] += (double)v[i], sum[3] += (double)tt_bf16_to_f32(narrow[N + i]);
            sum[4] += (double)tt_bf16_to_f32(nearest[i]);
        }
        print_message("# step %d: m %.4f, v %.4f of those in float; v rounded to nearest %.4f\n", t, sum[1] / sum[0],
                      sum[3] / sum[2], sum[4] / sum[2]);
        assert_close(sum[1] / sum[0], 1, 5 * 0.001);
        assert_close(sum[3] / sum[2], 1, 5 * 0.0014);
        assert_true(sum[4] / sum[2] > 1.1); /* what the test would see */
    }
    free(x), free(narrow), free(nearest);
    tt_kernel_destroy(&k);
}

static void bf16_moments_follow_those_in_float_everywhere(void **state)
{
    (void)state;
    bf16_moments_follow_those_in_float(&tt_ops_ref);
    bf16_moments_follow_those_in_float(&tt_ops_cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_three_steps_by_hand),
        cmocka_unit_test(adamw_eps_stands_outside_the_root),
        cmocka_unit_test(sgd_by_hand),
        cmocka_unit_test(squares_add_up),
        cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(cuts_do_not_change_the_rounding),
        cmocka_unit_test(tiny_steps_of_sgd_move_bf16_weights),
        cmocka_unit_test(tiny_steps_of_adamw_move_bf16_weights),
        cmocka_unit_test(bits_of_a_block_do_not_know_each_other),
        cmocka_unit_test(bf16_moments_follow_those_in_float_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
