/* Weights and moments in bf16 learn as those in float do, because they are rounded stochastically; rounded to nearest, in the
 * same model on the same rows, they do not. tools/check_bf16_learning.sh is the same on the model of `make demo`. */
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the control: AdamW whose results are rounded to nearest ----------------------------------------------------- */

static tt_ops to_nearest;

static tt_mat widened(tt_mat m)
{
    tt_mat wide = tt_mat_of(malloc((size_t)m.cols * sizeof(float) + 1), TT_F32, 1, m.cols);
    assert_non_null(wide.data);
    tt_convert(wide.data, TT_F32, m.data, m.dtype, m.cols);
    return wide;
}

static void narrow(tt_mat wide, tt_mat m)
{
    tt_convert(m.data, m.dtype, wide.data, TT_F32, m.cols);
    free(wide.data);
}

static void adamw_to_nearest(tt_kernel *k, const tt_adamw *a, tt_mat p, tt_mat g, tt_mat m, tt_mat v)
{
    tt_mat p32 = widened(p), m32 = widened(m), v32 = widened(v);
    tt_ops_ref.adamw(k, a, p32, g, m32, v32);
    narrow(p32, p), narrow(m32, m), narrow(v32, v);
}

/* --- learning one batch by heart --------------------------------------------------------------------------------- */

enum { STEPS = 100 };
#define RATE 6e-5

typedef struct job {
    const trial_batch *batch;
    double first, last;
} job;

static tt_status train(tt_engine *e, void *arg)
{
    job *j = arg;
    tt_batch micros[TRIAL_MAX_MICROS];
    int num;
    TT_TRY(trial_micros(e, j->batch, true, micros, &num));
    tt_status status = TT_OK;
    for (int step = 1; step <= STEPS && status == TT_OK; step++) {
        tt_step_options o = {
            .lr = RATE, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .max_grad_norm = 1, .step = step, .seed = 3};
        tt_step_result r;
        status = tt_train_step(&e->model, micros, num, &o, &r);
        if (step == 1) j->first = r.loss;
        j->last = r.loss;
    }
    for (int i = 0; i < num; i++) tt_batch_free(&micros[i]);
    return status;
}

/* How far the loss falls. */
static double learned(const trial_shape *s, const trial_batch *b, const tt_ops *ops, bool weights, bool moments)
{
    job j = {b, 0, 0};
    trial_run run = {.model = s->model,
                     .mesh = TRIAL_MESH(1, 1),
                     .ops = ops,
                     .bf16_compute = true,
                     .bf16_weights = weights,
                     .bf16_moments = moments};
    assert_ok(trial_on_mesh(&run, train, &j));
    return j.first - j.last;
}

/* Steps of 6e-5 at most, for weights around 0.1, whose neighbours in bf16 are u = 2^-11 = 5e-4 away: rounded to nearest
 * nearly all steps of such weights are lost. Rounded stochastically a weight moves by the same in the mean, with the
 * deviation sqrt(100 * 6e-5 * u) = 1.7e-3 around 6e-3: 28 % for one, and 0.28 % for what the loss feels, the sum over some
 * 10^4 of them along the gradient. Six of these are allowed: 2 %; as much again for what rounding does to the products of
 * weights that lie elsewhere. */
static void bf16_learns_as_float_does(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe", "glm4, groups, shared, tied"};
    to_nearest = tt_ops_ref;
    to_nearest.adamw = adamw_to_nearest;
    for (int m = 0; m < 2; m++) {
        trial_shape s;
        trial_batch b;
        assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
        trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
        double masters = learned(&s, &b, &tt_ops_cpu, false, false);
        double weights = learned(&s, &b, &tt_ops_cpu, true, false);
        double both = learned(&s, &b, &tt_ops_cpu, true, true);
        double nearest = learned(&s, &b, &to_nearest, true, true);
        print_message("# %s: the loss falls by %.4f; bf16 weights %.4f, moments too %.4f, rounded to nearest %.4f\n",
                      names[m], masters, weights, both, nearest);
        assert_true(masters > 1);
        assert_close(weights / masters, 1, 0.04);
        assert_close(both / masters, 1, 0.04);
        assert_true(nearest < 0.5 * masters);
        trial_shape_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_learns_as_float_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
