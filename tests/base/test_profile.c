/* Scopes of phases and stages, the times they add up to, and the events of threads in bounded memory. */
#include "support/test.h"

#include "base/profile.h"

#include <omp.h>
#include <string.h>

static tt_profile *open_profile(int threads, int64_t events)
{
    tt_profile *p;
    assert_ok(tt_profile_create(threads, events, &p));
    return p;
}

/* At least so long by the clock that the profile reads. */
static void work(double seconds)
{
    double until = tt_seconds() + seconds;
    while (tt_seconds() < until) {}
}

static tt_status inner(tt_profile *p, bool fails)
{
    TT_PHASE(p, WAITING);
    work(2e-3);
    TT_CHECK(!fails, TT_EIO, "on purpose");
    work(1e-3);
    return TT_OK;
}

static tt_status outer(tt_profile *p, bool fails)
{
    TT_STAGE(p, FORWARD);
    TT_PHASE(p, EXPERTS);
    work(3e-3);
    TT_TRY(inner(p, fails));
    work(1e-3);
    return TT_OK;
}

static void time_belongs_to_the_innermost_scope(void **state)
{
    (void)state;
    tt_profile *p = open_profile(1, 100);
    double before = tt_seconds();
    tt_profile_step_begin(p, 1);
    assert_ok(outer(p, false));
    work(1e-3);
    tt_times t = tt_profile_step_end(p);
    double wall = tt_seconds() - before;
    /* Each busy loop runs at least as long as it says, and nothing is counted twice: the sum is within the wall time. */
    assert_true(t.seconds[TT_STAGE_FORWARD][TT_PHASE_EXPERTS] >= 4e-3);
    assert_true(t.seconds[TT_STAGE_FORWARD][TT_PHASE_WAITING] >= 3e-3);
    assert_true(t.seconds[TT_STAGE_BETWEEN][TT_PHASE_OTHER] >= 1e-3);
    assert_true(tt_times_sum(&t) <= wall);
    assert_true(tt_times_sum(&t) >= 8e-3);
    assert_close(tt_times_phase(&t, TT_PHASE_EXPERTS) + tt_times_phase(&t, TT_PHASE_WAITING) +
                     tt_times_phase(&t, TT_PHASE_OTHER),
                 tt_times_sum(&t), 1e-12);
    assert_close(tt_times_stage(&t, TT_STAGE_FORWARD) + tt_times_stage(&t, TT_STAGE_BETWEEN), tt_times_sum(&t), 1e-12);
    tt_profile_destroy(&p);
}

static void scopes_are_left_when_functions_fail(void **state)
{
    (void)state;
    tt_profile *p = open_profile(1, 100);
    assert_error(outer(p, true), TT_EIO, "on purpose");
    assert_int_equal(p->phase, TT_PHASE_OTHER);
    assert_int_equal(p->stage, TT_STAGE_BETWEEN);
    tt_profile_destroy(&p);
}

static void the_optimizer_is_its_own_stage(void **state)
{
    (void)state;
    tt_profile *p = open_profile(1, 100);
    tt_profile_step_begin(p, 1);
    {
        TT_PHASE(p, OPTIMIZER);
        work(1e-3);
        assert_ok(inner(p, false));
    }
    assert_int_equal(p->stage, TT_STAGE_BETWEEN);
    tt_times t = tt_profile_step_end(p);
    assert_true(t.seconds[TT_STAGE_OPTIMIZER][TT_PHASE_OPTIMIZER] >= 1e-3);
    assert_true(t.seconds[TT_STAGE_OPTIMIZER][TT_PHASE_WAITING] >= 3e-3);
    tt_profile_destroy(&p);
}

static void time_between_steps_is_no_step_s(void **state)
{
    (void)state;
    tt_profile *p = open_profile(1, 100);
    work(2e-3);
    double before = tt_seconds();
    tt_profile_step_begin(p, 1);
    tt_times t = tt_profile_step_end(p);
    assert_true(tt_times_sum(&t) <= tt_seconds() - before);
    assert_ok(inner(p, false)); /* a checkpoint, say */
    tt_profile_step_begin(p, 2);
    t = tt_profile_step_end(p);
    assert_true(tt_times_phase(&t, TT_PHASE_WAITING) == 0);
    tt_profile_destroy(&p);
}

static void events_nest_and_end_in_order(void **state)
{
    (void)state;
    static const char *const names[] = {"waiting", "experts", "forward", "step"};
    tt_profile *p = open_profile(1, 100);
    tt_profile_step_begin(p, 7);
    assert_ok(outer(p, false));
    {
        TT_PHASE(p, OTHER); /* already there: no scope, no event */
    }
    tt_profile_step_end(p);
    const tt_events *e = &p->threads[0];
    assert_int_equal(e->num, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(e->at[i].name, names[i]);
        assert_true(e->at[i].begin <= e->at[i].end);
        if (i > 0) assert_true(e->at[i].begin <= e->at[i - 1].begin && e->at[i].end >= e->at[i - 1].end);
    }
    assert_int_equal(e->at[3].number, 7);
    assert_int_equal(e->at[2].number, 0);
    tt_profile_destroy(&p);
}

static void threads_keep_their_own_events(void **state)
{
    (void)state;
    enum { THREADS = 3 };
    tt_profile *p = open_profile(THREADS, 100);
    int sum = 0;
#pragma omp parallel num_threads(THREADS + 1)
    TT_SPAN(p, "a loop")
#pragma omp for schedule(static) nowait reduction(+ : sum)
    for (int i = 0; i < 100; i++) sum += i;
    assert_int_equal(sum, 4950);
    /* A thread that the profile does not know has no place, and takes none of others. */
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(p->threads[t].num, 1);
        assert_string_equal(p->threads[t].at[0].name, "a loop");
        assert_true(p->threads[t].at[0].begin <= p->threads[t].at[0].end);
    }
    tt_profile_destroy(&p);
}

static void events_that_do_not_fit_are_counted(void **state)
{
    (void)state;
    tt_profile *p = open_profile(2, 3);
    tt_profile_step_begin(p, 1);
    for (int i = 0; i < 5; i++) TT_SPAN(p, "span") work(0);
    TT_SPAN(p, "span") assert_ok(inner(p, false));
    tt_times t = tt_profile_step_end(p);
    assert_int_equal(p->threads[0].num, 3);
    assert_int_equal(p->threads[0].left_out, 5); /* 6 spans, a phase and the step */
    assert_int_equal(p->threads[1].num, 0);
    assert_true(tt_times_phase(&t, TT_PHASE_WAITING) >= 3e-3); /* sums go on */
    tt_profile_destroy(&p);
}

static void without_a_profile_scopes_are_nothing(void **state)
{
    (void)state;
    int runs = 0;
    assert_ok(outer(NULL, false));
    TT_SPAN(NULL, "span") runs++;
    assert_int_equal(runs, 1);
    tt_profile *none = NULL;
    tt_profile_destroy(&none);
}

static void names_are_distinct(void **state)
{
    (void)state;
    for (int i = 0; i < TT_NUM_PHASES; i++)
        for (int j = 0; j < i; j++) assert_string_not_equal(tt_phase_name((tt_phase)i), tt_phase_name((tt_phase)j));
    for (int i = 0; i < TT_NUM_STAGES; i++)
        for (int j = 0; j < i; j++) assert_string_not_equal(tt_stage_name((tt_stage)i), tt_stage_name((tt_stage)j));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_belongs_to_the_innermost_scope),
        cmocka_unit_test(scopes_are_left_when_functions_fail),
        cmocka_unit_test(the_optimizer_is_its_own_stage),
        cmocka_unit_test(time_between_steps_is_no_step_s),
        cmocka_unit_test(events_nest_and_end_in_order),
        cmocka_unit_test(threads_keep_their_own_events),
        cmocka_unit_test(events_that_do_not_fit_are_counted),
        cmocka_unit_test(without_a_profile_scopes_are_nothing),
        cmocka_unit_test(names_are_distinct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
