/* json_walk.h - the members of one large JSON object, one at a time, without a tree of the whole.
 *
 *   tt_json_walk w;
 *   TT_TRY(tt_json_walk_begin(&w, text, bytes, path));
 *   for (;;) { TT_TRY(tt_json_walk_next(&w, &key, &value));  if (!key) break;  ...  free(key); }
 *
 * A tree of jansson costs up to seventy times its text (`[],[],...`), too much for a file of a hundred
 * megabytes that nobody vouches for. The walk finds where each member's value ends, by counting brackets
 * outside strings, and leaves it to the caller to parse that piece (tt_json_walk_parse, which refuses long
 * ones) or to walk it in turn. Together the walk and the parsed pieces are as strict as tt_json_parse: a text
 * whose separators and pieces are valid JSON is valid JSON. Duplicate keys are the caller's to find: whoever
 * keeps all keys can do it by sorting. Time is linear in the text, memory is one key.
 */
#ifndef TT_BASE_JSON_WALK_H
#define TT_BASE_JSON_WALK_H

#include "base/json.h"

#include <stddef.h>

typedef struct tt_json_piece {
    const char *text; /* borrowed from the walked text */
    size_t bytes;
} tt_json_piece;

typedef struct tt_json_walk {
    const char *at, *end;
    const char *start; /* for byte offsets in messages */
    const char *where; /* borrowed: names the source in messages */
    bool first;
} tt_json_walk;

/* tt_json_walk_begin - text[0..bytes) must be one object, with nothing but white space around it (TT_EFORMAT;
 * the end is checked when the walk gets there). Borrows text and where. */
tt_status tt_json_walk_begin(tt_json_walk *w, const char *text, size_t bytes, const char *where);

/* tt_json_walk_next - the next member: *key is owned by the caller (free), valid UTF-8, without NUL; *value
 * is not yet known to be valid. At the end *key is NULL. */
tt_status tt_json_walk_next(tt_json_walk *w, char **key, tt_json_piece *value);

/* tt_json_walk_parse - the tree of a piece of at most max_bytes (TT_EFORMAT). *out: json_decref. */
tt_status tt_json_walk_parse(const tt_json_walk *w, tt_json_piece value, size_t max_bytes, json_t **out);

#endif
