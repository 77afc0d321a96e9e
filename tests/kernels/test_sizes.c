/* Every op of the backend for this machine against the reference in sizes 0, 1, and one less, the same, and one more than the
 * pieces in which kernels work: vectors of 4, 8 and 16, tiles of 6 and 14 rows and of 8, 16 and 32 columns, sums of 64 and of
 * 256 terms, blocks of 128 queries, chunks of 8192 elements. On each instruction set; operands in F32 and BF16, results in
 * either; rows three elements further apart than they are long, between guards of NaN (support/kernel_cases.h). Groups of rows
 * of every kind: none, one, as many as rows, one that has all. Documents and windows of every kind.
 *
 * The sizes of an op are a product; of it every STRIDE-th combination is taken, a prime that meets all values of each size
 * with many of the others, and all with TT_FULL. Flags, types and threads take turns. */
#include "support/kernel_levels.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

enum { STRIDE = 7, DIMS = 8 };

#define SET(...)                                                                                                       \
    (const int64_t[]){__VA_ARGS__, -1}
#define ROWS    SET(0, 1, 2, 17)
#define VECTORS SET(1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025)
#define TILES   SET(0, 1, 5, 6, 7, 13, 14, 15, 27, 28, 29)
#define COLUMNS SET(1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 65)
#define DEPTHS  SET(0, 1, 2, 15, 16, 17, 255, 256, 257)
#define TOKENS  SET(0, 1, 2, 13, 14, 15, 55, 56, 57, 127, 128, 129, 257)

/* An op of the common list and the sizes that it is tried in, in the order in which its build names them. */
typedef struct sweep {
    const char *like;
    const int64_t *sets[DIMS];
    int turns[4]; /* flags that take turns */
    int num_turns;
} sweep;

#define TURNS(...) {__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int)

/* Stands behind NARROW where the op's flag is none. */
enum { PLAIN = 0, NARROW = CASE_NARROW };

static int sweep_all(const sweep *s);

static void products(void **state)
{
    (void)state;
    const sweep linear = {"linear, small",
                          {TILES, DEPTHS, COLUMNS},
                          TURNS(PLAIN, CASE_BIAS | NARROW, CASE_ACCUMULATE | CASE_BIAS, CASE_ACCUMULATE | NARROW)};
    const sweep grouped = {"grouped, one group",
                           {TILES, SET(1, 17, 33), COLUMNS, SET(1, 2, 5, 9), SET(0, 1, 2, 3)},
                           TURNS(PLAIN, NARROW, CASE_ACCUMULATE)};
    /* No groups at all, hence no rows. */
    const sweep none = {"grouped, one group", {SET(0), SET(1, 17), SET(1, 33), SET(0)}, TURNS(PLAIN, NARROW)};
    print_message("# %d products, %d grouped\n", sweep_all(&linear), sweep_all(&grouped) + sweep_all(&none));
}

static void rows(void **state)
{
    (void)state;
    const sweep sweeps[] = {
        {"elementwise", {ROWS, VECTORS}, TURNS(PLAIN, NARROW)},
        {"rmsnorm", {ROWS, VECTORS, SET(0)}, TURNS(PLAIN, NARROW, CASE_ACCUMULATE, CASE_ALIAS)},
        {"rmsnorm, per head", {ROWS, SET(1, 7, 8, 9, 16, 33, 64, 65, 128), SET(1, 2, 5)}, TURNS(PLAIN, NARROW)},
        {"rope", {ROWS, SET(1, 2, 5), SET(2, 8, 16, 34, 66, 128), SET(2)}, TURNS(PLAIN, CASE_INTERLEAVED, NARROW, NARROW | CASE_INTERLEAVED)},
        {"rope", {ROWS, SET(1, 3), SET(34, 66, 130), SET(8, 10, 14, 16, 18, 30, 32, 34)}, TURNS(PLAIN, CASE_INTERLEAVED, NARROW, NARROW | CASE_INTERLEAVED)},
        {"clamp", {ROWS, VECTORS}, TURNS(PLAIN, NARROW, CASE_ALIAS, CASE_ALIAS | NARROW)},
        {"swiglu", {ROWS, VECTORS}, TURNS(PLAIN, CASE_GATED | NARROW, CASE_GATED | CASE_ALIAS, NARROW)},
    };
    int num = 0;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) num += sweep_all(&sweeps[i]);
    print_message("# %d cases\n", num);
}

static void tokens(void **state)
{
    (void)state;
    const sweep sweeps[] = {
        {"embed", {ROWS, SET(1, 2, 9), VECTORS}, TURNS(PLAIN)},
        {"gather and sum of rows", {SET(1, 2, 9), ROWS, VECTORS}, TURNS(PLAIN, NARROW, CASE_ACCUMULATE, CASE_ACCUMULATE | NARROW)},
        {"combine", {SET(2, 3, 17), SET(1, 2, 3, 8), VECTORS}, TURNS(PLAIN, NARROW, CASE_ACCUMULATE, CASE_ACCUMULATE | NARROW)},
    };
    int num = 0;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) num += sweep_all(&sweeps[i]);
    print_message("# %d cases\n", num);
}

static void routers(void **state)
{
    (void)state;
    const int64_t *many = SET(8, 9, 15, 16, 17, 31, 33, 64, 65, 128);
    const sweep sweeps[] = {
        {"router logits", {TILES, VECTORS, SET(1, 7, 8, 9, 15, 16, 17, 33)}, TURNS(PLAIN)},
        {"router softmax", {ROWS, many, SET(1, 2, 7, 8)}, TURNS(PLAIN, CASE_NORMALISE)},
        {"router sigmoid", {ROWS, many, SET(1, 2, 7, 8)}, TURNS(PLAIN, CASE_NORMALISE, CASE_BIAS, CASE_BIAS | CASE_NORMALISE)},
        {"router sigmoid", {ROWS, SET(16, 32, 64), SET(1, 2), SET(2, 4, 8), SET(1, 2)}, TURNS(CASE_NORMALISE | CASE_BIAS, CASE_BIAS)},
        {"balance loss", {ROWS, many, SET(1, 2, 8)}, TURNS(PLAIN)},
    };
    int num = 0;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) num += sweep_all(&sweeps[i]);
    print_message("# %d cases\n", num);
}

static void attention(void **state)
{
    (void)state;
    const sweep sweeps[] = {
        {"attention", {TOKENS, SET(2), SET(1, 2), SET(1, 7, 8, 17, 33), SET(1, 8, 15, 16, 32), SET(0), SET(0, 1, 2, 3)}, TURNS(PLAIN, NARROW)},
        {"attention", {TOKENS, SET(6), SET(2), SET(4, 17), SET(4, 9), SET(1, 2, 5, 64, 127, 128, 129), SET(0, 1, 2, 3)}, TURNS(PLAIN, NARROW)},
    };
    int num = 0;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) num += sweep_all(&sweeps[i]);
    print_message("# %d cases\n", num);
}

static void loss_and_update(void **state)
{
    (void)state;
    const sweep sweeps[] = {
        {"cross entropy", {ROWS, VECTORS}, TURNS(PLAIN, NARROW, CASE_ALIAS)},
        {"update", {SET(0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 255, 256, 257, 511, 512, 513, 8191, 8192, 8193, 16385)}, TURNS(PLAIN, CASE_BF16)},
    };
    int num = 0;
    for (size_t i = 0; i < sizeof sweeps / sizeof *sweeps; i++) num += sweep_all(&sweeps[i]);
    print_message("# %d cases\n", num);
}

/* --- running them -------------------------------------------------------------------------------------------------- */

/* No sum of a case is longer than its largest size times the number of heads that share one, and the softmax in between. */
static int64_t terms_of(const kernel_case *c)
{
    int64_t most = 8;
    for (int i = 0; i < DIMS; i++) most = c->size[i] > most ? c->size[i] : most;
    return strncmp(c->name, "attention", 9) == 0 ? 8 * most : most;
}

static void run_case(const kernel_case *c, int turn)
{
    tt_dtype type = turn % 3 == 0 ? TT_F32 : TT_BF16;
    kernel_rig *expected = kernel_rig_create(c, &tt_ops_ref, type, 1);
    kernel_rig_run(expected);
    for (int level = 0; level < kernel_num_levels(); level++) {
        kernel_rig *got = kernel_level_rig(c, level, type, 1 + (turn + level) % 3);
        kernel_rig_run(got);
        kernel_rig_compare(got, expected, kernel_level_name(level));
        kernel_rig_destroy(&got);
    }
    kernel_rig_destroy(&expected);
}

static int count(const int64_t *set)
{
    int n = 0;
    while (set && set[n] >= 0) n++;
    return n;
}

static int sweep_all(const sweep *s)
{
    int64_t all = 1;
    int num = 0;
    const kernel_case *like = kernel_cases;
    while (strcmp(like->name, s->like) != 0) like++;
    for (int d = 0; d < DIMS; d++) all *= s->sets[d] ? count(s->sets[d]) : 1;
    /* Short lists are taken as a whole. */
    int64_t stride = test_full() || all <= 100 ? 1 : STRIDE;
    for (int64_t i = 0; i < all; i += stride) {
        kernel_case c = *like;
        int64_t rest = i;
        for (int d = 0; d < DIMS; d++) {
            int n = count(s->sets[d]);
            c.size[d] = n ? s->sets[d][rest % n] : 0;
            if (n) rest /= n;
        }
        c.flags = s->turns[num % s->num_turns];
        c.terms = terms_of(&c);
        run_case(&c, num++);
    }
    return num;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products), cmocka_unit_test(rows),      cmocka_unit_test(tokens),
        cmocka_unit_test(routers),  cmocka_unit_test(attention), cmocka_unit_test(loss_and_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
