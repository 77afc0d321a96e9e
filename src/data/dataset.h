/* dataset.h - a data file as rows of token ids and labels, in memory.
 *
 *   ids     | row 0 | row 1       | row 2 | ...        one array of 32-bit ids for all rows,
 *   labels  | row 0 | row 1       | row 2 | ...        one of labels beside it (TT_IGNORE: not trained),
 *   rows    begin, where it came from                  and 40 bytes for each row
 *
 * Packing fits on top without a copy: a packed row is a list of ranges of these rows. The file is read in
 * blocks, the rows of a block are prepared by several threads and put in the order of the file, so the result
 * and the error that is reported (that of the first bad row) do not depend on the number of threads. Memory:
 * 8 bytes for each token that is kept, and a window of a few MiB.
 *
 * After preparation a row is cut to max_length, and removed when it then has nothing to train; both are
 * counted, and a data set that trains nothing is an error. With for_packing both are left to the packing.
 */
#ifndef TT_DATA_DATASET_H
#define TT_DATA_DATASET_H

#include "data/prepare.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tt_dataset tt_dataset;

/* What was read, and what became of it. Rows are rows of the file, lines count from 1. */
typedef struct tt_data_report {
    int64_t rows_read;
    int64_t rows_kept;
    int64_t rows_untrained;   /* removed: no label left */
    int64_t rows_unanswered;  /* removed: skip_without_assistant */
    int64_t rows_truncated;   /* of those read, also when removed afterwards */
    int64_t tokens_truncated; /* taken off by truncation */
    int64_t tokens;           /* of the rows kept */
    int64_t targets;          /* labels of the rows kept that enter the loss: a row's first label never does */
    struct {
        int64_t rows, first_line;
    } warnings[TT_WARN_COUNT];
    const char *open_end; /* as tt_preparer_open_end; lives as long as the data set */
} tt_data_report;

/* tt_dataset_load - prepare all rows of a .jsonl or .json file. *out is owned by the caller.
 * The tokenizer must outlive the data set, the other strings of `options` need not.
 * TT_EIO, TT_EFORMAT for the file, TT_ECONFIG for options that do not fit it, TT_EDATA for a row, for a file
 * without rows, and for one in which no row has anything to train. Messages begin with "path:line". Local. */
tt_status tt_dataset_load(const char *path, const tt_prepare *options, tt_dataset **out);
void tt_dataset_destroy(tt_dataset **d);

int64_t tt_dataset_rows(const tt_dataset *d);
/* The file that was read. Borrowed. */
const char *tt_dataset_path(const tt_dataset *d);

/* tt_dataset_row - row i, 0 <= i < tt_dataset_rows. Borrowed. */
void tt_dataset_row(const tt_dataset *d, int64_t i, const int32_t **ids, const int32_t **labels, int64_t *count);

/* tt_dataset_source - where row i stands in the file: its number among the rows from 0, and its line from 1. */
void tt_dataset_source(const tt_dataset *d, int64_t i, int64_t *index, int64_t *line);

/* tt_dataset_render - the text of row i before truncation, read from the file and rendered again. *text is
 * owned (free), with a NUL beyond *bytes. Fails too when the file has changed and the row is no longer there. */
tt_status tt_dataset_render(const tt_dataset *d, int64_t i, char **text, size_t *bytes);

/* tt_dataset_fingerprint - xxHash64 over lengths, ids and labels of all rows in order: the same data,
 * prepared the same way, for a run that resumes. */
uint64_t tt_dataset_fingerprint(const tt_dataset *d);

const tt_data_report *tt_dataset_report(const tt_dataset *d);

/* tt_data_report_log - one tt_warn line for everything in the report that a user should know. */
void tt_data_report_log(const tt_data_report *report, const char *path);

#endif
