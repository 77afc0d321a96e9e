/* template_value.c - kinds, truth, length, items, equality, order, membership, slices.
 * Mappings: template_map.c.
 *
 * Walks over nested values count their depth (tt_tpl_enter) and their steps, so that data nested without end,
 * or a small graph that is a huge tree, ends in an error. */
#include "data/template_impl.h"

#include <string.h>

const char *tt_tpl_type_name(const tpl_value *v)
{
    static const char *const views[] = {"dict_items", "dict_keys", "dict_values"};
    switch ((tpl_kind)v->kind) {
    case TPL_ABSENT:
        break;
    case TPL_UNDEFINED:
        return "Undefined";
    case TPL_NONE:
        return "NoneType";
    case TPL_BOOL:
        return "bool";
    case TPL_INT:
    case TPL_BIG:
        return "int";
    case TPL_FLOAT:
        return "float";
    case TPL_STRING:
        return "str";
    case TPL_LIST:
        return "list";
    case TPL_TUPLE:
        return "tuple";
    case TPL_MAP:
        return "dict";
    case TPL_VIEW:
        return views[v->aux];
    case TPL_RANGE:
        return "range";
    case TPL_ITERATOR:
        return "generator";
    case TPL_SLICE:
        return "slice";
    case TPL_NAMESPACE:
        return "Namespace";
    case TPL_MACRO:
        return "Macro";
    case TPL_LOOP:
        return "LoopContext";
    case TPL_FUNCTION:
        return "function";
    }
    return "?";
}

static const char *object_name(int kind)
{
    const tpl_value v = {.kind = (uint8_t)kind};
    return kind == TPL_NONE ? "None" : tt_tpl_type_name(&v);
}

tt_status tt_tpl_undefined_error(const tpl_value *v)
{
    int n = v->len < 200 ? (int)v->len : 200;
    switch (v->aux) {
    case TPL_NO_NAME:
        return tt_tpl_error("'%.*s' is undefined", n, v->as.text);
    case TPL_NO_ATTRIBUTE:
        return tt_tpl_error("'%s%s' has no attribute '%.*s'", object_name(v->extra),
                            v->extra == TPL_NONE ? "" : " object", n, v->as.text);
    case TPL_NO_ELEMENT:
        return tt_tpl_error("%s object has no such element", object_name(v->extra));
    case TPL_NO_PARAMETER:
        return tt_tpl_error("parameter '%.*s' was not provided", n, v->as.text);
    default:
        return tt_tpl_error(
            "a value is undefined: a condition without else was false, or a sequence was empty");
    }
}

bool tt_tpl_truth(const tpl_value *v)
{
    switch ((tpl_kind)v->kind) {
    case TPL_ABSENT:
    case TPL_UNDEFINED:
    case TPL_NONE:
        return false;
    case TPL_BOOL:
        return v->as.boolean;
    case TPL_INT:
        return v->as.integer != 0;
    case TPL_FLOAT:
        return v->as.real != 0;
    case TPL_STRING:
    case TPL_LIST:
    case TPL_TUPLE:
        return v->len != 0;
    case TPL_MAP:
    case TPL_VIEW:
        return v->as.map->count != 0;
    case TPL_RANGE:
        return v->as.range->count != 0;
    default:
        return true;
    }
}

bool tt_tpl_is_integer(const tpl_value *v)
{
    return v->kind == TPL_BOOL || v->kind == TPL_INT || v->kind == TPL_BIG;
}

bool tt_tpl_is_number(const tpl_value *v)
{
    return tt_tpl_is_integer(v) || v->kind == TPL_FLOAT;
}

tt_status tt_tpl_get_int(const tpl_value *v, const char *what, int64_t fallback, int64_t *out)
{
    if (v->kind == TPL_ABSENT)
        *out = fallback;
    else if (v->kind == TPL_INT)
        *out = v->as.integer;
    else if (v->kind == TPL_BOOL)
        *out = v->as.boolean;
    else
        return tt_tpl_error("%s must be an integer (of 64 bits), not '%s'", what, tt_tpl_type_name(v));
    return TT_OK;
}

tt_status tt_tpl_get_text(const tpl_value *v, const char *what)
{
    if (v->kind == TPL_STRING) return TT_OK;
    if (v->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(v);
    return tt_tpl_error("%s must be a string, not '%s'", what, tt_tpl_type_name(v));
}

/* --- items -------------------------------------------------------------------------------------------- */

tt_status tt_tpl_length(tpl_render *r, const tpl_value *v, int64_t *out)
{
    switch ((tpl_kind)v->kind) {
    case TPL_UNDEFINED:
        *out = 0;
        return TT_OK;
    case TPL_STRING:
        *out = tt_tpl_count_code_points(v->as.text, v->len);
        return tt_tpl_charge(r, v->len / 32);
    case TPL_LIST:
    case TPL_TUPLE:
        *out = v->len;
        return TT_OK;
    case TPL_MAP:
    case TPL_VIEW:
        *out = v->as.map->count;
        return TT_OK;
    case TPL_RANGE:
        *out = v->as.range->count;
        return TT_OK;
    case TPL_LOOP:
        TT_TRY(tt_tpl_loop_length(r, v->as.loop));
        *out = v->as.loop->length;
        return TT_OK;
    default:
        return tt_tpl_error("object of type '%s' has no len()", tt_tpl_type_name(v));
    }
}

tt_status tt_tpl_new_items(tpl_render *r, size_t count, tpl_value **out)
{
    void *items;
    TT_TRY(tt_tpl_charge(r, count / 8));
    TT_TRY(tt_tpl_take(&r->pool, count, sizeof **out, &items));
    *out = items;
    return TT_OK;
}

tt_status tt_tpl_iterator(tpl_render *r, const tpl_value *items, size_t count, tpl_value *out)
{
    void *it;
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_iterator), &it));
    *(tpl_iterator *)it = (tpl_iterator){.items = items, .count = (uint32_t)count};
    *out = (tpl_value){.kind = TPL_ITERATOR, .as.iterator = it};
    return TT_OK;
}

static tt_status string_items(tpl_render *r, const tpl_value *v, const tpl_value **items, uint32_t *count)
{
    tpl_value *list;
    int64_t n;
    size_t at = 0;
    TT_TRY(tt_tpl_length(r, v, &n));
    TT_TRY(tt_tpl_new_items(r, (size_t)n, &list));
    for (int64_t i = 0; i < n; i++) {
        int32_t c;
        size_t width = tt_tpl_code_point(v->as.text + at, v->len - at, &c);
        list[i] = tpl_text(v->as.text + at, width);
        at += width;
    }
    *items = list;
    *count = (uint32_t)n;
    return TT_OK;
}

static tt_status map_items(tpl_render *r, const tpl_map *m, int view, const tpl_value **items,
                           uint32_t *count)
{
    tpl_value *list, *pairs = NULL;
    TT_TRY(tt_tpl_new_items(r, m->count, &list));
    if (view == TPL_VIEW_ITEMS) TT_TRY(tt_tpl_new_items(r, (size_t)m->count * 2, &pairs));
    for (uint32_t i = 0; i < m->count; i++) {
        if (view == TPL_VIEW_ITEMS) {
            pairs[2 * i] = m->entries[i].key;
            pairs[2 * i + 1] = m->entries[i].value;
            list[i] = tpl_tuple(pairs + 2 * i, 2);
        } else {
            list[i] = view == TPL_VIEW_KEYS ? m->entries[i].key : m->entries[i].value;
        }
    }
    *items = list;
    *count = m->count;
    return TT_OK;
}

static tt_status range_items(tpl_render *r, const tpl_range *range, const tpl_value **items, uint32_t *count)
{
    tpl_value *list;
    TT_TRY(tt_tpl_new_items(r, (size_t)range->count, &list));
    for (int64_t i = 0; i < range->count; i++) list[i] = tpl_int(range->start + i * range->step);
    *items = list;
    *count = (uint32_t)range->count;
    return TT_OK;
}

tt_status tt_tpl_items(tpl_render *r, const tpl_value *v, const tpl_value **items, uint32_t *count)
{
    *items = NULL;
    *count = 0;
    switch ((tpl_kind)v->kind) {
    case TPL_UNDEFINED:
        return TT_OK;
    case TPL_STRING:
        return string_items(r, v, items, count);
    case TPL_LIST:
    case TPL_TUPLE:
        *items = v->as.items;
        *count = v->len;
        return TT_OK;
    case TPL_MAP:
        return map_items(r, v->as.map, TPL_VIEW_KEYS, items, count);
    case TPL_VIEW:
        return map_items(r, v->as.map, v->aux, items, count);
    case TPL_RANGE:
        return range_items(r, v->as.range, items, count);
    case TPL_ITERATOR:
        *items = v->as.iterator->items + v->as.iterator->next;
        *count = v->as.iterator->count - v->as.iterator->next;
        v->as.iterator->next = v->as.iterator->count;
        return TT_OK;
    default:
        return tt_tpl_error("'%s' object is not iterable", tt_tpl_type_name(v));
    }
}

/* --- equality and order ------------------------------------------------------------------------------- */

static tt_status equal_items(tpl_render *r, const tpl_value *a, const tpl_value *b, uint32_t n, bool *out)
{
    *out = true;
    for (uint32_t i = 0; i < n && *out; i++) TT_TRY(tt_tpl_equal(r, &a[i], &b[i], out));
    return TT_OK;
}

static tt_status equal_maps(tpl_render *r, const tpl_map *a, const tpl_map *b, bool *out)
{
    *out = a->count == b->count;
    for (uint32_t i = 0; i < a->count && *out; i++) {
        const tpl_value *other;
        TT_TRY(tt_tpl_map_find(r, b, &a->entries[i].key, &other));
        *out = other != NULL;
        if (other) TT_TRY(tt_tpl_equal(r, &a->entries[i].value, other, out));
    }
    return TT_OK;
}

static bool equal_ranges(const tpl_range *a, const tpl_range *b)
{
    if (a->count != b->count) return false;
    return a->count == 0 || (a->start == b->start && (a->count == 1 || a->step == b->step));
}

static tt_status equal_same_kind(tpl_render *r, const tpl_value *a, const tpl_value *b, bool *out)
{
    *out = false;
    switch ((tpl_kind)a->kind) {
    case TPL_UNDEFINED:
    case TPL_NONE:
        *out = true;
        return TT_OK;
    case TPL_STRING:
        *out = a->len == b->len && (a->len == 0 || memcmp(a->as.text, b->as.text, a->len) == 0);
        return tt_tpl_charge(r, *out ? a->len / 32 : 0);
    case TPL_LIST:
    case TPL_TUPLE:
        if (a->len == b->len) TT_TRY(equal_items(r, a->as.items, b->as.items, a->len, out));
        return TT_OK;
    case TPL_MAP:
        return equal_maps(r, a->as.map, b->as.map, out);
    case TPL_RANGE:
        *out = equal_ranges(a->as.range, b->as.range);
        return TT_OK;
    case TPL_FUNCTION:
        *out = a->as.function->builtin == b->as.function->builtin;
        return TT_OK;
    default:
        *out = a->as.map == b->as.map;
        return TT_OK; /* one object or another */
    }
}

tt_status tt_tpl_equal(tpl_render *r, const tpl_value *a, const tpl_value *b, bool *out)
{
    TT_TRY(tt_tpl_enter(r));
    if (tt_tpl_is_number(a) && tt_tpl_is_number(b))
        *out = tt_tpl_compare_numbers(a, b) == 0;
    else if (a->kind != b->kind)
        *out = false;
    else
        TT_TRY(equal_same_kind(r, a, b, out));
    tt_tpl_leave(r);
    return TT_OK;
}

static tt_status less_items(tpl_render *r, const tpl_value *a, const tpl_value *b, const char *op, bool *out)
{
    for (uint32_t i = 0; i < a->len && i < b->len; i++) {
        bool equal;
        TT_TRY(tt_tpl_equal(r, &a->as.items[i], &b->as.items[i], &equal));
        if (!equal) return tt_tpl_less(r, &a->as.items[i], &b->as.items[i], op, out);
    }
    *out = a->len < b->len;
    return TT_OK;
}

tt_status tt_tpl_less(tpl_render *r, const tpl_value *a, const tpl_value *b, const char *op, bool *out)
{
    if (a->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(a);
    if (b->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(b);
    TT_TRY(tt_tpl_enter(r));
    if (tt_tpl_is_number(a) && tt_tpl_is_number(b)) {
        *out = tt_tpl_compare_numbers(a, b) == -1;
    } else if (a->kind == TPL_STRING && b->kind == TPL_STRING) {
        /* The order of code points is the order of their UTF-8 bytes. */
        uint32_t n = a->len < b->len ? a->len : b->len;
        int order = n ? memcmp(a->as.text, b->as.text, n) : 0;
        *out = order < 0 || (order == 0 && a->len < b->len);
        TT_TRY(tt_tpl_charge(r, n / 32));
    } else if (a->kind == b->kind && (a->kind == TPL_LIST || a->kind == TPL_TUPLE)) {
        TT_TRY(less_items(r, a, b, op, out));
    } else {
        return tt_tpl_error("'%s' not supported between instances of '%s' and '%s'", op, tt_tpl_type_name(a),
                            tt_tpl_type_name(b));
    }
    tt_tpl_leave(r);
    return TT_OK;
}

tt_status tt_tpl_contains(tpl_render *r, const tpl_value *container, const tpl_value *v, bool *out)
{
    const tpl_value *items, *found;
    uint32_t n;
    *out = false;
    if (container->kind == TPL_STRING) {
        if (v->kind != TPL_STRING)
            return tt_tpl_error("'in <string>' requires string as left operand, not %s", tt_tpl_type_name(v));
        *out = tt_tpl_find_text(container->as.text, container->len, v->as.text, v->len) != NULL;
        return tt_tpl_charge(r, container->len / 32);
    }
    if (container->kind == TPL_MAP) {
        TT_TRY(tt_tpl_map_find(r, container->as.map, v, &found));
        *out = found != NULL;
        return TT_OK;
    }
    if (container->kind < TPL_STRING && container->kind != TPL_UNDEFINED)
        return tt_tpl_error("argument of type '%s' is not iterable", tt_tpl_type_name(container));
    TT_TRY(tt_tpl_items(r, container, &items, &n));
    for (uint32_t i = 0; i < n && !*out; i++) TT_TRY(tt_tpl_equal(r, &items[i], v, out));
    return TT_OK;
}

/* --- slices ------------------------------------------------------------------------------------------- */

typedef struct window {
    int64_t start, step, count;
} window;

static tt_status get_bound(const tpl_value *v, int64_t fallback, int64_t *out)
{
    if (v->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(v);
    if (v->kind == TPL_NONE) {
        *out = fallback;
        return TT_OK;
    }
    if (v->kind == TPL_BIG) {
        *out = v->as.text[0] == '-' ? INT64_MIN / 2 : INT64_MAX / 2;
        return TT_OK;
    }
    TT_TRY(tt_tpl_get_int(v, "a bound of a slice", fallback, out));
    /* Far outside is far outside; this keeps the sums below from overflowing. */
    if (*out > INT64_MAX / 2) *out = INT64_MAX / 2;
    if (*out < INT64_MIN / 2) *out = INT64_MIN / 2;
    return TT_OK;
}

static int64_t clip(int64_t at, int64_t n, int64_t low, int64_t high)
{
    if (at < 0) at += n;
    return at < low ? low : at > high ? high : at;
}

static tt_status find_window(const tpl_value *bounds, int64_t n, window *w)
{
    int64_t start, stop;
    TT_TRY(get_bound(&bounds[2], 1, &w->step));
    if (w->step == 0) return tt_tpl_error("slice step cannot be zero");
    bool forward = w->step > 0;
    TT_TRY(get_bound(&bounds[0], forward ? 0 : INT64_MAX / 2, &start));
    TT_TRY(get_bound(&bounds[1], forward ? INT64_MAX / 2 : INT64_MIN / 2, &stop));
    w->start = start = forward ? clip(start, n, 0, n) : clip(start, n, -1, n - 1);
    stop = forward ? clip(stop, n, 0, n) : clip(stop, n, -1, n - 1);
    w->count = forward ? (stop > start ? (stop - start - 1) / w->step + 1 : 0)
                       : (start > stop ? (start - stop - 1) / -w->step + 1 : 0);
    return TT_OK;
}

static size_t byte_offset(const char *s, size_t len, int64_t code_points)
{
    size_t at = 0;
    while (at < len && code_points > 0) {
        at++;
        while (at < len && ((unsigned char)s[at] & 0xC0) == 0x80) at++;
        code_points--;
    }
    return at;
}

static tt_status slice_string(tpl_render *r, const tpl_value *v, const window *w, tpl_value *out)
{
    const tpl_value *chars;
    uint32_t n;
    if (w->step == 1) {
        size_t from = byte_offset(v->as.text, v->len, w->start);
        size_t len = byte_offset(v->as.text + from, v->len - from, w->count);
        *out = tpl_text(v->as.text + from, len);
        return tt_tpl_charge(r, (from + len) / 16);
    }
    size_t begin = r->length;
    TT_TRY(tt_tpl_items(r, v, &chars, &n));
    for (int64_t i = 0; i < w->count; i++) {
        const tpl_value *c = &chars[w->start + i * w->step];
        TT_TRY(tt_tpl_append(r, c->as.text, c->len));
    }
    return tt_tpl_string_end(r, begin, out);
}

static tt_status slice_range(tpl_render *r, const tpl_range *range, const window *w, tpl_value *out)
{
    void *cut;
    int64_t step;
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof *range, &cut));
    /* A step that overflows is one that no second element needs. */
    if (__builtin_mul_overflow(range->step, w->step, &step)) step = 1;
    int64_t start = w->count ? range->start + w->start * range->step : 0;
    *(tpl_range *)cut = (tpl_range){start, step, w->count};
    *out = (tpl_value){.kind = TPL_RANGE, .as.range = cut};
    return TT_OK;
}

tt_status tt_tpl_slice(tpl_render *r, const tpl_value *v, const tpl_value *bounds, tpl_value *out)
{
    window w;
    int64_t n;
    tpl_value *items;
    TT_TRY(tt_tpl_length(r, v, &n));
    TT_TRY(find_window(bounds, n, &w));
    if (v->kind == TPL_STRING) return slice_string(r, v, &w, out);
    if (v->kind == TPL_RANGE) return slice_range(r, v->as.range, &w, out);
    *out = *v;
    out->len = (uint32_t)w.count;
    if (w.step == 1) {
        out->as.items = w.count ? v->as.items + w.start : NULL;
        return TT_OK;
    }
    TT_TRY(tt_tpl_new_items(r, (size_t)w.count, &items));
    for (int64_t i = 0; i < w.count; i++) items[i] = v->as.items[w.start + i * w.step];
    out->as.items = items;
    return TT_OK;
}
