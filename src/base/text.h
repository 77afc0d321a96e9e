/* text.h - a text that is put together in a buffer of fixed size: what does not fit is cut off, and it always ends in 0. */
#ifndef TT_BASE_TEXT_H
#define TT_BASE_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

typedef struct tt_text {
    char *at;
    size_t size, used; /* used < size */
} tt_text;

static inline void __attribute__((format(printf, 2, 3))) tt_text_put(tt_text *t, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(t->at + t->used, t->size - t->used, format, ap);
    va_end(ap);
    if (n > 0) t->used += (size_t)n < t->size - t->used ? (size_t)n : t->size - t->used - 1;
}

#endif
