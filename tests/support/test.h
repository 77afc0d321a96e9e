/* test.h - what every test program includes: cmocka, and the checks that print both values. */
#ifndef TT_TESTS_SUPPORT_TEST_H
#define TT_TESTS_SUPPORT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tartan/status.h"

/* A call that must succeed: prints tartan's message when it does not. */
#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        tt_status status_ = (call);                                                                          \
        if (status_ != TT_OK)                                                                                \
            fail_msg("%s\n  gave %s: %s", #call, tt_status_name(status_), tt_error_text());                  \
    } while (0)

/* A call that must fail with this status and a message that contains `part`. */
#define assert_error(call, expected, part) test_expect_error((call), (expected), (part), #call, __FILE__, __LINE__)
void test_expect_error(tt_status got, tt_status expected, const char *part, const char *call, const char *file,
                       int line);

/* |a - b| <= tolerance, both printed; NaN never passes. */
#define assert_close(a, b, tolerance) test_expect_close((a), (b), (tolerance), #a, __FILE__, __LINE__)
void test_expect_close(double a, double b, double tolerance, const char *what, const char *file, int line);

/* tests/fixtures/NAME, for tests that run from the project's root. Static buffer of this thread. */
const char *test_fixture(const char *name);

/* $TT_REFERENCE/NAME, or NULL when the variable is not set: such tests call skip(). */
const char *test_reference(const char *name);

/* TT_FULL is set: all combinations instead of a selection (make test-full). */
bool test_full(void);

/* A fresh folder under $BUILD/tests/tmp, removed and made anew. Static buffer. */
const char *test_folder(const char *name);

#endif
