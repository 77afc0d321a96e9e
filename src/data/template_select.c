/* template_select.c - filters that look into the items of a sequence: map, select and their kin, sort,
 * unique, min, max, sum, groupby, dictsort. The sort is a stable merge sort whose comparison can fail. */
#include "data/template_impl.h"

#include <string.h>

#define FILTER(name) static TPL_BUILTIN(name)

static bool given(const tpl_value *v)
{
    return v->kind != TPL_ABSENT && v->kind != TPL_NONE;
}

/* --- paths -------------------------------------------------------------------------------------------- */

static tt_status step_into(tpl_render *r, const tpl_value *key, const tpl_value *fallback, tpl_value *v)
{
    TT_TRY(tt_tpl_item(r, v, key, v));
    if (v->kind == TPL_UNDEFINED && fallback) *v = *fallback;
    return TT_OK;
}

tt_status tt_tpl_path(tpl_render *r, const tpl_value *item, const tpl_value *path, const tpl_value *fallback,
                      tpl_value *out)
{
    tpl_value v = *item;
    if (path->kind != TPL_STRING) {
        TT_TRY(step_into(r, path, fallback, &v));
        *out = v;
        return TT_OK;
    }
    for (size_t at = 0; at <= path->len;) {
        const char *part = path->as.text + at,
                   *dot = at < path->len ? memchr(part, '.', path->len - at) : NULL;
        size_t len = dot ? (size_t)(dot - part) : path->len - at;
        tpl_value key = tpl_text(part, len);
        if (len && len < 10 && strspn(part, "0123456789") >= len) key = tt_tpl_decimal(part, len);
        TT_TRY(step_into(r, &key, fallback, &v));
        TT_TRY(tt_tpl_charge(r, 1));
        at += len + 1;
    }
    *out = v;
    return TT_OK;
}

/* --- map, select -------------------------------------------------------------------------------------- */

static const tpl_value *named(const tpl_args *args, const char *name)
{
    for (int i = 0; i < args->named; i++)
        if (tt_tpl_is_text(&args->names[i], name)) return &args->named_values[i];
    return NULL;
}

/* The arguments behind the first `skip` ones. */
static tpl_args behind(const tpl_args *all, int skip)
{
    tpl_args rest = *all;
    rest.count -= skip;
    rest.values += skip;
    return rest;
}

static tt_status find_by_name(const tpl_value *name, bool is_test, const tpl_builtin **out)
{
    TT_TRY(tt_tpl_get_text(name, "the name of a filter or test"));
    *out =
        is_test ? tt_tpl_find_test(name->as.text, name->len) : tt_tpl_find_filter(name->as.text, name->len);
    if (*out) return TT_OK;
    return tt_tpl_error("no %s named '%.*s'", is_test ? "test" : "filter",
                        (int)(name->len < 60 ? name->len : 60), name->as.text);
}

FILTER(f_map)
{
    const tpl_value *items, *path = all->count ? NULL : named(all, "attribute"),
                            *fallback = named(all, "default");
    const tpl_builtin *filter = NULL;
    tpl_args rest = {0};
    tpl_value *mapped;
    uint32_t n;
    if (!tt_tpl_truth(self)) return tt_tpl_iterator(r, NULL, 0, out); /* none too */
    if (path && all->named > 1 + (fallback != NULL))
        return tt_tpl_error("map: with an attribute, only a default may be given");
    if (!path) {
        if (all->count == 0) return tt_tpl_error("map needs the name of a filter or attribute=...");
        TT_TRY(find_by_name(&all->values[0], false, &filter));
        rest = behind(all, 1);
    }
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    TT_TRY(tt_tpl_new_items(r, n, &mapped));
    for (uint32_t i = 0; i < n; i++) {
        TT_TRY(tt_tpl_charge(r, 1));
        if (path)
            TT_TRY(tt_tpl_path(r, &items[i], path, fallback && fallback->kind != TPL_NONE ? fallback : NULL,
                               &mapped[i]));
        else
            TT_TRY(tt_tpl_call_builtin(r, filter, &items[i], &rest, &mapped[i]));
    }
    return tt_tpl_iterator(r, mapped, n, out);
}

/* by_path: the first argument is an attribute; then the name of a test and its arguments, or nothing for truth. */
static tt_status choose(tpl_render *r, const tpl_value *self, const tpl_args *all, bool by_path, bool keep,
                        tpl_value *out)
{
    const tpl_value *items;
    const tpl_builtin *test = NULL;
    tpl_value *kept;
    uint32_t n, count = 0;
    if (!tt_tpl_truth(self)) return tt_tpl_iterator(r, NULL, 0, out);
    if (by_path && all->count == 0)
        return tt_tpl_error("selectattr and rejectattr need the name of an attribute");
    tpl_args rest = behind(all, by_path);
    if (rest.count) {
        TT_TRY(find_by_name(&rest.values[0], true, &test));
        rest = behind(&rest, 1);
    }
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    TT_TRY(tt_tpl_new_items(r, n, &kept));
    for (uint32_t i = 0; i < n; i++) {
        tpl_value v = items[i], verdict;
        TT_TRY(tt_tpl_charge(r, 1));
        if (by_path) TT_TRY(tt_tpl_path(r, &items[i], &all->values[0], NULL, &v));
        verdict = v;
        if (test) TT_TRY(tt_tpl_call_builtin(r, test, &v, &rest, &verdict));
        if (tt_tpl_truth(&verdict) == keep) kept[count++] = items[i];
    }
    return tt_tpl_iterator(r, kept, count, out);
}
FILTER(f_select)
{
    return choose(r, self, all, false, true, out);
}
FILTER(f_reject)
{
    return choose(r, self, all, false, false, out);
}
FILTER(f_selectattr)
{
    return choose(r, self, all, true, true, out);
}
FILTER(f_rejectattr)
{
    return choose(r, self, all, true, false, out);
}

/* --- order -------------------------------------------------------------------------------------------- */

typedef struct keyed {
    tpl_value key, item;
} keyed;

/* What is compared: the item or its attribute, strings in lower case unless their case matters. */
static tt_status sort_key(tpl_render *r, const tpl_value *item, const tpl_value *path, bool case_matters,
                          tpl_value *out)
{
    *out = *item;
    if (given(path)) TT_TRY(tt_tpl_path(r, item, path, NULL, out));
    if (out->kind != TPL_STRING || case_matters) return TT_OK;
    size_t begin = r->length;
    TT_TRY(tt_tpl_append_case(r, out->as.text, out->len, TPL_LOWER));
    return tt_tpl_string_end(r, begin, out);
}

static tt_status merge(tpl_render *r, keyed *items, keyed *spare, size_t n, bool descending)
{
    if (n < 2) return TT_OK;
    size_t half = n / 2, i = 0, k = half;
    TT_TRY(merge(r, items, spare, half, descending));
    TT_TRY(merge(r, items + half, spare, n - half, descending));
    memcpy(spare, items, n * sizeof *items);
    for (size_t to = 0; to < n; to++) {
        bool right = i == half;
        /* Undefined keys are equal to each other; anything else has no order with them. */
        if (i < half && k < n && (spare[i].key.kind != TPL_UNDEFINED || spare[k].key.kind != TPL_UNDEFINED)) {
            const tpl_value *x = &spare[k].key, *y = &spare[i].key;
            TT_TRY(tt_tpl_less(r, descending ? y : x, descending ? x : y, "<", &right));
        }
        items[to] = right ? spare[k++] : spare[i++];
    }
    return TT_OK;
}

static tt_status sort_items(tpl_render *r, const tpl_value *self, const tpl_value *path, bool case_matters,
                            bool descending, keyed **out, uint32_t *n)
{
    const tpl_value *items;
    void *array, *spare;
    TT_TRY(tt_tpl_items(r, self, &items, n));
    TT_TRY(tt_tpl_take(&r->pool, *n, sizeof(keyed), &array));
    TT_TRY(tt_tpl_take(&r->pool, *n, sizeof(keyed), &spare));
    *out = array;
    for (uint32_t i = 0; i < *n; i++) {
        (*out)[i].item = items[i];
        TT_TRY(sort_key(r, &items[i], path, case_matters, &(*out)[i].key));
    }
    return merge(r, *out, spare, *n, descending);
}

static tt_status item_list(tpl_render *r, const keyed *sorted, uint32_t n, tpl_value *out)
{
    tpl_value *items;
    TT_TRY(tt_tpl_new_items(r, n, &items));
    for (uint32_t i = 0; i < n; i++) items[i] = sorted[i].item;
    *out = tpl_list(items, n);
    return TT_OK;
}

FILTER(f_sort)
{
    keyed *sorted;
    uint32_t n;
    if (a[2].kind == TPL_STRING && a[2].len && memchr(a[2].as.text, ',', a[2].len))
        return tt_tpl_error("sort by several attributes is not supported");
    TT_TRY(sort_items(r, self, &a[2], tt_tpl_truth(&a[1]), tt_tpl_truth(&a[0]), &sorted, &n));
    return item_list(r, sorted, n, out);
}

FILTER(f_dictsort)
{
    keyed *sorted;
    uint32_t n;
    bool by_key = a[1].kind == TPL_ABSENT || tt_tpl_is_text(&a[1], "key");
    if (!by_key && !tt_tpl_is_text(&a[1], "value"))
        return tt_tpl_error("dictsort: by must be 'key' or 'value'");
    if (self->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(self);
    if (self->kind != TPL_MAP) return tt_tpl_error("dictsort: '%s' is no mapping", tt_tpl_type_name(self));
    const tpl_value view = {.kind = TPL_VIEW, .aux = TPL_VIEW_ITEMS, .as.map = self->as.map};
    const tpl_value position = tpl_int(!by_key);
    TT_TRY(sort_items(r, &view, &position, tt_tpl_truth(&a[0]), tt_tpl_truth(&a[2]), &sorted, &n));
    return item_list(r, sorted, n, out);
}

FILTER(f_unique)
{
    const tpl_value *items, *found, seen = tpl_bool(true);
    tpl_value *kept, known, key;
    uint32_t n, count = 0;
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    TT_TRY(tt_tpl_new_items(r, n, &kept));
    TT_TRY(tt_tpl_map_create(r, 0, &known));
    for (uint32_t i = 0; i < n; i++) {
        TT_TRY(sort_key(r, &items[i], &a[1], tt_tpl_truth(&a[0]), &key));
        TT_TRY(tt_tpl_map_find(r, known.as.map, &key, &found));
        if (found) continue;
        TT_TRY(tt_tpl_map_put(r, known.as.map, &key, &seen));
        kept[count++] = items[i];
    }
    return tt_tpl_iterator(r, kept, count, out);
}

static tt_status extreme(tpl_render *r, const tpl_value *self, const tpl_value *a, bool largest,
                         tpl_value *out)
{
    const tpl_value *items;
    tpl_value best, key;
    uint32_t n;
    *out = (tpl_value){.kind = TPL_UNDEFINED, .aux = TPL_NO_REASON};
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    for (uint32_t i = 0; i < n; i++) {
        bool better = i == 0;
        TT_TRY(sort_key(r, &items[i], &a[1], tt_tpl_truth(&a[0]), &key));
        if (i)
            TT_TRY(
                tt_tpl_less(r, largest ? &best : &key, largest ? &key : &best, largest ? ">" : "<", &better));
        if (!better) continue;
        best = key;
        *out = items[i];
    }
    return TT_OK;
}
FILTER(f_min)
{
    return extreme(r, self, a, false, out);
}
FILTER(f_max)
{
    return extreme(r, self, a, true, out);
}

FILTER(f_sum)
{
    const tpl_value *items;
    tpl_value item;
    uint32_t n;
    *out = a[1].kind == TPL_ABSENT ? tpl_int(0) : a[1];
    TT_TRY(tt_tpl_items(r, self, &items, &n));
    for (uint32_t i = 0; i < n; i++) {
        TT_TRY(tt_tpl_charge(r, 1));
        item = items[i];
        if (given(&a[0])) TT_TRY(tt_tpl_path(r, &items[i], &a[0], NULL, &item));
        TT_TRY(tt_tpl_arithmetic(r, '+', out, &item, out));
    }
    return TT_OK;
}

/* Lists of (value, items that have it), ordered by value. */
FILTER(f_groupby)
{
    keyed *sorted;
    tpl_value *groups, *members, *pair;
    uint32_t n, count = 0;
    TT_TRY(sort_items(r, self, &a[0], tt_tpl_truth(&a[2]), false, &sorted, &n));
    TT_TRY(tt_tpl_new_items(r, n, &groups));
    for (uint32_t from = 0, to; from < n; from = to) {
        bool same = true;
        for (to = from + 1; to < n; to++) {
            TT_TRY(tt_tpl_equal(r, &sorted[from].key, &sorted[to].key, &same));
            if (!same) break;
        }
        TT_TRY(tt_tpl_new_items(r, to - from, &members));
        TT_TRY(tt_tpl_new_items(r, 2, &pair));
        for (uint32_t i = from; i < to; i++) members[i - from] = sorted[i].item;
        TT_TRY(tt_tpl_path(r, &sorted[from].item, &a[0], a[1].kind == TPL_ABSENT ? NULL : &a[1], &pair[0]));
        pair[1] = tpl_list(members, to - from);
        groups[count++] = tpl_tuple(pair, 2);
    }
    *out = tpl_list(groups, count);
    return TT_OK;
}

const tpl_builtin tt_tpl_select_filters[] = {{"map", f_map, NULL, 0},
                                             {"select", f_select, NULL, 0},
                                             {"reject", f_reject, NULL, 0},
                                             {"selectattr", f_selectattr, NULL, 0},
                                             {"rejectattr", f_rejectattr, NULL, 0},
                                             {"sort", f_sort, "reverse case_sensitive attribute", 0},
                                             {"dictsort", f_dictsort, "case_sensitive by reverse", 0},
                                             {"unique", f_unique, "case_sensitive attribute", 0},
                                             {"min", f_min, "case_sensitive attribute", 0},
                                             {"max", f_max, "case_sensitive attribute", 0},
                                             {"sum", f_sum, "attribute start", 0},
                                             {"groupby", f_groupby, "attribute default case_sensitive", 1},
                                             {0}};
