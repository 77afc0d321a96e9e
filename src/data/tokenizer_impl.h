/* tokenizer_impl.h - the parts of a tokenizer and how they fit; src/data/tokenizer*.c only (and their tests).
 *
 *   raw text --added tokens (raw)--> stretch --normalizer--> view --added tokens (normalized)--> view
 *            --split steps--> pieces --BPE--> ids with ranges of the raw text
 *
 * A view is text plus where it came from. As long as nothing was changed it is a window of the caller's text
 * and costs nothing; a step that changes text writes a buffer with one range of the raw text per byte.
 *
 * A tokenizer never changes after loading. All that encoding writes lives in a context; a context serves one
 * call at a time and goes back to the tokenizer's pool, so calls on several threads share nothing but the
 * pool's lock.
 */
#ifndef TT_DATA_TOKENIZER_IMPL_H
#define TT_DATA_TOKENIZER_IMPL_H

#include "tartan/tokenizer.h"

#include <pthread.h>
#include <string.h>

/* Ids beyond this are refused: tables are sized by the largest id. */
#define TT_TOKEN_ID_LIMIT (1 << 24)

/* --- bytes and characters --------------------------------------------------------------------- */

/* Character at s[0], which begins a valid one; returns its length. */
static inline size_t tt_u8_next(const char *s, uint32_t *c)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return *c = p[0], 1;
    if (p[0] < 0xE0) return *c = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2;
    if (p[0] < 0xF0) return *c = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3;
    *c = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}

static inline bool tt_u8_inside(char c)
{
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* Start of the character that ends before s[end], end > 0. */
static inline size_t tt_u8_back(const char *s, size_t end)
{
    do end--;
    while (end > 0 && tt_u8_inside(s[end]));
    return end;
}

/* Writes at most 4 bytes, returns how many. */
size_t tt_u8_put(uint32_t c, char *out);
/* First byte that is not valid UTF-8, or bytes when all is. */
size_t tt_u8_check(const char *text, size_t bytes);
/* The property White_Space: what \s means in the patterns. */
bool tt_is_space(uint32_t c);

/* Make *array hold at least `need` elements of `size` bytes; grows by doubling. */
tt_status tt_grow(void **array, size_t *capacity, size_t need, size_t size);

/* --- views and buffers ------------------------------------------------------------------------ */

typedef struct tt_span {
    int64_t begin, end;
} tt_span;

typedef struct tt_view {
    const char *bytes;
    size_t size;
    const tt_span *align; /* range of the raw text per byte; NULL: byte i is byte origin + i of the raw text */
    size_t origin;        /* where the stretch begins in the raw text */
} tt_view;

typedef struct tt_buffer {
    char *bytes;
    tt_span *align;
    size_t size, capacity, align_capacity;
} tt_buffer;

typedef struct tt_piece {
    size_t begin, end;
} tt_piece;

typedef struct tt_match {
    size_t begin, end;
    bool hit; /* a match of the pattern, or the gap between two */
} tt_match;

typedef struct tt_pieces {
    tt_piece *items;
    size_t count, capacity;
} tt_pieces;

/* Range of the raw text that the character around byte `at` came from. */
tt_span tt_view_span(const tt_view *v, size_t at);
/* The same for bytes [begin, end) of the view, which need not be character borders. */
tt_span tt_view_range(const tt_view *v, size_t begin, size_t end);
tt_view tt_view_part(const tt_view *v, size_t begin, size_t end);
tt_status tt_buffer_push(tt_buffer *b, const char *bytes, size_t size, tt_span from);
/* Bytes [begin, end) of v, each with its own range. */
tt_status tt_buffer_copy(tt_buffer *b, const tt_view *v, size_t begin, size_t end);
tt_view tt_buffer_view(const tt_buffer *b, size_t origin);

/* --- tables ----------------------------------------------------------------------------------- */

/* Open hash table from 64 bits to 64 bits; the key UINT64_MAX is reserved. A zeroed one is empty. */
typedef struct tt_map {
    struct tt_map_entry {
        uint64_t key, value;
    } * entries;
    size_t mask, count;
} tt_map;

tt_status tt_map_put(tt_map *m, uint64_t key, uint64_t value);
void tt_map_fini(tt_map *m);

static inline const uint64_t *tt_map_find(const tt_map *m, uint64_t key)
{
    if (!m->entries) return NULL;
    uint64_t h = key * 0x9E3779B97F4A7C15u;
    for (size_t i = (h ^ h >> 32) & m->mask;; i = (i + 1) & m->mask) {
        if (m->entries[i].key == key) return &m->entries[i].value;
        if (m->entries[i].key == UINT64_MAX) return NULL;
    }
}

/* Strings by id and ids by string. Ids may have holes. */
typedef struct tt_token {
    uint32_t at, size; /* at == UINT32_MAX: no token has this id */
} tt_token;

typedef struct tt_vocab {
    char *pool;
    size_t pool_size, pool_capacity;
    tt_token *tokens;
    size_t size, tokens_capacity; /* size: largest id + 1 */
    int32_t *slots;
    size_t mask, count;
} tt_vocab;

/* TT_EFORMAT when the string or the id is taken, or the id is out of range. `where` names the file. */
tt_status tt_vocab_add(tt_vocab *v, const char *string, size_t size, int64_t id, const char *where);
int32_t tt_vocab_find(const tt_vocab *v, const char *string, size_t size);
/* The string of an id, NULL when there is none. Borrowed. */
const char *tt_vocab_string(const tt_vocab *v, int64_t id, size_t *size);
void tt_vocab_fini(tt_vocab *v);

/* --- regular expressions (tokenizer_regex.c) -------------------------------------------------- */

typedef struct tt_regex tt_regex;
typedef struct tt_regex_scratch tt_regex_scratch; /* match data and stack of one thread at a time */

/* Oniguruma syntax, the subset that split patterns use; anything else is refused by name. */
tt_status tt_regex_compile(const char *pattern, size_t size, const char *where, tt_regex **out);
void tt_regex_destroy(tt_regex **r);
tt_status tt_regex_scratch_create(tt_regex_scratch **out);
void tt_regex_scratch_destroy(tt_regex_scratch **s);
/* Leftmost match that begins at or after `from`. */
tt_status tt_regex_find(const tt_regex *r, tt_regex_scratch *s, const char *text, size_t size, size_t from,
                        bool *found, size_t *begin, size_t *end);

/* A regular expression, or a literal string when regex is NULL. */
typedef struct tt_pattern {
    tt_regex *regex;
    char *literal;
    size_t literal_size;
} tt_pattern;

/* --- steps ------------------------------------------------------------------------------------ */

typedef enum tt_normal_kind {
    TT_NORMAL_NFC,
    TT_NORMAL_NFD,
    TT_NORMAL_NFKC,
    TT_NORMAL_NFKD,
    TT_NORMAL_PREPEND,
    TT_NORMAL_REPLACE,
    TT_NORMAL_LOWERCASE,
    TT_NORMAL_STRIP,
    TT_NORMAL_STRIP_ACCENTS
} tt_normal_kind;

typedef struct tt_normal_step {
    tt_normal_kind kind;
    tt_pattern pattern; /* REPLACE */
    char *content;      /* PREPEND, REPLACE */
    size_t content_size;
    bool left, right; /* STRIP */
} tt_normal_step;

typedef enum tt_behavior {
    TT_REMOVED,
    TT_ISOLATED,
    TT_MERGED_WITH_PREVIOUS,
    TT_MERGED_WITH_NEXT,
    TT_CONTIGUOUS
} tt_behavior;

typedef enum tt_split_kind {
    TT_SPLIT_PATTERN,
    TT_SPLIT_DIGITS,
    TT_SPLIT_PUNCTUATION,
    TT_SPLIT_SPACE,
    TT_SPLIT_PREFIX_SPACE, /* changes text: a space before pieces that begin with none */
    TT_SPLIT_METASPACE     /* changes text: the replacement for spaces, and in front as `prepend` says */
} tt_split_kind;

typedef enum tt_prepend { TT_PREPEND_ALWAYS, TT_PREPEND_FIRST, TT_PREPEND_NEVER } tt_prepend;

typedef struct tt_split_step {
    tt_split_kind kind;
    tt_behavior behavior;
    bool invert;
    tt_pattern pattern; /* PATTERN */
    char *content;      /* METASPACE: the replacement */
    size_t content_size;
    tt_prepend prepend;
} tt_split_step;

typedef enum tt_decode_kind {
    TT_DECODE_BYTE_LEVEL,
    TT_DECODE_REPLACE,
    TT_DECODE_BYTE_FALLBACK,
    TT_DECODE_FUSE,
    TT_DECODE_STRIP,
    TT_DECODE_METASPACE
} tt_decode_kind;

typedef struct tt_decode_step {
    tt_decode_kind kind;
    tt_pattern pattern; /* REPLACE */
    char *content;      /* REPLACE: the new text; STRIP, METASPACE: the character */
    size_t content_size;
    int64_t start, stop; /* STRIP */
    bool drop_first;     /* METASPACE: the replacement vanishes from the first token */
} tt_decode_step;

typedef struct tt_template_item {
    bool sequence; /* the text's own ids; else these */
    int32_t *ids;
    size_t count;
} tt_template_item;

/* --- added tokens (tokenizer_added.c) --------------------------------------------------------- */

typedef struct tt_added {
    char *content;
    size_t size;
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
} tt_added;

/* Aho-Corasick automaton over the patterns of one set. */
typedef struct tt_automaton {
    tt_map edges; /* node << 8 | byte -> node */
    struct tt_node {
        int32_t fail; /* longest proper suffix that is a node */
        int32_t depth;
        int32_t pattern; /* longest pattern that ends here, or -1 */
        int32_t size;    /* its bytes */
    } * nodes;
    size_t count, capacity;
    bool first[256]; /* bytes that leave the root */
} tt_automaton;

tt_status tt_automaton_add(tt_automaton *a, const char *pattern, size_t size, int32_t index);
tt_status tt_automaton_seal(tt_automaton *a);
/* Leftmost match from `from` on, of these the longest. */
bool tt_automaton_find(const tt_automaton *a, const char *text, size_t size, size_t from, int32_t *pattern,
                       size_t *begin, size_t *end);
void tt_automaton_fini(tt_automaton *a);

/* Where a walk over a text stands: all before `done` belongs to tokens or gaps already reported. */
typedef struct tt_added_walk {
    size_t done, scan;
} tt_added_walk;
/* The next added token in text; [*begin, *end) includes the white space that it takes. NULL at the end. */
const tt_added *tt_added_next(const tt_automaton *a, const tt_added *tokens, const char *text, size_t size,
                              tt_added_walk *walk, size_t *begin, size_t *end);

/* --- BPE (tokenizer_bpe.c) -------------------------------------------------------------------- */

typedef struct tt_bpe {
    tt_vocab vocab;
    tt_map merges;   /* left id << 32 | right id -> rank << 32 | merged id */
    bool byte_level; /* pieces are raw bytes, each standing for one printable character */
    int32_t byte_ids[256];
    int32_t fallback[256]; /* ids of <0x00> to <0xFF>, -1 when absent */
    char *prefix, *suffix; /* "" when unset */
    size_t prefix_size, suffix_size;
    int32_t unk; /* -1: none */
    bool fuse_unk, byte_fallback, ignore_merges;
} tt_bpe;

/* Stand-in of a byte in byte-level vocabularies: its UTF-8 form, one or two bytes. */
size_t tt_byte_stand_in(unsigned char byte, char *out);
/* The byte that a character stands for, or -1. */
int tt_stand_in_byte(uint32_t c);

/* Resolve one merge of the file, part by part. */
tt_status tt_bpe_add_merge(tt_bpe *m, const char *left, size_t left_size, const char *right, size_t right_size,
                           uint32_t rank, const char *where);
/* After vocabulary, merges and options are set: fill the byte tables, check that no text can vanish. */
tt_status tt_bpe_finish(tt_bpe *m, const char *where);
void tt_bpe_fini(tt_bpe *m);

/* --- contexts --------------------------------------------------------------------------------- */

typedef struct tt_symbol {
    int32_t id;
    int32_t prev, next; /* -1 at the ends */
    uint32_t size;      /* bytes of the piece; 0: merged into its left neighbour */
    uint32_t rank;      /* of the pair (this, next); UINT32_MAX: none */
} tt_symbol;

/* Short pieces and their ids, direct-mapped: the newest piece of a slot stays. One cache line each. */
#define TT_CACHE_SLOTS 32768
#define TT_CACHE_BYTES 24
#define TT_CACHE_IDS   7
typedef struct tt_cached {
    uint8_t size, count; /* size 0: empty */
    char piece[TT_CACHE_BYTES];
    uint8_t sizes[TT_CACHE_IDS];
    int32_t ids[TT_CACHE_IDS];
} tt_cached;

typedef struct tt_unit {
    uint32_t c;
    int16_t change; /* tokenizer_normalize.c */
    uint8_t ccc;
} tt_unit;

typedef struct tt_context tt_context;
struct tt_context {
    tt_context *next;
    tt_regex_scratch *regex;
    tt_buffer normal[2], split[2];
    tt_pieces pieces, spare;
    tt_match *matches;
    size_t match_count, match_capacity;
    tt_unit *units;
    size_t unit_count, unit_capacity;
    tt_symbol *symbols;
    size_t symbol_count, symbol_capacity;
    uint64_t *heap; /* rank << 32 | position of the left symbol */
    size_t heap_count, heap_capacity;
    int32_t *ids; /* result of tt_bpe_encode, with the bytes of the piece that each stands for */
    uint32_t *sizes;
    size_t id_count, id_capacity, size_capacity;
    char *word;
    size_t word_capacity;
    tt_cached *cache;
};

tt_status tt_context_create(tt_context **out);
void tt_context_destroy(tt_context **c);

/* Run all steps over *v, which then points into c's buffers or, if nothing changed, where it did. */
tt_status tt_normalize(const tt_normal_step *steps, size_t count, tt_context *c, tt_view *v);
/* Cut *v into c->pieces; steps that change text move *v into c's buffers. */
tt_status tt_split(const tt_split_step *steps, size_t count, tt_context *c, tt_view *v);
/* Ids of one piece into c->ids, c->sizes, c->id_count. */
tt_status tt_bpe_encode(const tt_bpe *m, tt_context *c, const char *piece, size_t size);
/* Next match of a pattern from `from` on. */
tt_status tt_pattern_find(const tt_pattern *p, tt_regex_scratch *s, const char *text, size_t size, size_t from,
                          bool *found, size_t *begin, size_t *end);

/* --- the tokenizer ---------------------------------------------------------------------------- */

#define TT_SPECIAL_ROLES 7

struct tt_tokenizer {
    char *folder;
    char *where; /* FOLDER/tokenizer.json, for messages */
    tt_bpe bpe;
    tt_normal_step *normal;
    size_t normal_count;
    tt_split_step *split;
    size_t split_count;
    tt_decode_step *decode;
    size_t decode_count;
    bool decode_joined; /* a decoder is given; without one tokens are joined by spaces */
    bool trim, trim_prefix;
    tt_template_item *items;
    size_t item_count;
    tt_added *added;
    size_t added_count, added_capacity;
    tt_vocab added_names; /* content -> id */
    tt_map added_by_id;   /* id -> index */
    tt_automaton raw_set, normal_set;
    char *special[TT_SPECIAL_ROLES];
    char *template_default, *template_tools;
    pthread_mutex_t *lock; /* guards idle */
    tt_context **idle;     /* contexts that no call uses */
};

extern const char *const tt_special_roles[TT_SPECIAL_ROLES];

/* Takes an idle context or makes one; give it back with tt_tokenizer_return. */
tt_status tt_tokenizer_borrow(const tt_tokenizer *t, tt_context **c);
void tt_tokenizer_return(const tt_tokenizer *t, tt_context *c);

/* Read tokenizer.json (tokenizer_load.c) and tokenizer_config.json with the template (tokenizer_config.c). */
tt_status tt_tokenizer_load_file(tt_tokenizer *t);
tt_status tt_tokenizer_load_config(tt_tokenizer *t);
/* Takes over a->content, also on failure. */
tt_status tt_tokenizer_add(tt_tokenizer *t, tt_added *a, const char *where);

/* Vocabulary and merges, cut out of the text of tokenizer.json (tokenizer_json.c). */
typedef struct tt_model_text {
    const char *vocab, *vocab_end;   /* from { to behind }, NULL when model.vocab is no object */
    const char *merges, *merges_end; /* from [ to behind ] */
    char *rest;                      /* owned: the file with {} and [] in their places */
    size_t rest_size;
} tt_model_text;
tt_status tt_model_text_cut(const char *text, size_t bytes, const char *where, tt_model_text *out);
tt_status tt_model_read_vocab(const tt_model_text *m, const char *text, const char *where, tt_vocab *out);
tt_status tt_model_read_merges(const tt_model_text *m, const char *text, const char *where, tt_bpe *out);

#endif
