/* The value of one key: from JSON into the member, and back. */
#include "train/config_key.h"

#include "base/json.h"
#include "base/yaml.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A value read but not yet stored. */
typedef union value {
    bool boolean;
    int word; /* FLAG and WORD */
    int64_t integer;
    double real;
    char *text;   /* owned */
    json_t *json; /* owned */
} value;

static void *slot_of(tt_config *c, const tt_config_key *k)
{
    return (char *)c + k->offset;
}

bool tt_config_nullable(const tt_config_key *k)
{
    return k->nullable || strcmp(k->fallback, "null") == 0;
}

/* --- what is expected ----------------------------------------------------------------------------------- */

static const char *kind_text(tt_config_kind kind)
{
    switch (kind) {
    case TT_KIND_BOOL:
    case TT_KIND_FLAG:
        return "true or false";
    case TT_KIND_INT:
        return "a whole number";
    case TT_KIND_BYTES:
        return "a number of bytes, or a size such as 20GiB or 1.5GB";
    case TT_KIND_REAL:
        return "a finite number";
    case TT_KIND_STEPS:
        return "a whole number of steps, or a share of all steps below 1";
    case TT_KIND_TEXT:
        return "a text";
    case TT_KIND_NAMES:
        return "a text or a list of texts";
    case TT_KIND_MAPPING:
        return "a mapping";
    case TT_KIND_LIST:
        return "a list";
    case TT_KIND_WORD:
        break;
    }
    return "one of";
}

void tt_config_expected(const tt_config_key *k, char *out, size_t size)
{
    FILE *f = fmemopen(out, size, "w");
    if (!f) {
        snprintf(out, size, "%s", kind_text(k->kind));
        return;
    }
    fputs(kind_text(k->kind), f);
    for (int i = 0; k->words && k->words[i].text; i++) fprintf(f, "%s %s", i ? "," : "", k->words[i].text);
    if (k->lower) fprintf(f, ", %s %.10g", k->lower == TT_BOUND_OPEN ? "above" : "at least", k->min);
    if (k->upper) fprintf(f, ", %s %.10g", k->upper == TT_BOUND_OPEN ? "below" : "at most", k->max);
    if (k->unset_word) fprintf(f, ", or %s", k->unset_word);
    if (tt_config_nullable(k)) fputs(", or null", f);
    fclose(f);
    out[size - 1] = '\0';
}

void tt_config_spell(const json_t *v, char *out, size_t size)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    if (text && strlen(text) < size)
        memcpy(out, text, strlen(text) + 1);
    else
        snprintf(out, size, "%.*s...", (int)size - 4, text ? text : "");
    free(text);
}

static tt_status refuse(const tt_config_key *k, const json_t *v, const char *place)
{
    char expected[400], given[80];
    tt_config_expected(k, expected, sizeof expected);
    tt_config_spell(v, given, sizeof given);
    /* YAML made a number or a boolean of what was meant as a text. */
    bool unquoted = k->kind == TT_KIND_TEXT && (json_is_number(v) || json_is_boolean(v));
    if (json_is_null(v)) return tt_error_set(TT_ECONFIG, "%s is null; expected %s", place, expected);
    return tt_error_set(TT_ECONFIG, "%s is %s %s; expected %s%s", place, tt_json_kind(v), given, expected,
                        unquoted ? ": put it in quotes" : "");
}

/* --- reading -------------------------------------------------------------------------------------------- */

/* A text that spells a decimal number.
 * strtod alone would also take hexadecimal numbers, "inf", "nan" and leading white space. */
static bool spelled_number(const json_t *v, double *out)
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    char *end;
    if (n == 0 || strspn(text, "0123456789+-.eE") != n) return false;
    *out = strtod(text, &end);
    return end == text + n;
}

static bool read_real(const json_t *v, double *out)
{
    if (json_is_number(v))
        *out = json_number_value(v);
    else if (!json_is_string(v) || !spelled_number(v, out))
        return false;
    return isfinite(*out);
}

static bool spelled_integer(const json_t *v, int64_t *out)
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    char *end;
    if (n == 0 || n > 20 || strspn(text, "0123456789+-") != n) return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end == text + n && errno != ERANGE && *out != TT_CONFIG_UNSET;
}

/* Whole reals count: 1e3 is 1000. TT_CONFIG_UNSET is not a value. */
static bool read_integer(const json_t *v, int64_t *out)
{
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return *out != TT_CONFIG_UNSET;
    }
    if (json_is_string(v) && spelled_integer(v, out)) return true;
    double d;
    if (!read_real(v, &d) || d != floor(d) || fabs(d) > 0x1p53) return false;
    *out = (int64_t)d;
    return true;
}

static bool has_nul(const json_t *v)
{
    return strlen(json_string_value(v)) != json_string_length(v);
}

/* Digits, perhaps with a fraction, and a unit. The letters' case counts: b would be bits. */
static bool spelled_bytes(const json_t *v, int64_t *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B", 1},      {"kB", 1e3},    {"KB", 1e3},    {"MB", 1e6},    {"GB", 1e9},
                 {"TB", 1e12},  {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    const char *text = json_string_value(v);
    char *unit;
    if (text[0] < '0' || text[0] > '9') return false;
    size_t digits = strspn(text, "0123456789.");
    double number = strtod(text, &unit);
    if (unit != text + digits) return false;
    unit += *unit == ' ';
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(unit, units[i].name) != 0 || !(number * units[i].bytes < 0x1p62)) continue;
        *out = (int64_t)(number * units[i].bytes);
        return !has_nul(v);
    }
    return false;
}

static bool read_boolean(const json_t *v, bool *out)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on",
                                        "0",     "1",    "f",  "t",   "n",   "y"};
    if (json_is_boolean(v)) {
        *out = json_is_true(v);
        return true;
    }
    if (!json_is_string(v)) return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(json_string_value(v), words[i]) == 0) {
            *out = i % 2;
            return true;
        }
    return false;
}

/* YAML makes false of the word no, so false stands for it where it is a choice. */
static bool read_word(const tt_config_key *k, const json_t *v, int *out)
{
    const char *text = json_is_false(v) ? "no" : json_string_value(v);
    for (int i = 0; text && k->words[i].text; i++)
        if (strcmp(text, k->words[i].text) == 0) {
            *out = i;
            return true;
        }
    return false;
}

static bool texts_only(const json_t *v)
{
    if (json_is_string(v)) return !has_nul(v);
    if (!json_is_array(v)) return false;
    size_t i;
    const json_t *item;
    json_array_foreach(v, i, item) if (!json_is_string(item) || has_nul(item)) return false;
    return true;
}

/* The YAML reader's own bound: what is accepted here can be written and read again. */
static bool nests_within(const json_t *v, int depth)
{
    size_t i;
    const char *name;
    json_t *item;
    if (!json_is_array(v) && !json_is_object(v)) return true;
    if (depth == 0) return false;
    json_array_foreach(v, i, item) if (!nests_within(item, depth - 1)) return false;
    json_object_foreach((json_t *)v, name, item) if (!nests_within(item, depth - 1)) return false;
    return true;
}

/* NAMES, MAPPING and LIST; a text that begins like JSON is read as JSON. The value is a copy. */
static tt_status read_json(const tt_config_key *k, const json_t *v, const char *place, json_t **out)
{
    json_t *parsed = NULL;
    const char *text = json_string_value(v);
    if (text && (text[0] == '{' || text[0] == '[') &&
        tt_json_parse(text, json_string_length(v), place, &parsed) != TT_OK)
        return TT_ECONFIG; /* the message is the parser's */
    const json_t *use = parsed ? parsed : v;
    bool right = k->kind == TT_KIND_NAMES     ? texts_only(use)
                 : k->kind == TT_KIND_MAPPING ? json_is_object(use)
                                              : json_is_array(use);
    bool shallow = nests_within(use, TT_YAML_MAX_DEPTH - 2);
    if (right && shallow) {
        *out = parsed ? parsed : json_deep_copy(v);
        TT_CHECK(*out, TT_ENOMEM, "%s: out of memory", place);
        return TT_OK;
    }
    json_decref(parsed);
    if (shallow) return refuse(k, v, place);
    return tt_error_set(TT_ECONFIG, "%s nests deeper than %d levels", place, TT_YAML_MAX_DEPTH - 2);
}

static bool within(const tt_config_key *k, double x)
{
    if (k->lower && (k->lower == TT_BOUND_OPEN ? x <= k->min : x < k->min)) return false;
    if (k->upper && (k->upper == TT_BOUND_OPEN ? x >= k->max : x > k->max)) return false;
    return true;
}

static bool read_number(const tt_config_key *k, const json_t *v, value *out)
{
    if (k->kind == TT_KIND_INT || k->kind == TT_KIND_BYTES) {
        bool sized = k->kind == TT_KIND_BYTES && json_is_string(v) && spelled_bytes(v, &out->integer);
        return (sized || read_integer(v, &out->integer)) && within(k, (double)out->integer);
    }
    if (!read_real(v, &out->real) || !within(k, out->real)) return false;
    bool whole = out->real == floor(out->real) && fabs(out->real) <= 0x1p53;
    return k->kind != TT_KIND_STEPS || out->real < 1 || whole;
}

static tt_status read_value(const tt_config_key *k, const json_t *v, const char *place, value *out)
{
    bool good = false, flag = false;
    switch (k->kind) {
    case TT_KIND_BOOL:
        good = read_boolean(v, &out->boolean);
        break;
    case TT_KIND_FLAG:
        good = read_boolean(v, &flag);
        out->word = flag ? TT_FLAG_TRUE : TT_FLAG_FALSE;
        break;
    case TT_KIND_INT:
    case TT_KIND_BYTES:
    case TT_KIND_REAL:
    case TT_KIND_STEPS:
        good = read_number(k, v, out);
        break;
    case TT_KIND_WORD:
        good = read_word(k, v, &out->word);
        break;
    case TT_KIND_TEXT:
        good = (json_is_string(v) && !has_nul(v)) || (k->true_is_text && json_is_true(v));
        if (good)
            TT_CHECK(out->text = strdup(json_is_true(v) ? "true" : json_string_value(v)), TT_ENOMEM, "%s: out of memory", place);
        break;
    case TT_KIND_NAMES:
    case TT_KIND_MAPPING:
    case TT_KIND_LIST:
        return read_json(k, v, place, &out->json);
    }
    return good ? TT_OK : refuse(k, v, place);
}

/* --- storing -------------------------------------------------------------------------------------------- */

static void store(tt_config *c, const tt_config_key *k, value v)
{
    void *slot = slot_of(c, k);
    switch (k->kind) {
    case TT_KIND_BOOL:
        *(bool *)slot = v.boolean;
        break;
    case TT_KIND_FLAG:
    case TT_KIND_WORD:
        *(int *)slot = v.word;
        break;
    case TT_KIND_INT:
    case TT_KIND_BYTES:
        *(int64_t *)slot = v.integer;
        break;
    case TT_KIND_REAL:
    case TT_KIND_STEPS:
        *(double *)slot = v.real;
        break;
    case TT_KIND_TEXT:
        free(*(char **)slot);
        *(char **)slot = v.text;
        break;
    case TT_KIND_NAMES:
    case TT_KIND_MAPPING:
    case TT_KIND_LIST:
        json_decref(*(json_t **)slot);
        *(json_t **)slot = v.json;
        break;
    }
}

void tt_config_reset(tt_config *c, const tt_config_key *k)
{
    value unset = {0};
    if (k->kind == TT_KIND_FLAG) unset.word = TT_FLAG_UNSET;
    if (k->kind == TT_KIND_INT || k->kind == TT_KIND_BYTES) unset.integer = TT_CONFIG_UNSET;
    if (k->kind == TT_KIND_REAL || k->kind == TT_KIND_STEPS) unset.real = NAN;
    store(c, k, unset);
}

static bool means_null(const tt_config_key *k, const json_t *v)
{
    if (json_is_null(v)) return true;
    if (k->false_is_null && json_is_false(v)) return true;
    return k->unset_word && json_is_string(v) && strcmp(json_string_value(v), k->unset_word) == 0;
}

tt_status tt_config_set(tt_config *c, const tt_config_key *k, const json_t *v, const char *place)
{
    if (means_null(k, v)) {
        if (!tt_config_nullable(k)) return refuse(k, v, place);
        tt_config_reset(c, k);
        return TT_OK;
    }
    value read = {0};
    TT_TRY(read_value(k, v, place, &read));
    store(c, k, read);
    return TT_OK;
}

json_t *tt_config_get(const tt_config *c, const tt_config_key *k)
{
    const void *slot = (const char *)c + k->offset;
    switch (k->kind) {
    case TT_KIND_BOOL:
        return json_boolean(*(const bool *)slot);
    case TT_KIND_FLAG: {
        int flag = *(const int *)slot;
        return flag == TT_FLAG_UNSET ? json_null() : json_boolean(flag);
    }
    case TT_KIND_WORD:
        return json_string(k->words[*(const int *)slot].text);
    case TT_KIND_INT:
    case TT_KIND_BYTES: {
        int64_t i = *(const int64_t *)slot;
        return i == TT_CONFIG_UNSET ? json_null() : json_integer(i);
    }
    case TT_KIND_REAL:
    case TT_KIND_STEPS: {
        double d = *(const double *)slot;
        bool count = k->kind == TT_KIND_STEPS && d == floor(d); /* steps, not a share */
        return isnan(d) ? json_null() : count ? json_integer((json_int_t)d) : json_real(d);
    }
    case TT_KIND_TEXT: {
        const char *text = *(char *const *)slot;
        return text ? json_string(text) : json_null();
    }
    case TT_KIND_NAMES:
    case TT_KIND_MAPPING:
    case TT_KIND_LIST: {
        json_t *json = *(json_t *const *)slot;
        return json ? json_incref(json) : json_null();
    }
    }
    return NULL;
}
