#include "checkpoint/reader.h"
#include "base/checked.h"
#include "base/clock.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* Bytes [begin, end) of a file; spans [span, ...) begin in it, the first perhaps before it. */
typedef struct request {
    int file;
    int64_t begin, end, span;
} request;

typedef struct plan {
    const tt_st_folder *folder;
    const tt_read_span *spans;
    int64_t num_spans, num_requests, bytes, longest;
    request *requests;
} plan;

enum { SCALES = TT_READ_MAX_FP8_COLUMNS / TT_READ_FP8_BLOCK };

/* What one thread has. */
typedef struct reader {
    const plan *plan;
    char *buffer;  /* [longest request] */
    float *scales; /* [SCALES] factors of some lines of blocks of one matrix */
    char *raw;     /* [SCALES] the same as they lie */
    const tt_st_tensor *scales_of;
    int64_t line, num_lines; /* that `scales` holds */
    tt_read_result sums;
} reader;

/* --- plan -------------------------------------------------------------------------------------------------------- */

static int64_t size_of(const tt_read_span *s)
{
    return (int64_t)tt_dtype_size(s->tensor->dtype);
}

static int64_t begin_of(const tt_read_span *s)
{
    return s->tensor->begin + s->first * size_of(s);
}

static int64_t end_of(const tt_read_span *s)
{
    return begin_of(s) + s->count * size_of(s);
}

static int by_place(const void *a, const void *b)
{
    const tt_read_span *x = a, *y = b;
    int64_t p = begin_of(x), q = begin_of(y);
    if (x->tensor->file != y->tensor->file) return x->tensor->file < y->tensor->file ? -1 : 1;
    return (p > q) - (p < q);
}

static tt_status check_span(const tt_st_folder *f, const tt_read_span *s)
{
    int64_t total = (s->tensor->end - s->tensor->begin) / size_of(s);
    TT_CHECK(s->first >= 0 && s->count >= 0 && s->first <= total && s->count <= total - s->first, TT_EINTERNAL,
             "%s: tensor '%.200s' has %lld elements; %lld from %lld on were asked for", f->path, s->tensor->name,
             (long long)total, (long long)s->count, (long long)s->first);
    TT_CHECK((s->type == s->tensor->dtype && !s->scales) ||
                 (tt_dtype_is_weight(s->type) && tt_dtype_is_weight(s->tensor->dtype)),
             TT_EFORMAT, "%s: tensor '%.200s' has dtype %s, which cannot become %s", f->path, s->tensor->name,
             tt_dtype_name(s->tensor->dtype), tt_dtype_name(s->type));
    if (!s->scales) return TT_OK;
    const int64_t *shape = s->tensor->shape, *blocks = s->scales->shape;
    TT_CHECK(s->tensor->ndim == 2 && s->scales->ndim == 2 && blocks[0] == tt_div_up(shape[0], TT_READ_FP8_BLOCK) &&
                 blocks[1] == tt_div_up(shape[1], TT_READ_FP8_BLOCK) && blocks[1] <= SCALES,
             TT_EINTERNAL, "%s: '%.200s' are no factors for '%.200s'", f->path, s->scales->name, s->tensor->name);
    return TT_OK;
}

/* Appends the span to the last request while it touches it and there is room, else to new ones. Elements are never cut, and
 * lie at multiples of their size from the start of a request, so that they are aligned in its buffer. */
static void add_span(plan *p, int64_t i)
{
    const tt_read_span *s = &p->spans[i];
    int64_t size = size_of(s), end = end_of(s);
    for (int64_t at = begin_of(s); at < end;) {
        request *r = p->num_requests ? &p->requests[p->num_requests - 1] : NULL;
        int64_t room = r ? (TT_READ_REQUEST - (r->end - r->begin)) / size * size : 0;
        if (room == 0 || r->file != s->tensor->file || r->end != at || (at - r->begin) % size != 0) {
            r = &p->requests[p->num_requests++];
            *r = (request){s->tensor->file, at, at, i};
            room = TT_READ_REQUEST;
        }
        int64_t n = tt_min_i64(room, end - at);
        r->end += n;
        at += n;
        p->bytes += n;
        p->longest = tt_max_i64(p->longest, r->end - r->begin);
    }
}

static tt_status make_plan(const tt_st_folder *folder, tt_read_span *spans, int64_t num, plan *p)
{
    int64_t most = 0;
    *p = (plan){.folder = folder, .spans = spans, .num_spans = num};
    for (int64_t i = 0; i < num; i++) {
        TT_TRY(check_span(folder, &spans[i]));
        most += spans[i].count * size_of(&spans[i]) / TT_READ_REQUEST + 2;
    }
    if (num > 1) qsort(spans, (size_t)num, sizeof *spans, by_place);
    p->requests = malloc((size_t)most * sizeof *p->requests + 1);
    TT_CHECK(p->requests, TT_ENOMEM, "out of memory for %lld read requests", (long long)most);
    for (int64_t i = 0; i < num; i++) add_span(p, i);
    return TT_OK;
}

/* --- one request ------------------------------------------------------------------------------------------------- */

/* Factors of the blocks in line `line` of a matrix of `lines` lines; several lines are read at a time. */
static tt_status find_scales(reader *w, const tt_st_tensor *t, int64_t line, const float **out)
{
    int64_t lines = t->shape[0], per_line = t->shape[1], size = (int64_t)tt_dtype_size(t->dtype);
    if (w->scales_of != t || line < w->line || line >= w->line + w->num_lines) {
        int64_t n = tt_min_i64(SCALES / per_line, lines - line);
        TT_TRY(tt_file_read_at(&w->plan->folder->files[t->file], t->begin + line * per_line * size, w->raw,
                               (size_t)(n * per_line * size)));
        tt_convert(w->scales, TT_F32, w->raw, t->dtype, n * per_line);
        w->scales_of = t, w->line = line, w->num_lines = n;
        w->sums.scale_bytes += n * per_line * size;
    }
    *out = w->scales + (line - w->line) * per_line;
    return TT_OK;
}

/* Elements [first, first + count) of an FP8 matrix: one product in F32 each, then the conversion that is asked for. */
static tt_status dequantise(reader *w, const tt_read_span *s, int64_t first, int64_t count, const char *from, char *to)
{
    float block[TT_READ_FP8_BLOCK];
    const float *scales;
    int64_t columns = s->tensor->shape[1], size = (int64_t)tt_dtype_size(s->type);
    while (count > 0) {
        int64_t row = first / columns, column = first % columns, in_block = column % TT_READ_FP8_BLOCK;
        int64_t n = tt_min_i64(count, tt_min_i64(TT_READ_FP8_BLOCK - in_block, columns - column));
        TT_TRY(find_scales(w, s->scales, row / TT_READ_FP8_BLOCK, &scales));
        tt_convert(block, TT_F32, from, s->tensor->dtype, n);
        for (int64_t i = 0; i < n; i++) block[i] *= scales[column / TT_READ_FP8_BLOCK];
        tt_convert(to, s->type, block, TT_F32, n);
        first += n, count -= n, from += n, to += n * size;
    }
    return TT_OK;
}

/* The part of a span that a request has read. */
static tt_status copy_part(reader *w, const request *r, const tt_read_span *s)
{
    int64_t begin = tt_max_i64(begin_of(s), r->begin), end = tt_min_i64(end_of(s), r->end), size = size_of(s);
    if (begin >= end) return TT_OK; /* a span without elements may lie at any border */
    int64_t skipped = (begin - begin_of(s)) / size, n = (end - begin) / size;
    const char *from = w->buffer + (begin - r->begin);
    char *to = (char *)s->data + skipped * (int64_t)tt_dtype_size(s->type);
    w->sums.elements += n;
    if (s->scales) return dequantise(w, s, s->first + skipped, n, from, to);
    if (s->type == s->tensor->dtype)
        memcpy(to, from, (size_t)(n * size));
    else
        tt_convert(to, s->type, from, s->tensor->dtype, n);
    return TT_OK;
}

static tt_status serve(reader *w, const request *r)
{
    const tt_file *file = &w->plan->folder->files[r->file];
    const tt_read_span *s = &w->plan->spans[r->span], *last = w->plan->spans + w->plan->num_spans;
    size_t bytes = (size_t)(r->end - r->begin);
    w->sums.bytes += (int64_t)bytes;
    w->sums.requests++;
    if (end_of(s) >= r->end && s->type == s->tensor->dtype && !s->scales) {
        w->sums.elements += (int64_t)bytes / size_of(s);
        return tt_file_read_at(file, r->begin, (char *)s->data + (r->begin - begin_of(s)), bytes);
    }
    TT_TRY(tt_file_read_at(file, r->begin, w->buffer, bytes));
    for (; s < last && s->tensor->file == r->file && begin_of(s) < r->end; s++) TT_TRY(copy_part(w, r, s));
    return TT_OK;
}

/* --- all of them ------------------------------------------------------------------------------------------------- */

/* What the threads share. */
typedef struct crew {
    const plan *plan;
    const tt_read_watch *watch;
    double start, told;
    _Atomic int64_t next, done;
    tt_status status;   /* of the first that failed */
    char message[1024]; /* error texts are per thread; this one is for the caller's */
    tt_read_result sums;
} crew;

static double interval_of(const tt_read_watch *w)
{
    return w->interval > 0 ? w->interval : 1;
}

static void note(crew *c, int64_t bytes)
{
    int64_t done = atomic_fetch_add(&c->done, bytes) + bytes;
    if (c->watch && c->watch->done) atomic_fetch_add(c->watch->done, bytes);
    if (!c->watch || !c->watch->progress || omp_get_thread_num() > 0) return;
    double t = tt_seconds(), interval = interval_of(c->watch);
    if (t - c->start < 2 * interval || t - c->told < interval) return;
    c->told = t;
    c->watch->progress(c->watch->user, done, c->plan->bytes, t - c->start);
}

static tt_status read_requests(crew *c, reader *w)
{
    const plan *p = c->plan;
    w->buffer = malloc((size_t)p->longest + 1);
    w->scales = malloc(SCALES * sizeof *w->scales);
    w->raw = malloc(SCALES * sizeof(float));
    TT_CHECK(w->buffer && w->scales && w->raw, TT_ENOMEM,
             "out of memory for a buffer of %lld bytes to read weights with; use more ranks", (long long)p->longest);
    w->sums.memory = p->longest + SCALES * (int64_t)(sizeof *w->scales + sizeof(float));
    for (;;) {
        int64_t i = atomic_fetch_add(&c->next, 1);
        if (i >= p->num_requests) return TT_OK;
        TT_TRY(serve(w, &p->requests[i]));
        note(c, p->requests[i].end - p->requests[i].begin);
    }
}

static void add_up(tt_read_result *sum, const tt_read_result *part)
{
    sum->elements += part->elements;
    sum->bytes += part->bytes;
    sum->scale_bytes += part->scale_bytes;
    sum->requests += part->requests;
    sum->memory += part->memory;
}

static void work(crew *c)
{
    reader w = {.plan = c->plan};
    tt_status status = read_requests(c, &w);
    if (status != TT_OK) atomic_store(&c->next, c->plan->num_requests); /* the others stop too */
#pragma omp critical(tt_read)
    {
        add_up(&c->sums, &w.sums);
        if (status != TT_OK && c->status == TT_OK) {
            c->status = status;
            strncpy(c->message, tt_error_text(), sizeof c->message - 1);
        }
    }
    free(w.buffer);
    free(w.scales);
    free(w.raw);
}

tt_status tt_read_spans(const tt_st_folder *folder, tt_read_span *spans, int64_t num_spans, int threads,
                        const tt_read_watch *watch, tt_read_result *result)
{
    plan p;
    TT_TRY(make_plan(folder, spans, num_spans, &p));
    crew c = {.plan = &p, .watch = watch, .start = tt_seconds()};
    int64_t readers = tt_max_i64(TT_READ_MIN_THREADS, tt_min_i64(threads, TT_READ_MAX_THREADS));
    readers = tt_max_i64(1, tt_min_i64(readers, p.num_requests));
#pragma omp parallel num_threads((int)readers)
    work(&c);
    double seconds = tt_seconds() - c.start;
    if (c.status == TT_OK && watch && watch->progress && seconds >= 2 * interval_of(watch))
        watch->progress(watch->user, p.bytes, p.bytes, seconds);
    free(p.requests);
    *result = c.sums;
    return c.status == TT_OK ? TT_OK : tt_error_set(c.status, "%s", c.message);
}
