#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>

static void (*abort_hook)(const char *text);

void tt_set_abort_hook(void (*hook)(const char *text))
{
    abort_hook = hook;
}

void tt_assert_failed(const char *condition, const char *file, int line)
{
    char text[512];
    snprintf(text, sizeof text, "internal error: %s does not hold (%s:%d)", condition, file, line);
    if (abort_hook) abort_hook(text);
    fprintf(stderr, "tartan: %s\n", text);
    abort();
}
