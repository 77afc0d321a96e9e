/* template_globals.c - functions that every template can call:
 * range, dict, namespace, raise_exception, strftime_now.
 *
 * strftime_now shows local time, which makes texts depend on the day; a variable `template_date`
 * ("2024-07-26" or "2024-07-26T13:45:00") fixes the clock. Left out: cycler, joiner, lipsum (random text). */
#include "data/template_impl.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define GLOBAL(name) static TPL_BUILTIN(name)

GLOBAL(g_range)
{
    int64_t start = 0, stop, step;
    uint64_t count = 0;
    void *range;
    TT_TRY(tt_tpl_get_int(&a[a[1].kind != TPL_ABSENT], "range: the end", 0, &stop));
    if (a[1].kind != TPL_ABSENT) TT_TRY(tt_tpl_get_int(&a[0], "range: the start", 0, &start));
    TT_TRY(tt_tpl_get_int(&a[2], "range: the step", 1, &step));
    if (step == 0) return tt_tpl_error("range: the step must not be zero");
    uint64_t size = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
    if (step > 0 && start < stop) count = ((uint64_t)stop - (uint64_t)start - 1) / size + 1;
    if (step < 0 && start > stop) count = ((uint64_t)start - (uint64_t)stop - 1) / size + 1;
    if (count > TPL_MAX_RANGE)
        return tt_tpl_error("range of %llu numbers: at most %d are allowed", (unsigned long long)count,
                            TPL_MAX_RANGE);
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_range), &range));
    *(tpl_range *)range = (tpl_range){start, step, (int64_t)count};
    *out = (tpl_value){.kind = TPL_RANGE, .as.range = range};
    return TT_OK;
}

/* The arguments of dict() and namespace(): a mapping or pairs, and named values. */
static tt_status make_map(tpl_render *r, const tpl_args *all, tpl_value *out)
{
    const tpl_value *items, *pair;
    uint32_t n, two;
    if (all->count > 1) return tt_tpl_error("dict and namespace take one mapping at most, and named values");
    TT_TRY(tt_tpl_map_create(r, (size_t)all->named, out));
    if (all->count) {
        tpl_value from = all->values[0];
        if (from.kind == TPL_UNDEFINED) return tt_tpl_undefined_error(&from);
        if (from.kind == TPL_MAP) from.kind = TPL_VIEW, from.aux = TPL_VIEW_ITEMS;
        TT_TRY(tt_tpl_items(r, &from, &items, &n));
        for (uint32_t i = 0; i < n; i++) {
            TT_TRY(tt_tpl_items(r, &items[i], &pair, &two));
            if (two != 2)
                return tt_tpl_error("dict and namespace need pairs; element %u has %u values", i, two);
            TT_TRY(tt_tpl_map_put(r, out->as.map, &pair[0], &pair[1]));
        }
    }
    for (int i = 0; i < all->named; i++)
        TT_TRY(tt_tpl_map_put(r, out->as.map, &all->names[i], &all->named_values[i]));
    return TT_OK;
}

GLOBAL(g_dict)
{
    return make_map(r, all, out);
}

GLOBAL(g_namespace)
{
    TT_TRY(make_map(r, all, out));
    for (uint32_t i = 0; i < out->as.map->count; i++) {
        const tpl_value *key = &out->as.map->entries[i].key;
        if (key->kind == TPL_STRING && key->len && key->as.text[0] == '_')
            return tt_tpl_error(
                "a namespace cannot hold '%.*s': names with an underscore in front are refused",
                (int)(key->len < 60 ? key->len : 60), key->as.text);
    }
    out->kind = TPL_NAMESPACE;
    return TT_OK;
}

GLOBAL(g_raise_exception)
{
    tpl_value text;
    TT_TRY(tt_tpl_to_text(r, &a[0], &text));
    return tt_tpl_error("%.*s", (int)(text.len < 1000 ? text.len : 1000), text.as.text);
}

/* YYYY-MM-DD, optionally followed by THH:MM:SS (or a blank for the T). */
static bool parse_date(const tpl_value *v, struct tm *out)
{
    static const char shape[] = "dddd-dd-ddTdd:dd:dd";
    int fields[6] = {0}, field = 0;
    if (v->kind != TPL_STRING || (v->len != 10 && v->len != 19)) return false;
    for (uint32_t i = 0; i < v->len; i++) {
        char c = v->as.text[i];
        if (shape[i] == 'd') {
            if (c < '0' || c > '9') return false;
            fields[field] = fields[field] * 10 + c - '0';
        } else {
            if (c != shape[i] && !(shape[i] == 'T' && c == ' ')) return false;
            field++;
        }
    }
    struct tm wanted = {.tm_year = fields[0] - 1900,
                        .tm_mon = fields[1] - 1,
                        .tm_mday = fields[2],
                        .tm_hour = fields[3],
                        .tm_min = fields[4],
                        .tm_sec = fields[5],
                        .tm_isdst = 0};
    *out = wanted;
    timegm(out); /* the day of the week and of the year; a day that does not exist is moved */
    return out->tm_mon == wanted.tm_mon && out->tm_mday == wanted.tm_mday && out->tm_hour == wanted.tm_hour &&
           out->tm_min == wanted.tm_min;
}

static tt_status now(tpl_render *r, struct tm *out)
{
    const json_t *j = json_object_get(r->variables, "template_date");
    tpl_value date;
    if (j && !json_is_null(j)) {
        TT_TRY(tt_tpl_from_json(r, j, &date));
        if (!parse_date(&date, out))
            return tt_tpl_error(
                "template_date must be a date such as \"2024-07-26\" or \"2024-07-26T13:45:00\"");
        return TT_OK;
    }
    time_t t = time(NULL);
    if (!localtime_r(&t, out)) return tt_tpl_error("strftime_now: the system gives no local time");
    return TT_OK;
}

GLOBAL(g_strftime_now)
{
    struct tm t;
    char format[256], text[1024];
    size_t begin = r->length;
    TT_TRY(tt_tpl_get_text(&a[0], "strftime_now: the format"));
    if (a[0].len >= sizeof format || (a[0].len && memchr(a[0].as.text, '\0', a[0].len)))
        return tt_tpl_error("strftime_now: the format must be shorter than %zu bytes and hold no NUL",
                            sizeof format);
    snprintf(format, sizeof format, "%.*s", (int)a[0].len, a[0].as.text);
    TT_TRY(now(r, &t));
    size_t n = strftime(text, sizeof text, format, &t);
    if (n == 0 && a[0].len)
        return tt_tpl_error("strftime_now: the format '%s' gives no text or one that is too long", format);
    TT_TRY(tt_tpl_append(r, text, n));
    return tt_tpl_string_end(r, begin, out);
}

static const tpl_builtin globals[] = {
    {"range", g_range, "start stop step", 1},      {"dict", g_dict, NULL, 0},
    {"namespace", g_namespace, NULL, 0},           {"raise_exception", g_raise_exception, "message", 1},
    {"strftime_now", g_strftime_now, "format", 1}, {0}};

const tpl_builtin *tt_tpl_find_global(const char *name, size_t len)
{
    return tt_tpl_find(globals, name, len);
}
