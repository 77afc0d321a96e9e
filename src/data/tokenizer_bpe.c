/* tokenizer_bpe.c - byte pair encoding of one piece.
 *
 * - Start symbols: one per byte (byte-level) or per character.
 * - A heap holds (rank, position) of every neighbouring pair that merges, both in one 64-bit key, so equal
 *   ranks go from left to right: with the merge (a, a), "aaa" becomes "aa a".
 * - An entry is stale when its symbol is gone or its pair has changed. A pair that changed is longer than
 *   before, so it cannot have the same rank, and comparing ranks finds all stale entries.
 *
 * O(n log n) for n bytes. Short pieces go through a cache in the context, direct-mapped and compared in full.
 * Where a character is unknown and the file names no unknown token the common library drops it in silence;
 * here a byte-level vocabulary must hold all bytes, and others fail on such a text.
 */
#include "data/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

#define NO_RANK UINT32_MAX

/* --- byte stand-ins --------------------------------------------------------------------------- */

/* Printable bytes stand for the code point of the same number, the other 68 for U+0100 onwards, in order. */
static bool stands_for_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

static uint32_t stand_in(unsigned byte)
{
    if (stands_for_itself(byte)) return byte;
    if (byte <= 0x20) return 0x100 + byte;
    return byte == 0xAD ? 0x143 : 0x121 + byte - 0x7F; /* 0x7F to 0xA0 follow 0x00 to 0x20 */
}

size_t tt_byte_stand_in(unsigned char byte, char *out)
{
    return tt_u8_put(stand_in(byte), out);
}

int tt_stand_in_byte(uint32_t c)
{
    if (c < 0x100) return stands_for_itself(c) ? (int)c : -1;
    if (c <= 0x120) return (int)(c - 0x100);
    if (c <= 0x142) return (int)(c - 0x121 + 0x7F);
    return c == 0x143 ? 0xAD : -1;
}

/* --- loading ---------------------------------------------------------------------------------- */

static tt_status need_token(const tt_bpe *m, const char *string, size_t size, uint32_t rank, const char *where,
                            int32_t *id)
{
    *id = tt_vocab_find(&m->vocab, string, size);
    TT_CHECK(*id >= 0, TT_EFORMAT, "%s: merge number %u needs '%.*s', which is not in the vocabulary", where, rank,
             size < 80 ? (int)size : 80, string);
    return TT_OK;
}

tt_status tt_bpe_add_merge(tt_bpe *m, const char *left, size_t left_size, const char *right, size_t right_size,
                           uint32_t rank, const char *where)
{
    char fixed[256];
    int32_t a, b, merged;
    TT_TRY(need_token(m, left, left_size, rank, where, &a));
    TT_TRY(need_token(m, right, right_size, rank, where, &b));
    TT_CHECK(right_size >= m->prefix_size && memcmp(right, m->prefix, m->prefix_size) == 0, TT_EFORMAT,
             "%s: merge number %u: its second part '%.*s' lacks the continuing_subword_prefix '%s'", where, rank,
             right_size < 80 ? (int)right_size : 80, right, m->prefix);
    right += m->prefix_size;
    right_size -= m->prefix_size;
    size_t size = left_size + right_size;
    char *joined = size <= sizeof fixed ? fixed : malloc(size);
    TT_CHECK(joined, TT_ENOMEM, "%s: no memory for a merge of %zu bytes", where, size);
    memcpy(joined, left, left_size);
    memcpy(joined + left_size, right, right_size);
    tt_status status = need_token(m, joined, size, rank, where, &merged);
    if (joined != fixed) free(joined);
    TT_TRY(status);
    return tt_map_put(&m->merges, (uint64_t)a << 32 | (uint32_t)b, (uint64_t)rank << 32 | (uint32_t)merged);
}

tt_status tt_bpe_finish(tt_bpe *m, const char *where)
{
    for (int byte = 0; byte < 256; byte++) {
        char name[8], s[4];
        snprintf(name, sizeof name, "<0x%02X>", byte);
        m->fallback[byte] = tt_vocab_find(&m->vocab, name, 6);
        m->byte_ids[byte] = tt_vocab_find(&m->vocab, s, tt_byte_stand_in((unsigned char)byte, s));
        TT_CHECK(!m->byte_level || m->byte_ids[byte] >= 0 || m->unk >= 0 || m->byte_fallback, TT_EFORMAT,
                 "%s: the vocabulary has no token for the byte 0x%02X and no unk_token, so text would vanish; the "
                 "file is damaged",
                 where, byte);
    }
    return TT_OK;
}

void tt_bpe_fini(tt_bpe *m)
{
    tt_vocab_fini(&m->vocab);
    tt_map_fini(&m->merges);
    free(m->prefix);
    free(m->suffix);
    *m = (tt_bpe){0};
}

/* --- start symbols ---------------------------------------------------------------------------- */

static tt_status add_symbol(tt_context *c, int32_t id, size_t size)
{
    if (c->symbol_count == c->symbol_capacity)
        TT_TRY(tt_grow((void **)&c->symbols, &c->symbol_capacity, c->symbol_count + 1, sizeof *c->symbols));
    c->symbols[c->symbol_count] = (tt_symbol){.id = id, .size = (uint32_t)size};
    c->symbol_count++;
    return TT_OK;
}

static tt_status byte_symbols(const tt_bpe *m, tt_context *c, const char *piece, size_t size)
{
    TT_TRY(tt_grow((void **)&c->symbols, &c->symbol_capacity, size, sizeof *c->symbols));
    for (size_t i = 0; i < size; i++)
        c->symbols[i] = (tt_symbol){.id = m->byte_ids[(unsigned char)piece[i]], .size = 1};
    c->symbol_count = size;
    return TT_OK;
}

/* The tokens <0xHH> for all bytes of a word, the first of which stands for the character; false when one lacks. */
static tt_status fall_back(const tt_bpe *m, tt_context *c, const char *word, size_t size, size_t stands_for,
                           bool *done)
{
    *done = false;
    if (!m->byte_fallback) return TT_OK;
    for (size_t i = 0; i < size; i++)
        if (m->fallback[(unsigned char)word[i]] < 0) return TT_OK;
    *done = true;
    for (size_t i = 0; i < size; i++) TT_TRY(add_symbol(c, m->fallback[(unsigned char)word[i]], i < stands_for));
    return TT_OK;
}

static tt_status unknown(const tt_bpe *m, tt_context *c, const char *word, size_t size, size_t stands_for, bool *fuse)
{
    TT_CHECK(m->unk >= 0, TT_EDATA,
             "the tokenizer's vocabulary has no token for '%.*s' and names no unk_token, so the text cannot "
             "be encoded",
             size < 40 ? (int)size : 40, word);
    if (*fuse && m->fuse_unk) {
        c->symbols[c->symbol_count - 1].size += (uint32_t)stands_for;
        return TT_OK;
    }
    *fuse = true;
    return add_symbol(c, m->unk, stands_for);
}

/* One symbol with the prefix or the suffix that its place asks for. */
static tt_status character_symbol(const tt_bpe *m, tt_context *c, const char *s, size_t size, size_t stands_for,
                                  bool first, bool last, bool *fuse)
{
    size_t n = 0;
    bool done;
    TT_TRY(tt_grow((void **)&c->word, &c->word_capacity, m->prefix_size + size + m->suffix_size, 1));
    if (!first) memcpy(c->word, m->prefix, n = m->prefix_size);
    memcpy(c->word + n, s, size);
    n += size;
    if (last) memcpy(c->word + n, m->suffix, m->suffix_size), n += m->suffix_size;
    int32_t id = tt_vocab_find(&m->vocab, c->word, n);
    if (id < 0) {
        TT_TRY(fall_back(m, c, c->word, n, stands_for, &done));
        if (!done) return unknown(m, c, c->word, n, stands_for, fuse);
    } else {
        TT_TRY(add_symbol(c, id, stands_for));
    }
    *fuse = false;
    return TT_OK;
}

static tt_status character_symbols(const tt_bpe *m, tt_context *c, const char *piece, size_t size)
{
    bool fuse = false;
    c->symbol_count = 0;
    for (size_t at = 0; at < size;) {
        char s[4];
        uint32_t code;
        size_t raw = m->byte_level ? 1 : tt_u8_next(piece + at, &code), n = raw;
        if (m->byte_level)
            n = tt_byte_stand_in((unsigned char)piece[at], s);
        else
            memcpy(s, piece + at, n);
        TT_TRY(character_symbol(m, c, s, n, raw, at == 0, at + raw == size, &fuse));
        at += raw;
    }
    return TT_OK;
}

/* --- merging ---------------------------------------------------------------------------------- */

static void sift_down(uint64_t *heap, size_t count, size_t i)
{
    uint64_t key = heap[i];
    for (size_t child; (child = 2 * i + 1) < count; i = child) {
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (heap[child] >= key) break;
        heap[i] = heap[child];
    }
    heap[i] = key;
}

static uint64_t pop(tt_context *c)
{
    uint64_t top = c->heap[0];
    c->heap[0] = c->heap[--c->heap_count];
    if (c->heap_count) sift_down(c->heap, c->heap_count, 0);
    return top;
}

static tt_status push(tt_context *c, uint64_t key)
{
    TT_TRY(tt_grow((void **)&c->heap, &c->heap_capacity, c->heap_count + 1, sizeof *c->heap));
    size_t i = c->heap_count++;
    for (size_t parent; i > 0 && c->heap[parent = (i - 1) / 2] > key; i = parent) c->heap[i] = c->heap[parent];
    c->heap[i] = key;
    return TT_OK;
}

/* Rank of the pair (symbol at, its right neighbour) into the symbol. */
static void rank_pair(const tt_bpe *m, tt_symbol *symbols, int32_t at)
{
    int32_t next = symbols[at].next;
    symbols[at].rank = NO_RANK;
    if (next < 0) return;
    const uint64_t *v = tt_map_find(&m->merges, (uint64_t)symbols[at].id << 32 | (uint32_t)symbols[next].id);
    if (v) symbols[at].rank = (uint32_t)(*v >> 32);
}

static tt_status push_pair(tt_context *c, int32_t at)
{
    return c->symbols[at].rank == NO_RANK ? TT_OK : push(c, (uint64_t)c->symbols[at].rank << 32 | (uint32_t)at);
}

static tt_status merge_at(const tt_bpe *m, tt_context *c, int32_t at)
{
    tt_symbol *s = c->symbols, *left = &s[at], *right = &s[left->next];
    left->id = (int32_t)*tt_map_find(&m->merges, (uint64_t)left->id << 32 | (uint32_t)right->id);
    left->size += right->size;
    left->next = right->next;
    right->rank = NO_RANK; /* its entries in the heap are stale */
    right->id = -1;
    if (left->next >= 0) s[left->next].prev = at;
    rank_pair(m, s, at);
    TT_TRY(push_pair(c, at));
    if (left->prev < 0) return TT_OK;
    rank_pair(m, s, left->prev);
    return push_pair(c, left->prev);
}

static tt_status merge(const tt_bpe *m, tt_context *c)
{
    size_t n = c->symbol_count;
    c->heap_count = 0;
    TT_TRY(tt_grow((void **)&c->heap, &c->heap_capacity, n, sizeof *c->heap));
    for (size_t i = 0; i < n; i++) {
        c->symbols[i].prev = (int32_t)i - 1;
        c->symbols[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
        rank_pair(m, c->symbols, (int32_t)i);
        if (c->symbols[i].rank != NO_RANK) c->heap[c->heap_count++] = (uint64_t)c->symbols[i].rank << 32 | i;
    }
    for (size_t i = c->heap_count / 2; i-- > 0;) sift_down(c->heap, c->heap_count, i);
    while (c->heap_count) {
        uint64_t top = pop(c);
        if (c->symbols[(uint32_t)top].rank == top >> 32) TT_TRY(merge_at(m, c, (int32_t)(uint32_t)top));
    }
    return TT_OK;
}

/* --- one piece -------------------------------------------------------------------------------- */

static tt_status add_id(tt_context *c, int32_t id, uint32_t size)
{
    TT_TRY(tt_grow((void **)&c->ids, &c->id_capacity, c->id_count + 1, sizeof *c->ids));
    TT_TRY(tt_grow((void **)&c->sizes, &c->size_capacity, c->id_count + 1, sizeof *c->sizes));
    c->ids[c->id_count] = id;
    c->sizes[c->id_count++] = size;
    return TT_OK;
}

/* The id of the whole piece, or -1. */
static tt_status whole(const tt_bpe *m, tt_context *c, const char *piece, size_t size, int32_t *id)
{
    if (!m->byte_level) {
        *id = tt_vocab_find(&m->vocab, piece, size);
        return TT_OK;
    }
    size_t n = 0;
    TT_TRY(tt_grow((void **)&c->word, &c->word_capacity, 2 * size, 1));
    for (size_t i = 0; i < size; i++) n += tt_byte_stand_in((unsigned char)piece[i], c->word + n);
    *id = tt_vocab_find(&m->vocab, c->word, n);
    return TT_OK;
}

static tt_status encode(const tt_bpe *m, tt_context *c, const char *piece, size_t size)
{
    int32_t id = -1;
    if (m->ignore_merges) TT_TRY(whole(m, c, piece, size, &id));
    if (id >= 0) return add_id(c, id, (uint32_t)size);
    bool plain = m->byte_level && !m->prefix_size && !m->suffix_size && m->unk < 0 && !m->byte_fallback;
    TT_TRY(plain ? byte_symbols(m, c, piece, size) : character_symbols(m, c, piece, size));
    if (c->symbol_count == 0) return TT_OK;
    TT_TRY(merge(m, c));
    for (int32_t i = 0; i >= 0; i = c->symbols[i].next) TT_TRY(add_id(c, c->symbols[i].id, c->symbols[i].size));
    return TT_OK;
}

static void remember(const tt_context *c, tt_cached *slot, const char *piece, size_t size)
{
    if (c->id_count > TT_CACHE_IDS) return;
    slot->size = (uint8_t)size;
    slot->count = (uint8_t)c->id_count;
    memcpy(slot->piece, piece, size);
    for (size_t i = 0; i < c->id_count; i++) {
        slot->ids[i] = c->ids[i];
        slot->sizes[i] = (uint8_t)c->sizes[i];
    }
}

tt_status tt_bpe_encode(const tt_bpe *m, tt_context *c, const char *piece, size_t size)
{
    c->id_count = 0;
    TT_CHECK(size <= INT32_MAX, TT_EDATA, "a piece of %zu bytes cannot be encoded; split the text", size);
    if (size == 0) return TT_OK;
    if (size > TT_CACHE_BYTES) return encode(m, c, piece, size);
    tt_cached *slot = &c->cache[XXH3_64bits(piece, size) % TT_CACHE_SLOTS];
    if (slot->size == size && memcmp(slot->piece, piece, size) == 0) {
        for (int i = 0; i < slot->count; i++) TT_TRY(add_id(c, slot->ids[i], slot->sizes[i]));
        return TT_OK;
    }
    TT_TRY(encode(m, c, piece, size));
    remember(c, slot, piece, size);
    return TT_OK;
}
