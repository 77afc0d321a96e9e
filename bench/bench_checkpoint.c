/* bench_checkpoint.c - loading and saving a model folder, against plain reads and writes of the same files by the same
 * processes.
 *
 *   build/bench/bench_checkpoint MODEL_FOLDER OUT_FOLDER [--runs 4] [--threads 0] [--ep_size 1] [--state]
 *   mpirun -n 2 build/bench/bench_checkpoint ...
 *
 * Weights stay in the type of the files (bf16 for a bf16 model), as for inference. "Cold": the system is asked to forget the
 * files first. A plain read is pread in requests of 8 MiB, each process its share of every file; a plain write is pwrite
 * of as many bytes into a new file, fsync, and a rename over the last one. With --state the weights are fp32 and trained: a checkpoint with moments is written and
 * read back. Medians; OUT_FOLDER is overwritten. A model of a given size: tartan init CONFIG.json OUT_FOLDER.
 */
#include "checkpoint/checkpoint.h"
#include "train/engine.h"
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define REQUEST ((int64_t)8 << 20)
enum { MAX_RUNS = 9 };

typedef struct job {
    const char *model, *out;
    int64_t runs, threads, ep, state;
    tt_comm *comm;
    char *buffer;
    int64_t bytes; /* of all ranks, as last moved */
} job;

static int64_t peak(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}

static void forget(const tt_st_folder *f)
{
    for (int i = 0; i < f->num_files; i++) {
        int fd = open(f->files[i].path, O_RDONLY);
        if (fd < 0) continue;
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/* --- the plain way ------------------------------------------------------------------------------------------- */

static tt_status plain_read(job *j, const tt_st_folder *f)
{
    int64_t rank = tt_comm_rank(j->comm), size = tt_comm_size(j->comm);
    j->bytes = 0;
    for (int i = 0; i < f->num_files; i++) {
        int64_t end = f->files[i].size * (rank + 1) / size;
        for (int64_t at = f->files[i].size * rank / size; at < end;) {
            int64_t n = end - at < REQUEST ? end - at : REQUEST;
            TT_TRY(tt_file_read_at(&f->files[i], at, j->buffer, (size_t)n));
            at += n;
            j->bytes += n;
        }
    }
    return TT_OK;
}

static tt_status plain_write(job *j, int64_t total)
{
    char path[4096], old[4096];
    int64_t rank = tt_comm_rank(j->comm), size = tt_comm_size(j->comm), begin = total * rank / size, end = total * (rank + 1) / size;
    snprintf(old, sizeof old, "%s/plain", j->out);
    snprintf(path, sizeof path, "%s/plain.new", j->out); /* takes the old one's place, as a save does */
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    TT_CHECK(fd >= 0, TT_EIO, "cannot write '%s': %s", path, strerror(errno));
    tt_status status = TT_OK;
    for (int64_t at = begin; at < end && status == TT_OK;) {
        int64_t n = end - at < REQUEST ? end - at : REQUEST;
        ssize_t done = pwrite(fd, j->buffer, (size_t)n, at);
        if (done <= 0) status = tt_error_set(TT_EIO, "cannot write '%s': %s", path, strerror(errno));
        at += done;
    }
    if (status == TT_OK && fsync(fd) != 0) status = tt_error_set(TT_EIO, "cannot flush '%s': %s", path, strerror(errno));
    close(fd);
    j->bytes = end - begin;
    TT_TRY(status);
    TT_TRY(tt_barrier(tt_comm_world(j->comm), "bench"));
    TT_CHECK(rank > 0 || rename(path, old) == 0, TT_EIO, "cannot rename '%s': %s", path, strerror(errno));
    return TT_OK;
}

/* --- timing -------------------------------------------------------------------------------------------------- */

static double median(double *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = i; k > 0 && t[k - 1] > t[k]; k--) {
            double x = t[k];
            t[k] = t[k - 1], t[k - 1] = x;
        }
    return t[n / 2];
}

/* Between two barriers. */
static tt_status clocked(job *j, tt_status (*body)(job *, void *), void *arg, double *seconds)
{
    TT_TRY(tt_barrier(tt_comm_world(j->comm), "bench"));
    double start = tt_seconds();
    TT_TRY(body(j, arg));
    TT_TRY(tt_barrier(tt_comm_world(j->comm), "bench"));
    *seconds = tt_seconds() - start;
    return TT_OK;
}

static tt_status report(job *j, const char *what, double *times, int64_t runs, double *base)
{
    int64_t bytes = j->bytes;
    TT_TRY(tt_allreduce_i64(tt_comm_world(j->comm), "bench", &bytes, 1));
    double seconds = median(times, runs), rate = 1e-9 * (double)bytes / seconds;
    if (base && *base == 0) *base = rate;
    if (tt_comm_rank(j->comm) == 0)
        printf("%-14s %8.3f GB %8.3f s %8.3f GB/s%s%5.0f %%\n", what, 1e-9 * (double)bytes, seconds, rate,
               base ? "" : "     ", base ? 100 * rate / *base : 100);
    return TT_OK;
}

typedef struct step {
    tt_st_folder *files;
    tt_engine *engine;
    int64_t total;
    tt_checkpoint *checkpoint;
    bool restore;
} step;

static tt_status read_files(job *j, void *arg)
{
    return plain_read(j, ((step *)arg)->files);
}

static tt_status write_files(job *j, void *arg)
{
    return plain_write(j, ((step *)arg)->total);
}

static tt_engine_options engine_options(const job *j)
{
    return (tt_engine_options){.folder = j->model, .mesh = {.ep_size = j->ep}, .resident = j->state ? TT_F32 : TT_BF16,
                               .compute = TT_BF16, .moments = TT_F32, .threads = (int)j->threads, .train = j->state,
                               .with_moments = j->state};
}

static tt_status load(job *j, void *arg)
{
    step *s = arg;
    tt_engine_options o = engine_options(j);
    if (s->engine->mesh) tt_engine_close(s->engine);
    TT_TRY(tt_engine_open(j->comm, &o, s->engine));
    j->bytes = s->engine->load.bytes_read;
    return TT_OK;
}

static tt_status save(job *j, void *arg)
{
    step *s = arg;
    tt_save_report r;
    tt_save_options o = {.source = &s->engine->source, .config = s->engine->config.source, .overwrite = true};
    TT_TRY(tt_save_model(j->out, s->engine->shards, &o, &r));
    j->bytes = r.bytes_written;
    return TT_OK;
}

static tt_status write_state(job *j, void *arg)
{
    step *s = arg;
    char path[4096];
    tt_save_report r;
    tt_checkpoint_writer *w;
    tt_save_options model = {.source = &s->engine->source, .config = s->engine->config.source, .overwrite = true};
    tt_checkpoint_options o = {.model = &model, .with_state = true, .step = 1};
    snprintf(path, sizeof path, "%s/checkpoint-1", j->out);
    TT_TRY(tt_checkpoint_begin(path, s->engine->shards, &o, &w));
    TT_TRY(tt_checkpoint_publish(&w, tt_checkpoint_write(w, NULL), &r));
    j->bytes = r.bytes_written;
    return TT_OK;
}

static tt_status read_state(job *j, void *arg)
{
    step *s = arg;
    char path[4096];
    tt_checkpoint c;
    tt_load_report r;
    tt_source source;
    snprintf(path, sizeof path, "%s/checkpoint-1", j->out);
    TT_TRY(tt_checkpoint_open(path, &c));
    TT_TRY(tt_source_open(path, &s->engine->table.params, s->engine->config.tied, &source));
    tt_status status = tt_checkpoint_load(&c, &source, s->engine->shards, (int)j->threads, NULL, &r);
    tt_source_close(&source);
    tt_checkpoint_close(&c);
    j->bytes = r.bytes_read;
    return status;
}

static tt_status one(job *j, step *s, tt_status (*body)(job *, void *), bool cold, double *seconds, int64_t *bytes)
{
    if (cold) forget(s->files);
    TT_TRY(clocked(j, body, s, seconds));
    *bytes = j->bytes;
    return TT_OK;
}

/* In turn, each first every other time: a disk may have given its best to whoever came first. */
static tt_status pair(job *j, step *s, const char *plain, tt_status (*first)(job *, void *), const char *what,
                      tt_status (*second)(job *, void *), bool cold)
{
    double a[MAX_RUNS], b[MAX_RUNS], base = 0;
    int64_t bytes = 0, second_bytes = 0;
    for (int64_t i = 0; i < j->runs; i++) {
        if (i % 2 == 0) TT_TRY(one(j, s, first, cold, &a[i], &bytes));
        TT_TRY(one(j, s, second, cold, &b[i], &second_bytes));
        if (i % 2) TT_TRY(one(j, s, first, cold, &a[i], &bytes));
    }
    j->bytes = bytes;
    TT_TRY(report(j, plain, a, j->runs, &base));
    j->bytes = second_bytes;
    return report(j, what, b, j->runs, &base);
}

static tt_status bench(job *j)
{
    tt_st_folder files;
    tt_engine engine = {0};
    TT_TRY(tt_st_open_folder(j->model, &files));
    TT_TRY(tt_dir_create(j->out));
    step s = {.files = &files, .engine = &engine};
    for (int i = 0; i < files.num_files; i++) s.total += files.files[i].size;
    int64_t before = peak();
    TT_TRY(pair(j, &s, "cold read", read_files, "cold load", load, true));
    int64_t loading = peak() - before, owned = tt_shards_bytes(engine.shards).weights;
    TT_TRY(pair(j, &s, "warm read", read_files, "warm load", load, false));
    before = peak();
    TT_TRY(pair(j, &s, "plain write", write_files, "save", save, false));
    int64_t saving = peak() - before;
    if (tt_comm_rank(j->comm) == 0)
        printf("rank 0: owns %.1f MiB; peak while loading %.1f MiB above the start, %.1f MiB more while saving\n",
               (double)owned / 1048576, (double)loading / 1048576, (double)saving / 1048576);
    if (j->state) {
        double t[MAX_RUNS];
        for (int64_t i = 0; i < j->runs; i++) TT_TRY(clocked(j, write_state, &s, &t[i]));
        TT_TRY(report(j, "write state", t, j->runs, NULL));
        for (int64_t i = 0; i < j->runs; i++) TT_TRY(clocked(j, read_state, &s, &t[i]));
        TT_TRY(report(j, "read state", t, j->runs, NULL));
    }
    tt_engine_close(&engine);
    tt_st_close(&files);
    return TT_OK;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_checkpoint MODEL_FOLDER OUT_FOLDER [--runs 4] [--threads 0] [--ep_size 1] [--state]\n");
    return 2;
}

int main(int argc, char **argv)
{
    job j = {.runs = 4, .ep = 1};
    if (argc < 3) return usage();
    j.model = argv[1], j.out = argv[2];
    for (int i = 3; i < argc; i++) {
        int64_t *value = !strcmp(argv[i], "--runs") ? &j.runs : !strcmp(argv[i], "--threads") ? &j.threads
                         : !strcmp(argv[i], "--ep_size") ? &j.ep : NULL;
        if (!strcmp(argv[i], "--state")) j.state = 1;
        else if (value && i + 1 < argc) *value = atoll(argv[++i]);
        else return usage();
    }
    if (j.runs < 1 || j.runs > MAX_RUNS || !(j.buffer = calloc(1, REQUEST))) return usage();
    tt_status status = tt_comm_create(&j.comm);
    if (status != TT_OK) return tt_status_exit(status);
    j.threads = tt_comm_threads_per_rank(j.comm, (int)j.threads);
    status = bench(&j);
    if (status != TT_OK) tt_comm_abort(j.comm, 1, tt_error_text());
    tt_comm_destroy(&j.comm);
    free(j.buffer);
    return 0;
}
