#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>

static void (*abort_hook)(void);

void tt_set_abort_hook(void (*hook)(void))
{
    abort_hook = hook;
}

void tt_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "tartan: internal error: %s does not hold (%s:%d)\n", condition, file, line);
    if (abort_hook) abort_hook();
    abort();
}
