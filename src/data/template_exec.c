/* template_exec.c - runs statements: output, conditions, loops, assignments, macros, generation blocks.
 *
 * Scopes: the bodies of for, with, generation, macros and captures (set and filter blocks, call) have one of
 * their own, if has none. Every iteration starts with an empty scope; its memory is used again unless a macro
 * has seen it. A macro keeps the scope it was defined in, so its body sees that scope as it is at the time of
 * the call.
 *
 * break and continue set r->flow, and bodies stop until a loop takes it back.
 *
 * What a block captures is written to the end of the output and taken off again; r->captures says that
 * offsets in the output mean nothing then. A generation block inside a generation block adds nothing to the
 * outer span. */
#include "data/template_impl.h"

#include <stdlib.h>
#include <string.h>

static tt_status run(tpl_render *r, tpl_env *env, const tpl_node *n);

tt_status tt_tpl_run_body(tpl_render *r, tpl_env *env, const tpl_body *body)
{
    for (int i = 0; i < body->count && r->flow == TPL_FLOW_ON; i++) TT_TRY(run(r, env, body->items[i]));
    return TT_OK;
}

static tt_status run_scope(tpl_render *r, tpl_env *parent, const tpl_body *body)
{
    void *env;
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_env), &env));
    ((tpl_env *)env)->parent = parent;
    return tt_tpl_run_body(r, env, body);
}

/* The body's output as a string. */
static tt_status capture(tpl_render *r, tpl_env *parent, const tpl_body *body, tpl_value *out)
{
    size_t begin = r->length;
    r->captures++;
    TT_TRY(run_scope(r, parent, body));
    r->captures--;
    return tt_tpl_string_end(r, begin, out);
}

/* --- assignment --------------------------------------------------------------------------------------- */

static tt_status assign_field(tpl_render *r, tpl_env *env, const tpl_node *target, const tpl_value *v)
{
    tpl_value object;
    const tpl_value *name = &target->as.call.name;
    TT_TRY(tt_tpl_lookup(r, env, target->atom, &object));
    if (object.kind != TPL_NAMESPACE)
        return tt_tpl_error("cannot assign to the attribute '%.*s' of something that is no namespace",
                            (int)name->len, name->as.text);
    if (name->len && name->as.text[0] == '_')
        return tt_tpl_error("a namespace cannot hold '%.*s': names with an underscore in front are refused",
                            (int)name->len, name->as.text);
    return tt_tpl_map_put(r, object.as.map, name, v);
}

tt_status tt_tpl_assign(tpl_render *r, tpl_env *env, const tpl_node *target, const tpl_value *v)
{
    const tpl_value *items;
    uint32_t n;
    if (target->kind == TPL_N_NAME) return tt_tpl_bind(r, env, target->atom, v);
    if (target->kind == TPL_N_FIELD) return assign_field(r, env, target, v);
    TT_TRY(tt_tpl_items(r, v, &items, &n));
    if (n != (uint32_t)target->as.list.count)
        return tt_tpl_error("%u values cannot be assigned to %d names", n, target->as.list.count);
    for (uint32_t i = 0; i < n; i++) TT_TRY(tt_tpl_assign(r, env, target->as.list.items[i], &items[i]));
    return TT_OK;
}

static tt_status run_set(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    tpl_value v;
    TT_TRY(tt_tpl_eval(r, env, n->one, &v));
    return tt_tpl_assign(r, env, n->as.block.target, &v);
}

static tt_status run_set_block(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    tpl_value text;
    TT_TRY(capture(r, env, n->as.block.bodies, &text));
    if (r->flow != TPL_FLOW_ON) return TT_OK;
    if (n->one) TT_TRY(tt_tpl_eval_filter(r, env, n->one, &text, &text));
    return tt_tpl_assign(r, env, n->as.block.target, &text);
}

static tt_status run_filter_block(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    tpl_value text;
    TT_TRY(capture(r, env, n->as.block.bodies, &text));
    if (r->flow != TPL_FLOW_ON) return TT_OK;
    TT_TRY(tt_tpl_eval_filter(r, env, n->one, &text, &text));
    return tt_tpl_print(r, &text);
}

static tt_status run_with(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    void *scope;
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_env), &scope));
    for (int i = 0; i < n->as.block.num_tests; i += 2) {
        tpl_value v;
        TT_TRY(tt_tpl_eval(r, env, n->as.block.tests[i + 1], &v));
        TT_TRY(tt_tpl_assign(r, scope, n->as.block.tests[i], &v));
    }
    ((tpl_env *)scope)->parent = env;
    return tt_tpl_run_body(r, scope, n->as.block.bodies);
}

static tt_status run_if(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    for (int i = 0; i < n->as.block.num_bodies; i++) {
        tpl_value test = tpl_bool(true); /* of the else */
        if (i < n->as.block.num_tests) TT_TRY(tt_tpl_eval(r, env, n->as.block.tests[i], &test));
        if (tt_tpl_truth(&test)) return tt_tpl_run_body(r, env, &n->as.block.bodies[i]);
    }
    return TT_OK;
}

/* --- loops -------------------------------------------------------------------------------------------- */

/* The next item that passes the test; TPL_ABSENT at the end. Tests run as late as they can, so that they see
 * what the iterations before have put into namespaces. The test sees the scope around the loop and the loop's
 * names, but not `loop`. */
static tt_status next_item(tpl_render *r, tpl_loop *l, tpl_value *out)
{
    *out = (tpl_value){.kind = TPL_ABSENT};
    while (l->next < l->count) {
        const tpl_value *item = &l->items[l->next++];
        tpl_value test = tpl_bool(true);
        TT_TRY(tt_tpl_charge(r, 1));
        if (l->filtered) {
            l->test.parent = l->env;
            l->test.count = 0;
            TT_TRY(tt_tpl_assign(r, &l->test, l->node->as.block.target, item));
            TT_TRY(tt_tpl_eval(r, &l->test, l->node->two, &test));
        }
        if (!tt_tpl_truth(&test)) continue;
        *out = *item;
        return TT_OK;
    }
    return TT_OK;
}

tt_status tt_tpl_loop_peek(tpl_render *r, tpl_loop *l)
{
    if (l->peeked) return TT_OK;
    l->peeked = true;
    return next_item(r, l, &l->after);
}

/* The number of items needs all the tests that have not run yet; what passes them replaces the rest. */
tt_status tt_tpl_loop_length(tpl_render *r, tpl_loop *l)
{
    if (l->length >= 0) return TT_OK;
    if (l->filtered) {
        tpl_value *rest, item;
        uint32_t n = 0;
        TT_TRY(tt_tpl_new_items(r, l->count - l->next, &rest));
        TT_TRY(next_item(r, l, &item));
        while (item.kind != TPL_ABSENT) {
            rest[n++] = item;
            TT_TRY(next_item(r, l, &item));
        }
        l->items = rest, l->count = n, l->next = 0, l->filtered = false;
    }
    bool waiting = l->peeked && l->after.kind != TPL_ABSENT;
    l->length = l->index + 1 + waiting + (l->count - l->next);
    return TT_OK;
}

static tt_status advance(tpl_render *r, tpl_loop *l, bool *more)
{
    tpl_value item = l->after;
    if (!l->peeked) TT_TRY(next_item(r, l, &item));
    l->peeked = false;
    *more = item.kind != TPL_ABSENT;
    if (!*more) return TT_OK;
    l->previous = l->current;
    l->current = item;
    l->index++;
    return TT_OK;
}

/* The scope for the next iteration. */
static tt_status fresh_scope(tpl_render *r, tpl_env *parent, tpl_env **scope)
{
    void *env;
    if (*scope && !(*scope)->captured) {
        (*scope)->count = 0;
        return TT_OK;
    }
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof **scope, &env));
    *scope = env;
    (*scope)->parent = parent;
    return TT_OK;
}

static tt_status run_loop(tpl_render *r, tpl_env *env, const tpl_node *n, const tpl_value *over, int depth)
{
    const tpl_value undefined = {.kind = TPL_UNDEFINED, .aux = TPL_NO_REASON};
    tpl_env *scope = NULL;
    void *state;
    bool more, completed = false;
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_loop), &state));
    tpl_loop *l = state;
    *l = (tpl_loop){.node = n,
                    .env = env,
                    .filtered = n->two != NULL,
                    .index = -1,
                    .length = -1,
                    .depth = depth,
                    .current = undefined};
    TT_TRY(tt_tpl_items(r, over, &l->items, &l->count));
    const tpl_value loop = {.kind = TPL_LOOP, .as.loop = l};
    for (;;) {
        TT_TRY(advance(r, l, &more));
        if (!more) break;
        TT_TRY(fresh_scope(r, env, &scope));
        TT_TRY(tt_tpl_bind(r, scope, TPL_ATOM_LOOP, &loop));
        TT_TRY(tt_tpl_assign(r, scope, n->as.block.target, &l->current));
        TT_TRY(tt_tpl_run_body(r, scope, &n->as.block.bodies[0]));
        tpl_flow flow = r->flow;
        r->flow = TPL_FLOW_ON;
        if (flow == TPL_FLOW_BREAK) break;
        completed = completed || flow == TPL_FLOW_ON;
    }
    /* As in the common library, else also runs when no iteration reached the end of the body. */
    if (completed || n->as.block.num_bodies < 2) return TT_OK;
    return run_scope(r, env, &n->as.block.bodies[1]);
}

static tt_status run_for(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    tpl_value over;
    TT_TRY(tt_tpl_eval(r, env, n->one, &over));
    return run_loop(r, env, n, &over, 0);
}

tt_status tt_tpl_call_loop(tpl_render *r, tpl_loop *l, const tpl_args *args, tpl_value *out)
{
    if (l->node->op != 1) return tt_tpl_error("loop(...) needs a loop that is marked 'recursive'");
    if (args->count != 1 || args->named)
        return tt_tpl_error("loop(...) takes one argument, what to loop over");
    size_t begin = r->length;
    r->captures++;
    TT_TRY(tt_tpl_enter(r));
    TT_TRY(run_loop(r, l->env, l->node, &args->values[0], l->depth + 1));
    tt_tpl_leave(r);
    r->captures--;
    return tt_tpl_string_end(r, begin, out);
}

/* --- macros ------------------------------------------------------------------------------------------- */

static tt_status new_macro(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out)
{
    void *m;
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_macro), &m));
    *(tpl_macro *)m = (tpl_macro){n, env};
    for (; env && !env->captured; env = env->parent) env->captured = true;
    *out = (tpl_value){.kind = TPL_MACRO, .as.macro = m};
    return TT_OK;
}

static int named_index(const tpl_args *args, const tpl_value *name)
{
    for (int i = 0; i < args->named; i++)
        if (args->names[i].len == name->len && memcmp(args->names[i].as.text, name->as.text, name->len) == 0)
            return i;
    return -1;
}

/* Named arguments that no parameter took: into kwargs when the macro reads it, else an error. `taken` has a
 * bit for each that was used (there are 64 at most). */
static tt_status bind_rest(tpl_render *r, tpl_env *env, const tpl_macro *m, const tpl_args *args,
                           uint64_t taken)
{
    const tpl_params *params = m->node->as.block.params;
    int positional = args->count < params->count ? args->count : params->count;
    tpl_value kwargs;
    if (params->uses & TPL_USES_KWARGS) TT_TRY(tt_tpl_map_create(r, 0, &kwargs));
    for (int i = 0; i < args->named; i++) {
        const tpl_value *name = &args->names[i];
        bool is_caller = tt_tpl_is_text(name, "caller");
        if (taken >> i & 1) continue;
        if (is_caller && (params->uses & TPL_USES_CALLER))
            TT_TRY(tt_tpl_bind(r, env, TPL_ATOM_CALLER, &args->named_values[i]));
        else if (params->uses & TPL_USES_KWARGS)
            TT_TRY(tt_tpl_map_put(r, kwargs.as.map, name, &args->named_values[i]));
        else
            return tt_tpl_error("the macro takes no argument named '%.*s'", (int)name->len, name->as.text);
    }
    if (params->uses & TPL_USES_KWARGS) TT_TRY(tt_tpl_bind(r, env, TPL_ATOM_KWARGS, &kwargs));
    if (params->uses & TPL_USES_VARARGS) {
        tpl_value rest = tpl_tuple(args->count > positional ? args->values + positional : NULL,
                                   (size_t)(args->count - positional));
        return tt_tpl_bind(r, env, TPL_ATOM_VARARGS, &rest);
    }
    if (args->count > params->count)
        return tt_tpl_error("the macro takes not more than %d arguments, %d given", params->count,
                            args->count);
    return TT_OK;
}

static tt_status bind_arguments(tpl_render *r, tpl_env *env, const tpl_macro *m, const tpl_args *args)
{
    const tpl_params *params = m->node->as.block.params;
    uint64_t taken = 0;
    for (int i = 0; i < params->count; i++) {
        const tpl_value *name = &r->template->atoms[params->atoms[i]];
        int at = i < args->count ? -1 : named_index(args, name);
        tpl_value v = {
            .kind = TPL_UNDEFINED, .aux = TPL_NO_PARAMETER, .len = name->len, .as.text = name->as.text};
        if (i < args->count)
            v = args->values[i];
        else if (at >= 0)
            v = args->named_values[at], taken |= (uint64_t)1 << at;
        else if (params->defaults[i])
            TT_TRY(tt_tpl_eval(r, env, params->defaults[i], &v));
        TT_TRY(tt_tpl_bind(r, env, params->atoms[i], &v));
    }
    return bind_rest(r, env, m, args, taken);
}

tt_status tt_tpl_call_macro(tpl_render *r, const tpl_macro *m, const tpl_args *args, tpl_value *out)
{
    void *env;
    TT_TRY(tt_tpl_enter(r));
    TT_TRY(tt_tpl_take(&r->pool, 1, sizeof(tpl_env), &env));
    ((tpl_env *)env)->parent = m->env;
    TT_TRY(bind_arguments(r, env, m, args));
    size_t begin = r->length;
    r->captures++;
    TT_TRY(tt_tpl_run_body(r, env, m->node->as.block.bodies));
    r->captures--;
    TT_TRY(tt_tpl_string_end(r, begin, out));
    tt_tpl_leave(r);
    return TT_OK;
}

static tt_status run_macro(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    tpl_value m;
    TT_TRY(new_macro(r, env, n, &m));
    return tt_tpl_bind(r, env, n->atom, &m);
}

/* {% call f(x) %}body{% endcall %}: f(x, caller=body). */
static tt_status run_call_block(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    const tpl_call_args *from = &n->one->as.call.args;
    tpl_value callee, *values, *names, *named, out;
    TT_TRY(tt_tpl_eval(r, env, n->one->one, &callee));
    TT_TRY(tt_tpl_new_items(r, (size_t)from->count, &values));
    TT_TRY(tt_tpl_new_items(r, (size_t)from->named + 1, &names));
    TT_TRY(tt_tpl_new_items(r, (size_t)from->named + 1, &named));
    for (int i = 0; i < from->count; i++) TT_TRY(tt_tpl_eval(r, env, from->values[i], &values[i]));
    for (int i = 0; i < from->named; i++) {
        names[i] = from->names[i];
        TT_TRY(tt_tpl_eval(r, env, from->named_values[i], &named[i]));
    }
    names[from->named] = tpl_text("caller", 6);
    TT_TRY(new_macro(r, env, n, &named[from->named]));
    const tpl_args args = {from->count, from->named + 1, values, names, named};
    TT_TRY(tt_tpl_call_value(r, &callee, &args, &out));
    return tt_tpl_print(r, &out);
}

/* --- generation --------------------------------------------------------------------------------------- */

static tt_status add_span(tpl_render *r, size_t begin)
{
    tt_rendering *to = r->result;
    if (to->num_spans == r->span_capacity) {
        int64_t capacity = r->span_capacity ? 2 * r->span_capacity : 16;
        void *grown = realloc(to->spans, (size_t)capacity * sizeof *to->spans);
        TT_CHECK(grown, TT_ENOMEM, "chat template: out of memory (%lld spans)", (long long)capacity);
        to->spans = grown;
        r->span_capacity = capacity;
    }
    to->spans[to->num_spans].begin = (int64_t)begin;
    to->spans[to->num_spans++].end = (int64_t)r->length;
    return TT_OK;
}

static tt_status run_generation(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    size_t begin = r->length;
    bool outermost = r->generations++ == 0 && r->captures == 0;
    TT_TRY(run_scope(r, env, n->as.block.bodies));
    r->generations--;
    return outermost ? add_span(r, begin) : TT_OK;
}

/* --- dispatch ----------------------------------------------------------------------------------------- */

static tt_status run_any(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    tpl_value v;
    switch ((tpl_node_kind)n->kind) {
    case TPL_N_TEXT:
        return tt_tpl_append(r, n->as.constant.as.text, n->as.constant.len);
    case TPL_N_OUTPUT:
        TT_TRY(tt_tpl_eval(r, env, n->one, &v));
        return tt_tpl_print(r, &v);
    case TPL_N_IF:
        return run_if(r, env, n);
    case TPL_N_FOR:
        return run_for(r, env, n);
    case TPL_N_SET:
        return run_set(r, env, n);
    case TPL_N_SETBLOCK:
        return run_set_block(r, env, n);
    case TPL_N_FILTERBLOCK:
        return run_filter_block(r, env, n);
    case TPL_N_WITH:
        return run_with(r, env, n);
    case TPL_N_MACRO:
        return run_macro(r, env, n);
    case TPL_N_CALLBLOCK:
        return run_call_block(r, env, n);
    case TPL_N_GENERATION:
        return run_generation(r, env, n);
    case TPL_N_BREAK:
        r->flow = TPL_FLOW_BREAK;
        return TT_OK;
    case TPL_N_CONTINUE:
        r->flow = TPL_FLOW_CONTINUE;
        return TT_OK;
    default:
        return tt_error_set(TT_EINTERNAL, "chat template: a value stands where a statement should");
    }
}

static tt_status run(tpl_render *r, tpl_env *env, const tpl_node *n)
{
    r->line = n->line;
    TT_TRY(tt_tpl_enter(r));
    TT_TRY(run_any(r, env, n));
    tt_tpl_leave(r);
    return TT_OK;
}
