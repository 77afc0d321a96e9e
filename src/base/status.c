#include "tartan/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[2048];

const char *tt_status_name(tt_status s)
{
    switch (s) {
#define X(name, exit_status, text)                                                                           \
    case TT_##name: return #name;
        TT_STATUS_MAP(X)
#undef X
    }
    return "?";
}

int tt_status_exit(tt_status s)
{
    switch (s) {
#define X(name, exit_status, text)                                                                           \
    case TT_##name: return exit_status;
        TT_STATUS_MAP(X)
#undef X
    }
    return 1;
}

const char *tt_error_text(void)
{
    return message;
}

/* A cut in the middle of a UTF-8 sequence would make the message itself invalid text. */
static void trim_partial_utf8(char *s)
{
    size_t n = strlen(s), back = 0;
    while (back < 4 && back < n && ((unsigned char)s[n - 1 - back] & 0xC0) == 0x80) back++;
    if (back >= n) return;
    unsigned char lead = (unsigned char)s[n - 1 - back];
    size_t need = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
    if (need > back) s[n - 1 - back] = '\0';
}

tt_status tt_error_set(tt_status s, const char *format, ...)
{
    /* Format aside first: an argument may be the current message itself. */
    char text[sizeof message];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    trim_partial_utf8(text);
    memcpy(message, text, sizeof message);
    return s;
}

tt_status tt_error_context(tt_status s, const char *format, ...)
{
    char text[sizeof message];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof text) return s;
    snprintf(text + n, sizeof text - (size_t)n, ": %s", message);
    trim_partial_utf8(text);
    memcpy(message, text, sizeof message);
    return s;
}
