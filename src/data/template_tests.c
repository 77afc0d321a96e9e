/* template_tests.c - tests: "value is name". Each gives a boolean. */
#include "data/template_impl.h"

#define TEST(name) static TPL_BUILTIN(name)

/* A test that only asks for the kind or another property of the value. */
#define PROPERTY(name, expression)                                                                           \
    TEST(name)                                                                                               \
    {                                                                                                        \
        *out = tpl_bool(expression);                                                                         \
        return TT_OK;                                                                                        \
    }

static bool is_iterable(const tpl_value *v)
{
    return v->kind == TPL_UNDEFINED || (v->kind >= TPL_STRING && v->kind <= TPL_ITERATOR) ||
           v->kind == TPL_LOOP;
}

/* Has a length and can be subscripted: mappings too. */
static bool is_sequence(const tpl_value *v)
{
    return v->kind == TPL_UNDEFINED || v->kind == TPL_STRING || v->kind == TPL_LIST || v->kind == TPL_TUPLE ||
           v->kind == TPL_MAP || v->kind == TPL_RANGE;
}

PROPERTY(t_defined, self->kind != TPL_UNDEFINED)
PROPERTY(t_undefined, self->kind == TPL_UNDEFINED)
PROPERTY(t_none, self->kind == TPL_NONE)
PROPERTY(t_string, self->kind == TPL_STRING)
PROPERTY(t_mapping, self->kind == TPL_MAP)
PROPERTY(t_iterable, is_iterable(self))
PROPERTY(t_sequence, is_sequence(self))
PROPERTY(t_number, tt_tpl_is_number(self))
PROPERTY(t_integer, self->kind == TPL_INT || self->kind == TPL_BIG)
PROPERTY(t_float, self->kind == TPL_FLOAT)
PROPERTY(t_boolean, self->kind == TPL_BOOL)
PROPERTY(t_true, self->kind == TPL_BOOL && self->as.boolean)
PROPERTY(t_false, self->kind == TPL_BOOL && !self->as.boolean)
PROPERTY(t_callable, self->kind >= TPL_MACRO || self->kind == TPL_UNDEFINED)
PROPERTY(t_escaped, false)
PROPERTY(t_filter, self->kind == TPL_STRING && tt_tpl_find_filter(self->as.text, self->len) != NULL)
PROPERTY(t_test, self->kind == TPL_STRING && tt_tpl_find_test(self->as.text, self->len) != NULL)

TEST(t_eq)
{
    bool equal;
    TT_TRY(tt_tpl_equal(r, self, &a[0], &equal));
    *out = tpl_bool(equal);
    return TT_OK;
}
TEST(t_ne)
{
    bool equal;
    TT_TRY(tt_tpl_equal(r, self, &a[0], &equal));
    *out = tpl_bool(!equal);
    return TT_OK;
}

/* x < y, or x <= y */
static tt_status less(tpl_render *r, const tpl_value *x, const tpl_value *y, const char *op, bool or_equal,
                      tpl_value *out)
{
    bool is, equal = false;
    TT_TRY(tt_tpl_less(r, x, y, op, &is));
    if (!is && or_equal) TT_TRY(tt_tpl_equal(r, x, y, &equal));
    *out = tpl_bool(is || equal);
    return TT_OK;
}
TEST(t_lt)
{
    return less(r, self, &a[0], "<", false, out);
}
TEST(t_le)
{
    return less(r, self, &a[0], "<=", true, out);
}
TEST(t_gt)
{
    return less(r, &a[0], self, ">", false, out);
}
TEST(t_ge)
{
    return less(r, &a[0], self, ">=", true, out);
}

TEST(t_in)
{
    bool found;
    TT_TRY(tt_tpl_contains(r, &a[0], self, &found));
    *out = tpl_bool(found);
    return TT_OK;
}

/* One object, as far as values without identity go. */
TEST(t_sameas)
{
    bool same = self->kind == a[0].kind;
    if (same) TT_TRY(tt_tpl_equal(r, self, &a[0], &same));
    *out = tpl_bool(same);
    return TT_OK;
}

static tt_status remainder_is(tpl_render *r, const tpl_value *v, const tpl_value *by, int64_t rest,
                              tpl_value *out)
{
    tpl_value left;
    const tpl_value wanted = tpl_int(rest);
    if (v->kind == TPL_STRING) return tt_tpl_error("a string has no remainder");
    TT_TRY(tt_tpl_arithmetic(r, '%', v, by, &left));
    *out = tpl_bool(tt_tpl_compare_numbers(&left, &wanted) == 0);
    return TT_OK;
}
TEST(t_odd)
{
    const tpl_value two = tpl_int(2);
    return remainder_is(r, self, &two, 1, out);
}
TEST(t_even)
{
    const tpl_value two = tpl_int(2);
    return remainder_is(r, self, &two, 0, out);
}
TEST(t_divisibleby)
{
    return remainder_is(r, self, &a[0], 0, out);
}

static tt_status case_is(tpl_render *r, const tpl_value *self, bool upper, tpl_value *out)
{
    tpl_value s;
    bool is;
    TT_TRY(tt_tpl_to_text(r, self, &s));
    TT_TRY(tt_tpl_is_case(r, &s, upper, &is));
    *out = tpl_bool(is);
    return TT_OK;
}
TEST(t_upper)
{
    return case_is(r, self, true, out);
}
TEST(t_lower)
{
    return case_is(r, self, false, out);
}

static const tpl_builtin tests[] = {{"defined", t_defined, "", 0},
                                    {"undefined", t_undefined, "", 0},
                                    {"none", t_none, "", 0},
                                    {"string", t_string, "", 0},
                                    {"mapping", t_mapping, "", 0},
                                    {"iterable", t_iterable, "", 0},
                                    {"sequence", t_sequence, "", 0},
                                    {"number", t_number, "", 0},
                                    {"integer", t_integer, "", 0},
                                    {"float", t_float, "", 0},
                                    {"boolean", t_boolean, "", 0},
                                    {"true", t_true, "", 0},
                                    {"false", t_false, "", 0},
                                    {"callable", t_callable, "", 0},
                                    {"escaped", t_escaped, "", 0},
                                    {"filter", t_filter, "", 0},
                                    {"test", t_test, "", 0},
                                    {"eq", t_eq, "other", 1},
                                    {"==", t_eq, "other", 1},
                                    {"equalto", t_eq, "other", 1},
                                    {"ne", t_ne, "other", 1},
                                    {"!=", t_ne, "other", 1},
                                    {"lt", t_lt, "other", 1},
                                    {"<", t_lt, "other", 1},
                                    {"lessthan", t_lt, "other", 1},
                                    {"le", t_le, "other", 1},
                                    {"<=", t_le, "other", 1},
                                    {"gt", t_gt, "other", 1},
                                    {">", t_gt, "other", 1},
                                    {"greaterthan", t_gt, "other", 1},
                                    {"ge", t_ge, "other", 1},
                                    {">=", t_ge, "other", 1},
                                    {"in", t_in, "seq", 1},
                                    {"sameas", t_sameas, "other", 1},
                                    {"odd", t_odd, "", 0},
                                    {"even", t_even, "", 0},
                                    {"divisibleby", t_divisibleby, "num", 1},
                                    {"upper", t_upper, "", 0},
                                    {"lower", t_lower, "", 0},
                                    {0}};

const tpl_builtin *tt_tpl_find_test(const char *name, size_t len)
{
    return tt_tpl_find(tests, name, len);
}
