/* template_parse_expr.c - tokens to a tree: expressions, from loosest to tightest
 *
 *   value if test else other;  or;  and;  not;  comparisons (chained);  + -;  ~;  * / // %;  **;  signs;
 *   .name [subscript] (arguments);  | filter;  is test
 *
 * Unusual, but as in the common library: ~ binds tighter than + and looser than *; ** is left-associative and
 * looser than a sign; filters bind tighter than every binary operator and looser than a sign. */
#include "data/template_impl.h"

#include <string.h>

static tt_status parse_or(tpl_parser *p, tpl_node **out);
static tt_status parse_unary(tpl_parser *p, bool with_filters, tpl_node **out);
static tt_status parse_primary(tpl_parser *p, tpl_node **out);

static tt_status pair(tpl_parser *p, tpl_node_kind kind, int op, tpl_node *left, tpl_node *right,
                      tpl_node **out)
{
    tpl_node *n;
    TT_TRY(tt_tpl_new_node(p, kind, left->line, &n));
    n->op = (uint8_t)op;
    n->one = left;
    n->two = right;
    *out = n;
    return TT_OK;
}

tt_status tt_tpl_parse_expression(tpl_parser *p, bool with_condition, tpl_node **out)
{
    int unknown = p->unknown_line;
    bool more = with_condition, otherwise;
    TT_TRY(tt_tpl_nest(p));
    TT_TRY(parse_or(p, out));
    while (more) {
        tpl_node *n;
        TT_TRY(tt_tpl_skip_name(p, "if", &more));
        if (!more) break;
        TT_TRY(tt_tpl_new_node(p, TPL_N_COND, (*out)->line, &n));
        n->two = *out;
        TT_TRY(parse_or(p, &n->one));
        TT_TRY(tt_tpl_skip_name(p, "else", &otherwise));
        if (otherwise) TT_TRY(tt_tpl_parse_expression(p, true, &n->three));
        /* All of a conditional is read leniently: unknown filters in it wait until they are reached. */
        p->unknown_line = unknown;
        *out = n;
    }
    p->nesting--;
    return TT_OK;
}

static tt_status parse_not(tpl_parser *p, tpl_node **out);

static tt_status parse_and(tpl_parser *p, tpl_node **out)
{
    bool more;
    TT_TRY(parse_not(p, out));
    for (;;) {
        tpl_node *right;
        TT_TRY(tt_tpl_skip_name(p, "and", &more));
        if (!more) return TT_OK;
        TT_TRY(parse_not(p, &right));
        TT_TRY(pair(p, TPL_N_AND, 0, *out, right, out));
    }
}

static tt_status parse_or(tpl_parser *p, tpl_node **out)
{
    bool more;
    TT_TRY(parse_and(p, out));
    for (;;) {
        tpl_node *right;
        TT_TRY(tt_tpl_skip_name(p, "or", &more));
        if (!more) return TT_OK;
        TT_TRY(parse_and(p, &right));
        TT_TRY(pair(p, TPL_N_OR, 0, *out, right, out));
    }
}

/* --- arithmetic --------------------------------------------------------------------------------------- */

static tt_status parse_power(tpl_parser *p, tpl_node **out)
{
    TT_TRY(parse_unary(p, true, out));
    while (tt_tpl_at_op(p, TPL_OP2('*', '*'))) {
        tpl_node *right;
        TT_TRY(tt_tpl_advance(p));
        TT_TRY(parse_unary(p, true, &right));
        TT_TRY(pair(p, TPL_N_BINARY, '^', *out, right, out));
    }
    return TT_OK;
}

static tt_status parse_product(tpl_parser *p, tpl_node **out)
{
    TT_TRY(parse_power(p, out));
    for (;;) {
        tpl_node *right;
        int op = tt_tpl_at_op(p, '*')                 ? '*'
                 : tt_tpl_at_op(p, '/')               ? '/'
                 : tt_tpl_at_op(p, TPL_OP2('/', '/')) ? '_'
                 : tt_tpl_at_op(p, '%')               ? '%'
                                                      : 0;
        if (!op) return TT_OK;
        TT_TRY(tt_tpl_advance(p));
        TT_TRY(parse_power(p, &right));
        TT_TRY(pair(p, TPL_N_BINARY, op, *out, right, out));
    }
}

static tt_status parse_concat(tpl_parser *p, tpl_node **out)
{
    TT_TRY(parse_product(p, out));
    if (!tt_tpl_at_op(p, '~')) return TT_OK;
    tpl_node *n, *item = *out;
    bool more;
    TT_TRY(tt_tpl_new_node(p, TPL_N_CONCAT, item->line, &n));
    do {
        TT_TRY(tt_tpl_push(p, &n->as.list.items, &n->as.list.count, item));
        TT_TRY(tt_tpl_skip_op(p, '~', &more));
        if (more) TT_TRY(parse_product(p, &item));
    } while (more);
    *out = n;
    return TT_OK;
}

static tt_status parse_sum(tpl_parser *p, tpl_node **out)
{
    TT_TRY(parse_concat(p, out));
    for (;;) {
        tpl_node *right;
        int op = tt_tpl_at_op(p, '+') ? '+' : tt_tpl_at_op(p, '-') ? '-' : 0;
        if (!op) return TT_OK;
        TT_TRY(tt_tpl_advance(p));
        TT_TRY(parse_concat(p, &right));
        TT_TRY(pair(p, TPL_N_BINARY, op, *out, right, out));
    }
}

/* The comparison at the current token, passed over: a character for each, '\0' when there is none. */
static tt_status parse_comparison(tpl_parser *p, uint8_t *op)
{
    static const struct {
        int token;
        char op;
    } ops[] = {{TPL_OP2('=', '='), '='}, {TPL_OP2('!', '='), '!'}, {'<', '<'}, {'>', '>'},
               {TPL_OP2('<', '='), 'l'}, {TPL_OP2('>', '='), 'g'}};
    *op = '\0';
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (tt_tpl_at_op(p, ops[i].token)) *op = (uint8_t)ops[i].op;
    if (tt_tpl_at_name(p, "in")) *op = 'i';
    if (tt_tpl_at_name(p, "not") && p->next.kind == TPL_T_NAME && p->next.len == 2 &&
        memcmp(p->next.text, "in", 2) == 0) {
        *op = 'n';
        TT_TRY(tt_tpl_advance(p));
    }
    return *op ? tt_tpl_advance(p) : TT_OK;
}

static tt_status parse_compare(tpl_parser *p, tpl_node **out)
{
    tpl_node *n = NULL, *item;
    uint8_t op;
    TT_TRY(parse_sum(p, out));
    for (;;) {
        TT_TRY(parse_comparison(p, &op));
        if (!op) return TT_OK;
        TT_TRY(parse_sum(p, &item));
        if (!n) {
            TT_TRY(tt_tpl_new_node(p, TPL_N_COMPARE, (*out)->line, &n));
            TT_TRY(tt_tpl_push(p, &n->as.list.items, &n->as.list.count, *out));
            *out = n;
        }
        int count = n->as.list.count;
        if ((count & (count - 1)) == 0) { /* full at the powers of two */
            void *grown;
            TT_TRY(tt_tpl_take(&p->template->pool, 2 * (size_t)count, 1, &grown));
            if (n->as.list.ops) memcpy(grown, n->as.list.ops, (size_t)count);
            n->as.list.ops = grown;
        }
        n->as.list.ops[count - 1] = op;
        TT_TRY(tt_tpl_push(p, &n->as.list.items, &n->as.list.count, item));
    }
}

static tt_status parse_not(tpl_parser *p, tpl_node **out)
{
    if (!tt_tpl_at_name(p, "not")) return parse_compare(p, out);
    TT_TRY(tt_tpl_nest(p));
    TT_TRY(tt_tpl_new_node(p, TPL_N_NOT, p->token.line, out));
    TT_TRY(tt_tpl_advance(p));
    TT_TRY(parse_not(p, &(*out)->one));
    p->nesting--;
    return TT_OK;
}

/* --- what stands behind an operand -------------------------------------------------------------------- */

static tt_status push_value(tpl_parser *p, tpl_value **items, int count, const tpl_value *item)
{
    if ((count & (count - 1)) == 0) {
        void *grown;
        TT_TRY(tt_tpl_take(&p->template->pool, count ? (size_t)count * 2 : 1, sizeof *item, &grown));
        if (count) memcpy(grown, *items, (size_t)count * sizeof *item);
        *items = grown;
    }
    (*items)[count] = *item;
    return TT_OK;
}

static tt_status parse_named_argument(tpl_parser *p, tpl_call_args *args)
{
    tpl_value name = tpl_text(p->token.text, p->token.len);
    tpl_node *value;
    for (int i = 0; i < args->named; i++)
        if (args->names[i].len == name.len && memcmp(args->names[i].as.text, name.as.text, name.len) == 0)
            return tt_tpl_fail(p, p->token.line, "the argument %.*s is given twice", (int)name.len,
                               name.as.text);
    if (args->named == 60) return tt_tpl_fail(p, p->token.line, "more than 60 named arguments");
    TT_TRY(push_value(p, &args->names, args->named, &name));
    TT_TRY(tt_tpl_advance(p));
    TT_TRY(tt_tpl_advance(p));
    TT_TRY(tt_tpl_parse_expression(p, true, &value));
    return tt_tpl_push(p, &args->named_values, &args->named, value);
}

static tt_status parse_arguments(tpl_parser *p, tpl_call_args *args)
{
    tpl_node *value;
    TT_TRY(tt_tpl_expect_op(p, '('));
    while (!tt_tpl_at_op(p, ')')) {
        if (args->count || args->named) {
            TT_TRY(tt_tpl_expect_op(p, ','));
            if (tt_tpl_at_op(p, ')')) break;
        }
        if (tt_tpl_at_op(p, '*') || tt_tpl_at_op(p, TPL_OP2('*', '*')))
            return tt_tpl_fail(p, p->token.line, "arguments by * and ** are not supported");
        if (p->token.kind == TPL_T_NAME && p->next.kind == TPL_T_OP && p->next.op == '=') {
            TT_TRY(parse_named_argument(p, args));
            continue;
        }
        if (args->named)
            return tt_tpl_fail(p, p->token.line, "an argument without name stands behind a named one");
        TT_TRY(tt_tpl_parse_expression(p, true, &value));
        TT_TRY(tt_tpl_push(p, &args->values, &args->count, value));
    }
    return tt_tpl_advance(p);
}

/* One part of a subscript: an expression, or start:stop:step. */
static tt_status parse_subscript(tpl_parser *p, tpl_node **out)
{
    tpl_node *parts[3] = {NULL, NULL, NULL}, *n;
    int line = p->token.line;
    bool colon = false;
    for (int i = 0; i < 3; i++) {
        if (!tt_tpl_at_op(p, ':') && !tt_tpl_at_op(p, ']') && !tt_tpl_at_op(p, ','))
            TT_TRY(tt_tpl_parse_expression(p, true, &parts[i]));
        if (!tt_tpl_at_op(p, ':') || i == 2) break;
        colon = true;
        TT_TRY(tt_tpl_advance(p));
    }
    *out = parts[0];
    if (!colon) return parts[0] ? TT_OK : tt_tpl_unexpected(p, "a subscript");
    TT_TRY(tt_tpl_new_node(p, TPL_N_SLICE, line, &n));
    n->one = parts[0], n->two = parts[1], n->three = parts[2];
    *out = n;
    return TT_OK;
}

static tt_status parse_brackets(tpl_parser *p, tpl_node **node)
{
    tpl_node *n, *part, *tuple = NULL;
    TT_TRY(tt_tpl_expect_op(p, '['));
    TT_TRY(parse_subscript(p, &part));
    if (tt_tpl_at_op(p, ',')) {
        TT_TRY(tt_tpl_new_node(p, TPL_N_TUPLE, part->line, &tuple));
        TT_TRY(tt_tpl_push(p, &tuple->as.list.items, &tuple->as.list.count, part));
    }
    while (tuple && !tt_tpl_at_op(p, ']')) {
        TT_TRY(tt_tpl_expect_op(p, ','));
        TT_TRY(parse_subscript(p, &part));
        TT_TRY(tt_tpl_push(p, &tuple->as.list.items, &tuple->as.list.count, part));
    }
    TT_TRY(tt_tpl_expect_op(p, ']'));
    TT_TRY(pair(p, TPL_N_ITEM, 0, *node, tuple ? tuple : part, &n));
    *node = n;
    return TT_OK;
}

static tt_status parse_dot(tpl_parser *p, tpl_node **node)
{
    tpl_node *n, *key;
    TT_TRY(tt_tpl_expect_op(p, '.'));
    tpl_token t = p->token;
    if (t.kind == TPL_T_NAME) {
        TT_TRY(tt_tpl_new_node(p, TPL_N_ATTR, (*node)->line, &n));
        n->one = *node;
        n->as.call.name = tpl_text(t.text, t.len);
    } else if (t.kind == TPL_T_INTEGER) {
        TT_TRY(tt_tpl_new_node(p, TPL_N_CONST, t.line, &key));
        key->as.constant = t.value;
        TT_TRY(pair(p, TPL_N_ITEM, 0, *node, key, &n));
    } else {
        return tt_tpl_unexpected(p, "a name or a number behind the dot");
    }
    *node = n;
    return tt_tpl_advance(p);
}

static tt_status parse_call(tpl_parser *p, tpl_node **node)
{
    tpl_node *n;
    TT_TRY(tt_tpl_new_node(p, TPL_N_CALL, (*node)->line, &n));
    n->one = *node;
    *node = n;
    return parse_arguments(p, &n->as.call.args);
}

static tt_status parse_postfix(tpl_parser *p, tpl_node **node)
{
    for (;;) {
        if (tt_tpl_at_op(p, '.'))
            TT_TRY(parse_dot(p, node));
        else if (tt_tpl_at_op(p, '['))
            TT_TRY(parse_brackets(p, node));
        else if (tt_tpl_at_op(p, '('))
            TT_TRY(parse_call(p, node));
        else
            return TT_OK;
    }
}

/* --- filters and tests -------------------------------------------------------------------------------- */

static void note_unknown(tpl_parser *p, const tpl_node *n, bool is_test)
{
    if (n->as.call.builtin || p->unknown_line) return;
    p->unknown_line = n->line;
    p->unknown = n->as.call.name;
    p->unknown_test = is_test;
}

/* The name of a filter or test; parts with dots belong to it, though no built-in one has any. */
static tt_status parse_long_name(tpl_parser *p, tpl_value *out)
{
    const char *from = p->token.text, *to = from + p->token.len;
    TT_TRY(tt_tpl_expect(p, TPL_T_NAME));
    while (tt_tpl_at_op(p, '.')) {
        TT_TRY(tt_tpl_advance(p));
        to = p->token.text + p->token.len;
        TT_TRY(tt_tpl_expect(p, TPL_T_NAME));
    }
    *out = tpl_text(from, (size_t)(to - from));
    return TT_OK;
}

tt_status tt_tpl_parse_filters(tpl_parser *p, bool bar_first, tpl_node **node)
{
    bool more = true;
    if (bar_first) TT_TRY(tt_tpl_skip_op(p, '|', &more));
    while (more) {
        tpl_node *n;
        TT_TRY(tt_tpl_new_node(p, TPL_N_FILTER, p->token.line, &n));
        n->one = *node;
        *node = n;
        TT_TRY(parse_long_name(p, &n->as.call.name));
        n->as.call.builtin = tt_tpl_find_filter(n->as.call.name.as.text, n->as.call.name.len);
        note_unknown(p, n, false);
        if (tt_tpl_at_op(p, '(')) TT_TRY(parse_arguments(p, &n->as.call.args));
        TT_TRY(tt_tpl_skip_op(p, '|', &more));
    }
    return TT_OK;
}

/* A test may have one argument without parentheses: "is divisibleby 3". */
static bool at_bare_argument(const tpl_parser *p)
{
    switch (p->token.kind) {
    case TPL_T_NAME:
        return !tt_tpl_at_name(p, "else") && !tt_tpl_at_name(p, "or") && !tt_tpl_at_name(p, "and");
    case TPL_T_STRING:
    case TPL_T_INTEGER:
    case TPL_T_FLOAT:
        return true;
    default:
        return tt_tpl_at_op(p, '[') || tt_tpl_at_op(p, '{');
    }
}

static tt_status parse_test(tpl_parser *p, tpl_node **node)
{
    tpl_node *n, *argument;
    bool negated;
    TT_TRY(tt_tpl_new_node(p, TPL_N_TEST, p->token.line, &n));
    TT_TRY(tt_tpl_advance(p));
    TT_TRY(tt_tpl_skip_name(p, "not", &negated));
    n->op = negated;
    n->one = *node;
    *node = n;
    TT_TRY(parse_long_name(p, &n->as.call.name));
    n->as.call.builtin = tt_tpl_find_test(n->as.call.name.as.text, n->as.call.name.len);
    note_unknown(p, n, true);
    if (tt_tpl_at_op(p, '(')) return parse_arguments(p, &n->as.call.args);
    if (!at_bare_argument(p)) return TT_OK;
    if (tt_tpl_at_name(p, "is")) return tt_tpl_fail(p, p->token.line, "tests cannot be chained with 'is'");
    TT_TRY(parse_primary(p, &argument));
    TT_TRY(parse_postfix(p, &argument));
    return tt_tpl_push(p, &n->as.call.args.values, &n->as.call.args.count, argument);
}

static tt_status parse_behind(tpl_parser *p, tpl_node **node)
{
    for (;;) {
        if (tt_tpl_at_op(p, '|'))
            TT_TRY(tt_tpl_parse_filters(p, true, node));
        else if (tt_tpl_at_name(p, "is"))
            TT_TRY(parse_test(p, node));
        else if (tt_tpl_at_op(p, '('))
            TT_TRY(parse_call(p, node));
        else
            return TT_OK;
    }
}

static tt_status parse_unary(tpl_parser *p, bool with_filters, tpl_node **out)
{
    bool minus = tt_tpl_at_op(p, '-');
    if (minus || tt_tpl_at_op(p, '+')) {
        TT_TRY(tt_tpl_nest(p));
        TT_TRY(tt_tpl_new_node(p, minus ? TPL_N_NEGATE : TPL_N_PLUS, p->token.line, out));
        TT_TRY(tt_tpl_advance(p));
        TT_TRY(parse_unary(p, false, &(*out)->one));
        p->nesting--;
    } else {
        TT_TRY(parse_primary(p, out));
    }
    TT_TRY(parse_postfix(p, out));
    return with_filters ? parse_behind(p, out) : TT_OK;
}

/* --- operands ----------------------------------------------------------------------------------------- */

static bool at_tuple_end(const tpl_parser *p)
{
    return p->token.kind == TPL_T_OUTPUT_END || p->token.kind == TPL_T_BLOCK_END || tt_tpl_at_op(p, ')');
}

typedef enum { PLAIN, CONDITIONS, TARGETS, FIELDS } tuple_mode;

static tt_status parse_target_item(tpl_parser *p, bool fields, tpl_node **out);

/* Items with commas; a single one without comma is itself. `empty`: "()" is allowed. */
static tt_status parse_items(tpl_parser *p, tuple_mode mode, bool empty, tpl_node **out)
{
    tpl_node *n = NULL, *item;
    int line = p->token.line;
    bool comma = false;
    TT_TRY(tt_tpl_new_node(p, TPL_N_TUPLE, line, &n));
    for (;;) {
        if (at_tuple_end(p) || (mode >= TARGETS && tt_tpl_at_name(p, "in")) ||
            (mode == PLAIN && tt_tpl_at_name(p, "recursive")))
            break;
        if (mode >= TARGETS)
            TT_TRY(parse_target_item(p, mode == FIELDS, &item));
        else
            TT_TRY(tt_tpl_parse_expression(p, mode == CONDITIONS, &item));
        TT_TRY(tt_tpl_push(p, &n->as.list.items, &n->as.list.count, item));
        if (!tt_tpl_at_op(p, ',')) break;
        comma = true;
        TT_TRY(tt_tpl_advance(p));
    }
    *out = n;
    if (!comma && n->as.list.count) *out = n->as.list.items[0];
    if (!comma && !n->as.list.count && !empty) return tt_tpl_unexpected(p, "an expression");
    return TT_OK;
}

tt_status tt_tpl_parse_tuple(tpl_parser *p, bool with_condition, tpl_node **out)
{
    return parse_items(p, with_condition ? CONDITIONS : PLAIN, false, out);
}

static tt_status parse_list(tpl_parser *p, tpl_node **out)
{
    tpl_node *item;
    TT_TRY(tt_tpl_new_node(p, TPL_N_LIST, p->token.line, out));
    TT_TRY(tt_tpl_advance(p));
    while (!tt_tpl_at_op(p, ']')) {
        if ((*out)->as.list.count) {
            TT_TRY(tt_tpl_expect_op(p, ','));
            if (tt_tpl_at_op(p, ']')) break;
        }
        TT_TRY(tt_tpl_parse_expression(p, true, &item));
        TT_TRY(tt_tpl_push(p, &(*out)->as.list.items, &(*out)->as.list.count, item));
    }
    return tt_tpl_advance(p);
}

static tt_status parse_dict(tpl_parser *p, tpl_node **out)
{
    tpl_node *key, *value;
    TT_TRY(tt_tpl_new_node(p, TPL_N_DICT, p->token.line, out));
    TT_TRY(tt_tpl_advance(p));
    while (!tt_tpl_at_op(p, '}')) {
        if ((*out)->as.list.count) {
            TT_TRY(tt_tpl_expect_op(p, ','));
            if (tt_tpl_at_op(p, '}')) break;
        }
        TT_TRY(tt_tpl_parse_expression(p, true, &key));
        TT_TRY(tt_tpl_expect_op(p, ':'));
        TT_TRY(tt_tpl_parse_expression(p, true, &value));
        TT_TRY(tt_tpl_push(p, &(*out)->as.list.items, &(*out)->as.list.count, key));
        TT_TRY(tt_tpl_push(p, &(*out)->as.list.items, &(*out)->as.list.count, value));
    }
    return tt_tpl_advance(p);
}

/* Adjacent strings are one. */
static tt_status parse_string(tpl_parser *p, tpl_node *n)
{
    tpl_value v = p->token.value;
    TT_TRY(tt_tpl_advance(p));
    if (p->token.kind == TPL_T_STRING) {
        size_t capacity = v.len;
        char *copy = (char *)v.as.text;
        while (p->token.kind == TPL_T_STRING) {
            size_t len = (size_t)v.len + p->token.value.len;
            if (len > capacity) {
                void *grown;
                capacity = 2 * len;
                TT_TRY(tt_tpl_take(&p->template->pool, capacity, 1, &grown));
                memcpy(grown, copy, v.len);
                copy = grown;
            }
            if (p->token.value.len) memcpy(copy + v.len, p->token.value.as.text, p->token.value.len);
            v = tpl_text(copy, len);
            TT_TRY(tt_tpl_advance(p));
        }
    }
    n->as.constant = v;
    return TT_OK;
}

/* true, false, none: *v, and true; other names: false. */
static bool is_literal(const tpl_parser *p, tpl_value *v)
{
    if (tt_tpl_at_name(p, "true") || tt_tpl_at_name(p, "True"))
        *v = tpl_bool(true);
    else if (tt_tpl_at_name(p, "false") || tt_tpl_at_name(p, "False"))
        *v = tpl_bool(false);
    else if (tt_tpl_at_name(p, "none") || tt_tpl_at_name(p, "None"))
        *v = tpl_none();
    else
        return false;
    return true;
}

static tt_status parse_name(tpl_parser *p, tpl_node **out)
{
    tpl_value v;
    if (is_literal(p, &v)) {
        TT_TRY(tt_tpl_new_node(p, TPL_N_CONST, p->token.line, out));
        (*out)->as.constant = v;
        return tt_tpl_advance(p);
    }
    TT_TRY(tt_tpl_new_node(p, TPL_N_NAME, p->token.line, out));
    TT_TRY(tt_tpl_intern(p, p->token.text, p->token.len, &(*out)->atom));
    if ((*out)->atom == TPL_ATOM_VARARGS) p->uses |= TPL_USES_VARARGS;
    if ((*out)->atom == TPL_ATOM_KWARGS) p->uses |= TPL_USES_KWARGS;
    if ((*out)->atom == TPL_ATOM_CALLER) p->uses |= TPL_USES_CALLER;
    return tt_tpl_advance(p);
}

static tt_status parse_parentheses(tpl_parser *p, tpl_node **out)
{
    TT_TRY(tt_tpl_advance(p));
    TT_TRY(parse_items(p, CONDITIONS, true, out));
    return tt_tpl_expect_op(p, ')');
}

static tt_status parse_primary(tpl_parser *p, tpl_node **out)
{
    switch (p->token.kind) {
    case TPL_T_NAME:
        return parse_name(p, out);
    case TPL_T_STRING:
        TT_TRY(tt_tpl_new_node(p, TPL_N_CONST, p->token.line, out));
        return parse_string(p, *out);
    case TPL_T_INTEGER:
    case TPL_T_FLOAT:
        TT_TRY(tt_tpl_new_node(p, TPL_N_CONST, p->token.line, out));
        (*out)->as.constant = p->token.value;
        return tt_tpl_advance(p);
    default:
        break;
    }
    if (tt_tpl_at_op(p, '(')) return parse_parentheses(p, out);
    if (tt_tpl_at_op(p, '[')) return parse_list(p, out);
    if (tt_tpl_at_op(p, '{')) return parse_dict(p, out);
    return tt_tpl_unexpected(p, "an expression");
}

/* --- targets of assignments --------------------------------------------------------------------------- */

tt_status tt_tpl_parse_target_name(tpl_parser *p, int *atom)
{
    tpl_value literal;
    if (p->token.kind != TPL_T_NAME) return tt_tpl_unexpected(p, "a name");
    if (is_literal(p, &literal))
        return tt_tpl_fail(p, p->token.line, "%.*s cannot be assigned to", (int)p->token.len, p->token.text);
    TT_TRY(tt_tpl_intern(p, p->token.text, p->token.len, atom));
    return tt_tpl_advance(p);
}

static tt_status parse_target_item(tpl_parser *p, bool fields, tpl_node **out)
{
    int line = p->token.line;
    if (tt_tpl_at_op(p, '(')) {
        TT_TRY(tt_tpl_nest(p));
        TT_TRY(tt_tpl_advance(p));
        TT_TRY(parse_items(p, fields ? FIELDS : TARGETS, true, out));
        TT_TRY(tt_tpl_expect_op(p, ')'));
        p->nesting--;
        return TT_OK;
    }
    TT_TRY(tt_tpl_new_node(p, TPL_N_NAME, line, out));
    TT_TRY(tt_tpl_parse_target_name(p, &(*out)->atom));
    if (fields && tt_tpl_at_op(p, '.')) {
        TT_TRY(tt_tpl_advance(p));
        (*out)->kind = TPL_N_FIELD;
        (*out)->as.call.name = tpl_text(p->token.text, p->token.len);
        return tt_tpl_expect(p, TPL_T_NAME);
    }
    if ((*out)->atom == TPL_ATOM_LOOP && p->all_loops)
        return tt_tpl_fail(p, line, "'loop' cannot be assigned to inside a loop");
    return TT_OK;
}

tt_status tt_tpl_parse_target(tpl_parser *p, bool fields, tpl_node **out)
{
    return parse_items(p, fields ? FIELDS : TARGETS, false, out);
}
