/* template_map.c - mappings in order of insertion, and values from JSON.
 *
 * Entries stand in an array; mappings of more than eight have an open-addressed index besides. Keys that are
 * equal are one key (1, 1.0 and true too): the first stays, with the last value. */
#include "data/template_impl.h"

#include <string.h>
#include <xxhash.h>

enum { SMALL = 8 };

bool tt_tpl_hashable(const tpl_value *v)
{
    if (v->kind == TPL_LIST || v->kind == TPL_MAP || v->kind == TPL_SLICE || v->kind == TPL_VIEW)
        return false;
    for (uint32_t i = 0; v->kind == TPL_TUPLE && i < v->len; i++)
        if (v->as.items[i].kind == TPL_TUPLE || !tt_tpl_hashable(&v->as.items[i])) return false;
    return true;
}

/* Equal values have equal hashes: whole floats and booleans hash as integers. */
static uint64_t hash(const tpl_value *v)
{
    uint64_t h = v->kind;
    int64_t i = 0;
    switch ((tpl_kind)v->kind) {
    case TPL_STRING:
        return XXH3_64bits(v->as.text, v->len);
    case TPL_BOOL:
        i = v->as.boolean;
        break;
    case TPL_INT:
        i = v->as.integer;
        break;
    case TPL_BIG:
        return XXH3_64bits("big", 3); /* beyond exact floats: told apart by comparison */
    case TPL_FLOAT:
        if (!(v->as.real > -9.2e18 && v->as.real < 9.2e18)) return XXH3_64bits("big", 3);
        i = (int64_t)v->as.real;
        if ((double)i != v->as.real) return XXH3_64bits(&v->as.real, sizeof v->as.real);
        break;
    case TPL_TUPLE:
        for (uint32_t k = 0; k < v->len; k++) h = h * 0x9E3779B97F4A7C15u + hash(&v->as.items[k]);
        return h;
    default:
        return h;
    }
    return XXH3_64bits(&i, sizeof i);
}

tt_status tt_tpl_map_create(tpl_render *r, size_t capacity, tpl_value *out)
{
    void *m, *entries;
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_map), &m));
    TT_TRY(tt_tpl_take(&r->pool, capacity, sizeof(tpl_entry), &entries));
    *(tpl_map *)m = (tpl_map){.entries = entries, .capacity = (uint32_t)capacity};
    *out = (tpl_value){.kind = TPL_MAP, .as.map = m};
    return TT_OK;
}

/* The position of a key, or where it would go in the index. */
static tt_status probe(tpl_render *r, const tpl_map *m, const tpl_value *key, int64_t *position,
                       uint32_t *slot)
{
    bool equal = false;
    *position = -1;
    if (!m->index) {
        for (uint32_t i = 0; i < m->count && !equal; i++) {
            TT_TRY(tt_tpl_equal(r, &m->entries[i].key, key, &equal));
            if (equal) *position = i;
        }
        return TT_OK;
    }
    for (*slot = (uint32_t)hash(key) & (m->index_size - 1); m->index[*slot];
         *slot = (*slot + 1) & (m->index_size - 1)) {
        uint32_t i = m->index[*slot] - 1;
        TT_TRY(tt_tpl_equal(r, &m->entries[i].key, key, &equal));
        if (!equal) continue;
        *position = i;
        return TT_OK;
    }
    return TT_OK;
}

tt_status tt_tpl_map_find(tpl_render *r, const tpl_map *m, const tpl_value *key, const tpl_value **out)
{
    int64_t at;
    uint32_t slot;
    if (!tt_tpl_hashable(key)) return tt_tpl_error("unhashable type: '%s'", tt_tpl_type_name(key));
    TT_TRY(probe(r, m, key, &at, &slot));
    *out = at < 0 ? NULL : &m->entries[at].value;
    return TT_OK;
}

static tt_status rebuild_index(tpl_render *r, tpl_map *m)
{
    void *index;
    uint32_t size = 32;
    while (size < 2 * m->capacity) size *= 2;
    TT_TRY(tt_tpl_take(&r->pool, size, sizeof *m->index, &index));
    m->index = index;
    m->index_size = size;
    for (uint32_t i = 0; i < m->count; i++) {
        uint32_t slot = (uint32_t)hash(&m->entries[i].key) & (size - 1);
        while (m->index[slot]) slot = (slot + 1) & (size - 1);
        m->index[slot] = i + 1;
    }
    return tt_tpl_charge(r, m->count);
}

static tt_status grow(tpl_render *r, tpl_map *m)
{
    void *entries;
    uint32_t capacity = m->capacity < 4 ? 4 : 2 * m->capacity;
    TT_TRY(tt_tpl_take(&r->pool, capacity, sizeof *m->entries, &entries));
    if (m->count) memcpy(entries, m->entries, m->count * sizeof *m->entries);
    m->entries = entries;
    m->capacity = capacity;
    return capacity > SMALL ? rebuild_index(r, m) : TT_OK;
}

tt_status tt_tpl_map_put(tpl_render *r, tpl_map *m, const tpl_value *key, const tpl_value *value)
{
    int64_t at;
    uint32_t slot = 0;
    if (!tt_tpl_hashable(key)) return tt_tpl_error("unhashable type: '%s'", tt_tpl_type_name(key));
    if (!m->index && m->capacity > SMALL) TT_TRY(rebuild_index(r, m));
    TT_TRY(probe(r, m, key, &at, &slot));
    if (at >= 0) {
        m->entries[at].value = *value;
        return TT_OK;
    }
    if (m->count == m->capacity) {
        TT_TRY(grow(r, m));
        TT_TRY(probe(r, m, key, &at, &slot));
    }
    if (m->index) m->index[slot] = m->count + 1;
    m->entries[m->count++] = (tpl_entry){*key, *value};
    return TT_OK;
}

/* --- from JSON ---------------------------------------------------------------------------------------- */

static tt_status from_array(tpl_render *r, const json_t *j, tpl_value *out)
{
    tpl_value *items;
    size_t n = json_array_size(j);
    TT_TRY(tt_tpl_new_items(r, n, &items));
    for (size_t i = 0; i < n; i++) TT_TRY(tt_tpl_from_json(r, json_array_get(j, i), &items[i]));
    *out = tpl_list(items, n);
    return TT_OK;
}

static tt_status from_object(tpl_render *r, const json_t *j, tpl_value *out)
{
    /* jansson walks in order of insertion; its iteration functions take a pointer that is not const. */
    json_t *object = (json_t *)(uintptr_t)j;
    TT_TRY(tt_tpl_map_create(r, json_object_size(j), out));
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        tpl_value key = tpl_text(json_object_iter_key(it), json_object_iter_key_len(it)), value;
        TT_TRY(tt_tpl_from_json(r, json_object_iter_value(it), &value));
        TT_TRY(tt_tpl_map_put(r, out->as.map, &key, &value));
    }
    return TT_OK;
}

tt_status tt_tpl_from_json(tpl_render *r, const json_t *j, tpl_value *out)
{
    TT_TRY(tt_tpl_enter(r));
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = tpl_none();
        break;
    case JSON_TRUE:
        *out = tpl_bool(true);
        break;
    case JSON_FALSE:
        *out = tpl_bool(false);
        break;
    case JSON_INTEGER:
        *out = tpl_int(json_integer_value(j));
        break;
    case JSON_REAL:
        *out = tpl_real(json_real_value(j));
        break;
    case JSON_STRING:
        if (json_string_length(j) > TPL_MAX_TEXT)
            return tt_tpl_error("a string of %zu bytes is longer than %d MiB", json_string_length(j),
                                TPL_MAX_TEXT >> 20);
        *out =
            tpl_text(json_string_value(j), json_string_length(j)); /* shared: JSON outlives the rendering */
        break;
    case JSON_ARRAY:
        TT_TRY(from_array(r, j, out));
        break;
    case JSON_OBJECT:
        TT_TRY(from_object(r, j, out));
        break;
    }
    tt_tpl_leave(r);
    return TT_OK;
}
