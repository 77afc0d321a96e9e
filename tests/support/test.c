#include "support/test.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void test_expect_error(tt_status got, tt_status expected, const char *part, const char *call, const char *file,
                       int line)
{
    if (got != expected) {
        print_error("%s\n  gave %s (%s), expected %s\n", call, tt_status_name(got),
                    got == TT_OK ? "" : tt_error_text(), tt_status_name(expected));
        _fail(file, line);
    }
    if (!strstr(tt_error_text(), part)) {
        print_error("%s\n  message: %s\n  does not contain: %s\n", call, tt_error_text(), part);
        _fail(file, line);
    }
}

void test_expect_close(double a, double b, double tolerance, const char *what, const char *file, int line)
{
    if (fabs(a - b) <= tolerance) return;
    print_error("%s: %.17g is not within %.3g of %.17g\n", what, a, tolerance, b);
    _fail(file, line);
}

const char *test_fixture(const char *name)
{
    static _Thread_local char path[1024];
    snprintf(path, sizeof path, "tests/fixtures/%s", name);
    return path;
}

const char *test_reference(const char *name)
{
    static _Thread_local char path[1024];
    const char *root = getenv("TT_REFERENCE");
    if (!root || !*root) return NULL;
    snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

bool test_full(void)
{
    const char *full = getenv("TT_FULL");
    return full && *full;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

const char *test_folder(const char *name)
{
    static char path[1024];
    const char *build = getenv("BUILD");
    snprintf(path, sizeof path, "%s/tests/tmp", build ? build : "build");
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/tests/tmp/%s", build ? build : "build", name);
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    mkdir(path, 0777);
    return path;
}
