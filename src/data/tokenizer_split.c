/* tokenizer_split.c - pre-tokenizers: a stretch of text is cut into pieces, step by step.
 *
 * Each step sees every piece of the step before as a text of its own, so no pattern looks across a cut. A
 * pattern gives matches and gaps that together cover the piece; the behavior says which of them vanish or
 * grow together. Empty pieces vanish.
 *
 * Two steps change text (the prefix space and the replacement for spaces); they write a new view and renumber
 * the pieces. The byte stand-ins of ByteLevel are not made here: it is always the last step, and the model
 * reads raw bytes.
 */
#include "data/tokenizer_impl.h"

#include <utf8proc.h>

static tt_status add_piece(tt_pieces *p, size_t begin, size_t end)
{
    if (begin == end) return TT_OK;
    if (p->count == p->capacity) TT_TRY(tt_grow((void **)&p->items, &p->capacity, p->count + 1, sizeof *p->items));
    p->items[p->count++] = (tt_piece){begin, end};
    return TT_OK;
}

static tt_status add_match(tt_context *c, size_t begin, size_t end, bool hit)
{
    TT_TRY(tt_grow((void **)&c->matches, &c->match_capacity, c->match_count + 1, sizeof *c->matches));
    c->matches[c->match_count++] = (tt_match){begin, end, hit};
    return TT_OK;
}

/* --- patterns --------------------------------------------------------------------------------- */

tt_status tt_pattern_find(const tt_pattern *p, tt_regex_scratch *s, const char *text, size_t size, size_t from,
                          bool *found, size_t *begin, size_t *end)
{
    if (p->regex) return tt_regex_find(p->regex, s, text, size, from, found, begin, end);
    *found = false;
    if (p->literal_size == 0 || from >= size) return TT_OK;
    const char *at = memmem(text + from, size - from, p->literal, p->literal_size);
    if (!at) return TT_OK;
    *found = true;
    *begin = (size_t)(at - text);
    *end = *begin + p->literal_size;
    return TT_OK;
}

static bool is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

static bool is_number(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

static bool belongs(tt_split_kind kind, uint32_t c)
{
    if (kind == TT_SPLIT_DIGITS) return is_number(c);
    return kind == TT_SPLIT_PUNCTUATION ? is_punctuation(c) : tt_is_space(c);
}

/* Single characters of a kind; gaps between them. */
static tt_status match_characters(tt_split_kind kind, tt_context *c, const char *text, size_t size)
{
    size_t gap = 0;
    for (size_t at = 0, n; at < size; at += n) {
        uint32_t code;
        n = tt_u8_next(text + at, &code);
        if (!belongs(kind, code)) continue;
        if (gap < at) TT_TRY(add_match(c, gap, at, false));
        TT_TRY(add_match(c, at, at + n, true));
        gap = at + n;
    }
    return gap < size ? add_match(c, gap, size, false) : TT_OK;
}

static tt_status match_pattern(const tt_pattern *p, tt_context *c, const char *text, size_t size)
{
    size_t gap = 0, from = 0, begin, end;
    while (from <= size) {
        bool found;
        TT_TRY(tt_pattern_find(p, c->regex, text, size, from, &found, &begin, &end));
        if (!found) break;
        if (gap < begin) TT_TRY(add_match(c, gap, begin, false));
        TT_TRY(add_match(c, begin, end, true));
        gap = from = end;
        if (begin < end) continue;
        uint32_t code; /* an empty match: go on behind the next character */
        from += from < size ? tt_u8_next(text + from, &code) : 1;
    }
    return gap < size ? add_match(c, gap, size, false) : TT_OK;
}

/* --- behaviors -------------------------------------------------------------------------------- */

/* Runs of the same kind grow together; a text begins as if a gap had come before. */
static tt_status contiguous(const tt_context *c, size_t base, tt_pieces *out)
{
    for (size_t i = 0, j; i < c->match_count; i = j) {
        for (j = i + 1; j < c->match_count && c->matches[j].hit == c->matches[i].hit;) j++;
        TT_TRY(add_piece(out, base + c->matches[i].begin, base + c->matches[j - 1].end));
    }
    return TT_OK;
}

/* The first match of a run joins the gap before it, the others stand alone. */
static tt_status merged_with_previous(const tt_context *c, size_t base, tt_pieces *out)
{
    for (size_t i = 0; i < c->match_count; i++) {
        size_t begin = c->matches[i].begin;
        if (!c->matches[i].hit && i + 1 < c->match_count && c->matches[i + 1].hit) i++;
        TT_TRY(add_piece(out, base + begin, base + c->matches[i].end));
    }
    return TT_OK;
}

/* The last match of a run joins the gap behind it, the others stand alone. */
static tt_status merged_with_next(const tt_context *c, size_t base, tt_pieces *out)
{
    for (size_t i = 0; i < c->match_count; i++) {
        size_t begin = c->matches[i].begin;
        if (c->matches[i].hit && i + 1 < c->match_count && !c->matches[i + 1].hit) i++;
        TT_TRY(add_piece(out, base + begin, base + c->matches[i].end));
    }
    return TT_OK;
}

static tt_status behave(const tt_split_step *s, const tt_context *c, size_t base, tt_pieces *out)
{
    if (s->behavior == TT_CONTIGUOUS) return contiguous(c, base, out);
    if (s->behavior == TT_MERGED_WITH_PREVIOUS) return merged_with_previous(c, base, out);
    if (s->behavior == TT_MERGED_WITH_NEXT) return merged_with_next(c, base, out);
    for (size_t i = 0; i < c->match_count; i++)
        if (s->behavior == TT_ISOLATED || !c->matches[i].hit)
            TT_TRY(add_piece(out, base + c->matches[i].begin, base + c->matches[i].end));
    return TT_OK;
}

static void swap_pieces(tt_context *c)
{
    tt_pieces swap = c->pieces;
    c->pieces = c->spare;
    c->spare = swap;
}

static tt_status cut(const tt_split_step *s, tt_context *c, const char *text)
{
    c->spare.count = 0;
    for (size_t i = 0; i < c->pieces.count; i++) {
        tt_piece p = c->pieces.items[i];
        c->match_count = 0;
        if (s->kind == TT_SPLIT_PATTERN)
            TT_TRY(match_pattern(&s->pattern, c, text + p.begin, p.end - p.begin));
        else
            TT_TRY(match_characters(s->kind, c, text + p.begin, p.end - p.begin));
        for (size_t k = 0; s->invert && k < c->match_count; k++) c->matches[k].hit = !c->matches[k].hit;
        TT_TRY(behave(s, c, p.begin, &c->spare));
    }
    swap_pieces(c);
    return TT_OK;
}

/* --- steps that change text ------------------------------------------------------------------- */

/* Copy of the bytes [p.begin, p.end) with the replacement for every space. */
static tt_status put_replaced(const tt_split_step *s, const tt_view *v, tt_piece p, tt_buffer *out)
{
    for (size_t at = p.begin; at < p.end;) {
        const char *space = memchr(v->bytes + at, ' ', p.end - at);
        size_t stop = space ? (size_t)(space - v->bytes) : p.end;
        TT_TRY(tt_buffer_copy(out, v, at, stop));
        if (space) TT_TRY(tt_buffer_push(out, s->content, s->content_size, tt_view_span(v, stop)));
        at = stop + (space != NULL);
    }
    return TT_OK;
}

static bool begins_with(const tt_view *v, tt_piece p, const char *s, size_t size)
{
    return p.end - p.begin >= size && memcmp(v->bytes + p.begin, s, size) == 0;
}

/* Cut so that each replacement character begins a piece. */
static tt_status cut_before(const tt_split_step *s, const tt_buffer *b, size_t begin, tt_pieces *out)
{
    size_t at = begin;
    while (at < b->size) {
        size_t first = at + (at + s->content_size <= b->size && !memcmp(b->bytes + at, s->content, s->content_size)
                                 ? s->content_size
                                 : 0);
        const char *next = memmem(b->bytes + first, b->size - first, s->content, s->content_size);
        size_t stop = next ? (size_t)(next - b->bytes) : b->size;
        TT_TRY(add_piece(out, at, stop));
        at = stop;
    }
    return TT_OK;
}

static tt_status put_metaspace(const tt_split_step *s, tt_context *c, const tt_view *v, tt_piece p, tt_buffer *out)
{
    size_t begin = out->size;
    bool present = v->bytes[p.begin] == ' ' || begins_with(v, p, s->content, s->content_size);
    bool wanted =
        s->prepend == TT_PREPEND_ALWAYS || (s->prepend == TT_PREPEND_FIRST && tt_view_span(v, p.begin).begin == 0);
    if (wanted && !present) TT_TRY(tt_buffer_push(out, s->content, s->content_size, tt_view_span(v, p.begin)));
    TT_TRY(put_replaced(s, v, p, out));
    return s->behavior == TT_MERGED_WITH_NEXT ? cut_before(s, out, begin, &c->spare)
                                              : add_piece(&c->spare, begin, out->size);
}

static tt_status put_prefixed(tt_context *c, const tt_view *v, tt_piece p, tt_buffer *out)
{
    size_t begin = out->size;
    if (v->bytes[p.begin] != ' ') TT_TRY(tt_buffer_push(out, " ", 1, tt_view_span(v, p.begin)));
    TT_TRY(tt_buffer_copy(out, v, p.begin, p.end));
    return add_piece(&c->spare, begin, out->size);
}

static tt_status rewrite(const tt_split_step *s, tt_context *c, tt_view *v, tt_buffer *out)
{
    out->size = 0;
    c->spare.count = 0;
    for (size_t i = 0; i < c->pieces.count; i++)
        if (s->kind == TT_SPLIT_METASPACE)
            TT_TRY(put_metaspace(s, c, v, c->pieces.items[i], out));
        else
            TT_TRY(put_prefixed(c, v, c->pieces.items[i], out));
    swap_pieces(c);
    *v = tt_buffer_view(out, v->origin);
    return TT_OK;
}

tt_status tt_split(const tt_split_step *steps, size_t count, tt_context *c, tt_view *v)
{
    int next = 0; /* the buffer that *v does not lie in */
    c->pieces.count = 0;
    TT_TRY(add_piece(&c->pieces, 0, v->size));
    for (size_t i = 0; i < count; i++) {
        if (steps[i].kind != TT_SPLIT_PREFIX_SPACE && steps[i].kind != TT_SPLIT_METASPACE) {
            TT_TRY(cut(&steps[i], c, v->bytes));
            continue;
        }
        TT_TRY(rewrite(&steps[i], c, v, &c->split[next]));
        next = !next;
    }
    return TT_OK;
}
