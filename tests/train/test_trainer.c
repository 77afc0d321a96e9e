/* The public trainer on ranks that are threads: steps lower the loss, and options that cannot be are refused at once. */
#include "support/test.h"

#include "tartan/trainer.h"

#include <math.h>
#include <stddef.h>

typedef struct job {
    const char *model;
    double balance;
    int64_t kept; /* besides the usual layer */
    tt_trainer_result first, last; /* of rank 0 */
} job;

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_trainer *trainer;
    tt_trainer_options o = TT_TRAINER_OPTIONS;
    tt_comm_set_timeout(comm, 60);
    o.model = j->model;
    o.balance = j->balance;
    o.kept_layers += j->kept;
    o.bf16 = j->kept == 0;
    o.threads = 1;
    TT_TRY(tt_trainer_open(comm, &o, &trainer));
    int32_t ids[] = {3, 9, 27, 81, 51, 61, 91, 85};
    tt_trainer_row row = {8, ids, NULL};
    tt_trainer_micro micros[] = {{1, &row}, {tt_comm_rank(comm) == 0, &row}}; /* one rank without rows */
    tt_status status = TT_OK;
    for (int i = 0; i < 4 && status == TT_OK; i++) {
        tt_trainer_result r;
        status = tt_trainer_step(trainer, micros, 2, 1e-2, &r);
        if (tt_comm_rank(comm) == 0) *(i ? &j->last : &j->first) = r;
    }
    tt_trainer_close(&trainer);
    return status;
}

static void steps_lower_the_loss(void **state)
{
    (void)state;
    job j = {.model = "tests/fixtures/O1/model", .balance = 0.01};
    assert_ok(tt_comm_run_threads(2, rank_main, &j));
    assert_int_equal(j.first.tokens, 24);
    assert_int_equal(j.first.targets, 21);
    if (!(j.last.loss < j.first.loss)) fail_msg("loss %g, then %g", j.first.loss, j.last.loss);
}

/* In fp32 what is computed again has the bits of the first time. */
static void kept_layers_change_no_bit(void **state)
{
    (void)state;
    job none = {.model = "tests/fixtures/O1/model", .kept = -1}, all = {.model = "tests/fixtures/O1/model", .kept = 100};
    assert_ok(tt_comm_run_threads(2, rank_main, &none));
    assert_ok(tt_comm_run_threads(2, rank_main, &all));
    assert_memory_equal(&none.last.loss, &all.last.loss, sizeof(double));
    assert_memory_equal(&none.last.grad_norm, &all.last.grad_norm, sizeof(double));
}

/* The loss of one step in fp32 with a heavy balance loss, on row `row` of two, or on each rank's own. */
typedef struct balance_job {
    bool by_rank;
    int row; /* -1: the rank's own */
    double loss;
} balance_job;

static tt_status one_step(tt_comm *comm, void *arg)
{
    balance_job *j = arg;
    tt_trainer *trainer;
    tt_trainer_options o = TT_TRAINER_OPTIONS;
    tt_comm_set_timeout(comm, 60);
    o.model = "tests/fixtures/O1/model";
    o.balance = 1;
    o.balance_by_rank = j->by_rank;
    o.bf16 = false;
    o.threads = 1;
    TT_TRY(tt_trainer_open(comm, &o, &trainer));
    int32_t ids[2][8] = {{3, 9, 27, 81, 51, 61, 91, 85}, {2, 4, 8, 16, 32, 64, 5, 5}};
    tt_trainer_row row = {8, ids[j->row < 0 ? tt_comm_rank(comm) : j->row], NULL};
    tt_trainer_result r;
    tt_status status = tt_trainer_step(trainer, &(tt_trainer_micro){1, &row}, 1, 1e-2, &r);
    if (status == TT_OK && tt_comm_rank(comm) == 0) j->loss = r.loss;
    tt_trainer_close(&trainer);
    return status;
}

/* By ranks the loss of two of equal length is the mean of what each has alone; together it is another number. */
static void the_balance_loss_is_taken_over_what_is_asked_for(void **state)
{
    (void)state;
    balance_job first = {.row = 0}, second = {.row = 1}, apart = {.by_rank = true, .row = -1}, together = {.row = -1};
    assert_ok(tt_comm_run_threads(1, one_step, &first));
    assert_ok(tt_comm_run_threads(1, one_step, &second));
    assert_ok(tt_comm_run_threads(2, one_step, &apart));
    assert_ok(tt_comm_run_threads(2, one_step, &together));
    double mean = (first.loss + second.loss) / 2;
    assert_close(apart.loss, mean, 1e-5);
    if (!(fabs(together.loss - mean) > 1e-3)) fail_msg("together %.9g, apart %.9g", together.loss, mean);
}

static tt_status open_with_other_threads(tt_comm *comm, void *arg)
{
    tt_trainer *trainer;
    tt_trainer_options o = TT_TRAINER_OPTIONS;
    tt_comm_set_timeout(comm, 60);
    o.model = "tests/fixtures/O1/model";
    o.mesh.tp_size = *(const int *)arg;
    o.threads = 1 + tt_comm_rank(comm);
    TT_TRY(tt_trainer_open(comm, &o, &trainer));
    tt_trainer_close(&trainer);
    return TT_OK;
}

/* Rounding depends on threads and instructions, and replicas must hold the same bits. Ranks with rows of their own need not. */
static void replicas_compute_alike_or_not_at_all(void **state)
{
    (void)state;
    int tp = 1;
    assert_ok(tt_comm_run_threads(2, open_with_other_threads, &tp));
    tp = 2;
    assert_error(tt_comm_run_threads(2, open_with_other_threads, &tp), TT_ECONFIG, "2 threads', and another that shares its batch");
}

static void options_that_cannot_be_are_refused(void **state)
{
    (void)state;
    job j = {.model = "tests/fixtures/G1/model", .balance = 0.01};
    assert_error(tt_comm_run_threads(2, rank_main, &j), TT_ECONFIG, "no balance loss; set 0");
    j = (job){.model = "tests/fixtures/O1/model", .kept = -2};
    assert_error(tt_comm_run_threads(2, rank_main, &j), TT_ECONFIG, "tt_trainer_options.kept_layers is -1; it is 0 or more");
    j = (job){.model = "tests/fixtures/none"};
    assert_error(tt_comm_run_threads(2, rank_main, &j), TT_EIO, "tests/fixtures/none/config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_lower_the_loss),
        cmocka_unit_test(kept_layers_change_no_bit),
        cmocka_unit_test(the_balance_loss_is_taken_over_what_is_asked_for),
        cmocka_unit_test(replicas_compute_alike_or_not_at_all),
        cmocka_unit_test(options_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
