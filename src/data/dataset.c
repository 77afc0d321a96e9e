/* dataset.c - a data file as rows of token ids and labels: see dataset.h.
 *
 * A block of rows is cut into pieces, several for each thread. A piece prepares its rows in order into
 * buffers of its own and stops at its first error; then the pieces are appended in order, up to the first
 * that failed. */
#include "data/dataset.h"
#include "base/checked.h"
#include "base/log.h"
#include "data/jsonl.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PIECES_PER_THREAD = 8 };

typedef struct source_row {
    int64_t begin; /* of its tokens; they end where the next row begins */
    int64_t index, line;
    int64_t offset, bytes; /* in the file */
} source_row;

typedef struct row_list {
    int64_t count, capacity;
    source_row *rows;
} row_list;

typedef struct piece {
    tt_tokens tokens;
    row_list rows;
    tt_prepare_scratch scratch;
    tt_data_report report;
    tt_status status;
    char error[2048];
} piece;

struct tt_dataset {
    char *path;
    tt_preparer *preparer;
    tt_tokens tokens;
    row_list rows;
    tt_data_report report;
    uint64_t fingerprint;
};

/* What loading needs beside the result. */
typedef struct loader {
    const char *path;
    const tt_prepare *options;
    tt_jsonl *reader;
    int threads, num_pieces;
    piece *pieces;
    XXH64_state_t *hash;
} loader;

/* --- one row -------------------------------------------------------------------------------------------- */

static tt_status add_row(row_list *list, source_row row)
{
    if (list->count == list->capacity) {
        int64_t capacity = tt_max_i64(256, 2 * list->capacity);
        source_row *rows = realloc(list->rows, (size_t)capacity * sizeof *rows);
        TT_CHECK(rows, TT_ENOMEM, "out of memory for the places of %lld rows", (long long)capacity);
        list->rows = rows;
        list->capacity = capacity;
    }
    list->rows[list->count++] = row;
    return TT_OK;
}

/* Cut the tokens from `begin` on to max_length. */
static void truncate_row(tt_tokens *t, int64_t begin, const tt_prepare *o, tt_data_report *report)
{
    int64_t lost = t->count - begin - o->max_length;
    if (o->max_length == 0 || lost <= 0) return;
    if (o->keep_end) {
        size_t bytes = (size_t)o->max_length * sizeof *t->ids;
        memmove(t->ids + begin, t->ids + begin + lost, bytes);
        memmove(t->labels + begin, t->labels + begin + lost, bytes);
    }
    t->count -= lost;
    report->rows_truncated++;
    report->tokens_truncated += lost;
}

static int64_t count_labels(const tt_tokens *t, int64_t begin)
{
    int64_t labels = 0;
    for (int64_t i = begin; i < t->count; i++) labels += t->labels[i] != TT_IGNORE;
    return labels;
}

/* Truncate, keep or remove the row whose tokens are the last ones of the piece. */
static tt_status finish_row(piece *c, const tt_prepare *o, int64_t begin, const tt_jsonl_row *source)
{
    if (!o->for_packing) truncate_row(&c->tokens, begin, o, &c->report);
    int64_t labels = count_labels(&c->tokens, begin);
    if (!o->for_packing && labels == 0) {
        c->report.rows_untrained++;
        c->tokens.count = begin;
        return TT_OK;
    }
    bool first = c->tokens.count > begin && c->tokens.labels[begin] != TT_IGNORE;
    c->report.rows_kept++;
    c->report.tokens += c->tokens.count - begin;
    c->report.targets += labels - first;
    return add_row(&c->rows, (source_row){begin, source->index, source->line, source->offset, source->bytes});
}

static void note_findings(tt_data_report *report, const tt_findings *f, int64_t line)
{
    for (int kind = 0; kind < TT_WARN_COUNT; kind++) {
        if (!f->found[kind]) continue;
        if (report->warnings[kind].rows++ == 0) report->warnings[kind].first_line = line;
    }
}

static tt_status prepare_row(piece *c, const loader *l, const tt_preparer *p, const tt_jsonl_row *source)
{
    char where[1200];
    json_t *row = NULL;
    tt_findings findings;
    bool skipped;
    int64_t begin = c->tokens.count;
    snprintf(where, sizeof where, "%.1100s:%lld", l->path, (long long)source->line);
    TT_TRY(tt_jsonl_parse(source, l->path, &row));
    tt_status status = tt_preparer_row(p, row, where, &c->scratch, &c->tokens, &findings, &skipped);
    json_decref(row);
    TT_TRY(status);
    c->report.rows_read++;
    note_findings(&c->report, &findings, source->line);
    if (!skipped) return finish_row(c, l->options, begin, source);
    c->report.rows_unanswered++;
    return TT_OK;
}

/* --- one block ------------------------------------------------------------------------------------------ */

static void prepare_piece(piece *c, const loader *l, const tt_preparer *p, const tt_jsonl_row *rows, int64_t count)
{
    c->tokens.count = 0;
    c->rows.count = 0;
    c->report = (tt_data_report){0};
    c->status = TT_OK;
    for (int64_t i = 0; i < count && c->status == TT_OK; i++) c->status = prepare_row(c, l, p, &rows[i]);
    /* The message belongs to this thread; the one that reports it may be another. */
    if (c->status != TT_OK) snprintf(c->error, sizeof c->error, "%s", tt_error_text());
}

static void add_report(tt_data_report *sum, const tt_data_report *part)
{
    sum->rows_read += part->rows_read;
    sum->rows_kept += part->rows_kept;
    sum->rows_untrained += part->rows_untrained;
    sum->rows_unanswered += part->rows_unanswered;
    sum->rows_truncated += part->rows_truncated;
    sum->tokens_truncated += part->tokens_truncated;
    sum->tokens += part->tokens;
    sum->targets += part->targets;
    for (int kind = 0; kind < TT_WARN_COUNT; kind++) {
        if (sum->warnings[kind].rows == 0) sum->warnings[kind].first_line = part->warnings[kind].first_line;
        sum->warnings[kind].rows += part->warnings[kind].rows;
    }
}

static int64_t row_end(const row_list *rows, int64_t i, const tt_tokens *tokens)
{
    return i + 1 < rows->count ? rows->rows[i + 1].begin : tokens->count;
}

static void hash_rows(XXH64_state_t *hash, const piece *c)
{
    for (int64_t i = 0; i < c->rows.count; i++) {
        int64_t begin = c->rows.rows[i].begin, count = row_end(&c->rows, i, &c->tokens) - begin;
        XXH64_update(hash, &count, sizeof count);
        if (count == 0) continue; /* then there may be no array at all */
        XXH64_update(hash, c->tokens.ids + begin, (size_t)count * sizeof *c->tokens.ids);
        XXH64_update(hash, c->tokens.labels + begin, (size_t)count * sizeof *c->tokens.labels);
    }
}

static tt_status append_piece(tt_dataset *d, const piece *c, XXH64_state_t *hash)
{
    if (c->status != TT_OK) return tt_error_set(c->status, "%s", c->error);
    int64_t begin = d->tokens.count;
    TT_TRY(tt_tokens_reserve(&d->tokens, c->tokens.count));
    if (c->tokens.count > 0) {
        memcpy(d->tokens.ids + begin, c->tokens.ids, (size_t)c->tokens.count * sizeof *c->tokens.ids);
        memcpy(d->tokens.labels + begin, c->tokens.labels, (size_t)c->tokens.count * sizeof *c->tokens.labels);
    }
    d->tokens.count += c->tokens.count;
    for (int64_t i = 0; i < c->rows.count; i++) {
        source_row row = c->rows.rows[i];
        row.begin += begin;
        TT_TRY(add_row(&d->rows, row));
    }
    add_report(&d->report, &c->report);
    hash_rows(hash, c);
    return TT_OK;
}

static tt_status prepare_block(tt_dataset *d, const loader *l, const tt_jsonl_row *rows, int64_t count)
{
    const tt_preparer *p = d->preparer;
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1)
    for (int i = 0; i < l->num_pieces; i++) {
        int64_t begin = tt_block_begin(count, l->num_pieces, i), end = tt_block_begin(count, l->num_pieces, i + 1);
        prepare_piece(&l->pieces[i], l, p, rows + begin, end - begin);
    }
    for (int i = 0; i < l->num_pieces; i++) TT_TRY(append_piece(d, &l->pieces[i], l->hash));
    return TT_OK;
}

/* --- the whole file ------------------------------------------------------------------------------------- */

static tt_status start(tt_dataset *d, const loader *l, const tt_jsonl_row *first)
{
    char where[1200];
    json_t *row = NULL;
    snprintf(where, sizeof where, "%.1100s:%lld", l->path, (long long)first->line);
    TT_TRY(tt_jsonl_parse(first, l->path, &row));
    tt_status status = tt_preparer_create(l->options, row, where, &d->preparer);
    json_decref(row);
    return status;
}

static tt_status read_rows(tt_dataset *d, loader *l)
{
    for (;;) {
        const tt_jsonl_row *rows;
        int64_t count;
        TT_TRY(tt_jsonl_next(l->reader, &rows, &count));
        if (count == 0) return TT_OK;
        if (!d->preparer) TT_TRY(start(d, l, &rows[0]));
        TT_TRY(prepare_block(d, l, rows, count));
    }
}

static tt_status check_result(const tt_dataset *d)
{
    const tt_data_report *r = &d->report;
    TT_CHECK(r->rows_read > 0, TT_EDATA, "'%s' has no rows; expected one JSON object a line, or a JSON array",
             d->path);
    TT_CHECK(r->targets > 0, TT_EDATA,
             "'%s': none of its %lld rows has anything to train (%lld were truncated, %lld lost every "
             "label); raise "
             "max_length, or see which part of a row is trained",
             d->path, (long long)r->rows_read, (long long)r->rows_truncated, (long long)r->rows_untrained);
    return TT_OK;
}

/* Give back what the arrays have beyond their use. Should shrinking fail, they stay as they are. */
static void shrink(tt_dataset *d)
{
    tt_tokens *t = &d->tokens;
    int32_t *ids = realloc(t->ids, (size_t)tt_max_i64(t->count, 1) * sizeof *ids);
    if (ids) t->ids = ids;
    int32_t *labels = realloc(t->labels, (size_t)tt_max_i64(t->count, 1) * sizeof *labels);
    if (labels) t->labels = labels;
    t->capacity = t->count;
}

static tt_status open_loader(loader *l)
{
    l->threads = l->options->threads > 0 ? l->options->threads : omp_get_max_threads();
    l->num_pieces = l->threads > 1 ? l->threads * PIECES_PER_THREAD : 1;
    l->pieces = calloc((size_t)l->num_pieces, sizeof *l->pieces);
    l->hash = XXH64_createState();
    TT_CHECK(l->pieces && l->hash, TT_ENOMEM, "out of memory for preparing '%s'", l->path);
    XXH64_reset(l->hash, 0);
    return tt_jsonl_open(l->path, 0, &l->reader);
}

static void close_loader(loader *l)
{
    tt_jsonl_close(&l->reader);
    for (int i = 0; l->pieces && i < l->num_pieces; i++) {
        tt_tokens_free(&l->pieces[i].tokens);
        free(l->pieces[i].rows.rows);
        tt_prepare_scratch_free(&l->pieces[i].scratch);
    }
    free(l->pieces);
    XXH64_freeState(l->hash);
}

tt_status tt_dataset_load(const char *path, const tt_prepare *options, tt_dataset **out)
{
    loader l = {.path = path, .options = options};
    tt_dataset *d = calloc(1, sizeof *d);
    TT_CHECK(d, TT_ENOMEM, "out of memory for preparing '%s'", path);
    tt_status status;
    d->path = strdup(path);
    if (!d->path) TT_GO(tt_error_set(TT_ENOMEM, "out of memory for preparing '%s'", path));
    TT_GO(open_loader(&l));
    TT_GO(read_rows(d, &l));
    TT_GO(check_result(d));
    d->report.open_end = tt_preparer_open_end(d->preparer);
    d->fingerprint = XXH64_digest(l.hash);
    shrink(d);
    *out = d;
    d = NULL;
fail:
    close_loader(&l);
    tt_dataset_destroy(&d);
    return status;
}

void tt_dataset_destroy(tt_dataset **dataset)
{
    tt_dataset *d = *dataset;
    if (!d) return;
    tt_preparer_destroy(&d->preparer);
    tt_tokens_free(&d->tokens);
    free(d->rows.rows);
    free(d->path);
    free(d);
    *dataset = NULL;
}

/* --- use ------------------------------------------------------------------------------------------------ */

int64_t tt_dataset_rows(const tt_dataset *d)
{
    return d->rows.count;
}

const char *tt_dataset_path(const tt_dataset *d)
{
    return d->path;
}

void tt_dataset_row(const tt_dataset *d, int64_t i, const int32_t **ids, const int32_t **labels, int64_t *count)
{
    TT_ASSERT(i >= 0 && i < d->rows.count);
    int64_t begin = d->rows.rows[i].begin;
    *ids = d->tokens.ids + begin;
    *labels = d->tokens.labels + begin;
    *count = row_end(&d->rows, i, &d->tokens) - begin;
}

void tt_dataset_source(const tt_dataset *d, int64_t i, int64_t *index, int64_t *line)
{
    TT_ASSERT(i >= 0 && i < d->rows.count);
    *index = d->rows.rows[i].index;
    *line = d->rows.rows[i].line;
}

tt_status tt_dataset_render(const tt_dataset *d, int64_t i, char **text, size_t *bytes)
{
    TT_ASSERT(i >= 0 && i < d->rows.count);
    const source_row *r = &d->rows.rows[i];
    tt_jsonl_row source = {.offset = r->offset, .bytes = r->bytes, .index = r->index, .line = r->line};
    char where[1200];
    json_t *row = NULL;
    snprintf(where, sizeof where, "%.1100s:%lld", d->path, (long long)r->line);
    TT_TRY(tt_jsonl_reload(d->path, &source, &row));
    tt_status status = tt_preparer_render(d->preparer, row, where, text, bytes);
    json_decref(row);
    return status;
}

uint64_t tt_dataset_fingerprint(const tt_dataset *d)
{
    return d->fingerprint;
}

const tt_data_report *tt_dataset_report(const tt_dataset *d)
{
    return &d->report;
}

void tt_data_report_log(const tt_data_report *r, const char *path)
{
    if (r->rows_truncated)
        tt_warn("%s: %lld of %lld rows are longer than max_length and were cut; %lld tokens lost", path,
                (long long)r->rows_truncated, (long long)r->rows_read, (long long)r->tokens_truncated);
    if (r->rows_untrained)
        tt_warn("%s: %lld of %lld rows have nothing to train and were removed", path, (long long)r->rows_untrained,
                (long long)r->rows_read);
    if (r->rows_unanswered)
        tt_warn("%s: %lld of %lld rows have no text of the assistant and were skipped", path,
                (long long)r->rows_unanswered, (long long)r->rows_read);
    for (int kind = 0; kind < TT_WARN_COUNT; kind++) {
        if (!r->warnings[kind].rows) continue;
        tt_warn("%s: %lld of %lld rows (first: line %lld): %s", path, (long long)r->warnings[kind].rows,
                (long long)r->rows_read, (long long)r->warnings[kind].first_line,
                tt_data_warning_text((tt_data_warning)kind));
    }
    if (r->open_end)
        tt_warn("%s: the last trained text of an assistant's turn is '%s', no special token: the model may "
                "not learn "
                "to stop; use a template whose generation block includes the end of the turn",
                path, r->open_end);
}
