/* What happens when a rank fails, leaves, stalls or disagrees; what a rank may ask about itself. Threads as ranks. */
#include "support/test.h"

#include "comm/comm.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const int sizes[] = {2, 3, 4, 5, 6, 8};
enum { NUM_SIZES = sizeof sizes / sizeof *sizes };

/* What the others wait in. Each returns the operation's status. */
static tt_status wait_in(tt_comm *comm, int which)
{
    tt_group *world = tt_comm_world(comm);
    int64_t counts[8] = {8, 8, 8, 8, 8, 8, 8, 8}, mine = 1, all[8] = {0}, received[8];
    float full[8] = {0}, sum = 0;
    tt_request *request;
    switch (which) {
    case 0:
        return tt_barrier(world, "wait");
    case 1:
        return tt_allgather(world, "wait", &mine, all, sizeof mine);
    case 2:
        return tt_alltoallv(world, "wait", all, counts, (int64_t[8]){0}, counts);
    case 3:
        return tt_reduce_scatter_f32(world, "wait", full, &sum, 1);
    case 4:
        return tt_allreduce_i64(world, "wait", &mine, 1);
    case 5:
        return tt_broadcast(world, "wait", tt_comm_size(comm) - 1, all, sizeof all);
    case 6:
        return tt_agree(world, "wait", TT_OK);
    case 7:
        TT_TRY(tt_alltoall_begin(world, "wait", all, received, sizeof mine, &request));
        for (int i = 0; i < 1000; i++) tt_comm_progress(comm);
        return tt_request_end(&request);
    default:
        TT_TRY(tt_allgather_begin(world, "wait", &mine, all, sizeof mine, &request));
        return tt_request_end(&request);
    }
}
enum { NUM_WAITS = 9 };

/* --- a rank that returns early ------------------------------------------------------------------------ */

/* The last rank fails at once, or after it has taken part in an operation. */
typedef struct early {
    int which, rounds;
    tt_status status;
} early;

static tt_status last_rank_fails(tt_comm *comm, void *arg)
{
    const early *e = arg;
    tt_comm_set_timeout(comm, 60);
    for (int i = 0; i < e->rounds; i++) TT_TRY(wait_in(comm, e->which));
    if (tt_comm_rank(comm) == tt_comm_size(comm) - 1)
        return e->status == TT_OK ? TT_OK : tt_error_set(e->status, "tensor lm_head is missing");
    return wait_in(comm, e->which);
}

static void an_error_of_one_ends_all(void **state)
{
    (void)state;
    double start = now();
    for (int which = 0; which < NUM_WAITS; which++)
        for (int k = 0; k < NUM_SIZES; k++) {
            early e = {which, k % 3, TT_EMISMATCH};
            assert_error(tt_comm_run_threads(sizes[k], last_rank_fails, &e), TT_EMISMATCH,
                         "tensor lm_head is missing");
        }
    assert_close(now() - start, 0, 10); /* against 60 s for each when nobody noticed */
}

static void a_rank_that_leaves_is_noticed(void **state)
{
    (void)state;
    for (int which = 0; which < NUM_WAITS; which++) {
        early e = {which, 1, TT_OK};
        assert_error(tt_comm_run_threads(3, last_rank_fails, &e), TT_ECOMM, "rank 2 has failed or left");
        assert_non_null(strstr(tt_error_text(), "wait (operation "));
    }
}

/* Rank 1 has its own trouble and so has rank 2; ranks 0 and 3 only see that. */
static tt_status two_fail(tt_comm *comm, void *arg)
{
    (void)arg;
    int me = tt_comm_rank(comm);
    if (me == 2) return tt_error_set(TT_EIO, "second trouble");
    if (me == 1) {
        usleep(20 * 1000);
        return tt_error_set(TT_EDATA, "first trouble");
    }
    return tt_barrier(tt_comm_world(comm), "wait");
}

static void the_lowest_own_reason_is_reported(void **state)
{
    (void)state;
    assert_error(tt_comm_run_threads(4, two_fail, NULL), TT_EDATA, "first trouble");
}

static tt_status aborts(tt_comm *comm, void *arg)
{
    (void)arg;
    if (tt_comm_rank(comm) == 1) {
        tt_comm_abort(comm, 1, "the disk is full");
        return TT_OK;
    }
    /* Waits for rank 0 or 2, never for rank 1. */
    tt_group *pair;
    TT_TRY(tt_group_create(comm, "pair", (int[]){0, 2}, 2, &pair));
    tt_status status = TT_OK;
    for (int i = 0; i < 1000 && status == TT_OK; i++) {
        usleep(1000);
        /* Rank 2 stays away. */
        if (tt_comm_rank(comm) == 0) status = tt_barrier(pair, "wait");
    }
    tt_group_destroy(&pair);
    return status;
}

static void abort_ends_operations_of_all(void **state)
{
    (void)state;
    double start = now();
    assert_error(tt_comm_run_threads(3, aborts, NULL), TT_ECOMM, "the disk is full");
    assert_close(now() - start, 0, 5);
}

static tt_status agrees(tt_comm *comm, void *arg)
{
    tt_status *seen = arg, mine = TT_OK;
    if (tt_comm_rank(comm) == 3) mine = tt_error_set(TT_EFORMAT, "bad header");
    seen[tt_comm_rank(comm)] = tt_agree(tt_comm_world(comm), "agree", mine);
    if (strcmp(tt_error_text(), "rank 3: bad header") != 0) seen[tt_comm_rank(comm)] = TT_EINTERNAL;
    return seen[tt_comm_rank(comm)];
}

/* The first ranks leave with the agreed error while the others still fetch its message. */
static void agreement_reaches_everyone(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        tt_status seen[8] = {0};
        assert_error(tt_comm_run_threads(8, agrees, seen), TT_EFORMAT, "rank 3: bad header");
        for (int r = 0; r < 8; r++) assert_int_equal(seen[r], TT_EFORMAT);
    }
}

static tt_status agree_on_a_broken_comm(tt_comm *comm, void *arg)
{
    (void)arg;
    if (tt_comm_rank(comm) == 1) return TT_OK;
    TT_CHECK(tt_barrier(tt_comm_world(comm), "wait") == TT_ECOMM, TT_EVERDICT, "the barrier passed");
    TT_CHECK(tt_agree(tt_comm_world(comm), "agree", TT_OK) == TT_ECOMM, TT_EVERDICT, "agreed with nobody");
    TT_CHECK(strstr(tt_error_text(), "agree: not started, since an earlier operation"), TT_EVERDICT,
             "message: %s", tt_error_text());
    return tt_agree(tt_comm_world(comm), "agree", tt_error_set(TT_EIO, "my own trouble"));
}

static void a_failure_of_ones_own_outlives_a_broken_link(void **state)
{
    (void)state;
    assert_error(tt_comm_run_threads(2, agree_on_a_broken_comm, NULL), TT_EIO, "my own trouble");
}

/* --- deadlines ---------------------------------------------------------------------------------------- */

static tt_status stalls(tt_comm *comm, void *arg)
{
    (void)arg;
    int me = tt_comm_rank(comm);
    tt_comm_set_timeout(comm, 0.3);
    tt_comm_set_phase(comm, "forward");
    TT_TRY(tt_barrier(tt_comm_world(comm), "meet"));
    if (me == 1 || me == 3) {
        usleep(700 * 1000);
        return TT_OK;
    }
    return tt_barrier(tt_comm_world(comm), "gather-unit");
}

static void a_deadline_names_what_is_missing(void **state)
{
    (void)state;
    double start = now();
    assert_error(tt_comm_run_threads(4, stalls, NULL), TT_ECOMM,
                 "gather-unit (operation 2 of group world, phase forward): not complete after 0.3 s; nothing "
                 "from rank "
                 "1, 3; not taken by rank 1, 3");
    double seconds = now() - start;
    assert_true(seconds > 0.3);
    assert_true(seconds < 2);
}

static tt_status slow_but_in_time(tt_comm *comm, void *arg)
{
    (void)arg;
    tt_comm_set_timeout(comm, tt_comm_rank(comm) == 0 ? 0 : 20); /* 0: never */
    if (tt_comm_rank(comm) == 1) usleep(300 * 1000);
    return tt_barrier(tt_comm_world(comm), "wait");
}

static void waiting_is_no_failure(void **state)
{
    (void)state;
    assert_ok(tt_comm_run_threads(3, slow_but_in_time, NULL));
}

/* --- overlap ------------------------------------------------------------------------------------------ */

typedef struct overlap {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended;
} overlap;

/* Rank 0 begins and then stays away from the comm until rank 1 has all it needs. */
static tt_status gather_without_rank_0(tt_comm *comm, void *arg)
{
    overlap *o = arg;
    tt_request *request;
    int64_t mine = tt_comm_rank(comm), all[2];
    tt_comm_set_timeout(comm, 5);
    TT_TRY(tt_allgather_begin(tt_comm_world(comm), "gather", &mine, all, sizeof mine, &request));
    pthread_mutex_lock(&o->lock);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 8;
    while (tt_comm_rank(comm) == 0 && !o->ended)
        if (pthread_cond_timedwait(&o->changed, &o->lock, &until) != 0) break;
    pthread_mutex_unlock(&o->lock);
    TT_TRY(tt_request_end(&request));
    pthread_mutex_lock(&o->lock);
    o->ended = true;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->lock);
    TT_CHECK(all[0] == 0 && all[1] == 1, TT_EVERDICT, "gathered %lld %lld", (long long)all[0],
             (long long)all[1]);
    return TT_OK;
}

static void a_begun_gather_needs_no_further_call(void **state)
{
    (void)state;
    overlap o = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    assert_ok(tt_comm_run_threads(2, gather_without_rank_0, &o));
}

static tt_status leaves_a_gather_open(tt_comm *comm, void *arg)
{
    (void)arg;
    static _Thread_local int64_t mine, all[4];
    tt_request *request;
    TT_TRY(tt_allgather_begin(tt_comm_world(comm), "gather", &mine, all, sizeof mine, &request));
    if (tt_comm_rank(comm) == 2) return tt_error_set(TT_EDATA, "no rows");
    TT_CHECK(tt_barrier(tt_comm_world(comm), "wait") == TT_ECOMM, TT_EVERDICT, "the barrier passed");
    TT_CHECK(tt_request_end(&request) == TT_ECOMM, TT_EVERDICT, "the gather passed");
    TT_CHECK(!request, TT_EVERDICT, "the request is not cleared");
    return TT_OK;
}

static void open_requests_are_given_up(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        assert_error(tt_comm_run_threads(4, leaves_a_gather_open, NULL), TT_EDATA, "no rows");
}

/* --- ranks that disagree ------------------------------------------------------------------------------ */

static tt_status other_size(tt_comm *comm, void *arg)
{
    (void)arg;
    char mine[8] = {0}, all[16];
    return tt_allgather(tt_comm_world(comm), "gather", mine, all, tt_comm_rank(comm) ? 8 : 4);
}

static tt_status other_name(tt_comm *comm, void *arg)
{
    (void)arg;
    return tt_barrier(tt_comm_world(comm), tt_comm_rank(comm) ? "save" : "load");
}

static tt_status negative_count(tt_comm *comm, void *arg)
{
    (void)arg;
    int64_t counts[1] = {-1};
    return tt_alltoallv(tt_comm_world(comm), "route", NULL, counts, NULL, counts);
}

static tt_status bad_root(tt_comm *comm, void *arg)
{
    (void)arg;
    return tt_broadcast(tt_comm_world(comm), "config", 2, NULL, 0);
}

static void disagreement_is_an_error(void **state)
{
    (void)state;
    assert_error(tt_comm_run_threads(2, other_size, NULL), TT_ECOMM,
                 "expects 4 bytes from rank 1, which sends 8");
    assert_error(tt_comm_run_threads(2, other_name, NULL), TT_ECOMM, "rank 1 is in operation save");
    assert_error(tt_comm_run_threads(1, negative_count, NULL), TT_EINTERNAL, "route: -1 bytes for rank 0");
    assert_error(tt_comm_run_threads(2, bad_root, NULL), TT_EINTERNAL, "root 2 is not in group world of 2");
}

static tt_status bad_groups(tt_comm *comm, void *arg)
{
    (void)arg;
    static const struct {
        int ranks[3], size;
        const char *part;
    } bad[] = {
        {{0, 1, 4}, 3, "rank 4 is not in a world of 4"},
        {{-1, 0, 0}, 2, "rank -1 is not"},
        {{0, 1, 0}, 3, "rank 0 is listed twice"},
        {{1, 2, 3}, 3, "rank 0 creates it but is not in its list"},
        {{0, 0, 0}, 0, "is not in its list of 0"},
    };
    if (tt_comm_rank(comm) != 0) return TT_OK;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tt_group *g;
        tt_status status = tt_group_create(comm, "odd", bad[i].ranks, bad[i].size, &g);
        TT_CHECK(status == TT_ECONFIG && !g && strstr(tt_error_text(), bad[i].part), TT_EVERDICT,
                 "case %zu: %s", i, tt_error_text());
    }
    return TT_OK;
}

static void bad_groups_are_refused(void **state)
{
    (void)state;
    assert_ok(tt_comm_run_threads(4, bad_groups, NULL));
    assert_error(tt_comm_run_threads(0, bad_groups, NULL), TT_ECONFIG, "a world of 0 ranks");
}

/* --- launchers, processors ---------------------------------------------------------------------------- */

static const char *const launch_variables[] = {
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS"};

static void clear_launch_variables(void)
{
    for (size_t i = 0; i < sizeof launch_variables / sizeof *launch_variables; i++)
        unsetenv(launch_variables[i]);
}

static void launchers_are_recognised(void **state)
{
    (void)state;
    static const struct {
        const char *variables; /* NAME=VALUE, blanks between */
        const char *name;
        int size;
    } cases[] = {
        {"", NULL, 0},
        {"OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=1", "OMPI_COMM_WORLD_SIZE", 4},
        {"PMI_SIZE=3 PMI_RANK=0", "PMI_SIZE", 3},
        {"PMI_RANK=0", "PMI_RANK", 0},
        {"PMIX_RANK=0", "PMIX_RANK", 0},
        {"PMIX_RANK=0 SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=8", "PMIX_RANK", 8},
        {"SLURM_PROCID=0 SLURM_NTASKS=8", NULL, 0}, /* a batch script */
        {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1", NULL, 0},
        {"SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_NUM_TASKS", 8},
        {"OMPI_COMM_WORLD_SIZE=many", "OMPI_COMM_WORLD_SIZE", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256], *rest = text;
        clear_launch_variables();
        strcpy(text, cases[i].variables);
        for (char *word; (word = strtok_r(rest, " ", &rest));) {
            *strchr(word, '=') = '\0';
            setenv(word, word + strlen(word) + 1, 1);
        }
        tt_launcher found = tt_launcher_find();
        if (cases[i].name)
            assert_string_equal(found.name, cases[i].name);
        else
            assert_null(found.name);
        assert_int_equal(found.size, cases[i].size);
    }
    clear_launch_variables();
}

static void nobody_launched_means_one_process(void **state)
{
    (void)state;
    tt_comm *comm;
    clear_launch_variables();
    assert_ok(tt_comm_create(&comm));
    assert_string_equal(tt_comm_backend(comm), "one process");
    assert_int_equal(tt_comm_size(comm), 1);
    assert_int_equal(tt_comm_rank(comm), 0);
    double mine = 2, values[1] = {3};
    int64_t bytes = sizeof mine;
    double got = 0;
    assert_ok(tt_alltoallv(tt_comm_world(comm), "route", &mine, &bytes, &got, &bytes));
    assert_close(got, 2, 0);
    assert_ok(tt_reduce_scatter_f64(tt_comm_world(comm), "sum", &mine, values, 1));
    assert_close(values[0], 5, 0);
    assert_ok(tt_barrier(tt_comm_world(comm), "barrier"));
    assert_error(tt_agree(tt_comm_world(comm), "agree", tt_error_set(TT_EIO, "no file")), TT_EIO, "no file");
    assert_string_equal(tt_error_text(), "no file");
    assert_int_equal(tt_comm_bytes_sent(comm, NULL), 0);
    tt_comm_destroy(&comm);
    assert_null(comm);
    tt_comm_destroy(&comm);
}

#ifndef TT_HAVE_MPI
static void a_launcher_needs_mpi(void **state)
{
    (void)state;
    tt_comm *comm;
    setenv("PMI_SIZE", "2", 1);
    assert_error(tt_comm_create(&comm), TT_ECONFIG, "PMI_SIZE is set");
    assert_null(comm);
    clear_launch_variables();
}
#endif

static int allowed_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

static tt_status asks_for_threads(tt_comm *comm, void *arg)
{
    (void)arg;
    int cpus = allowed_cpus(), fair = cpus / tt_comm_size(comm) > 1 ? cpus / tt_comm_size(comm) : 1;
    int got = tt_comm_threads_per_rank(comm, 0);
    TT_CHECK(got == fair, TT_EVERDICT, "%d threads, expected %d", got, fair);
    TT_CHECK(tt_comm_threads_per_rank(comm, 7) == 7, TT_EVERDICT, "the wish was not granted");
    TT_CHECK(allowed_cpus() == cpus, TT_EVERDICT, "the mask was changed");
    return TT_OK;
}

static void threads_per_rank_share_the_host(void **state)
{
    (void)state;
    for (int k = 0; k < NUM_SIZES; k++) assert_ok(tt_comm_run_threads(sizes[k], asks_for_threads, NULL));
    tt_comm *comm;
    assert_ok(tt_comm_create(&comm));
    tt_status status = asks_for_threads(comm, NULL);
    tt_comm_destroy(&comm);
    assert_ok(status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_of_one_ends_all),
        cmocka_unit_test(a_rank_that_leaves_is_noticed),
        cmocka_unit_test(the_lowest_own_reason_is_reported),
        cmocka_unit_test(abort_ends_operations_of_all),
        cmocka_unit_test(agreement_reaches_everyone),
        cmocka_unit_test(a_failure_of_ones_own_outlives_a_broken_link),
        cmocka_unit_test(a_deadline_names_what_is_missing),
        cmocka_unit_test(waiting_is_no_failure),
        cmocka_unit_test(a_begun_gather_needs_no_further_call),
        cmocka_unit_test(open_requests_are_given_up),
        cmocka_unit_test(disagreement_is_an_error),
        cmocka_unit_test(bad_groups_are_refused),
        cmocka_unit_test(launchers_are_recognised),
        cmocka_unit_test(nobody_launched_means_one_process),
#ifndef TT_HAVE_MPI
        cmocka_unit_test(a_launcher_needs_mpi),
#endif
        cmocka_unit_test(threads_per_rank_share_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
