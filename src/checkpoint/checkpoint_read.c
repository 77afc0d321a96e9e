/* checkpoint_read.c - from a folder to shards: what makes a checkpoint whole, its checksums, and the state by name. */
#include "base/checked.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/output.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* --- open ---------------------------------------------------------------------------------------------------- */

static tt_status check_size(const char *folder, const char *name, const json_t *entry)
{
    char path[4096];
    tt_file f;
    int64_t bytes = json_integer_value(json_object_get(entry, "bytes"));
    TT_TRY(tt_path_join(path, sizeof path, folder, name));
    tt_status status = tt_file_open(&f, path);
    if (status != TT_OK) return tt_error_context(status, "the manifest lists a file");
    if (f.size != bytes)
        status = tt_error_set(TT_EFORMAT, "'%s' has %lld bytes; the manifest says %lld: cut short or replaced", path,
                              (long long)f.size, (long long)bytes);
    tt_file_close(&f);
    return status;
}

/* Headers and index; a file that they lead to and that the manifest does not cover has no proof. */
static tt_status check_set(const char *folder, const char *stem, const json_t *files)
{
    tt_st_folder f;
    char index[64];
    TT_TRY(tt_st_open_stem(folder, stem, &f));
    tt_status status = TT_OK;
    snprintf(index, sizeof index, "%s.safetensors.index.json", stem);
    for (int i = -(int)f.sharded; i < f.num_files && status == TT_OK; i++) {
        const char *name = i < 0 ? index : f.file_names[i];
        if (!json_object_get(files, name))
            status = tt_error_set(TT_EFORMAT, "'%s/%s' is not in the manifest: it was added later", folder, name);
    }
    tt_st_close(&f);
    return status;
}

static tt_status open_checked(const char *folder, tt_checkpoint *c)
{
    char path[4096];
    const char *name;
    json_t *entry;
    TT_CHECK(tt_dir_exists(folder), TT_EIO, "'%s' is not a folder", folder);
    TT_TRY(tt_path_join(path, sizeof path, folder, TT_CHECKPOINT_MANIFEST));
    TT_CHECK(tt_file_exists(path), TT_EIO, "'%s' has no %s: it is no checkpoint of tartan's, or not a whole one", folder,
             TT_CHECKPOINT_MANIFEST);
    TT_TRY(tt_manifest_read(path, &c->manifest));
    c->step = json_integer_value(json_object_get(c->manifest, "step"));
    c->with_state = json_is_true(json_object_get(c->manifest, "with_state"));
    json_t *files = json_object_get(c->manifest, "files");
    json_object_foreach(files, name, entry) TT_TRY(check_size(folder, name, entry));
    TT_TRY(check_set(folder, "model", files));
    if (c->with_state) TT_TRY(check_set(folder, TT_STATE_STEM, files));
    c->path = strdup(folder);
    TT_CHECK(c->path, TT_ENOMEM, "%s: out of memory", folder);
    return TT_OK;
}

tt_status tt_checkpoint_open(const char *folder, tt_checkpoint *out)
{
    *out = (tt_checkpoint){0};
    tt_status status = open_checked(folder, out);
    if (status != TT_OK) tt_checkpoint_close(out);
    return status;
}

void tt_checkpoint_close(tt_checkpoint *c)
{
    json_decref(c->manifest);
    free(c->path);
    *c = (tt_checkpoint){0};
}

/* --- checksums ----------------------------------------------------------------------------------------------- */

typedef struct task {
    const char *name;
    int64_t begin, end;
    uint64_t hash;
} task;

/* What the threads share. */
typedef struct crew {
    const char *folder;
    task *tasks;
    int64_t num;
    _Atomic int64_t next, *done;
    tt_status status;   /* of the first that failed */
    char message[1024]; /* error texts are per thread; this one is for the caller's */
} crew;

static int64_t count_ranges(const json_t *files, int64_t *bytes)
{
    const char *name;
    json_t *entry;
    int64_t num = 0;
    *bytes = 0;
    json_object_foreach((json_t *)files, name, entry)
    {
        num += (int64_t)json_array_size(json_object_get(entry, "ends"));
        *bytes += json_integer_value(json_object_get(entry, "bytes")); /* these files exist */
    }
    return num;
}

/* Ranges that begin within this rank's part of all bytes. */
static void list_tasks(const json_t *files, int64_t begin, int64_t end, crew *c)
{
    const char *name;
    json_t *entry;
    int64_t at = 0;
    json_object_foreach((json_t *)files, name, entry)
    {
        tt_stretch s;
        for (size_t i = 0; tt_manifest_range(entry, i, &s); i++)
            if (at + s.begin >= begin && at + s.begin < end) c->tasks[c->num++] = (task){name, s.begin, s.end, s.hash};
        at += json_integer_value(json_object_get(entry, "bytes"));
    }
}

static tt_status check_task(crew *c, const task *t, tt_file *f, const char **open, XXH64_state_t *hash, char *piece)
{
    char path[4096];
    if (*open != t->name) {
        tt_file_close(f);
        *open = NULL;
        TT_TRY(tt_path_join(path, sizeof path, c->folder, t->name));
        TT_TRY(tt_file_open(f, path));
        *open = t->name;
    }
    XXH64_reset(hash, 0);
    for (int64_t at = t->begin; at < t->end; at += TT_OUTPUT_PIECE) {
        size_t n = (size_t)tt_min_i64(TT_OUTPUT_PIECE, t->end - at);
        TT_TRY(tt_file_read_at(f, at, piece, n));
        XXH64_update(hash, piece, n);
        if (c->done) atomic_fetch_add(c->done, (int64_t)n);
    }
    TT_CHECK(XXH64_digest(hash) == t->hash, TT_EFORMAT,
             "'%s/%s' is damaged: bytes %lld to %lld do not have the checksum of the manifest", c->folder, t->name,
             (long long)t->begin, (long long)t->end);
    return TT_OK;
}

static tt_status check_tasks(crew *c)
{
    tt_file f = {0};
    const char *open = NULL;
    XXH64_state_t *hash = XXH64_createState();
    char *piece = malloc((size_t)TT_OUTPUT_PIECE);
    tt_status status = hash && piece ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for checking '%s'", c->folder);
    while (status == TT_OK) {
        int64_t i = atomic_fetch_add(&c->next, 1);
        if (i >= c->num) break;
        status = check_task(c, &c->tasks[i], &f, &open, hash, piece);
    }
    tt_file_close(&f);
    free(piece);
    XXH64_freeState(hash);
    return status;
}

static void work(crew *c)
{
    tt_status status = check_tasks(c);
    if (status == TT_OK) return;
    atomic_store(&c->next, c->num); /* the others stop too */
#pragma omp critical(tt_checkpoint_check)
    if (c->status == TT_OK) {
        c->status = status;
        strncpy(c->message, tt_error_text(), sizeof c->message - 1);
    }
}

tt_status tt_checkpoint_check(const tt_checkpoint *c, int rank, int size, int threads, _Atomic int64_t *done)
{
    int64_t bytes;
    const json_t *files = json_object_get(c->manifest, "files");
    crew w = {.folder = c->path, .done = done};
    int64_t num = count_ranges(files, &bytes);
    w.tasks = malloc((size_t)(num + 1) * sizeof *w.tasks);
    TT_CHECK(w.tasks, TT_ENOMEM, "out of memory for the %lld ranges of '%s'", (long long)num, c->path);
    list_tasks(files, tt_block_begin(bytes, size, rank), tt_block_begin(bytes, size, rank + 1), &w);
    int64_t n = tt_max_i64(1, tt_min_i64(tt_min_i64(threads, TT_READ_MAX_THREADS), w.num));
#pragma omp parallel num_threads((int)n)
    work(&w);
    free(w.tasks);
    return w.status == TT_OK ? TT_OK : tt_error_set(w.status, "%s", w.message);
}

/* --- into shards --------------------------------------------------------------------------------------------- */

typedef struct loader {
    const tt_checkpoint *c;
    tt_shards *shards;
    tt_st_folder state;
    const tt_st_tensor **tensors; /* [params][TT_NUM_STATE_KINDS], NULL: none */
    tt_read_span *spans;
    int threads;
    const tt_read_watch *watch;
    tt_read_result sums;
} loader;

static const tt_st_tensor **found(const loader *l, int64_t param)
{
    return &l->tensors[param * TT_NUM_STATE_KINDS];
}

static tt_status match(loader *l, const tt_param *p, tt_state_kind kind, bool wanted, const tt_st_tensor **out)
{
    char name[1024];
    const char *path = l->c->path;
    int n = snprintf(name, sizeof name, "%s%s", tt_state_prefix(kind), p->name);
    const tt_st_tensor *t = n < (int)sizeof name ? tt_st_find(&l->state, name) : NULL;
    *out = t;
    if (!t) {
        TT_CHECK(!wanted, TT_EMISMATCH, "%s: optimizer state '%s' is missing", path, name);
        return TT_OK;
    }
    bool fits = t->ndim == p->ndim && memcmp(t->shape, p->shape, (size_t)p->ndim * sizeof *p->shape) == 0;
    TT_CHECK(fits && tt_dtype_is_weight(t->dtype), TT_EMISMATCH, "%s: optimizer state '%s' does not have the shape of '%s'", path,
             name, p->name);
    return TT_OK;
}

/* The first tensor of the state that belongs to nothing that is trained here. */
static tt_status refuse_extra(const loader *l)
{
    const tt_params *params = tt_shards_params(l->shards);
    bool *known = calloc((size_t)l->state.num_tensors + 1, sizeof *known);
    TT_CHECK(known, TT_ENOMEM, "%s: out of memory", l->c->path);
    for (int64_t j = 0; j < params->num * TT_NUM_STATE_KINDS; j++)
        if (l->tensors[j]) known[l->tensors[j] - l->state.tensors] = true;
    int64_t i = 0;
    while (known[i]) i++;
    free(known);
    return tt_error_set(TT_EMISMATCH, "%s: optimizer state '%s' belongs to nothing that this run trains", l->c->path,
                        l->state.tensors[i].name);
}

/* moments: the run keeps some. */
static tt_status match_all(loader *l, bool moments)
{
    const tt_params *params = tt_shards_params(l->shards);
    int64_t num = 0;
    l->tensors = calloc((size_t)params->num * TT_NUM_STATE_KINDS + 1, sizeof *l->tensors);
    TT_CHECK(l->tensors, TT_ENOMEM, "%s: out of memory", l->c->path);
    for (int64_t i = 0; i < params->num; i++)
        for (int kind = 0; kind < TT_NUM_STATE_KINDS; kind++) {
            const tt_param *p = &params->at[i];
            const tt_st_tensor **t = &found(l, i)[kind];
            bool wanted = kind != TT_STATE_MASTER && moments && p->trained;
            if (!p->trained || (kind != TT_STATE_MASTER && !moments)) continue;
            TT_TRY(match(l, p, (tt_state_kind)kind, wanted, t));
            num += *t != NULL;
        }
    return num == l->state.num_tensors ? TT_OK : refuse_extra(l);
}

/* A rank without trained elements has no moments, whatever the others have. */
static bool has_moments(const tt_shards *shards, const tt_st_folder *state)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    if (tt_shards_bytes(shards).moments > 0) return true;
    for (int64_t i = 0; i < num; i++)
        if (tt_shards_params(shards)->at[pieces[i].param].trained) return false;
    for (int64_t i = 0; i < state->num_tensors; i++)
        if (strncmp(state->tensors[i].name, "exp_avg", 7) == 0) return true;
    return false;
}

static tt_read_span span_of(const loader *l, const tt_piece *p, const tt_st_tensor *t, int64_t first, tt_shard_part part)
{
    tt_mat to = tt_shards_view(l->shards, p, part);
    return (tt_read_span){.tensor = t, .first = first + p->first, .count = p->count, .type = to.dtype, .data = to.data};
}

static tt_status read_spans(loader *l, const tt_st_folder *folder, int64_t num, int64_t *bytes, int64_t *elements)
{
    tt_read_result r;
    for (int64_t i = 0; i < num; i++) {
        *elements += l->spans[i].count;
        *bytes += l->spans[i].count * (int64_t)tt_dtype_size(l->spans[i].tensor->dtype);
    }
    TT_TRY(tt_read_spans(folder, l->spans, num, l->threads, l->watch, &r));
    l->sums.elements += r.elements;
    l->sums.bytes += r.bytes;
    l->sums.scale_bytes += r.scale_bytes;
    l->sums.requests += r.requests;
    l->sums.memory = tt_max_i64(l->sums.memory, r.memory);
    return TT_OK;
}

/* Weights from the model's files, or from their masters; then moments. */
static tt_status read_all(loader *l, const tt_source *source, tt_load_report *report)
{
    int64_t num, n = 0;
    const tt_piece *pieces = tt_shards_pieces(l->shards, &num);
    int64_t bytes = 0, owned = 0;
    l->spans = calloc((size_t)num * TT_NUM_STATE_KINDS + 1, sizeof *l->spans);
    TT_CHECK(l->spans, TT_ENOMEM, "out of memory for a list of %lld pieces", (long long)num);
    for (int64_t i = 0; i < num; i++) {
        int64_t param = pieces[i].param, scales = source->scales[param];
        if (found(l, param)[TT_STATE_MASTER]) continue;
        l->spans[n] = span_of(l, &pieces[i], &source->folder.tensors[source->tensor[param]], source->first[param], TT_PART_WEIGHT);
        if (scales >= 0) l->spans[n].scales = &source->folder.tensors[scales];
        n++;
    }
    TT_TRY(read_spans(l, &source->folder, n, &bytes, &owned));
    n = 0;
    for (int64_t i = 0; i < num; i++) {
        static const tt_shard_part parts[] = {TT_PART_MOMENT1, TT_PART_MOMENT2, TT_PART_WEIGHT};
        for (int kind = 0; kind < TT_NUM_STATE_KINDS; kind++) {
            const tt_st_tensor *t = found(l, pieces[i].param)[kind];
            if (t) l->spans[n++] = span_of(l, &pieces[i], t, 0, parts[kind]);
        }
    }
    TT_TRY(read_spans(l, &l->state, n, &bytes, &owned));
    TT_CHECK(l->sums.elements == owned, TT_EINTERNAL, "load filled %lld of %lld owned elements", (long long)l->sums.elements,
             (long long)owned);
    *report = (tt_load_report){
        .elements = owned,
        .pieces = num,
        .bytes_owned = bytes,
        .bytes_read = l->sums.bytes,
        .scale_bytes = l->sums.scale_bytes,
        .requests = l->sums.requests,
        .memory = l->sums.memory,
    };
    return TT_OK;
}

tt_status tt_checkpoint_load(const tt_checkpoint *c, const tt_source *source, tt_shards *shards, int threads,
                             const tt_read_watch *watch, tt_load_report *report)
{
    loader l = {.c = c, .shards = shards, .threads = threads, .watch = watch};
    double start = omp_get_wtime();
    TT_CHECK(c->with_state, TT_ECONFIG, "'%s' holds a model without optimizer state (save_only_model); it cannot be resumed", c->path);
    TT_TRY(tt_st_open_stem(c->path, TT_STATE_STEM, &l.state));
    tt_status status = match_all(&l, has_moments(shards, &l.state));
    if (status == TT_OK) status = read_all(&l, source, report);
    if (status == TT_OK) report->seconds = omp_get_wtime() - start;
    tt_st_close(&l.state);
    free(l.tensors);
    free(l.spans);
    return status;
}
