/* template_strings.c - the methods of strings, as Python's str has them.
 * Left out: encode, expandtabs, translate.
 *
 * Positions and widths count code points. isdigit and its like ask for the Unicode category alone, so that
 * superscript digits are no digits. */
#include "data/template_impl.h"

#include <string.h>
#include <utf8proc.h>

#define METHOD(name) static TPL_BUILTIN(name)

static bool given(const tpl_value *v)
{
    return v->kind != TPL_ABSENT && v->kind != TPL_NONE;
}

static tt_status give_list(tpl_render *r, const tpl_value *items, size_t count, tpl_value *out)
{
    tpl_value *copy;
    TT_TRY(tt_tpl_new_items(r, count, &copy));
    if (count) memcpy(copy, items, count * sizeof *copy);
    *out = tpl_list(copy, count);
    return TT_OK;
}

/* A list that grows; its final array is its last one, the others stay behind in the pool. */
typedef struct builder {
    tpl_value *items;
    size_t count, capacity;
} builder;

static tt_status add(tpl_render *r, builder *b, tpl_value v)
{
    if (b->count == b->capacity) {
        tpl_value *grown;
        b->capacity = b->capacity ? 2 * b->capacity : 8;
        TT_TRY(tt_tpl_new_items(r, b->capacity, &grown));
        if (b->count) memcpy(grown, b->items, b->count * sizeof *grown);
        b->items = grown;
    }
    b->items[b->count++] = v;
    return tt_tpl_charge(r, 1);
}

static tt_status reverse_list(tpl_render *r, const builder *b, tpl_value *out)
{
    TT_TRY(give_list(r, b->items, b->count, out));
    tpl_value *items = (tpl_value *)(uintptr_t)out->as.items;
    for (size_t i = 0, k = b->count; i + 1 < k; i++) {
        tpl_value v = items[i];
        items[i] = items[--k];
        items[k] = v;
    }
    return TT_OK;
}

/* --- splitting ---------------------------------------------------------------------------------------- */

static tt_status split_space(tpl_render *r, const tpl_value *s, int64_t limit, tpl_value *out)
{
    builder b = {0};
    size_t at = tt_tpl_skip_space(s->as.text, s->len);
    while (at < s->len) {
        size_t from = at;
        if (limit-- == 0) {
            TT_TRY(add(r, &b, tpl_text(s->as.text + from, s->len - from)));
            break;
        }
        while (at < s->len) {
            int32_t c;
            size_t n = tt_tpl_code_point(s->as.text + at, s->len - at, &c);
            if (tt_tpl_is_space(c)) break;
            at += n;
        }
        TT_TRY(add(r, &b, tpl_text(s->as.text + from, at - from)));
        at += tt_tpl_skip_space(s->as.text + at, s->len - at);
    }
    *out = tpl_list(b.items, b.count);
    return TT_OK;
}

/* Words from the right: the first character of the word that ends at `end`. */
static size_t word_start(const char *s, size_t end)
{
    while (end > 0) {
        size_t at = end - 1;
        int32_t c;
        while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80) at--;
        tt_tpl_code_point(s + at, end - at, &c);
        if (tt_tpl_is_space(c)) break;
        end = at;
    }
    return end;
}

static tt_status rsplit_space(tpl_render *r, const tpl_value *s, int64_t limit, tpl_value *out)
{
    builder b = {0};
    size_t end = tt_tpl_strip_end(s->as.text, s->len);
    while (end > 0) {
        size_t from = limit == 0 ? 0 : word_start(s->as.text, end);
        TT_TRY(add(r, &b, tpl_text(s->as.text + from, end - from)));
        if (limit-- == 0) break;
        end = tt_tpl_strip_end(s->as.text, from);
    }
    return reverse_list(r, &b, out);
}

static tt_status split_by(tpl_render *r, const tpl_value *s, const tpl_value *by, int64_t limit,
                          tpl_value *out)
{
    builder b = {0};
    size_t at = 0;
    for (const char *hit; limit-- != 0; at = (size_t)(hit - s->as.text) + by->len) {
        hit = tt_tpl_find_text(s->as.text + at, s->len - at, by->as.text, by->len);
        if (!hit) break;
        TT_TRY(add(r, &b, tpl_text(s->as.text + at, (size_t)(hit - s->as.text) - at)));
    }
    TT_TRY(add(r, &b, tpl_text(s->as.text + at, s->len - at)));
    *out = tpl_list(b.items, b.count);
    return tt_tpl_charge(r, s->len / 32);
}

/* The last occurrence of `part` in text[0..len), or -1. Only places with its last byte are compared. */
static tt_status find_last(tpl_render *r, const char *text, size_t len, const tpl_value *part, int64_t *out)
{
    *out = part->len == 0 ? (int64_t)len : -1;
    for (size_t end = len; part->len && end >= part->len;) {
        const char *p = memrchr(text, part->as.text[part->len - 1], end);
        TT_TRY(tt_tpl_charge(r, 1 + part->len / 32));
        end = p ? (size_t)(p - text) + 1 : 0;
        if (end < part->len) break;
        if (memcmp(text + end - part->len, part->as.text, part->len) == 0) {
            *out = (int64_t)(end - part->len);
            break;
        }
        end--;
    }
    return TT_OK;
}

static tt_status rsplit_by(tpl_render *r, const tpl_value *s, const tpl_value *by, int64_t limit,
                           tpl_value *out)
{
    builder b = {0};
    size_t end = s->len;
    while (limit-- != 0) {
        int64_t hit;
        TT_TRY(find_last(r, s->as.text, end, by, &hit));
        if (hit < 0) break;
        size_t from = (size_t)hit + by->len;
        TT_TRY(add(r, &b, tpl_text(s->as.text + from, end - from)));
        end = (size_t)hit;
    }
    TT_TRY(add(r, &b, tpl_text(s->as.text, end)));
    TT_TRY(tt_tpl_charge(r, s->len / 8));
    return reverse_list(r, &b, out);
}

static tt_status split(tpl_render *r, const tpl_value *self, const tpl_value *a, bool right, tpl_value *out)
{
    int64_t limit;
    TT_TRY(tt_tpl_get_int(&a[1], "split: the number of cuts", -1, &limit));
    TT_TRY(tt_tpl_charge(r, self->len / 16));
    if (limit < 0) limit = INT64_MAX;
    if (!given(&a[0])) return right ? rsplit_space(r, self, limit, out) : split_space(r, self, limit, out);
    TT_TRY(tt_tpl_get_text(&a[0], "split: the separator"));
    if (a[0].len == 0) return tt_tpl_error("split: empty separator");
    return right ? rsplit_by(r, self, &a[0], limit, out) : split_by(r, self, &a[0], limit, out);
}

METHOD(s_split)
{
    return split(r, self, a, false, out);
}
METHOD(s_rsplit)
{
    return split(r, self, a, true, out);
}

/* Bytes of the line end at s, or 0. */
static size_t line_end(const char *s, size_t len)
{
    int32_t c;
    size_t n = tt_tpl_code_point(s, len, &c);
    if (c == '\r' && len > 1 && s[1] == '\n') return 2;
    return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029
               ? n
               : 0;
}

METHOD(s_splitlines)
{
    builder b = {0};
    size_t from = 0, at = 0;
    TT_TRY(tt_tpl_charge(r, self->len / 8));
    while (at < self->len) {
        size_t end = line_end(self->as.text + at, self->len - at);
        if (end) {
            TT_TRY(add(r, &b, tpl_text(self->as.text + from, at - from + (tt_tpl_truth(&a[0]) ? end : 0))));
            from = at + end;
        }
        at += end ? end : 1;
        while (at < self->len && ((unsigned char)self->as.text[at] & 0xC0) == 0x80) at++;
    }
    if (from < self->len) TT_TRY(add(r, &b, tpl_text(self->as.text + from, self->len - from)));
    *out = tpl_list(b.items, b.count);
    return TT_OK;
}

static tt_status partition(tpl_render *r, const tpl_value *self, const tpl_value *by, bool right,
                           tpl_value *out)
{
    tpl_value *parts;
    TT_TRY(tt_tpl_get_text(by, "partition: the separator"));
    if (by->len == 0) return tt_tpl_error("partition: empty separator");
    TT_TRY(tt_tpl_charge(r, self->len / 8));
    TT_TRY(tt_tpl_new_items(r, 3, &parts));
    const char *first = tt_tpl_find_text(self->as.text, self->len, by->as.text, by->len);
    int64_t hit = first ? first - self->as.text : -1;
    if (right) TT_TRY(find_last(r, self->as.text, self->len, by, &hit));
    parts[0] = parts[1] = parts[2] = tpl_text("", 0);
    parts[right ? 2 : 0] = *self;
    if (hit >= 0) {
        size_t from = (size_t)hit + by->len;
        parts[0] = tpl_text(self->as.text, (size_t)hit);
        parts[1] = *by;
        parts[2] = tpl_text(self->as.text + from, self->len - from);
    }
    *out = tpl_tuple(parts, 3);
    return TT_OK;
}

METHOD(s_partition)
{
    return partition(r, self, &a[0], false, out);
}
METHOD(s_rpartition)
{
    return partition(r, self, &a[0], true, out);
}

/* --- ends, parts, counting ---------------------------------------------------------------------------- */

static tt_status strip(tpl_render *r, const tpl_value *self, const tpl_value *a, bool left, bool right,
                       tpl_value *out)
{
    if (given(&a[0])) TT_TRY(tt_tpl_get_text(&a[0], "strip: the characters"));
    return tt_tpl_strip(r, self, given(&a[0]) ? &a[0] : NULL, left, right, out);
}
METHOD(s_strip)
{
    return strip(r, self, a, true, true, out);
}
METHOD(s_lstrip)
{
    return strip(r, self, a, true, false, out);
}
METHOD(s_rstrip)
{
    return strip(r, self, a, false, true, out);
}

static bool has_end(const tpl_value *s, const tpl_value *part, bool front)
{
    return s->len >= part->len &&
           (part->len == 0 ||
            memcmp(front ? s->as.text : s->as.text + s->len - part->len, part->as.text, part->len) == 0);
}

/* self[start:end]; *offset is start, from the front, in code points.
 * *inside is false when start is behind the end. */
static tt_status window(tpl_render *r, const tpl_value *self, const tpl_value *start, const tpl_value *end,
                        tpl_value *out, int64_t *offset, bool *inside)
{
    int64_t n;
    *out = *self;
    *offset = 0;
    *inside = true;
    if (!given(start) && !given(end)) return TT_OK;
    tpl_value bounds[3] = {given(start) ? *start : tpl_none(), given(end) ? *end : tpl_none(), tpl_none()};
    TT_TRY(tt_tpl_length(r, self, &n));
    TT_TRY(tt_tpl_get_int(given(start) ? start : &(tpl_value){0}, "start", 0, offset));
    if (*offset < 0) *offset = *offset + n < 0 ? 0 : *offset + n;
    *inside = *offset <= n;
    return tt_tpl_slice(r, self, bounds, out);
}

static tt_status has_any_end(tpl_render *r, const tpl_value *self, const tpl_value *a, bool front,
                             tpl_value *out)
{
    const char *what = front ? "startswith" : "endswith";
    tpl_value s;
    int64_t offset;
    bool found = false, inside;
    const tpl_value *parts = a[0].kind == TPL_TUPLE ? a[0].as.items : &a[0];
    uint32_t n = a[0].kind == TPL_TUPLE ? a[0].len : 1;
    TT_TRY(window(r, self, &a[1], &a[2], &s, &offset, &inside));
    for (uint32_t i = 0; i < n; i++) {
        if (parts[i].kind == TPL_UNDEFINED) return tt_tpl_undefined_error(&parts[i]);
        if (parts[i].kind != TPL_STRING)
            return tt_tpl_error("%s: the first argument must be a string or a tuple of strings, not %s", what,
                                tt_tpl_type_name(&parts[i]));
        found = found || (inside && has_end(&s, &parts[i], front));
    }
    *out = tpl_bool(found);
    return tt_tpl_charge(r, n);
}
METHOD(s_startswith)
{
    return has_any_end(r, self, a, true, out);
}
METHOD(s_endswith)
{
    return has_any_end(r, self, a, false, out);
}

METHOD(s_removeprefix)
{
    TT_TRY(tt_tpl_get_text(&a[0], "removeprefix: the prefix"));
    *out = *self;
    if (has_end(self, &a[0], true)) *out = tpl_text(self->as.text + a[0].len, self->len - a[0].len);
    return TT_OK;
}
METHOD(s_removesuffix)
{
    TT_TRY(tt_tpl_get_text(&a[0], "removesuffix: the suffix"));
    *out = *self;
    if (has_end(self, &a[0], false)) *out = tpl_text(self->as.text, self->len - a[0].len);
    return TT_OK;
}

static tt_status find(tpl_render *r, const tpl_value *self, const tpl_value *a, bool last, int64_t *out)
{
    tpl_value s;
    int64_t offset;
    bool inside;
    *out = -1;
    TT_TRY(tt_tpl_get_text(&a[0], "find: what to look for"));
    TT_TRY(window(r, self, &a[1], &a[2], &s, &offset, &inside));
    TT_TRY(tt_tpl_charge(r, self->len / 8));
    const char *first = tt_tpl_find_text(s.as.text, s.len, a[0].as.text, a[0].len);
    int64_t hit = first ? first - s.as.text : -1;
    if (last) TT_TRY(find_last(r, s.as.text, s.len, &a[0], &hit));
    if (hit >= 0 && inside) *out = offset + tt_tpl_count_code_points(s.as.text, (size_t)hit);
    return TT_OK;
}
METHOD(s_find)
{
    int64_t at;
    TT_TRY(find(r, self, a, false, &at));
    *out = tpl_int(at);
    return TT_OK;
}
METHOD(s_rfind)
{
    int64_t at;
    TT_TRY(find(r, self, a, true, &at));
    *out = tpl_int(at);
    return TT_OK;
}
METHOD(s_index)
{
    int64_t at;
    TT_TRY(find(r, self, a, false, &at));
    if (at < 0) return tt_tpl_error("index: substring not found");
    *out = tpl_int(at);
    return TT_OK;
}

METHOD(s_count)
{
    tpl_value s;
    int64_t offset, n = 0;
    bool inside;
    TT_TRY(tt_tpl_get_text(&a[0], "count: what to count"));
    TT_TRY(window(r, self, &a[1], &a[2], &s, &offset, &inside));
    TT_TRY(tt_tpl_charge(r, self->len / 8));
    if (a[0].len == 0) n = inside ? tt_tpl_count_code_points(s.as.text, s.len) + 1 : 0;
    for (size_t at = 0; a[0].len; n++) {
        const char *hit = tt_tpl_find_text(s.as.text + at, s.len - at, a[0].as.text, a[0].len);
        if (!hit) break;
        at = (size_t)(hit - s.as.text) + a[0].len;
    }
    *out = tpl_int(n);
    return TT_OK;
}

METHOD(s_replace)
{
    int64_t limit;
    TT_TRY(tt_tpl_get_text(&a[0], "replace: the old text"));
    TT_TRY(tt_tpl_get_text(&a[1], "replace: the new text"));
    TT_TRY(tt_tpl_get_int(&a[2], "replace: the count", -1, &limit));
    return tt_tpl_replace(r, self, &a[0], &a[1], limit, out);
}

METHOD(s_join)
{
    const tpl_value *items;
    uint32_t n;
    size_t begin = r->length;
    TT_TRY(tt_tpl_items(r, &a[0], &items, &n));
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].kind != TPL_STRING)
            return tt_tpl_error("join: item %u is no string but %s", i, tt_tpl_type_name(&items[i]));
        if (i) TT_TRY(tt_tpl_append(r, self->as.text, self->len));
        TT_TRY(tt_tpl_append(r, items[i].as.text, items[i].len));
        TT_TRY(tt_tpl_charge(r, 1));
    }
    return tt_tpl_string_end(r, begin, out);
}

METHOD(s_format)
{
    return tt_tpl_format_braces(r, self, all, out);
}

/* --- letter case and classes -------------------------------------------------------------------------- */

static tt_status change_case(tpl_render *r, const tpl_value *self, tpl_letter_case how, tpl_value *out)
{
    size_t begin = r->length;
    TT_TRY(tt_tpl_append_case(r, self->as.text, self->len, how));
    return tt_tpl_string_end(r, begin, out);
}
METHOD(s_upper)
{
    return change_case(r, self, TPL_UPPER, out);
}
METHOD(s_lower)
{
    return change_case(r, self, TPL_LOWER, out);
}
METHOD(s_title)
{
    return change_case(r, self, TPL_TITLE, out);
}
METHOD(s_capitalize)
{
    return change_case(r, self, TPL_CAPITALIZE, out);
}
METHOD(s_swapcase)
{
    return change_case(r, self, TPL_SWAPCASE, out);
}
METHOD(s_casefold)
{
    return change_case(r, self, TPL_CASEFOLD, out);
}

static bool is_digit(int32_t c)
{
    return utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
}
static bool is_alphanumeric(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return tt_tpl_is_letter(c) || (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static tt_status all_are(tpl_render *r, const tpl_value *s, bool (*is)(int32_t), tpl_value *out)
{
    bool all = s->len > 0;
    TT_TRY(tt_tpl_charge(r, s->len / 8));
    for (size_t at = 0; at < s->len && all;) {
        int32_t c;
        at += tt_tpl_code_point(s->as.text + at, s->len - at, &c);
        all = is(c);
    }
    *out = tpl_bool(all);
    return TT_OK;
}
METHOD(s_isdigit)
{
    return all_are(r, self, is_digit, out);
}
METHOD(s_isalpha)
{
    return all_are(r, self, tt_tpl_is_letter, out);
}
METHOD(s_isalnum)
{
    return all_are(r, self, is_alphanumeric, out);
}
METHOD(s_isspace)
{
    return all_are(r, self, tt_tpl_is_space, out);
}

tt_status tt_tpl_is_case(tpl_render *r, const tpl_value *s, bool upper, bool *out)
{
    bool any = false, wrong = false;
    TT_TRY(tt_tpl_charge(r, s->len / 8));
    for (size_t at = 0; at < s->len && !wrong;) {
        int32_t c;
        at += tt_tpl_code_point(s->as.text + at, s->len - at, &c);
        bool is_upper = utf8proc_isupper(c), is_lower = utf8proc_islower(c);
        any = any || (upper ? is_upper : is_lower);
        wrong = (upper ? is_lower : is_upper) || utf8proc_category(c) == UTF8PROC_CATEGORY_LT;
    }
    *out = any && !wrong;
    return TT_OK;
}
METHOD(s_isupper)
{
    bool is;
    TT_TRY(tt_tpl_is_case(r, self, true, &is));
    *out = tpl_bool(is);
    return TT_OK;
}
METHOD(s_islower)
{
    bool is;
    TT_TRY(tt_tpl_is_case(r, self, false, &is));
    *out = tpl_bool(is);
    return TT_OK;
}

/* --- padding ------------------------------------------------------------------------------------------ */

/* share of the padding on the left: 0, 1 (half) or 2 (all). */
static tt_status pad(tpl_render *r, const tpl_value *self, const tpl_value *a, int side, tpl_value *out)
{
    int64_t width, n;
    size_t begin = r->length;
    const tpl_value fill = given(&a[1]) ? a[1] : tpl_text(" ", 1);
    TT_TRY(tt_tpl_get_int(&a[0], "the width", 0, &width));
    TT_TRY(tt_tpl_get_text(&fill, "the fill character"));
    if (tt_tpl_count_code_points(fill.as.text, fill.len) != 1)
        return tt_tpl_error("the fill character must be exactly one character");
    TT_TRY(tt_tpl_length(r, self, &n));
    int64_t missing = width > n ? width - n : 0;
    int64_t left = side == 0 ? 0 : side == 2 ? missing : missing / 2 + (missing & width & 1);
    TT_TRY(tt_tpl_append_fill(r, fill.as.text, fill.len, left));
    TT_TRY(tt_tpl_append(r, self->as.text, self->len));
    TT_TRY(tt_tpl_append_fill(r, fill.as.text, fill.len, missing - left));
    return tt_tpl_string_end(r, begin, out);
}
METHOD(s_ljust)
{
    return pad(r, self, a, 0, out);
}
METHOD(s_center)
{
    return pad(r, self, a, 1, out);
}
METHOD(s_rjust)
{
    return pad(r, self, a, 2, out);
}

METHOD(s_zfill)
{
    int64_t width, n;
    size_t begin = r->length;
    size_t sign = self->len && (self->as.text[0] == '-' || self->as.text[0] == '+');
    TT_TRY(tt_tpl_get_int(&a[0], "zfill: the width", 0, &width));
    TT_TRY(tt_tpl_length(r, self, &n));
    TT_TRY(tt_tpl_append(r, self->as.text, sign));
    TT_TRY(tt_tpl_append_fill(r, "0", 1, width > n ? width - n : 0));
    TT_TRY(tt_tpl_append(r, self->as.text + sign, self->len - sign));
    return tt_tpl_string_end(r, begin, out);
}

/* --- the table ---------------------------------------------------------------------------------------- */

const tpl_builtin tt_tpl_string_methods[] = {{"split", s_split, "sep maxsplit", 0},
                                             {"rsplit", s_rsplit, "sep maxsplit", 0},
                                             {"splitlines", s_splitlines, "keepends", 0},
                                             {"partition", s_partition, "sep", 1},
                                             {"rpartition", s_rpartition, "sep", 1},
                                             {"strip", s_strip, "chars", 0},
                                             {"lstrip", s_lstrip, "chars", 0},
                                             {"rstrip", s_rstrip, "chars", 0},
                                             {"startswith", s_startswith, "prefix start end", 1},
                                             {"endswith", s_endswith, "suffix start end", 1},
                                             {"removeprefix", s_removeprefix, "prefix", 1},
                                             {"removesuffix", s_removesuffix, "suffix", 1},
                                             {"find", s_find, "sub start end", 1},
                                             {"rfind", s_rfind, "sub start end", 1},
                                             {"index", s_index, "sub start end", 1},
                                             {"count", s_count, "sub start end", 1},
                                             {"replace", s_replace, "old new count", 2},
                                             {"join", s_join, "iterable", 1},
                                             {"format", s_format, NULL, 0},
                                             {"upper", s_upper, "", 0},
                                             {"lower", s_lower, "", 0},
                                             {"title", s_title, "", 0},
                                             {"capitalize", s_capitalize, "", 0},
                                             {"swapcase", s_swapcase, "", 0},
                                             {"casefold", s_casefold, "", 0},
                                             {"isdigit", s_isdigit, "", 0},
                                             {"isdecimal", s_isdigit, "", 0},
                                             {"isalpha", s_isalpha, "", 0},
                                             {"isalnum", s_isalnum, "", 0},
                                             {"isspace", s_isspace, "", 0},
                                             {"isupper", s_isupper, "", 0},
                                             {"islower", s_islower, "", 0},
                                             {"ljust", s_ljust, "width fillchar", 1},
                                             {"rjust", s_rjust, "width fillchar", 1},
                                             {"center", s_center, "width fillchar", 1},
                                             {"zfill", s_zfill, "width", 1},
                                             {0}};
