/* Every operation against a plainly computed result, on threads as ranks; over MPI when started by test_mpi.sh.
 *
 *   test_comm              sizes 1, 2, 3, 4, 5, 6, 8 as threads, each with the usual limits and with tiny ones
 *   test_comm mpi          the same checks on the ranks that mpirun started; silent, exit status 0 when all pass
 *   test_comm mpi-abort    the last rank aborts with a message and status 3 while the others wait for it
 *   test_comm mpi-assert   the last rank breaks an invariant of tartan while the others wait for it
 *   test_comm mpi-stall    the last rank stalls; the others meet their deadline
 *   test_comm mpi-order    the last rank is in another operation
 *   test_comm mpi-sizes    the last rank sends less than the others expect
 *   test_comm mpi-slow     the last rank moves bytes for longer than the timeout of the others, who wait for it
 *   test_comm mpi-still    the last rank begins to move bytes and stops
 *   test_comm mpi-crash    the last rank crashes
 *   test_comm mpi-orphans  all ranks but the last two are killed while these wait
 *   test_comm mpi-cpus     print threads per rank, CPUs before and CPUs after
 *   test_comm alone        print the backend that tt_comm_create chooses
 *
 * Ranks may be threads, where cmocka cannot fail, so a check returns a status, with what differs in the message.
 */
#include "support/test.h"

#include "base/checked.h"
#include "comm/comm.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPECT(cond, ...)                                                                                    \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            tt_error_set(TT_EVERDICT, __VA_ARGS__);                                                          \
            return tt_error_context(TT_EVERDICT, "%s:%d: %s", __FILE__, __LINE__, #cond);                    \
        }                                                                                                    \
    } while (0)

/* More than any check needs of anything. */
#define MAX_RANKS 8

/* Byte i of what rank `from` has for rank `to`: different for neighbours in every argument. */
static unsigned char byte_of(int from, int to, int64_t i)
{
    return (unsigned char)(from * 37 + to * 101 + i * 7 + (i >> 8) * 13 + 1);
}

/* Numbers whose sum depends on the order: sizes from 1e-3 to 1e9, both signs. */
static double term(int rank, int64_t i)
{
    static const double scale[] = {1e9, 1e-3, 7.7, 1e5};
    return ((double)((i * 31 + rank * 17) % 23) - 11.3) * scale[(i + rank * 3) % 4];
}

/* --- moving bytes ------------------------------------------------------------------------------------- */

static tt_status check_barrier(tt_comm *comm)
{
    for (int i = 0; i < 3; i++) TT_TRY(tt_barrier(tt_comm_world(comm), "barrier"));
    return TT_OK;
}

static tt_status check_allgather(tt_comm *comm)
{
    static const size_t sizes[] = {0, 1, 7, 1000};
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    unsigned char mine[1000], all[MAX_RANKS * 1000 + 1];
    for (size_t k = 0; k < 4; k++)
        for (int in_place = 0; in_place < 2; in_place++) {
            size_t bytes = sizes[k];
            memset(all, 0xEE, sizeof all);
            unsigned char *from = in_place ? all + (size_t)me * bytes : mine;
            for (size_t i = 0; i < bytes; i++) from[i] = byte_of(me, 0, (int64_t)i);
            TT_TRY(tt_allgather(tt_comm_world(comm), "allgather", from, all, bytes));
            for (int r = 0; r < size; r++)
                for (size_t i = 0; i < bytes; i++)
                    EXPECT(all[(size_t)r * bytes + i] == byte_of(r, 0, (int64_t)i), "byte %zu of rank %d", i,
                           r);
            EXPECT(all[(size_t)size * bytes] == 0xEE, "wrote past the end");
        }
    return TT_OK;
}

static tt_status check_alltoall(tt_comm *comm)
{
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    unsigned char send[MAX_RANKS * 33], recv[MAX_RANKS * 33 + 1];
    for (size_t bytes = 0; bytes <= 33; bytes += 11) {
        memset(recv, 0xEE, sizeof recv);
        for (int r = 0; r < size; r++)
            for (size_t i = 0; i < bytes; i++) send[(size_t)r * bytes + i] = byte_of(me, r, (int64_t)i);
        TT_TRY(tt_alltoall(tt_comm_world(comm), "alltoall", send, recv, bytes));
        for (int r = 0; r < size; r++)
            for (size_t i = 0; i < bytes; i++)
                EXPECT(recv[(size_t)r * bytes + i] == byte_of(r, me, (int64_t)i), "byte %zu of rank %d", i,
                       r);
        EXPECT(recv[(size_t)size * bytes] == 0xEE, "wrote past the end");
    }
    return TT_OK;
}

/* Bytes from one rank to another: uneven, many of them none; round 2 has nothing at all. */
static int64_t uneven(int from, int to, int round)
{
    return round == 2 || (from + to) % 3 == 0 ? 0 : (from * 19 + to * 7 + round * 100) % 257;
}

static tt_status check_alltoallv(tt_comm *comm)
{
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    for (int round = 0; round < 3; round++) {
        unsigned char send[MAX_RANKS * 257], recv[MAX_RANKS * 257 + 1];
        int64_t send_bytes[MAX_RANKS], recv_bytes[MAX_RANKS], at = 0;
        memset(recv, 0xEE, sizeof recv);
        for (int r = 0; r < size; r++) {
            send_bytes[r] = uneven(me, r, round), recv_bytes[r] = uneven(r, me, round);
            for (int64_t i = 0; i < send_bytes[r]; i++) send[at++] = byte_of(me, r, i);
        }
        bool nothing = round == 2;
        TT_TRY(tt_alltoallv(tt_comm_world(comm), "alltoallv", nothing ? NULL : send, send_bytes,
                            nothing ? NULL : recv, recv_bytes));
        at = 0;
        for (int r = 0; r < size; r++)
            for (int64_t i = 0; i < recv_bytes[r]; i++)
                EXPECT(recv[at++] == byte_of(r, me, i), "byte %lld of rank %d", (long long)i, r);
        EXPECT(recv[at] == 0xEE, "wrote past the end");
    }
    return TT_OK;
}

static tt_status check_broadcast(tt_comm *comm)
{
    unsigned char data[500];
    for (int root = 0; root < tt_comm_size(comm); root++)
        for (size_t bytes = 0; bytes <= sizeof data; bytes += 250) {
            for (size_t i = 0; i < bytes; i++)
                data[i] = tt_comm_rank(comm) == root ? byte_of(root, 3, (int64_t)i) : 0;
            TT_TRY(tt_broadcast(tt_comm_world(comm), "broadcast", root, data, bytes));
            for (size_t i = 0; i < bytes; i++)
                EXPECT(data[i] == byte_of(root, 3, (int64_t)i), "byte %zu of root %d", i, root);
        }
    return TT_OK;
}

static tt_status check_gatherv(tt_comm *comm)
{
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    for (int root = 0; root < size; root++) {
        unsigned char send[257], recv[MAX_RANKS * 257];
        int64_t recv_bytes[MAX_RANKS], mine = uneven(me, root, 1), at = 0;
        for (int64_t i = 0; i < mine; i++) send[i] = byte_of(me, root, i);
        for (int r = 0; r < size; r++) recv_bytes[r] = uneven(r, root, 1);
        bool is_root = me == root;
        TT_TRY(tt_gatherv(tt_comm_world(comm), "gatherv", root, send, mine, is_root ? recv : NULL,
                          is_root ? recv_bytes : NULL));
        for (int r = 0; is_root && r < size; r++)
            for (int64_t i = 0; i < recv_bytes[r]; i++)
                EXPECT(recv[at++] == byte_of(r, root, i), "byte %lld of rank %d", (long long)i, r);
    }
    return TT_OK;
}

/* --- sums --------------------------------------------------------------------------------------------- */

/* Plain sums in the order of a list of ranks, in the element's own type. */
static float sum_f32(const int *ranks, int size, int64_t i)
{
    float sum = (float)term(ranks[0], i);
    for (int r = 1; r < size; r++) sum += (float)term(ranks[r], i);
    return sum;
}

static double sum_f64(const int *ranks, int size, int64_t i)
{
    double sum = term(ranks[0], i);
    for (int r = 1; r < size; r++) sum += term(ranks[r], i);
    return sum;
}

static const int in_order[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};

/* Reduce-scatter and all-reduce over a group of these world ranks, `count` elements, bit for bit. */
static tt_status check_sums_over(tt_group *group, int me, const int *ranks, int64_t count)
{
    enum { MOST = 1200 };
    static _Thread_local float full32[MAX_RANKS * MOST], mine32[MOST];
    static _Thread_local double full64[MAX_RANKS * MOST], mine64[MOST];
    int size = tt_group_size(group), place = tt_group_rank(group);
    for (int64_t i = 0; i < size * count; i++) full64[i] = term(me, i), full32[i] = (float)full64[i];
    for (int64_t i = 0; i < count; i++) mine32[i] = 0.25F, mine64[i] = 0.25;
    TT_TRY(tt_reduce_scatter_f32(group, "reduce-scatter-f32", full32, mine32, count));
    TT_TRY(tt_reduce_scatter_f64(group, "reduce-scatter-f64", full64, mine64, count));
    for (int64_t i = 0; i < count; i++) {
        float want32 = 0.25F + sum_f32(ranks, size, place * count + i);
        double want64 = 0.25 + sum_f64(ranks, size, place * count + i);
        EXPECT(mine32[i] == want32, "element %lld: %.9g, expected %.9g", (long long)i, (double)mine32[i],
               (double)want32);
        EXPECT(mine64[i] == want64, "element %lld: %.17g, expected %.17g", (long long)i, mine64[i], want64);
        EXPECT(full64[i] == term(me, i), "the input was changed at %lld", (long long)i);
        mine64[i] = term(me, i);
    }
    TT_TRY(tt_allreduce_f64(group, "allreduce-f64", mine64, count));
    for (int64_t i = 0; i < count; i++)
        EXPECT(mine64[i] == sum_f64(ranks, size, i), "element %lld: %.17g, expected %.17g", (long long)i,
               mine64[i], sum_f64(ranks, size, i));
    return TT_OK;
}

static tt_status check_sums(tt_comm *comm)
{
    static const int64_t counts[] = {0, 1, 5, 513, 1200};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        TT_TRY(check_sums_over(tt_comm_world(comm), tt_comm_rank(comm), in_order, counts[k]));
    return TT_OK;
}

static tt_status check_integers(tt_comm *comm)
{
    int64_t me = tt_comm_rank(comm), size = tt_comm_size(comm), sums[40], most[40];
    for (int64_t i = 0; i < 40; i++) sums[i] = (me + 1) * i, most[i] = i % 2 ? -me - 1 : me * i;
    TT_TRY(tt_allreduce_i64(tt_comm_world(comm), "allreduce-i64", sums, 40));
    TT_TRY(tt_allreduce_max_i64(tt_comm_world(comm), "allreduce-max", most, 40));
    for (int64_t i = 0; i < 40; i++) {
        EXPECT(sums[i] == size * (size + 1) / 2 * i, "sum %lld is %lld", (long long)i, (long long)sums[i]);
        EXPECT(most[i] == (i % 2 ? -1 : (size - 1) * i), "maximum %lld is %lld", (long long)i,
               (long long)most[i]);
    }
    if (size == 1) return TT_OK;
    int64_t large = me < 2 ? INT64_MAX / 2 + 2 : 0;
    EXPECT(tt_allreduce_i64(tt_comm_world(comm), "allreduce-i64", &large, 1) == TT_ENOMEM,
           "an overflow passed");
    /* That is an answer, not a failure of the comm: all ranks have it. */
    return tt_barrier(tt_comm_world(comm), "barrier");
}

/* --- groups, interleaving ----------------------------------------------------------------------------- */

/* Groups that overlap: halves by parity, neighbours, the world backwards (whose sums come in that order). */
static tt_status check_groups(tt_comm *comm)
{
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    int parity[MAX_RANKS], num = 0, backwards[MAX_RANKS], pair[2] = {me - me % 2, me - me % 2 + 1};
    for (int r = me % 2; r < size; r += 2) parity[num++] = r;
    for (int r = 0; r < size; r++) backwards[r] = size - 1 - r;
    int pair_size = pair[1] < size ? 2 : 1;
    tt_group *a, *b, *c;
    TT_TRY(tt_group_create(comm, "parity", parity, num, &a));
    TT_TRY(tt_group_create(comm, "pair", pair, pair_size, &b));
    TT_TRY(tt_group_create(comm, "backwards", backwards, size, &c));
    EXPECT(tt_group_rank(a) == me / 2 && tt_group_size(a) == num, "rank %d of %d", tt_group_rank(a),
           tt_group_size(a));
    EXPECT(tt_group_rank(c) == size - 1 - me, "rank %d", tt_group_rank(c));
    TT_TRY(check_sums_over(a, me, parity, 100));
    TT_TRY(check_sums_over(b, me, pair, 100));
    TT_TRY(check_sums_over(c, me, backwards, 100));
    TT_TRY(check_sums_over(tt_comm_world(comm), me, in_order, 100));
    tt_group_destroy(&a);
    tt_group_destroy(&b);
    tt_group_destroy(&c);
    tt_group_destroy(&c);
    tt_group *world = tt_comm_world(comm);
    tt_group_destroy(&world);
    EXPECT(world == NULL, "not cleared");
    return tt_barrier(tt_comm_world(comm), "barrier");
}

/* Exchanges of every pair that are moved along while the rank does something else, ended in another order than begun. */
static tt_status check_progress(tt_comm *comm)
{
    enum { N = 301 };
    static _Thread_local int32_t sent[2][MAX_RANKS * N], got[2][MAX_RANKS * N];
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    tt_request *requests[2];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < size * N; k++) sent[i][k] = i + 10 * me + 100 * (k / N) + 1000 * (k % N);
        TT_TRY(tt_alltoall_begin(tt_comm_world(comm), "exchange", sent[i], got[i], N * sizeof **got, &requests[i]));
        for (int turn = 0; turn < 100; turn++) tt_comm_progress(comm);
    }
    for (int i = 1; i >= 0; i--) TT_TRY(tt_request_end(&requests[i]));
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < size * N; k++)
            EXPECT(got[i][k] == i + 10 * (k / N) + 100 * me + 1000 * (k % N), "element %d is %d", k, got[i][k]);
    tt_comm_progress(comm); /* nothing to move is fine */
    return TT_OK;
}

/* Operations on other groups in an order that differs from rank to rank, with two gathers of the world under way. */
static tt_status check_interleaved(tt_comm *comm)
{
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    int pair[2] = {me - me % 2, me - me % 2 + 1}, pair_size = pair[1] < size ? 2 : 1;
    tt_group *group, *world = tt_comm_world(comm);
    tt_request *one, *two;
    int64_t first = me + 10, second = me + 20, firsts[MAX_RANKS], seconds[MAX_RANKS], sum = 1, pair_sum = 1;
    TT_TRY(tt_group_create(comm, "pair", pair, pair_size, &group));
    if (pair[0] % 4 == 0) TT_TRY(tt_allreduce_i64(group, "pair-sum", &pair_sum, 1));
    TT_TRY(tt_allgather_begin(world, "gather", &first, firsts, sizeof first, &one));
    TT_TRY(tt_barrier(world, "barrier"));
    TT_TRY(tt_allgather_begin(world, "gather", &second, seconds, sizeof second, &two));
    if (pair[0] % 4 != 0) TT_TRY(tt_allreduce_i64(group, "pair-sum", &pair_sum, 1));
    TT_TRY(tt_allreduce_i64(world, "sum", &sum, 1));
    TT_TRY(tt_request_end(&one));
    TT_TRY(tt_request_end(&two));
    EXPECT(one == NULL && two == NULL, "requests are not cleared");
    EXPECT(sum == size && pair_sum == pair_size, "sums are %lld and %lld", (long long)sum,
           (long long)pair_sum);
    for (int r = 0; r < size; r++) EXPECT(firsts[r] == r + 10 && seconds[r] == r + 20, "rank %d", r);
    tt_group_destroy(&group);
    return tt_request_end(&one); /* nothing to end is fine */
}

/* --- agreement, counting ------------------------------------------------------------------------------ */

static tt_status check_agree(tt_comm *comm)
{
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    tt_group *world = tt_comm_world(comm);
    EXPECT(tt_agree(world, "agree", TT_OK) == TT_OK, "%s", tt_error_text());
    for (int low = 0; low < size; low++) {
        /* `low` and every second one above it fail, each with a message of its own. */
        bool bad = me >= low && (me - low) % 2 == 0;
        tt_status mine = bad ? tt_error_set(me == low ? TT_EDATA : TT_EIO, "file %d is bad", me) : TT_OK;
        char want[64];
        snprintf(want, sizeof want, size > 1 ? "rank %d: file %d is bad" : "file %d is bad", low, low);
        for (int again = 0; again < 2; again++) {
            tt_status got = tt_agree(world, "agree", mine);
            EXPECT(got == TT_EDATA, "rank %d: %s", me, tt_status_name(got));
            EXPECT(strcmp(tt_error_text(), want) == 0, "message: %s", tt_error_text());
            mine = got; /* agreed on once more at an outer border: the same message, not another rank's */
        }
    }
    return tt_agree(world, "agree", TT_OK);
}

static tt_status check_bytes(tt_comm *comm)
{
    int me = tt_comm_rank(comm), size = tt_comm_size(comm);
    char copy[] = "count-gather"; /* another address, the same name */
    unsigned char mine[100] = {0}, all[MAX_RANKS * 100];
    float full[MAX_RANKS * 10] = {0}, sum[10] = {0};
    int64_t sends[MAX_RANKS], recvs[MAX_RANKS], sent = 0;
    unsigned char data[MAX_RANKS * 257] = {0}, got[MAX_RANKS * 257];
    int64_t before = tt_comm_bytes_sent(comm, NULL), gathers = tt_comm_bytes_sent(comm, "count-gather");
    int64_t sums = tt_comm_bytes_sent(comm, "count-sum"), routes = tt_comm_bytes_sent(comm, "count-route");
    TT_TRY(tt_allgather(tt_comm_world(comm), "count-gather", mine, all, 100));
    TT_TRY(tt_allgather(tt_comm_world(comm), "count-gather", mine, all, 100));
    TT_TRY(tt_reduce_scatter_f32(tt_comm_world(comm), "count-sum", full, sum, 10));
    for (int r = 0; r < size; r++) {
        sends[r] = uneven(me, r, 1), recvs[r] = uneven(r, me, 1);
        if (r != me) sent += sends[r];
    }
    TT_TRY(tt_alltoallv(tt_comm_world(comm), "count-route", data, sends, got, recvs));
    gathers = tt_comm_bytes_sent(comm, copy) - gathers;
    sums = tt_comm_bytes_sent(comm, "count-sum") - sums;
    routes = tt_comm_bytes_sent(comm, "count-route") - routes;
    EXPECT(gathers == 200 * (size - 1), "gather: %lld", (long long)gathers);
    EXPECT(sums == 40 * (size - 1), "sum: %lld", (long long)sums);
    EXPECT(routes == sent, "route: %lld, expected %lld", (long long)routes, (long long)sent);
    EXPECT(tt_comm_bytes_sent(comm, NULL) - before == gathers + sums + routes, "the total differs");
    EXPECT(tt_comm_bytes_sent(comm, "never") == 0, "a name nobody used");
    return TT_OK;
}

/* --- running the checks ------------------------------------------------------------------------------- */

typedef tt_status (*check_fn)(tt_comm *comm);
static const struct {
    const char *name;
    check_fn run;
} checks[] = {
    {"barrier", check_barrier},     {"allgather", check_allgather},
    {"alltoall", check_alltoall},   {"alltoallv", check_alltoallv},
    {"broadcast", check_broadcast}, {"gatherv", check_gatherv},
    {"sums", check_sums},           {"integers", check_integers},
    {"groups", check_groups},       {"interleaved", check_interleaved},
    {"progress", check_progress},
    {"agree", check_agree},         {"bytes", check_bytes},
};
enum { NUM_CHECKS = sizeof checks / sizeof *checks };

/* With tiny limits every transfer has several pieces and every sum several rounds, the last ones uneven. */
static tt_status run_check(tt_comm *comm, int index)
{
    for (int tiny = 0; tiny < 2; tiny++) {
        if (tiny) tt_comm_set_limits(comm, 13, 200);
        tt_status status = checks[index].run(comm);
        if (status != TT_OK)
            return tt_error_context(status, "%s, rank %d of %d%s", checks[index].name, tt_comm_rank(comm),
                                    tt_comm_size(comm), tiny ? ", tiny limits" : "");
    }
    tt_comm_set_limits(comm, 1 << 30, 1 << 24);
    return TT_OK;
}

static tt_status one_check(tt_comm *comm, void *arg)
{
    EXPECT(strcmp(tt_comm_backend(comm), "threads") == 0, "%s", tt_comm_backend(comm));
    EXPECT(tt_comm_host_size(comm) == tt_comm_size(comm), "%d ranks on the host", tt_comm_host_size(comm));
    tt_comm_set_timeout(comm, 30);
    return run_check(comm, *(int *)arg);
}

static void check_as_threads(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 8};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        assert_ok(tt_comm_run_threads(sizes[k], one_check, *state));
}

static int run_as_threads(void)
{
    static int index[NUM_CHECKS];
    struct CMUnitTest tests[NUM_CHECKS];
    for (int i = 0; i < NUM_CHECKS; i++) {
        index[i] = i;
        tests[i] = (struct CMUnitTest){checks[i].name, check_as_threads, NULL, NULL, &index[i]};
    }
    return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}

/* --- over MPI ----------------------------------------------------------------------------------------- */

static tt_status run_all(tt_comm *comm)
{
    EXPECT(strcmp(tt_comm_backend(comm), "MPI") == 0, "%s", tt_comm_backend(comm));
    EXPECT(tt_comm_size(comm) <= MAX_RANKS, "%d ranks", tt_comm_size(comm));
    EXPECT(tt_comm_host_size(comm) == tt_comm_size(comm), "%d ranks on the host", tt_comm_host_size(comm));
    EXPECT(tt_comm_host_rank(comm) == tt_comm_rank(comm), "rank %d on the host", tt_comm_host_rank(comm));
    for (int i = 0; i < NUM_CHECKS; i++) TT_TRY(run_check(comm, i));
    return TT_OK;
}

static int num_cpus(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : -1;
}

static tt_status run_mode(tt_comm *comm, const char *mode)
{
    bool last = tt_comm_rank(comm) == tt_comm_size(comm) - 1;
    if (strcmp(mode, "mpi") == 0) return run_all(comm);
    if (strcmp(mode, "mpi-abort") == 0) {
        if (last) tt_comm_abort(comm, 3, "the disk is full");
        return tt_barrier(tt_comm_world(comm), "wait-for-all");
    }
    if (strcmp(mode, "mpi-assert") == 0) {
        TT_ASSERT(!last);
        return tt_barrier(tt_comm_world(comm), "wait-for-all");
    }
    if (strcmp(mode, "mpi-stall") == 0) {
        tt_comm_set_timeout(comm, 0.5);
        tt_comm_set_phase(comm, "load");
        if (last) sleep(60);
        return tt_barrier(tt_comm_world(comm), "wait-for-all");
    }
    if (strcmp(mode, "mpi-order") == 0) return tt_barrier(tt_comm_world(comm), last ? "leave-early" : "wait-for-all");
    if (strcmp(mode, "mpi-sizes") == 0) {
        char all[64];
        return tt_allgather(tt_comm_world(comm), "share", "0123456789", all, last ? 9 : 10);
    }
    if (strcmp(mode, "mpi-slow") == 0 || strcmp(mode, "mpi-still") == 0) {
        bool still = strcmp(mode, "mpi-still") == 0;
        tt_comm_set_timeout(comm, 0.5);
        tt_comm_set_phase(comm, "load");
        tt_comm_transfer_begin(comm, 3000);
        /* 2 s in all, four times the timeout, but never 0.5 s without a byte. */
        for (int i = 0; last && i < 20; i++) {
            usleep(100 * 1000);
            if (!still || i < 5) tt_comm_transfer_add(comm, 150);
        }
        tt_comm_transfer_end(comm);
        TT_TRY(tt_barrier(tt_comm_world(comm), "wait-for-all"));
        puts("met");
        return TT_OK;
    }
    if (strcmp(mode, "mpi-crash") == 0) {
        tt_comm_catch_crashes(comm);
        tt_comm_set_phase(comm, "forward");
        tt_comm_set_step(comm, 7);
        if (last) raise(SIGSEGV);
        return tt_barrier(tt_comm_world(comm), "wait-for-all");
    }
    if (strcmp(mode, "mpi-orphans") == 0) {
        /* As in tartan sft, which catches it: mpirun sends it to those who are left, and they would end before their report. */
        signal(SIGTERM, SIG_IGN);
        int64_t pid = getpid(), pids[MAX_RANKS];
        TT_TRY(tt_allgather(tt_comm_world(comm), "process-ids", &pid, pids, sizeof pid));
        /* By a survivor's hand and in this order: whoever may still speak meanwhile, it is of rank 0. If each killed itself, rank 0
         * might live long enough to report another. */
        for (int r = 0; last && r < tt_comm_size(comm) - 2; r++) kill((pid_t)pids[r], SIGKILL);
        return tt_barrier(tt_comm_world(comm), "wait-for-all");
    }
    if (strcmp(mode, "mpi-cpus") == 0) {
        int before = num_cpus(), threads = tt_comm_threads_per_rank(comm, 0);
        printf("%d %d %d\n", threads, before, num_cpus());
        return TT_OK;
    }
    if (strcmp(mode, "alone") == 0) {
        printf("%s\n", tt_comm_backend(comm));
        return TT_OK;
    }
    return tt_error_set(TT_ECONFIG, "unknown mode %s", mode);
}

static int run_in_world(const char *mode)
{
    tt_comm *comm = NULL;
    tt_status status = tt_comm_create(&comm);
    if (status == TT_OK) status = run_mode(comm, mode);
    if (status != TT_OK && comm) tt_comm_abort(comm, 1, tt_error_text());
    if (status != TT_OK) fprintf(stderr, "%s\n", tt_error_text());
    tt_comm_destroy(&comm);
    return tt_status_exit(status);
}

int main(int argc, char **argv)
{
    return argc > 1 ? run_in_world(argv[1]) : run_as_threads();
}
