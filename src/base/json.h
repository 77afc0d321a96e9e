/* json.h - JSON files that come from outside, read strictly (jansson underneath).
 *
 * Duplicate keys, invalid UTF-8, lone surrogates and trailing data are errors; nesting deeper than jansson's
 * limit (2048) and files above a stated size are refused before they cost memory.
 * Values are jansson's json_t. NUL characters inside strings are allowed: use json_string_length.
 * Typed getters report the file, the key, what was there and what was expected (TT_EFORMAT).
 */
#ifndef TT_BASE_JSON_H
#define TT_BASE_JSON_H

#include "tartan/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* tt_json_parse - text[0..bytes) must be exactly one JSON value (any kind).
 *   where  names the source in messages: "data.jsonl:12" or a path
 *   *out   owned by the caller: json_decref. Untouched on failure. */
tt_status tt_json_parse(const char *text, size_t bytes, const char *where, json_t **out);

/* tt_json_load - the same for a whole file of at most max_bytes. One leading BOM is skipped. */
tt_status tt_json_load(const char *path, int64_t max_bytes, json_t **out);

/* tt_json_save - write value with two-space indentation and a final newline to path.tmp, then rename.
 * Keys keep their order unless sort_keys. */
tt_status tt_json_save(const char *path, const json_t *value, bool sort_keys);

/* Getters. A key that is absent or null gives the default; another type is TT_EFORMAT.
 * `where` names the file in messages. Integers are accepted for numbers and, when whole, floats for integers. */
tt_status tt_json_get_int(const json_t *object, const char *where, const char *key, int64_t fallback, int64_t *out);
tt_status tt_json_get_number(const json_t *object, const char *where, const char *key, double fallback, double *out);
tt_status tt_json_get_bool(const json_t *object, const char *where, const char *key, bool fallback, bool *out);
/* *out is borrowed from object. */
tt_status tt_json_get_string(const json_t *object, const char *where, const char *key, const char *fallback,
                             const char **out);

/* "null", "boolean", "integer", "real", "string", "array", "object": for messages. */
const char *tt_json_kind(const json_t *value);

#endif
