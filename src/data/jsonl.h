/* jsonl.h - the rows of a data file, read block by block.
 *
 * Two layouts, told apart by the first character that is not white space:
 *   JSONL   one JSON object on each line; LF or CRLF; blank lines are skipped; the last newline may be missing
 *   array   one top-level array of objects, as .json files have it
 * One leading BOM is skipped in both.
 *
 * A row is cut out by a scan that knows only strings and brackets and is parsed later (tt_jsonl_parse), so
 * that several threads can parse a block; the parser is the judge of what is JSON. Memory is one block, or
 * one row where that is longer, but never more than TT_JSONL_MAX_ROW: the size of the file does not matter.
 */
#ifndef TT_DATA_JSONL_H
#define TT_DATA_JSONL_H

#include "tartan/status.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TT_JSONL_BLOCK = 4 << 20,    /* bytes read at a time */
    TT_JSONL_MAX_ROWS = 4096,    /* rows handed out at a time */
    TT_JSONL_MAX_ROW = 64 << 20, /* bytes of one row */
};

typedef struct tt_jsonl tt_jsonl;

/* Text of one row, and where it stands. */
typedef struct tt_jsonl_row {
    const char *text; /* borrowed from the reader, not terminated */
    int64_t bytes;
    int64_t offset; /* of the text in the file */
    int64_t index;  /* counts rows from 0 */
    int64_t line;   /* counts lines from 1; for arrays the line on which the element begins */
} tt_jsonl_row;

/* tt_jsonl_open - block_bytes 0 means TT_JSONL_BLOCK; tests pass small ones. *out is owned by the caller.
 * Errors: TT_EIO; TT_EFORMAT for what is not a regular file. Local. */
tt_status tt_jsonl_open(const char *path, int64_t block_bytes, tt_jsonl **out);
void tt_jsonl_close(tt_jsonl **reader);

/* tt_jsonl_next - the next rows, in order; *count is 0 at the end of the file and never before it. They are
 * valid until the next call. What is wrong with a row's extent (too long, an array that does not end, text
 * behind its end) is reported when the rows before it have been handed out. Local. */
tt_status tt_jsonl_next(tt_jsonl *reader, const tt_jsonl_row **rows, int64_t *count);

/* tt_jsonl_parse - the row as an object, which the caller owns. `path` is for messages, which begin
 * "path:line". TT_EDATA for a value of another kind, TT_EFORMAT as tt_json_parse. Local, also on several
 * threads. */
tt_status tt_jsonl_parse(const tt_jsonl_row *row, const char *path, json_t **out);

/* tt_jsonl_reload - read and parse one row again, by its offset, bytes and line. Local. */
tt_status tt_jsonl_reload(const char *path, const tt_jsonl_row *row, json_t **out);

#endif
