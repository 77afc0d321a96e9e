#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

static _Thread_local tt_log_level current = TT_LOG_INFO;
static _Thread_local void (*hook_fn)(void *, tt_log_level, const char *);
static _Thread_local void *hook_user;

void tt_log_set_level(tt_log_level level)
{
    current = level;
}

tt_log_level tt_log_get_level(void)
{
    return current;
}

void tt_log_set_hook(void (*hook)(void *user, tt_log_level level, const char *text), void *user)
{
    hook_fn = hook;
    hook_user = user;
}

static void speak(tt_log_level level, const char *prefix, const char *format, va_list ap)
{
    char text[4096];
    vsnprintf(text, sizeof text, format, ap);
    if (hook_fn) hook_fn(hook_user, level, text);
    if (level <= current) fprintf(stderr, "%s%s\n", prefix, text);
}

void tt_info(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    speak(TT_LOG_INFO, "tartan: ", format, ap);
    va_end(ap);
}

void tt_warn(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    speak(TT_LOG_WARN, "tartan: warning: ", format, ap);
    va_end(ap);
}
