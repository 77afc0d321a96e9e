#include "model/batch.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

void tt_batch_clear(tt_batch *b)
{
    b->T = b->num_targets = b->docs.num = 0;
    if (b->offset) b->offset[0] = 0;
}

void tt_batch_free(tt_batch *b)
{
    free(b->ids);
    free(b->offset);
    *b = (tt_batch){0};
}

/* ids, positions, columns, targets and rows share one block. */
static tt_status reserve(tt_batch *b, int64_t tokens, int64_t docs)
{
    if (tokens > b->capacity_T) {
        int64_t capacity = tt_max_i64(tokens, 2 * b->capacity_T);
        TT_CHECK(capacity < INT32_MAX, TT_EDATA, "a micro-step of %lld tokens is too large", (long long)capacity);
        int32_t *block = malloc((size_t)capacity * 5 * sizeof *block);
        TT_CHECK(block, TT_ENOMEM, "out of memory for a batch of %lld tokens", (long long)capacity);
        int32_t **parts[] = {&b->ids, &b->positions, &b->columns, &b->targets, &b->rows};
        int32_t *old = b->ids;
        for (int i = 0; i < 5; i++) {
            if (b->T) memcpy(block + i * capacity, *parts[i], (size_t)b->T * sizeof *block);
            *parts[i] = block + i * capacity;
        }
        free(old);
        b->capacity_T = capacity;
    }
    if (docs > b->capacity_docs || !b->offset) {
        int64_t capacity = tt_max_i64(docs, 2 * b->capacity_docs);
        int64_t *grown = realloc(b->offset, (size_t)(capacity + 1) * sizeof *grown);
        TT_CHECK(grown, TT_ENOMEM, "out of memory for a batch of %lld documents", (long long)capacity);
        if (!b->offset) grown[0] = 0;
        b->offset = grown;
        b->capacity_docs = capacity;
    }
    b->docs.offset = b->offset;
    b->docs.column = b->columns;
    return TT_OK;
}

static int32_t label_at(const tt_batch_row *r, int64_t c)
{
    if (r->labels) return r->labels[c];
    return !r->mask || r->mask[c] ? r->ids[c] : TT_NO_TARGET;
}

static tt_status check_row(const tt_batch_row *r, int32_t row, int64_t vocab_size)
{
    for (int64_t c = 0; c < r->length; c++) {
        TT_CHECK(!r->mask || r->mask[c] == 0 || r->mask[c] == 1, TT_EDATA,
                 "batch row %d, column %lld: attention_mask is %d; expected 0 or 1", row, (long long)c, r->mask[c]);
        TT_CHECK(r->ids[c] >= 0 && r->ids[c] < vocab_size, TT_EDATA,
                 "batch row %d, column %lld: token %d is not in [0, %lld)", row, (long long)c, r->ids[c],
                 (long long)vocab_size);
        int32_t label = label_at(r, c);
        TT_CHECK(label == TT_NO_TARGET || (label >= 0 && label < vocab_size), TT_EDATA,
                 "batch row %d, column %lld: label %d is neither -100 nor in [0, %lld)", row, (long long)c, label,
                 (long long)vocab_size);
        TT_CHECK(!r->positions || r->positions[c] >= 0, TT_EDATA, "batch row %d, column %lld: position %d is negative",
                 row, (long long)c, r->positions[c]);
    }
    return TT_OK;
}

tt_status tt_batch_add(tt_batch *b, const tt_batch_row *r, int32_t row, int64_t vocab_size)
{
    TT_TRY(check_row(r, row, vocab_size));
    TT_TRY(reserve(b, b->T + r->length, b->docs.num + r->length));
    bool open = false; /* a document of this row has tokens */
    for (int64_t c = 0; c < r->length; c++) {
        /* A document begins where the positions restart, also when its first token is masked out. */
        if (open && r->positions && r->positions[c] == 0) open = false;
        if (r->mask && !r->mask[c]) continue;
        if (!open) b->docs.num++;
        open = true;
        int64_t t = b->T++;
        b->ids[t] = r->ids[c];
        b->positions[t] = r->positions ? r->positions[c] : (int32_t)c;
        b->columns[t] = (int32_t)c;
        b->rows[t] = row;
        b->targets[t] = c + 1 < r->length ? label_at(r, c + 1) : TT_NO_TARGET;
        b->num_targets += b->targets[t] != TT_NO_TARGET;
        b->offset[b->docs.num] = b->T;
    }
    return TT_OK;
}

/* --- batch files --------------------------------------------------------------------------------------------- */

static tt_status read_row(const json_t *list, const char *where, const char *key, size_t row, int64_t expected,
                          int32_t *out)
{
    TT_CHECK(json_is_array(list), TT_EDATA, "%s: row %zu of '%s' is %s; expected a list", where, row, key,
             tt_json_kind(list));
    TT_CHECK((int64_t)json_array_size(list) == expected, TT_EDATA, "%s: row %zu of '%s' has %zu entries, input_ids %lld",
             where, row, key, json_array_size(list), (long long)expected);
    for (size_t c = 0; c < json_array_size(list); c++) {
        const json_t *v = json_array_get(list, c);
        json_int_t n = json_integer_value(v);
        TT_CHECK(json_is_integer(v) && n >= INT32_MIN && n <= INT32_MAX, TT_EDATA,
                 "%s: row %zu, column %zu of '%s' is not a 32-bit integer", where, row, c, key);
        out[c] = (int32_t)n;
    }
    return TT_OK;
}

/* Documents are told apart by positions; segment numbers may repeat that, and must not say something else. */
static tt_status check_segments(const tt_batch_row *r, const int32_t *segments, const char *where, int64_t row)
{
    for (int64_t c = 1; c < r->length && segments; c++) {
        if (r->mask && (!r->mask[c - 1] || !r->mask[c])) continue;
        bool restarts = r->positions && r->positions[c] == 0;
        TT_CHECK((segments[c] != segments[c - 1]) == restarts, TT_EDATA,
                 "%s: row %lld, column %lld: 'segment_ids' and 'position_ids' disagree about where a document begins", where,
                 (long long)row, (long long)c);
    }
    return TT_OK;
}

static tt_status read_rows(const json_t *object, const char *where, tt_batch_file *f)
{
    static const char *const keys[] = {"input_ids", "attention_mask", "labels", "position_ids", "segment_ids"};
    const json_t *lists[5];
    for (int i = 0; i < 5; i++) {
        lists[i] = json_object_get(object, keys[i]);
        if (json_is_null(lists[i])) lists[i] = NULL;
        TT_CHECK(!lists[i] || (json_is_array(lists[i]) && (int64_t)json_array_size(lists[i]) == f->num_rows), TT_EDATA,
                 "%s: '%s' must be a list of %lld rows", where, keys[i], (long long)f->num_rows);
    }
    int32_t *next = f->numbers;
    for (int64_t row = 0; row < f->num_rows; row++) {
        int64_t n = (int64_t)json_array_size(json_array_get(lists[0], (size_t)row));
        const int32_t *parts[5] = {0};
        for (int i = 0; i < 5; i++) {
            if (!lists[i]) continue;
            TT_TRY(read_row(json_array_get(lists[i], (size_t)row), where, keys[i], (size_t)row, n, next));
            parts[i] = next;
            next += n;
        }
        f->rows[row] = (tt_batch_row){n, parts[0], parts[1], parts[2], parts[3]};
        TT_TRY(check_segments(&f->rows[row], parts[4], where, row));
        f->width = tt_max_i64(f->width, n);
    }
    return TT_OK;
}

tt_status tt_batch_file_read(const json_t *object, const char *where, tt_batch_file *f)
{
    *f = (tt_batch_file){0};
    const json_t *ids = json_object_get(object, "input_ids");
    TT_CHECK(json_is_array(ids) && json_array_size(ids) > 0, TT_EDATA,
             "%s: expected an object with 'input_ids', a list of at least one row", where);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
        TT_CHECK(!strcmp(key, "input_ids") || !strcmp(key, "attention_mask") || !strcmp(key, "labels") ||
                     !strcmp(key, "position_ids") || !strcmp(key, "segment_ids"),
                 TT_EDATA,
                 "%s: unknown key '%s'; known: input_ids, attention_mask, labels, position_ids, segment_ids", where, key);
    f->num_rows = (int64_t)json_array_size(ids);
    size_t total = 0;
    for (int64_t row = 0; row < f->num_rows; row++) total += json_array_size(json_array_get(ids, (size_t)row));
    f->rows = calloc((size_t)f->num_rows, sizeof *f->rows);
    f->numbers = malloc(total * 5 * sizeof *f->numbers + 1);
    tt_status status = f->rows && f->numbers ? read_rows(object, where, f) : tt_error_set(TT_ENOMEM, "out of memory");
    if (status != TT_OK) tt_batch_file_free(f);
    return status;
}

void tt_batch_file_free(tt_batch_file *f)
{
    free(f->rows);
    free(f->numbers);
    *f = (tt_batch_file){0};
}

tt_status tt_batch_file_rows(const tt_batch_file *f, int fsdp_size, int fsdp_rank, int64_t vocab_size, tt_batch *b)
{
    for (int64_t r = fsdp_rank; r < f->num_rows; r += fsdp_size)
        TT_TRY(tt_batch_add(b, &f->rows[r], (int32_t)r, vocab_size));
    return TT_OK;
}
