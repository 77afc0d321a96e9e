/* tokenizer_json.c - the two large parts of tokenizer.json, read without a tree.
 *
 * A vocabulary of 150,000 tokens and as many merges cost a JSON tree half a million small allocations. So the
 * vocabulary and the merges are cut out of the text and read straight into their tables, as strictly as the
 * tree would be: strings with all escapes, valid UTF-8, no lone surrogates, no control characters, no
 * repeated keys. The rest of the file, with {} and [] in their places, goes to the JSON library, which judges
 * its syntax. Where the file is not valid JSON the cut may be in the wrong place; either half then fails.
 */
#include "base/json.h"
#include "data/tokenizer_impl.h"

#include <stdlib.h>

typedef struct reader {
    const char *start, *p, *end;
    const char *where;
    char *string; /* of the last string that had escapes */
    size_t capacity;
} reader;

static void skip_space(reader *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t')) r->p++;
}

static tt_status expected(const reader *r, const char *what)
{
    return tt_error_set(TT_EFORMAT, "%s: byte %zu: %s expected, found '%.*s'", r->where, (size_t)(r->p - r->start),
                        what, r->end - r->p < 20 ? (int)(r->end - r->p) : 20, r->p);
}

static bool take(reader *r, char c)
{
    skip_space(r);
    if (r->p == r->end || *r->p != c) return false;
    r->p++;
    return true;
}

/* --- strings and numbers ---------------------------------------------------------------------- */

static tt_status read_hex(reader *r, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->p++) {
        char c = r->p < r->end ? *r->p : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return expected(r, "four hexadecimal digits");
        *out = *out << 4 | (uint32_t)digit;
    }
    return TT_OK;
}

/* Behind "\u". */
static tt_status read_code_point(reader *r, uint32_t *out)
{
    uint32_t low;
    TT_TRY(read_hex(r, out));
    if (*out < 0xD800 || *out > 0xDFFF) return TT_OK;
    if (*out > 0xDBFF || r->end - r->p < 2 || r->p[0] != '\\' || r->p[1] != 'u')
        return expected(r, "the other half of a surrogate pair");
    r->p += 2;
    TT_TRY(read_hex(r, &low));
    if (low < 0xDC00 || low > 0xDFFF) return expected(r, "the low half of a surrogate pair");
    *out = 0x10000 + ((*out - 0xD800) << 10) + (low - 0xDC00);
    return TT_OK;
}

/* Behind the backslash. Writes at most 4 bytes. */
static tt_status read_escape(reader *r, char *out, size_t *n)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *name = r->p < r->end && *r->p ? strchr(names, *r->p) : NULL;
    *n = 1;
    if (name) {
        *out = values[name - names];
        r->p++;
        return TT_OK;
    }
    if (r->p == r->end || *r->p != 'u') return expected(r, "an escape");
    r->p++;
    uint32_t c;
    TT_TRY(read_code_point(r, &c));
    *n = tt_u8_put(c, out);
    return TT_OK;
}

/* To the first quote, backslash or control character. */
static const char *plain_end(const reader *r)
{
    const char *p = r->p;
    while (p < r->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20) p++;
    return p;
}

static tt_status read_rest(reader *r, const char **string, size_t *size)
{
    size_t n = 0, more;
    for (;;) {
        const char *stop = plain_end(r);
        size_t plain = (size_t)(stop - r->p);
        TT_TRY(tt_grow((void **)&r->string, &r->capacity, n + plain + 4, 1));
        memcpy(r->string + n, r->p, plain);
        n += plain;
        r->p = stop;
        if (stop == r->end || (unsigned char)*stop < 0x20) return expected(r, "the end of a string");
        r->p++;
        if (*stop == '"') break;
        TT_TRY(read_escape(r, r->string + n, &more));
        n += more;
    }
    *string = r->string;
    *size = n;
    return TT_OK;
}

/* A string: in place when it has no escapes, else in r->string until the next one. */
static tt_status read_string(reader *r, const char **string, size_t *size)
{
    if (!take(r, '"')) return expected(r, "a string");
    const char *stop = plain_end(r);
    if (stop < r->end && *stop == '"') {
        *string = r->p;
        *size = (size_t)(stop - r->p);
        r->p = stop + 1;
    } else {
        TT_TRY(read_rest(r, string, size));
    }
    if (tt_u8_check(*string, *size) != *size) return expected(r, "valid UTF-8 in the string before");
    return TT_OK;
}

static tt_status read_id(reader *r, int64_t *out)
{
    skip_space(r);
    const char *first = r->p;
    *out = 0;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && r->p - first < 12) *out = *out * 10 + (*r->p++ - '0');
    bool sound = r->p > first && (*first != '0' || r->p == first + 1);
    if (sound && (r->p == r->end || !strchr("0123456789.eE+-", *r->p))) return TT_OK;
    r->p = first;
    return expected(r, "an id (a whole number from 0 on)");
}

/* --- cutting ---------------------------------------------------------------------------------- */

/* To behind the value at r->p, an object or an array: brackets are counted, strings skipped. */
static void skip_value(reader *r)
{
    int64_t depth = 0;
    bool quoted = false;
    for (; r->p < r->end; r->p++) {
        char c = *r->p;
        if (c == '\\' && quoted)
            r->p += r->p + 1 < r->end;
        else if (c == '"')
            quoted = !quoted;
        else if (quoted)
            continue;
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0) {
            r->p++;
            return;
        }
    }
}

typedef struct cutter {
    reader r;
    tt_model_text *out;
    const char *copied; /* up to here the file is in out->rest */
    int64_t depth;
    bool in_model;
} cutter;

static void copy_until(cutter *c, const char *end)
{
    memcpy(c->out->rest + c->out->rest_size, c->copied, (size_t)(end - c->copied));
    c->out->rest_size += (size_t)(end - c->copied);
}

/* If the value at r.p is a vocabulary or a list of merges, note where it lies and put an empty one instead. */
static void cut_value(cutter *c, char bracket, const char **begin, const char **end)
{
    skip_space(&c->r);
    if (c->r.p == c->r.end || *c->r.p != bracket || *begin) return;
    copy_until(c, *begin = c->r.p);
    skip_value(&c->r);
    c->copied = *end = c->r.p;
    memcpy(c->out->rest + c->out->rest_size, bracket == '{' ? "{}" : "[]", 2);
    c->out->rest_size += 2;
}

static bool is(const char *string, size_t size, const char *name)
{
    return size == strlen(name) && memcmp(string, name, size) == 0;
}

/* A string at the top or inside the model; it is a key if a colon follows. */
static tt_status cut_key(cutter *c)
{
    const char *key;
    size_t size;
    TT_TRY(read_string(&c->r, &key, &size));
    if (c->depth > 2 || !take(&c->r, ':')) return TT_OK;
    if (c->depth == 1) c->in_model = is(key, size, "model");
    if (c->depth != 2 || !c->in_model) return TT_OK;
    if (is(key, size, "vocab")) cut_value(c, '{', &c->out->vocab, &c->out->vocab_end);
    if (is(key, size, "merges")) cut_value(c, '[', &c->out->merges, &c->out->merges_end);
    return TT_OK;
}

static tt_status cut_all(cutter *c)
{
    while (c->r.p < c->r.end) {
        char ch = *c->r.p;
        if (ch == '"') {
            TT_TRY(cut_key(c));
            continue;
        }
        c->depth += (ch == '{' || ch == '[') - (ch == '}' || ch == ']');
        c->r.p++;
    }
    copy_until(c, c->r.end);
    return TT_OK;
}

tt_status tt_model_text_cut(const char *text, size_t bytes, const char *where, tt_model_text *out)
{
    *out = (tt_model_text){.rest = malloc(bytes + 1)}; /* an empty value is no longer than what it replaces */
    TT_CHECK(out->rest, TT_ENOMEM, "%s: no memory for %zu bytes", where, bytes);
    cutter c = {.r = {text, text, text + bytes, where, NULL, 0}, .out = out, .copied = text};
    tt_status status = cut_all(&c);
    free(c.r.string);
    if (status == TT_OK) return TT_OK;
    free(out->rest);
    *out = (tt_model_text){0};
    return status;
}

/* --- the two tables --------------------------------------------------------------------------- */

static tt_status read_entries(reader *r, tt_vocab *out)
{
    const char *string;
    size_t size;
    int64_t id;
    if (!take(r, '{')) return expected(r, "{");
    if (take(r, '}')) return TT_OK;
    do {
        TT_TRY(read_string(r, &string, &size));
        if (!take(r, ':')) return expected(r, ":");
        TT_TRY(read_id(r, &id));
        TT_TRY(tt_vocab_add(out, string, size, id, r->where));
    } while (take(r, ','));
    return take(r, '}') ? TT_OK : expected(r, ", or }");
}

tt_status tt_model_read_vocab(const tt_model_text *m, const char *text, const char *where, tt_vocab *out)
{
    reader r = {text, m->vocab, m->vocab_end, where, NULL, 0};
    tt_status status = read_entries(&r, out);
    if (status == TT_OK && r.p != r.end) status = expected(&r, "the end of the vocabulary");
    free(r.string);
    return status == TT_OK ? TT_OK : tt_error_context(status, "model.vocab");
}

/* "a b": two parts with one space between. */
static tt_status read_merge_string(reader *r, tt_bpe *out, uint32_t *rank)
{
    const char *s, *space;
    size_t size;
    TT_TRY(read_string(r, &s, &size));
    if (size >= 8 && memcmp(s, "#version", 8) == 0) return TT_OK;
    space = memchr(s, ' ', size);
    size_t left = space ? (size_t)(space - s) : size;
    TT_CHECK(space && !memchr(space + 1, ' ', size - left - 1), TT_EFORMAT,
             "%s: merge '%.*s' is not two tokens with one space between; write tokens with spaces as a pair",
             r->where, size < 80 ? (int)size : 80, s);
    return tt_bpe_add_merge(out, s, left, space + 1, size - left - 1, (*rank)++, r->where);
}

/* ["a", "b"] */
static tt_status read_merge_pair(reader *r, tt_bpe *out, uint32_t *rank, char **left, size_t *capacity)
{
    const char *s;
    size_t left_size, size;
    if (!take(r, '[')) return expected(r, "a pair of tokens, like those before,");
    TT_TRY(read_string(r, &s, &left_size));
    TT_TRY(tt_grow((void **)left, capacity, left_size + 1, 1));
    memcpy(*left, s, left_size);
    if (!take(r, ',')) return expected(r, ", and the second token of the merge");
    TT_TRY(read_string(r, &s, &size));
    if (!take(r, ']')) return expected(r, "] after two tokens");
    return tt_bpe_add_merge(out, *left, left_size, s, size, (*rank)++, r->where);
}

static tt_status read_list(reader *r, tt_bpe *out, char **left, size_t *capacity)
{
    uint32_t rank = 0;
    if (!take(r, '[')) return expected(r, "[");
    if (take(r, ']')) return TT_OK;
    skip_space(r);
    bool strings = r->p < r->end && *r->p == '"'; /* one form for the whole file */
    do {
        skip_space(r);
        if (strings)
            TT_TRY(read_merge_string(r, out, &rank));
        else
            TT_TRY(read_merge_pair(r, out, &rank, left, capacity));
    } while (take(r, ','));
    return take(r, ']') ? TT_OK : expected(r, ", or ]");
}

tt_status tt_model_read_merges(const tt_model_text *m, const char *text, const char *where, tt_bpe *out)
{
    reader r = {text, m->merges, m->merges_end, where, NULL, 0};
    char *left = NULL;
    size_t capacity = 0;
    tt_status status = read_list(&r, out, &left, &capacity);
    if (status == TT_OK && r.p != r.end) status = expected(&r, "the end of the merges");
    free(left);
    free(r.string);
    return status == TT_OK ? TT_OK : tt_error_context(status, "model.merges");
}
