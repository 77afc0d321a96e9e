/* template_filters.c - filters.
 * Those that walk a sequence and test, map or order its items: template_select.c.
 *
 * A filter that the common library writes as a generator gives an iterator here too: it is true even when it
 * is empty, has no length and can be walked once. Left out, since they are random, about HTML or about other
 * things that a chat text has no use for: random, pprint, urlize, urlencode, xmlattr, striptags,
 * filesizeformat, wordwrap. */
#include "data/template_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILTER(name) static TPL_BUILTIN(name)

static bool given(const tpl_value *v)
{
    return v->kind != TPL_ABSENT && v->kind != TPL_NONE;
}

/* --- text --------------------------------------------------------------------------------------------- */

static tt_status change_case(tpl_render *r, const tpl_value *self, tpl_letter_case how, tpl_value *out)
{
    tpl_value s;
    TT_TRY(tt_tpl_to_text(r, self, &s));
    size_t begin = r->length;
    TT_TRY(tt_tpl_append_case(r, s.as.text, s.len, how));
    return tt_tpl_string_end(r, begin, out);
}
FILTER(f_upper)
{
    return change_case(r, self, TPL_UPPER, out);
}
FILTER(f_lower)
{
    return change_case(r, self, TPL_LOWER, out);
}
FILTER(f_capitalize)
{
    return change_case(r, self, TPL_CAPITALIZE, out);
}

static bool is_word_border(int32_t c)
{
    return tt_tpl_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

/* Unlike the method of that name: only blanks, hyphens and opening brackets begin a new word. */
FILTER(f_title)
{
    tpl_value s;
    TT_TRY(tt_tpl_to_text(r, self, &s));
    size_t begin = r->length, end;
    for (size_t at = 0, n, width; at < s.len; at = end) {
        int32_t c;
        n = tt_tpl_code_point(s.as.text + at, s.len - at, &c);
        end = at + n;
        while (!is_word_border(c) && end < s.len) {
            width = tt_tpl_code_point(s.as.text + end, s.len - end, &c);
            if (!is_word_border(c)) end += width;
        }
        TT_TRY(tt_tpl_append_case(r, s.as.text + at, n, TPL_UPPER));
        TT_TRY(tt_tpl_append_case(r, s.as.text + at + n, end - at - n, TPL_LOWER));
    }
    return tt_tpl_string_end(r, begin, out);
}

FILTER(f_string)
{
    return tt_tpl_to_text(r, self, out);
}

FILTER(f_trim)
{
    tpl_value s;
    TT_TRY(tt_tpl_to_text(r, self, &s));
    if (given(&a[0])) TT_TRY(tt_tpl_get_text(&a[0], "trim: the characters"));
    return tt_tpl_strip(r, &s, given(&a[0]) ? &a[0] : NULL, true, true, out);
}

FILTER(f_replace)
{
    tpl_value s, old, by;
    int64_t limit;
    TT_TRY(tt_tpl_to_text(r, self, &s));
    TT_TRY(tt_tpl_to_text(r, &a[0], &old));
    TT_TRY(tt_tpl_to_text(r, &a[1], &by));
    TT_TRY(tt_tpl_get_int(given(&a[2]) ? &a[2] : &(tpl_value){0}, "replace: the count", -1, &limit));
    return tt_tpl_replace(r, &s, &old, &by, limit, out);
}

FILTER(f_escape)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    tpl_value s;
    TT_TRY(tt_tpl_to_text(r, self, &s));
    size_t begin = r->length;
    TT_TRY(tt_tpl_charge(r, s.len / 8));
    for (size_t i = 0; i < s.len; i++) {
        const char *p = s.as.text[i] ? strchr(from, s.as.text[i]) : NULL;
        const char *text = p ? to[p - from] : &s.as.text[i];
        TT_TRY(tt_tpl_append(r, text, p ? strlen(text) : 1));
    }
    return tt_tpl_string_end(r, begin, out);
}

static tt_status call_method(tpl_render *r, const tpl_value *self, const char *name, const tpl_args *args,
                             tpl_value *out)
{
    const tpl_value word = tpl_text(name, strlen(name));
    tpl_value method;
    bool found;
    TT_TRY(tt_tpl_method(r, self, &word, &found, &method));
    return tt_tpl_call_value(r, &method, args, out);
}

static tt_status split_lines(tpl_render *r, const tpl_value *s, tpl_value *lines)
{
    /* With a line end added, so that text that ends with one has an empty last line. */
    size_t begin = r->length;
    tpl_value longer;
    TT_TRY(tt_tpl_append(r, s->as.text, s->len));
    TT_TRY(tt_tpl_append(r, "\n", 1));
    TT_TRY(tt_tpl_string_end(r, begin, &longer));
    return call_method(r, &longer, "splitlines", &(tpl_args){0}, lines);
}

FILTER(f_indent)
{
    tpl_value lines, by = a[0];
    int64_t width;
    bool first = tt_tpl_truth(&a[1]), blank = tt_tpl_truth(&a[2]);
    size_t begin = r->length;
    if (by.kind != TPL_STRING) {
        TT_TRY(tt_tpl_get_int(&by, "indent: the width", 4, &width));
        TT_TRY(tt_tpl_append_fill(r, " ", 1, width));
        TT_TRY(tt_tpl_string_end(r, begin, &by));
    }
    TT_TRY(tt_tpl_get_text(self, "indent: the text"));
    TT_TRY(split_lines(r, self, &lines));
    for (uint32_t i = 0; i < lines.len; i++) {
        const tpl_value *line = &lines.as.items[i];
        if (i) TT_TRY(tt_tpl_append(r, "\n", 1));
        if (i ? line->len || blank : first) TT_TRY(tt_tpl_append(r, by.as.text, by.len));
        TT_TRY(tt_tpl_append(r, line->as.text, line->len));
    }
    return tt_tpl_string_end(r, begin, out);
}

static tt_status prefix(tpl_render *r, const tpl_value *s, int64_t end, tpl_value *out)
{
    const tpl_value bounds[3] = {tpl_none(), tpl_int(end), tpl_none()};
    return tt_tpl_slice(r, s, bounds, out);
}

FILTER(f_truncate)
{
    const tpl_value end = given(&a[2]) ? a[2] : tpl_text("...", 3);
    tpl_value s = *self;
    int64_t length, leeway, n, end_length;
    size_t begin = r->length;
    TT_TRY(tt_tpl_get_text(&end, "truncate: the end"));
    TT_TRY(tt_tpl_get_int(&a[0], "truncate: the length", 255, &length));
    TT_TRY(tt_tpl_get_int(given(&a[3]) ? &a[3] : &(tpl_value){0}, "truncate: the leeway", 5, &leeway));
    TT_TRY(tt_tpl_length(r, &s, &n));
    TT_TRY(tt_tpl_length(r, &end, &end_length));
    if (length < end_length || leeway < 0)
        return tt_tpl_error("truncate: expected length >= %lld and leeway >= 0", (long long)end_length);
    *out = s; /* whatever it is, if it is short */
    if (n <= length || n - length <= leeway) return TT_OK;
    TT_TRY(tt_tpl_get_text(&s, "truncate: the text"));
    TT_TRY(prefix(r, &s, length - end_length, &s));
    if (!tt_tpl_truth(&a[1])) {
        const char *blank = s.len ? memrchr(s.as.text, ' ', s.len) : NULL;
        if (blank) s.len = (uint32_t)(blank - s.as.text);
    }
    TT_TRY(tt_tpl_append(r, s.as.text, s.len));
    TT_TRY(tt_tpl_append(r, end.as.text, end.len));
    return tt_tpl_string_end(r, begin, out);
}

FILTER(f_center)
{
    tpl_value s, width = a[0].kind == TPL_ABSENT ? tpl_int(80) : a[0];
    TT_TRY(tt_tpl_to_text(r, self, &s));
    return call_method(r, &s, "center", &(tpl_args){.count = 1, .values = &width}, out);
}

FILTER(f_wordcount)
{
    tpl_value s;
    int64_t words = 0;
    bool inside = false;
    TT_TRY(tt_tpl_to_text(r, self, &s));
    TT_TRY(tt_tpl_charge(r, s.len / 8));
    for (size_t at = 0; at < s.len;) {
        int32_t c;
        at += tt_tpl_code_point(s.as.text + at, s.len - at, &c);
        bool word = tt_tpl_is_letter(c) || c == '_' || (c >= '0' && c <= '9');
        words += word && !inside;
        inside = word;
    }
    *out = tpl_int(words);
    return TT_OK;
}

FILTER(f_format)
{
    tpl_value s, values = tpl_tuple(all->values, (size_t)all->count);
    TT_TRY(tt_tpl_to_text(r, self, &s));
    if (all->named && all->count)
        return tt_tpl_error("format takes arguments with or without names, not both");
    if (all->named) {
        TT_TRY(tt_tpl_map_create(r, (size_t)all->named, &values));
        for (int i = 0; i < all->named; i++)
            TT_TRY(tt_tpl_map_put(r, values.as.map, &all->names[i], &all->named_values[i]));
    }
    return tt_tpl_format_percent(r, &s, &values, out);
}

/* --- numbers ------------------------------------------------------------------------------------------ */

/* float(text) of Python: white space around, "inf", "nan". */
static bool text_to_double(const tpl_value *s, double *out)
{
    const char *p = s->as.text;
    size_t len = tt_tpl_strip_end(p, s->len), space = tt_tpl_skip_space(p, len);
    p += space, len -= space;
    if (tt_tpl_parse_double(p, len, out)) return true;
    bool minus = len && *p == '-';
    if (len && (*p == '-' || *p == '+')) p++, len--;
    bool infinite =
        (len == 3 && strncasecmp(p, "inf", 3) == 0) || (len == 8 && strncasecmp(p, "infinity", 8) == 0);
    if (!infinite && !(len == 3 && strncasecmp(p, "nan", 3) == 0)) return false;
    *out = infinite ? (minus ? -INFINITY : INFINITY) : NAN;
    return true;
}

FILTER(f_float)
{
    double d = 0;
    bool ok = tt_tpl_is_number(self);
    if (self->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(self);
    if (ok) d = tt_tpl_to_double(self);
    if (self->kind == TPL_STRING) ok = text_to_double(self, &d);
    *out = ok ? tpl_real(d) : a[0].kind == TPL_ABSENT ? tpl_real(0) : a[0];
    return TT_OK;
}

FILTER(f_int)
{
    int64_t base;
    double d;
    bool ok = false;
    TT_TRY(tt_tpl_get_int(&a[1], "int: the base", 10, &base));
    if (base != 0 && (base < 2 || base > 36)) return tt_tpl_error("int: the base must be 0 or from 2 to 36");
    if (self->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(self);
    if (self->kind == TPL_STRING) {
        size_t len = tt_tpl_strip_end(self->as.text, self->len),
               space = tt_tpl_skip_space(self->as.text, len);
        TT_TRY(tt_tpl_parse_int(r, self->as.text + space, len - space, (int)base, &ok, out));
        if (!ok && text_to_double(self, &d)) TT_TRY(tt_tpl_int_from_double(r, d, &ok, out));
    } else if (self->kind == TPL_FLOAT) {
        TT_TRY(tt_tpl_int_from_double(r, self->as.real, &ok, out));
    } else if (tt_tpl_is_integer(self)) {
        *out = self->kind == TPL_BOOL ? tpl_int(self->as.boolean) : *self;
        ok = true;
    }
    if (!ok) *out = a[0].kind == TPL_ABSENT ? tpl_int(0) : a[0];
    return TT_OK;
}

FILTER(f_abs)
{
    if (self->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(self);
    if (!tt_tpl_is_number(self))
        return tt_tpl_error("bad operand type for abs(): '%s'", tt_tpl_type_name(self));
    const tpl_value zero = tpl_int(0);
    *out = self->kind == TPL_BOOL ? tpl_int(self->as.boolean) : *self;
    if (self->kind == TPL_FLOAT) *out = tpl_real(fabs(self->as.real));
    return self->kind != TPL_FLOAT && tt_tpl_compare_numbers(self, &zero) < 0 ? tt_tpl_negate(r, self, out)
                                                                              : TT_OK;
}

/* Correctly rounded in decimal, ties on the exact binary value to even, as Python's round. */
static double round_decimal(double d, int64_t precision)
{
    char text[400];
    if (!isfinite(d) || precision > 300) return d;
    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return isfinite(unit) ? nearbyint(d / unit) * unit : 0 * d;
    }
    int n = snprintf(text, sizeof text, "%.*f", (int)precision, d);
    return n > 0 && n < (int)sizeof text ? strtod(text, NULL) : d;
}

static tt_status round_int(tpl_render *r, const tpl_value *v, int64_t precision, tpl_value *out)
{
    *out = v->kind == TPL_BOOL ? tpl_int(v->as.boolean) : *v;
    if (precision >= 0) return TT_OK;
    if (v->kind == TPL_BIG || precision < -18)
        return tt_tpl_error("round: the number or the precision is too large");
    int64_t unit = 1, x = out->as.integer;
    for (int64_t i = 0; i > precision; i--) unit *= 10;
    int64_t low = x / unit - (x % unit < 0), rest = x - low * unit;
    bool up = rest > unit - rest || (rest == unit - rest && low % 2 != 0);
    const tpl_value whole = tpl_int(low + up), each = tpl_int(unit);
    return tt_tpl_arithmetic(r, '*', &whole, &each, out);
}

FILTER(f_round)
{
    int64_t precision;
    TT_TRY(tt_tpl_get_int(&a[0], "round: the precision", 0, &precision));
    bool common = a[1].kind == TPL_ABSENT || tt_tpl_is_text(&a[1], "common");
    bool ceiling = tt_tpl_is_text(&a[1], "ceil");
    if (!common && !ceiling && !tt_tpl_is_text(&a[1], "floor"))
        return tt_tpl_error("round: the method must be common, ceil or floor");
    if (self->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(self);
    if (!tt_tpl_is_number(self)) return tt_tpl_error("round: '%s' is no number", tt_tpl_type_name(self));
    if (common && self->kind != TPL_FLOAT) return round_int(r, self, precision, out);
    double d = tt_tpl_to_double(self), unit = pow(10, (double)precision);
    *out =
        tpl_real(common ? round_decimal(d, precision) : (ceiling ? ceil(d * unit) : floor(d * unit)) / unit);
    return TT_OK;
}

/* --- anything ----------------------------------------------------------------------------------------- */

FILTER(f_default)
{
    bool use = self->kind == TPL_UNDEFINED || (tt_tpl_truth(&a[1]) && !tt_tpl_truth(self));
    *out = !use ? *self : a[0].kind == TPL_ABSENT ? tpl_text("", 0) : a[0];
    return TT_OK;
}

FILTER(f_length)
{
    int64_t n;
    TT_TRY(tt_tpl_length(r, self, &n));
    *out = tpl_int(n);
    return TT_OK;
}

FILTER(f_attr)
{
    bool found = false;
    if (self->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(self);
    TT_TRY(tt_tpl_get_text(&a[0], "attr: the name"));
    TT_TRY(tt_tpl_method(r, self, &a[0], &found, out));
    if (!found) *out = (tpl_value){.kind = TPL_UNDEFINED, .aux = TPL_NO_REASON};
    return TT_OK;
}

FILTER(f_list)
{
    const tpl_value *items;
    uint32_t n;
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    *out = tpl_list(items, n);
    return TT_OK;
}

FILTER(f_items)
{
    const tpl_value *items = NULL;
    uint32_t n = 0;
    if (self->kind != TPL_MAP && self->kind != TPL_UNDEFINED)
        return tt_tpl_error("items: can only get item pairs from a mapping, not from '%s'",
                            tt_tpl_type_name(self));
    const tpl_value view = {.kind = TPL_VIEW, .aux = TPL_VIEW_ITEMS, .as.map = self->as.map};
    if (self->kind == TPL_MAP) TT_TRY(tt_tpl_items(r, &view, &items, &n));
    return tt_tpl_iterator(r, items, n, out);
}

FILTER(f_first)
{
    const tpl_value *items;
    uint32_t n;
    *out = (tpl_value){.kind = TPL_UNDEFINED, .aux = TPL_NO_REASON};
    if (self->kind == TPL_ITERATOR) { /* takes one, leaves the rest */
        tpl_iterator *it = self->as.iterator;
        if (it->next < it->count) *out = it->items[it->next++];
        return TT_OK;
    }
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    if (n) *out = items[0];
    return TT_OK;
}

FILTER(f_last)
{
    const tpl_value *items;
    uint32_t n;
    if (self->kind == TPL_ITERATOR)
        return tt_tpl_error("last: put '| list' before it; a generator has no end to start at");
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    *out = n ? items[n - 1] : (tpl_value){.kind = TPL_UNDEFINED, .aux = TPL_NO_REASON};
    return TT_OK;
}

FILTER(f_join)
{
    const tpl_value *items;
    tpl_value between = tpl_text("", 0), item;
    uint32_t n;
    size_t begin = r->length;
    if (a[0].kind != TPL_ABSENT) TT_TRY(tt_tpl_to_text(r, &a[0], &between));
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    for (uint32_t i = 0; i < n; i++) {
        TT_TRY(tt_tpl_charge(r, 1));
        if (i) TT_TRY(tt_tpl_append(r, between.as.text, between.len));
        item = items[i];
        if (given(&a[1])) TT_TRY(tt_tpl_path(r, &items[i], &a[1], NULL, &item));
        TT_TRY(tt_tpl_print(r, &item));
    }
    return tt_tpl_string_end(r, begin, out);
}

FILTER(f_reverse)
{
    const tpl_value *items, bounds[3] = {tpl_none(), tpl_none(), tpl_int(-1)};
    tpl_value *turned;
    uint32_t n;
    if (self->kind == TPL_STRING) return tt_tpl_slice(r, self, bounds, out);
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    TT_TRY(tt_tpl_new_items(r, n, &turned));
    for (uint32_t i = 0; i < n; i++) turned[i] = items[n - 1 - i];
    return tt_tpl_iterator(r, turned, n, out);
}

FILTER(f_batch)
{
    const tpl_value *items;
    tpl_value *rows, *row;
    uint32_t n;
    int64_t width;
    TT_TRY(tt_tpl_get_int(&a[0], "batch: the width", 1, &width));
    if (width < 1) return tt_tpl_error("batch: the width must be positive");
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    size_t count = n ? ((size_t)n - 1) / (size_t)width + 1 : 0;
    TT_TRY(tt_tpl_new_items(r, count, &rows));
    for (size_t i = 0; i < count; i++) {
        size_t have = n - i * (size_t)width, full = (size_t)width;
        if (have > full) have = full;
        size_t filled = given(&a[1]) ? full : have;
        TT_TRY(tt_tpl_new_items(r, filled, &row));
        for (size_t k = 0; k < filled; k++) row[k] = k < have ? items[i * full + k] : a[1];
        rows[i] = tpl_list(row, filled);
    }
    return tt_tpl_iterator(r, rows, count, out);
}

FILTER(f_slice)
{
    const tpl_value *items;
    tpl_value *columns, *column;
    uint32_t n;
    int64_t slices;
    size_t from = 0;
    TT_TRY(tt_tpl_get_int(&a[0], "slice: the number", 1, &slices));
    if (slices < 1) return tt_tpl_error("slice: the number must be positive");
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    TT_TRY(tt_tpl_new_items(r, (size_t)slices, &columns));
    for (int64_t i = 0; i < slices; i++) {
        bool longer = i < n % slices, fill = given(&a[1]) && !longer;
        size_t have = (size_t)(n / slices) + longer;
        TT_TRY(tt_tpl_new_items(r, have + fill, &column));
        for (size_t k = 0; k < have; k++) column[k] = items[from + k];
        if (fill) column[have] = a[1];
        columns[i] = tpl_list(column, have + fill);
        from += have;
    }
    return tt_tpl_iterator(r, columns, (size_t)slices, out);
}

static const tpl_builtin filters[] = {
    {"upper", f_upper, "", 0},
    {"lower", f_lower, "", 0},
    {"capitalize", f_capitalize, "", 0},
    {"title", f_title, "", 0},
    {"string", f_string, "", 0},
    {"safe", f_string, "", 0},
    {"trim", f_trim, "chars", 0},
    {"replace", f_replace, "old new count", 2},
    {"e", f_escape, "", 0},
    {"escape", f_escape, "", 0},
    {"forceescape", f_escape, "", 0},
    {"indent", f_indent, "width first blank", 0},
    {"truncate", f_truncate, "length killwords end leeway", 0},
    {"center", f_center, "width", 0},
    {"wordcount", f_wordcount, "", 0},
    {"format", f_format, NULL, 0},
    {"float", f_float, "default", 0},
    {"int", f_int, "default base", 0},
    {"abs", f_abs, "", 0},
    {"round", f_round, "precision method", 0},
    {"default", f_default, "default_value boolean", 0},
    {"d", f_default, "default_value boolean", 0},
    {"length", f_length, "", 0},
    {"count", f_length, "", 0},
    {"attr", f_attr, "name", 1},
    {"list", f_list, "", 0},
    {"items", f_items, "", 0},
    {"first", f_first, "", 0},
    {"last", f_last, "", 0},
    {"join", f_join, "d attribute", 0},
    {"reverse", f_reverse, "", 0},
    {"batch", f_batch, "linecount fill_with", 1},
    {"slice", f_slice, "slices fill_with", 1},
    {"tojson", tt_tpl_tojson, "ensure_ascii indent separators sort_keys", 0},
    {0}};

const tpl_builtin *tt_tpl_find_filter(const char *name, size_t len)
{
    const tpl_builtin *b = tt_tpl_find(filters, name, len);
    return b ? b : tt_tpl_find(tt_tpl_select_filters, name, len);
}
