/* The reference operations against calculus and against each other: gradients by finite differences in
 * double, float against double, sums in another order against sums in order. Cases:
 * tests/support/kernel_cases.c. */
#include "support/test.h"
#include "support/kernel_cases.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* (f(x + h) - f(x - h)) / 2h differs from f'(x)
 *   by h^2/6 f'''      = 2e-13 f''' for h = 1e-6; third derivatives of these ops at inputs around 1 stay below 1e3;
 *   by rounding of f   : f is a sum of terms of total size A, each off by some multiple of DBL_EPSILON (sums inside
 *                        the op add in); 16 covers the depths here, so 16 eps A / h, about 4e-9 A. */
static const double step = 1e-6;

static double derivative(kernel_rig *r, tt_mat x, int64_t row, int64_t col, double *tolerance)
{
    double was = kernel_get(x, row, col), size_up, size_down;
    kernel_set(x, row, col, was + step);
    kernel_rig_forward(r);
    double up = kernel_rig_objective(r, &size_up);
    kernel_set(x, row, col, was - step);
    kernel_rig_forward(r);
    double down = kernel_rig_objective(r, &size_down);
    kernel_set(x, row, col, was);
    *tolerance = 16 * DBL_EPSILON * (1 + fmax(size_up, size_down)) / step + 1e3 * step * step;
    return (up - down) / (2 * step);
}

static void check_input(kernel_rig *r, int i)
{
    tt_mat x = r->in[i], dx = r->din[i];
    /* At most about 120 elements of an input, spread over it; a prime stride meets all rows and columns. */
    int64_t count = x.rows * x.cols, stride = count <= 120 ? 1 : count / 120 | 1;
    for (int64_t n = 0; n < count; n += stride) {
        double tolerance, numeric = derivative(r, x, n / x.cols, n % x.cols, &tolerance);
        double analytic = kernel_get(dx, n / x.cols, n % x.cols) - r->base[i];
        if (!(fabs(numeric - analytic) <= tolerance))
            fail_msg(
                "%s: gradient of input %d at [%lld,%lld] is %.10g, differences say %.10g (tolerance %.2g)",
                r->c->name, i, (long long)(n / x.cols), (long long)(n % x.cols), analytic, numeric,
                tolerance);
    }
}

static void gradients_match_finite_differences(void **state)
{
    (void)state;
    int inputs = 0;
    for (int c = 0; c < num_kernel_cases; c++) {
        if (!kernel_cases[c].backward) continue;
        kernel_rig *r = kernel_rig_create(&kernel_cases[c], &tt_ops_ref_f64, TT_F64, 1);
        kernel_rig_forward(r);
        kernel_rig_backward(r);
        kernel_rig_check_guards(r);
        for (int i = 0; i < r->num_in; i++)
            if (r->din[i].data) {
                check_input(r, i);
                inputs++;
            }
        kernel_rig_destroy(&r);
    }
    print_message("# %d inputs of %d cases\n", inputs, num_kernel_cases);
}

/* A gradient that is wrong must be found: the check itself is under test. */
static void wrong_gradients_would_be_seen(void **state)
{
    (void)state;
    const kernel_case *c = kernel_cases;
    while (strcmp(c->name, "rmsnorm") != 0) c++;
    kernel_rig *r = kernel_rig_create(c, &tt_ops_ref_f64, TT_F64, 1);
    kernel_rig_forward(r);
    kernel_rig_backward(r);
    double tolerance, numeric = derivative(r, r->in[0], 1, 2, &tolerance);
    double wrong = kernel_get(r->din[0], 1, 2) * (1 + 1e-4);
    assert_true(fabs(numeric - wrong) > tolerance);
    kernel_rig_destroy(&r);
}

static double largest(tt_mat m)
{
    double size = 0;
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t j = 0; j < m.cols; j++) size = fmax(size, fabs(kernel_get(m, i, j)));
    return size;
}

/* Two correct evaluations of sums of n terms differ by at most n eps sum |terms|, and by about sqrt(n) eps
 * sqrt(n) |term| as a rule; a few eps for the functions in it. Measured against the tensor's largest element,
 * since what cancels in one element does not in another. */
static void compare(const kernel_rig *a, const kernel_rig *b, tt_mat x, tt_mat y, double eps,
                    const char *what, int i)
{
    double tolerance = eps * (double)(a->c->terms + 8) * fmax(largest(y), 1e-3);
    for (int64_t row = 0; row < x.rows; row++)
        for (int64_t col = 0; col < x.cols; col++) {
            double p = kernel_get(x, row, col), q = kernel_get(y, row, col);
            if (!(fabs(p - q) <= tolerance))
                fail_msg("%s: %s %d at [%lld,%lld] is %.9g in %s, %.9g in %s (tolerance %.2g)", a->c->name,
                         what, i, (long long)row, (long long)col, p, a->k->ops->name, q, b->k->ops->name,
                         tolerance);
        }
}

static void compare_backends(const tt_ops *first, const tt_ops *second)
{
    for (int c = 0; c < num_kernel_cases; c++) {
        const kernel_case *kc = &kernel_cases[c];
        kernel_rig *a = kernel_rig_create(kc, first, TT_F32, 1);
        kernel_rig *b = kernel_rig_create(kc, second, second->real, 1);
        kernel_rig *both[2] = {a, b};
        for (int i = 0; i < 2; i++) {
            kernel_rig_forward(both[i]);
            if (kc->backward) kernel_rig_backward(both[i]);
            kernel_rig_check_guards(both[i]);
        }
        for (int i = 0; i < a->num_out; i++) {
            /* A bf16 element that rounds the other way is one place off: 2^-7 of it, or 2^-8. */
            double eps = a->out[i].dtype == TT_BF16 ? 0x1p-7 / (double)(kc->terms + 8) : FLT_EPSILON;
            compare(a, b, a->out[i], b->out[i], eps, "output", i);
        }
        for (int i = 0; i < a->num_in; i++)
            if (a->din[i].data) compare(a, b, a->din[i], b->din[i], FLT_EPSILON, "gradient", i);
        kernel_rig_destroy(&a);
        kernel_rig_destroy(&b);
    }
}

static void float_matches_double(void **state)
{
    (void)state;
    compare_backends(&tt_ops_ref, &tt_ops_ref_f64);
}

static void other_order_matches(void **state)
{
    (void)state;
    compare_backends(&tt_ops_alt, &tt_ops_ref);
}

/* alt exists to differ by rounding: if it were ref again, certify would measure nothing. */
static void other_order_is_another(void **state)
{
    (void)state;
    const kernel_case *c = kernel_cases;
    while (strcmp(c->name, "linear, deep") != 0) c++;
    kernel_rig *a = kernel_rig_create(c, &tt_ops_alt, TT_F32, 1),
               *b = kernel_rig_create(c, &tt_ops_ref, TT_F32, 1);
    kernel_rig_forward(a);
    kernel_rig_forward(b);
    int differ = 0;
    for (int64_t i = 0; i < a->out[0].rows; i++)
        for (int64_t j = 0; j < a->out[0].cols; j++)
            differ += kernel_get(a->out[0], i, j) != kernel_get(b->out[0], i, j);
    assert_true(differ > a->out[0].rows * a->out[0].cols / 4);
    kernel_rig_destroy(&a);
    kernel_rig_destroy(&b);
}

/* Operands in bf16: the result is what float gives for the rounded operands, bit for bit, since a load is exact. */
static void bf16_operands_are_rounded_operands(void **state)
{
    (void)state;
    for (int c = 0; c < num_kernel_cases; c++) {
        const kernel_case *kc = &kernel_cases[c];
        if (kc->flags & CASE_BF16) continue;
        kernel_rig *a = kernel_rig_create(kc, &tt_ops_ref, TT_BF16, 1);
        kernel_rig *b = kernel_rig_create(kc, &tt_ops_ref, TT_F32, 1);
        for (int i = 0; i < a->num_in; i++)
            for (int64_t row = 0; row < a->in[i].rows; row++)
                for (int64_t col = 0; col < a->in[i].cols; col++)
                    kernel_set(b->in[i], row, col, kernel_get(a->in[i], row, col));
        kernel_rig_forward(a);
        kernel_rig_forward(b);
        kernel_rig_check_guards(a);
        for (int i = 0; i < a->num_out; i++)
            for (int64_t row = 0; row < a->out[i].rows; row++)
                for (int64_t col = 0; col < a->out[i].cols; col++) {
                    double p = kernel_get(a->out[i], row, col), q = kernel_get(b->out[i], row, col);
                    if (p != q && !(isnan(p) && isnan(q)))
                        fail_msg("%s: output %d at [%lld,%lld]: %.9g, of rounded operands %.9g", kc->name, i,
                                 (long long)row, (long long)col, p, q);
                }
        kernel_rig_destroy(&a);
        kernel_rig_destroy(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_finite_differences),
        cmocka_unit_test(wrong_gradients_would_be_seen),
        cmocka_unit_test(float_matches_double),
        cmocka_unit_test(other_order_matches),
        cmocka_unit_test(other_order_is_another),
        cmocka_unit_test(bf16_operands_are_rounded_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
