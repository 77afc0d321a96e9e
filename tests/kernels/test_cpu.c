/* The backend for this machine against the reference: every op, on every instruction set that the machine
 * has, with operands in F32 and BF16, on sizes around the pieces that it works in, with one and several
 * threads. Cases: tests/support/kernel_cases.c, and larger ones of the same kinds below. */
#include "support/test.h"
#include "support/kernel_levels.h"

#include "base/checked.h"
#include "kernels/cpu/cpu.h"
#include "kernels/element.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cases of the common list in sizes that fill tiles of 14 x 32, 6 x 16 and 6 x 8, depths of 256, blocks of
 * 56, 128 and 8192, and that are worth several threads. */
static const kernel_resized larger_cases[] = {
    {"linear, bias", {14, 256, 32}, 256},
    {"linear, bias", {15, 257, 33}, 257},
    {"linear, bias", {13, 255, 31}, 255},
    {"linear, accumulate", {225, 530, 70}, 530},
    {"linear, small", {97, 64, 513}, 513},
    {"linear, small", {1, 1, 1}, 1},
    {"linear, deep", {6, 700, 130}, 700},
    {"grouped, accumulate", {300, 70, 90, 7}, 300},
    {"grouped, empty groups", {29, 33, 65, 9}, 65},
    {"elementwise", {5, 16385}, 2},
    {"elementwise", {900, 33}, 2},
    {"rmsnorm", {130, 515, 0}, 515},
    {"rmsnorm, wide", {3, 5000, 0}, 5000},
    {"rmsnorm, per head", {70, 64, 9}, 630},
    {"rmsnorm, accumulate", {300, 33, 0}, 300},
    {"rope", {90, 9, 66, 34}, 2},
    {"rope, interleaved", {90, 9, 66, 34}, 2},
    {"clamp", {10, 9000}, 1},
    {"swiglu, gated", {40, 700}, 700},
    {"swiglu, gated and in place", {77, 129}, 129},
    {"embed", {200, 9, 515}, 200},
    {"gather and sum of rows", {9, 100, 515}, 100},
    {"combine", {70, 5, 257}, 5},
    {"router logits", {100, 600, 65}, 600},
    {"router softmax, normalised", {100, 64, 8}, 64},
    {"router sigmoid, groups", {100, 64, 8, 8, 3}, 64},
    {"balance loss", {100, 64, 8}, 100},
    {"attention", {300, 2, 2, 64, 64, 0}, 600},
    {"attention, grouped queries", {270, 8, 2, 33, 17, 0}, 1100},
    {"attention, grouped queries", {140, 12, 1, 8, 8, 0}, 1700},
    {"attention, window", {400, 3, 1, 16, 40, 150}, 1200},
    {"attention", {140, 1, 1, 300, 260, 0}, 600},
    {"cross entropy", {300, 1030}, 1030},
    {"cross entropy, in place", {13, 4999}, 4999},
    {"update", {20001}, 20001},
    {"update, bf16", {20001}, 20001},
};
enum { NUM_LARGER = sizeof larger_cases / sizeof *larger_cases };

/* --- against the reference ----------------------------------------------------------------------- */

static void every_op_matches_the_reference(void **state)
{
    (void)state;
    static const tt_dtype types[] = {TT_F32, TT_BF16};
    int levels = kernel_num_levels();
    for (int i = 0; i < num_kernel_cases + NUM_LARGER; i++)
        for (int t = 0; t < 2; t++) {
            kernel_case c = kernel_case_of(larger_cases, i);
            kernel_rig *expected = kernel_rig_create(&c, &tt_ops_ref, types[t], 1);
            kernel_rig_run(expected);
            for (int level = 0; level < levels; level++) {
                kernel_rig *got = kernel_level_rig(&c, level, types[t], 1 + level % 3);
                kernel_rig_run(got);
                kernel_rig_compare(got, expected, kernel_level_name(level));
                kernel_rig_destroy(&got);
            }
            kernel_rig_destroy(&expected);
        }
    print_message("# %d cases, %d instruction sets, 2 types of operands\n", num_kernel_cases + NUM_LARGER, levels);
}

/* --- bits ---------------------------------------------------------------------------------------- */

/* The same call twice, the second time through memory that was used before: the same bits. Another number of
 * threads: also, which is more than ops.h asks for; only the backward pass of attention, which may cut a
 * group of heads into parts, depends on it. */
static void bits_are_those_of_one_thread(void **state)
{
    (void)state;
    int level = kernel_num_levels() - 1;
    for (int i = num_kernel_cases; i < num_kernel_cases + NUM_LARGER; i++) {
        kernel_case c = kernel_case_of(larger_cases, i);
        bool attention = strncmp(c.name, "attention", 9) == 0;
        kernel_rig *first = kernel_level_rig(&c, level, TT_BF16, 1);
        kernel_rig *again = kernel_level_rig(&c, level, TT_BF16, 1);
        int threads[] = {1, 2, 3, 3};
        kernel_rig_run(first);
        for (int n = 0; n < 4; n++) {
            again->k->threads = threads[n];
            kernel_rig_run(again);
            for (int o = 0; o < again->num_out; o++) kernel_same_bits(again->out[o], first->out[o], &c, "output");
            if (attention && n > 0 && threads[n] != threads[n - 1]) {
                first->k->threads = threads[n];
                kernel_rig_run(first);
            }
            for (int o = 0; o < again->num_in; o++)
                if (again->din[o].data) kernel_same_bits(again->din[o], first->din[o], &c, "gradient");
        }
        kernel_rig_destroy(&first);
        kernel_rig_destroy(&again);
    }
}

/* --- products ------------------------------------------------------------------------------------ */

static kernel_rig *rig(int level, int threads)
{
    static const kernel_case none = {.name = "products"};
    return kernel_level_rig(&none, level, TT_BF16, threads);
}

/* Few rows or many: an element is the same chain of multiply-adds. */
static void position_changes_no_bit(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1}, {40, 300, 70}, {230, 257, 65}, {5, 16, 32}, {70, 45, 600}};
    int levels = kernel_num_levels();
    for (int level = 0; level < levels; level++)
        for (int s = 0; s < 5; s++)
            for (int t = 0; t < 2; t++) {
                int64_t T = shapes[s][0], K = shapes[s][1], N = shapes[s][2];
                tt_dtype type = t ? TT_BF16 : TT_F32;
                kernel_rig *r = rig(level, 2);
                tt_mat x = kernel_rig_fill(r, kernel_rig_mat(r, type, T, K, true), 0, 1);
                tt_mat b = kernel_rig_fill(r, kernel_rig_mat(r, TT_F32, 1, N, true), 0, 1);
                tt_mat y = kernel_rig_mat(r, type, T, N, true), z = kernel_rig_mat(r, type, T, N, true);
                tt_mat w = kernel_rig_fill(r, kernel_rig_mat(r, type, N, K, true), 0, 1);
                tt_mat dx = kernel_rig_mat(r, type, T, K, true), dz = kernel_rig_mat(r, type, T, K, true);
                assert_ok(r->k->ops->linear(r->k, x, w, b, false, y));
                assert_ok(r->k->ops->linear(r->k, x, w, b, false, z));
                for (int64_t i = 0; i < T; i += 37) {
                    tt_mat row = tt_mat_rows(z, i, i + 1);
                    kernel_set_all(row, (double)NAN);
                    assert_ok(r->k->ops->linear(r->k, tt_mat_rows(x, i, i + 1), w, b, false, row));
                }
                kernel_same_bits(y, z, r->c, "a row alone");
                for (int more = 0; more < 2; more++) {
                    assert_ok(r->k->ops->linear_dx(r->k, y, w, more, dx));
                    for (int64_t i = 0, few; i < T; i += few) {
                        few = tt_min_i64(1 + i % 17, T - i);
                        tt_mat dy = tt_mat_rows(y, i, i + few), to = tt_mat_rows(dz, i, i + few);
                        assert_ok(r->k->ops->linear_dx(r->k, dy, w, more, to));
                    }
                    kernel_same_bits(dx, dz, r->c, "a few rows of a gradient alone");
                }
                kernel_rig_check_guards(r);
                kernel_rig_destroy(&r);
            }
}

/* Integers up to 3, whose sums of 300 products a float holds exactly: any order of any instruction set gives
 * the same, in float; and BF16 results are those, rounded once, also when they are added to what was there. */
static void small_integers_are_exact(void **state)
{
    (void)state;
    enum { T = 61, K = 300, N = 45 };
    int levels = kernel_num_levels();
    for (int level = 0; level < levels; level++) {
        kernel_rig *r = rig(level, 3);
        tt_mat x = kernel_rig_mat(r, TT_BF16, T, K, true), w = kernel_rig_mat(r, TT_BF16, N, K, true);
        tt_mat y = kernel_rig_mat(r, TT_F32, T, N, true), z = kernel_rig_mat(r, TT_BF16, T, N, true);
        for (int64_t j = 0; j < K; j++) {
            for (int64_t i = 0; i < T; i++) kernel_set(x, i, j, (double)((i * 5 + j * 3) % 7 - 3));
            for (int64_t i = 0; i < N; i++) kernel_set(w, i, j, (double)((i * i + j) % 7 - 3));
        }
        kernel_set_all(z, 2);
        assert_ok(r->k->ops->linear(r->k, x, w, (tt_mat){0}, false, y));
        assert_ok(r->k->ops->linear(r->k, x, w, (tt_mat){0}, true, z));
        for (int64_t i = 0; i < T; i++)
            for (int64_t n = 0; n < N; n++) {
                double sum = 0;
                for (int64_t j = 0; j < K; j++) sum += kernel_get(x, i, j) * kernel_get(w, n, j);
                assert_close(kernel_get(y, i, n), sum, 0);
                assert_close(kernel_get(z, i, n), (double)tt_bf16_to_f32(tt_f32_to_bf16((float)(sum + 2))), 0);
            }
        kernel_rig_destroy(&r);
    }
}

/* --- functions, rounding, configuration ---------------------------------------------------------- */

/* silu(x) = x / (1 + exp(-x)) with exp to 2 places (4 eps/2 with the division and two products): 4 eps of it.
 * Where exp(-x) passes 2^126 and float's range ends, silu is below 1e-35 and counts as 0. */
static void exp_is_accurate(void **state)
{
    (void)state;
    enum { N = 40001 };
    int levels = kernel_num_levels();
    for (int level = 0; level < levels; level++) {
        kernel_rig *r = rig(level, 1);
        tt_mat a = kernel_rig_mat(r, TT_F32, 1, N, false), one = kernel_rig_mat(r, TT_F32, 1, N, false);
        tt_mat h = kernel_rig_mat(r, TT_F32, 1, N, false);
        for (int i = 0; i < N; i++) ((float *)a.data)[i] = (float)(i - N / 2) * 0.0053f, ((float *)one.data)[i] = 1;
        ((float *)a.data)[0] = -INFINITY; /* a sum of NaN and 0 in the formula itself */
        ((float *)a.data)[1] = NAN;
        ((float *)a.data)[2] = -1e30f;
        r->k->ops->swiglu(r->k, a, one, h);
        assert_true(isnan(((float *)h.data)[1]));
        assert_close((double)((float *)h.data)[2], 0, 1e-7);
        for (int i = 3; i < N; i++) {
            double x = (double)((float *)a.data)[i], expected = x / (1 + exp(-x));
            assert_close((double)((float *)h.data)[i], expected, 4 * FLT_EPSILON * fabs(expected) + 1e-35);
        }
        kernel_rig_destroy(&r);
    }
}

/* p - lr g is exact here, so the rounding is all there is: the rule of kernels/element.h, bit for bit,
 * whatever the place in the call, the chunk and the thread. */
static void stochastic_rounding_is_the_common_rule(void **state)
{
    (void)state;
    enum { N = 20003 };
    int levels = kernel_num_levels();
    for (int level = 0; level < levels; level++)
        for (int64_t first = 0; first < 6; first++) {
            kernel_rig *r = rig(level, 3);
            tt_mat p = kernel_rig_mat(r, TT_BF16, 1, N, true), g = kernel_rig_mat(r, TT_F32, 1, N, true);
            float exact[N];
            uint16_t expected[N];
            for (int i = 0; i < N; i++) {
                double was = 1 + (double)(i % 50) / 128;
                kernel_set(p, 0, i, was);
                kernel_set(g, 0, i, (double)(i % 101));
                exact[i] = (float)(was - (double)(i % 101) * 0x1p-12);
            }
            tt_adamw a = {
                .lr = 0x1p-12, .clip = 1, .step = 1, .key = 0x123456789ABCDEFu, .first = first << 33 | first};
            tt_bf16_store_stochastic(expected, exact, TT_ROUND_PARAMETER, a.key, a.first, N);
            r->k->ops->sgd(r->k, &a, p, g);
            assert_memory_equal(p.data, expected, sizeof expected);
            kernel_rig_check_guards(r);
            kernel_rig_destroy(&r);
        }
}

/* With both factors 1/2 and small integers the new moments are exact in float: their rounding is all there is, and each
 * has its own bits of the element's word. */
static void moments_are_rounded_by_the_common_rule(void **state)
{
    (void)state;
    enum { N = 9001 };
    int levels = kernel_num_levels();
    for (int level = 0; level < levels; level++)
        for (int64_t first = 0; first < 6; first++) {
            kernel_rig *r = rig(level, 3);
            tt_mat p = kernel_rig_mat(r, TT_F32, 1, N, true), g = kernel_rig_mat(r, TT_F32, 1, N, true);
            tt_mat m = kernel_rig_mat(r, TT_BF16, 1, N, true), v = kernel_rig_mat(r, TT_BF16, 1, N, true);
            float mean[N], square[N];
            uint16_t expected[N];
            kernel_set_all(p, 1);
            for (int i = 0; i < N; i++) {
                double d = i % 1009 - 504, was_m = i % 64, was_v = i % 50;
                kernel_set(g, 0, i, d);
                kernel_set(m, 0, i, was_m);
                kernel_set(v, 0, i, was_v);
                mean[i] = (float)((was_m + d) / 2);
                square[i] = (float)((was_v + d * d) / 2);
            }
            tt_adamw a = {.lr = 1e-3, .beta1 = 0.5, .beta2 = 0.5, .eps = 1e-8, .clip = 1, .step = 1, .key = 0xFEDCBA987654321u,
                          .first = first << 33 | first};
            r->k->ops->adamw(r->k, &a, p, g, m, v);
            tt_bf16_store_stochastic(expected, mean, TT_ROUND_MOMENT1, a.key, a.first, N);
            assert_memory_equal(m.data, expected, sizeof expected);
            tt_bf16_store_stochastic(expected, square, TT_ROUND_MOMENT2, a.key, a.first, N);
            assert_memory_equal(v.data, expected, sizeof expected);
            kernel_rig_check_guards(r);
            kernel_rig_destroy(&r);
        }
}

/* In products and updates, on all threads, and not behind them: the caller's own arithmetic stays what it was. */
static void subnormal_numbers_are_zeros(void **state)
{
    (void)state;
    enum { N = 40000, K = 64 };
    const double tiny = 1e-40;
    for (int level = 0; level < kernel_num_levels(); level++) {
        kernel_rig *r = rig(level, 3);
        tt_mat x = kernel_rig_mat(r, TT_F32, 300, K, true), y = kernel_rig_mat(r, TT_F32, 300, 200, true);
        tt_mat p = kernel_rig_mat(r, TT_F32, 1, N, true), g = kernel_rig_mat(r, TT_F32, 1, N, true);
        tt_mat m = kernel_rig_mat(r, TT_F32, 1, N, true), v = kernel_rig_mat(r, TT_F32, 1, N, true);
        tt_mat w = kernel_rig_mat(r, TT_F32, 200, K, true);
        kernel_set_all(x, tiny), kernel_set_all(w, 1), kernel_set_all(p, 1);
        kernel_set_all(g, 0), kernel_set_all(m, tiny), kernel_set_all(v, tiny);
        assert_ok(r->k->ops->linear(r->k, x, w, (tt_mat){0}, false, y));
        for (int64_t i = 0; i < y.rows; i++)
            for (int64_t j = 0; j < y.cols; j++) assert_close(kernel_get(y, i, j), 0, 0);
        r->k->ops->adamw(r->k, &(tt_adamw){.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip = 1, .step = 9}, p, g, m, v);
        for (int64_t i = 0; i < N; i++) {
            assert_close(kernel_get(m, 0, i), 0, 0);
            assert_close(kernel_get(v, 0, i), 0, 0);
            assert_close(kernel_get(p, 0, i), 1, 0);
        }
        volatile float own = (float)tiny;
        own = own * 0.5f;
        assert_true(own > 0);
        kernel_rig_destroy(&r);
    }
}

/* Results too large for the caches go past them: over NaN, with what stands around them untouched, and with the bits of a
 * sum with zeros. Sides that are whole tiles and that are not, sums of 0 to more than a block's
 * terms, and groups without rows. */
static void large_gradients_are_overwritten(void **state)
{
    (void)state;
    enum { ROWS = 1037, GROUPS = 3 };
    static const int64_t offset[GROUPS + 1] = {0, 16, 16, 20};
    int levels = kernel_num_levels();
    for (int level = 0; level < levels; level++)
        for (int turn = 0; turn < 12; turn++) {
            int64_t cols = (int64_t[]){2080, 2064, 2070}[turn % 3], depth = (int64_t[]){20, 0, 257, 256}[turn % 4];
            bool grouped = depth == offset[GROUPS];
            int64_t rows = grouped ? ROWS * GROUPS : ROWS, ld = tt_round_up(cols, 16);
            kernel_rig *r = rig(level, 1 + turn % 2);
            tt_dtype type = turn % 5 ? TT_F32 : TT_BF16;
            tt_mat dy = kernel_rig_fill(r, kernel_rig_mat(r, type, depth, ROWS, true), 0, 1);
            tt_mat x = kernel_rig_fill(r, kernel_rig_mat(r, type, depth, cols, true), 0, 1);
            tt_mat all = tt_mat_of(aligned_alloc(64, (size_t)((rows + 2) * ld) * sizeof(float)), TT_F32, rows + 2, ld);
            tt_mat zeros = kernel_rig_mat(r, TT_F32, rows, cols, true), dw[2][GROUPS];
            tt_mat out = {tt_element_at(all, 1, 0), TT_F32, rows, cols, ld};
            kernel_set_all(all, (double)NAN);
            kernel_set_all(zeros, 0);
            for (int g = 0; g < GROUPS && grouped; g++) {
                dw[0][g] = tt_mat_rows(out, g * ROWS, (g + 1) * ROWS);
                dw[1][g] = tt_mat_rows(zeros, g * ROWS, (g + 1) * ROWS);
            }
            if (grouped) {
                assert_ok(r->k->ops->grouped_dw(r->k, dy, x, GROUPS, offset, false, dw[0]));
                assert_ok(r->k->ops->grouped_dw(r->k, dy, x, GROUPS, offset, true, dw[1]));
            } else {
                assert_ok(r->k->ops->linear_dw(r->k, dy, x, false, out));
                assert_ok(r->k->ops->linear_dw(r->k, dy, x, true, zeros));
            }
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < cols; j++)
                    if (*(float *)tt_element_at(out, i, j) != *(float *)tt_element_at(zeros, i, j))
                        fail_msg("%s, depth %lld: [%lld, %lld] is %g, expected %g", kernel_level_name(level),
                                 (long long)depth, (long long)i, (long long)j, kernel_get(out, i, j), kernel_get(zeros, i, j));
            for (int64_t i = 0; i < rows + 2; i++)
                for (int64_t j = i % (rows + 1) ? cols : 0; j < ld; j++) assert_true(isnan(kernel_get(all, i, j)));
            free(all.data);
            kernel_rig_destroy(&r);
        }
}

static void unknown_instruction_sets_are_refused(void **state)
{
    (void)state;
    tt_kernel *k;
    kernel_cap("avx1024");
    assert_error(tt_kernel_create(&tt_ops_cpu, 1, &k), TT_ECONFIG, "avx1024");
    assert_null(k);
    kernel_cap("avx2");
    assert_ok(tt_kernel_create(&tt_ops_cpu, 1, &k));
    assert_true(((const tt_cpu *)k->state)->isa <= TT_CPU_AVX2);
    assert_string_equal(k->ops->name, "cpu");
    tt_kernel_destroy(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_matches_the_reference),
        cmocka_unit_test(bits_are_those_of_one_thread),
        cmocka_unit_test(position_changes_no_bit),
        cmocka_unit_test(small_integers_are_exact),
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(stochastic_rounding_is_the_common_rule),
        cmocka_unit_test(moments_are_rounded_by_the_common_rule),
        cmocka_unit_test(subnormal_numbers_are_zeros),
        cmocka_unit_test(large_gradients_are_overwritten),
        cmocka_unit_test(unknown_instruction_sets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
