/* The balance loss by ranks (TT_BALANCE_RANK): on a mesh it is the mean of what one process computes for each batch alone,
 * in its value and in the gradient of every parameter, however experts are spread and whoever shares the batches.
 *
 * The negative log-likelihood has the weight 0 here, so that gradients are those of the balance loss and of nothing else. */
#include "support/test.h"
#include "support/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* As in test_layouts.c: sums of float products of n terms are off by about sqrt(n) 2^-24, 1e-6 through the depth of these
 * models; a wrong divisor or another rank's statistics show in the first digits. */
#define GRADIENT_TOLERANCE 1e-5
#define VALUE_TOLERANCE    2e-6
#define WEIGHT             0.7

typedef struct batch_set {
    trial_batch *rows;
    bool last_only; /* all rows in the last batch, the others have none */
} batch_set;

typedef struct job {
    const trial_shape *shape;
    batch_set set;
    tt_balance_scope scope;
    int batches; /* one process: how many batches it runs one behind the other; 0: the mesh's own */
    double value;
    float *gradients;
} job;

/* Rows of batch `which` of `num`. */
static tt_status fill(const tt_engine *e, const batch_set *set, int which, int num, tt_batch *b)
{
    *b = (tt_batch){0};
    for (int r = 0; r < set->rows->num_rows; r++)
        if (which == (set->last_only ? num - 1 : r % num))
            TT_TRY(tt_batch_add(b, &set->rows->rows[r], r, e->config.vocab_size));
    return TT_OK;
}

static tt_status one(tt_engine *e, const job *j, int which, int num, double weight, double *value)
{
    tt_batch b;
    tt_micro_result r;
    TT_TRY(fill(e, &j->set, which, num, &b));
    tt_micro micro = {.batch = &b, .backward = true, .balance = weight, .balance_scope = j->scope};
    tt_status status = tt_model_micro_step(&e->model, &micro, &r);
    tt_batch_free(&b);
    *value = r.balance_loss;
    return status;
}

static tt_status on_mesh(tt_engine *e, void *arg)
{
    job *j = arg;
    double value;
    tt_shards_zero_gradients(e->shards, e->kernel);
    TT_TRY(one(e, j, e->mesh->fsdp_rank, e->mesh->fsdp_size, WEIGHT, &value));
    trial_collect(e, j->shape, TT_PART_GRADIENT, j->gradients);
    if (e->mesh->rank == 0) j->value = value;
    return TT_OK;
}

/* The mean over the batches that have tokens, of which there is at least the last. */
static tt_status by_batches(tt_engine *e, void *arg)
{
    job *j = arg;
    int with_tokens = j->set.last_only ? 1 : j->batches;
    tt_shards_zero_gradients(e->shards, e->kernel);
    j->value = 0;
    for (int i = 0; i < j->batches; i++) {
        double value;
        TT_TRY(one(e, j, i, j->batches, WEIGHT / with_tokens, &value));
        j->value += value / with_tokens;
    }
    trial_collect(e, j->shape, TT_PART_GRADIENT, j->gradients);
    return TT_OK;
}

static void run_job(job *j, const trial_run *run)
{
    j->gradients = calloc((size_t)j->shape->total, sizeof *j->gradients);
    assert_non_null(j->gradients);
    assert_ok(trial_on_mesh(run, j->batches ? by_batches : on_mesh, j));
}

typedef struct entry {
    int world, tp, ep;
    tt_dispatch_kind dispatch;
} entry;

static const entry entries[] = {
    {1, 1, 1, TT_DISPATCH_ALLTOALL},  {2, 1, 1, TT_DISPATCH_ALLTOALL},  {2, 1, 2, TT_DISPATCH_ALLTOALL},
    {2, 1, 2, TT_DISPATCH_ALLGATHER}, {3, 1, 3, TT_DISPATCH_ALLTOALL},  {4, 1, 2, TT_DISPATCH_ALLGATHER},
    {2, 2, 2, TT_DISPATCH_ALLREDUCE}, {4, 2, 1, TT_DISPATCH_ALLTOALL},  {4, 2, 2, TT_DISPATCH_ALLTOALL},
    {4, 2, 4, TT_DISPATCH_ALLTOALL},  {4, 2, 2, TT_DISPATCH_ALLGATHER}, {4, 2, 4, TT_DISPATCH_ALLGATHER},
    {4, 2, 2, TT_DISPATCH_ALLREDUCE}, {6, 2, 2, TT_DISPATCH_ALLREDUCE},
};

/* Rows of every kind, masked ones and padding among them; then batches without a token. */
static void the_mean_of_batches_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe", "olmoe, 10 experts, tied, clamped"};
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
            for (int last_only = 0; last_only < 2; last_only++) {
                const entry *t = &entries[i];
                char what[200];
                trial_shape s;
                trial_batch rows;
                trial_run single = {.model = trial_find_model(names[m]), .mesh = TRIAL_MESH(1, 1)};
                trial_run run = {.model = single.model, .mesh = {t->world, t->ep, t->tp, t->dispatch},
                                 .ops = i % 2 ? &tt_ops_cpu : &tt_ops_ref, .keep_all = i % 3 == 0};
                assert_ok(trial_shape_open(single.model, &s));
                trial_batch_make(trial_find_plan("every kind of row"), s.config.vocab_size, 0, &rows);
                job want = {.shape = &s, .set = {&rows, last_only}, .batches = t->world / t->tp};
                job got = {.shape = &s, .set = {&rows, last_only}, .scope = TT_BALANCE_RANK};
                run_job(&want, &single);
                run_job(&got, &run);
                snprintf(what, sizeof what, "%s, %d ranks, tp %d, ep %d, dispatch %d%s", s.model->name, t->world, t->tp,
                         t->ep, (int)t->dispatch, last_only ? ", one batch has all rows" : "");
                if (!(fabs(got.value - want.value) <= VALUE_TOLERANCE))
                    fail_msg("%s: balance loss is %.9g, expected %.9g", what, got.value, want.value);
                trial_compare(&s, what, got.gradients, want.gradients, GRADIENT_TOLERANCE);
                free(want.gradients);
                free(got.gradients);
                trial_shape_close(&s);
            }
}

/* One batch, on one rank or shared: nothing to be taken together, so not a bit may differ. */
static void one_batch_has_the_same_bits(void **state)
{
    (void)state;
    static const entry shared[] = {
        {1, 1, 1, TT_DISPATCH_ALLTOALL}, {2, 2, 2, TT_DISPATCH_ALLTOALL}, {2, 2, 2, TT_DISPATCH_ALLREDUCE}};
    trial_shape s;
    trial_batch rows;
    assert_ok(trial_shape_open(trial_find_model("olmoe"), &s));
    trial_batch_make(trial_find_plan("every kind of row"), s.config.vocab_size, 0, &rows);
    for (int i = 0; i < 3; i++) {
        job by_rank = {.shape = &s, .set = {&rows, false}, .scope = TT_BALANCE_RANK}, together = by_rank;
        trial_run run = {.model = s.model, .mesh = {shared[i].world, shared[i].ep, shared[i].tp, shared[i].dispatch}};
        together.scope = TT_BALANCE_GLOBAL;
        run_job(&by_rank, &run);
        run_job(&together, &run);
        assert_true(by_rank.value == together.value);
        trial_same_bits(&s, "one batch", by_rank.gradients, together.gradients);
        free(by_rank.gradients);
        free(together.gradients);
    }
    trial_shape_close(&s);
}

/* On two batches the choice is one: a mean of products is not the product of means. */
static void two_batches_differ(void **state)
{
    (void)state;
    trial_shape s;
    trial_batch rows;
    assert_ok(trial_shape_open(trial_find_model("olmoe"), &s));
    trial_batch_make(trial_find_plan("every kind of row"), s.config.vocab_size, 0, &rows);
    job by_rank = {.shape = &s, .set = {&rows, false}, .scope = TT_BALANCE_RANK}, together = by_rank;
    trial_run run = {.model = s.model, .mesh = TRIAL_MESH(2, 2)};
    together.scope = TT_BALANCE_GLOBAL;
    run_job(&by_rank, &run);
    run_job(&together, &run);
    if (!(fabs(by_rank.value - together.value) > 1e-3))
        fail_msg("the balance loss is %.9g by ranks and %.9g together", by_rank.value, together.value);
    free(by_rank.gradients);
    free(together.gradients);
    trial_shape_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_of_batches_alone),
        cmocka_unit_test(one_batch_has_the_same_bits),
        cmocka_unit_test(two_batches_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
