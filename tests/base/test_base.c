/* Status texts, arenas, checked sizes, random numbers, JSON getters. */
#include "support/test.h"

#include "base/arena.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void errors_carry_context(void **state)
{
    (void)state;
    tt_error_set(TT_EFORMAT, "header is %d bytes", 7);
    assert_int_equal(tt_error_context(TT_EFORMAT, "model.safetensors"), TT_EFORMAT);
    assert_string_equal(tt_error_text(), "model.safetensors: header is 7 bytes");
    assert_string_equal(tt_status_name(TT_EFORMAT), "EFORMAT");
    assert_int_equal(tt_status_exit(TT_ECONFIG), 2);
    assert_int_equal(tt_status_exit(TT_EIO), 1);
}

static void long_errors_stay_valid_text(void **state)
{
    (void)state;
    char text[4096];
    for (int shift = 0; shift < 3; shift++) {
        memset(text, 'a', (size_t)shift);
        for (size_t i = (size_t)shift; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xE4\xBD\xA0", 4);
        tt_error_set(TT_EFORMAT, "%s", text);
        size_t n = strlen(tt_error_text());
        assert_int_equal((n - (size_t)shift) % 3, 0);
    }
}

static void blocks_tile_any_count(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 20; n++)
        for (int64_t parts = 1; parts < 9; parts++) {
            assert_int_equal(tt_block_begin(n, parts, 0), 0);
            assert_int_equal(tt_block_begin(n, parts, parts), n);
            for (int64_t i = 0; i < parts; i++) {
                int64_t size = tt_block_begin(n, parts, i + 1) - tt_block_begin(n, parts, i);
                assert_int_equal(size, n / parts + (i < n % parts));
            }
        }
}

/* Uses of many sizes, each larger than the ones before in one part and smaller in another, as expert batches are, all lie in the
 * same memory from its begin on: an arena takes what its fullest use took. */
static void grants_lie_end_to_end_whatever_was_before(void **state)
{
    (void)state;
    tt_arena *a;
    char *begin, *p, *q;
    assert_ok(tt_arena_create("test", &a));
    tt_arena_mark empty = tt_arena_save(a);
    assert_ok(tt_arena_grant(a, 1, 1, (void **)&begin));
    tt_arena_restore(a, empty);
    for (int64_t use = 1; use <= 40; use++) {
        int64_t first = use << 16, second = (2 << 20) + (use * 37 % 41 << 16), third = (1 << 20) + (use * 17 % 41 << 16);
        assert_ok(tt_arena_grant(a, first, 1, (void **)&p));
        assert_ptr_equal(p, begin);
        tt_arena_mark inner = tt_arena_save(a);
        assert_ok(tt_arena_grant(a, second, 1, (void **)&p));
        assert_ptr_equal(p, begin + first);
        tt_arena_restore(a, inner);
        assert_ok(tt_arena_grant(a, third, 1, (void **)&p));
        assert_ok(tt_arena_grant(a, 100 << 20, 1, (void **)&q)); /* more than is usable at once */
        assert_ptr_equal(p, begin + first);
        assert_ptr_equal(q, p + third);
        p[0] = q[0] = q[(100 << 20) - 1] = 1;
        tt_arena_restore(a, empty);
    }
    tt_arena_destroy(&a);
    assert_null(a);
}

/* A sanitizer needs more addresses than a limit would leave. */
static void limits_on_addresses_are_told_of(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    tt_arena *a;
    void *p;
    struct rlimit old, limit;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    limit = old;
    limit.rlim_cur = (rlim_t)8 << 30;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    assert_ok(tt_arena_create("test", &a));
    assert_ok(tt_arena_grant(a, 100 << 20, 1, &p));
    assert_error(tt_arena_grant(a, 600 << 20, 1, &p), TT_ENOMEM, "under the limit of 8589934592 on addresses; raise it (ulimit -v)");
    tt_arena_destroy(&a);
    assert_ok(tt_arena_create("test", &a)); /* more than its part, if that is known before */
    tt_arena_expect(a, (int64_t)2 << 30);
    assert_ok(tt_arena_grant(a, (int64_t)2 << 30, 1, &p));
    assert_error(tt_arena_grant(a, 1, 1, &p), TT_ENOMEM, "raise it (ulimit -v)");
    tt_arena_destroy(&a);
    limit.rlim_cur = 1 << 20;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    assert_ok(tt_arena_create("test", &a));
    assert_error(tt_arena_grant(a, 1, 1, &p), TT_ENOMEM, "test: no ");
    assert_error(tt_alloc("weights", 1 << 28, 1, &p), TT_ENOMEM, "weights: no ");
    tt_arena_destroy(&a);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
}

static int64_t resident_pages(void)
{
    long long size, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lld %lld", &size, &pages), 2);
    fclose(f);
    return pages;
}

/* A sanitizer's own books count as well. */
static void what_is_not_granted_takes_no_memory(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip();
#endif
    enum { ARENAS = 100 };
    tt_arena *a[ARENAS];
    void *p;
    int64_t before = resident_pages();
    for (int i = 0; i < ARENAS; i++) {
        assert_ok(tt_arena_create("test", &a[i]));
        assert_ok(tt_arena_grant(a[i], 1000, 1, &p));
        memset(p, 1, 1000);
    }
    int64_t taken = (resident_pages() - before) * sysconf(_SC_PAGESIZE);
    for (int i = 0; i < ARENAS; i++) tt_arena_destroy(&a[i]);
    if (taken > ARENAS * 32768) fail_msg("%d arenas of a page take %lld bytes", ARENAS, (long long)taken);
}

static void arena_grants_restore_and_count(void **state)
{
    (void)state;
    tt_arena *a;
    void *p, *q, *r;
    assert_ok(tt_arena_create("test", &a));
    assert_ok(tt_arena_grant(a, 10, 4, &p));
    tt_arena_mark mark = tt_arena_save(a);
    assert_ok(tt_arena_grant(a, 3 << 20, 1, &q));
    assert_int_equal((uintptr_t)q % 64, 0);
#ifdef TT_DEBUG_MEMORY
    assert_true(isnan(((float *)q)[5]));
#endif
    tt_arena_restore(a, mark);
    assert_ok(tt_arena_grant(a, 3 << 20, 1, &r));
    assert_ptr_equal(q, r);
    assert_int_equal(tt_arena_peak(a), 64 + (3 << 20));
    assert_error(tt_arena_grant(a, INT64_MAX / 2, 8, &p), TT_ENOMEM, "test");
    assert_error(tt_arena_grant(a, (int64_t)1 << 50, 1, &p), TT_ENOMEM, "test: the system refuses ");
    assert_error(tt_alloc("weights", INT64_MAX / 2, 8, &p), TT_ENOMEM, "weights");
    tt_arena_destroy(&a);
}

static void philox_known_answers(void **state)
{
    (void)state;
    /* Published vectors of Random123 for philox4x32-10. */
    uint32_t w[4];
    tt_rng_block(0, 0, 0, w);
    assert_int_equal(w[0], 0x6627e8d5), assert_int_equal(w[1], 0xe169c58d);
    assert_int_equal(w[2], 0xbc57ac4c), assert_int_equal(w[3], 0x9b00dbd8);
    tt_rng_block(UINT64_MAX, UINT64_MAX, UINT64_MAX, w);
    assert_int_equal(w[0], 0x408f276d), assert_int_equal(w[1], 0x41c83b0e);
    assert_int_equal(w[2], 0xa20bc7c6), assert_int_equal(w[3], 0x6d5451fd);
}

static void normals_do_not_depend_on_the_cut(void **state)
{
    (void)state;
    float whole[1000], parts[1000];
    uint64_t key = tt_rng_key(7, "model.norm.weight");
    tt_rng_normal(key, 0, 1000, whole);
    for (int64_t i = 0; i < 1000; i += 7) tt_rng_normal(key, i, tt_min_i64(7, 1000 - i), parts + i);
    assert_memory_equal(whole, parts, sizeof whole);
    double sum = 0, squares = 0;
    for (int i = 0; i < 1000; i++) sum += whole[i], squares += (double)whole[i] * whole[i];
    assert_close(sum / 1000, 0, 4 / sqrt(1000.0));          /* four standard errors */
    assert_close(squares / 1000, 1, 4 * sqrt(2.0 / 1000)); /* variance of a squared normal is 2 */
}

static void json_is_strict(void **state)
{
    (void)state;
    json_t *v;
    const char *bad[] = {"{\"a\":1,\"a\":2}", "{", "", "[1,]", "\"\\ud83d\"", "\"\xC3\x28\"", "1 2", "nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(tt_json_parse(bad[i], strlen(bad[i]), "x.json", &v), TT_EFORMAT, "x.json");
    const char *text = "{\"n\":3,\"f\":2.5,\"whole\":4.0,\"s\":\"a\",\"b\":true,\"z\":null}";
    assert_ok(tt_json_parse(text, strlen(text), "x.json", &v));
    int64_t n;
    double f;
    bool b;
    const char *s;
    assert_ok(tt_json_get_int(v, "x.json", "whole", 0, &n));
    assert_int_equal(n, 4);
    assert_ok(tt_json_get_int(v, "x.json", "z", 9, &n));
    assert_int_equal(n, 9);
    assert_ok(tt_json_get_number(v, "x.json", "n", 0, &f));
    assert_close(f, 3, 0);
    assert_ok(tt_json_get_bool(v, "x.json", "b", false, &b));
    assert_true(b);
    assert_ok(tt_json_get_string(v, "x.json", "s", NULL, &s));
    assert_string_equal(s, "a");
    assert_error(tt_json_get_int(v, "x.json", "f", 0, &n), TT_EFORMAT, "key 'f' is real 2.5");
    assert_error(tt_json_get_string(v, "x.json", "n", NULL, &s), TT_EFORMAT, "expected a string");
    json_decref(v);
}

static void files_are_replaced_whole(void **state)
{
    (void)state;
    char path[1200], *text;
    size_t n;
    snprintf(path, sizeof path, "%s/a.txt", test_folder("base"));
    assert_ok(tt_file_write_all(path, "hello", 5));
    assert_ok(tt_file_read_all(path, 100, &text, &n));
    assert_int_equal(n, 5);
    assert_string_equal(text, "hello");
    free(text);
    assert_error(tt_file_read_all(path, 4, &text, &n), TT_EFORMAT, "at most 4");
    assert_error(tt_file_read_all("build", 4, &text, &n), TT_EFORMAT, "not a regular file");
    assert_error(tt_file_read_all("no/such", 4, &text, &n), TT_EIO, "no/such");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_carry_context),  cmocka_unit_test(long_errors_stay_valid_text),
        cmocka_unit_test(blocks_tile_any_count), cmocka_unit_test(arena_grants_restore_and_count),
        cmocka_unit_test(grants_lie_end_to_end_whatever_was_before),
        cmocka_unit_test(limits_on_addresses_are_told_of),
        cmocka_unit_test(what_is_not_granted_takes_no_memory),
        cmocka_unit_test(philox_known_answers),  cmocka_unit_test(normals_do_not_depend_on_the_cut),
        cmocka_unit_test(json_is_strict),        cmocka_unit_test(files_are_replaced_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
