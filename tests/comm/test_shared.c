/* Memory that the ranks of a host share: on threads as ranks; over MPI when started by test_shared_mpi.sh.
 *
 *   test_shared               sizes 1 to 5 as threads
 *   test_shared mpi           the same checks on the ranks that mpirun started; silent, exit status 0 when all pass
 *   test_shared mpi-apart     the last rank has TARTAN_SHARED=0: none shares
 *   test_shared mpi-hosts     prints whether the world shares, for ranks on several hosts
 *   test_shared mpi-limit     the last rank has no addresses left
 *   test_shared mpi-killed    rank 0, whose file it is, is killed while the others read
 *
 * Ranks may be threads, where cmocka cannot fail, so a check returns a status, with what differs in the message.
 */
#include "support/test.h"

#include "base/arena.h"
#include "base/checked.h"
#include "comm/shared.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define EXPECT(cond, ...)                                                                                    \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            tt_error_set(TT_EVERDICT, __VA_ARGS__);                                                          \
            return tt_error_context(TT_EVERDICT, "%s:%d: %s", __FILE__, __LINE__, #cond);                    \
        }                                                                                                    \
    } while (0)

/* Never 0, which is what new memory holds. */
static unsigned char byte_of(int region, int rank, int64_t i)
{
    return (unsigned char)(1 + (region * 71 + rank * 37 + i * 7 + (i >> 8) * 13 + (i >> 20)) % 255);
}

static int64_t part_begin(const tt_group *g, int64_t bytes, int rank)
{
    return tt_block_begin(bytes, tt_group_size(g), rank);
}

/* Bytes [from, to) of the region: each rank writes its part. */
static void write_part(tt_group *g, tt_shared *s, int region, int64_t from, int64_t to)
{
    unsigned char *p = tt_shared_base(s);
    int me = tt_group_rank(g);
    for (int64_t i = part_begin(g, to, me); i < part_begin(g, to, me + 1); i++)
        if (i >= from) p[i] = byte_of(region, 0, i);
}

static tt_status check_bytes(tt_shared *s, int region, int64_t bytes)
{
    const unsigned char *p = tt_shared_base(s);
    for (int64_t i = 0; i < bytes; i++)
        EXPECT(p[i] == byte_of(region, 0, i), "region %d: byte %lld of %lld is %d", region, (long long)i, (long long)bytes, p[i]);
    return TT_OK;
}

static tt_status check_zero(tt_shared *s, int64_t from, int64_t to)
{
    const unsigned char *p = tt_shared_base(s);
    for (int64_t i = from; i < to; i++)
        EXPECT(p[i] == 0, "byte %lld of the memory added from %lld is %d", (long long)i, (long long)from, p[i]);
    return TT_OK;
}

/* --- checks --------------------------------------------------------------------------------------------------- */

/* Growths below and above a page, a huge page, and what is allocated at a time. */
static const int64_t sizes[] = {1, 4095, 4097, 70000, 3 << 20, (13 << 20) + 5, 81 << 20};
enum { NUM_SIZES = sizeof sizes / sizeof *sizes };

static tt_status check_contents(tt_comm *comm)
{
    tt_group *world = tt_comm_world(comm);
    tt_shared *s;
    TT_TRY(tt_shared_create(world, "a region", sizes[NUM_SIZES - 1], &s));
    EXPECT((s != NULL) == (tt_comm_size(comm) > 1), "%d ranks: %s", tt_comm_size(comm), s ? "a region" : "no region");
    if (!s) return TT_OK;
    for (int i = 0; i < NUM_SIZES; i++) {
        int64_t before = i ? sizes[i - 1] : 0;
        TT_TRY(tt_shared_grow(s, sizes[i]));
        TT_TRY(tt_shared_grow(s, before)); /* there already */
        TT_TRY(check_zero(s, before, sizes[i]));
        TT_TRY(tt_barrier(world, "seen"));
        write_part(world, s, 1, before, sizes[i]);
        TT_TRY(tt_barrier(world, "written"));
        TT_TRY(check_bytes(s, 1, sizes[i]));
    }
    TT_TRY(tt_barrier(world, "seen"));
    tt_shared_destroy(&s);
    EXPECT(!s, "not cleared");
    return TT_OK;
}

static tt_status create_group(tt_comm *comm, int kind, tt_group **out)
{
    int ranks[64], num = 0, me = tt_comm_rank(comm), size = tt_comm_size(comm);
    for (int r = size - 1; r >= 0; r--) /* another order than the world's */
        if (kind == 0 || r % 2 == me % 2) ranks[num++] = r;
    return tt_group_create(comm, kind == 0 ? "backwards" : "every second", ranks, num, out);
}

/* The world, the world backwards, and every second rank: each rank is in three groups with a region each, and two in one. */
static tt_status check_groups(tt_comm *comm)
{
    enum { NUM = 4, BYTES = 10000 };
    tt_group *groups[NUM] = {tt_comm_world(comm), NULL, NULL, NULL};
    tt_shared *s[NUM];
    TT_TRY(create_group(comm, 0, &groups[1]));
    TT_TRY(create_group(comm, 1, &groups[2]));
    groups[3] = groups[2];
    for (int i = 0; i < NUM; i++) {
        TT_TRY(tt_shared_create(groups[i], "a region", BYTES, &s[i]));
        EXPECT((s[i] != NULL) == (tt_group_size(groups[i]) > 1), "group %d", i);
        if (s[i]) TT_TRY(tt_shared_grow(s[i], BYTES));
    }
    /* The groups of even and of odd ranks write different bytes. */
    for (int i = 0; i < NUM; i++)
        if (s[i]) write_part(groups[i], s[i], i + (i > 1 ? 10 * (tt_comm_rank(comm) % 2) : 0), 0, BYTES);
    TT_TRY(tt_barrier(groups[0], "written"));
    for (int i = 0; i < NUM; i++)
        if (s[i]) TT_TRY(check_bytes(s[i], i + (i > 1 ? 10 * (tt_comm_rank(comm) % 2) : 0), BYTES));
    TT_TRY(tt_barrier(groups[0], "seen"));
    for (int i = 0; i < NUM; i++) tt_shared_destroy(&s[i]);
    tt_group_destroy(&groups[1]);
    tt_group_destroy(&groups[2]);
    return TT_OK;
}

/* A rank that is done does not take the memory from those that are not. */
static tt_status check_leaving(tt_comm *comm)
{
    tt_group *world = tt_comm_world(comm);
    for (int leaver = 0; leaver < tt_comm_size(comm); leaver++) {
        tt_shared *s;
        TT_TRY(tt_shared_create(world, "a region", 5000, &s));
        if (!s) return TT_OK;
        TT_TRY(tt_shared_grow(s, 5000));
        write_part(world, s, 2, 0, 5000);
        TT_TRY(tt_barrier(world, "written"));
        if (tt_comm_rank(comm) == leaver) tt_shared_destroy(&s);
        TT_TRY(tt_barrier(world, "left"));
        if (s) TT_TRY(check_bytes(s, 2, 5000));
        tt_shared_destroy(&s);
    }
    return TT_OK;
}

/* Values of such different sizes that the order of a sum shows. */
static float term(int rank, int64_t i)
{
    static const float scale[] = {1e9f, 1e-3f, 7.7f, 1e5f};
    return ((float)((i * 31 + rank * 17) % 23) - 11.3f) * scale[(i + rank * 3) % 4];
}

/* Sums where they lie have the bits of those that are sent, with any number of threads. */
static tt_status check_sums(tt_comm *comm)
{
    static const int64_t counts[] = {0, 1, 513, 65536, 200000};
    tt_group *world = tt_comm_world(comm);
    int64_t size = tt_comm_size(comm), most = counts[4], me = tt_comm_rank(comm);
    float *sent, *seen;
    tt_shared *s;
    TT_TRY(tt_shared_create(world, "gradients", size * size * most * 4, &s));
    if (!s) return TT_OK;
    TT_TRY(tt_shared_grow(s, size * size * most * 4));
    TT_TRY(tt_alloc("sums", most, 4, (void **)&sent));
    TT_TRY(tt_alloc("sums", most, 4, (void **)&seen));
    for (int k = 0; k < 5; k++) {
        int64_t n = counts[k];
        float *all = tt_shared_base(s), *full = all + me * n * size;
        for (int64_t i = 0; i < n * size; i++) full[i] = term((int)me, i);
        for (int64_t i = 0; i < n; i++) sent[i] = seen[i] = 0.1f;
        TT_TRY(tt_barrier(world, "written"));
        TT_TRY(tt_reduce_scatter_f32(world, "sent", full, sent, n));
        tt_add_in_order_f32(world, all + me * n, n * size, seen, n, 1 + k % 3);
        EXPECT(memcmp(sent, seen, (size_t)n * 4) == 0, "sums of %lld elements differ", (long long)n);
        TT_TRY(tt_barrier(world, "read"));
    }
    tt_free(sent);
    tt_free(seen);
    tt_shared_destroy(&s);
    return TT_OK;
}

/* With TARTAN_FAIL set: the last rank has no memory; all say so, and go on with what there was. */
static tt_status check_refusal(tt_comm *comm)
{
    tt_group *world = tt_comm_world(comm);
    char said[64];
    tt_shared *s;
    snprintf(said, sizeof said, "rank %d: no memory, on purpose", tt_comm_size(comm) - 1);
    TT_TRY(tt_shared_create(world, "a region", 1 << 20, &s));
    if (!s) return TT_OK;
    TT_TRY(tt_shared_grow(s, 5000));
    write_part(world, s, 3, 0, 5000);
    tt_comm_set_phase(comm, "refuse");
    tt_status status = tt_shared_grow(s, 1 << 20);
    EXPECT(status == TT_ENOMEM && strcmp(tt_error_text(), said) == 0, "status %d, \"%s\"", (int)status, tt_error_text());
    TT_TRY(check_bytes(s, 3, 5000));
    TT_TRY(tt_shared_grow(s, 1 << 20));
    TT_TRY(check_zero(s, 5000, 1 << 20));
    tt_shared_destroy(&s);
    return TT_OK;
}

static tt_status check_switch(tt_comm *comm)
{
    bool possible = true;
    tt_shared *s;
    TT_TRY(tt_shared_possible(tt_comm_world(comm), &possible));
    TT_TRY(tt_shared_create(tt_comm_world(comm), "a region", 1000, &s));
    EXPECT(!possible && !s, "TARTAN_SHARED=0 is not heeded");
    return TT_OK;
}

/* --- as threads ------------------------------------------------------------------------------------------------ */

typedef tt_status (*check_fn)(tt_comm *comm);

static tt_status rank_main(tt_comm *comm, void *arg)
{
    tt_comm_set_timeout(comm, 60);
    return (*(const check_fn *)arg)(comm);
}

static void as_threads(check_fn check)
{
    for (int size = 1; size <= 5; size++) assert_ok(tt_comm_run_threads(size, rank_main, &check));
}

static void contents_are_seen_by_all(void **state)
{
    (void)state;
    as_threads(check_contents);
}

static void groups_overlap(void **state)
{
    (void)state;
    as_threads(check_groups);
}

static void a_rank_leaves(void **state)
{
    (void)state;
    as_threads(check_leaving);
}

static void sums_have_the_same_bits(void **state)
{
    (void)state;
    as_threads(check_sums);
}

static void one_rank_without_memory(void **state)
{
    (void)state;
    for (int size = 2; size <= 5; size++) {
        char plan[64];
        check_fn check = check_refusal;
        snprintf(plan, sizeof plan, "%d:refuse:grow-shared:memory", size - 1);
        setenv("TARTAN_FAIL", plan, 1);
        assert_ok(tt_comm_run_threads(size, rank_main, &check));
        unsetenv("TARTAN_FAIL");
    }
}

/* Nobody who means to switch it off shall share because of how he wrote it. */
static tt_status check_unclear(tt_comm *comm)
{
    bool possible;
    if (tt_comm_size(comm) == 1) return TT_OK;
    tt_status status = tt_shared_possible(tt_comm_world(comm), &possible);
    EXPECT(status == TT_ECONFIG && strstr(tt_error_text(), "TARTAN_SHARED of rank 0 is neither 0 nor 1"),
           "status %d, \"%s\"", (int)status, tt_error_text());
    return TT_OK;
}

static void the_switch_is_heeded(void **state)
{
    (void)state;
    setenv("TARTAN_SHARED", "0", 1);
    as_threads(check_switch);
    setenv("TARTAN_SHARED", "no", 1);
    as_threads(check_unclear);
    unsetenv("TARTAN_SHARED");
}

/* --- over MPI --------------------------------------------------------------------------------------------------- */

static tt_status without_addresses(tt_comm *comm, bool last)
{
    bool possible;
    tt_shared *s;
    struct rlimit none = {0, 0};
    TT_TRY(tt_shared_possible(tt_comm_world(comm), &possible));
    EXPECT(possible, "memory is not shared");
    if (last) setrlimit(RLIMIT_AS, &none);
    tt_status status = tt_shared_create(tt_comm_world(comm), "a region", (int64_t)1 << 30, &s);
    EXPECT(status == TT_OK && !s, "status %d, \"%s\"", (int)status, tt_error_text());
    TT_TRY(tt_shared_possible(tt_comm_world(comm), &possible));
    EXPECT(!possible, "memory is still shared");
    return TT_OK;
}

static tt_status without_rank_0(tt_comm *comm)
{
    tt_group *world = tt_comm_world(comm);
    tt_shared *s;
    TT_TRY(tt_shared_create(world, "a region", 1 << 20, &s));
    TT_TRY(tt_shared_grow(s, 1 << 20));
    write_part(world, s, 4, 0, 1 << 20);
    TT_TRY(tt_barrier(world, "written"));
    if (tt_comm_rank(comm) == 0) raise(SIGKILL);
    for (;;) TT_TRY(check_bytes(s, 4, 1 << 20)); /* until the watchdog ends it */
}

static tt_status run_mode(tt_comm *comm, const char *mode)
{
    bool possible, last = tt_comm_rank(comm) == tt_comm_size(comm) - 1;
    if (strcmp(mode, "mpi-limit") == 0) return without_addresses(comm, last);
    if (strcmp(mode, "mpi-killed") == 0) return without_rank_0(comm);
    if (strcmp(mode, "mpi-limited") == 0) {
        struct rlimit some = {(rlim_t)1 << 40, (rlim_t)1 << 40};
        if (last) setrlimit(RLIMIT_AS, &some);
        TT_TRY(tt_shared_possible(tt_comm_world(comm), &possible));
        EXPECT(!possible, "memory is shared");
        return TT_OK;
    }
    if (strcmp(mode, "mpi-apart") == 0) {
        if (last) setenv("TARTAN_SHARED", "0", 1);
        return check_switch(comm);
    }
    TT_TRY(tt_shared_possible(tt_comm_world(comm), &possible));
    if (strcmp(mode, "mpi-hosts") == 0) {
        printf("rank %d: %s\n", tt_comm_rank(comm), possible ? "shares" : "sends");
        return TT_OK;
    }
    EXPECT(possible || tt_comm_size(comm) == 1, "memory is not shared");
    TT_TRY(check_contents(comm));
    TT_TRY(check_groups(comm));
    TT_TRY(check_leaving(comm));
    TT_TRY(check_sums(comm));
    return getenv("TARTAN_FAIL") ? check_refusal(comm) : TT_OK;
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contents_are_seen_by_all), cmocka_unit_test(groups_overlap),
        cmocka_unit_test(a_rank_leaves),            cmocka_unit_test(sums_have_the_same_bits),
        cmocka_unit_test(one_rank_without_memory),  cmocka_unit_test(the_switch_is_heeded),
    };
    if (argc > 1) return run_in_world(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
