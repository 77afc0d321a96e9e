/* yaml.c - libyaml's events, turned into jansson values by recursive descent of bounded depth. */
#include "base/yaml.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

typedef struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; empty between events */
    const char *text, *where;
    size_t bytes;
    json_t *lines;
} reader;

/* --- plain scalars --------------------------------------------------------------------------------- */

static bool is_one_of(const char *s, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(s, *words) == 0) return true;
    return false;
}

static bool is_null(const char *s)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL", NULL};
    return is_one_of(s, words);
}

static bool is_bool(const char *s, bool *value)
{
    static const char *const yes[] = {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", NULL};
    static const char *const no[] = {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", NULL};
    *value = is_one_of(s, yes);
    return *value || is_one_of(s, no);
}

/* Digits and underscores up to the end of the text, at least one digit. */
static bool all_of(const char *s, const char *digits_and_underscore)
{
    size_t n = strspn(s, digits_and_underscore);
    return n > 0 && s[n] == '\0' && strspn(s, "_") < n;
}

/* The base of an integer and where its digits begin, or 0. */
static int integer_base(const char *s, const char **digits)
{
    s += *s == '+' || *s == '-';
    *digits = s;
    if (s[0] == '0' && s[1] == '\0') return 10;
    if (s[0] >= '1' && s[0] <= '9') return all_of(s, "0123456789_") ? 10 : 0;
    if (s[0] != '0') return 0;
    *digits = s + 2;
    if (s[1] == 'x') return all_of(s + 2, "0123456789abcdefABCDEF_") ? 16 : 0;
    if (s[1] == 'b') return all_of(s + 2, "01_") ? 2 : 0;
    *digits = s + 1;
    return all_of(s + 1, "01234567_") ? 8 : 0;
}

/* Needs a dot; the exponent needs a sign; a number that begins with the dot has no sign. */
static bool is_real(const char *s)
{
    const char *digits = "0123456789_";
    size_t leading;
    if (*s == '.') {
        leading = 0;
        if (s[1] < '0' || s[1] > '9') return false;
    } else {
        s += *s == '+' || *s == '-';
        if (*s < '0' || *s > '9') return false;
        leading = strspn(s, digits);
    }
    s += leading;
    if (*s++ != '.') return false;
    s += strspn(s, digits);
    if (*s == '\0') return true;
    if (*s != 'e' && *s != 'E') return false;
    if (s[1] != '+' && s[1] != '-') return false;
    s += 2;
    size_t exponent = strspn(s, "0123456789");
    return exponent > 0 && s[exponent] == '\0';
}

static bool is_not_finite(const char *s)
{
    static const char *const infinite[] = {".inf", ".Inf", ".INF", NULL};
    static const char *const nan[] = {".nan", ".NaN", ".NAN", NULL};
    return is_one_of(s, nan) || is_one_of(s + (*s == '+' || *s == '-'), infinite);
}

static tt_status fail_at(const reader *r, yaml_mark_t mark, const char *what, const char *text)
{
    return tt_error_set(TT_ECONFIG, "%s:%zu: %s%s%.200s%s", r->where, mark.line + 1, what, text ? " '" : "",
                        text ? text : "", text ? "'" : "");
}

static tt_status own(const reader *r, json_t *value, json_t **out)
{
    TT_CHECK(value, TT_ENOMEM, "%s: out of memory", r->where);
    *out = value;
    return TT_OK;
}

/* s holds a number: without its underscores, for strtoll and strtod. */
static char *without_underscores(const char *s)
{
    char *copy = strdup(s), *to = copy;
    if (!copy) return NULL;
    for (; *s; s++)
        if (*s != '_') *to++ = *s;
    *to = '\0';
    return copy;
}

static tt_status integer(const reader *r, const char *s, const char *digits, int base, json_t **out)
{
    char *copy = without_underscores(digits);
    TT_CHECK(copy, TT_ENOMEM, "%s: out of memory", r->where);
    errno = 0;
    uint64_t magnitude = strtoull(copy, NULL, base), limit = (uint64_t)INT64_MAX + (*s == '-');
    bool fits = errno == 0 && magnitude <= limit;
    free(copy);
    if (!fits) return fail_at(r, r->event.start_mark, "an integer beyond 64 bits:", s);
    /* As unsigned, since the most negative number has no positive counterpart. */
    return own(r, json_integer((json_int_t)(*s == '-' ? 0 - magnitude : magnitude)), out);
}

static tt_status real(const reader *r, const char *s, json_t **out)
{
    char *copy = without_underscores(s);
    TT_CHECK(copy, TT_ENOMEM, "%s: out of memory", r->where);
    double value = strtod(copy, NULL);
    free(copy);
    json_t *number = json_real(value); /* jansson refuses infinities */
    if (!number) return fail_at(r, r->event.start_mark, "a number beyond the range of double:", s);
    *out = number;
    return TT_OK;
}

static tt_status plain(const reader *r, const char *s, json_t **out)
{
    const char *digits;
    bool yes;
    int base = integer_base(s, &digits);
    if (is_null(s)) return own(r, json_null(), out);
    if (is_bool(s, &yes)) return own(r, json_boolean(yes), out);
    if (base) return integer(r, s, digits, base, out);
    if (is_real(s)) return real(r, s, out);
    if (is_not_finite(s))
        return fail_at(r, r->event.start_mark,
                       "only finite numbers are accepted; quote it if it is a text:", s);
    return own(r, json_string(s), out);
}

/* --- events ---------------------------------------------------------------------------------------- */

static tt_status parser_error(const reader *r)
{
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) return tt_error_set(TT_ENOMEM, "%s: out of memory", r->where);
    const char *problem = p->problem ? p->problem : "not valid YAML";
    if (p->error != YAML_READER_ERROR)
        return tt_error_set(TT_ECONFIG, "%s:%zu: %s%s%s (column %zu)", r->where, p->problem_mark.line + 1,
                            problem, p->context ? " " : "", p->context ? p->context : "",
                            p->problem_mark.column + 1);
    size_t line = 1;
    for (size_t i = 0; i < p->problem_offset && i < r->bytes; i++) line += r->text[i] == '\n';
    return tt_error_set(TT_ECONFIG, "%s:%zu: %s (byte %zu)", r->where, line, problem, p->problem_offset);
}

static tt_status next(reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        r->event = (yaml_event_t){0};
        return parser_error(r);
    }
    return TT_OK;
}

static tt_status refuse_properties(const reader *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor)
        return fail_at(r, r->event.start_mark, "anchors and aliases are not accepted: &",
                       (const char *)anchor);
    if (tag) return fail_at(r, r->event.start_mark, "tags are not accepted:", (const char *)tag);
    return TT_OK;
}

static tt_status scalar(const reader *r, json_t **out)
{
    const char *text = (const char *)r->event.data.scalar.value;
    size_t bytes = r->event.data.scalar.length;
    TT_TRY(refuse_properties(r, r->event.data.scalar.anchor, r->event.data.scalar.tag));
    if (r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE) return plain(r, text, out);
    return own(r, json_stringn(text, bytes), out); /* libyaml has checked the encoding */
}

static tt_status node(reader *r, int depth, json_t **out);

static tt_status sequence(reader *r, int depth, json_t *out)
{
    TT_TRY(refuse_properties(r, r->event.data.sequence_start.anchor, r->event.data.sequence_start.tag));
    for (;;) {
        json_t *item = NULL;
        TT_TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return TT_OK;
        TT_TRY(node(r, depth, &item));
        TT_CHECK(json_array_append_new(out, item) == 0, TT_ENOMEM, "%s: out of memory", r->where);
    }
}

/* The current event is a key: a copy of its text. */
static tt_status read_key(reader *r, const json_t *mapping, int depth, char **out)
{
    yaml_mark_t mark = r->event.start_mark;
    if (r->event.type != YAML_SCALAR_EVENT) return fail_at(r, mark, "a key must be a plain text", NULL);
    TT_TRY(refuse_properties(r, r->event.data.scalar.anchor, r->event.data.scalar.tag));
    const char *text = (const char *)r->event.data.scalar.value;
    if (strlen(text) != r->event.data.scalar.length)
        return fail_at(r, mark, "a key holds a NUL character", NULL);
    if (strcmp(text, "<<") == 0 && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        return fail_at(r, mark, "merge keys are not accepted:", text);
    if (json_object_get(mapping, text)) return fail_at(r, mark, "duplicate key", text);
    if (depth == 1 && r->lines)
        TT_CHECK(json_object_set_new(r->lines, text, json_integer((json_int_t)mark.line + 1)) == 0, TT_ENOMEM,
                 "%s: out of memory", r->where);
    *out = strdup(text);
    TT_CHECK(*out, TT_ENOMEM, "%s: out of memory", r->where);
    return TT_OK;
}

static tt_status mapping(reader *r, int depth, json_t *out)
{
    TT_TRY(refuse_properties(r, r->event.data.mapping_start.anchor, r->event.data.mapping_start.tag));
    for (;;) {
        char *key;
        json_t *value = NULL;
        TT_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) return TT_OK;
        TT_TRY(read_key(r, out, depth, &key));
        tt_status status = next(r);
        if (status == TT_OK) status = node(r, depth, &value);
        if (status == TT_OK && json_object_set_new(out, key, value) != 0)
            status = tt_error_set(TT_ENOMEM, "%s: out of memory", r->where);
        free(key);
        TT_TRY(status);
    }
}

/* The value that begins with the current event; `depth` collections are open around it. */
static tt_status node(reader *r, int depth, json_t **out)
{
    yaml_event_type_t type = r->event.type;
    if (type == YAML_SCALAR_EVENT) return scalar(r, out);
    if (type == YAML_ALIAS_EVENT)
        return fail_at(r, r->event.start_mark, "anchors and aliases are not accepted: *",
                       (const char *)r->event.data.alias.anchor);
    if (depth == TT_YAML_MAX_DEPTH) return fail_at(r, r->event.start_mark, "nested too deeply", NULL);
    json_t *value = NULL;
    TT_TRY(own(r, type == YAML_MAPPING_START_EVENT ? json_object() : json_array(), &value));
    tt_status status =
        type == YAML_MAPPING_START_EVENT ? mapping(r, depth + 1, value) : sequence(r, depth + 1, value);
    if (status == TT_OK)
        *out = value;
    else
        json_decref(value);
    return status;
}

static tt_status document(reader *r, json_t **out)
{
    json_t *value = NULL;
    TT_TRY(next(r)); /* the stream begins */
    TT_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return own(r, json_null(), out);
    TT_TRY(next(r)); /* past the document's begin */
    TT_TRY(node(r, 0, &value));
    tt_status status = next(r); /* the document ends */
    if (status == TT_OK) status = next(r);
    if (status == TT_OK && r->event.type != YAML_STREAM_END_EVENT)
        status = fail_at(r, r->event.start_mark, "a second document begins; expected one", NULL);
    if (status == TT_OK)
        *out = value;
    else
        json_decref(value);
    return status;
}

tt_status tt_yaml_parse(const char *text, size_t bytes, const char *where, json_t **out, json_t **lines)
{
    reader r = {.text = text, .bytes = bytes, .where = where};
    TT_CHECK(yaml_parser_initialize(&r.parser), TT_ENOMEM, "%s: out of memory", where);
    tt_status status = TT_OK;
    json_t *value = NULL;
    if (lines) status = own(&r, json_object(), &r.lines);
    if (status == TT_OK) {
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, bytes);
        status = document(&r, &value);
    }
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    if (status != TT_OK) {
        json_decref(r.lines);
        return status;
    }
    *out = value;
    if (lines) *lines = r.lines;
    return TT_OK;
}

tt_status tt_yaml_load(const char *path, int64_t max_bytes, json_t **out, json_t **lines)
{
    char *text;
    size_t bytes;
    TT_TRY(tt_file_read_all(path, max_bytes, &text, &bytes));
    tt_status status = tt_yaml_parse(text, bytes, path, out, lines);
    free(text);
    return status;
}

int tt_yaml_line(const json_t *lines, const char *key)
{
    return (int)json_integer_value(json_object_get(lines, key));
}
