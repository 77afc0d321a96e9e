/* template_text.c - code points, white space and letter case, as Python's str has them.
 *
 * Case mapping is the full Unicode one: utf8proc maps single code points; those that become several are
 * derived from its case folding, which is full:
 *   upper  of a letter whose folding has several code points: each of them in upper case
 *          (but capitals like U+0130 and U+1E9E are their own upper case);
 *   title  of one that has no title case of its own: the first in title case, the rest as folded.
 * Two exceptions: U+0149 (both in upper case) and a final Greek iota, which becomes U+0345. Lower case has one that
 * grows (U+0130) and one that depends on its neighbours (the final sigma).
 * All strings are valid UTF-8: JSON and templates are checked on their way in. */
#include "data/template_impl.h"

#include <string.h>
#include <utf8proc.h>

size_t tt_tpl_code_point(const char *s, size_t len, int32_t *c)
{
    utf8proc_ssize_t n = (unsigned char)s[0] < 0x80
                             ? (*c = s[0], 1)
                             : utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, c);
    if (n > 0) return (size_t)n;
    *c = 0xFFFD;
    return 1;
}

int64_t tt_tpl_count_code_points(const char *s, size_t len)
{
    int64_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)s[i] & 0xC0) != 0x80;
    return n;
}

size_t tt_tpl_encode(int32_t c, char out[4])
{
    return (size_t)utf8proc_encode_char(c, (utf8proc_uint8_t *)out);
}

bool tt_tpl_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool tt_tpl_is_printable(int32_t c)
{
    if (c == ' ') return true;
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

bool tt_tpl_is_letter(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool tt_tpl_is_text(const tpl_value *v, const char *text)
{
    return v->kind == TPL_STRING && v->len == strlen(text) && memcmp(v->as.text, text, v->len) == 0;
}

const char *tt_tpl_find_text(const char *text, size_t len, const char *part, size_t part_len)
{
    return part_len ? memmem(text, len, part, part_len) : text;
}

size_t tt_tpl_skip_space(const char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        int32_t c;
        size_t n = tt_tpl_code_point(s + i, len - i, &c);
        if (!tt_tpl_is_space(c)) break;
        i += n;
    }
    return i;
}

/* Length of the last code point of s[0..len). */
static size_t last_code_point(const char *s, size_t len, int32_t *c)
{
    size_t start = len - 1;
    while (start > 0 && ((unsigned char)s[start] & 0xC0) == 0x80) start--;
    tt_tpl_code_point(s + start, len - start, c);
    return len - start;
}

size_t tt_tpl_strip_end(const char *s, size_t len)
{
    while (len > 0) {
        int32_t c;
        size_t n = last_code_point(s, len, &c);
        if (!tt_tpl_is_space(c)) break;
        len -= n;
    }
    return len;
}

static bool stripped(const tpl_value *set, int32_t c, const char *bytes, size_t n)
{
    return set ? tt_tpl_find_text(set->as.text, set->len, bytes, n) != NULL : tt_tpl_is_space(c);
}

tt_status tt_tpl_strip(tpl_render *r, const tpl_value *s, const tpl_value *set, bool left, bool right,
                       tpl_value *out)
{
    const char *text = s->as.text;
    size_t len = s->len, each = set ? set->len / 32 + 1 : 1;
    int32_t c;
    while (left && len > 0) {
        size_t n = tt_tpl_code_point(text, len, &c);
        TT_TRY(tt_tpl_charge(r, each));
        if (!stripped(set, c, text, n)) break;
        text += n, len -= n;
    }
    while (right && len > 0) {
        size_t n = last_code_point(text, len, &c);
        TT_TRY(tt_tpl_charge(r, each));
        if (!stripped(set, c, text + len - n, n)) break;
        len -= n;
    }
    *out = tpl_text(text, len);
    return TT_OK;
}

/* Replacing the empty string puts `by` around every code point. */
static tt_status replace_empty(tpl_render *r, const tpl_value *s, const tpl_value *by, int64_t limit)
{
    size_t at = 0;
    for (;;) {
        if (limit-- > 0) TT_TRY(tt_tpl_append(r, by->as.text, by->len));
        if (at == s->len) return TT_OK;
        int32_t c;
        size_t n = tt_tpl_code_point(s->as.text + at, s->len - at, &c);
        TT_TRY(tt_tpl_charge(r, 1));
        TT_TRY(tt_tpl_append(r, s->as.text + at, n));
        at += n;
    }
}

tt_status tt_tpl_replace(tpl_render *r, const tpl_value *s, const tpl_value *old, const tpl_value *by,
                         int64_t limit, tpl_value *out)
{
    size_t begin = r->length, at = 0;
    if (limit < 0) limit = INT64_MAX;
    if (old->len == 0) {
        TT_TRY(replace_empty(r, s, by, limit));
        return tt_tpl_string_end(r, begin, out);
    }
    for (const char *hit; limit > 0; limit--) {
        hit = tt_tpl_find_text(s->as.text + at, s->len - at, old->as.text, old->len);
        if (!hit) break;
        TT_TRY(tt_tpl_charge(r, 1));
        TT_TRY(tt_tpl_append(r, s->as.text + at, (size_t)(hit - s->as.text) - at));
        TT_TRY(tt_tpl_append(r, by->as.text, by->len));
        at = (size_t)(hit - s->as.text) + old->len;
    }
    TT_TRY(tt_tpl_append(r, s->as.text + at, s->len - at));
    return tt_tpl_string_end(r, begin, out);
}

/* --- letter case -------------------------------------------------------------------------------------- */

static bool is_cased(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
        return true;
    default:
        return utf8proc_islower(c) || utf8proc_isupper(c);
    }
}

/* Skipped when the neighbours of a sigma are looked at. */
static bool is_case_ignorable(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
        return true;
    default:
        return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x2018 || c == 0x2019 || c == 0x2024 ||
               c == 0x2027;
    }
}

static bool is_final_sigma(const char *s, size_t len, size_t at, size_t width)
{
    int32_t c = 0;
    bool before = false;
    for (size_t end = at; end > 0;) {
        end -= last_code_point(s, end, &c);
        if (is_case_ignorable(c)) continue;
        before = is_cased(c);
        break;
    }
    if (!before) return false;
    for (size_t i = at + width; i < len;) {
        i += tt_tpl_code_point(s + i, len - i, &c);
        if (!is_case_ignorable(c)) return !is_cased(c);
    }
    return true;
}

static int fold(int32_t c, int32_t out[8])
{
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(c, out, 8, UTF8PROC_CASEFOLD, &boundary);
    if (n >= 1 && n <= 8) return (int)n;
    out[0] = c;
    return 1;
}

static int to_upper(int32_t c, int32_t out[8])
{
    int n = utf8proc_category(c) == UTF8PROC_CATEGORY_LU ? 1 : fold(c, out);
    if (n == 1)
        out[0] = utf8proc_toupper(c);
    else
        for (int i = 0; i < n; i++) out[i] = utf8proc_toupper(out[i]);
    return n;
}

static int to_title(int32_t c, int32_t out[8])
{
    /* utf8proc gives U+1E9E for the sharp s, whose title case is Ss. */
    bool own = utf8proc_totitle(c) != c && c != 0xDF;
    int n = own || utf8proc_category(c) != UTF8PROC_CATEGORY_LL ? 1 : fold(c, out);
    if (n == 1) {
        out[0] = utf8proc_totitle(c);
        return 1;
    }
    out[0] = utf8proc_totitle(out[0]);
    if (c == 0x149) out[1] = utf8proc_toupper(out[1]);
    if (out[n - 1] == 0x3B9 && c >= 0x1F80) out[n - 1] = 0x345;
    return n;
}

static int to_lower(const char *s, size_t len, size_t at, size_t width, int32_t c, int32_t out[8])
{
    if (c == 0x130) {
        out[0] = 'i', out[1] = 0x307;
        return 2;
    }
    out[0] = c == 0x3A3 ? (is_final_sigma(s, len, at, width) ? 0x3C2 : 0x3C3) : utf8proc_tolower(c);
    return 1;
}

tt_status tt_tpl_append_case(tpl_render *r, const char *s, size_t len, tpl_letter_case how)
{
    bool after_cased = false;
    TT_TRY(tt_tpl_charge(r, len / 8));
    for (size_t at = 0, width; at < len; at += width) {
        int32_t c, out[8];
        int n;
        width = tt_tpl_code_point(s + at, len - at, &c);
        bool upper = how == TPL_UPPER || (how == TPL_SWAPCASE && utf8proc_islower(c));
        bool title = (how == TPL_TITLE && !after_cased) || (how == TPL_CAPITALIZE && at == 0);
        bool keep = how == TPL_SWAPCASE && !upper && !utf8proc_isupper(c);
        if (keep)
            out[0] = c, n = 1;
        else if (how == TPL_CASEFOLD)
            n = fold(c, out);
        else if (upper)
            n = to_upper(c, out);
        else if (title)
            n = to_title(c, out);
        else
            n = to_lower(s, len, at, width, c, out);
        for (int i = 0; i < n; i++) TT_TRY(tt_tpl_append_code_point(r, out[i]));
        after_cased = is_cased(c);
    }
    return TT_OK;
}
