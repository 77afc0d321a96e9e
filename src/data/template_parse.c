/* template_parse.c - tokens to a tree: statements. Expressions are in template_parse_expr.c.
 *
 * Recursive descent; tt_tpl_nest bounds how deep. Checked here, so that a bad template is refused before any
 * data is read: break and continue outside loops, assignment to `loop` inside one, names of filters and tests
 * (inside an if an unknown one is an error only when it is reached, as in the common library). */
#include "data/template_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

tt_status tt_tpl_fail(const tpl_parser *p, int line, const char *format, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return tt_error_set(TT_EFORMAT, "%s:%d: %s", p->template->name, line, text);
}

tt_status tt_tpl_advance(tpl_parser *p)
{
    p->token = p->next;
    if (p->token.kind == TPL_T_END) return TT_OK;
    return tt_tpl_lex(&p->lexer, &p->next);
}

bool tt_tpl_at_op(const tpl_parser *p, int op)
{
    return p->token.kind == TPL_T_OP && p->token.op == op;
}

static bool is_name(const tpl_token *t, const char *name)
{
    return t->kind == TPL_T_NAME && t->len == strlen(name) && memcmp(t->text, name, t->len) == 0;
}

bool tt_tpl_at_name(const tpl_parser *p, const char *name)
{
    return is_name(&p->token, name);
}

tt_status tt_tpl_skip_op(tpl_parser *p, int op, bool *skipped)
{
    *skipped = tt_tpl_at_op(p, op);
    return *skipped ? tt_tpl_advance(p) : TT_OK;
}

tt_status tt_tpl_skip_name(tpl_parser *p, const char *name, bool *skipped)
{
    *skipped = tt_tpl_at_name(p, name);
    return *skipped ? tt_tpl_advance(p) : TT_OK;
}

tt_status tt_tpl_unexpected(const tpl_parser *p, const char *wanted)
{
    const tpl_token *t = &p->token;
    int n = t->len < 40 ? (int)t->len : 40;
    switch (t->kind) {
    case TPL_T_END:
        return tt_tpl_fail(p, t->line, "unexpected end of the template, expected %s", wanted);
    case TPL_T_OUTPUT_END:
        return tt_tpl_fail(p, t->line, "unexpected }}, expected %s", wanted);
    case TPL_T_BLOCK_END:
        return tt_tpl_fail(p, t->line, "unexpected %%}, expected %s", wanted);
    default:
        return tt_tpl_fail(p, t->line, "unexpected %.*s, expected %s", n, t->text, wanted);
    }
}

tt_status tt_tpl_expect(tpl_parser *p, tpl_token_kind kind)
{
    static const char *const names[] = {"the end", "text", "{{", "}}", "{%", "%}", "a name"};
    if (p->token.kind != kind) return tt_tpl_unexpected(p, names[kind]);
    return tt_tpl_advance(p);
}

tt_status tt_tpl_expect_op(tpl_parser *p, int op)
{
    char wanted[] = {'\'', (char)op, '\'', '\0'};
    if (!tt_tpl_at_op(p, op)) return tt_tpl_unexpected(p, wanted);
    return tt_tpl_advance(p);
}

tt_status tt_tpl_nest(tpl_parser *p)
{
    if (++p->nesting > TPL_MAX_NESTING)
        return tt_tpl_fail(p, p->token.line, "blocks and brackets are nested more than %d deep",
                           TPL_MAX_NESTING);
    return TT_OK;
}

tt_status tt_tpl_new_node(tpl_parser *p, tpl_node_kind kind, int line, tpl_node **out)
{
    void *n;
    TT_TRY(tt_tpl_take(&p->template->pool, 1, sizeof(tpl_node), &n));
    *out = n;
    (*out)->kind = (uint8_t)kind;
    (*out)->line = line;
    return TT_OK;
}

tt_status tt_tpl_push(tpl_parser *p, tpl_node ***items, int *count, tpl_node *item)
{
    /* Powers of two are where the array is full. */
    if ((*count & (*count - 1)) == 0) {
        void *grown;
        TT_TRY(tt_tpl_take(&p->template->pool, *count ? (size_t)*count * 2 : 1, sizeof item, &grown));
        if (*count) memcpy(grown, *items, (size_t)*count * sizeof item);
        *items = grown;
    }
    (*items)[(*count)++] = item;
    return TT_OK;
}

tt_status tt_tpl_intern(tpl_parser *p, const char *text, size_t len, int *atom)
{
    tt_template *t = p->template;
    for (int i = 0; i < t->num_atoms; i++)
        if (t->atoms[i].len == len && memcmp(t->atoms[i].as.text, text, len) == 0) {
            *atom = i;
            return TT_OK;
        }
    /* The search above is linear, so the number of names is bounded; real templates have some dozens. */
    if (t->num_atoms == 1024) return tt_tpl_fail(p, p->token.line, "more than 1024 different names");
    if (t->num_atoms == p->atom_capacity) {
        void *grown;
        int capacity = p->atom_capacity ? p->atom_capacity * 2 : 32;
        TT_TRY(tt_tpl_take(&t->pool, (size_t)capacity, sizeof *t->atoms, &grown));
        if (t->num_atoms) memcpy(grown, t->atoms, (size_t)t->num_atoms * sizeof *t->atoms);
        t->atoms = grown;
        p->atom_capacity = capacity;
    }
    *atom = t->num_atoms;
    t->atoms[t->num_atoms++] = tpl_text(text, len);
    return TT_OK;
}

/* --- bodies ------------------------------------------------------------------------------------------- */

static tt_status parse_statement(tpl_parser *p, tpl_node **out);

static bool at_any(const tpl_parser *p, const char *const *words)
{
    for (; words && *words; words++)
        if (tt_tpl_at_name(p, *words)) return true;
    return false;
}

static tt_status no_end(const tpl_parser *p, const char *const *ends, int line)
{
    char list[128] = "";
    for (int i = 0; ends[i]; i++) {
        strcat(list, i ? " or " : "");
        strcat(list, ends[i]);
    }
    return tt_tpl_fail(p, line, "this block has no end: %s is missing", list);
}

/* Statements and text up to a tag that begins with one of `ends` (NULL: up to the end);
 * that word is the current token then. */
static tt_status parse_body(tpl_parser *p, const char *const *ends, int line, tpl_body *out)
{
    *out = (tpl_body){0};
    TT_TRY(tt_tpl_nest(p));
    for (;;) {
        tpl_node *n = NULL;
        int at = p->token.line;
        if (p->token.kind == TPL_T_END) {
            if (ends) return no_end(p, ends, line);
            break;
        }
        if (p->token.kind == TPL_T_TEXT) {
            TT_TRY(tt_tpl_new_node(p, TPL_N_TEXT, at, &n));
            n->as.constant = tpl_text(p->token.text, p->token.len);
            TT_TRY(tt_tpl_advance(p));
        } else if (p->token.kind == TPL_T_OUTPUT_BEGIN) {
            TT_TRY(tt_tpl_advance(p));
            TT_TRY(tt_tpl_new_node(p, TPL_N_OUTPUT, at, &n));
            TT_TRY(tt_tpl_parse_tuple(p, true, &n->one));
            TT_TRY(tt_tpl_expect(p, TPL_T_OUTPUT_END));
        } else {
            TT_TRY(tt_tpl_expect(p, TPL_T_BLOCK_BEGIN));
            if (at_any(p, ends)) break;
            TT_TRY(parse_statement(p, &n));
            TT_TRY(tt_tpl_expect(p, TPL_T_BLOCK_END));
        }
        TT_TRY(tt_tpl_push(p, &out->items, &out->count, n));
    }
    p->nesting--;
    return TT_OK;
}

/* "%} body {% end": what is behind the head of a block. */
static tt_status parse_block(tpl_parser *p, const char *const *ends, int line, tpl_body *out)
{
    bool colon;
    TT_TRY(tt_tpl_skip_op(p, ':', &colon));
    TT_TRY(tt_tpl_expect(p, TPL_T_BLOCK_END));
    return parse_body(p, ends, line, out);
}

/* The same for blocks with one body, whose end tag is passed. */
static tt_status parse_only_block(tpl_parser *p, const char *end, tpl_node *n)
{
    const char *const ends[] = {end, NULL};
    void *bodies;
    TT_TRY(tt_tpl_take(&p->template->pool, 1, sizeof(tpl_body), &bodies));
    n->as.block.bodies = bodies;
    n->as.block.num_bodies = 1;
    TT_TRY(parse_block(p, ends, n->line, bodies));
    return tt_tpl_advance(p);
}

/* Unknown filters and tests: inside an if they wait to be reached, elsewhere they are errors. A body of its
 * own (loop, macro, capture) inside an if is "elsewhere" again. */
static tt_status refuse_unknown(const tpl_parser *p)
{
    if (!p->unknown_line) return TT_OK;
    return tt_tpl_fail(p, p->unknown_line, "no %s named '%.*s'", p->unknown_test ? "test" : "filter",
                       (int)p->unknown.len, p->unknown.as.text);
}

static tt_status parse_strict_block(tpl_parser *p, const char *end, tpl_node *n)
{
    int outer = p->unknown_line;
    p->unknown_line = 0;
    TT_TRY(parse_only_block(p, end, n));
    TT_TRY(refuse_unknown(p));
    p->unknown_line = outer;
    return TT_OK;
}

/* A body whose output becomes a string: where a generation block in it ends up is not known. */
static tt_status parse_capture(tpl_parser *p, const char *end, tpl_node *n)
{
    p->captures++;
    TT_TRY(parse_strict_block(p, end, n));
    p->captures--;
    return TT_OK;
}

/* A body that is called: loops outside it cannot be left from inside, and it has special names of its own. */
static tt_status parse_called(tpl_parser *p, const char *end, tpl_node *n, bool captured, unsigned *uses)
{
    int loops = p->loops;
    unsigned outer = p->uses;
    p->loops = 0;
    p->uses = 0;
    TT_TRY(captured ? parse_capture(p, end, n) : parse_strict_block(p, end, n));
    p->loops = loops;
    *uses = p->uses;
    p->uses |= outer;
    return TT_OK;
}

/* --- statements --------------------------------------------------------------------------------------- */

static tt_status add_body(tpl_parser *p, tpl_node *n, const tpl_body *b)
{
    int count = n->as.block.num_bodies;
    if ((count & (count - 1)) == 0) {
        void *grown;
        TT_TRY(tt_tpl_take(&p->template->pool, count ? (size_t)count * 2 : 1, sizeof *b, &grown));
        if (count) memcpy(grown, n->as.block.bodies, (size_t)count * sizeof *b);
        n->as.block.bodies = grown;
    }
    n->as.block.bodies[n->as.block.num_bodies++] = *b;
    return TT_OK;
}

static tt_status parse_if(tpl_parser *p, tpl_node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    int unknown = p->unknown_line;
    tpl_body body;
    bool more = true, otherwise;
    while (more) {
        tpl_node *test;
        TT_TRY(tt_tpl_parse_tuple(p, false, &test));
        TT_TRY(tt_tpl_push(p, &n->as.block.tests, &n->as.block.num_tests, test));
        TT_TRY(parse_block(p, ends, n->line, &body));
        TT_TRY(add_body(p, n, &body));
        TT_TRY(tt_tpl_skip_name(p, "elif", &more));
    }
    TT_TRY(tt_tpl_skip_name(p, "else", &otherwise));
    if (otherwise) {
        TT_TRY(parse_block(p, last, n->line, &body));
        TT_TRY(add_body(p, n, &body));
    }
    p->unknown_line = unknown;
    return tt_tpl_advance(p);
}

static tt_status parse_loop_body(tpl_parser *p, tpl_node *n, bool recursive)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    tpl_body body;
    p->loops++;
    p->all_loops++;
    if (recursive) p->captures++;
    TT_TRY(parse_block(p, ends, n->line, &body));
    TT_TRY(add_body(p, n, &body));
    if (recursive) p->captures--;
    p->all_loops--;
    p->loops--;
    return TT_OK;
}

static tt_status parse_for(tpl_parser *p, tpl_node *n)
{
    static const char *const last[] = {"endfor", NULL};
    tpl_body body;
    bool test, recursive, otherwise;
    p->all_loops++;
    TT_TRY(tt_tpl_parse_target(p, false, &n->as.block.target));
    p->all_loops--;
    if (!tt_tpl_at_name(p, "in")) return tt_tpl_unexpected(p, "'in'");
    TT_TRY(tt_tpl_advance(p));
    TT_TRY(tt_tpl_parse_tuple(p, false, &n->one));
    int unknown = p->unknown_line;
    p->unknown_line = 0;
    TT_TRY(tt_tpl_skip_name(p, "if", &test));
    if (test) TT_TRY(tt_tpl_parse_expression(p, true, &n->two));
    TT_TRY(tt_tpl_skip_name(p, "recursive", &recursive));
    n->op = recursive;
    TT_TRY(parse_loop_body(p, n, recursive));
    TT_TRY(tt_tpl_skip_name(p, "else", &otherwise));
    if (otherwise) {
        TT_TRY(parse_block(p, last, n->line, &body));
        TT_TRY(add_body(p, n, &body));
    }
    TT_TRY(refuse_unknown(p));
    p->unknown_line = unknown;
    return tt_tpl_advance(p);
}

static tt_status parse_set(tpl_parser *p, tpl_node *n)
{
    bool assign;
    TT_TRY(tt_tpl_parse_target(p, true, &n->as.block.target));
    TT_TRY(tt_tpl_skip_op(p, '=', &assign));
    if (assign) return tt_tpl_parse_tuple(p, true, &n->one);
    n->kind = TPL_N_SETBLOCK;
    if (tt_tpl_at_op(p, '|')) TT_TRY(tt_tpl_parse_filters(p, true, &n->one));
    return parse_capture(p, "endset", n);
}

static tt_status parse_with(tpl_parser *p, tpl_node *n)
{
    while (p->token.kind != TPL_T_BLOCK_END) {
        tpl_node *target, *value;
        if (n->as.block.num_tests) TT_TRY(tt_tpl_expect_op(p, ','));
        TT_TRY(tt_tpl_parse_target(p, false, &target));
        TT_TRY(tt_tpl_expect_op(p, '='));
        TT_TRY(tt_tpl_parse_expression(p, true, &value));
        TT_TRY(tt_tpl_push(p, &n->as.block.tests, &n->as.block.num_tests, target));
        TT_TRY(tt_tpl_push(p, &n->as.block.tests, &n->as.block.num_tests, value));
    }
    return parse_strict_block(p, "endwith", n);
}

static tt_status add_param(tpl_parser *p, tpl_params *params, int **atoms, int *capacity)
{
    int atom, have = params->count, defaults = params->count;
    bool assign;
    tpl_node *value = NULL;
    TT_TRY(tt_tpl_parse_target_name(p, &atom));
    TT_TRY(tt_tpl_skip_op(p, '=', &assign));
    if (assign)
        TT_TRY(tt_tpl_parse_expression(p, true, &value));
    else if (have && params->defaults[have - 1])
        return tt_tpl_fail(p, p->token.line, "a parameter without default stands behind one with a default");
    for (int i = 0; i < have; i++)
        if (params->atoms[i] == atom)
            return tt_tpl_fail(p, p->token.line, "two parameters have the same name");
    if (have == *capacity) {
        void *grown;
        *capacity = have ? 2 * have : 4;
        TT_TRY(tt_tpl_take(&p->template->pool, (size_t)*capacity, sizeof **atoms, &grown));
        if (have) memcpy(grown, *atoms, (size_t)have * sizeof **atoms);
        params->atoms = *atoms = grown;
    }
    (*atoms)[have] = atom;
    TT_TRY(tt_tpl_push(p, &params->defaults, &defaults, value));
    params->count++;
    return TT_OK;
}

static tt_status new_params(tpl_parser *p, tpl_node *n, tpl_params **out)
{
    void *params;
    TT_TRY(tt_tpl_take(&p->template->pool, 1, sizeof **out, &params));
    n->as.block.params = *out = params;
    return TT_OK;
}

static tt_status parse_signature(tpl_parser *p, tpl_params *params)
{
    int *atoms = NULL, capacity = 0;
    TT_TRY(tt_tpl_expect_op(p, '('));
    while (!tt_tpl_at_op(p, ')')) {
        if (params->count) TT_TRY(tt_tpl_expect_op(p, ','));
        TT_TRY(add_param(p, params, &atoms, &capacity));
    }
    return tt_tpl_advance(p);
}

static tt_status parse_macro(tpl_parser *p, tpl_node *n)
{
    tpl_params *params;
    TT_TRY(new_params(p, n, &params));
    TT_TRY(tt_tpl_parse_target_name(p, &n->atom));
    TT_TRY(parse_signature(p, params));
    return parse_called(p, "endmacro", n, true, &params->uses);
}

static tt_status parse_call_block(tpl_parser *p, tpl_node *n)
{
    tpl_params *params;
    TT_TRY(new_params(p, n, &params));
    if (tt_tpl_at_op(p, '(')) TT_TRY(parse_signature(p, params));
    TT_TRY(tt_tpl_parse_expression(p, true, &n->one));
    if (n->one->kind != TPL_N_CALL)
        return tt_tpl_fail(p, n->line, "{%% call %%} needs a call such as name(...)");
    return parse_called(p, "endcall", n, true, &params->uses);
}

static tt_status parse_filter_block(tpl_parser *p, tpl_node *n)
{
    TT_TRY(tt_tpl_parse_filters(p, false, &n->one));
    return parse_capture(p, "endfilter", n);
}

static tt_status parse_generation(tpl_parser *p, tpl_node *n)
{
    unsigned uses;
    p->template->num_generations++;
    if (p->captures && !p->template->lost_line) p->template->lost_line = n->line;
    return parse_called(p, "endgeneration", n, false, &uses);
}

static tt_status parse_loop_control(tpl_parser *p, tpl_node *n)
{
    if (!p->loops)
        return tt_tpl_fail(p, n->line, "{%% %s %%} stands outside of any loop",
                           n->kind == TPL_N_BREAK ? "break" : "continue");
    return TT_OK;
}

static tt_status parse_print(tpl_parser *p, tpl_node *n)
{
    return tt_tpl_parse_tuple(p, true, &n->one);
}

static const struct {
    const char *word;
    tpl_node_kind kind;
    tt_status (*parse)(tpl_parser *p, tpl_node *n);
} statements[] = {
    {"if", TPL_N_IF, parse_if},
    {"for", TPL_N_FOR, parse_for},
    {"set", TPL_N_SET, parse_set},
    {"macro", TPL_N_MACRO, parse_macro},
    {"generation", TPL_N_GENERATION, parse_generation},
    {"break", TPL_N_BREAK, parse_loop_control},
    {"continue", TPL_N_CONTINUE, parse_loop_control},
    {"call", TPL_N_CALLBLOCK, parse_call_block},
    {"filter", TPL_N_FILTERBLOCK, parse_filter_block},
    {"with", TPL_N_WITH, parse_with},
    {"print", TPL_N_OUTPUT, parse_print},
};

static tt_status parse_statement(tpl_parser *p, tpl_node **out)
{
    static const char *const left_out[] = {"extends", "block",      "include", "import",
                                           "from",    "autoescape", NULL};
    tpl_token t = p->token;
    if (t.kind != TPL_T_NAME) return tt_tpl_unexpected(p, "the name of a tag");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!is_name(&t, statements[i].word)) continue;
        TT_TRY(tt_tpl_advance(p));
        TT_TRY(tt_tpl_new_node(p, statements[i].kind, t.line, out));
        return statements[i].parse(p, *out);
    }
    if (at_any(p, left_out))
        return tt_tpl_fail(p, t.line,
                           "{%% %.*s %%}: a chat template is a single file; tags that load or shape others "
                           "are not supported",
                           (int)t.len, t.text);
    return tt_tpl_fail(p, t.line, "unknown tag '%.*s'%s", (int)(t.len < 60 ? t.len : 60), t.text,
                       t.len > 3 && memcmp(t.text, "end", 3) == 0 ? ": no block of this kind is open here"
                                                                  : "");
}

tt_status tt_tpl_parse(tpl_parser *p)
{
    static const char *const fixed[TPL_NUM_FIXED_ATOMS] = {"loop", "varargs", "kwargs", "caller"};
    int atom;
    for (int i = 0; i < TPL_NUM_FIXED_ATOMS; i++) TT_TRY(tt_tpl_intern(p, fixed[i], strlen(fixed[i]), &atom));
    TT_TRY(tt_tpl_lex(&p->lexer, &p->token));
    p->next = p->token;
    if (p->token.kind != TPL_T_END) TT_TRY(tt_tpl_lex(&p->lexer, &p->next));
    TT_TRY(parse_body(p, NULL, 1, &p->template->body));
    return refuse_unknown(p);
}
