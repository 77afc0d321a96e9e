/* jsonl.c - rows of a data file: see jsonl.h.
 *
 * A call cuts rows out of the buffer. When it holds no whole row, what is left moves to the front and the
 * rest is filled from the file; `start` is the offset there of the buffer's first byte.
 *
 *     | handed out before | row | row | row | beginning of a ro        <- end of what was read
 *                          ^at when the call begins ^at when it ends
 *
 * When not even one row fits, the buffer doubles and the row is scanned again: linear in total. */
#include "data/jsonl.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum layout { LAYOUT_UNKNOWN, LAYOUT_LINES, LAYOUT_ARRAY } layout;

/* Where an array stands between two rows. */
typedef enum array_place { AT_FIRST, AT_ELEMENT, AT_END } array_place;

struct tt_jsonl {
    tt_file file;
    layout layout;
    array_place place;
    char *buffer;
    int64_t capacity;
    int64_t start;  /* offset in the file of buffer[0] */
    int64_t filled; /* bytes of the file in the buffer */
    int64_t at;     /* first byte that is not used yet */
    int64_t line;   /* line of buffer[at], from 1 */
    int64_t num_rows;
    int64_t count;
    tt_jsonl_row rows[TT_JSONL_MAX_ROWS];
};

tt_status tt_jsonl_open(const char *path, int64_t block_bytes, tt_jsonl **out)
{
    tt_jsonl *r = calloc(1, sizeof *r);
    TT_CHECK(r, TT_ENOMEM, "out of memory while opening '%s'", path);
    tt_status status;
    TT_GO(tt_file_open(&r->file, path));
    r->capacity = block_bytes > 0 ? block_bytes : TT_JSONL_BLOCK;
    r->line = 1;
    r->buffer = malloc((size_t)r->capacity);
    if (!r->buffer) TT_GO(tt_error_set(TT_ENOMEM, "out of memory while opening '%s'", path));
    *out = r;
    return TT_OK;
fail:
    tt_jsonl_close(&r);
    return status;
}

void tt_jsonl_close(tt_jsonl **reader)
{
    if (!*reader) return;
    tt_file_close(&(*reader)->file);
    free((*reader)->buffer);
    free(*reader);
    *reader = NULL;
}

static bool file_is_read(const tt_jsonl *r)
{
    return r->start + r->filled == r->file.size;
}

/* Move what is left to the front and read until the buffer is full or the file ends. */
static tt_status fill(tt_jsonl *r)
{
    int64_t left = r->filled - r->at;
    memmove(r->buffer, r->buffer + r->at, (size_t)left);
    r->start += r->at;
    r->filled = left;
    r->at = 0;
    int64_t more = tt_min_i64(r->capacity - left, r->file.size - (r->start + left));
    TT_TRY(tt_file_read_at(&r->file, r->start + left, r->buffer + left, (size_t)more));
    r->filled += more;
    return TT_OK;
}

static tt_status grow(tt_jsonl *r)
{
    TT_CHECK(r->capacity < TT_JSONL_MAX_ROW, TT_EFORMAT,
             "%s:%lld: this row is longer than %d MiB, which is the limit; cut it into several rows", r->file.path,
             (long long)r->line, TT_JSONL_MAX_ROW >> 20);
    int64_t capacity = tt_min_i64(2 * r->capacity, TT_JSONL_MAX_ROW);
    char *buffer = realloc(r->buffer, (size_t)capacity);
    TT_CHECK(buffer, TT_ENOMEM, "%s:%lld: out of memory for a row of more than %lld bytes", r->file.path,
             (long long)r->line, (long long)r->capacity);
    r->buffer = buffer;
    r->capacity = capacity;
    return TT_OK;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static void skip_space(tt_jsonl *r)
{
    for (; r->at < r->filled && is_space(r->buffer[r->at]); r->at++) r->line += r->buffer[r->at] == '\n';
}

/* Add buffer[at .. at + bytes) without white space at its end. */
static void add_row(tt_jsonl *r, int64_t bytes)
{
    while (bytes > 0 && is_space(r->buffer[r->at + bytes - 1])) bytes--;
    r->rows[r->count++] = (tt_jsonl_row){.text = r->buffer + r->at,
                                         .bytes = bytes,
                                         .offset = r->start + r->at,
                                         .index = r->num_rows++,
                                         .line = r->line};
}

/* --- lines ---------------------------------------------------------------------------------------------- */

static void cut_lines(tt_jsonl *r)
{
    while (r->count < TT_JSONL_MAX_ROWS) {
        skip_space(r);
        const char *begin = r->buffer + r->at;
        const char *end = memchr(begin, '\n', (size_t)(r->filled - r->at));
        if (!end && !file_is_read(r)) return;
        int64_t bytes = end ? end - begin : r->filled - r->at;
        if (bytes == 0) return;
        add_row(r, bytes);
        r->at += bytes;
    }
}

/* --- elements of an array ------------------------------------------------------------------------------- */

/* The quote that ends the string whose first character is at p, or NULL. */
static const char *string_end(const char *p, const char *end)
{
    for (; p < end; p++) {
        if (*p == '"') return p;
        if (*p == '\\' && ++p == end) break;
    }
    return NULL;
}

/* The ',' or ']' that ends the element that begins at p, or NULL when it is not there. */
static const char *element_end(const char *p, const char *end)
{
    int64_t depth = 0;
    for (; p < end; p++) {
        switch (*p) {
        case '"':
            p = string_end(p + 1, end);
            if (!p) return NULL;
            break;
        case '[':
        case '{':
            depth++;
            break;
        case ']':
            if (depth == 0) return p;
            depth--;
            break;
        case '}':
            depth -= depth > 0;
            break;
        case ',':
            if (depth == 0) return p;
            break;
        default:
            break;
        }
    }
    return NULL;
}

static int64_t count_lines(const char *p, const char *end)
{
    int64_t lines = 0;
    while ((p = memchr(p, '\n', (size_t)(end - p)))) lines++, p++;
    return lines;
}

static void cut_elements(tt_jsonl *r)
{
    while (r->count < TT_JSONL_MAX_ROWS && r->place != AT_END) {
        skip_space(r);
        const char *begin = r->buffer + r->at;
        const char *end = element_end(begin, r->buffer + r->filled);
        if (!end) return;
        bool empty_array = r->place == AT_FIRST && *end == ']' && end == begin;
        if (!empty_array) add_row(r, end - begin);
        r->place = *end == ']' ? AT_END : AT_ELEMENT;
        r->line += count_lines(begin, end);
        r->at += end - begin + 1;
    }
}

/* Behind the array only white space may follow, however much of it. */
static tt_status finish_array(tt_jsonl *r)
{
    for (;;) {
        skip_space(r);
        TT_CHECK(r->at == r->filled, TT_EFORMAT,
                 "%s:%lld: text behind the end of the array; a file is one array, or one object a line", r->file.path,
                 (long long)r->line);
        if (file_is_read(r)) return TT_OK;
        TT_TRY(fill(r));
    }
}

/* --- both layouts ------------------------------------------------------------------------------------- */

/* Skip BOM and white space and look at the first character; LAYOUT_UNKNOWN while there is none. */
static void find_layout(tt_jsonl *r)
{
    if (r->start + r->at == 0 && r->filled >= 3 && memcmp(r->buffer, "\xEF\xBB\xBF", 3) == 0) r->at = 3;
    skip_space(r);
    if (r->at == r->filled) return;
    r->layout = r->buffer[r->at] == '[' ? LAYOUT_ARRAY : LAYOUT_LINES;
    r->at += r->layout == LAYOUT_ARRAY;
}

tt_status tt_jsonl_next(tt_jsonl *r, const tt_jsonl_row **rows, int64_t *count)
{
    r->count = 0;
    *rows = r->rows;
    *count = 0;
    for (;;) {
        /* A BOM needs three bytes; a smaller buffer grows below. */
        if (r->layout == LAYOUT_UNKNOWN && (r->filled >= 3 || file_is_read(r))) find_layout(r);
        if (r->layout == LAYOUT_LINES) cut_lines(r);
        if (r->layout == LAYOUT_ARRAY) cut_elements(r);
        *count = r->count;
        if (*count > 0) return TT_OK;
        if (r->layout == LAYOUT_ARRAY && r->place == AT_END) return finish_array(r);
        if (file_is_read(r)) break;
        if (r->at == 0 && r->filled == r->capacity) TT_TRY(grow(r));
        TT_TRY(fill(r));
    }
    TT_CHECK(r->layout != LAYOUT_ARRAY, TT_EFORMAT, "%s:%lld: the file ends inside its array; it was cut off",
             r->file.path, (long long)r->line);
    return TT_OK;
}

tt_status tt_jsonl_parse(const tt_jsonl_row *row, const char *path, json_t **out)
{
    char where[4200];
    json_t *value = NULL;
    snprintf(where, sizeof where, "%.4096s:%lld", path, (long long)row->line);
    TT_CHECK(row->bytes > 0, TT_EFORMAT, "%s: an element of the array is missing", where);
    TT_TRY(tt_json_parse(row->text, (size_t)row->bytes, where, &value));
    if (!json_is_object(value)) {
        tt_status status =
            tt_error_set(TT_EDATA, "%s: the row is %s; every row is one JSON object", where, tt_json_kind(value));
        json_decref(value);
        return status;
    }
    *out = value;
    return TT_OK;
}

tt_status tt_jsonl_reload(const char *path, const tt_jsonl_row *row, json_t **out)
{
    tt_file file;
    TT_TRY(tt_file_open(&file, path));
    tt_jsonl_row copy = *row;
    char *text = malloc((size_t)row->bytes + 1);
    tt_status status = text ? tt_file_read_at(&file, row->offset, text, (size_t)row->bytes)
                            : tt_error_set(TT_ENOMEM, "%s: out of memory for a row", path);
    copy.text = text;
    if (status == TT_OK) status = tt_jsonl_parse(&copy, path, out);
    free(text);
    tt_file_close(&file);
    return status;
}
