#include "base/json.h"
#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tt_json_kind(const json_t *value)
{
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "object";
    case JSON_ARRAY: return "array";
    case JSON_STRING: return "string";
    case JSON_INTEGER: return "integer";
    case JSON_REAL: return "real";
    case JSON_TRUE:
    case JSON_FALSE: return "boolean";
    case JSON_NULL: return "null";
    }
    return "?";
}

tt_status tt_json_parse(const char *text, size_t bytes, const char *where, json_t **out)
{
    json_error_t error;
    json_t *value = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (!value) {
        if (json_error_code(&error) == json_error_out_of_memory)
            return tt_error_set(TT_ENOMEM, "%s: out of memory", where);
        return tt_error_set(TT_EFORMAT, "%s: not valid JSON (line %d, column %d): %s", where, error.line,
                            error.column, error.text);
    }
    *out = value;
    return TT_OK;
}

tt_status tt_json_load(const char *path, int64_t max_bytes, json_t **out)
{
    char *text;
    size_t bytes;
    TT_TRY(tt_file_read_all(path, max_bytes, &text, &bytes));
    size_t skip = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    tt_status status = tt_json_parse(text + skip, bytes - skip, path, out);
    free(text);
    return status;
}

tt_status tt_json_save(const char *path, const json_t *value, bool sort_keys)
{
    size_t flags = JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17) | (sort_keys ? JSON_SORT_KEYS : 0);
    char *text = json_dumps(value, flags);
    TT_CHECK(text, TT_ENOMEM, "%s: out of memory while writing JSON", path);
    size_t n = strlen(text);
    text[n++] = '\n'; /* over the NUL: the file gets a final newline */
    tt_status status = tt_file_write_all(path, text, n);
    free(text);
    return status;
}

static const json_t *find(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return v && !json_is_null(v) ? v : NULL;
}

static tt_status wrong_type(const json_t *v, const char *where, const char *key, const char *expected)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    tt_status s = tt_error_set(TT_EFORMAT, "%s: key '%s' is %s %.60s; expected %s", where, key, tt_json_kind(v),
                               text ? text : "", expected);
    free(text);
    return s;
}

tt_status tt_json_get_int(const json_t *object, const char *where, const char *key, int64_t fallback, int64_t *out)
{
    const json_t *v = find(object, key);
    *out = fallback;
    if (!v) return TT_OK;
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return TT_OK;
    }
    double d = json_real_value(v);
    if (!json_is_real(v) || d != floor(d) || fabs(d) > 9e15) return wrong_type(v, where, key, "an integer");
    *out = (int64_t)d;
    return TT_OK;
}

tt_status tt_json_get_number(const json_t *object, const char *where, const char *key, double fallback, double *out)
{
    const json_t *v = find(object, key);
    *out = fallback;
    if (!v) return TT_OK;
    if (!json_is_number(v)) return wrong_type(v, where, key, "a number");
    *out = json_number_value(v);
    return TT_OK;
}

tt_status tt_json_get_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out)
{
    const json_t *v = find(object, key);
    *out = fallback;
    if (!v) return TT_OK;
    if (!json_is_boolean(v)) return wrong_type(v, where, key, "true or false");
    *out = json_is_true(v);
    return TT_OK;
}

tt_status tt_json_get_string(const json_t *object, const char *where, const char *key, const char *fallback,
                             const char **out)
{
    const json_t *v = find(object, key);
    *out = fallback;
    if (!v) return TT_OK;
    if (!json_is_string(v)) return wrong_type(v, where, key, "a string");
    if (strlen(json_string_value(v)) != json_string_length(v))
        return tt_error_set(TT_EFORMAT, "%s: key '%s' holds a NUL character", where, key);
    *out = json_string_value(v);
    return TT_OK;
}
