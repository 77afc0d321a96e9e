/* template_number.c - arithmetic, and numbers from and to text.
 *
 * Integers have 64 bits. Results that need up to 128, and literals of any length, are kept as decimal text
 * (BIG): they print, compare and convert to floats, but arithmetic beyond 128 bits is an error, where Python
 * goes on. Floats print as the shortest text that reads back the same. Nothing here depends on the locale:
 * digits are taken apart by hand and strtod only ever sees digits and an exponent. */
#include "data/template_impl.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;
__extension__ typedef unsigned __int128 uwide;
static const uwide WIDE_MAX = ~(uwide)0 >> 1;

/* --- to and from text --------------------------------------------------------------------------------- */

tpl_value tt_tpl_decimal(const char *text, size_t len)
{
    bool negative = len && text[0] == '-';
    size_t at = negative;
    while (at + 1 < len && text[at] == '0') at++;
    uint64_t v = 0;
    bool fits = true;
    for (size_t i = at; i < len && fits; i++)
        fits =
            !__builtin_mul_overflow(v, 10u, &v) && !__builtin_add_overflow(v, (uint64_t)(text[i] - '0'), &v);
    if (fits && v <= (uint64_t)INT64_MAX + negative) return tpl_int(negative ? (int64_t)(0 - v) : (int64_t)v);
    /* Zeros in front are only ever those of a literal, which has no sign. */
    size_t from = negative ? 0 : at;
    return (tpl_value){.kind = TPL_BIG, .len = (uint32_t)(len - from), .as.text = text + from};
}

static tt_status from_wide(tpl_render *r, wide v, tpl_value *out)
{
    char digits[48];
    size_t at = sizeof digits;
    void *copy;
    if (v >= INT64_MIN && v <= INT64_MAX) {
        *out = tpl_int((int64_t)v);
        return TT_OK;
    }
    uwide u = v < 0 ? (uwide)0 - (uwide)v : (uwide)v;
    for (; u; u /= 10) digits[--at] = (char)('0' + (int)(u % 10));
    if (v < 0) digits[--at] = '-';
    TT_TRY(tt_tpl_take(&r->pool, sizeof digits - at, 1, &copy));
    memcpy(copy, digits + at, sizeof digits - at);
    *out = (tpl_value){.kind = TPL_BIG, .len = (uint32_t)(sizeof digits - at), .as.text = copy};
    return TT_OK;
}

static tt_status too_large(void)
{
    return tt_tpl_error("an integer of more than 128 bits; arithmetic goes no further");
}

static tt_status to_wide(const tpl_value *v, wide *out)
{
    if (v->kind == TPL_BOOL) *out = v->as.boolean;
    if (v->kind == TPL_INT) *out = v->as.integer;
    if (v->kind != TPL_BIG) return TT_OK;
    uwide u = 0;
    bool negative = v->as.text[0] == '-';
    for (uint32_t i = negative; i < v->len; i++) {
        unsigned digit = (unsigned)(v->as.text[i] - '0');
        if (u > (WIDE_MAX - digit) / 10) return too_large();
        u = u * 10 + digit;
    }
    *out = negative ? -(wide)u : (wide)u;
    return TT_OK;
}

bool tt_tpl_parse_double(const char *text, size_t len, double *out)
{
    /* "12_3.45e6" becomes "12345e4": no decimal point, whose form depends on the locale. */
    enum { MOST = 1100 }; /* more digits cannot change the nearest double (767 are enough) */
    char digits[MOST + 32];
    size_t n = 0, at = 0;
    int64_t exponent = 0;
    bool point = false, any = false, nonzero = false;
    if (at < len && (text[at] == '-' || text[at] == '+')) digits[n++] = text[at++];
    for (; at < len; at++) {
        char c = text[at];
        bool between = c == '_' && any && at + 1 < len && isdigit((unsigned char)text[at + 1]) &&
                       text[at - 1] != '_' && text[at - 1] != '.';
        if (c == '.' && !point) {
            point = true;
        } else if (c >= '0' && c <= '9') {
            any = true;
            exponent -= point;
            nonzero = nonzero || c != '0';
            if (n < MOST && nonzero)
                digits[n++] = c;
            else if (!nonzero)
                continue;
            else
                exponent++;
        } else if (!between) {
            break;
        }
    }
    if (!any) return false;
    if (at < len && (text[at] | 0x20) == 'e') {
        bool minus = at + 1 < len && text[at + 1] == '-';
        int64_t e = 0;
        at += minus || (at + 1 < len && text[at + 1] == '+') ? 2 : 1;
        if (at >= len || !isdigit((unsigned char)text[at])) return false;
        for (; at < len && (isdigit((unsigned char)text[at]) || (text[at] == '_' && at + 1 < len)); at++)
            if (text[at] != '_' && e < 1000000) e = e * 10 + text[at] - '0';
        exponent += minus ? -e : e;
    }
    if (!nonzero) digits[n++] = '0';
    snprintf(digits + n, sizeof digits - n, "e%lld", (long long)exponent);
    *out = strtod(digits, NULL);
    return at == len;
}

/* The digits and the decimal exponent of d with `precision` digits; false when they do not read back as d. */
static bool shortest(double d, int precision, char *digits, int *exponent)
{
    char text[64];
    int n = 0;
    snprintf(text, sizeof text, "%.*e", precision - 1, d);
    const char *e = strchr(text, 'e');
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    digits[n] = '\0';
    *exponent = atoi(e + 1);
    return strtod(text, NULL) == d;
}

int tt_tpl_double_text(double d, char out[TPL_DOUBLE_BYTES])
{
    char digits[32];
    int exponent = 0, n = 0;
    if (isnan(d)) return snprintf(out, TPL_DOUBLE_BYTES, "nan");
    if (isinf(d)) return snprintf(out, TPL_DOUBLE_BYTES, d < 0 ? "-inf" : "inf");
    for (int precision = 1; precision <= 17; precision++)
        if (shortest(fabs(d), precision, digits, &exponent)) break;
    int count = (int)strlen(digits);
    while (count > 1 && digits[count - 1] == '0') count--;
    if (signbit(d)) out[n++] = '-';
    if (exponent < -4 || exponent >= 16) {
        out[n++] = digits[0];
        if (count > 1) out[n++] = '.';
        memcpy(out + n, digits + 1, (size_t)count - 1);
        n += count - 1;
        return n + snprintf(out + n, TPL_DOUBLE_BYTES - (size_t)n, "e%c%02d", exponent < 0 ? '-' : '+',
                            abs(exponent));
    }
    if (exponent < 0) {
        out[n++] = '0', out[n++] = '.';
        for (int i = -1; i > exponent; i--) out[n++] = '0';
        memcpy(out + n, digits, (size_t)count);
        n += count;
    } else {
        for (int i = 0; i <= exponent || i < count; i++) {
            if (i == exponent + 1) out[n++] = '.';
            out[n++] = i < count ? digits[i] : '0';
        }
        if (count <= exponent + 1) out[n++] = '.', out[n++] = '0';
    }
    out[n] = '\0';
    return n;
}

tt_status tt_tpl_parse_int(tpl_render *r, const char *text, size_t len, int base, bool *ok, tpl_value *out)
{
    uwide v = 0;
    size_t at = 0;
    bool negative = false, any = false;
    *ok = false;
    if (at < len && (text[at] == '-' || text[at] == '+')) negative = text[at++] == '-';
    if (at + 1 < len && text[at] == '0') {
        int letter = text[at + 1] | 0x20, prefix = letter == 'x'   ? 16
                                                   : letter == 'o' ? 8
                                                   : letter == 'b' ? 2
                                                                   : 0;
        if (prefix && (base == prefix || base == 0)) at += 2, base = prefix;
    }
    if (base == 0) base = 10;
    for (; at < len; at++) {
        int c = text[at] | 0x20, digit = isdigit((unsigned char)text[at]) ? text[at] - '0'
                                         : c >= 'a' && c <= 'z'           ? c - 'a' + 10
                                                                          : 99;
        if (text[at] == '_' && at + 1 < len && text[at + 1] != '_' && at > 0 && text[at - 1] != '-') continue;
        if (digit >= base) return TT_OK;
        if (v > (WIDE_MAX - (unsigned)digit) / (unsigned)base) return too_large();
        v = v * (unsigned)base + (unsigned)digit;
        any = true;
    }
    *ok = any;
    return any ? from_wide(r, negative ? -(wide)v : (wide)v, out) : TT_OK;
}

tt_status tt_tpl_int_from_double(tpl_render *r, double d, bool *ok, tpl_value *out)
{
    *ok = isfinite(d);
    if (!*ok) return TT_OK;
    if (fabs(d) >= 1e38) return too_large();
    return from_wide(r, (wide)trunc(d), out);
}

double tt_tpl_to_double(const tpl_value *v)
{
    double d = 0;
    switch ((tpl_kind)v->kind) {
    case TPL_BOOL:
        return v->as.boolean;
    case TPL_INT:
        return (double)v->as.integer;
    case TPL_BIG:
        tt_tpl_parse_double(v->as.text, v->len, &d);
        return d;
    default:
        return v->as.real;
    }
}

/* --- comparison --------------------------------------------------------------------------------------- */

static int compare_big(const tpl_value *a, const tpl_value *b)
{
    bool negative = a->as.text[0] == '-', other = b->as.text[0] == '-';
    if (negative != other) return negative ? -1 : 1;
    int order = a->len != b->len ? (a->len < b->len ? -1 : 1) : memcmp(a->as.text, b->as.text, a->len);
    if (negative) order = -order;
    return (order > 0) - (order < 0);
}

int tt_tpl_compare_numbers(const tpl_value *a, const tpl_value *b)
{
    if (a->kind == TPL_BIG && b->kind == TPL_BIG) return compare_big(a, b);
    if (a->kind == TPL_BIG && tt_tpl_is_integer(b)) return a->as.text[0] == '-' ? -1 : 1;
    if (b->kind == TPL_BIG && tt_tpl_is_integer(a)) return b->as.text[0] == '-' ? 1 : -1;
    if (a->kind == TPL_FLOAT || b->kind == TPL_FLOAT) {
        /* long double holds 64-bit integers exactly, so that 2**53 + 1 and 2.0**53 differ. */
        long double x = a->kind == TPL_INT ? (long double)a->as.integer : (long double)tt_tpl_to_double(a);
        long double y = b->kind == TPL_INT ? (long double)b->as.integer : (long double)tt_tpl_to_double(b);
        return isnan(x) || isnan(y) ? 2 : (x > y) - (x < y);
    }
    int64_t x = a->kind == TPL_BOOL ? a->as.boolean : a->as.integer;
    int64_t y = b->kind == TPL_BOOL ? b->as.boolean : b->as.integer;
    return (x > y) - (x < y);
}

/* --- arithmetic --------------------------------------------------------------------------------------- */

static bool multiply(wide a, wide b, wide *out)
{
    uwide x = a < 0 ? (uwide)0 - (uwide)a : (uwide)a, y = b < 0 ? (uwide)0 - (uwide)b : (uwide)b;
    if (x && y > WIDE_MAX / x) return false;
    *out = (a < 0) != (b < 0) ? -(wide)(x * y) : (wide)(x * y);
    return true;
}

static tt_status divide_by_zero(int op)
{
    return tt_tpl_error(op == '%' ? "integer modulo by zero" : "division by zero");
}

static tt_status int_power(tpl_render *r, wide a, wide b, tpl_value *out)
{
    wide result = 1;
    if (b < 0) {
        if (a == 0) return tt_tpl_error("0 cannot be raised to a negative power");
        *out = tpl_real(pow((double)a, (double)b));
        return TT_OK;
    }
    if (a == 0 || a == 1 || a == -1) {
        result = b == 0 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : a;
    } else {
        if (b > 127) return too_large();
        for (; b > 0; b--)
            if (!multiply(result, a, &result)) return too_large();
    }
    return from_wide(r, result, out);
}

static tt_status int_arithmetic(tpl_render *r, int op, const tpl_value *x, const tpl_value *y, tpl_value *out)
{
    wide a = 0, b = 0, result = 0;
    if (op == '/') {
        double d = tt_tpl_to_double(y);
        if (d == 0) return divide_by_zero(op);
        *out = tpl_real(tt_tpl_to_double(x) / d);
        return TT_OK;
    }
    TT_TRY(to_wide(x, &a));
    TT_TRY(to_wide(y, &b));
    /* Sums of two numbers below 2^126 fit. */
    wide half = (wide)(WIDE_MAX / 2);
    if ((op == '+' || op == '-') && (a > half || a < -half || b > half || b < -half)) return too_large();
    switch (op) {
    case '+':
        result = a + b;
        break;
    case '-':
        result = a - b;
        break;
    case '*':
        if (!multiply(a, b, &result)) return too_large();
        break;
    case '^':
        return int_power(r, a, b, out);
    default: /* // and %, rounded down */
        if (b == 0) return divide_by_zero(op);
        result = a / b;
        wide rest = a % b;
        if (rest && (rest < 0) != (b < 0)) result--, rest += b;
        if (op == '%') result = rest;
    }
    return from_wide(r, result, out);
}

static tt_status real_power(double a, double b, tpl_value *out)
{
    double d = pow(a, b);
    if (a == 0 && b < 0) return tt_tpl_error("0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        return tt_tpl_error("a negative number has no real power with a fraction");
    if (isinf(d) && isfinite(a) && isfinite(b)) return tt_tpl_error("the result of ** is too large");
    *out = tpl_real(d);
    return TT_OK;
}

static tt_status real_arithmetic(int op, double a, double b, tpl_value *out)
{
    if ((op == '/' || op == '_' || op == '%') && b == 0) return tt_tpl_error("float division by zero");
    switch (op) {
    case '+':
        *out = tpl_real(a + b);
        return TT_OK;
    case '-':
        *out = tpl_real(a - b);
        return TT_OK;
    case '*':
        *out = tpl_real(a * b);
        return TT_OK;
    case '/':
        *out = tpl_real(a / b);
        return TT_OK;
    case '^':
        return real_power(a, b, out);
    default:
        break;
    }
    double rest = fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0))
        rest += b;
    else if (rest == 0)
        rest = copysign(0.0, b);
    if (op == '%') {
        *out = tpl_real(rest);
        return TT_OK;
    }
    double quotient = (a - rest) / b, whole = floor(quotient);
    if (quotient - whole > 0.5) whole += 1;
    *out = tpl_real(quotient == 0 ? copysign(0.0, a / b) : whole);
    return TT_OK;
}

static tt_status bad_operands(int op, const tpl_value *a, const tpl_value *b)
{
    const char *name = op == '_' ? "//" : op == '^' ? "**" : (char[]){(char)op, '\0'};
    if (op == '+' && (a->kind == TPL_STRING || a->kind == TPL_LIST || a->kind == TPL_TUPLE))
        return tt_tpl_error("can only concatenate %s (not \"%s\") to %s", tt_tpl_type_name(a),
                            tt_tpl_type_name(b), tt_tpl_type_name(a));
    return tt_tpl_error("unsupported operand type(s) for %s: '%s' and '%s'", name, tt_tpl_type_name(a),
                        tt_tpl_type_name(b));
}

static tt_status concatenate(tpl_render *r, const tpl_value *a, const tpl_value *b, tpl_value *out)
{
    tpl_value *items;
    if (a->kind == TPL_STRING) {
        size_t begin = r->length;
        TT_TRY(tt_tpl_append(r, a->as.text, a->len));
        TT_TRY(tt_tpl_append(r, b->as.text, b->len));
        return tt_tpl_string_end(r, begin, out);
    }
    size_t n = (size_t)a->len + b->len;
    TT_TRY(tt_tpl_new_items(r, n, &items));
    if (a->len) memcpy(items, a->as.items, a->len * sizeof *items);
    if (b->len) memcpy(items + a->len, b->as.items, b->len * sizeof *items);
    *out = a->kind == TPL_LIST ? tpl_list(items, n) : tpl_tuple(items, n);
    return TT_OK;
}

static tt_status repeat(tpl_render *r, const tpl_value *v, const tpl_value *times, tpl_value *out)
{
    tpl_value *items;
    int64_t n, total;
    TT_TRY(tt_tpl_get_int(times, "the number of repetitions", 0, &n));
    if (n < 0) n = 0;
    if (v->kind == TPL_STRING) {
        size_t begin = r->length;
        TT_TRY(tt_tpl_append_fill(r, v->as.text, v->len, n));
        return tt_tpl_string_end(r, begin, out);
    }
    if (__builtin_mul_overflow(n, (int64_t)v->len, &total) || total > TPL_MAX_MEMORY)
        return tt_tpl_error("a list of %u elements repeated %lld times is too large", v->len, (long long)n);
    TT_TRY(tt_tpl_new_items(r, (size_t)total, &items));
    for (int64_t i = 0; i < total; i++) items[i] = v->as.items[i % v->len];
    *out = *v;
    out->as.items = items;
    out->len = (uint32_t)total;
    return TT_OK;
}

static bool is_sequence(const tpl_value *v)
{
    return v->kind == TPL_STRING || v->kind == TPL_LIST || v->kind == TPL_TUPLE;
}

tt_status tt_tpl_arithmetic(tpl_render *r, int op, const tpl_value *a, const tpl_value *b, tpl_value *out)
{
    if (op == '%' && a->kind == TPL_STRING) return tt_tpl_format_percent(r, a, b, out);
    if (a->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(a);
    if (b->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(b);
    if (tt_tpl_is_integer(a) && tt_tpl_is_integer(b)) return int_arithmetic(r, op, a, b, out);
    if (tt_tpl_is_number(a) && tt_tpl_is_number(b))
        return real_arithmetic(op, tt_tpl_to_double(a), tt_tpl_to_double(b), out);
    if (op == '+' && a->kind == b->kind && is_sequence(a)) return concatenate(r, a, b, out);
    if (op == '*' && is_sequence(a) && tt_tpl_is_integer(b)) return repeat(r, a, b, out);
    if (op == '*' && is_sequence(b) && tt_tpl_is_integer(a)) return repeat(r, b, a, out);
    return bad_operands(op, a, b);
}

tt_status tt_tpl_negate(tpl_render *r, const tpl_value *a, tpl_value *out)
{
    if (a->kind == TPL_FLOAT) {
        *out = tpl_real(-a->as.real);
        return TT_OK;
    }
    if (a->kind == TPL_BIG) {
        void *copy;
        bool negative = a->as.text[0] == '-';
        if (negative) {
            *out = tt_tpl_decimal(a->as.text + 1, a->len - 1);
            return TT_OK;
        }
        TT_TRY(tt_tpl_take(&r->pool, (size_t)a->len + 1, 1, &copy));
        *(char *)copy = '-';
        memcpy((char *)copy + 1, a->as.text, a->len);
        *out = tt_tpl_decimal(copy, (size_t)a->len + 1);
        return TT_OK;
    }
    tpl_value zero = tpl_int(0);
    return int_arithmetic(r, '-', &zero, a, out);
}
