/* The table of test_layouts.c with bf16 compute: every model on every mesh, kind of rows and way to run, with weights resident
 * in fp32 and in bf16, against one process with bf16 compute, each tensor's gradient within what rounding its inputs does.
 * With TT_FULL each model meets every tp_size and dispatcher of every world; else a third of the worlds, which take turns.
 *
 * Choices of experts are those of float on both sides (replayed): one that falls the other way at a near tie is not rounding.
 * Recomputation starts from block inputs in bf16, so it is another way to round, not only to run: a mesh that recomputes is
 * held against a process that does.
 *
 * The yardstick of a tensor is E, the distance of its gradient in bf16 from that in float, both of one process: the error of
 * rounding its inputs, whatever the model makes of it. A mesh rounds the same operands. It adds up in another order in fp32
 * alone, at d = 1e-6 of a stored operand (GRADIENT_TOLERANCE of test_layouts.c leaves ten times that), and so hits the
 * other side of the middle between two bf16 numbers in d / 2^-8 of all cases, one of 4000; then it is off by a whole
 * place. Mean squares: 2^-16 d / 2^-8 of a place against the 2^-16 / 12 of rounding itself, of which the root is sqrt(12 d 2^8)
 * = 6 %, up to 18 % for ten times d. So
 *
 *   over all tensors of a mesh   the root of the mean square of difference / E is below ROOT = 0.5;
 *   one tensor                   may depend on few operands, one of which falls the other way and is off by a place, at
 *                                most 2^-7 of itself and so of what it is a factor of: E + 2^-7 of the tensor's norm, and
 *                                what float allows.
 *
 * The last test shows that faults lie far beyond. */
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"
#include "base/fault.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOT    0.5
#define BALANCE 0.05

enum { MAX_PLANS = 16 };

/* --- one process ------------------------------------------------------------------------------------------------- */

typedef struct expected {
    trial_shape shape;
    trial_batch batches[MAX_PLANS];
    trial_result exact[MAX_PLANS];    /* float */
    trial_result bf16[2][MAX_PLANS];  /* by whether it recomputes */
} expected;

static expected *cache[32];

/* As in test_layouts.c. */
static double balance_of(const trial_shape *s, int plan)
{
    return s->config.has_balance_loss && s->config.num_experts > 0 && plan % 2 == 0 ? BALANCE : 0;
}

typedef struct table_job {
    const expected *e;
    bool one;  /* process, all rows in one micro-step where the balance loss allows it */
    int turn;
    trial_result *got; /* [plans] */
} table_job;

static bool recomputes(int turn)
{
    return turn % 3 != 0;
}

static tt_status all_plans(tt_engine *engine, void *arg)
{
    table_job *j = arg;
    for (int i = 0; i < trial_num_plans; i++) {
        int turn = j->turn + i;
        double balance = balance_of(&j->e->shape, i);
        if (!j->one) {
            engine->model.recompute = recomputes(turn);
            engine->model.loss_chunk = (const int64_t[]){256, 7, 1, 2}[turn % 4];
            engine->model.booked_pairs = (const int64_t[]){0, 3, 1, 0, 16}[turn % 5];
        }
        tt_status status = trial_gradients(engine, &j->e->shape, &j->e->batches[i], j->one && balance == 0, balance,
                                           &j->e->exact[i].choices, &j->got[i]);
        if (status != TT_OK) return tt_error_context(status, "%s", trial_plans[i].name);
    }
    return TT_OK;
}

static expected *expected_of(int model)
{
    if (cache[model]) return cache[model];
    expected *e = cache[model] = calloc(1, sizeof *e);
    assert_non_null(e);
    assert_ok(trial_shape_open(&trial_models[model], &e->shape));
    for (int i = 0; i < trial_num_plans; i++) {
        double balance = balance_of(&e->shape, i);
        trial_batch_make(&trial_plans[i], e->shape.config.vocab_size, (uint64_t)i, &e->batches[i]);
        trial_reference(&e->shape, &e->batches[i], balance == 0, balance, &e->exact[i]);
        for (int again = 0; again < 2; again++) assert_ok(trial_result_open(&e->shape, &e->bf16[again][i]));
    }
    for (int again = 0; again < 2; again++) {
        table_job j = {.e = e, .one = true, .got = e->bf16[again]};
        trial_run run = {.model = e->shape.model, .mesh = TRIAL_MESH(1, 1), .bf16_compute = true, .keep_all = !again};
        assert_ok(trial_on_mesh(&run, all_plans, &j));
    }
    return e;
}

static int free_expected(void **state)
{
    (void)state;
    for (int m = 0; m < trial_num_models; m++) {
        if (!cache[m]) continue;
        for (int i = 0; i < trial_num_plans; i++) {
            trial_result_close(&cache[m]->exact[i]);
            for (int again = 0; again < 2; again++) trial_result_close(&cache[m]->bf16[again][i]);
        }
        trial_shape_close(&cache[m]->shape);
        free(cache[m]);
    }
    return 0;
}

/* --- comparison -------------------------------------------------------------------------------------------------- */

/* What a mesh is off by, of what it may be off by; above 1, or NaN: it is wrong. */
typedef struct distance {
    double tensor, norm, loss; /* the worst tensor's */
    const char *name;          /* that tensor */
    double squares, count;     /* of difference / E, for all tensors that are not small ones of their model */
} distance;

static double apart(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += pow((double)a[i] - (b ? (double)b[i] : 0), 2);
    return sqrt(sum);
}

/* NaN is the worst of all. */
static bool worse(double a, double b)
{
    return !(a <= b);
}

static distance compare(const expected *e, int plan, bool again, const trial_result *got)
{
    const trial_shape *s = &e->shape;
    const trial_result *exact = &e->exact[plan], *one = &e->bf16[again][plan];
    double largest = 0, targets = (double)tt_max_i64(exact->targets, 1);
    distance d = {0};
    for (int64_t i = 0; i < s->table.params.num; i++)
        largest = fmax(largest, apart(exact->gradients + s->begin[i], NULL, s->begin[i + 1] - s->begin[i]));
    for (int64_t i = 0; i < s->table.params.num; i++) {
        int64_t at = s->begin[i], n = s->begin[i + 1] - at;
        if (!s->table.params.at[i].trained) continue;
        double size = apart(exact->gradients + at, NULL, n), E = apart(one->gradients + at, exact->gradients + at, n);
        double off = apart(got->gradients + at, one->gradients + at, n);
        /* 1e-5 and 1e-6 are float's own, from test_layouts.c and trial_compare. */
        double share = off == 0 ? 0 : off / (E + ldexp(size, -7) + 1e-5 * size + 1e-6 * largest);
        if (worse(share, d.tensor)) d.tensor = share, d.name = s->table.params.at[i].name;
        if (size > 1e-3 * largest && E > 0) d.squares += off * off / (E * E), d.count++;
    }
    /* The norm is a mean over all tensors, the loss one over targets of numbers of about log(vocabulary) = 4: one place. */
    d.norm = fabs(got->norm - one->norm) / (ldexp(exact->norm, -7) + 1e-30);
    d.loss = fabs(got->nll - one->nll) / targets / ldexp(4, -9);
    return d;
}

/* --- every model and mesh ---------------------------------------------------------------------------------------- */

static void run_mesh(const trial_entry *t, distance *out)
{
    const expected *e = expected_of(t->model);
    trial_result got[MAX_PLANS];
    table_job j = {.e = e, .turn = t->turn, .got = got};
    trial_run run = {.model = &trial_models[t->model],
                     .mesh = t->mesh,
                     .ops = t->turn % 4 == 3 ? &tt_ops_ref : &tt_ops_cpu,
                     .bf16_compute = true,
                     .bf16_weights = t->turn % 2};
    for (int i = 0; i < trial_num_plans; i++) assert_ok(trial_result_open(&e->shape, &got[i]));
    assert_ok(trial_on_mesh(&run, all_plans, &j));
    for (int i = 0; i < trial_num_plans; i++) {
        assert_int_equal(got[i].targets, e->exact[i].targets);
        out[i] = compare(e, i, recomputes(t->turn + i), &got[i]);
        trial_result_close(&got[i]);
    }
}

static void layout_does_not_matter(void **state)
{
    const trial_entry *t = *state;
    distance d[MAX_PLANS];
    double squares = 0, count = 0, worst = 0;
    run_mesh(t, d);
    for (int i = 0; i < trial_num_plans; i++) {
        const char *plan = trial_plans[i].name;
        if (worse(d[i].tensor, 1)) fail_msg("%s: '%s' is %g times as far off as rounding explains", plan, d[i].name, d[i].tensor);
        if (worse(d[i].norm, 1)) fail_msg("%s: gradient norm is %g times as far off as rounding explains", plan, d[i].norm);
        if (worse(d[i].loss, 1)) fail_msg("%s: loss is %g times as far off as rounding explains", plan, d[i].loss);
        squares += d[i].squares, count += d[i].count, worst = fmax(worst, d[i].tensor);
    }
    double root = count > 0 ? sqrt(squares / count) : 0;
    print_message("# difference / E: root of the mean square %.3f; worst tensor %.2f of its tolerance\n", root, worst);
    if (worse(root, ROOT)) fail_msg("difference / E is %g over all tensors, more than layouts may add", root);
}

/* --- faults ------------------------------------------------------------------------------------------------------ */

/* Each planted fault is found, and not just so: the worst tensor, or the norm, is off by ten tolerances or more. What falls
 * upon choices alone (a bias in bf16) is left to certify, since choices are replayed here. */
static void faults_are_far_beyond(void **state)
{
    (void)state;
    static const struct {
        tt_fault_switch fault;
        const char *name, *model;
        trial_mesh mesh;
        bool norm; /* where it shows: in the norm; else in gradients */
    } faults[] = {
        {TT_FAULT_EXPERT_TIMES_EP, "expert gradients times ep", "olmoe", TRIAL_MESH(4, 2), false},
        {TT_FAULT_DENSE_TIMES_TP, "dense gradients times tp", "olmoe", {4, 2, 2, TT_DISPATCH_ALLTOALL}, false},
        {TT_FAULT_ROUTER_MISSING, "router gradient missing", "olmoe", TRIAL_MESH(2, 2), false},
        {TT_FAULT_UNWRITTEN_ROW, "a row that nobody wrote", "olmoe", TRIAL_MESH(2, 2), false},
        {TT_FAULT_SWAPPED_EXPERTS, "swapped experts", "olmoe", TRIAL_MESH(2, 2), false},
        {TT_FAULT_ROUTED_AGAIN, "recomputation routes again", "qwen3, a dense layer between", TRIAL_MESH(2, 2), false},
        {TT_FAULT_NORM_OF_ONE_AXIS, "norm over one axis", "olmoe", TRIAL_MESH(4, 2), true},
        {TT_FAULT_BALANCE_PER_RANK, "balance statistics per rank", "olmoe", TRIAL_MESH(2, 2), false},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        distance d[MAX_PLANS], bad[MAX_PLANS];
        trial_entry t = {(int)(trial_find_model(faults[i].model) - trial_models), 1, faults[i].mesh};
        double sound = 0, found = 0;
        run_mesh(&t, d);
        tt_fault_plant(faults[i].fault);
        run_mesh(&t, bad);
        tt_fault_plant(TT_FAULT_NONE);
        for (int p = 0; p < trial_num_plans; p++) {
            double without = faults[i].norm ? d[p].norm : d[p].tensor, with = faults[i].norm ? bad[p].norm : bad[p].tensor;
            sound = fmax(sound, without);
            if (worse(with, found) || isnan(with)) found = isnan(with) ? INFINITY : with;
        }
        print_message("# %s: %.3g tolerances, %.2f without the fault\n", faults[i].name, found, sound);
        assert_true(sound <= 1);
        if (!(found >= 10)) fail_msg("%s: only %g tolerances", faults[i].name, found);
    }
}

int main(void)
{
    static struct CMUnitTest tests[TRIAL_MAX_TESTS + 1];
    size_t num = trial_tests(layout_does_not_matter, 3, tests);
    tests[num++] = (struct CMUnitTest)cmocka_unit_test(faults_are_far_beyond);
    return _cmocka_run_group_tests("layouts in bf16", tests, num, NULL, free_expected);
}
