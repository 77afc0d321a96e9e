/* template_methods.c - attributes that kinds of values have by themselves: methods of mappings and lists
 * (those of strings: template_strings.c), the members of `loop`, namespaces and macros.
 *
 * As in the sandbox of the common library, methods that change a list or a mapping are undefined, also where
 * a mapping has a key of that name (it can be read by subscript), and so is every name of the form __x__. */
#include "data/template_impl.h"

#include <string.h>

#define METHOD(name) static TPL_BUILTIN(name)

/* --- mappings and lists ------------------------------------------------------------------------------- */

METHOD(m_get)
{
    const tpl_value *found;
    TT_TRY(tt_tpl_map_find(r, self->as.map, &a[0], &found));
    *out = found ? *found : a[1].kind == TPL_ABSENT ? tpl_none() : a[1];
    return TT_OK;
}
METHOD(m_items)
{
    *out = (tpl_value){.kind = TPL_VIEW, .aux = TPL_VIEW_ITEMS, .as.map = self->as.map};
    return TT_OK;
}
METHOD(m_keys)
{
    *out = (tpl_value){.kind = TPL_VIEW, .aux = TPL_VIEW_KEYS, .as.map = self->as.map};
    return TT_OK;
}
METHOD(m_values)
{
    *out = (tpl_value){.kind = TPL_VIEW, .aux = TPL_VIEW_VALUES, .as.map = self->as.map};
    return TT_OK;
}
METHOD(copy) /* values never change, so a copy is the same */
{
    *out = *self;
    return TT_OK;
}

METHOD(l_index)
{
    for (uint32_t i = 0; i < self->len; i++) {
        bool equal;
        TT_TRY(tt_tpl_equal(r, &self->as.items[i], &a[0], &equal));
        if (!equal) continue;
        *out = tpl_int(i);
        return TT_OK;
    }
    return tt_tpl_error("index: the value is not in the %s", tt_tpl_type_name(self));
}
METHOD(l_count)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < self->len; i++) {
        bool equal;
        TT_TRY(tt_tpl_equal(r, &self->as.items[i], &a[0], &equal));
        n += equal;
    }
    *out = tpl_int(n);
    return TT_OK;
}

/* --- loop --------------------------------------------------------------------------------------------- */

METHOD(loop_cycle)
{
    if (all->count == 0) return tt_tpl_error("loop.cycle needs at least one value");
    *out = all->values[self->as.loop->index % all->count];
    return TT_OK;
}
METHOD(loop_changed)
{
    tpl_loop *l = self->as.loop;
    tpl_value now = tpl_tuple(all->values, (size_t)all->count);
    bool same = false;
    if (l->changed.kind != TPL_ABSENT) TT_TRY(tt_tpl_equal(r, &l->changed, &now, &same));
    l->changed = now;
    *out = tpl_bool(!same);
    return TT_OK;
}

static const tpl_builtin loop_methods[] = {
    {"cycle", loop_cycle, NULL, 0}, {"changed", loop_changed, NULL, 0}, {0}};

static tt_status loop_member(tpl_render *r, tpl_loop *l, const tpl_value *name, bool *found, tpl_value *out)
{
    static const tpl_value undefined = {.kind = TPL_UNDEFINED, .aux = TPL_NO_REASON};
    if (tt_tpl_is_text(name, "index")) *out = tpl_int(l->index + 1), *found = true;
    if (tt_tpl_is_text(name, "index0")) *out = tpl_int(l->index), *found = true;
    if (tt_tpl_is_text(name, "first")) *out = tpl_bool(l->index == 0), *found = true;
    if (tt_tpl_is_text(name, "depth")) *out = tpl_int(l->depth + 1), *found = true;
    if (tt_tpl_is_text(name, "depth0")) *out = tpl_int(l->depth), *found = true;
    if (tt_tpl_is_text(name, "previtem")) *out = l->previous, *found = true;
    bool last = tt_tpl_is_text(name, "last"), next = tt_tpl_is_text(name, "nextitem");
    if (last || next) {
        TT_TRY(tt_tpl_loop_peek(r, l));
        bool ended = l->after.kind == TPL_ABSENT;
        *out = last ? tpl_bool(ended) : ended ? undefined : l->after;
        *found = true;
    }
    bool length = tt_tpl_is_text(name, "length"), revindex = tt_tpl_is_text(name, "revindex");
    if (length || revindex || tt_tpl_is_text(name, "revindex0")) {
        TT_TRY(tt_tpl_loop_length(r, l));
        *out = tpl_int(length ? l->length : l->length - l->index - !revindex);
        *found = true;
    }
    return TT_OK;
}

static tt_status macro_member(tpl_render *r, const tpl_macro *m, const tpl_value *name, bool *found,
                              tpl_value *out)
{
    const tpl_params *params = m->node->as.block.params;
    tpl_value *names;
    if (tt_tpl_is_text(name, "name")) {
        *out = m->node->kind == TPL_N_MACRO ? r->template->atoms[m->node->atom] : tpl_none();
        *found = true;
    } else if (tt_tpl_is_text(name, "arguments")) {
        TT_TRY(tt_tpl_new_items(r, (size_t)params->count, &names));
        for (int i = 0; i < params->count; i++) names[i] = r->template->atoms[params->atoms[i]];
        *out = tpl_tuple(names, (size_t)params->count);
        *found = true;
    }
    return TT_OK;
}

/* --- tables ------------------------------------------------------------------------------------------- */

static const tpl_builtin map_methods[] = {
    {"get", m_get, "key default", 1}, {"items", m_items, "", 0}, {"keys", m_keys, "", 0},
    {"values", m_values, "", 0},      {"copy", copy, "", 0},     {0}};
static const tpl_builtin list_methods[] = {
    {"index", l_index, "value", 1}, {"count", l_count, "value", 1}, {"copy", copy, "", 0}, {0}};
static const tpl_builtin tuple_methods[] = {
    {"index", l_index, "value", 1}, {"count", l_count, "value", 1}, {0}};

static const char *const map_changers[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const list_changers[] = {"append", "clear",  "pop",    "reverse", "insert",
                                            "sort",   "extend", "remove", NULL};

const tpl_builtin *tt_tpl_find(const tpl_builtin *table, const char *name, size_t len)
{
    for (; table->name; table++)
        if (strlen(table->name) == len && memcmp(table->name, name, len) == 0) return table;
    return NULL;
}

static bool refused(const tpl_value *object, const tpl_value *name)
{
    const char *const *words = object->kind == TPL_MAP    ? map_changers
                               : object->kind == TPL_LIST ? list_changers
                                                          : NULL;
    for (; words && *words; words++)
        if (tt_tpl_is_text(name, *words)) return true;
    const char *s = name->as.text;
    return name->len > 4 && s[0] == '_' && s[1] == '_' && s[name->len - 1] == '_' && s[name->len - 2] == '_';
}

static const tpl_builtin *methods_of(const tpl_value *object)
{
    switch ((tpl_kind)object->kind) {
    case TPL_STRING:
        return tt_tpl_string_methods;
    case TPL_MAP:
        return map_methods;
    case TPL_LIST:
        return list_methods;
    case TPL_TUPLE:
        return tuple_methods;
    case TPL_LOOP:
        return loop_methods;
    default:
        return NULL;
    }
}

tt_status tt_tpl_method(tpl_render *r, const tpl_value *object, const tpl_value *name, bool *found,
                        tpl_value *out)
{
    const tpl_builtin *table = methods_of(object);
    const tpl_builtin *b = table ? tt_tpl_find(table, name->as.text, name->len) : NULL;
    const tpl_value *value;
    void *f;
    *found = b != NULL;
    if (b) {
        TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_function), &f));
        *(tpl_function *)f = (tpl_function){b, *object};
        *out = (tpl_value){.kind = TPL_FUNCTION, .as.function = f};
        return TT_OK;
    }
    if (object->kind == TPL_LOOP) return loop_member(r, object->as.loop, name, found, out);
    if (object->kind == TPL_MACRO) return macro_member(r, object->as.macro, name, found, out);
    if (object->kind == TPL_NAMESPACE) {
        TT_TRY(tt_tpl_map_find(r, object->as.map, name, &value));
        *found = value != NULL;
        if (value) *out = *value;
        return TT_OK;
    }
    *found = refused(object, name);
    if (*found)
        *out = (tpl_value){.kind = TPL_UNDEFINED,
                           .aux = TPL_NO_ATTRIBUTE,
                           .extra = object->kind,
                           .len = name->len,
                           .as.text = name->as.text};
    return TT_OK;
}
