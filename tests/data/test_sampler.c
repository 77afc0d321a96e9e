/* Orders of rows, against the generators' published vectors and the orders of the running libraries. */
#include "support/test.h"

#include "base/json.h"
#include "data/sampler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void assert_order(const int64_t *got, const json_t *expected, const char *what)
{
    for (size_t i = 0; i < json_array_size(expected); i++)
        if (got[i] != json_integer_value(json_array_get(expected, i)))
            fail_msg("%s: place %zu holds %lld, expected %lld", what, i, (long long)got[i],
                     (long long)json_integer_value(json_array_get(expected, i)));
}

/* Each line of the fixture; returns how many there were. */
static int check_fixture(const char *name, bool epochs)
{
    char line[8192];
    int count = 0;
    FILE *f = fopen(test_fixture(name), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *row;
        assert_ok(tt_json_parse(line, strlen(line), name, &row));
        int64_t seed, epoch, rows;
        assert_ok(tt_json_get_int(row, name, "seed", -1, &seed));
        assert_ok(tt_json_get_int(row, name, "epoch", 0, &epoch));
        assert_ok(tt_json_get_int(row, name, "rows", -1, &rows));
        json_t *order = json_object_get(row, "order");
        assert_int_equal(json_array_size(order), rows);
        int64_t *got = calloc((size_t)rows, sizeof *got);
        if (epochs)
            assert_ok(tt_order_random((uint64_t)seed, epoch, rows, got));
        else
            tt_order_shuffle((uint64_t)seed, rows, got);
        assert_order(got, order, line);
        free(got);
        json_decref(row);
        count++;
    }
    fclose(f);
    return count;
}

static void training_orders_are_the_library_s(void **state)
{
    (void)state;
    assert_int_equal(check_fixture("sft/schedule/permute.jsonl", true), 105);
}

static void shuffles_are_the_library_s(void **state)
{
    (void)state;
    assert_int_equal(check_fixture("sft/schedule/shuffle.jsonl", false), 25);
}

static void published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint64_t seed;
        int64_t n, order[10];
    } random[] = {{0, 10, {4, 1, 7, 5, 3, 9, 0, 8, 6, 2}},
                  {42, 10, {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}},
                  {43, 10, {8, 4, 9, 0, 5, 1, 6, 7, 2, 3}},
                  {1, 5, {0, 4, 2, 3, 1}}};
    static const int64_t shuffled[10] = {5, 6, 0, 7, 3, 2, 4, 9, 1, 8};
    int64_t got[10];
    for (size_t i = 0; i < sizeof random / sizeof *random; i++) {
        assert_ok(tt_order_random(random[i].seed, 0, random[i].n, got));
        assert_memory_equal(got, random[i].order, (size_t)random[i].n * sizeof *got);
    }
    /* Epoch e is seed + e, modulo 2^32. */
    assert_ok(tt_order_random(42, 1, 10, got));
    assert_memory_equal(got, random[2].order, sizeof got);
    assert_ok(tt_order_random((1ULL << 32) - 1, 43, 10, got));
    assert_memory_equal(got, random[1].order, sizeof got);
    tt_order_shuffle(42, 10, got);
    assert_memory_equal(got, shuffled, sizeof got);
}

/* More draws than one refill of the generator, and seeds of two words. */
static void long_orders_are_permutations(void **state)
{
    (void)state;
    enum { N = 5000 };
    int64_t *order = calloc(N, sizeof *order);
    for (int kind = 0; kind < 2; kind++) {
        char seen[N] = {0};
        if (kind)
            tt_order_shuffle(0x123456789abcdefULL, N, order);
        else
            assert_ok(tt_order_random(UINT64_MAX, 7, N, order));
        int fixed = 0;
        for (int i = 0; i < N; i++) {
            assert_in_range(order[i], 0, N - 1);
            assert_int_equal(seen[order[i]]++, 0);
            fixed += order[i] == i;
        }
        assert_true(fixed < 20); /* one is expected; 20 has probability below 1e-18 */
    }
    free(order);
}

static void edges(void **state)
{
    (void)state;
    int64_t order[3] = {7, 7, 7};
    assert_ok(tt_order_random(5, 0, 0, order));
    tt_order_shuffle(5, 0, order);
    assert_int_equal(order[0], 7);
    tt_order_sequential(3, order);
    assert_true(order[0] == 0 && order[1] == 1 && order[2] == 2);
    assert_error(tt_order_random(5, 0, 1LL << 32, order), TT_EDATA, "4294967296 rows");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_orders_are_the_library_s),
        cmocka_unit_test(shuffles_are_the_library_s),
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(long_orders_are_permutations),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
