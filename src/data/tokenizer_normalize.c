/* tokenizer_normalize.c - the normalizers; every byte keeps the range of the raw text that it came from.
 *
 * Ranges follow the common library: a character that replaces others takes the range of the first of them,
 * one that is inserted takes that of the character before it, removed characters leave no trace. So a
 * composed letter reports its base letter only.
 *
 * Normal forms leave alone what cannot change: the text is scanned for characters that decompose or may
 * combine, and only these, with the starter before them, are taken apart and put together. Plain ASCII costs
 * one scan and keeps the view as it is. Time is linear; a run of combining marks is sorted by counting.
 *
 * Code point data is utf8proc's; its composition has no public form for a pair, so a pair is normalized as a
 * string.
 */
#include "data/tokenizer_impl.h"

#include <utf8proc.h>

/* --- pieces of text --------------------------------------------------------------------------- */

/* The range that a character inserted before byte `at` reports. */
static tt_span span_before(const tt_view *v, size_t at)
{
    return at > 0 ? tt_view_span(v, at - 1) : (tt_span){(int64_t)v->origin, (int64_t)v->origin};
}

static tt_status put_char(tt_buffer *out, uint32_t c, tt_span from)
{
    char bytes[4];
    return tt_buffer_push(out, bytes, tt_u8_put(c, bytes), from);
}

/* --- normal forms ----------------------------------------------------------------------------- */

typedef struct form {
    bool compose, compat;
    uint32_t plain; /* characters below never change */
} form;

static form form_of(tt_normal_kind kind)
{
    switch (kind) {
    case TT_NORMAL_NFC:
        return (form){true, false, 0x300};
    case TT_NORMAL_NFD:
        return (form){false, false, 0xC0};
    case TT_NORMAL_NFKC:
        return (form){true, true, 0xA0};
    default:
        return (form){false, true, 0xA0};
    }
}

/* A starter that stays as it is and takes nothing from what stands before it. Errs on the side of false: all
 * second halves of compositions are marks, conjoining jamo or lie in Kirat Rai. */
static bool is_inert(form f, uint32_t c)
{
    if (c < f.plain) return true;
    if (c >= 0xAC00 && c <= 0xD7A3) return f.compose;
    if ((c >= 0x1100 && c <= 0x11FF) || (c >= 0x16D63 && c <= 0x16D6A)) return false;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)c);
    if (p->combining_class != 0 || p->category == UTF8PROC_CATEGORY_MN || p->category == UTF8PROC_CATEGORY_MC)
        return false;
    return p->decomp_seqindex == UINT16_MAX || (p->decomp_type != 0 && !f.compat);
}

static tt_status decompose(tt_context *c, form f, uint32_t code)
{
    utf8proc_int32_t parts[32];
    int boundary = 0;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (f.compat ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, parts, 32, options, &boundary);
    TT_CHECK(n >= 0 && n <= 32, TT_EINTERNAL, "tokenizer: U+%04X has no decomposition of at most 32 characters",
             code);
    TT_TRY(tt_grow((void **)&c->units, &c->unit_capacity, c->unit_count + (size_t)n, sizeof *c->units));
    for (utf8proc_ssize_t i = 0; i < n; i++)
        c->units[c->unit_count++] = (tt_unit){.c = (uint32_t)parts[i],
                                              .change = i > 0,
                                              .ccc = (uint8_t)utf8proc_get_property(parts[i])->combining_class};
    return TT_OK;
}

/* Stable sort of marks by combining class; runs of any length occur in hostile text. `spare` holds as many. */
static void sort_marks(tt_unit *u, size_t n, tt_unit *spare)
{
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) start[u[i].ccc + 1]++;
    for (int k = 0; k < 256; k++) start[k + 1] += start[k];
    for (size_t i = 0; i < n; i++) spare[start[u[i].ccc]++] = u[i];
    memcpy(u, spare, n * sizeof *u);
}

static tt_status order_marks(tt_context *c)
{
    TT_TRY(tt_grow((void **)&c->units, &c->unit_capacity, 2 * c->unit_count, sizeof *c->units));
    for (size_t i = 0; i < c->unit_count;) {
        size_t j = i;
        bool sorted = true;
        for (; j < c->unit_count && c->units[j].ccc; j++) sorted &= j == i || c->units[j - 1].ccc <= c->units[j].ccc;
        if (!sorted) sort_marks(c->units + i, j - i, c->units + c->unit_count);
        i = j + (j == i);
    }
    return TT_OK;
}

/* The composition of two characters, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b)
{
    utf8proc_int32_t pair[3] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b, 0};
    if (b < 0x300) return 0;
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1 ? (uint32_t)pair[0] : 0;
}

static void compose(tt_context *c)
{
    tt_unit *u = c->units;
    size_t n = 0, starter = SIZE_MAX;
    int last = -1; /* class of the unit before, -1 directly behind the starter */
    for (size_t i = 0; i < c->unit_count; i++) {
        uint32_t composed = 0;
        if (starter != SIZE_MAX && last < u[i].ccc) composed = compose_pair(u[starter].c, u[i].c);
        if (composed) {
            u[starter].c = composed;
            /* change 0 stands for one character of the source, +1 for none, -k for k more */
            u[starter].change = (int16_t)(u[starter].change + u[i].change - 1);
            continue;
        }
        if (u[i].ccc == 0)
            starter = n, last = -1;
        else
            last = u[i].ccc;
        u[n++] = u[i];
    }
    c->unit_count = n;
}

/* Put bytes [begin, end) of v in normal form; the units then stand for them in order. */
static tt_status normal_units(tt_context *c, form f, const tt_view *v, size_t begin, size_t end)
{
    c->unit_count = 0;
    for (size_t at = begin; at < end;) {
        uint32_t code;
        at += tt_u8_next(v->bytes + at, &code);
        TT_TRY(decompose(c, f, code));
    }
    TT_TRY(order_marks(c));
    if (f.compose) compose(c);
    return TT_OK;
}

static bool units_equal(const tt_context *c, const tt_view *v, size_t begin, size_t end)
{
    for (size_t i = 0; i < c->unit_count; i++) {
        uint32_t code;
        if (begin == end) return false;
        begin += tt_u8_next(v->bytes + begin, &code);
        if (code != c->units[i].c) return false;
    }
    return begin == end;
}

static tt_status put_units(const tt_context *c, const tt_view *v, size_t at, tt_buffer *out)
{
    for (size_t i = 0; i < c->unit_count; i++) {
        const tt_unit *u = &c->units[i];
        uint32_t code;
        TT_TRY(put_char(out, u->c, u->change > 0 || at >= v->size ? span_before(v, at) : tt_view_span(v, at)));
        for (int k = u->change; k <= 0 && at < v->size; k++) at += tt_u8_next(v->bytes + at, &code);
    }
    return TT_OK;
}

/* The next stretch that may change: [*begin, *end), from the starter before it to the next inert character. */
static bool next_segment(form f, const tt_view *v, size_t at, size_t *begin, size_t *end)
{
    uint32_t code;
    size_t before = at;
    for (size_t n; at < v->size; before = at, at += n) {
        n = tt_u8_next(v->bytes + at, &code);
        if (!is_inert(f, code)) break;
    }
    if (at >= v->size) return false;
    *begin = before;
    while (at < v->size) {
        size_t n = tt_u8_next(v->bytes + at, &code);
        if (is_inert(f, code)) break;
        at += n;
    }
    *end = at;
    return true;
}

static tt_status normal_form(const tt_normal_step *s, tt_context *c, const tt_view *v, tt_buffer *out, bool *changed)
{
    form f = form_of(s->kind);
    size_t copied = 0, begin, end = 0;
    while (next_segment(f, v, end, &begin, &end)) {
        TT_TRY(normal_units(c, f, v, begin, end));
        if (units_equal(c, v, begin, end)) continue;
        TT_TRY(tt_buffer_copy(out, v, copied, begin));
        TT_TRY(put_units(c, v, begin, out));
        copied = end;
        *changed = true;
    }
    return *changed ? tt_buffer_copy(out, v, copied, v->size) : TT_OK;
}

/* --- the others ------------------------------------------------------------------------------- */

static tt_status prepend(const tt_normal_step *s, const tt_view *v, tt_buffer *out, bool *changed)
{
    if (v->size == 0 || s->content_size == 0) return TT_OK;
    *changed = true;
    TT_TRY(tt_buffer_push(out, s->content, s->content_size, tt_view_span(v, 0)));
    return tt_buffer_copy(out, v, 0, v->size);
}

static tt_status replace(const tt_normal_step *s, tt_context *c, const tt_view *v, tt_buffer *out, bool *changed)
{
    size_t copied = 0, from = 0, begin, end;
    for (;;) {
        bool found;
        TT_TRY(tt_pattern_find(&s->pattern, c->regex, v->bytes, v->size, from, &found, &begin, &end));
        if (!found) break;
        *changed = true;
        TT_TRY(tt_buffer_copy(out, v, copied, begin));
        TT_TRY(tt_buffer_push(out, s->content, s->content_size, span_before(v, end)));
        copied = from = end;
        if (begin < end) continue;
        if (end == v->size) break;
        uint32_t code; /* an empty match: go on behind the next character */
        from += tt_u8_next(v->bytes + from, &code);
    }
    return *changed ? tt_buffer_copy(out, v, copied, v->size) : TT_OK;
}

static tt_status lowercase(const tt_view *v, tt_buffer *out, bool *changed)
{
    *changed = true;
    for (size_t at = 0; at < v->size;) {
        uint32_t code;
        tt_span from = tt_view_span(v, at);
        at += tt_u8_next(v->bytes + at, &code);
        if (code == 0x130) { /* the one character whose lower case is two */
            TT_TRY(tt_buffer_push(out, "i\xCC\x87", 3, from));
            continue;
        }
        TT_TRY(put_char(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code), from));
    }
    return TT_OK;
}

static tt_status strip_accents(const tt_view *v, tt_buffer *out, bool *changed)
{
    *changed = true;
    for (size_t at = 0; at < v->size;) {
        uint32_t code;
        size_t n = tt_u8_next(v->bytes + at, &code);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)code);
        if (k < UTF8PROC_CATEGORY_MN || k > UTF8PROC_CATEGORY_ME) /* all marks, as the library does */
            TT_TRY(tt_buffer_copy(out, v, at, at + n));
        at += n;
    }
    return TT_OK;
}

static void strip(const tt_normal_step *s, tt_view *v)
{
    size_t begin = 0, end = v->size, n, b;
    uint32_t code;
    for (; s->left && begin < end; begin += n) {
        n = tt_u8_next(v->bytes + begin, &code);
        if (!tt_is_space(code)) break;
    }
    for (; s->right && end > begin; end = b) {
        tt_u8_next(v->bytes + (b = tt_u8_back(v->bytes, end)), &code);
        if (!tt_is_space(code)) break;
    }
    *v = tt_view_part(v, begin, end);
}

static tt_status apply(const tt_normal_step *s, tt_context *c, const tt_view *v, tt_buffer *out, bool *changed)
{
    switch (s->kind) {
    case TT_NORMAL_PREPEND:
        return prepend(s, v, out, changed);
    case TT_NORMAL_REPLACE:
        return replace(s, c, v, out, changed);
    case TT_NORMAL_LOWERCASE:
        return lowercase(v, out, changed);
    case TT_NORMAL_STRIP_ACCENTS:
        return strip_accents(v, out, changed);
    default:
        return normal_form(s, c, v, out, changed);
    }
}

tt_status tt_normalize(const tt_normal_step *steps, size_t count, tt_context *c, tt_view *v)
{
    int next = 0; /* the buffer that *v does not lie in */
    for (size_t i = 0; i < count; i++) {
        if (steps[i].kind == TT_NORMAL_STRIP) {
            strip(&steps[i], v);
            continue;
        }
        bool changed = false;
        tt_buffer *out = &c->normal[next];
        out->size = 0;
        TT_TRY(apply(&steps[i], c, v, out, &changed));
        if (!changed) continue;
        *v = tt_buffer_view(out, v->origin);
        next = !next;
    }
    return TT_OK;
}
