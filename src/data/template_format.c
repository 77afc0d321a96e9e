/* template_format.c - "..." % values and "...".format(...), as Python has them.
 *
 * Both end in one description of a field (spec) and the same printing of numbers and padding.
 * Left out: %a and !a, widths by '*', fields inside the specification of a field. */
#include "data/template_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 300 };

typedef struct spec {
    tpl_value fill;           /* one character */
    char align;               /* '<' '>' '^', '=' (between sign and digits), or 0 */
    char sign;                /* '+', ' ' or 0 */
    char group;               /* ',' or '_' between thousands, or 0 */
    bool alternate;           /* 0x and the like */
    int64_t width, precision; /* precision -1: not given */
    char type;
} spec;

/* --- printing a field --------------------------------------------------------------------------------- */

/* sign and prefix, then body, padded to the width. */
static tt_status put_padded(tpl_render *r, const spec *s, const char *head, const tpl_value *body, char align)
{
    int64_t n = tt_tpl_count_code_points(body->as.text, body->len) + (int64_t)strlen(head);
    int64_t missing = s->width > n ? s->width - n : 0;
    int64_t left = align == '>' || align == '=' ? missing : align == '^' ? missing / 2 : 0;
    if (align == '=') TT_TRY(tt_tpl_append(r, head, strlen(head)));
    TT_TRY(tt_tpl_append_fill(r, s->fill.as.text, s->fill.len, left));
    if (align != '=') TT_TRY(tt_tpl_append(r, head, strlen(head)));
    TT_TRY(tt_tpl_append(r, body->as.text, body->len));
    return tt_tpl_append_fill(r, s->fill.as.text, s->fill.len, missing - left);
}

static tt_status put_text(tpl_render *r, const spec *s, tpl_value text)
{
    if (s->precision >= 0) {
        const tpl_value bounds[3] = {tpl_none(), tpl_int(s->precision), tpl_none()};
        TT_TRY(tt_tpl_slice(r, &text, bounds, &text));
    }
    return put_padded(r, s, "", &text, s->align ? s->align : '<');
}

/* digits[.fraction] with separators between the thousands of the whole part. */
static tt_status put_number(tpl_render *r, const spec *s, bool negative, const char *prefix,
                            const char *digits)
{
    char head[8], text[MOST_DIGITS * 3];
    size_t n = 0, whole = strspn(digits, "0123456789");
    snprintf(head, sizeof head, "%s%s",
             negative         ? "-"
             : s->sign == '+' ? "+"
             : s->sign == ' ' ? " "
                              : "",
             prefix);
    for (size_t i = 0; digits[i] && n + 2 < sizeof text; i++) {
        if (s->group && i && i < whole && (whole - i) % 3 == 0) text[n++] = s->group;
        text[n++] = digits[i];
    }
    const tpl_value body = tpl_text(text, n);
    return put_padded(r, s, head, &body, s->align ? s->align : '>');
}

static tt_status put_int(tpl_render *r, const spec *s, const tpl_value *v)
{
    char digits[MOST_DIGITS];
    size_t at = sizeof digits - 1;
    unsigned base = s->type == 'x' || s->type == 'X' ? 16 : s->type == 'o' ? 8 : s->type == 'b' ? 2 : 10;
    const char *prefix = !s->alternate ? ""
                         : base == 16  ? (s->type == 'X' ? "0X" : "0x")
                         : base == 8   ? "0o"
                         : base == 2   ? "0b"
                                       : "";
    int64_t x = v->kind == TPL_BOOL ? v->as.boolean : v->as.integer;
    if (v->kind == TPL_BIG) {
        bool negative = v->as.text[0] == '-';
        if (base != 10 || v->len >= sizeof digits)
            return tt_tpl_error("the integer is too large to be formatted");
        snprintf(digits, sizeof digits, "%.*s", (int)(v->len - negative), v->as.text + negative);
        return put_number(r, s, negative, "", digits);
    }
    uint64_t u = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    digits[at] = '\0';
    do digits[--at] = (s->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[u % base];
    while (u /= base);
    while ((int64_t)(sizeof digits - 1 - at) < s->precision && at > 0) digits[--at] = '0';
    return put_number(r, s, x < 0, prefix, digits + at);
}

/* The C library may write the decimal point of its locale. */
static void fix_point(char *text)
{
    char *comma = strchr(text, ',');
    if (comma) *comma = '.';
}

static tt_status put_float(tpl_render *r, const spec *s, double d)
{
    char text[MOST_DIGITS * 3], format[16];
    char type = s->type ? s->type : s->precision < 0 ? 'r' : 'g';
    int precision = s->precision < 0 ? 6 : (int)s->precision;
    if (s->precision > MOST_DIGITS) return tt_tpl_error("a precision of more than %d digits", MOST_DIGITS);
    if (type == 'r') {
        tt_tpl_double_text(fabs(d), text);
    } else {
        snprintf(format, sizeof format, "%%%s.*%c", s->alternate ? "#" : "",
                 type == '%'   ? 'f'
                 : type == 'n' ? 'g'
                               : type);
        snprintf(text, sizeof text - 2, format, precision, fabs(type == '%' ? d * 100 : d));
        fix_point(text);
        if (!s->type && isfinite(d) && strspn(text, "0123456789") == strlen(text)) strcat(text, ".0");
    }
    if (type == '%') strcat(text, "%");
    return put_number(r, s, signbit(d) && !isnan(d), "", text);
}

static tt_status put_character(tpl_render *r, const spec *s, const tpl_value *v)
{
    char bytes[4];
    tpl_value c = *v;
    if (v->kind == TPL_INT && v->as.integer >= 0 && v->as.integer <= 0x10FFFF &&
        !(v->as.integer >= 0xD800 && v->as.integer < 0xE000))
        c = tpl_text(bytes, tt_tpl_encode((int32_t)v->as.integer, bytes));
    if (c.kind != TPL_STRING || tt_tpl_count_code_points(c.as.text, c.len) != 1)
        return tt_tpl_error("a character or its number is needed for %%c");
    return put_padded(r, s, "", &c, s->align ? s->align : '>');
}

/* --- percent ------------------------------------------------------------------------------------------ */

typedef struct percent {
    const char *at, *end;
    const tpl_value *values;
    uint32_t next, count; /* of a tuple */
} percent;

static tt_status read_number(const char **at, const char *end, int64_t *out)
{
    *out = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        *out = *out * 10 + **at - '0';
        if (*out > TPL_MAX_TEXT) return tt_tpl_error("a width or precision in a format is too large");
    }
    return TT_OK;
}

static tt_status next_value(tpl_render *r, percent *p, const tpl_value **out)
{
    if (p->at < p->end && *p->at == '(') {
        const char *close = memchr(p->at, ')', (size_t)(p->end - p->at));
        if (!close) return tt_tpl_error("incomplete format key");
        if (p->values->kind != TPL_MAP) return tt_tpl_error("format requires a mapping");
        const tpl_value key = tpl_text(p->at + 1, (size_t)(close - p->at - 1));
        TT_TRY(tt_tpl_map_find(r, p->values->as.map, &key, out));
        if (!*out)
            return tt_tpl_error("the format names a key that is missing: '%.*s'",
                                (int)(key.len < 60 ? key.len : 60), key.as.text);
        p->at = close + 1;
        p->next = p->count;
    }
    return TT_OK;
}

static tt_status read_percent(percent *p, spec *s)
{
    bool minus = false, zero = false;
    *s = (spec){.fill = tpl_text(" ", 1), .precision = -1};
    for (; p->at < p->end && memchr("-+ #0", *p->at, 5); p->at++) {
        minus = minus || *p->at == '-';
        zero = zero || *p->at == '0';
        s->alternate = s->alternate || *p->at == '#';
        if (*p->at == '+' || (*p->at == ' ' && !s->sign)) s->sign = *p->at;
    }
    TT_TRY(read_number(&p->at, p->end, &s->width));
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        TT_TRY(read_number(&p->at, p->end, &s->precision));
    }
    while (p->at < p->end && memchr("hlL", *p->at, 3)) p->at++;
    if (p->at == p->end) return tt_tpl_error("incomplete format");
    s->type = *p->at++;
    s->align = minus ? '<' : '>';
    if (zero && !minus && memchr("diuoxXeEfFgG", s->type, 12)) s->align = '=', s->fill = tpl_text("0", 1);
    return TT_OK;
}

static tt_status put_percent(tpl_render *r, spec *s, const tpl_value *v)
{
    tpl_value text;
    bool ok;
    size_t begin = r->length;
    switch (s->type) {
    case 's':
        TT_TRY(tt_tpl_to_text(r, v, &text));
        return put_text(r, s, text);
    case 'r':
        TT_TRY(tt_tpl_repr(r, v));
        TT_TRY(tt_tpl_string_end(r, begin, &text));
        return put_text(r, s, text);
    case 'c':
        return put_character(r, s, v);
    default:
        break;
    }
    if (v->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(v);
    if (!tt_tpl_is_number(v))
        return tt_tpl_error("%%%c format: a number is required, not %s", s->type, tt_tpl_type_name(v));
    if (memchr("eEfFgG", s->type, 6)) return put_float(r, s, tt_tpl_to_double(v));
    if (!memchr("diuoxX", s->type, 6)) return tt_tpl_error("unsupported format character '%c'", s->type);
    tpl_value whole = *v;
    if (v->kind == TPL_FLOAT) {
        if (memchr("oxX", s->type, 3))
            return tt_tpl_error("%%%c format: an integer is required, not float", s->type);
        TT_TRY(tt_tpl_int_from_double(r, v->as.real, &ok, &whole));
        if (!ok) return tt_tpl_error("cannot convert an infinite float or NaN to integer");
    }
    return put_int(r, s, &whole);
}

tt_status tt_tpl_format_percent(tpl_render *r, const tpl_value *format, const tpl_value *values,
                                tpl_value *out)
{
    size_t begin = r->length;
    percent p = {format->as.text, format->as.text + format->len, values, 0, 1};
    const tpl_value *list = values;
    spec s;
    if (values->kind == TPL_TUPLE) list = values->as.items, p.count = values->len;
    while (p.at < p.end) {
        const char *mark = memchr(p.at, '%', (size_t)(p.end - p.at)), *stop = mark ? mark : p.end;
        const tpl_value *v = NULL;
        TT_TRY(tt_tpl_append(r, p.at, (size_t)(stop - p.at)));
        TT_TRY(tt_tpl_charge(r, 1));
        if (!mark) break;
        p.at = mark + 1;
        TT_TRY(next_value(r, &p, &v));
        TT_TRY(read_percent(&p, &s));
        if (s.type == '%') {
            TT_TRY(tt_tpl_append(r, "%", 1));
            continue;
        }
        if (!v && p.next == p.count) return tt_tpl_error("not enough arguments for format string");
        if (!v) v = &list[p.next++];
        TT_TRY(put_percent(r, &s, v));
    }
    if (p.next < p.count && values->kind != TPL_MAP && values->kind != TPL_LIST &&
        values->kind != TPL_RANGE && values->kind != TPL_UNDEFINED)
        return tt_tpl_error("not all arguments converted during string formatting");
    return tt_tpl_string_end(r, begin, out);
}

/* --- braces ------------------------------------------------------------------------------------------- */

typedef struct braces {
    const tpl_args *args;
    int next; /* number of the next field without number, -1 once numbers were given */
} braces;

static tt_status read_spec(const char *at, const char *end, spec *s)
{
    int32_t c;
    *s = (spec){.fill = tpl_text(" ", 1), .precision = -1};
    size_t n = at < end ? tt_tpl_code_point(at, (size_t)(end - at), &c) : 0;
    if (n && at + n < end && memchr("<>^=", at[n], 4)) {
        s->fill = tpl_text(at, n);
        s->align = at[n];
        at += n + 1;
    } else if (n && memchr("<>^=", *at, 4)) {
        s->align = *at++;
    }
    if (at < end && memchr("+- ", *at, 3)) s->sign = *at++;
    if (at < end && *at == '#') s->alternate = true, at++;
    if (at < end && *at == '0') {
        if (!s->align) s->align = '=', s->fill = tpl_text("0", 1);
        at++;
    }
    TT_TRY(read_number(&at, end, &s->width));
    if (at < end && (*at == ',' || *at == '_')) s->group = *at++;
    if (at < end && *at == '.') {
        at++;
        TT_TRY(read_number(&at, end, &s->precision));
    }
    if (at < end) s->type = *at++;
    return at == end ? TT_OK : tt_tpl_error("invalid format specifier");
}

static tt_status put_braces(tpl_render *r, const tpl_value *v, const char *at, const char *end)
{
    spec s;
    if (at == end) return tt_tpl_print(r, v);
    TT_TRY(read_spec(at, end, &s));
    if (v->kind == TPL_STRING) {
        if (s.align == '=' && s.fill.as.text[0] == '0') s.align = '<';
        if ((s.type && s.type != 's') || s.align == '=' || s.sign)
            return tt_tpl_error("invalid format specifier for a string");
        return put_text(r, &s, *v);
    }
    if (v->kind == TPL_UNDEFINED) return tt_tpl_undefined_error(v);
    bool real = s.type && memchr("eEfFgG%", s.type, 7);
    if (!tt_tpl_is_number(v) || (s.type && !real && !memchr("bcdnoxX", s.type, 7)))
        return tt_tpl_error("unsupported format for '%s'", tt_tpl_type_name(v));
    if (s.type == 'c') return put_character(r, &s, v);
    if (real || v->kind == TPL_FLOAT) {
        if (s.type && !real && s.type != 'n') return tt_tpl_error("unsupported format for 'float'");
        return put_float(r, &s, tt_tpl_to_double(v));
    }
    if (s.precision >= 0) return tt_tpl_error("a precision is not allowed for integers");
    return put_int(r, &s, v);
}

/* The first part of a field's name: a number, a name, or nothing for the next one. */
static tt_status first_part(braces *b, const char *at, size_t len, tpl_value *out)
{
    int64_t number = b->next;
    const char *p = at;
    if (len && strspn(at, "0123456789") >= len) {
        TT_TRY(read_number(&p, at + len, &number));
        b->next = -1;
    } else if (len) {
        for (int i = 0; i < b->args->named; i++)
            if (b->args->names[i].len == len && memcmp(b->args->names[i].as.text, at, len) == 0) {
                *out = b->args->named_values[i];
                return TT_OK;
            }
        return tt_tpl_error("format: there is no argument named '%.*s'", (int)(len < 60 ? len : 60), at);
    } else if (number < 0) {
        return tt_tpl_error("format: fields with and without numbers cannot be mixed");
    } else {
        b->next++;
    }
    if (number >= b->args->count)
        return tt_tpl_error("format: there is no argument number %lld", (long long)number);
    *out = b->args->values[number];
    return TT_OK;
}

static tt_status find_field(tpl_render *r, braces *b, const char *at, const char *end, tpl_value *out)
{
    size_t len = 0;
    while (at + len < end && at[len] != '.' && at[len] != '[') len++;
    TT_TRY(first_part(b, at, len, out));
    for (at += len; at < end; at += len) {
        bool dot = *at++ == '.';
        for (len = 0; at + len < end && (dot ? at[len] != '.' && at[len] != '[' : at[len] != ']');) len++;
        if (len == 0 || (!dot && at + len == end))
            return tt_tpl_error("format: a field has an incomplete name");
        tpl_value key = tpl_text(at, len);
        if (!dot && len < 10 && strspn(at, "0123456789") >= len) key = tt_tpl_decimal(at, len);
        TT_TRY(dot ? tt_tpl_attribute(r, out, &key, out) : tt_tpl_item(r, out, &key, out));
        if (!dot) at++;
    }
    return TT_OK;
}

/* name[!conversion][:specification], between the braces. */
static tt_status put_field(tpl_render *r, braces *b, const char *at, const char *end)
{
    tpl_value v;
    size_t begin = r->length;
    const char *colon = memchr(at, ':', (size_t)(end - at));
    const char *head = colon ? colon : end, *mark = memchr(at, '!', (size_t)(head - at));
    if (memchr(at, '{', (size_t)(end - at)))
        return tt_tpl_error("format: fields inside fields are not supported");
    TT_TRY(find_field(r, b, at, mark ? mark : head, &v));
    if (mark) {
        if (head - mark != 2 || (mark[1] != 's' && mark[1] != 'r'))
            return tt_tpl_error("format: only the conversions !s and !r are supported");
        TT_TRY(mark[1] == 'r' ? tt_tpl_repr(r, &v) : tt_tpl_print(r, &v));
        TT_TRY(tt_tpl_string_end(r, begin, &v));
    }
    return put_braces(r, &v, colon ? colon + 1 : end, end);
}

tt_status tt_tpl_format_braces(tpl_render *r, const tpl_value *format, const tpl_args *args, tpl_value *out)
{
    size_t begin = r->length;
    braces b = {args, 0};
    const char *at = format->as.text, *end = at + format->len;
    while (at < end) {
        const char *text = at;
        while (at < end && *at != '{' && *at != '}') at++;
        TT_TRY(tt_tpl_append(r, text, (size_t)(at - text)));
        TT_TRY(tt_tpl_charge(r, 1));
        if (at == end) break;
        if (at + 1 < end && at[1] == *at) {
            TT_TRY(tt_tpl_append(r, at, 1));
            at += 2;
            continue;
        }
        const char *close = *at == '{' ? memchr(at, '}', (size_t)(end - at)) : NULL;
        if (!close) return tt_tpl_error("format: a single '%c'", *at);
        TT_TRY(put_field(r, &b, at + 1, close));
        at = close + 1;
    }
    return tt_tpl_string_end(r, begin, out);
}
