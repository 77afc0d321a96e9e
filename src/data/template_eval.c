/* template_eval.c - evaluates expressions; names, attributes, subscripts, calls.
 *
 * An evaluation either succeeds or ends the rendering, so r->depth need not be restored on failure.
 * Scopes: a set creates or changes the name in the innermost scope, a read walks outwards; then come the
 * variables of the caller and the built-in globals. */
#include "data/template_impl.h"

#include <string.h>

/* --- names -------------------------------------------------------------------------------------------- */

static tpl_binding *find_binding(tpl_env *env, int atom)
{
    for (int i = 0; i < env->count; i++)
        if (env->bindings[i].atom == atom) return &env->bindings[i];
    return NULL;
}

tt_status tt_tpl_bind(tpl_render *r, tpl_env *env, int atom, const tpl_value *v)
{
    tpl_binding *b = find_binding(env, atom);
    if (b) {
        b->value = *v;
        return TT_OK;
    }
    if (env->count == env->capacity) {
        void *grown;
        int capacity = env->capacity ? 2 * env->capacity : 4;
        TT_TRY(tt_tpl_take(&r->pool, (size_t)capacity, sizeof *b, &grown));
        if (env->count) memcpy(grown, env->bindings, (size_t)env->count * sizeof *b);
        env->bindings = grown;
        env->capacity = capacity;
    }
    env->bindings[env->count++] = (tpl_binding){atom, *v};
    return TT_OK;
}

/* A variable of the caller or a built-in, made a value when it is first asked for. */
static tt_status find_global(tpl_render *r, int atom, tpl_value *out)
{
    const tpl_value *name = &r->template->atoms[atom];
    const json_t *j = json_object_getn(r->variables, name->as.text, name->len);
    const tpl_builtin *b = tt_tpl_find_global(name->as.text, name->len);
    if (j) return tt_tpl_from_json(r, j, out);
    *out = (tpl_value){.kind = TPL_UNDEFINED, .aux = TPL_NO_NAME, .len = name->len, .as.text = name->as.text};
    if (b) {
        void *f;
        TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_function), &f));
        ((tpl_function *)f)->builtin = b;
        *out = (tpl_value){.kind = TPL_FUNCTION, .as.function = f};
    }
    return TT_OK;
}

tt_status tt_tpl_lookup(tpl_render *r, const tpl_env *env, int atom, tpl_value *out)
{
    for (; env; env = env->parent) {
        TT_TRY(tt_tpl_charge(r, (size_t)env->count / 16));
        const tpl_binding *b = find_binding((tpl_env *)env, atom);
        if (!b) continue;
        *out = b->value;
        return TT_OK;
    }
    tpl_value *global = &r->globals[atom];
    if (global->kind == TPL_ABSENT) TT_TRY(find_global(r, atom, global));
    *out = *global;
    return TT_OK;
}

/* --- attributes and subscripts ------------------------------------------------------------------------ */

static tpl_value no_attribute(const tpl_value *object, const tpl_value *name)
{
    if (name->kind != TPL_STRING)
        return (tpl_value){.kind = TPL_UNDEFINED, .aux = TPL_NO_ELEMENT, .extra = object->kind};
    return (tpl_value){.kind = TPL_UNDEFINED,
                       .aux = TPL_NO_ATTRIBUTE,
                       .extra = object->kind,
                       .len = name->len,
                       .as.text = name->as.text};
}

static tt_status string_at(tpl_render *r, const tpl_value *s, int64_t at, bool *found, tpl_value *out)
{
    int64_t n;
    TT_TRY(tt_tpl_length(r, s, &n));
    if (at < 0) at += n;
    *found = at >= 0 && at < n;
    if (!*found) return TT_OK;
    tpl_value bounds[3] = {tpl_int(at), tpl_int(at + 1), tpl_none()};
    return tt_tpl_slice(r, s, bounds, out);
}

/* object[key] as Python has it; *found false for KeyError, IndexError and TypeError. */
static tt_status subscript(tpl_render *r, const tpl_value *object, const tpl_value *key, bool *found,
                           tpl_value *out)
{
    const tpl_value *value;
    bool is_index = key->kind == TPL_INT || key->kind == TPL_BOOL;
    int64_t at = key->kind == TPL_INT ? key->as.integer : is_index && key->as.boolean;
    *found = false;
    switch ((tpl_kind)object->kind) {
    case TPL_MAP:
        if (!tt_tpl_hashable(key)) return TT_OK;
        TT_TRY(tt_tpl_map_find(r, object->as.map, key, &value));
        *found = value != NULL;
        if (value) *out = *value;
        return TT_OK;
    case TPL_LIST:
    case TPL_TUPLE:
        if (is_index && at < 0) at += object->len;
        *found = is_index && at >= 0 && at < object->len;
        if (*found) *out = object->as.items[at];
        return TT_OK;
    case TPL_STRING:
        return is_index ? string_at(r, object, at, found, out) : TT_OK;
    case TPL_RANGE:
        if (is_index && at < 0) at += object->as.range->count;
        *found = is_index && at >= 0 && at < object->as.range->count;
        if (*found) *out = tpl_int(object->as.range->start + at * object->as.range->step);
        return TT_OK;
    default:
        return TT_OK;
    }
}

tt_status tt_tpl_item(tpl_render *r, const tpl_value *object, const tpl_value *key, tpl_value *out)
{
    bool found = false;
    if (object->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(object);
    if (key->kind == TPL_SLICE) {
        if (object->kind == TPL_STRING || object->kind == TPL_LIST || object->kind == TPL_TUPLE ||
            object->kind == TPL_RANGE)
            return tt_tpl_slice(r, object, key->as.items, out);
        return tt_tpl_error("'%s' object cannot be sliced", tt_tpl_type_name(object));
    } else {
        TT_TRY(subscript(r, object, key, &found, out));
    }
    if (!found && key->kind == TPL_STRING) TT_TRY(tt_tpl_method(r, object, key, &found, out));
    if (!found) *out = no_attribute(object, key);
    return TT_OK;
}

tt_status tt_tpl_attribute(tpl_render *r, const tpl_value *object, const tpl_value *name, tpl_value *out)
{
    bool found;
    if (object->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(object);
    TT_TRY(tt_tpl_method(r, object, name, &found, out));
    if (!found) TT_TRY(subscript(r, object, name, &found, out));
    if (!found) *out = no_attribute(object, name);
    return TT_OK;
}

/* --- calls -------------------------------------------------------------------------------------------- */

/* The position of `name` in "a b c", or -1. */
static int param_index(const char *params, const tpl_value *name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, " ");
        if (n == name->len && memcmp(params, name->as.text, n) == 0) return i;
        params += n;
        params += *params == ' ';
    }
    return -1;
}

static int count_params(const char *params)
{
    int n = *params != '\0';
    for (; *params; params++) n += *params == ' ';
    return n;
}

static tt_status bind_params(const tpl_builtin *b, const tpl_args *args, tpl_value *values)
{
    int n = count_params(b->params);
    if (args->count > n)
        return tt_tpl_error("%s takes at most %d argument%s, %d given", b->name, n, n == 1 ? "" : "s",
                            args->count);
    for (int i = 0; i < args->count; i++) values[i] = args->values[i];
    for (int i = 0; i < args->named; i++) {
        const tpl_value *name = &args->names[i];
        int at = param_index(b->params, name);
        if (at < 0)
            return tt_tpl_error("%s has no argument named '%.*s'", b->name, (int)name->len, name->as.text);
        if (values[at].kind != TPL_ABSENT)
            return tt_tpl_error("%s got two values for the argument '%.*s'", b->name, (int)name->len,
                                name->as.text);
        values[at] = args->named_values[i];
    }
    for (int i = 0; i < b->required; i++)
        if (values[i].kind == TPL_ABSENT)
            return tt_tpl_error("%s: required argument %d is missing", b->name, i + 1);
    return TT_OK;
}

tt_status tt_tpl_call_builtin(tpl_render *r, const tpl_builtin *b, const tpl_value *self,
                              const tpl_args *args, tpl_value *out)
{
    tpl_value values[TPL_MAX_PARAMS] = {{0}};
    if (b->params) TT_TRY(bind_params(b, args, values));
    return b->run(r, self, values, args, out);
}

tt_status tt_tpl_call_value(tpl_render *r, const tpl_value *callee, const tpl_args *args, tpl_value *out)
{
    switch ((tpl_kind)callee->kind) {
    case TPL_FUNCTION:
        return tt_tpl_call_builtin(r, callee->as.function->builtin, &callee->as.function->self, args, out);
    case TPL_MACRO:
        return tt_tpl_call_macro(r, callee->as.macro, args, out);
    case TPL_LOOP:
        return tt_tpl_call_loop(r, callee->as.loop, args, out);
    case TPL_UNDEFINED:
        return tt_tpl_undefined_error(callee);
    default:
        return tt_tpl_error("'%s' object is not callable", tt_tpl_type_name(callee));
    }
}

static tt_status eval_list(tpl_render *r, tpl_env *env, tpl_node *const *nodes, int count,
                           const tpl_value **out)
{
    void *values;
    *out = NULL;
    if (count == 0) return TT_OK;
    TT_TRY(tt_tpl_take(&r->pool, (size_t)count, sizeof(tpl_value), &values));
    for (int i = 0; i < count; i++) TT_TRY(tt_tpl_eval(r, env, nodes[i], (tpl_value *)values + i));
    *out = values;
    return TT_OK;
}

static tt_status eval_args(tpl_render *r, tpl_env *env, const tpl_call_args *from, tpl_args *to)
{
    *to = (tpl_args){.count = from->count, .named = from->named, .names = from->names};
    TT_TRY(eval_list(r, env, from->values, from->count, &to->values));
    return eval_list(r, env, from->named_values, from->named, &to->named_values);
}

static tt_status eval_call(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    tpl_value callee;
    tpl_args args;
    TT_TRY(tt_tpl_eval(r, env, n->one, &callee));
    TT_TRY(eval_args(r, env, &n->as.call.args, &args));
    r->line = n->line;
    return tt_tpl_call_value(r, &callee, &args, out);
}

static tt_status unknown(const tpl_node *n, const char *kind)
{
    return tt_tpl_error("no %s named '%.*s'", kind, (int)n->as.call.name.len, n->as.call.name.as.text);
}

/* A chain of filters applied to `subject`, which stands in for the missing start of the chain. */
tt_status tt_tpl_eval_filter(tpl_render *r, tpl_env *env, const tpl_node *n, const tpl_value *subject,
                             tpl_value *out)
{
    tpl_value self;
    tpl_args args;
    TT_TRY(tt_tpl_enter(r));
    if (n->kind == TPL_N_FILTER && (n->one || subject)) {
        if (n->one)
            TT_TRY(tt_tpl_eval_filter(r, env, n->one, subject, &self));
        else
            self = *subject;
        if (!n->as.call.builtin) return unknown(n, "filter");
        TT_TRY(eval_args(r, env, &n->as.call.args, &args));
        r->line = n->line;
        TT_TRY(tt_tpl_call_builtin(r, n->as.call.builtin, &self, &args, out));
    } else {
        TT_TRY(tt_tpl_eval(r, env, n, out));
    }
    tt_tpl_leave(r);
    return TT_OK;
}

static tt_status eval_test(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    tpl_value self;
    tpl_args args;
    TT_TRY(tt_tpl_eval(r, env, n->one, &self));
    if (!n->as.call.builtin) return unknown(n, "test");
    TT_TRY(eval_args(r, env, &n->as.call.args, &args));
    r->line = n->line;
    TT_TRY(tt_tpl_call_builtin(r, n->as.call.builtin, &self, &args, out));
    *out = tpl_bool(tt_tpl_truth(out) != (n->op == 1));
    return TT_OK;
}

/* --- operators ---------------------------------------------------------------------------------------- */

static tt_status compare(tpl_render *r, int op, const tpl_value *a, const tpl_value *b, bool *out)
{
    bool less, equal = false;
    switch (op) {
    case '=':
        return tt_tpl_equal(r, a, b, out);
    case '!':
        TT_TRY(tt_tpl_equal(r, a, b, &equal));
        *out = !equal;
        return TT_OK;
    case '<':
        return tt_tpl_less(r, a, b, "<", out);
    case '>':
        return tt_tpl_less(r, b, a, ">", out);
    case 'i':
        return tt_tpl_contains(r, b, a, out);
    case 'n':
        TT_TRY(tt_tpl_contains(r, b, a, &equal));
        *out = !equal;
        return TT_OK;
    default:
        break;
    }
    const tpl_value *low = op == 'l' ? a : b, *high = op == 'l' ? b : a;
    TT_TRY(tt_tpl_less(r, low, high, op == 'l' ? "<=" : ">=", &less));
    if (!less) TT_TRY(tt_tpl_equal(r, a, b, &equal));
    *out = less || equal;
    return TT_OK;
}

static tt_status eval_compare(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    tpl_value left, right;
    bool holds = true;
    TT_TRY(tt_tpl_eval(r, env, n->as.list.items[0], &left));
    for (int i = 1; i < n->as.list.count && holds; i++) {
        TT_TRY(tt_tpl_eval(r, env, n->as.list.items[i], &right));
        r->line = n->line;
        TT_TRY(compare(r, n->as.list.ops[i - 1], &left, &right, &holds));
        left = right;
    }
    *out = tpl_bool(holds);
    return TT_OK;
}

static tt_status eval_binary(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    tpl_value a, b;
    TT_TRY(tt_tpl_eval(r, env, n->one, &a));
    TT_TRY(tt_tpl_eval(r, env, n->two, &b));
    r->line = n->line;
    return tt_tpl_arithmetic(r, n->op, &a, &b, out);
}

static tt_status eval_sign(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    tpl_value v;
    TT_TRY(tt_tpl_eval(r, env, n->one, &v));
    if (v.kind == TPL_UNDEFINED) return tt_tpl_undefined_error(&v);
    if (!tt_tpl_is_number(&v))
        return tt_tpl_error("bad operand type for unary %c: '%s'", n->kind == TPL_N_NEGATE ? '-' : '+',
                            tt_tpl_type_name(&v));
    if (n->kind == TPL_N_NEGATE) return tt_tpl_negate(r, &v, out);
    *out = v.kind == TPL_BOOL ? tpl_int(v.as.boolean) : v;
    return TT_OK;
}

static tt_status eval_concat(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    const tpl_value *parts;
    TT_TRY(eval_list(r, env, n->as.list.items, n->as.list.count, &parts));
    size_t begin = r->length;
    for (int i = 0; i < n->as.list.count; i++) TT_TRY(tt_tpl_print(r, &parts[i]));
    return tt_tpl_string_end(r, begin, out);
}

static tt_status eval_dict(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    TT_TRY(tt_tpl_map_create(r, (size_t)n->as.list.count / 2, out));
    for (int i = 0; i < n->as.list.count; i += 2) {
        tpl_value key, value;
        TT_TRY(tt_tpl_eval(r, env, n->as.list.items[i], &key));
        TT_TRY(tt_tpl_eval(r, env, n->as.list.items[i + 1], &value));
        TT_TRY(tt_tpl_map_put(r, out->as.map, &key, &value));
    }
    return TT_OK;
}

static tt_status eval_slice(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    const tpl_node *parts[3] = {n->one, n->two, n->three};
    tpl_value *bounds;
    TT_TRY(tt_tpl_new_items(r, 3, &bounds));
    for (int i = 0; i < 3; i++) {
        bounds[i] = tpl_none();
        if (parts[i]) TT_TRY(tt_tpl_eval(r, env, parts[i], &bounds[i]));
    }
    *out = (tpl_value){.kind = TPL_SLICE, .len = 3, .as.items = bounds};
    return TT_OK;
}

static tt_status eval_condition(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    tpl_value test;
    TT_TRY(tt_tpl_eval(r, env, n->one, &test));
    if (tt_tpl_truth(&test)) return tt_tpl_eval(r, env, n->two, out);
    if (n->three) return tt_tpl_eval(r, env, n->three, out);
    *out = (tpl_value){.kind = TPL_UNDEFINED, .aux = TPL_NO_REASON};
    return TT_OK;
}

static tt_status eval_part(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    tpl_value object, key;
    TT_TRY(tt_tpl_eval(r, env, n->one, &object));
    if (n->kind == TPL_N_ITEM) TT_TRY(tt_tpl_eval(r, env, n->two, &key));
    r->line = n->line;
    return n->kind == TPL_N_ITEM ? tt_tpl_item(r, &object, &key, out)
                                 : tt_tpl_attribute(r, &object, &n->as.call.name, out);
}

static tt_status eval_logic(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    TT_TRY(tt_tpl_eval(r, env, n->one, out));
    if (n->kind == TPL_N_NOT) {
        *out = tpl_bool(!tt_tpl_truth(out));
        return TT_OK;
    }
    return tt_tpl_truth(out) == (n->kind == TPL_N_AND) ? tt_tpl_eval(r, env, n->two, out) : TT_OK;
}

static tt_status eval_any(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    const tpl_value *items;
    switch ((tpl_node_kind)n->kind) {
    case TPL_N_CONST:
        *out = n->as.constant;
        return TT_OK;
    case TPL_N_NAME:
        return tt_tpl_lookup(r, env, n->atom, out);
    case TPL_N_LIST:
    case TPL_N_TUPLE:
        TT_TRY(eval_list(r, env, n->as.list.items, n->as.list.count, &items));
        *out = n->kind == TPL_N_LIST ? tpl_list(items, (size_t)n->as.list.count)
                                     : tpl_tuple(items, (size_t)n->as.list.count);
        return TT_OK;
    case TPL_N_DICT:
        return eval_dict(r, env, n, out);
    case TPL_N_COND:
        return eval_condition(r, env, n, out);
    case TPL_N_OR:
    case TPL_N_AND:
    case TPL_N_NOT:
        return eval_logic(r, env, n, out);
    case TPL_N_COMPARE:
        return eval_compare(r, env, n, out);
    case TPL_N_BINARY:
        return eval_binary(r, env, n, out);
    case TPL_N_CONCAT:
        return eval_concat(r, env, n, out);
    case TPL_N_NEGATE:
    case TPL_N_PLUS:
        return eval_sign(r, env, n, out);
    case TPL_N_ATTR:
    case TPL_N_ITEM:
        return eval_part(r, env, n, out);
    case TPL_N_SLICE:
        return eval_slice(r, env, n, out);
    case TPL_N_CALL:
        return eval_call(r, env, n, out);
    case TPL_N_FILTER:
        return tt_tpl_eval_filter(r, env, n, NULL, out);
    case TPL_N_TEST:
        return eval_test(r, env, n, out);
    default:
        return tt_error_set(TT_EINTERNAL, "chat template: a statement stands where a value should");
    }
}

tt_status tt_tpl_eval(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    r->line = n->line;
    TT_TRY(tt_tpl_enter(r));
    TT_TRY(eval_any(r, env, n, out));
    tt_tpl_leave(r);
    return TT_OK;
}
