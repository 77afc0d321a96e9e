/* template_lex.c - source text to tokens, with the white-space rules of trim_blocks and lstrip_blocks:
 *
 *   {% ... %} and {# ... #}   one line end directly behind is dropped, unless the tag ends with '+';
 *                             blanks before it are dropped when nothing else stands before it on its line,
 *                             unless the tag begins with '+'
 *   '-' at either edge        all white space on that side is dropped, line ends too; also for {{ ... }}
 *   line ends                 \r\n and \r become \n; one line end at the very end of the source is dropped
 *
 * Text tokens point into the normalised source. Tokens are made one at a time; what is behind an error is not
 * read. Inside brackets the end of a tag is not looked for, so a mapping may end in "}}". */
#include "data/template_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static tt_status bad(const tpl_lexer *x, const char *format, ...) __attribute__((format(printf, 2, 3)));
static tt_status bad(const tpl_lexer *x, const char *format, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return tt_error_set(TT_EFORMAT, "%s:%d: %s", x->name, x->line, text);
}

tt_status tt_tpl_lex_begin(tpl_lexer *x, tpl_pool *pool, const char *name, const char *source, size_t bytes)
{
    void *copy;
    TT_TRY(tt_tpl_take(pool, bytes + 1, 1, &copy));
    char *to = copy;
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n') continue;
        *to++ = source[i] == '\r' ? '\n' : source[i];
    }
    if (to > (char *)copy && to[-1] == '\n') to--;
    *x = (tpl_lexer){.pool = pool, .name = name, .at = copy, .end = to, .line = 1, .line_starting = true};
    return TT_OK;
}

static size_t left(const tpl_lexer *x)
{
    return (size_t)(x->end - x->at);
}

static bool looking_at(const tpl_lexer *x, const char *at, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(x->end - at) >= n && memcmp(at, text, n) == 0;
}

/* Go on to `to`, counting lines; remembers whether the last character passed ends a line. */
static void move(tpl_lexer *x, const char *to)
{
    if (to > x->at) x->line_starting = to[-1] == '\n';
    for (const char *p = x->at; (p = memchr(p, '\n', (size_t)(to - p))); p++) x->line++;
    x->at = to;
}

/* The end of a tag is at x->at, with its mark (0, '+' or '-'): go behind it and the white space it takes. */
static void move_behind(tpl_lexer *x, size_t tag, char mark, bool trim)
{
    const char *to = x->at + tag;
    if (mark == '-')
        to += tt_tpl_skip_space(to, (size_t)(x->end - to));
    else if (!mark && trim && to < x->end && *to == '\n')
        to++;
    move(x, to);
}

/* The text before a tag that begins at `tag`, whose mark is '-', '+' or something else. */
static tpl_token text_before(const tpl_lexer *x, const char *tag, char mark, bool is_output)
{
    size_t len = (size_t)(tag - x->at);
    if (mark == '-') {
        len = tt_tpl_strip_end(x->at, len);
    } else if (mark != '+' && !is_output) {
        const char *line = len ? memrchr(x->at, '\n', len) : NULL;
        size_t start = line ? (size_t)(line + 1 - x->at) : 0;
        if ((line || x->line_starting) && tt_tpl_skip_space(x->at + start, len - start) == len - start)
            len = start;
    }
    return (tpl_token){.kind = TPL_T_TEXT, .line = x->line, .text = x->at, .len = len};
}

static bool is_mark(const tpl_lexer *x, const char *at)
{
    return at < x->end && (*at == '-' || *at == '+');
}

/* "{% word %}" at `at`, with blanks and marks: the place behind it, or NULL. *mark is the one at its end. */
static const char *match_tag(const tpl_lexer *x, const char *at, const char *word, bool plus, char *mark)
{
    if (!looking_at(x, at, "{%")) return NULL;
    at += 2;
    if (is_mark(x, at)) at++;
    at += tt_tpl_skip_space(at, (size_t)(x->end - at));
    if (!looking_at(x, at, word)) return NULL;
    at += strlen(word);
    at += tt_tpl_skip_space(at, (size_t)(x->end - at));
    *mark = is_mark(x, at) && (*at == '-' || plus) ? *at : '\0';
    if (*mark) at++;
    return looking_at(x, at, "%}") ? at : NULL;
}

/* x->at is behind {% raw %}: its text up to {% endraw %} is one token. */
static tt_status lex_raw(tpl_lexer *x, tpl_token *out)
{
    if (x->at == x->end) {
        *out = (tpl_token){.kind = TPL_T_TEXT, .line = x->line, .text = x->at};
        return TT_OK;
    }
    for (const char *p = x->at; p < x->end && (p = memchr(p, '{', (size_t)(x->end - p))); p++) {
        char mark;
        const char *end = match_tag(x, p, "endraw", true, &mark);
        if (!end) continue;
        *out = text_before(x, p, p[2], false);
        move(x, end);
        move_behind(x, 2, mark, true);
        return TT_OK;
    }
    return bad(x, "{%% raw %%} has no {%% endraw %%}");
}

static tt_status skip_comment(tpl_lexer *x)
{
    const char *from = x->at + 2;
    if (is_mark(x, from)) from++;
    const char *end = memmem(from, (size_t)(x->end - from), "#}", 2);
    if (!end) return bad(x, "a comment has no end (#})");
    char mark = end > from && is_mark(x, end - 1) ? end[-1] : '\0';
    move(x, end);
    move_behind(x, 2, mark, true);
    return TT_OK;
}

static const char *find_tag(const tpl_lexer *x)
{
    for (const char *p = x->at; p < x->end && (p = memchr(p, '{', (size_t)(x->end - p))); p++)
        if (p + 1 < x->end && (p[1] == '{' || p[1] == '%' || p[1] == '#')) return p;
    return NULL;
}

static tt_status begin_tag(tpl_lexer *x, const char *tag)
{
    x->inside = tag[1] == '{' ? TPL_T_OUTPUT_BEGIN : TPL_T_BLOCK_BEGIN;
    move(x, tag + 2);
    if (is_mark(x, x->at)) move(x, x->at + 1);
    x->pending = (tpl_token){.kind = x->inside, .line = x->line, .text = tag, .len = 2};
    x->has_pending = true;
    return TT_OK;
}

/* Text up to the next tag; empty texts are passed over. */
static tt_status lex_text(tpl_lexer *x, tpl_token *out)
{
    for (;;) {
        char mark;
        const char *tag = find_tag(x), *raw;
        if (!tag) {
            *out = (tpl_token){.kind = TPL_T_TEXT, .line = x->line, .text = x->at, .len = left(x)};
            move(x, x->end);
            if (out->len == 0) out->kind = TPL_T_END;
            return TT_OK;
        }
        *out = text_before(x, tag, tag + 2 < x->end ? tag[2] : '\0', tag[1] == '{');
        move(x, tag);
        if (tag[1] == '#') {
            TT_TRY(skip_comment(x));
        } else if ((raw = match_tag(x, tag, "raw", false, &mark))) {
            /* Unlike other tags this one keeps the line end behind it. */
            tpl_token body;
            move(x, raw);
            move_behind(x, 2, mark, false);
            TT_TRY(lex_raw(x, &body));
            if (out->len && body.len) x->pending = body, x->has_pending = true;
            if (!out->len) *out = body;
        } else {
            TT_TRY(begin_tag(x, tag));
            if (out->len == 0) *out = x->pending, x->has_pending = false;
            return TT_OK;
        }
        if (out->len) return TT_OK;
    }
}

/* --- inside tags -------------------------------------------------------------------------------------- */

static bool lex_tag_end(tpl_lexer *x, tpl_token *out)
{
    bool block = x->inside == TPL_T_BLOCK_BEGIN;
    const char *end = block ? "%}" : "}}";
    char mark = '\0';
    if (x->num_brackets) return false;
    if (*x->at == '-' || (*x->at == '+' && block)) mark = *x->at;
    if (!looking_at(x, x->at + (mark ? 1 : 0), end)) return false;
    *out = (tpl_token){
        .kind = block ? TPL_T_BLOCK_END : TPL_T_OUTPUT_END, .line = x->line, .text = x->at, .len = 2};
    move_behind(x, mark ? 3 : 2, mark, block);
    x->inside = TPL_T_END;
    return true;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

/* digits, single underscores between them allowed; NULL when there is none. */
static const char *digits(const tpl_lexer *x, const char *p, int base)
{
    const char *end = NULL;
    for (; p < x->end; p++) {
        int c = *p | 0x20;
        bool good = base == 16 ? is_digit(*p) || (c >= 'a' && c <= 'f') : *p >= '0' && *p < '0' + base;
        if (good)
            end = p + 1;
        else if (*p != '_' || p + 1 == x->end || p[1] == '_' || (!end && base == 10))
            break;
    }
    return end;
}

/* The end of a number with a fraction or an exponent, or NULL. */
static const char *float_end(const tpl_lexer *x)
{
    const char *p = digits(x, x->at, 10), *fraction = NULL, *exponent;
    if (p < x->end && *p == '.' && p + 1 < x->end && is_digit(p[1])) p = fraction = digits(x, p + 1, 10);
    if (p < x->end && (*p | 0x20) == 'e') {
        const char *q = p + 1;
        if (q < x->end && (*q == '+' || *q == '-')) q++;
        if (q < x->end && is_digit(*q) && (exponent = digits(x, q, 10))) return exponent;
    }
    return fraction;
}

static tt_status lex_integer(tpl_lexer *x, tpl_token *out)
{
    const char *p = x->at, *end = NULL;
    int base = 10, letter = p + 1 < x->end ? p[1] | 0x20 : 0;
    if (*p == '0' && letter == 'b') base = 2;
    if (*p == '0' && letter == 'o') base = 8;
    if (*p == '0' && letter == 'x') base = 16;
    if (base != 10) end = digits(x, p + 2, base);
    if (!end && *p == '0') /* 007 is 00 followed by 7 */
        for (end = p + 1, base = 10;
             end < x->end && (*end == '0' || (*end == '_' && end + 1 < x->end && end[1] == '0'));)
            end++;
    if (!end) end = digits(x, p, 10);
    size_t prefix = base == 10 ? 0 : 2, n = 0, len = (size_t)(end - p) - prefix;
    void *copy;
    TT_TRY(tt_tpl_take(x->pool, len + 1, 1, &copy));
    for (size_t i = 0; i < len; i++)
        if (p[prefix + i] != '_') ((char *)copy)[n++] = p[prefix + i];
    uint64_t v = 0;
    bool fits = true;
    for (size_t i = 0; i < n && base != 10; i++) {
        int c = ((char *)copy)[i] | 0x20;
        fits = fits && v <= (uint64_t)(INT64_MAX >> 4);
        v = v * (uint64_t)base + (uint64_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (!fits) return bad(x, "the integer %.*s is too large", (int)(end - p < 60 ? end - p : 60), p);
    *out = (tpl_token){.kind = TPL_T_INTEGER, .line = x->line, .text = p, .len = (size_t)(end - p)};
    out->value = base == 10 ? tt_tpl_decimal(copy, n) : tpl_int((int64_t)v);
    move(x, end);
    return TT_OK;
}

static tt_status lex_number(tpl_lexer *x, tpl_token *out, bool after_dot)
{
    const char *end = after_dot ? NULL : float_end(x);
    double d;
    if (!end) return lex_integer(x, out);
    *out = (tpl_token){.kind = TPL_T_FLOAT, .line = x->line, .text = x->at, .len = (size_t)(end - x->at)};
    if (!tt_tpl_parse_double(x->at, out->len, &d)) return bad(x, "%.*s is no number", (int)out->len, x->at);
    out->value = tpl_real(d);
    move(x, end);
    return TT_OK;
}

static tt_status lex_name(tpl_lexer *x, tpl_token *out, bool *found)
{
    const char *p = x->at;
    while (p < x->end) {
        int32_t c;
        size_t n = tt_tpl_code_point(p, (size_t)(x->end - p), &c);
        if (!tt_tpl_is_letter(c) && c != '_' && !is_digit(c)) break;
        p += n;
    }
    *found = p > x->at;
    *out = (tpl_token){.kind = TPL_T_NAME, .line = x->line, .text = x->at, .len = (size_t)(p - x->at)};
    move(x, p);
    return TT_OK;
}

static int hex_digit(char c)
{
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* \xXX, \uXXXX, \UXXXXXXXX: p is behind the letter. */
static tt_status hex_escape(const tpl_lexer *x, const char **p, const char *end, int count, char **to)
{
    int64_t c = 0;
    for (int i = 0; i < count; i++, (*p)++) {
        int h = *p < end ? hex_digit(**p) : -1;
        if (h < 0) return bad(x, "a string holds an escape with fewer than %d hexadecimal digits", count);
        c = c * 16 + h;
    }
    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        return bad(x, "a string holds an escape for U+%04llX, which is no character", (long long)c);
    *to += tt_tpl_encode((int32_t)c, *to);
    return TT_OK;
}

/* One escape: p is behind the backslash. What is written is never longer than what was read. */
static tt_status unescape(const tpl_lexer *x, const char **p, const char *end, char **to)
{
    static const char from[] = "\\'\"abfnrtv", into[] = "\\'\"\a\b\f\n\r\t\v";
    char c = *(*p)++;
    const char *simple = c ? strchr(from, c) : NULL;
    if (c == '\n') return TT_OK;
    if (simple) {
        *(*to)++ = into[simple - from];
        return TT_OK;
    }
    if (c == 'x') return hex_escape(x, p, end, 2, to);
    if (c == 'u') return hex_escape(x, p, end, 4, to);
    if (c == 'U') return hex_escape(x, p, end, 8, to);
    if (c == 'N') return bad(x, "escapes by character name (\\N{...}) are not supported; use \\u");
    if (c >= '0' && c <= '7') {
        int32_t v = c - '0';
        for (int i = 0; i < 2 && *p < end && **p >= '0' && **p <= '7'; i++) v = v * 8 + *(*p)++ - '0';
        *to += tt_tpl_encode(v, *to);
        return TT_OK;
    }
    *(*to)++ = '\\';
    *(*to)++ = c;
    return TT_OK;
}

static tt_status lex_string(tpl_lexer *x, tpl_token *out)
{
    char quote = *x->at;
    const char *p = x->at + 1, *end = p;
    while (end < x->end && *end != quote) end += *end == '\\' ? 2 : 1;
    if (end >= x->end) return bad(x, "a string that begins with %c has no end", quote);
    *out =
        (tpl_token){.kind = TPL_T_STRING, .line = x->line, .text = x->at, .len = (size_t)(end + 1 - x->at)};
    void *copy;
    TT_TRY(tt_tpl_take(x->pool, (size_t)(end - p), 1, &copy));
    char *to = copy;
    while (p < end) {
        if (*p != '\\') {
            *to++ = *p++;
            continue;
        }
        p++;
        TT_TRY(unescape(x, &p, end, &to));
    }
    out->value = tpl_text(copy, (size_t)(to - (char *)copy));
    move(x, end + 1);
    return TT_OK;
}

static tt_status track_bracket(tpl_lexer *x, char c)
{
    static const char open[] = "([{", close[] = ")]}";
    const char *p = strchr(open, c);
    if (p) {
        if (x->num_brackets == TPL_MAX_NESTING)
            return bad(x, "more than %d brackets inside each other", TPL_MAX_NESTING);
        x->brackets[x->num_brackets++] = close[p - open];
    } else if (strchr(close, c)) {
        if (!x->num_brackets) return bad(x, "unexpected '%c'", c);
        if (x->brackets[--x->num_brackets] != c)
            return bad(x, "unexpected '%c', expected '%c'", c, x->brackets[x->num_brackets]);
    }
    return TT_OK;
}

static tt_status lex_operator(tpl_lexer *x, tpl_token *out)
{
    static const char *const two[] = {"**", "//", "==", "!=", ">=", "<="};
    char c = *x->at;
    int width = 0;
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (looking_at(x, x->at, two[i])) width = 2;
    if (!width && c && strchr("+-/*%~[](){}><=.:|,;", c)) width = 1;
    if (!width) {
        int32_t code;
        size_t n = tt_tpl_code_point(x->at, left(x), &code);
        return bad(x, "unexpected character '%.*s' (U+%04X)", (int)n, x->at, (unsigned)code);
    }
    if (width == 1) TT_TRY(track_bracket(x, c));
    *out = (tpl_token){.kind = TPL_T_OP, .line = x->line, .text = x->at, .len = (size_t)width};
    out->op = width == 2 ? TPL_OP2(c, x->at[1]) : c;
    move(x, x->at + width);
    return TT_OK;
}

tt_status tt_tpl_lex(tpl_lexer *x, tpl_token *out)
{
    if (x->has_pending) {
        *out = x->pending;
        x->has_pending = false;
        return TT_OK;
    }
    if (x->inside == TPL_T_END) return lex_text(x, out);
    bool after_dot = x->at[-1] == '.', found;
    size_t space = tt_tpl_skip_space(x->at, left(x));
    if (space) move(x, x->at + space), after_dot = false;
    if (x->at == x->end) {
        *out = (tpl_token){.kind = TPL_T_END, .line = x->line, .text = x->at};
        return TT_OK;
    }
    if (lex_tag_end(x, out)) return TT_OK;
    if (is_digit(*x->at)) return lex_number(x, out, after_dot);
    TT_TRY(lex_name(x, out, &found));
    if (found) return TT_OK;
    if (*x->at == '\'' || *x->at == '"') return lex_string(x, out);
    return lex_operator(x, out);
}
