#include "base/json_walk.h"

#include <stdlib.h>
#include <string.h>

static tt_status syntax(const tt_json_walk *w, const char *expected)
{
    return tt_error_set(TT_EFORMAT, "%s: not valid JSON (byte %zu): expected %s", w->where,
                        (size_t)(w->at - w->start), expected);
}

static void skip_space(tt_json_walk *w)
{
    while (w->at < w->end && (*w->at == ' ' || *w->at == '\n' || *w->at == '\r' || *w->at == '\t')) w->at++;
}

static bool accept(tt_json_walk *w, char c)
{
    skip_space(w);
    if (w->at == w->end || *w->at != c) return false;
    w->at++;
    return true;
}

/* From an opening quote past the closing one; false when there is none. */
static bool skip_string(tt_json_walk *w)
{
    for (w->at++; w->at < w->end; w->at++) {
        if (*w->at == '\\') {
            if (++w->at == w->end) return false;
        } else if (*w->at == '"') {
            w->at++;
            return true;
        }
    }
    return false;
}

/* Past one value. Brackets are counted alike whatever their kind: a piece with the wrong kind is found when
 * it is parsed. Not recursive, so depth costs nothing here. */
static bool skip_value(tt_json_walk *w)
{
    int64_t depth = 0;
    while (w->at < w->end) {
        char c = *w->at;
        if (c == '"') {
            if (!skip_string(w)) return false;
            if (depth == 0) return true;
            continue;
        }
        bool closing = c == '}' || c == ']';
        if (depth == 0 && (closing || c == ',' || c == ' ' || c == '\n' || c == '\r' || c == '\t'))
            return true;
        w->at++;
        if (c == '{' || c == '[') depth++;
        if (closing && --depth == 0) return true;
    }
    return false;
}

tt_status tt_json_walk_begin(tt_json_walk *w, const char *text, size_t bytes, const char *where)
{
    *w = (tt_json_walk){.at = text, .end = text + bytes, .start = text, .where = where, .first = true};
    return accept(w, '{') ? TT_OK : syntax(w, "'{'");
}

/* jansson decodes the escapes and checks the UTF-8. */
static tt_status decode_key(const tt_json_walk *w, tt_json_piece quoted, char **out)
{
    json_t *value;
    TT_TRY(tt_json_parse(quoted.text, quoted.bytes, w->where, &value));
    const char *text = json_string_value(value);
    tt_status status = TT_OK;
    if (strlen(text) != json_string_length(value))
        status = tt_error_set(TT_EFORMAT, "%s: a key holds a NUL character: '%.100s'", w->where, text);
    else if (!(*out = strdup(text)))
        status = tt_error_set(TT_ENOMEM, "%s: out of memory", w->where);
    json_decref(value);
    return status;
}

tt_status tt_json_walk_next(tt_json_walk *w, char **key, tt_json_piece *value)
{
    *key = NULL;
    if (accept(w, '}')) {
        skip_space(w);
        return w->at == w->end ? TT_OK : syntax(w, "nothing after the object");
    }
    if (!w->first && !accept(w, ',')) return syntax(w, "',' or '}'");
    w->first = false;
    skip_space(w);
    tt_json_piece quoted = {.text = w->at};
    if (w->at == w->end || *w->at != '"') return syntax(w, "a key in double quotes");
    if (!skip_string(w)) return syntax(w, "the end of a key");
    quoted.bytes = (size_t)(w->at - quoted.text);
    if (!accept(w, ':')) return syntax(w, "':'");
    skip_space(w);
    value->text = w->at;
    if (!skip_value(w)) return syntax(w, "the end of a value");
    value->bytes = (size_t)(w->at - value->text);
    return decode_key(w, quoted, key);
}

tt_status tt_json_walk_parse(const tt_json_walk *w, tt_json_piece value, size_t max_bytes, json_t **out)
{
    TT_CHECK(value.bytes <= max_bytes, TT_EFORMAT,
             "%s: the value at byte %zu has %zu bytes; at most %zu are accepted", w->where,
             (size_t)(value.text - w->start), value.bytes, max_bytes);
    return tt_json_parse(value.text, value.bytes, w->where, out);
}
