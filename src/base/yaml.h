/* yaml.h - one YAML document, as configuration files are written, as JSON values (libyaml underneath).
 *
 * Plain scalars mean what the usual Python reader (PyYAML, YAML 1.1) takes them for:
 *   null      empty, ~, null Null NULL
 *   boolean   yes no true false on off, each in lower, Title or UPPER case
 *   integer   17, -3, 1_000, 0x1F, 017 (octal; 0o17 is a string), 0b101
 *   real      with a dot: 1.5, .5, 2.0e-5 (the exponent has a sign)
 *   string    everything else: 1e-5 is a string, so is 2.0e5, and so is every quoted or block scalar
 * Whoever wants a number where the file has the string "1e-5" converts it; its text is kept as it was written.
 * Unlike there, dates and numbers to base 60 (12:30) stay strings, and keys keep their text (`no: 1` has key "no").
 *
 * Refused, each with FILE:LINE (TT_ECONFIG): syntax errors, a second document, duplicate keys, keys that are
 * not scalars, anchors, aliases and merge keys (a few lines could expand without bound), tags, nesting beyond
 * TT_YAML_MAX_DEPTH, integers beyond 64 bits, infinities and NaN.
 * Time and memory are linear in the text, with duplicate keys found by hashing.
 */
#ifndef TT_BASE_YAML_H
#define TT_BASE_YAML_H

#include "tartan/status.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define TT_YAML_MAX_DEPTH 64

/* tt_yaml_parse - text[0..bytes) is one document; an empty one is null.
 *   where   names the source in messages
 *   *out    owned by the caller: json_decref. Untouched on failure.
 *   *lines  may be NULL, else an object, owned by the caller: top-level key -> number of its line, from 1 on
 *           (empty when the document is not a mapping) */
tt_status tt_yaml_parse(const char *text, size_t bytes, const char *where, json_t **out, json_t **lines);

/* tt_yaml_load - the same for a file of at most max_bytes. */
tt_status tt_yaml_load(const char *path, int64_t max_bytes, json_t **out, json_t **lines);

/* tt_yaml_line - line of a top-level key, 0 when there is no such key. */
int tt_yaml_line(const json_t *lines, const char *key);

#endif
