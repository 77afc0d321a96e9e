/* batch.h - one rank's tokens of one micro-step: documents end to end, without padding.
 *
 * Rows come as they do from a trainer (ids, a 0/1 mask, labels that are not yet shifted, positions). What the mask leaves
 * out is not computed: kept tokens stand end to end, keep their position and their column (their place in the row, which
 * is what a sliding window counts). The target of a kept token in column c is the label in column c + 1 of its row; the
 * last column has none; a label whose predecessor is masked out has none either. A row is one document; positions that
 * restart at 0 begin another (packed rows).
 */
#ifndef TT_MODEL_BATCH_H
#define TT_MODEL_BATCH_H

#include "base/json.h"
#include "kernels/ops.h"

#define TT_NO_TARGET (-100)

typedef struct tt_batch {
    int64_t T;           /* kept tokens */
    int64_t num_targets;
    int32_t *ids;        /* [T] */
    int32_t *positions;  /* [T] */
    int32_t *columns;    /* [T] */
    int32_t *targets;    /* [T] next token, or TT_NO_TARGET */
    int32_t *rows;       /* [T] row of the batch each came from */
    tt_docs docs;
    int64_t capacity_T, capacity_docs;
    int64_t *offset;     /* what docs.offset points at */
} tt_batch;

/* One row as the data layer or a batch file gives it; all borrowed. */
typedef struct tt_batch_row {
    int64_t length;
    const int32_t *ids;
    const int32_t *mask;      /* NULL: all 1 */
    const int32_t *labels;    /* NULL: ids where the mask is 1 */
    const int32_t *positions; /* NULL: 0 .. length-1 */
} tt_batch_row;

/* tt_batch_clear - empty, memory kept. Start from {0}; tt_batch_free at the end. */
void tt_batch_clear(tt_batch *b);
void tt_batch_free(tt_batch *b);

/* tt_batch_add - append a row; `row` is its number in the whole batch. ids must be in [0, vocab_size), labels in
 * [0, vocab_size) or -100, the mask 0 or 1, positions >= 0 (TT_EDATA names row and column). */
tt_status tt_batch_add(tt_batch *b, const tt_batch_row *r, int32_t row, int64_t vocab_size);

/* --- batch files --------------------------------------------------------------------------------------------- */

/* Rows of a JSON object {"input_ids": [B][S], "attention_mask", "labels", "position_ids", "segment_ids"}, all but the first
 * optional or null; rows may differ in length. segment_ids may repeat what restarting positions say and are refused when
 * they say something else. */
typedef struct tt_batch_file {
    int64_t num_rows, width; /* width: length of the longest row */
    tt_batch_row *rows;
    int32_t *numbers;        /* what the rows point into */
} tt_batch_file;

/* `where` names the object in messages. Free with tt_batch_file_free. */
tt_status tt_batch_file_read(const json_t *object, const char *where, tt_batch_file *out);
void tt_batch_file_free(tt_batch_file *f);

/* tt_batch_file_rows - rows r with r mod fsdp_size == fsdp_rank appended to b. */
tt_status tt_batch_file_rows(const tt_batch_file *f, int fsdp_size, int fsdp_rank, int64_t vocab_size, tt_batch *b);

#endif
