/* tokenizer.c - a tokenizer's life, and encoding from text to ids with their ranges.
 *
 * Order of one call: added tokens of the raw text; every stretch between them is normalized and searched for
 * the other added tokens; what is left is cut into pieces, each piece goes through BPE. A stretch is a text
 * of its own: no pattern sees across an added token.
 *
 * With the Qwen3 vocabulary text passes at some twenty megabytes a second on one thread; most pieces come
 * from the context's cache.
 */
#include "data/tokenizer_impl.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>

/* A context that one huge text has blown up beyond this is not kept. */
#define KEPT_BYTES ((size_t)64 << 20)

/* --- contexts --------------------------------------------------------------------------------- */

tt_status tt_context_create(tt_context **out)
{
    tt_context *c = calloc(1, sizeof *c);
    if (c) c->cache = calloc(TT_CACHE_SLOTS, sizeof *c->cache);
    tt_status status = c && c->cache ? tt_regex_scratch_create(&c->regex)
                                     : tt_error_set(TT_ENOMEM, "tokenizer: no memory for a context");
    if (status != TT_OK) tt_context_destroy(&c);
    *out = c;
    return status;
}

void tt_context_destroy(tt_context **context)
{
    tt_context *c = *context;
    *context = NULL;
    if (!c) return;
    tt_regex_scratch_destroy(&c->regex);
    for (int i = 0; i < 2; i++) {
        free(c->normal[i].bytes);
        free(c->normal[i].align);
        free(c->split[i].bytes);
        free(c->split[i].align);
    }
    free(c->pieces.items);
    free(c->spare.items);
    free(c->matches);
    free(c->units);
    free(c->symbols);
    free(c->heap);
    free(c->ids);
    free(c->sizes);
    free(c->word);
    free(c->cache);
    free(c);
}

tt_status tt_tokenizer_borrow(const tt_tokenizer *t, tt_context **c)
{
    pthread_mutex_lock(t->lock);
    *c = *t->idle;
    if (*c) *t->idle = (*c)->next;
    pthread_mutex_unlock(t->lock);
    return *c ? TT_OK : tt_context_create(c);
}

/* Memory of what grows with the longest piece and the longest text so far. */
static size_t grown_bytes(const tt_context *c)
{
    size_t n = c->symbol_capacity * sizeof *c->symbols + c->heap_capacity * sizeof *c->heap;
    n += (c->pieces.capacity + c->spare.capacity) * sizeof *c->pieces.items;
    n += c->match_capacity * sizeof *c->matches + c->unit_capacity * sizeof *c->units;
    for (int i = 0; i < 2; i++)
        n += (c->normal[i].align_capacity + c->split[i].align_capacity) * sizeof *c->normal[i].align;
    return n;
}

void tt_tokenizer_return(const tt_tokenizer *t, tt_context *c)
{
    if (grown_bytes(c) > KEPT_BYTES) {
        tt_context_destroy(&c);
        return;
    }
    pthread_mutex_lock(t->lock);
    c->next = *t->idle;
    *t->idle = c;
    pthread_mutex_unlock(t->lock);
}

/* --- loading and freeing ---------------------------------------------------------------------- */

/* The pattern of a normalized token is its content after the normalizer. */
static tt_status add_pattern(tt_tokenizer *t, tt_context *c, int32_t index)
{
    const tt_added *a = &t->added[index];
    if (!a->normalized) return tt_automaton_add(&t->raw_set, a->content, a->size, index);
    tt_view v = {a->content, a->size, NULL, 0};
    TT_TRY(tt_normalize(t->normal, t->normal_count, c, &v));
    return tt_automaton_add(&t->normal_set, v.bytes, v.size, index);
}

static tt_status build_sets(tt_tokenizer *t, tt_context *c)
{
    for (int special = 1; special >= 0; special--) /* of equal patterns a special token's comes first */
        for (size_t i = 0; i < t->added_count; i++)
            if (t->added[i].special == special) TT_TRY(add_pattern(t, c, (int32_t)i));
    TT_TRY(tt_automaton_seal(&t->raw_set));
    return tt_automaton_seal(&t->normal_set);
}

static tt_status check_template(const tt_tokenizer *t)
{
    for (size_t i = 0; i < t->item_count; i++)
        for (size_t k = 0; k < t->items[i].count; k++) {
            size_t size;
            int32_t id = t->items[i].ids[k];
            TT_CHECK(tt_tokenizer_is_added(t, id) || tt_vocab_string(&t->bpe.vocab, id, &size), TT_EFORMAT,
                     "%s: post_processor TemplateProcessing adds the id %d, which no token has", t->where, id);
        }
    return TT_OK;
}

static tt_status load(tt_tokenizer *t, const char *folder)
{
    char path[4096];
    TT_TRY(tt_path_join(path, sizeof path, folder, "tokenizer.json"));
    t->folder = strdup(folder);
    t->where = strdup(path);
    t->lock = malloc(sizeof *t->lock);
    t->idle = calloc(1, sizeof *t->idle);
    if (t->lock) pthread_mutex_init(t->lock, NULL);
    TT_CHECK(t->folder && t->where && t->lock && t->idle, TT_ENOMEM, "%s: no memory for a tokenizer", path);
    TT_TRY(tt_tokenizer_load_file(t));
    TT_TRY(tt_tokenizer_load_config(t));
    tt_context *c;
    TT_TRY(tt_tokenizer_borrow(t, &c));
    tt_status status = build_sets(t, c);
    tt_tokenizer_return(t, c);
    TT_TRY(status);
    return check_template(t);
}

tt_status tt_tokenizer_load(const char *folder, tt_tokenizer **out)
{
    tt_tokenizer *t = calloc(1, sizeof *t);
    TT_CHECK(t, TT_ENOMEM, "%s: no memory for a tokenizer", folder);
    tt_status status = load(t, folder);
    if (status != TT_OK)
        tt_tokenizer_destroy(&t);
    else
        *out = t;
    return status;
}

static void pattern_fini(tt_pattern *p)
{
    tt_regex_destroy(&p->regex);
    free(p->literal);
}

static void free_steps(tt_tokenizer *t)
{
    for (size_t i = 0; i < t->normal_count; i++) {
        pattern_fini(&t->normal[i].pattern);
        free(t->normal[i].content);
    }
    for (size_t i = 0; i < t->split_count; i++) {
        pattern_fini(&t->split[i].pattern);
        free(t->split[i].content);
    }
    for (size_t i = 0; i < t->decode_count; i++) {
        pattern_fini(&t->decode[i].pattern);
        free(t->decode[i].content);
    }
    for (size_t i = 0; i < t->item_count; i++) free(t->items[i].ids);
    free(t->normal);
    free(t->split);
    free(t->decode);
    free(t->items);
}

static void free_contexts(tt_tokenizer *t)
{
    while (t->idle && *t->idle) {
        tt_context *c = *t->idle;
        *t->idle = c->next;
        tt_context_destroy(&c);
    }
    if (t->lock) pthread_mutex_destroy(t->lock);
    free(t->idle);
    free(t->lock);
}

void tt_tokenizer_destroy(tt_tokenizer **tokenizer)
{
    tt_tokenizer *t = *tokenizer;
    *tokenizer = NULL;
    if (!t) return;
    free_contexts(t);
    free_steps(t);
    tt_bpe_fini(&t->bpe);
    for (size_t i = 0; i < t->added_count; i++) free(t->added[i].content);
    free(t->added);
    tt_vocab_fini(&t->added_names);
    tt_map_fini(&t->added_by_id);
    tt_automaton_fini(&t->raw_set);
    tt_automaton_fini(&t->normal_set);
    for (int i = 0; i < TT_SPECIAL_ROLES; i++) free(t->special[i]);
    free(t->template_default);
    free(t->template_tools);
    free(t->folder);
    free(t->where);
    free(t);
}

/* --- encoding --------------------------------------------------------------------------------- */

typedef struct run {
    const tt_tokenizer *t;
    tt_context *c;
    const char *text;
    size_t bytes;
    tt_encoding *out;
    int64_t first; /* out->count before the text's own ids */
} run;

static tt_status make_room(tt_encoding *e)
{
    if (e->count < e->capacity) return TT_OK;
    int64_t n = e->capacity < 64 ? 64 : 2 * e->capacity;
    int32_t *ids = realloc(e->ids, (size_t)n * sizeof *ids);
    if (ids) e->ids = ids;
    int64_t *begin = ids ? realloc(e->begin, (size_t)n * sizeof *begin) : NULL;
    if (begin) e->begin = begin;
    int64_t *end = begin ? realloc(e->end, (size_t)n * sizeof *end) : NULL;
    if (end) e->end = end;
    TT_CHECK(end, TT_ENOMEM, "tokenizer: no memory for %lld token ids", (long long)n);
    e->capacity = n;
    return TT_OK;
}

static tt_status emit(tt_encoding *e, int32_t id, tt_span s)
{
    TT_TRY(make_room(e));
    e->ids[e->count] = id;
    e->begin[e->count] = s.begin;
    e->end[e->count++] = s.end;
    return TT_OK;
}

/* A space, or what stands for one in a byte-level vocabulary. */
static bool is_trimmed(uint32_t c)
{
    return c == 0x120 || tt_is_space(c);
}

/* White space at both ends of a token's string leaves its range, one character of the text for each. The
 * space that the pre-tokenizer put in front of the text is not in the text and takes nothing away; it is
 * known by being alone, so with add_prefix_space a text's own single space in front keeps its range, too. */
static tt_span trim(const run *r, const char *token, size_t size, tt_span s)
{
    size_t lead = 0, trail = 0;
    uint32_t c;
    for (size_t at = 0, n; at < size; at += n, lead++) {
        n = tt_u8_next(token + at, &c);
        if (!is_trimmed(c)) break;
    }
    for (size_t end = size, b; end > 0; end = b, trail++) {
        tt_u8_next(token + (b = tt_u8_back(token, end)), &c);
        if (!is_trimmed(c)) break;
    }
    if (lead == 1 && r->t->trim_prefix && (r->out->count == r->first || s.begin == 0)) lead = 0;
    for (; lead && s.begin < s.end; lead--) s.begin += (int64_t)tt_u8_next(r->text + s.begin, &c);
    for (; trail && s.end > s.begin; trail--) s.end = (int64_t)tt_u8_back(r->text, (size_t)s.end);
    return s;
}

static tt_status encode_pieces(run *r, tt_view v)
{
    const tt_tokenizer *t = r->t;
    tt_context *c = r->c;
    TT_TRY(tt_split(t->split, t->split_count, c, &v));
    for (size_t i = 0; i < c->pieces.count; i++) {
        size_t at = c->pieces.items[i].begin;
        TT_TRY(tt_bpe_encode(&t->bpe, c, v.bytes + at, c->pieces.items[i].end - at));
        for (size_t k = 0; k < c->id_count; k++) {
            tt_span s = tt_view_range(&v, at, at + c->sizes[k]);
            size_t size;
            const char *token = t->trim ? tt_vocab_string(&t->bpe.vocab, c->ids[k], &size) : NULL;
            TT_TRY(emit(r->out, c->ids[k], token ? trim(r, token, size, s) : s));
            at += c->sizes[k];
        }
    }
    return TT_OK;
}

/* Cut v at the added tokens of one set; what lies between goes to `between`. */
static tt_status walk_added(run *r, const tt_automaton *set, tt_view v, tt_status (*between)(run *r, tt_view v))
{
    tt_added_walk walk = {0, 0};
    size_t begin, end, gap = 0;
    const tt_added *a;
    while ((a = tt_added_next(set, r->t->added, v.bytes, v.size, &walk, &begin, &end))) {
        if (gap < begin) TT_TRY(between(r, tt_view_part(&v, gap, begin)));
        tt_span s = tt_view_range(&v, begin, end);
        TT_TRY(emit(r->out, a->id, r->t->trim ? trim(r, v.bytes + begin, end - begin, s) : s));
        gap = end;
    }
    return gap < v.size ? between(r, tt_view_part(&v, gap, v.size)) : TT_OK;
}

static tt_status encode_stretch(run *r, tt_view v)
{
    TT_TRY(tt_normalize(r->t->normal, r->t->normal_count, r->c, &v));
    return walk_added(r, &r->t->normal_set, v, encode_pieces);
}

static tt_status encode_text(run *r)
{
    r->first = r->out->count;
    return walk_added(r, &r->t->raw_set, (tt_view){r->text, r->bytes, NULL, 0}, encode_stretch);
}

static tt_status encode_template(run *r)
{
    for (size_t i = 0; i < r->t->item_count; i++) {
        const tt_template_item *item = &r->t->items[i];
        if (item->sequence) TT_TRY(encode_text(r));
        for (size_t k = 0; k < item->count; k++) TT_TRY(emit(r->out, item->ids[k], (tt_span){0, 0}));
    }
    return TT_OK;
}

tt_status tt_tokenizer_encode(const tt_tokenizer *t, const char *text, size_t bytes, bool add_special,
                              tt_encoding *out)
{
    size_t good = tt_u8_check(text, bytes);
    TT_CHECK(good == bytes, TT_EDATA, "the text is not valid UTF-8 at byte %zu", good);
    run r = {.t = t, .text = text, .bytes = bytes, .out = out};
    int64_t before = out->count;
    TT_TRY(tt_tokenizer_borrow(t, &r.c));
    tt_status status = add_special && t->item_count ? encode_template(&r) : encode_text(&r);
    tt_tokenizer_return(t, r.c);
    if (status != TT_OK) out->count = before;
    return status;
}

void tt_encoding_free(tt_encoding *e)
{
    free(e->ids);
    free(e->begin);
    free(e->end);
    *e = (tt_encoding){0};
}

/* --- questions -------------------------------------------------------------------------------- */

int64_t tt_tokenizer_size(const tt_tokenizer *t)
{
    size_t a = t->bpe.vocab.size, b = t->added_names.size;
    return (int64_t)(a > b ? a : b);
}

int32_t tt_tokenizer_id(const tt_tokenizer *t, const char *content)
{
    int32_t id = tt_vocab_find(&t->added_names, content, strlen(content));
    return id >= 0 ? id : tt_vocab_find(&t->bpe.vocab, content, strlen(content));
}

bool tt_tokenizer_is_added(const tt_tokenizer *t, int32_t id)
{
    return id >= 0 && tt_map_find(&t->added_by_id, (uint64_t)id);
}

const char *tt_tokenizer_special(const tt_tokenizer *t, const char *role)
{
    for (int i = 0; i < TT_SPECIAL_ROLES; i++)
        if (strcmp(role, tt_special_roles[i]) == 0) return t->special[i];
    return NULL;
}

const char *tt_tokenizer_chat_template(const tt_tokenizer *t, bool with_tools)
{
    return with_tools && t->template_tools ? t->template_tools : t->template_default;
}

const char *tt_tokenizer_folder(const tt_tokenizer *t)
{
    return t->folder;
}
