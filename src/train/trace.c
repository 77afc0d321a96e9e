/* trace.c - the trace file of a profile (profiler.h).
 *
 * JSON, one event a line: a span of a thread is {"ph":"X"} with begin and length in microseconds; names of ranks and threads
 * are {"ph":"M"}. Each rank makes the text of its own events, once to know how long it is, and once into its place in the file:
 * nothing is gathered, and memory is one buffer, however many events there are.
 */
#include "base/file.h"
#include "train/profiler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct writer {
    const tt_file *file; /* NULL: only count */
    int64_t at;          /* where in the file the buffer goes */
    size_t used;
    tt_status status;
    char buffer[1 << 16];
} writer;

static void flush(writer *w)
{
    if (w->file && w->used > 0 && w->status == TT_OK) w->status = tt_file_write_at(w->file, w->at, w->buffer, w->used);
    w->at += (int64_t)w->used;
    w->used = 0;
}

/* A line is far shorter than the buffer: names are ours. */
static void __attribute__((format(printf, 2, 3))) put(writer *w, const char *format, ...)
{
    enum { LONGEST = 512 };
    va_list ap;
    if (sizeof w->buffer - w->used < LONGEST) flush(w);
    va_start(ap, format);
    int n = vsnprintf(w->buffer + w->used, LONGEST, format, ap);
    va_end(ap);
    w->used += n < 0 ? 0 : n < LONGEST ? (size_t)n : LONGEST - 1;
}

static void put_event(writer *w, const tt_profiler *p, int thread, const tt_event *e)
{
    char number[24] = "";
    if (e->number > 0) snprintf(number, sizeof number, " %lld", (long long)e->number);
    put(w, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s%s\"}", tt_comm_rank(p->comm), thread,
        1e6 * (e->begin - p->origin), 1e6 * (e->end - e->begin), e->name, number);
}

/* Where a thread's events end although it went on. */
static void put_end(writer *w, const tt_profiler *p, int thread)
{
    const tt_events *own = &p->profile->threads[thread];
    if (own->left_out == 0) return;
    put(w, ",\n{\"ph\":\"i\",\"s\":\"t\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"full: %lld later events are left out\"}",
        tt_comm_rank(p->comm), thread, 1e6 * (own->at[own->num - 1].end - p->origin), (long long)own->left_out);
}

static void put_rank(writer *w, const tt_profiler *p)
{
    int rank = tt_comm_rank(p->comm);
    put(w, "%s\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_name\",\"args\":{\"name\":\"rank %d\"}}",
        rank == 0 ? "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[" : ",", rank, rank);
    put(w, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":%d}}", rank, rank);
    for (int t = 0; t < p->profile->num_threads; t++) {
        const tt_events *own = &p->profile->threads[t];
        put(w, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"thread %d%s\"}}", rank, t, t,
            t == 0 ? ", phases" : "");
        for (int64_t i = 0; i < own->num; i++) put_event(w, p, t, &own->at[i]);
        put_end(w, p, t);
    }
    if (rank == tt_comm_size(p->comm) - 1) put(w, "\n]}\n");
    flush(w);
}

/* Rank 0 makes the file, at its full length; then each rank opens it for its own range. */
static tt_status write_range(const tt_profiler *p, const char *path, int64_t begin, int64_t total, writer *w)
{
    tt_file file = {0};
    bool first = tt_comm_rank(p->comm) == 0;
    tt_status status = first ? tt_file_create(&file, path, total) : TT_OK;
    status = tt_agree(tt_comm_world(p->comm), "trace", status);
    if (!first && status == TT_OK) status = tt_file_open_write(&file, path);
    if (status == TT_OK) {
        *w = (writer){.file = &file, .at = begin};
        put_rank(w, p);
        status = w->status;
    }
    tt_file_close(&file);
    return status;
}

tt_status tt_profiler_trace(tt_profiler *p, const char *path)
{
    if (!p->profile) return TT_OK;
    int size = tt_comm_size(p->comm);
    tt_profiler_stop(p); /* both passes shall see the same events */
    writer *w = calloc(1, sizeof *w);
    int64_t *bytes = calloc((size_t)size, sizeof *bytes), begin = 0, total = 0;
    tt_status status = w && bytes ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the trace");
    status = tt_agree(tt_comm_world(p->comm), "trace", status);
    if (status == TT_OK) {
        put_rank(w, p);
        status = tt_allgather(tt_comm_world(p->comm), "trace", &w->at, bytes, sizeof *bytes);
    }
    for (int r = 0; r < size && status == TT_OK; r++) {
        if (r < tt_comm_rank(p->comm)) begin += bytes[r];
        total += bytes[r];
    }
    if (status == TT_OK)
        status = tt_agree(tt_comm_world(p->comm), "trace", write_range(p, path, begin, total, w));
    free(w);
    free(bytes);
    return status;
}
