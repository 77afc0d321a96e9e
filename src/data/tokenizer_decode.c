/* tokenizer_decode.c - ids back to text: token strings go through the decoder's steps, then are joined.
 *
 * A byte-level decoder maps stand-ins back to bytes; a token with any other character gives its own bytes.
 * What is not valid UTF-8 afterwards becomes U+FFFD, one for each maximal invalid part.
 */
#include "data/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* A list of strings in one block: string i ends at ends[i] and begins where the one before ends. */
typedef struct strings {
    char *bytes;
    size_t size, capacity;
    size_t *ends;
    size_t count, ends_capacity;
} strings;

static tt_status append(strings *s, const char *bytes, size_t size)
{
    TT_TRY(tt_grow((void **)&s->bytes, &s->capacity, s->size + size + 1, 1));
    if (size) memcpy(s->bytes + s->size, bytes, size);
    s->size += size;
    return TT_OK;
}

static tt_status finish(strings *s)
{
    TT_TRY(tt_grow((void **)&s->ends, &s->ends_capacity, s->count + 1, sizeof *s->ends));
    s->ends[s->count++] = s->size;
    return TT_OK;
}

static const char *get(const strings *s, size_t i, size_t *size)
{
    size_t begin = i ? s->ends[i - 1] : 0;
    *size = s->ends[i] - begin;
    return s->bytes ? s->bytes + begin : "";
}

static void strings_fini(strings *s)
{
    free(s->bytes);
    free(s->ends);
}

/* --- invalid UTF-8 ---------------------------------------------------------------------------- */

/* Bytes of the longest part at s[0] that begins a valid character; *valid: it is a whole one. */
static size_t longest_part(const unsigned char *s, size_t size, bool *valid)
{
    unsigned c = s[0], low = 0x80, high = 0xBF; /* bounds of the second byte */
    size_t need = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
    size_t n = 1;
    for (; n < need && n < size && s[n] >= low && s[n] <= high; n++) low = 0x80, high = 0xBF;
    *valid = n == need;
    return n;
}

static tt_status append_lossy(strings *s, const char *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t good = tt_u8_check(bytes + at, size - at);
        bool valid = true;
        TT_TRY(append(s, bytes + at, good));
        at += good;
        if (at == size) break;
        at += longest_part((const unsigned char *)bytes + at, size - at, &valid);
        TT_TRY(append(s, "\xEF\xBF\xBD", 3));
    }
    return TT_OK;
}

/* --- steps ------------------------------------------------------------------------------------ */

static tt_status append_bytes_of(strings *s, const char *token, size_t size)
{
    size_t start = s->size;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        at += tt_u8_next(token + at, &c);
        int byte = tt_stand_in_byte(c);
        if (byte < 0) {
            s->size = start;
            return append(s, token, size);
        }
        TT_TRY(append(s, &(char){(char)byte}, 1));
    }
    return TT_OK;
}

static tt_status byte_level(const strings *in, strings *out)
{
    strings raw = {0};
    tt_status status = TT_OK;
    for (size_t i = 0; i < in->count && status == TT_OK; i++) {
        size_t size;
        const char *token = get(in, i, &size);
        status = append_bytes_of(&raw, token, size);
    }
    if (status == TT_OK) status = append_lossy(out, raw.bytes, raw.size);
    strings_fini(&raw);
    return status == TT_OK ? finish(out) : status;
}

static tt_status replace(const tt_decode_step *s, tt_regex_scratch *regex, const strings *in, strings *out)
{
    for (size_t i = 0; i < in->count; i++) {
        size_t size, copied = 0, from = 0, begin, end;
        const char *token = get(in, i, &size);
        bool found;
        while (from <= size) {
            TT_TRY(tt_pattern_find(&s->pattern, regex, token, size, from, &found, &begin, &end));
            if (!found) break;
            TT_TRY(append(out, token + copied, begin - copied));
            TT_TRY(append(out, s->content, s->content_size));
            uint32_t c;
            copied = from = end;
            if (begin == end) from += end < size ? tt_u8_next(token + end, &c) : 1;
        }
        TT_TRY(append(out, token + copied, size - copied));
        TT_TRY(finish(out));
    }
    return TT_OK;
}

/* The byte that a token <0xHH> names, or -1. */
static int byte_token(const char *token, size_t size)
{
    if (size != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') return -1;
    char digits[3] = {token[3], token[4], 0};
    if (strspn(digits, "0123456789abcdefABCDEF") != 2) return -1;
    return (int)strtol(digits, NULL, 16);
}

/* A run of byte tokens is one string if it is valid as a whole, else one U+FFFD per byte. */
static tt_status put_run(strings *out, const char *run, size_t size)
{
    if (size == 0) return TT_OK;
    if (tt_u8_check(run, size) == size) {
        TT_TRY(append(out, run, size));
        return finish(out);
    }
    for (size_t i = 0; i < size; i++) {
        TT_TRY(append(out, "\xEF\xBF\xBD", 3));
        TT_TRY(finish(out));
    }
    return TT_OK;
}

static tt_status join_bytes(const strings *in, strings *run, strings *out)
{
    for (size_t i = 0; i < in->count; i++) {
        size_t size;
        const char *token = get(in, i, &size);
        int byte = byte_token(token, size);
        if (byte >= 0) {
            TT_TRY(append(run, &(char){(char)byte}, 1));
            continue;
        }
        TT_TRY(put_run(out, run->bytes, run->size));
        run->size = 0;
        TT_TRY(append(out, token, size));
        TT_TRY(finish(out));
    }
    return put_run(out, run->bytes, run->size);
}

static tt_status byte_fallback(const strings *in, strings *out)
{
    strings run = {0};
    tt_status status = join_bytes(in, &run, out);
    strings_fini(&run);
    return status;
}

static tt_status strip(const tt_decode_step *s, const strings *in, strings *out)
{
    for (size_t i = 0; i < in->count; i++) {
        size_t size, n = s->content_size;
        const char *token = get(in, i, &size), *end = token + size;
        for (int64_t k = 0; k < s->start && (size_t)(end - token) >= n && !memcmp(token, s->content, n); k++)
            token += n;
        for (int64_t k = 0; k < s->stop && (size_t)(end - token) >= n && !memcmp(end - n, s->content, n); k++)
            end -= n;
        TT_TRY(append(out, token, (size_t)(end - token)));
        TT_TRY(finish(out));
    }
    return TT_OK;
}

static tt_status metaspace(const tt_decode_step *s, const strings *in, strings *out)
{
    for (size_t i = 0; i < in->count; i++) {
        size_t size, n = s->content_size;
        const char *token = get(in, i, &size);
        for (size_t at = 0; at < size;) {
            uint32_t c;
            size_t length = tt_u8_next(token + at, &c);
            bool mark = length == n && memcmp(token + at, s->content, n) == 0;
            if (!mark)
                TT_TRY(append(out, token + at, length));
            else if (i > 0 || !s->drop_first)
                TT_TRY(append(out, " ", 1));
            at += length;
        }
        TT_TRY(finish(out));
    }
    return TT_OK;
}

static tt_status apply(const tt_decode_step *s, tt_regex_scratch *regex, const strings *in, strings *out)
{
    switch (s->kind) {
    case TT_DECODE_BYTE_LEVEL:
        return byte_level(in, out);
    case TT_DECODE_REPLACE:
        return replace(s, regex, in, out);
    case TT_DECODE_BYTE_FALLBACK:
        return byte_fallback(in, out);
    case TT_DECODE_STRIP:
        return strip(s, in, out);
    case TT_DECODE_METASPACE:
        return metaspace(s, in, out);
    case TT_DECODE_FUSE:
        TT_TRY(append(out, in->bytes, in->size));
        return finish(out);
    }
    return TT_EINTERNAL;
}

/* --- ids -------------------------------------------------------------------------------------- */

static tt_status collect(const tt_tokenizer *t, const int32_t *ids, int64_t count, bool skip_special, strings *out)
{
    for (int64_t i = 0; i < count; i++) {
        const uint64_t *index = ids[i] >= 0 ? tt_map_find(&t->added_by_id, (uint64_t)ids[i]) : NULL;
        const tt_added *added = index ? &t->added[*index] : NULL;
        size_t size = added ? added->size : 0;
        const char *token = added ? added->content : tt_vocab_string(&t->bpe.vocab, ids[i], &size);
        TT_CHECK(token, TT_EDATA, "%s: no token has the id %d (number %lld of the sequence); ids end at %lld",
                 t->where, ids[i], (long long)i, (long long)tt_tokenizer_size(t) - 1);
        if (skip_special && added && added->special) continue;
        if (out->count && !t->decode_joined) TT_TRY(append(out, " ", 1));
        TT_TRY(append(out, token, size));
        TT_TRY(finish(out));
    }
    return TT_OK;
}

static tt_status decode(const tt_tokenizer *t, const int32_t *ids, int64_t count, bool skip_special, strings list[2],
                        int *last)
{
    tt_context *c;
    TT_TRY(collect(t, ids, count, skip_special, &list[0]));
    TT_TRY(tt_tokenizer_borrow(t, &c));
    tt_status status = TT_OK;
    *last = 0;
    for (size_t i = 0; i < t->decode_count && status == TT_OK; i++) {
        strings *in = &list[*last], *out = &list[ *last = !*last];
        out->size = out->count = 0;
        status = apply(&t->decode[i], c->regex, in, out);
    }
    tt_tokenizer_return(t, c);
    return status;
}

tt_status tt_tokenizer_decode(const tt_tokenizer *t, const int32_t *ids, int64_t count, bool skip_special,
                              char **text, size_t *bytes)
{
    strings list[2] = {{0}, {0}};
    int last = 0;
    tt_status status = decode(t, ids, count, skip_special, list, &last);
    if (status == TT_OK) status = append(&list[last], "", 0); /* room for the NUL, also of nothing */
    if (status == TT_OK) {
        list[last].bytes[list[last].size] = 0;
        *text = list[last].bytes;
        *bytes = list[last].size;
        list[last].bytes = NULL;
    }
    strings_fini(&list[0]);
    strings_fini(&list[1]);
    return status;
}
