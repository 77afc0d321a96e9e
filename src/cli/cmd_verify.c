/* cmd_verify.c - tartan verify: whether a folder or file is whole. Ranks share the reading. */
#include "base/checked.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "cli/options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 65536 /* elements */

/* --- values ------------------------------------------------------------------------------------------------------ */

typedef struct counts {
    int64_t nan, infinite;
} counts;

/* Values that are not finite, of one tensor. */
static tt_status count_tensor(const tt_st_folder *f, const tt_st_tensor *t, double *buffer, counts *c)
{
    int64_t count = (t->end - t->begin) / (int64_t)tt_dtype_size(t->dtype);
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = tt_min_i64(PIECE, count - at);
        TT_TRY(tt_st_read(f, t, at, n, TT_F64, buffer)); /* which holds every value of every type */
        for (int64_t i = 0; i < n; i++) {
            c->nan += isnan(buffer[i]) != 0;
            c->infinite += isinf(buffer[i]) != 0;
        }
    }
    return TT_OK;
}

/* The tensors of this rank, those whose data begin in its part of all bytes; results of all ranks on every one. */
static tt_status count_values(tt_comm *comm, const tt_st_folder *f, counts *all)
{
    int64_t total = 0, at = 0;
    tt_status status = TT_OK;
    double *buffer = malloc(PIECE * sizeof *buffer);
    if (!buffer) status = tt_error_set(TT_ENOMEM, "out of memory for a buffer");
    for (int64_t i = 0; i < f->num_tensors; i++) total += f->tensors[i].end - f->tensors[i].begin;
    int64_t begin = tt_block_begin(total, tt_comm_size(comm), tt_comm_rank(comm));
    int64_t end = tt_block_begin(total, tt_comm_size(comm), tt_comm_rank(comm) + 1);
    for (int64_t i = 0; i < f->num_tensors && status == TT_OK; i++) {
        const tt_st_tensor *t = &f->tensors[i];
        if (at >= begin && at < end && tt_dtype_is_weight(t->dtype)) status = count_tensor(f, t, buffer, &all[i]);
        at += t->end - t->begin;
    }
    free(buffer);
    status = tt_agree(tt_comm_world(comm), "verify", status);
    if (status == TT_OK) status = tt_allreduce_i64(tt_comm_world(comm), "verify", &all->nan, 2 * f->num_tensors);
    return status;
}

static tt_status verify_values(tt_comm *comm, const tt_st_folder *f, int64_t *bad)
{
    bool speaks = tt_comm_rank(comm) == 0;
    int64_t tensors = 0;
    counts *all = calloc((size_t)f->num_tensors + 1, sizeof *all), sum = {0};
    tt_status status = all ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for %lld tensors", (long long)f->num_tensors);
    status = tt_agree(tt_comm_world(comm), "verify", status);
    if (status == TT_OK) status = count_values(comm, f, all);
    for (int64_t i = 0; i < f->num_tensors && status == TT_OK; i++) {
        if (!all[i].nan && !all[i].infinite) continue;
        if (speaks)
            printf("%s: %lld NaN, %lld infinite\n", f->tensors[i].name, (long long)all[i].nan, (long long)all[i].infinite);
        sum.nan += all[i].nan, sum.infinite += all[i].infinite, tensors++;
    }
    if (status == TT_OK && speaks)
        printf("values: %lld NaN, %lld infinite, in %lld tensors\n", (long long)sum.nan, (long long)sum.infinite,
               (long long)tensors);
    *bad += tensors;
    free(all);
    return status;
}

/* --- files ------------------------------------------------------------------------------------------------------- */

/* One set of files, whose headers have been checked in opening it. */
static tt_status verify_set(tt_comm *comm, const tt_st_folder *f, const char *what, bool deep, int64_t *bad)
{
    int64_t bytes = 0;
    for (int i = 0; i < f->num_files; i++) bytes += f->files[i].size;
    if (tt_comm_rank(comm) == 0)
        printf("%s: %lld tensors in %d file%s, %lld bytes: headers%s in order\n", what, (long long)f->num_tensors, f->num_files,
               f->num_files == 1 ? "" : "s", (long long)bytes, f->sharded ? " and index" : "");
    return deep ? verify_values(comm, f, bad) : TT_OK;
}

static bool has_set(const char *folder, const char *stem)
{
    char path[4096], name[64];
    bool found = false;
    for (int k = 0; k < 2; k++) {
        snprintf(name, sizeof name, "%s.safetensors%s", stem, k ? ".index.json" : "");
        found |= tt_path_join(path, sizeof path, folder, name) == TT_OK && tt_file_exists(path);
    }
    return found;
}

/* Weights, an adapter, optimizer state: those that are there. */
static tt_status verify_sets(tt_comm *comm, const char *folder, bool deep, int64_t *bad)
{
    static const char *const stems[] = {"model", "adapter_model", "optimizer"};
    enum { NUM = sizeof stems / sizeof *stems };
    bool any = false;
    for (int i = 0; i < NUM; i++) any |= has_set(folder, stems[i]);
    for (int i = 0; i < NUM; i++) {
        tt_st_folder f;
        if (!has_set(folder, stems[i]) && (any || i > 0)) continue; /* without any, opening the model says what is missing */
        TT_TRY(tt_agree(tt_comm_world(comm), "verify", tt_st_open_stem(folder, stems[i], &f)));
        tt_status status = verify_set(comm, &f, stems[i], deep, bad);
        tt_st_close(&f);
        TT_TRY(status);
    }
    return TT_OK;
}

static tt_status verify_checkpoint(tt_comm *comm, const char *folder, int threads)
{
    tt_checkpoint c;
    const char *name;
    json_t *entry;
    int64_t ranges = 0, bytes = 0;
    TT_TRY(tt_agree(tt_comm_world(comm), "verify", tt_checkpoint_open(folder, &c)));
    const json_t *files = json_object_get(c.manifest, "files");
    json_object_foreach((json_t *)files, name, entry)
    {
        ranges += (int64_t)json_array_size(json_object_get(entry, "ends"));
        bytes += json_integer_value(json_object_get(entry, "bytes"));
    }
    if (tt_comm_rank(comm) == 0)
        printf("checkpoint of step %lld, %s optimizer state\n", (long long)c.step, c.with_state ? "with" : "without");
    tt_status status = tt_checkpoint_check(&c, tt_comm_rank(comm), tt_comm_size(comm), threads, NULL);
    status = tt_agree(tt_comm_world(comm), "verify", status);
    if (status == TT_OK && tt_comm_rank(comm) == 0)
        printf("checksums: %lld ranges in %zu files, %lld bytes: as in the manifest\n", (long long)ranges,
               json_object_size(files), (long long)bytes);
    tt_checkpoint_close(&c);
    return status;
}

static tt_status verify(tt_comm *comm, const char *path, bool deep, int threads)
{
    char manifest[4096];
    int64_t bad = 0;
    tt_status status;
    if (!tt_dir_exists(path)) {
        tt_st_folder f;
        TT_TRY(tt_agree(tt_comm_world(comm), "verify", tt_st_open_file(path, &f)));
        status = verify_set(comm, &f, "file", deep, &bad);
        tt_st_close(&f);
        TT_TRY(status);
    } else {
        TT_TRY(tt_path_join(manifest, sizeof manifest, path, TT_CHECKPOINT_MANIFEST));
        if (tt_file_exists(manifest)) TT_TRY(verify_checkpoint(comm, path, threads));
        TT_TRY(verify_sets(comm, path, deep, &bad));
    }
    status = bad ? tt_error_set(TT_EVERDICT, "'%s': %lld tensors have values that are not finite", path, (long long)bad) : TT_OK;
    return tt_agree(tt_comm_world(comm), "verify", status);
}

static tt_status run(tt_comm *comm, const tt_command *self, int argc, char **argv)
{
    const char *path;
    bool deep = false, help;
    const tt_option options[] = {{"deep", TT_OPTION_FLAG, &deep, "read all values and count those that are not finite"}};
    TT_TRY(tt_options_parse(comm, self, options, 1, argc, argv, &path, &help));
    return help ? TT_OK : verify(comm, path, deep, tt_comm_threads_per_rank(comm, 0));
}

const tt_command tt_cmd_verify = {
    .name = "verify",
    .arguments = "PATH",
    .summary = "whether a model, adapter, checkpoint or .safetensors file is whole",
    .help = "Checks headers and index, and of a checkpoint the size and every checksum that its manifest has.\n"
            "Exit status 0: whole; 1: not, and the message says where.",
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
