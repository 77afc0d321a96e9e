/* tokenizer_regex.c - split patterns of tokenizer.json on PCRE2.
 *
 * The patterns are written for Oniguruma. The two engines agree on literals, classes, properties, groups,
 * alternation, look-around and quantifiers; where they differ a pattern is rewritten or refused, never passed on:
 * - \s and \S (PCRE2 adds U+180E) become the set of White_Space, inside and outside of classes;
 * - \w and \W (PCRE2 has letters, numbers, underscore) become letters, marks, numbers, connectors;
 * - \b and \B, which follow \w, become look-around;
 * - \v and \uHHHH become code points;
 * - refused are ^ $ \h \R \X \N \K \G \Z, back references, nested and intersected classes, {,n}, {n}+ and
 *   inline options other than i.
 *
 * A match costs time linear in the text for all patterns in public use; a pattern that backtracks without
 * bound stops at a limit with an error. JIT code runs on a stack of its own, one per scratch.
 * Characters newer than PCRE2's Unicode version count as unassigned.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>

#include <pcre2.h>

#define SPACES                                                                                                       \
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"             \
    "3000}"
#define NOT_SPACES                                                                                                   \
    "\\x00-\\x08\\x0e-\\x1f\\x21-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"                         \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{N}\\p{Pc}"

#define MAX_PATTERN (1 << 16)

struct tt_regex {
    pcre2_code *code;
    bool jit;
};

struct tt_regex_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* --- rewriting -------------------------------------------------------------------------------- */

typedef struct rewriter {
    const char *where, *pattern;
    size_t size, at;
    char *out; /* large enough for the longest replacement of every character */
    size_t used;
    bool in_class;
} rewriter;

static void put(rewriter *r, const char *s, size_t n)
{
    memcpy(r->out + r->used, s, n);
    r->used += n;
}

static void put_text(rewriter *r, const char *s)
{
    put(r, s, strlen(s));
}

static tt_status refuse(const rewriter *r, const char *construct)
{
    return tt_error_set(TT_EFORMAT,
                        "%s: the regular expression '%.200s' uses %s at byte %zu, which is not supported; write the "
                        "pattern without it",
                        r->where, r->pattern, construct, r->at);
}

/* \uHHHH, the digits behind r->at. */
static tt_status rewrite_code_point(rewriter *r)
{
    TT_CHECK(r->size - r->at >= 6 && strspn(r->pattern + r->at + 2, "0123456789abcdefABCDEF") >= 4, TT_EFORMAT,
             "%s: the regular expression '%.200s' has \\u without four hexadecimal digits at byte %zu", r->where,
             r->pattern, r->at);
    put_text(r, "\\x{");
    put(r, r->pattern + r->at + 2, 4);
    put_text(r, "}");
    r->at += 6;
    return TT_OK;
}

static tt_status rewrite_word_border(rewriter *r, bool border)
{
    if (r->in_class) return refuse(r, "\\b in a class");
    put_text(r, border ? "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"
                       : "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
    r->at += 2;
    return TT_OK;
}

static tt_status rewrite_escape(rewriter *r)
{
    if (r->at + 1 >= r->size) return refuse(r, "a backslash at the end");
    char c = r->pattern[r->at + 1], name[] = {'\\', c, 0};
    const char *text = NULL;
    switch (c) {
    case 's':
        text = r->in_class ? SPACES : "[" SPACES "]";
        break;
    case 'S':
        text = r->in_class ? NOT_SPACES : "[^" SPACES "]";
        break;
    case 'w':
        text = r->in_class ? WORD : "[" WORD "]";
        break;
    case 'W':
        if (r->in_class) return refuse(r, "\\W in a class");
        text = "[^" WORD "]";
        break;
    case 'v':
        text = "\\x0b";
        break;
    case 'b':
        return rewrite_word_border(r, true);
    case 'B':
        return rewrite_word_border(r, false);
    case 'u':
        return rewrite_code_point(r);
    default:
        if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
            if (!strchr("pPdDnrtfaexAz", c)) return refuse(r, name);
    }
    size_t n = 2;
    if (strchr("pPx", c) && r->pattern[r->at + 2] == '{') n += strcspn(r->pattern + r->at + 2, "}") + 1;
    if (n > r->size - r->at) return refuse(r, "a brace without an end");
    if (text)
        put_text(r, text);
    else
        put(r, r->pattern + r->at, n); /* with its {name}, whose brace is no quantifier's */
    r->at += n;
    return TT_OK;
}

static tt_status rewrite_class_char(rewriter *r)
{
    const char *p = r->pattern + r->at;
    if (*p == '[') return refuse(r, "a class inside a class");
    if (p[0] == '&' && p[1] == '&') return refuse(r, "an intersection of classes");
    put(r, p, 1);
    r->at++;
    r->in_class = *p != ']';
    return TT_OK;
}

static tt_status open_class(rewriter *r)
{
    size_t n = r->pattern[r->at + 1] == '^' ? 2 : 1;
    put(r, r->pattern + r->at, n);
    r->at += n;
    if (r->at < r->size && r->pattern[r->at] == ']') return refuse(r, "an empty class");
    r->in_class = true;
    return TT_OK;
}

static tt_status check_group(const rewriter *r)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?i)", "(?-i:", "(?-i)", "(?>"};
    const char *p = r->pattern + r->at;
    if (p[1] == '*') return refuse(r, "a verb (*");
    if (p[1] != '?') return TT_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(p, known[i], strlen(known[i])) == 0) return TT_OK;
    return refuse(r, "a group (? of an unknown kind");
}

static tt_status rewrite_char(rewriter *r)
{
    const char *p = r->pattern + r->at;
    if (*p == '\\') return rewrite_escape(r);
    if (r->in_class) return rewrite_class_char(r);
    if (*p == '[') return open_class(r);
    if (*p == '^' || *p == '$') return refuse(r, *p == '^' ? "^" : "$");
    if (*p == '{' && p[1] == ',') return refuse(r, "{,n}");
    if (*p == '}' && p[1] == '+') return refuse(r, "{n}+");
    if (*p == '(') TT_TRY(check_group(r));
    put(r, p, 1);
    r->at++;
    return TT_OK;
}

static tt_status rewrite(rewriter *r)
{
    while (r->at < r->size) TT_TRY(rewrite_char(r));
    return TT_OK;
}

/* --- compiling and matching ------------------------------------------------------------------- */

static tt_status compile(const rewriter *r, tt_regex *out)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    TT_CHECK(context, TT_ENOMEM, "%s: no memory for a regular expression", r->where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* . stops at line feeds only */
    int error;
    PCRE2_SIZE offset;
    out->code = pcre2_compile((PCRE2_SPTR)r->out, r->used, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                              &offset, context);
    pcre2_compile_context_free(context);
    if (!out->code) {
        PCRE2_UCHAR reason[200] = "?";
        pcre2_get_error_message(error, reason, sizeof reason);
        return tt_error_set(TT_EFORMAT, "%s: the regular expression '%.200s' is not supported: %s", r->where,
                            r->pattern, (char *)reason);
    }
    /* Without JIT (not built in, or no executable memory) the interpreter gives the same matches. */
    out->jit = pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0;
    return TT_OK;
}

tt_status tt_regex_compile(const char *pattern, size_t size, const char *where, tt_regex **out)
{
    TT_CHECK(size <= MAX_PATTERN, TT_EFORMAT, "%s: a regular expression of %zu bytes; the limit is %d", where, size,
             MAX_PATTERN);
    TT_CHECK(strlen(pattern) == size, TT_EFORMAT, "%s: a regular expression with a NUL character", where);
    tt_status status = TT_OK;
    rewriter r = {.where = where, .pattern = pattern, .size = size, .out = malloc(320 * (size + 1))};
    tt_regex *regex = calloc(1, sizeof *regex);
    if (!r.out || !regex) TT_GO(tt_error_set(TT_ENOMEM, "%s: no memory for a regular expression", where));
    TT_GO(rewrite(&r));
    TT_GO(compile(&r, regex));
    free(r.out);
    *out = regex;
    return TT_OK;
fail:
    free(r.out);
    tt_regex_destroy(&regex);
    return status;
}

void tt_regex_destroy(tt_regex **r)
{
    if (!*r) return;
    pcre2_code_free((*r)->code);
    free(*r);
    *r = NULL;
}

tt_status tt_regex_scratch_create(tt_regex_scratch **out)
{
    tt_regex_scratch *s = calloc(1, sizeof *s);
    if (s) {
        s->data = pcre2_match_data_create(1, NULL);
        s->context = pcre2_match_context_create(NULL);
        s->stack = pcre2_jit_stack_create(32 << 10, 4 << 20, NULL); /* NULL without JIT: never used then */
    }
    if (!s || !s->data || !s->context) {
        tt_regex_scratch_destroy(&s);
        return tt_error_set(TT_ENOMEM, "tokenizer: no memory for matching regular expressions");
    }
    if (s->stack) pcre2_jit_stack_assign(s->context, NULL, s->stack);
    *out = s;
    return TT_OK;
}

void tt_regex_scratch_destroy(tt_regex_scratch **s)
{
    if (!*s) return;
    pcre2_match_data_free((*s)->data);
    pcre2_match_context_free((*s)->context);
    pcre2_jit_stack_free((*s)->stack);
    free(*s);
    *s = NULL;
}

tt_status tt_regex_find(const tt_regex *r, tt_regex_scratch *s, const char *text, size_t size, size_t from,
                        bool *found, size_t *begin, size_t *end)
{
    /* Steps of one match that backtracks over the whole text once or twice, and no more. */
    uint64_t limit = 10000000 + 16 * (uint64_t)size;
    pcre2_set_match_limit(s->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    /* Both forms skip PCRE2's own UTF-8 check, which would read the whole text for every match. */
    int n = r->jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)text, size, from, 0, s->data, s->context)
                   : pcre2_match(r->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK, s->data, s->context);
    *found = n >= 0;
    if (n == PCRE2_ERROR_NOMATCH) return TT_OK;
    if (n < 0) {
        PCRE2_UCHAR reason[200] = "?";
        pcre2_get_error_message(n, reason, sizeof reason);
        return tt_error_set(TT_EDATA,
                            "a split pattern of the tokenizer failed on a text of %zu bytes at byte %zu: %s", size,
                            from, (char *)reason);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->data);
    *begin = range[0];
    *end = range[1];
    return TT_OK;
}
