/* template_impl.h - what the files of the template engine share. Not for use outside src/data/template_*.c.
 *
 *   template_lex.c          source -> tokens; white space rules
 *   template_parse.c        tokens -> tree: statements
 *   template_parse_expr.c   tokens -> tree: expressions
 *   template_exec.c         runs statements
 *   template_eval.c         evaluates expressions
 *   template_value.c        values: kinds, truth, items, equality, order
 *   template_map.c          mappings, values from JSON
 *   template_number.c       arithmetic, numbers to and from text
 *   template_text.c         code points, white space, letter case
 *   template_print.c        values as text: str, repr, tojson
 *   template_filters.c      filters; template_select.c those that look into the items of a sequence
 *   template_tests.c        tests
 *   template_strings.c      methods of strings; template_methods.c those of other kinds, and members of loop
 *   template_globals.c      functions that every template can call
 *   template_format.c       "..." % values and "...".format(...)
 *   template_memory.c       pools, the output buffer, limits
 *
 * A template is compiled once into a tree that nothing changes afterwards; its memory is one pool. A
 * rendering has a pool of its own, freed as a whole: values are never freed one by one, so failure paths have
 * nothing to undo. Values are immutable, except for namespaces and iterators; copies share what they point to.
 *
 * Limits (all of them errors, never cuts): see the constants below. "Steps" are what bounds time: one for
 * every node that is evaluated, every element that is visited and every 32 bytes of text that move. */
#ifndef TT_DATA_TEMPLATE_IMPL_H
#define TT_DATA_TEMPLATE_IMPL_H

#include "tartan/chat_template.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TPL_MAX_SOURCE = 4 << 20,   /* bytes of a template */
    TPL_MAX_NESTING = 150,      /* blocks and brackets inside each other */
    TPL_MAX_DEPTH = 1000,       /* evaluations inside each other: macros, long chains of operators, data */
    TPL_MAX_RANGE = 100000,     /* numbers of one range() */
    TPL_MAX_STEPS = 100000000,  /* about ten million short loop iterations */
    TPL_MAX_TEXT = 64 << 20,    /* bytes of output, and of any string on the way to it */
    TPL_MAX_MEMORY = 512 << 20, /* bytes of all values of one rendering */
    TPL_MAX_PARAMS = 6          /* of a built-in function */
};

/* --- memory ------------------------------------------------------------------------------------------- */

typedef struct tpl_chunk tpl_chunk;
typedef struct tpl_pool {
    tpl_chunk *chunks; /* newest first */
    size_t total;      /* bytes of all chunks */
} tpl_pool;

/* tt_tpl_take - count elements of size bytes, zeroed, 16-byte aligned; lives as long as the pool. */
tt_status tt_tpl_take(tpl_pool *pool, size_t count, size_t size, void **out);
void tt_tpl_pool_free(tpl_pool *pool);

/* --- values ------------------------------------------------------------------------------------------- */

typedef enum tpl_kind {
    TPL_ABSENT, /* no value at all: an argument that was not given, a name not looked up yet */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_BIG, /* an integer beyond 64 bits, as decimal text */
    TPL_FLOAT,
    TPL_STRING,
    TPL_LIST,
    TPL_TUPLE,
    TPL_MAP,
    TPL_VIEW, /* what items(), keys(), values() of a mapping give */
    TPL_RANGE,
    TPL_ITERATOR, /* what map, select and the like give: true, without length, can be walked once */
    TPL_SLICE,    /* only as a subscript */
    TPL_NAMESPACE,
    TPL_MACRO,
    TPL_LOOP,
    TPL_FUNCTION
} tpl_kind;

/* Why something is undefined, for the message when it is used. */
enum { TPL_NO_NAME, TPL_NO_ATTRIBUTE, TPL_NO_ELEMENT, TPL_NO_PARAMETER, TPL_NO_REASON };
enum { TPL_VIEW_ITEMS, TPL_VIEW_KEYS, TPL_VIEW_VALUES };

typedef struct tpl_value tpl_value;
typedef struct tpl_map tpl_map;
typedef struct tpl_node tpl_node;
typedef struct tpl_env tpl_env;
typedef struct tpl_render tpl_render;
typedef struct tpl_loop tpl_loop;
typedef struct tpl_builtin tpl_builtin;

typedef struct tpl_range {
    int64_t start, step, count;
} tpl_range;

struct tpl_value {
    uint8_t kind;
    uint8_t aux;    /* UNDEFINED: why; VIEW: of what */
    uint16_t extra; /* UNDEFINED: kind of the object that lacks the attribute */
    uint32_t len;   /* STRING, BIG: bytes; LIST, TUPLE: elements; SLICE: 3 */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text; /* not terminated; UNDEFINED: the name */
        const tpl_value *items;
        tpl_map *map; /* MAP, VIEW, NAMESPACE */
        const tpl_range *range;
        struct tpl_iterator *iterator;
        const struct tpl_macro *macro;
        tpl_loop *loop;
        const struct tpl_function *function;
    } as;
};

typedef struct tpl_iterator {
    const tpl_value *items;
    uint32_t count, next;
} tpl_iterator;

typedef struct tpl_macro {
    const tpl_node *node; /* TPL_N_MACRO or TPL_N_CALLBLOCK */
    tpl_env *env;         /* where it was defined */
} tpl_macro;

typedef struct tpl_args {
    int count, named;
    const tpl_value *values;       /* count */
    const tpl_value *names;        /* named: strings */
    const tpl_value *named_values; /* named */
} tpl_args;

/* A built-in filter, test, method or global. self is the filtered or tested value or the method's object.
 * a holds the arguments in the order of params, TPL_ABSENT where not given; with params NULL only `all`
 * counts. */
typedef tt_status (*tpl_run)(tpl_render *r, const tpl_value *self, const tpl_value *a, const tpl_args *all,
                             tpl_value *out);
struct tpl_builtin {
    const char *name;
    tpl_run run;
    const char *params; /* names, separated by blanks */
    int required;
};
/* The head of such a function; not every one needs all of its arguments. */
#define TPL_BUILTIN(name)                                                                                    \
    tt_status name(__attribute__((unused)) tpl_render *r, __attribute__((unused)) const tpl_value *self,     \
                   __attribute__((unused)) const tpl_value *a, __attribute__((unused)) const tpl_args *all,  \
                   __attribute__((unused)) tpl_value *out)
typedef struct tpl_function {
    const tpl_builtin *builtin;
    tpl_value self;
} tpl_function;

/* Short constructors. */
static inline tpl_value tpl_none(void)
{
    return (tpl_value){.kind = TPL_NONE};
}
static inline tpl_value tpl_bool(bool b)
{
    return (tpl_value){.kind = TPL_BOOL, .as.boolean = b};
}
static inline tpl_value tpl_int(int64_t i)
{
    return (tpl_value){.kind = TPL_INT, .as.integer = i};
}
static inline tpl_value tpl_real(double d)
{
    return (tpl_value){.kind = TPL_FLOAT, .as.real = d};
}
static inline tpl_value tpl_text(const char *text, size_t len)
{
    return (tpl_value){.kind = TPL_STRING, .len = (uint32_t)len, .as.text = text};
}
static inline tpl_value tpl_list(const tpl_value *items, size_t count)
{
    return (tpl_value){.kind = TPL_LIST, .len = (uint32_t)count, .as.items = items};
}
static inline tpl_value tpl_tuple(const tpl_value *items, size_t count)
{
    return (tpl_value){.kind = TPL_TUPLE, .len = (uint32_t)count, .as.items = items};
}
bool tt_tpl_is_text(const tpl_value *v, const char *text);

/* --- tree --------------------------------------------------------------------------------------------- */

typedef enum tpl_node_kind {
    /* expressions */
    TPL_N_CONST,
    TPL_N_NAME,
    TPL_N_LIST,
    TPL_N_TUPLE,
    TPL_N_DICT,    /* key, value, key, value ... */
    TPL_N_COND,    /* three: test, value, other or NULL */
    TPL_N_OR,      /* two */
    TPL_N_AND,     /* two */
    TPL_N_NOT,     /* one */
    TPL_N_COMPARE, /* list, ops[i] between i and i + 1 */
    TPL_N_BINARY,  /* two, op */
    TPL_N_CONCAT,  /* list */
    TPL_N_NEGATE,  /* one */
    TPL_N_PLUS,    /* one */
    TPL_N_ATTR,    /* one, name */
    TPL_N_ITEM,    /* two */
    TPL_N_SLICE,   /* three, each may be NULL */
    TPL_N_CALL,    /* one, args */
    TPL_N_FILTER,  /* one (NULL in set and filter blocks), name, builtin, args */
    TPL_N_TEST,    /* one, name, builtin, args; op 1: negated */
    TPL_N_FIELD,   /* name of a namespace and its attribute, as a target only */
    /* statements */
    TPL_N_TEXT,
    TPL_N_OUTPUT,      /* one */
    TPL_N_IF,          /* list: test, test ...; bodies; the last body has no test */
    TPL_N_FOR,         /* target, one: iterable, two: test or NULL; bodies: loop, else; op 1: recursive */
    TPL_N_SET,         /* target, one */
    TPL_N_SETBLOCK,    /* target, one: filter chain or NULL; bodies */
    TPL_N_FILTERBLOCK, /* one; bodies */
    TPL_N_WITH,        /* list: target, value ...; bodies */
    TPL_N_MACRO,       /* atom, params; bodies */
    TPL_N_CALLBLOCK,   /* one: the call, params; bodies */
    TPL_N_GENERATION,  /* bodies */
    TPL_N_BREAK,
    TPL_N_CONTINUE
} tpl_node_kind;

typedef struct tpl_body {
    tpl_node **items;
    int count;
} tpl_body;

typedef struct tpl_params {
    int count;
    const int *atoms;
    tpl_node **defaults; /* count, NULL where there is none */
    unsigned uses;       /* TPL_USES_*: which of the special names the body reads */
} tpl_params;
enum { TPL_USES_VARARGS = 1, TPL_USES_KWARGS = 2, TPL_USES_CALLER = 4 };

typedef struct tpl_call_args {
    int count, named;
    tpl_node **values;
    tpl_value *names;
    tpl_node **named_values;
} tpl_call_args;

struct tpl_node {
    uint8_t kind;
    uint8_t op;
    int line;
    int atom; /* NAME, MACRO, FIELD */
    tpl_node *one, *two, *three;
    union {
        tpl_value constant; /* CONST, TEXT */
        struct {
            tpl_value name;             /* ATTR, FILTER, TEST, FIELD */
            const tpl_builtin *builtin; /* NULL: no such filter or test, an error when reached */
            tpl_call_args args;
        } call;
        struct {
            tpl_node **items;
            uint8_t *ops;
            int count;
        } list;
        struct {
            tpl_node *target;
            const tpl_params *params;
            tpl_node **tests;
            tpl_body *bodies;
            int num_tests, num_bodies;
        } block;
    } as;
};

/* Names of variables are numbered per template; these come first in each. */
enum { TPL_ATOM_LOOP, TPL_ATOM_VARARGS, TPL_ATOM_KWARGS, TPL_ATOM_CALLER, TPL_NUM_FIXED_ATOMS };

struct tt_template {
    tpl_pool pool;
    const char *name; /* in the pool */
    tpl_body body;
    tpl_value *atoms; /* strings */
    int num_atoms;
    int num_generations;
    int lost_line; /* line of a generation block whose place is unknown, 0 if there is none */
};

/* --- lexer and parser --------------------------------------------------------------------------------- */

typedef enum tpl_token_kind {
    TPL_T_END,
    TPL_T_TEXT,
    TPL_T_OUTPUT_BEGIN,
    TPL_T_OUTPUT_END,
    TPL_T_BLOCK_BEGIN,
    TPL_T_BLOCK_END,
    TPL_T_NAME,
    TPL_T_STRING, /* value: what the literal means */
    TPL_T_INTEGER,
    TPL_T_FLOAT,
    TPL_T_OP /* op: one character, or two as TPL_OP2 */
} tpl_token_kind;
#define TPL_OP2(a, b) ((a) << 8 | (b))

typedef struct tpl_token {
    tpl_token_kind kind;
    int op;
    int line;
    const char *text;
    size_t len;
    tpl_value value;
} tpl_token;

typedef struct tpl_lexer {
    tpl_pool *pool;
    const char *name; /* of the template */
    const char *at, *end;
    int line;
    bool line_starting;    /* the last tag ended with a line end */
    tpl_token_kind inside; /* OUTPUT_BEGIN, BLOCK_BEGIN, or END for text */
    tpl_token pending;     /* a begin token behind the text before it */
    bool has_pending;
    int num_brackets;
    char brackets[TPL_MAX_NESTING]; /* the closing ones that are due */
} tpl_lexer;

/* tt_tpl_lex_begin - source of the given length, valid UTF-8; normalises line ends into the pool. */
tt_status tt_tpl_lex_begin(tpl_lexer *x, tpl_pool *pool, const char *name, const char *source, size_t bytes);
tt_status tt_tpl_lex(tpl_lexer *x, tpl_token *out);

typedef struct tpl_parser {
    tt_template *template;
    tpl_lexer lexer;
    tpl_token token, next; /* the current one and the one behind it */
    int nesting;
    int loops;         /* loops that break and continue can leave from here */
    int all_loops;     /* the same, also seen through macros */
    int captures;      /* blocks around this place whose output becomes a string */
    unsigned uses;     /* special names read in the macro that is being parsed */
    int unknown_line;  /* first unknown filter or test that is no error yet, 0 if there is none */
    tpl_value unknown; /* its name */
    bool unknown_test;
    int atom_capacity;
} tpl_parser;

tt_status tt_tpl_parse(tpl_parser *p);
tt_status tt_tpl_fail(const tpl_parser *p, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
tt_status tt_tpl_advance(tpl_parser *p);
bool tt_tpl_at_op(const tpl_parser *p, int op);
bool tt_tpl_at_name(const tpl_parser *p, const char *name);
tt_status tt_tpl_skip_op(tpl_parser *p, int op, bool *skipped);
tt_status tt_tpl_skip_name(tpl_parser *p, const char *name, bool *skipped);
tt_status tt_tpl_expect_op(tpl_parser *p, int op);
tt_status tt_tpl_expect(tpl_parser *p, tpl_token_kind kind);
tt_status tt_tpl_unexpected(const tpl_parser *p, const char *wanted);
tt_status tt_tpl_nest(tpl_parser *p);
tt_status tt_tpl_new_node(tpl_parser *p, tpl_node_kind kind, int line, tpl_node **out);
tt_status tt_tpl_intern(tpl_parser *p, const char *text, size_t len, int *atom);
/* tt_tpl_push - append to an array in the template's pool. */
tt_status tt_tpl_push(tpl_parser *p, tpl_node ***items, int *count, tpl_node *item);

tt_status tt_tpl_parse_expression(tpl_parser *p, bool with_condition, tpl_node **out);
/* tt_tpl_parse_tuple - one expression or several with commas. */
tt_status tt_tpl_parse_tuple(tpl_parser *p, bool with_condition, tpl_node **out);
/* tt_tpl_parse_target - what for, set and with assign to; `fields`: a namespace's attribute is allowed. */
tt_status tt_tpl_parse_target(tpl_parser *p, bool fields, tpl_node **out);
tt_status tt_tpl_parse_target_name(tpl_parser *p, int *atom);
/* tt_tpl_parse_filters - "name(...)|name ..." applied to *node, which may be NULL. */
tt_status tt_tpl_parse_filters(tpl_parser *p, bool bar_first, tpl_node **node);

/* --- rendering ---------------------------------------------------------------------------------------- */

typedef struct tpl_binding {
    int atom;
    tpl_value value;
} tpl_binding;

/* A scope. One that a macro has seen is kept; others are used again by the next iteration. */
struct tpl_env {
    tpl_env *parent;
    tpl_binding *bindings;
    int count, capacity;
    bool captured;
};

struct tpl_loop {
    const tpl_node *node;
    tpl_env *env; /* around the loop */
    const tpl_value *items;
    uint32_t count, next; /* next: first item that the test has not seen */
    bool filtered;        /* items must still pass the test */
    bool peeked;          /* `after` holds the next item, TPL_ABSENT at the end */
    int64_t index;        /* from 0; -1 before the first */
    int64_t length;       /* -1: not known yet */
    int depth;
    tpl_value previous, current, after;
    tpl_value changed; /* last arguments of loop.changed */
    tpl_env test;      /* scope of the test */
};

typedef enum tpl_flow { TPL_FLOW_ON, TPL_FLOW_BREAK, TPL_FLOW_CONTINUE } tpl_flow;

struct tpl_render {
    const tt_template *template;
    const json_t *variables;
    tpl_pool pool;
    tpl_env root;
    tpl_value *globals; /* per atom: the variable or built-in of that name; TPL_ABSENT: not looked up yet */
    /* The output. Strings are built at its end and then taken off (tt_tpl_string_end), so captures, filters
     * and the final text share one buffer. */
    char *text;
    size_t length, capacity;
    tt_rendering *result;
    int64_t span_capacity;
    int captures, generations; /* how many are open */
    int line;
    int depth;
    int64_t steps;
    tpl_flow flow;
};

/* Time and depth. An error ends the rendering, so nobody restores the depth on the way out. */
tt_status tt_tpl_charge(tpl_render *r, size_t steps);
tt_status tt_tpl_enter(tpl_render *r);
static inline void tt_tpl_leave(tpl_render *r)
{
    r->depth--;
}

/* Output. */
tt_status tt_tpl_append(tpl_render *r, const char *text, size_t len);
tt_status tt_tpl_append_fill(tpl_render *r, const char *text, size_t len, int64_t count);
tt_status tt_tpl_append_code_point(tpl_render *r, int32_t c);
tt_status tt_tpl_appendf(tpl_render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* tt_tpl_string_end - the output from `begin` on becomes a string and is taken off. */
tt_status tt_tpl_string_end(tpl_render *r, size_t begin, tpl_value *out);

/* TT_EDATA with a reason; the public function puts name and line in front. */
tt_status tt_tpl_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
tt_status tt_tpl_undefined_error(const tpl_value *v);

tt_status tt_tpl_run_body(tpl_render *r, tpl_env *env, const tpl_body *body);
tt_status tt_tpl_eval(tpl_render *r, tpl_env *env, const tpl_node *n, tpl_value *out);
tt_status tt_tpl_eval_filter(tpl_render *r, tpl_env *env, const tpl_node *n, const tpl_value *subject,
                             tpl_value *out);
tt_status tt_tpl_call_value(tpl_render *r, const tpl_value *callee, const tpl_args *args, tpl_value *out);
tt_status tt_tpl_call_builtin(tpl_render *r, const tpl_builtin *b, const tpl_value *self,
                              const tpl_args *args, tpl_value *out);
tt_status tt_tpl_call_macro(tpl_render *r, const tpl_macro *m, const tpl_args *args, tpl_value *out);
tt_status tt_tpl_call_loop(tpl_render *r, tpl_loop *l, const tpl_args *args, tpl_value *out);
tt_status tt_tpl_lookup(tpl_render *r, const tpl_env *env, int atom, tpl_value *out);
tt_status tt_tpl_bind(tpl_render *r, tpl_env *env, int atom, const tpl_value *v);
tt_status tt_tpl_assign(tpl_render *r, tpl_env *env, const tpl_node *target, const tpl_value *v);
/* tt_tpl_loop_peek - l->after becomes the next item that passes the test, TPL_ABSENT at the end. */
tt_status tt_tpl_loop_peek(tpl_render *r, tpl_loop *l);
tt_status tt_tpl_loop_length(tpl_render *r, tpl_loop *l);

/* Attributes: object.name, object[key]. */
tt_status tt_tpl_attribute(tpl_render *r, const tpl_value *object, const tpl_value *name, tpl_value *out);
tt_status tt_tpl_item(tpl_render *r, const tpl_value *object, const tpl_value *key, tpl_value *out);
/* tt_tpl_method - *found false when the kind has no such attribute. */
tt_status tt_tpl_method(tpl_render *r, const tpl_value *object, const tpl_value *name, bool *found,
                        tpl_value *out);

const tpl_builtin *tt_tpl_find_filter(const char *name, size_t len);
const tpl_builtin *tt_tpl_find_test(const char *name, size_t len);
const tpl_builtin *tt_tpl_find_global(const char *name, size_t len);
const tpl_builtin *tt_tpl_find(const tpl_builtin *table, const char *name, size_t len);
extern const tpl_builtin tt_tpl_string_methods[]; /* template_strings.c */
extern const tpl_builtin tt_tpl_select_filters[]; /* template_select.c; tt_tpl_find_filter knows them */

/* --- operations on values ----------------------------------------------------------------------------- */

const char *tt_tpl_type_name(const tpl_value *v);
bool tt_tpl_truth(const tpl_value *v);
bool tt_tpl_is_number(const tpl_value *v);  /* booleans too */
bool tt_tpl_is_integer(const tpl_value *v); /* booleans and big ones too */
tt_status tt_tpl_length(tpl_render *r, const tpl_value *v, int64_t *out);
/* tt_tpl_items - what a loop over v visits; an iterator is used up. */
tt_status tt_tpl_items(tpl_render *r, const tpl_value *v, const tpl_value **items, uint32_t *count);
tt_status tt_tpl_new_items(tpl_render *r, size_t count, tpl_value **out);
tt_status tt_tpl_iterator(tpl_render *r, const tpl_value *items, size_t count, tpl_value *out);
tt_status tt_tpl_equal(tpl_render *r, const tpl_value *a, const tpl_value *b, bool *out);
/* tt_tpl_less - a < b, or an error when kinds have no order; `op` for the message. */
tt_status tt_tpl_less(tpl_render *r, const tpl_value *a, const tpl_value *b, const char *op, bool *out);
tt_status tt_tpl_contains(tpl_render *r, const tpl_value *container, const tpl_value *v, bool *out);
tt_status tt_tpl_slice(tpl_render *r, const tpl_value *v, const tpl_value *bounds, tpl_value *out);
/* tt_tpl_get_int - an argument that must be an integer of 64 bits; TPL_ABSENT gives the fallback. */
tt_status tt_tpl_get_int(const tpl_value *v, const char *what, int64_t fallback, int64_t *out);
tt_status tt_tpl_get_text(const tpl_value *v, const char *what);
tt_status tt_tpl_from_json(tpl_render *r, const json_t *j, tpl_value *out);

/* Mappings. */
typedef struct tpl_entry {
    tpl_value key, value;
} tpl_entry;
struct tpl_map {
    tpl_entry *entries; /* in order of insertion */
    uint32_t count, capacity;
    uint32_t *index; /* positions + 1, NULL for small mappings; its size is a power of two */
    uint32_t index_size;
};
tt_status tt_tpl_map_create(tpl_render *r, size_t capacity, tpl_value *out);
/* tt_tpl_map_put - a key that is there keeps its place. Errors: a key without hash (list, mapping). */
tt_status tt_tpl_map_put(tpl_render *r, tpl_map *m, const tpl_value *key, const tpl_value *value);
/* tt_tpl_map_find - *out is NULL when there is no such key. */
tt_status tt_tpl_map_find(tpl_render *r, const tpl_map *m, const tpl_value *key, const tpl_value **out);
/* tt_tpl_is_case - str.isupper or str.islower. */
tt_status tt_tpl_is_case(tpl_render *r, const tpl_value *s, bool upper, bool *out);
bool tt_tpl_hashable(const tpl_value *v);

/* Numbers. */
tt_status tt_tpl_arithmetic(tpl_render *r, int op, const tpl_value *a, const tpl_value *b, tpl_value *out);
tt_status tt_tpl_negate(tpl_render *r, const tpl_value *a, tpl_value *out);
/* -1, 0, 1; 2 when one is not a number (NaN). Both must be numbers. */
int tt_tpl_compare_numbers(const tpl_value *a, const tpl_value *b);
double tt_tpl_to_double(const tpl_value *number);
/* tt_tpl_parse_double - decimal text, underscores between digits allowed, whatever the locale says. */
bool tt_tpl_parse_double(const char *text, size_t len, double *out);
tt_status tt_tpl_parse_int(tpl_render *r, const char *text, size_t len, int base, bool *ok, tpl_value *out);
tt_status tt_tpl_int_from_double(tpl_render *r, double d, bool *ok, tpl_value *out);
/* tt_tpl_decimal - sign and digits of an integer text in canonical form: BIG when it does not fit 64 bits. */
tpl_value tt_tpl_decimal(const char *text, size_t len);
enum { TPL_DOUBLE_BYTES = 32 };
/* tt_tpl_double_text - shortest text that reads back as d, in Python's form. */
int tt_tpl_double_text(double d, char out[TPL_DOUBLE_BYTES]);

/* Text. All strings are valid UTF-8. */
size_t tt_tpl_code_point(const char *s, size_t len, int32_t *c);
int64_t tt_tpl_count_code_points(const char *s, size_t len);
size_t tt_tpl_encode(int32_t c, char out[4]);
bool tt_tpl_is_space(int32_t c);
bool tt_tpl_is_printable(int32_t c);
bool tt_tpl_is_letter(int32_t c);
const char *tt_tpl_find_text(const char *text, size_t len, const char *part, size_t part_len);
size_t tt_tpl_skip_space(const char *s, size_t len);
size_t tt_tpl_strip_end(const char *s, size_t len); /* length without white space at the end */
typedef enum { TPL_UPPER, TPL_LOWER, TPL_TITLE, TPL_CAPITALIZE, TPL_SWAPCASE, TPL_CASEFOLD } tpl_letter_case;
tt_status tt_tpl_append_case(tpl_render *r, const char *s, size_t len, tpl_letter_case how);
/* tt_tpl_strip - without the characters of `set` (NULL: white space) at the ends; shares the text. */
tt_status tt_tpl_strip(tpl_render *r, const tpl_value *s, const tpl_value *set, bool left, bool right,
                       tpl_value *out);
tt_status tt_tpl_replace(tpl_render *r, const tpl_value *s, const tpl_value *old, const tpl_value *by,
                         int64_t limit, tpl_value *out);

/* Printing, to the end of the output. */
tt_status tt_tpl_print(tpl_render *r, const tpl_value *v);
tt_status tt_tpl_repr(tpl_render *r, const tpl_value *v);
/* tt_tpl_to_text - str(v) as a string value; strings are returned as they are. */
tt_status tt_tpl_to_text(tpl_render *r, const tpl_value *v, tpl_value *out);
tt_status tt_tpl_tojson(tpl_render *r, const tpl_value *self, const tpl_value *a, const tpl_args *all,
                        tpl_value *out);
/* "..." % values and "...".format(values). */
tt_status tt_tpl_format_percent(tpl_render *r, const tpl_value *format, const tpl_value *values,
                                tpl_value *out);
tt_status tt_tpl_format_braces(tpl_render *r, const tpl_value *format, const tpl_args *args, tpl_value *out);

/* make_attrgetter: "a.b.0" applied to an item; used by map, selectattr, sort, join, sum ... */
tt_status tt_tpl_path(tpl_render *r, const tpl_value *item, const tpl_value *path, const tpl_value *fallback,
                      tpl_value *out);

#endif
