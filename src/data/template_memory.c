/* template_memory.c - pools, the output buffer, and the limits on memory, text, time and depth.
 *
 * A pool hands out zeroed memory from chunks that double in size up to 1 MiB and is freed as a whole. Base's
 * step arena is not used: it aligns to 64 bytes, while most of what a template makes is an array of one or
 * two values. */
#include "data/template_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK = 4096, LARGEST_CHUNK = 1 << 20, ALIGNMENT = 16 };

struct tpl_chunk {
    tpl_chunk *next;
    size_t size, used;
    _Alignas(ALIGNMENT) char bytes[];
};

static tt_status add_chunk(tpl_pool *pool, size_t bytes)
{
    size_t size = pool->chunks ? pool->chunks->size * 2 : FIRST_CHUNK;
    if (size > LARGEST_CHUNK) size = LARGEST_CHUNK;
    if (size < bytes) size = bytes;
    TT_CHECK(size <= TPL_MAX_MEMORY - pool->total, TT_EDATA,
             "a template and its values may take %d MiB of memory; this one needs more",
             TPL_MAX_MEMORY >> 20);
    tpl_chunk *c = malloc(sizeof *c + size);
    TT_CHECK(c, TT_ENOMEM, "chat template: out of memory (%zu bytes)", size);
    *c = (tpl_chunk){.size = size};
    /* A chunk made for one large value goes behind the newest, which may still have room. */
    if (size == bytes && pool->chunks) {
        c->next = pool->chunks->next;
        pool->chunks->next = c;
    } else {
        c->next = pool->chunks;
        pool->chunks = c;
    }
    pool->total += size;
    return TT_OK;
}

tt_status tt_tpl_take(tpl_pool *pool, size_t count, size_t size, void **out)
{
    size_t bytes;
    *out = NULL;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > TPL_MAX_MEMORY)
        return tt_error_set(TT_EDATA,
                            "a value of %zu elements of %zu bytes is beyond what a template may use (%d MiB)",
                            count, size, TPL_MAX_MEMORY >> 20);
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    tpl_chunk *c = pool->chunks;
    if (!c || bytes > c->size - c->used) {
        TT_TRY(add_chunk(pool, bytes));
        c = pool->chunks;
        if (c->next && c->size - c->used < bytes) c = c->next;
    }
    *out = c->bytes + c->used;
    memset(*out, 0, bytes);
    c->used += bytes;
    return TT_OK;
}

void tt_tpl_pool_free(tpl_pool *pool)
{
    while (pool->chunks) {
        tpl_chunk *c = pool->chunks;
        pool->chunks = c->next;
        free(c);
    }
    pool->total = 0;
}

/* --- time, depth, errors ------------------------------------------------------------------------------ */

tt_status tt_tpl_charge(tpl_render *r, size_t steps)
{
    if (steps > TPL_MAX_STEPS || (r->steps += (int64_t)steps) > TPL_MAX_STEPS)
        return tt_tpl_error("the template takes more than %d steps; does it loop over its own results?",
                            TPL_MAX_STEPS);
    return TT_OK;
}

tt_status tt_tpl_enter(tpl_render *r)
{
    if (++r->depth > TPL_MAX_DEPTH)
        return tt_tpl_error(
            "evaluation or data is nested more than %d deep; does a macro call itself without end?",
            TPL_MAX_DEPTH);
    return tt_tpl_charge(r, 1);
}

tt_status tt_tpl_error(const char *format, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return tt_error_set(TT_EDATA, "%s", text);
}

/* --- output ------------------------------------------------------------------------------------------- */

static tt_status reserve(tpl_render *r, size_t more)
{
    if (more > TPL_MAX_TEXT - r->length)
        return tt_tpl_error("the text is longer than %d MiB", TPL_MAX_TEXT >> 20);
    size_t wanted = r->length + more + 1;
    if (wanted <= r->capacity) return TT_OK;
    size_t capacity = r->capacity ? r->capacity * 2 : 1024;
    while (capacity < wanted) capacity *= 2;
    char *grown = realloc(r->text, capacity);
    TT_CHECK(grown, TT_ENOMEM, "chat template: out of memory (%zu bytes of text)", capacity);
    r->text = grown;
    r->capacity = capacity;
    return TT_OK;
}

tt_status tt_tpl_append(tpl_render *r, const char *text, size_t len)
{
    if (len == 0) return TT_OK;
    TT_TRY(tt_tpl_charge(r, len / 32));
    TT_TRY(reserve(r, len));
    memcpy(r->text + r->length, text, len);
    r->length += len;
    return TT_OK;
}

tt_status tt_tpl_append_fill(tpl_render *r, const char *text, size_t len, int64_t count)
{
    if (count <= 0 || len == 0) return TT_OK;
    if (count > TPL_MAX_TEXT) count = (int64_t)TPL_MAX_TEXT + 1; /* refused below; keeps the product small */
    size_t bytes = len * (size_t)count;
    TT_TRY(reserve(r, bytes));
    TT_TRY(tt_tpl_charge(r, bytes / 32 + (size_t)count / 8));
    for (int64_t i = 0; i < count; i++) memcpy(r->text + r->length + (size_t)i * len, text, len);
    r->length += bytes;
    return TT_OK;
}

tt_status tt_tpl_append_code_point(tpl_render *r, int32_t c)
{
    char bytes[4];
    return tt_tpl_append(r, bytes, tt_tpl_encode(c, bytes));
}

tt_status tt_tpl_appendf(tpl_render *r, const char *format, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return tt_tpl_append(r, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

tt_status tt_tpl_string_end(tpl_render *r, size_t begin, tpl_value *out)
{
    size_t len = r->length - begin;
    void *copy;
    TT_TRY(tt_tpl_take(&r->pool, len, 1, &copy));
    if (len) memcpy(copy, r->text + begin, len);
    r->length = begin;
    *out = tpl_text(copy, len);
    return TT_OK;
}
