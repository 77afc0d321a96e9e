/* tokenizer_text.c - characters, views, buffers and the two tables that the parts of a tokenizer share. */
#include "data/tokenizer_impl.h"

#include <stdlib.h>

#include <utf8proc.h>
#include <xxhash.h>

size_t tt_u8_put(uint32_t c, char *out)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

size_t tt_u8_check(const char *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= 8 && (memcpy(&eight, text + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        utf8proc_int32_t c;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &c);
        if (n <= 0) return at;
        at += (size_t)n;
    }
    return bytes;
}

bool tt_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

tt_status tt_grow(void **array, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity) return TT_OK;
    size_t n = *capacity < 16 ? 16 : *capacity, bytes;
    while (n < need && n <= SIZE_MAX / 2) n *= 2;
    void *grown = n >= need && !__builtin_mul_overflow(n, size, &bytes) ? realloc(*array, bytes) : NULL;
    TT_CHECK(grown, TT_ENOMEM, "tokenizer: no memory for %zu elements of %zu bytes", need, size);
    *array = grown;
    *capacity = n;
    return TT_OK;
}

/* --- views and buffers ------------------------------------------------------------------------ */

tt_span tt_view_span(const tt_view *v, size_t at)
{
    return tt_view_range(v, at, at + 1);
}

tt_span tt_view_range(const tt_view *v, size_t begin, size_t end)
{
    if (v->align && begin < end) return (tt_span){v->align[begin].begin, v->align[end - 1].end};
    if (v->align) { /* nothing: the place between two characters */
        int64_t at = begin < v->size ? v->align[begin].begin : begin ? v->align[begin - 1].end : (int64_t)v->origin;
        return (tt_span){at, at};
    }
    while (begin > 0 && begin < v->size && tt_u8_inside(v->bytes[begin])) begin--;
    while (end < v->size && tt_u8_inside(v->bytes[end])) end++;
    return (tt_span){(int64_t)(v->origin + begin), (int64_t)(v->origin + end)};
}

tt_view tt_view_part(const tt_view *v, size_t begin, size_t end)
{
    size_t origin = v->align ? (size_t)tt_view_range(v, begin, begin).begin : v->origin + begin;
    return (tt_view){v->bytes + begin, end - begin, v->align ? v->align + begin : NULL, origin};
}

static tt_status make_room(tt_buffer *b, size_t more)
{
    TT_TRY(tt_grow((void **)&b->bytes, &b->capacity, b->size + more, 1));
    return tt_grow((void **)&b->align, &b->align_capacity, b->size + more, sizeof *b->align);
}

tt_status tt_buffer_push(tt_buffer *b, const char *bytes, size_t size, tt_span from)
{
    TT_TRY(make_room(b, size));
    for (size_t i = 0; i < size; i++) {
        b->bytes[b->size + i] = bytes[i];
        b->align[b->size + i] = from;
    }
    b->size += size;
    return TT_OK;
}

tt_status tt_buffer_copy(tt_buffer *b, const tt_view *v, size_t begin, size_t end)
{
    TT_TRY(make_room(b, end - begin));
    for (size_t at = begin; at < end;) {
        uint32_t c;
        size_t n = tt_u8_next(v->bytes + at, &c);
        tt_span from = tt_view_range(v, at, at + n);
        for (size_t i = 0; i < n; i++, at++, b->size++) {
            b->bytes[b->size] = v->bytes[at];
            b->align[b->size] = v->align ? v->align[at] : from;
        }
    }
    return TT_OK;
}

tt_view tt_buffer_view(const tt_buffer *b, size_t origin)
{
    static const tt_span nowhere = {0, 0}; /* an empty buffer may have no memory, but its view is not raw text */
    return (tt_view){b->bytes ? b->bytes : "", b->size, b->align ? b->align : &nowhere, origin};
}

/* --- numbers to numbers ----------------------------------------------------------------------- */

static void map_set(tt_map *m, uint64_t key, uint64_t value)
{
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    size_t i = (h ^ h >> 32) & m->mask;
    while (m->entries[i].key != UINT64_MAX && m->entries[i].key != key) i = (i + 1) & m->mask;
    m->count += m->entries[i].key == UINT64_MAX;
    m->entries[i].key = key;
    m->entries[i].value = value;
}

tt_status tt_map_put(tt_map *m, uint64_t key, uint64_t value)
{
    if (!m->entries || m->count * 2 > m->mask) {
        tt_map grown = {.mask = m->entries ? m->mask * 2 + 1 : 63};
        grown.entries = malloc((grown.mask + 1) * sizeof *grown.entries);
        TT_CHECK(grown.entries, TT_ENOMEM, "tokenizer: no memory for a table of %zu entries", grown.mask + 1);
        memset(grown.entries, 0xFF, (grown.mask + 1) * sizeof *grown.entries);
        for (size_t i = 0; m->entries && i <= m->mask; i++)
            if (m->entries[i].key != UINT64_MAX) map_set(&grown, m->entries[i].key, m->entries[i].value);
        free(m->entries);
        *m = grown;
    }
    map_set(m, key, value);
    return TT_OK;
}

void tt_map_fini(tt_map *m)
{
    free(m->entries);
    *m = (tt_map){0};
}

/* --- strings to ids --------------------------------------------------------------------------- */

static size_t slot_of(const tt_vocab *v, const char *string, size_t size)
{
    size_t i = XXH3_64bits(string, size) & v->mask;
    for (; v->slots[i] >= 0; i = (i + 1) & v->mask) {
        const tt_token *t = &v->tokens[v->slots[i]];
        if (t->size == size && memcmp(v->pool + t->at, string, size) == 0) break;
    }
    return i;
}

static tt_status enlarge_slots(tt_vocab *v)
{
    size_t n = v->slots ? (v->mask + 1) * 2 : 64;
    int32_t *slots = malloc(n * sizeof *slots);
    TT_CHECK(slots, TT_ENOMEM, "tokenizer: no memory for a vocabulary table of %zu entries", n);
    memset(slots, 0xFF, n * sizeof *slots);
    free(v->slots);
    v->slots = slots;
    v->mask = n - 1;
    for (size_t id = 0; id < v->size; id++)
        if (v->tokens[id].at != UINT32_MAX)
            slots[slot_of(v, v->pool + v->tokens[id].at, v->tokens[id].size)] = (int32_t)id;
    return TT_OK;
}

tt_status tt_vocab_add(tt_vocab *v, const char *string, size_t size, int64_t id, const char *where)
{
    int shown = size < 80 ? (int)size : 80; /* the string need not end with a NUL */
    TT_CHECK(id >= 0 && id < TT_TOKEN_ID_LIMIT, TT_EFORMAT, "%s: token '%.*s' has id %lld; ids are 0 to %d", where,
             shown, string, (long long)id, TT_TOKEN_ID_LIMIT - 1);
    TT_CHECK(v->pool_size + size + 1 < UINT32_MAX, TT_EFORMAT, "%s: more than 4 GB of tokens", where);
    if (!v->slots || v->count * 2 > v->mask) TT_TRY(enlarge_slots(v));
    size_t slot = slot_of(v, string, size);
    TT_CHECK(v->slots[slot] < 0, TT_EFORMAT, "%s: token '%.*s' is listed twice, with ids %d and %lld", where, shown,
             string, v->slots[slot], (long long)id);
    TT_TRY(tt_grow((void **)&v->tokens, &v->tokens_capacity, (size_t)id + 1, sizeof *v->tokens));
    for (; v->size <= (size_t)id; v->size++) v->tokens[v->size] = (tt_token){UINT32_MAX, 0};
    TT_CHECK(v->tokens[id].at == UINT32_MAX, TT_EFORMAT, "%s: id %lld belongs to two tokens, '%.80s' and '%.*s'",
             where, (long long)id, v->pool + v->tokens[id].at, shown, string);
    TT_TRY(tt_grow((void **)&v->pool, &v->pool_capacity, v->pool_size + size + 1, 1));
    memcpy(v->pool + v->pool_size, string, size);
    v->pool[v->pool_size + size] = 0; /* for messages */
    v->tokens[id] = (tt_token){(uint32_t)v->pool_size, (uint32_t)size};
    v->slots[slot] = (int32_t)id;
    v->pool_size += size + 1;
    v->count++;
    return TT_OK;
}

int32_t tt_vocab_find(const tt_vocab *v, const char *string, size_t size)
{
    return v->slots ? v->slots[slot_of(v, string, size)] : -1;
}

const char *tt_vocab_string(const tt_vocab *v, int64_t id, size_t *size)
{
    if (id < 0 || (size_t)id >= v->size || v->tokens[id].at == UINT32_MAX) return NULL;
    *size = v->tokens[id].size;
    return v->pool + v->tokens[id].at;
}

void tt_vocab_fini(tt_vocab *v)
{
    free(v->pool);
    free(v->tokens);
    free(v->slots);
    *v = (tt_vocab){0};
}
