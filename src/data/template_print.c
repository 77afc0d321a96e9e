/* template_print.c - values as text: str(), repr() and the tojson filter.
 *
 * str and repr are Python's. tojson is the common library's own: no HTML escapes, non-ASCII characters as
 * they are unless ensure_ascii, ", " and ": " as separators (with an indentation: a comma without blank). */
#include "data/template_impl.h"

#include <math.h>
#include <string.h>

/* --- repr --------------------------------------------------------------------------------------------- */

static tt_status repr_code_point(tpl_render *r, int32_t c, char quote)
{
    if (c == quote || c == '\\') return tt_tpl_appendf(r, "\\%c", c);
    if (c == '\n') return tt_tpl_append(r, "\\n", 2);
    if (c == '\r') return tt_tpl_append(r, "\\r", 2);
    if (c == '\t') return tt_tpl_append(r, "\\t", 2);
    if (tt_tpl_is_printable(c)) return tt_tpl_append_code_point(r, c);
    return tt_tpl_appendf(r, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
}

static tt_status repr_string(tpl_render *r, const tpl_value *v)
{
    bool single = v->len && memchr(v->as.text, '\'', v->len),
         twofold = v->len && memchr(v->as.text, '"', v->len);
    char quote = single && !twofold ? '"' : '\'';
    TT_TRY(tt_tpl_charge(r, v->len / 8));
    TT_TRY(tt_tpl_append(r, &quote, 1));
    for (size_t at = 0; at < v->len;) {
        int32_t c;
        at += tt_tpl_code_point(v->as.text + at, v->len - at, &c);
        TT_TRY(repr_code_point(r, c, quote));
    }
    return tt_tpl_append(r, &quote, 1);
}

static tt_status repr_items(tpl_render *r, const tpl_value *items, uint32_t n, char open, char close)
{
    TT_TRY(tt_tpl_append(r, &open, 1));
    for (uint32_t i = 0; i < n; i++) {
        if (i) TT_TRY(tt_tpl_append(r, ", ", 2));
        TT_TRY(tt_tpl_repr(r, &items[i]));
    }
    if (n == 1 && open == '(') TT_TRY(tt_tpl_append(r, ",", 1));
    return tt_tpl_append(r, &close, 1);
}

static tt_status repr_map(tpl_render *r, const tpl_map *m)
{
    TT_TRY(tt_tpl_append(r, "{", 1));
    for (uint32_t i = 0; i < m->count; i++) {
        if (i) TT_TRY(tt_tpl_append(r, ", ", 2));
        TT_TRY(tt_tpl_repr(r, &m->entries[i].key));
        TT_TRY(tt_tpl_append(r, ": ", 2));
        TT_TRY(tt_tpl_repr(r, &m->entries[i].value));
    }
    return tt_tpl_append(r, "}", 1);
}

static tt_status repr_view(tpl_render *r, const tpl_value *v)
{
    const tpl_value *items;
    uint32_t n;
    TT_TRY(tt_tpl_appendf(r, "%s(", tt_tpl_type_name(v)));
    TT_TRY(tt_tpl_items(r, v, &items, &n));
    TT_TRY(repr_items(r, items, n, '[', ']'));
    return tt_tpl_append(r, ")", 1);
}

static tt_status repr_range(tpl_render *r, const tpl_range *range)
{
    long long stop = range->start + range->count * range->step;
    if (range->step == 1) return tt_tpl_appendf(r, "range(%lld, %lld)", (long long)range->start, stop);
    return tt_tpl_appendf(r, "range(%lld, %lld, %lld)", (long long)range->start, stop,
                          (long long)range->step);
}

static tt_status repr_macro(tpl_render *r, const tpl_macro *m)
{
    if (m->node->kind != TPL_N_MACRO) return tt_tpl_append(r, "<Macro anonymous>", 17);
    const tpl_value *name = &r->template->atoms[m->node->atom];
    TT_TRY(tt_tpl_append(r, "<Macro ", 7));
    TT_TRY(repr_string(r, name));
    return tt_tpl_append(r, ">", 1);
}

static tt_status repr_loop(tpl_render *r, tpl_loop *l)
{
    TT_TRY(tt_tpl_loop_length(r, l));
    return tt_tpl_appendf(r, "<LoopContext %lld/%lld>", (long long)l->index + 1, (long long)l->length);
}

static tt_status repr_any(tpl_render *r, const tpl_value *v)
{
    char number[TPL_DOUBLE_BYTES];
    switch ((tpl_kind)v->kind) {
    case TPL_UNDEFINED:
        return tt_tpl_append(r, "Undefined", 9);
    case TPL_NONE:
        return tt_tpl_append(r, "None", 4);
    case TPL_BOOL:
        return v->as.boolean ? tt_tpl_append(r, "True", 4) : tt_tpl_append(r, "False", 5);
    case TPL_INT:
        return tt_tpl_appendf(r, "%lld", (long long)v->as.integer);
    case TPL_BIG:
        return tt_tpl_append(r, v->as.text, v->len);
    case TPL_FLOAT:
        return tt_tpl_append(r, number, (size_t)tt_tpl_double_text(v->as.real, number));
    case TPL_STRING:
        return repr_string(r, v);
    case TPL_LIST:
        return repr_items(r, v->as.items, v->len, '[', ']');
    case TPL_TUPLE:
        return repr_items(r, v->as.items, v->len, '(', ')');
    case TPL_MAP:
        return repr_map(r, v->as.map);
    case TPL_VIEW:
        return repr_view(r, v);
    case TPL_RANGE:
        return repr_range(r, v->as.range);
    case TPL_MACRO:
        return repr_macro(r, v->as.macro);
    case TPL_LOOP:
        return repr_loop(r, v->as.loop);
    case TPL_NAMESPACE:
        TT_TRY(tt_tpl_append(r, "<Namespace ", 11));
        TT_TRY(repr_map(r, v->as.map));
        return tt_tpl_append(r, ">", 1);
    default:
        /* Python would print an address. */
        return tt_tpl_error("a %s has no text; %s", tt_tpl_type_name(v),
                            v->kind == TPL_ITERATOR ? "put '| list' or '| join' behind the filter"
                                                    : "call it");
    }
}

tt_status tt_tpl_repr(tpl_render *r, const tpl_value *v)
{
    TT_TRY(tt_tpl_enter(r));
    TT_TRY(repr_any(r, v));
    tt_tpl_leave(r);
    return TT_OK;
}

tt_status tt_tpl_print(tpl_render *r, const tpl_value *v)
{
    if (v->kind == TPL_STRING) return tt_tpl_append(r, v->as.text, v->len);
    if (v->kind == TPL_UNDEFINED) return TT_OK;
    return tt_tpl_repr(r, v);
}

tt_status tt_tpl_to_text(tpl_render *r, const tpl_value *v, tpl_value *out)
{
    size_t begin = r->length;
    if (v->kind == TPL_STRING) {
        *out = *v;
        return TT_OK;
    }
    TT_TRY(tt_tpl_print(r, v));
    return tt_tpl_string_end(r, begin, out);
}

/* --- tojson ------------------------------------------------------------------------------------------- */

typedef struct json_style {
    bool ascii, sorted, pretty;
    tpl_value indent, item, pair; /* one level; the separators */
} json_style;

static tt_status put_escape(tpl_render *r, int32_t c)
{
    static const char from[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    const char *p = c < 128 && c ? strchr(from, c) : NULL;
    if (p) return tt_tpl_appendf(r, "\\%c", letter[p - from]);
    if (c < 0x10000) return tt_tpl_appendf(r, "\\u%04x", (unsigned)c);
    c -= 0x10000;
    return tt_tpl_appendf(r, "\\u%04x\\u%04x", 0xD800u + (unsigned)(c >> 10),
                          0xDC00u + (unsigned)(c & 0x3FF));
}

static tt_status put_string(tpl_render *r, const tpl_value *v, const json_style *s)
{
    size_t from = 0, at = 0;
    TT_TRY(tt_tpl_charge(r, v->len / 16));
    TT_TRY(tt_tpl_append(r, "\"", 1));
    while (at < v->len) {
        int32_t c;
        size_t n = tt_tpl_code_point(v->as.text + at, v->len - at, &c);
        if (c < 0x20 || c == '"' || c == '\\' || (s->ascii && c >= 0x7F)) {
            TT_TRY(tt_tpl_append(r, v->as.text + from, at - from));
            TT_TRY(put_escape(r, c));
            from = at + n;
        }
        at += n;
    }
    TT_TRY(tt_tpl_append(r, v->as.text + from, v->len - from));
    return tt_tpl_append(r, "\"", 1);
}

static tt_status put_float(tpl_render *r, double d)
{
    char text[TPL_DOUBLE_BYTES];
    if (isnan(d)) return tt_tpl_append(r, "NaN", 3);
    if (isinf(d)) return d < 0 ? tt_tpl_append(r, "-Infinity", 9) : tt_tpl_append(r, "Infinity", 8);
    return tt_tpl_append(r, text, (size_t)tt_tpl_double_text(d, text));
}

static tt_status put_line(tpl_render *r, const json_style *s, int level)
{
    if (!s->pretty) return TT_OK;
    TT_TRY(tt_tpl_append(r, "\n", 1));
    return tt_tpl_append_fill(r, s->indent.as.text, s->indent.len, level);
}

static tt_status put_value(tpl_render *r, const tpl_value *v, const json_style *s, int level);

static tt_status put_list(tpl_render *r, const tpl_value *v, const json_style *s, int level)
{
    if (v->len == 0) return tt_tpl_append(r, "[]", 2);
    TT_TRY(tt_tpl_append(r, "[", 1));
    for (uint32_t i = 0; i < v->len; i++) {
        if (i) TT_TRY(tt_tpl_append(r, s->item.as.text, s->item.len));
        TT_TRY(put_line(r, s, level + 1));
        TT_TRY(put_value(r, &v->as.items[i], s, level + 1));
    }
    TT_TRY(put_line(r, s, level));
    return tt_tpl_append(r, "]", 1);
}

static tt_status put_key(tpl_render *r, const tpl_value *key, const json_style *s)
{
    if (key->kind == TPL_STRING) return put_string(r, key, s);
    if (key->kind > TPL_STRING || key->kind == TPL_UNDEFINED)
        return tt_tpl_error("tojson: keys must be str, int, float, bool or None, not %s",
                            tt_tpl_type_name(key));
    TT_TRY(tt_tpl_append(r, "\"", 1));
    TT_TRY(put_value(r, key, s, 0));
    return tt_tpl_append(r, "\"", 1);
}

/* The positions of a mapping's entries in the order of their keys: insertion, since mappings that are written
 * with sort_keys are small. */
static tt_status sort_keys(tpl_render *r, const tpl_map *m, uint32_t *order)
{
    for (uint32_t i = 0; i < m->count; i++) {
        uint32_t at = i;
        for (bool less; at > 0; at--) {
            TT_TRY(tt_tpl_less(r, &m->entries[i].key, &m->entries[order[at - 1]].key, "<", &less));
            if (!less) break;
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    return TT_OK;
}

static tt_status put_map(tpl_render *r, const tpl_map *m, const json_style *s, int level)
{
    void *order = NULL;
    if (m->count == 0) return tt_tpl_append(r, "{}", 2);
    if (s->sorted) {
        TT_TRY(tt_tpl_take(&r->pool, m->count, sizeof(uint32_t), &order));
        TT_TRY(sort_keys(r, m, order));
    }
    TT_TRY(tt_tpl_append(r, "{", 1));
    for (uint32_t i = 0; i < m->count; i++) {
        const tpl_entry *e = &m->entries[order ? ((uint32_t *)order)[i] : i];
        if (i) TT_TRY(tt_tpl_append(r, s->item.as.text, s->item.len));
        TT_TRY(put_line(r, s, level + 1));
        TT_TRY(put_key(r, &e->key, s));
        TT_TRY(tt_tpl_append(r, s->pair.as.text, s->pair.len));
        TT_TRY(put_value(r, &e->value, s, level + 1));
    }
    TT_TRY(put_line(r, s, level));
    return tt_tpl_append(r, "}", 1);
}

static tt_status put_any(tpl_render *r, const tpl_value *v, const json_style *s, int level)
{
    switch ((tpl_kind)v->kind) {
    case TPL_NONE:
        return tt_tpl_append(r, "null", 4);
    case TPL_BOOL:
        return v->as.boolean ? tt_tpl_append(r, "true", 4) : tt_tpl_append(r, "false", 5);
    case TPL_INT:
    case TPL_BIG:
        return tt_tpl_repr(r, v);
    case TPL_FLOAT:
        return put_float(r, v->as.real);
    case TPL_STRING:
        return put_string(r, v, s);
    case TPL_LIST:
    case TPL_TUPLE:
        return put_list(r, v, s, level);
    case TPL_MAP:
        return put_map(r, v->as.map, s, level);
    default:
        return tt_tpl_error("tojson: an object of type %s is not JSON serializable", tt_tpl_type_name(v));
    }
}

static tt_status put_value(tpl_render *r, const tpl_value *v, const json_style *s, int level)
{
    TT_TRY(tt_tpl_enter(r));
    TT_TRY(put_any(r, v, s, level));
    tt_tpl_leave(r);
    return TT_OK;
}

static tt_status read_indent(tpl_render *r, const tpl_value *v, json_style *s)
{
    int64_t n;
    size_t begin = r->length;
    s->pretty = v->kind != TPL_ABSENT && v->kind != TPL_NONE;
    if (!s->pretty) return TT_OK;
    s->indent = *v;
    if (v->kind == TPL_STRING) return TT_OK;
    TT_TRY(tt_tpl_get_int(v, "tojson: indent", 0, &n));
    TT_TRY(tt_tpl_append_fill(r, " ", 1, n));
    return tt_tpl_string_end(r, begin, &s->indent);
}

static tt_status read_separators(const tpl_value *v, json_style *s)
{
    s->item = s->pretty ? tpl_text(",", 1) : tpl_text(", ", 2);
    s->pair = tpl_text(": ", 2);
    if (v->kind == TPL_ABSENT || v->kind == TPL_NONE) return TT_OK;
    if ((v->kind != TPL_LIST && v->kind != TPL_TUPLE) || v->len != 2 || v->as.items[0].kind != TPL_STRING ||
        v->as.items[1].kind != TPL_STRING)
        return tt_tpl_error("tojson: separators must be two strings, for items and for keys");
    s->item = v->as.items[0];
    s->pair = v->as.items[1];
    return TT_OK;
}

tt_status tt_tpl_tojson(tpl_render *r, const tpl_value *self, const tpl_value *a, const tpl_args *all,
                        tpl_value *out)
{
    json_style s = {.ascii = tt_tpl_truth(&a[0]), .sorted = tt_tpl_truth(&a[3])};
    (void)all;
    TT_TRY(read_indent(r, &a[1], &s));
    TT_TRY(read_separators(&a[2], &s));
    size_t begin = r->length;
    TT_TRY(put_value(r, self, &s, 0));
    return tt_tpl_string_end(r, begin, out);
}
