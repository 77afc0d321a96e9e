/* The products of the library against the reference, on every case of the common list that is a product and on larger
 * ones, with operands in F32, in BF16 as the library multiplies them, and in BF16 widened in small blocks; with one
 * and two threads. The library is made to take products of every size. */
#include "support/test.h"
#include "support/kernel_cases.h"

#include "kernels/onednn/onednn.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

typedef enum mode { F32, BF16, WIDENED, NUM_MODES } mode;
static const char *const mode_names[] = {"as it is", "as it is", "widened"};

/* Sums long enough that the library cuts them, and each dimension in turn 1. */
static const kernel_resized larger_cases[] = {
    {"linear, bias", {63, 64, 65}, 65},
    {"linear, bias", {64, 64, 64}, 64},
    {"linear, accumulate", {225, 530, 70}, 530},
    {"linear, small", {97, 64, 513}, 513},
    {"linear, small", {1, 1, 1}, 1},
    {"linear, bias", {1, 70, 1}, 70},
    {"linear, bias", {40, 1, 33}, 40},
    {"linear, accumulate", {40, 33, 1}, 40},
    {"linear, deep", {6, 1700, 130}, 1700},
    {"grouped, accumulate", {300, 70, 90, 7}, 300},
    {"grouped, empty groups", {29, 33, 65, 9}, 65},
};
enum { NUM_LARGER = sizeof larger_cases / sizeof *larger_cases };

static bool is_product(const kernel_case *c)
{
    return strncmp(c->name, "linear", 6) == 0 || strncmp(c->name, "grouped", 7) == 0;
}

static tt_onednn *state_of(kernel_rig *r)
{
    return r->k->state;
}

/* NULL where the machine has no such mode. Blocks of 3000 elements cut the larger weights into several. */
static kernel_rig *rig_of(const kernel_case *c, mode m, int threads)
{
    kernel_rig *r = kernel_rig_create(c, &tt_ops_onednn, m == F32 ? TT_F32 : TT_BF16, threads);
    tt_onednn *o = state_of(r);
    o->smallest = o->shallowest = 1;
    if (m == BF16 && !o->has_bf16) {
        kernel_rig_destroy(&r);
        return NULL;
    }
    o->bf16 = m == BF16;
    if (m == WIDENED) o->block = 3000;
    return r;
}

static void run(kernel_rig *r)
{
    kernel_rig_forward(r);
    kernel_rig_backward(r);
    kernel_rig_check_guards(r);
}

static void products_match_the_reference(void **state)
{
    (void)state;
    int done = 0;
    for (int i = 0; i < num_kernel_cases + NUM_LARGER; i++) {
        kernel_case c = kernel_case_of(larger_cases, i);
        if (!is_product(&c)) continue;
        kernel_rig *expected[] = {kernel_rig_create(&c, &tt_ops_ref, TT_F32, 1),
                                  kernel_rig_create(&c, &tt_ops_ref, TT_BF16, 1)};
        run(expected[0]);
        run(expected[1]);
        for (mode m = F32; m < NUM_MODES; m++)
            for (int threads = 1; threads <= 2; threads++) {
                kernel_rig *got = rig_of(&c, m, threads);
                if (!got) continue;
                run(got);
                kernel_rig_compare(got, expected[m != F32], mode_names[m]);
                kernel_rig_destroy(&got);
                done++;
            }
        kernel_rig_destroy(&expected[0]);
        kernel_rig_destroy(&expected[1]);
    }
    assert_true(done > 80);
    print_message("# %d runs\n", done);
}

static void expect_same(const kernel_rig *a, const kernel_rig *b, const char *what)
{
    for (int i = 0; i < a->num_out; i++) kernel_same_bits(a->out[i], b->out[i], a->c, what);
    for (int i = 0; i < a->num_in; i++)
        if (a->din[i].data) kernel_same_bits(a->din[i], b->din[i], a->c, what);
}

/* With the same number of threads, in other memory and after other calls. */
static void the_same_call_gives_the_same_bits(void **state)
{
    (void)state;
    for (int i = num_kernel_cases; i < num_kernel_cases + NUM_LARGER; i++)
        for (mode m = F32; m < NUM_MODES; m++) {
            kernel_case c = kernel_case_of(larger_cases, i);
            kernel_rig *first = rig_of(&c, m, 1), *again = rig_of(&c, m, 1);
            if (!first) continue;
            for (int n = 0; n < 3; n++) {
                first->k->threads = again->k->threads = 1 + (n > 0);
                run(first);
                run(again);
                expect_same(first, again, "again");
            }
            kernel_rig_destroy(&first);
            kernel_rig_destroy(&again);
        }
}

static kernel_case case_like(const char *name, int64_t T, int64_t K, int64_t N, int64_t G)
{
    const kernel_case *like = kernel_cases;
    while (strcmp(like->name, name) != 0) like++;
    kernel_case c = *like;
    memcpy(c.size, (int64_t[]){T, K, N, G}, 4 * sizeof(int64_t));
    c.terms = T + K + N;
    return c;
}

/* Left as it was opened, the backend gives small products to tt_ops_cpu, to the bit, and the others to the library,
 * within rounding. 2^20 multiply-adds and 32 rows are where it changes. */
static void small_products_are_the_own(void **state)
{
    (void)state;
    const kernel_case small[] = {case_like("linear, bias", 63, 128, 128, 0),
                                 case_like("grouped, accumulate", 180, 128, 128, 6)};
    const kernel_case large[] = {case_like("linear, bias", 64, 128, 128, 0),
                                 case_like("linear, bias", 31, 256, 133, 0),
                                 case_like("grouped, accumulate", 270, 128, 128, 6)};
    for (int t = 0; t < 2; t++) {
        tt_dtype type = t ? TT_BF16 : TT_F32;
        for (int i = 0; i < 2; i++) {
            kernel_rig *got = kernel_rig_create(&small[i], &tt_ops_onednn, type, 2);
            kernel_rig *own = kernel_rig_create(&small[i], &tt_ops_cpu, type, 2);
            run(got);
            run(own);
            expect_same(got, own, "own products");
            kernel_rig_destroy(&got);
            kernel_rig_destroy(&own);
        }
        for (int i = 0; i < 3; i++) {
            kernel_rig *got = kernel_rig_create(&large[i], &tt_ops_onednn, type, 2);
            kernel_rig *expected = kernel_rig_create(&large[i], &tt_ops_ref, type, 1);
            run(got);
            run(expected);
            kernel_rig_compare(got, expected, "as opened");
            kernel_rig_destroy(&got);
            kernel_rig_destroy(&expected);
        }
    }
}

/* Integers up to 3, whose sums of 300 products a float holds exactly, so every order gives the same; results of BF16
 * are those with bias and old value, rounded once. Also with one operand in F32 and one in BF16. */
static void small_integers_are_exact(void **state)
{
    (void)state;
    enum { T = 33, K = 300, N = 19 };
    static const kernel_case none = {.name = "integers"};
    for (int types = 0; types < 4; types++)
        for (mode m = BF16; m <= WIDENED; m++) {
            kernel_rig *r = rig_of(&none, m, 2);
            if (!r) continue;
            tt_mat x = kernel_rig_mat(r, types & 1 ? TT_BF16 : TT_F32, T, K, true);
            tt_mat w = kernel_rig_mat(r, types & 2 ? TT_BF16 : TT_F32, N, K, true);
            tt_mat b = kernel_rig_mat(r, TT_F32, 1, N, true);
            tt_mat y = kernel_rig_mat(r, TT_F32, T, N, true), z = kernel_rig_mat(r, TT_BF16, T, N, true);
            for (int64_t j = 0; j < K; j++) {
                for (int64_t i = 0; i < T; i++) kernel_set(x, i, j, (double)((i * 5 + j * 3) % 7 - 3));
                for (int64_t i = 0; i < N; i++) kernel_set(w, i, j, (double)((i * i + j) % 7 - 3));
            }
            for (int64_t i = 0; i < N; i++) kernel_set(b, 0, i, (double)(i % 9 - 4));
            kernel_set_all(z, 2);
            assert_ok(r->k->ops->linear(r->k, x, w, (tt_mat){0}, false, y));
            assert_ok(r->k->ops->linear(r->k, x, w, b, true, z));
            kernel_rig_check_guards(r);
            for (int64_t i = 0; i < T; i++)
                for (int64_t n = 0; n < N; n++) {
                    double sum = 0, all;
                    for (int64_t j = 0; j < K; j++) sum += kernel_get(x, i, j) * kernel_get(w, n, j);
                    all = sum + kernel_get(b, 0, n) + 2;
                    assert_close(kernel_get(y, i, n), sum, 0);
                    assert_close(kernel_get(z, i, n), (double)tt_bf16_to_f32(tt_f32_to_bf16((float)all)), 0);
                }
            kernel_rig_destroy(&r);
        }
}

/* The team of the calling thread is the caller's again after a call. */
static void the_number_of_threads_is_given_back(void **state)
{
    (void)state;
    static const kernel_case none = {.name = "threads"};
    kernel_rig *r = rig_of(&none, F32, 2);
    tt_mat x = kernel_rig_fill(r, kernel_rig_mat(r, TT_F32, 8, 8, true), 0, 1),
           y = kernel_rig_mat(r, TT_F32, 8, 8, true);
    omp_set_num_threads(5);
    assert_ok(r->k->ops->linear(r->k, x, x, (tt_mat){0}, false, y));
    assert_int_equal(omp_get_max_threads(), 5);
    kernel_rig_destroy(&r);
}

static void the_environment_names_the_table(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        const tt_ops *ops;
    } known[] = {{"", &tt_ops_cpu}, {"cpu", &tt_ops_cpu}, {"onednn", &tt_ops_onednn}, {"ref", &tt_ops_ref}};
    const tt_ops *ops;
    tt_kernel *k;
    unsetenv("TARTAN_KERNELS");
    assert_ok(tt_ops_default(&ops));
    assert_ptr_equal(ops, &tt_ops_cpu);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        setenv("TARTAN_KERNELS", known[i].value, 1);
        assert_ok(tt_ops_default(&ops));
        assert_ptr_equal(ops, known[i].ops);
        assert_ok(tt_kernel_create(ops, 1, &k));
        assert_string_equal(k->ops->name, ops->name);
        tt_kernel_destroy(&k);
    }
    setenv("TARTAN_KERNELS", "mkl", 1);
    assert_error(tt_ops_default(&ops), TT_ECONFIG, "\"mkl\"");
    unsetenv("TARTAN_KERNELS");
    setenv("TARTAN_ISA", "avx1024", 1);
    assert_error(tt_kernel_create(&tt_ops_onednn, 1, &k), TT_ECONFIG, "avx1024");
    assert_null(k);
    unsetenv("TARTAN_ISA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_match_the_reference),        cmocka_unit_test(the_same_call_gives_the_same_bits),
        cmocka_unit_test(small_products_are_the_own),          cmocka_unit_test(small_integers_are_exact),
        cmocka_unit_test(the_number_of_threads_is_given_back), cmocka_unit_test(the_environment_names_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
