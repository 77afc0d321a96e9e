/* cmd_verify.c - tartan verify: whether a folder or file is whole. Ranks share the reading. */
#include "base/checked.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/source.h"
#include "cli/options.h"
#include "model/table.h"

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

static bool has(const char *folder, const char *name)
{
    char path[4096];
    return tt_path_join(path, sizeof path, folder, name) == TT_OK && tt_file_exists(path);
}

static bool has_set(const char *folder, const char *stem)
{
    char single[64], index[64];
    snprintf(single, sizeof single, "%s.safetensors", stem);
    snprintf(index, sizeof index, "%s.safetensors.index.json", stem);
    return has(folder, single) || has(folder, index);
}

/* Whether the weights are those of the model that config.json describes, as training would ask. One rank. */
static tt_status match_model(const char *folder)
{
    tt_model_config config;
    tt_model_table table;
    tt_source source;
    TT_TRY(tt_model_config_load(folder, &config));
    tt_model_config_warn(&config);
    tt_status status = tt_model_table_build(&config, &table);
    if (status == TT_OK) {
        status = tt_source_open(folder, &table.params, config.tied, &source);
        if (status == TT_OK) tt_source_close(&source);
        if (status == TT_OK) printf("config.json: every parameter has its tensor\n");
        tt_model_table_free(&table);
    }
    tt_model_config_free(&config);
    return status;
}

static tt_status verify_stem(tt_comm *comm, const char *folder, const char *stem, bool deep, int64_t *bad)
{
    tt_st_folder f;
    tt_status status = TT_OK;
    TT_TRY(tt_agree(tt_comm_world(comm), "verify", tt_st_open_stem(folder, stem, &f)));
    if (tt_comm_rank(comm) == 0 && strcmp(stem, "model") == 0) status = match_model(folder);
    status = tt_agree(tt_comm_world(comm), "verify", status);
    if (status == TT_OK) status = verify_set(comm, &f, stem, deep, bad);
    tt_st_close(&f);
    return status;
}

/* Weights or an adapter, and optimizer state if there is some. What an adapter must have depends on a model that is not here. */
static tt_status verify_sets(tt_comm *comm, const char *folder, bool deep, int64_t *bad)
{
    bool adapter = has(folder, "adapter_config.json");
    if (adapter) TT_TRY(verify_stem(comm, folder, "adapter_model", deep, bad));
    if (!adapter || has_set(folder, "model")) TT_TRY(verify_stem(comm, folder, "model", deep, bad));
    return has_set(folder, "optimizer") ? verify_stem(comm, folder, "optimizer", deep, bad) : TT_OK;
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

/* What by its names alone is not whole, or nothing that can be. Local. */
static tt_status check_names(const char *path)
{
    static const char end[] = ".safetensors";
    size_t n = strlen(path), m = sizeof end - 1;
    bool folder = tt_dir_exists(path), file = n >= m && strcmp(path + n - m, end) == 0;
    TT_CHECK(folder || file, TT_EFORMAT,
             "'%s' is neither a folder nor named as a .safetensors file; verify takes such a file, or the folder of a model, an "
             "adapter or a checkpoint", path);
    bool part = folder && (has(path, "trainer_state.json") || has_set(path, "optimizer"));
    TT_CHECK(!part || has(path, TT_CHECKPOINT_MANIFEST), TT_EFORMAT,
             "'%s' holds parts of a checkpoint, but " TT_CHECKPOINT_MANIFEST ", which says what makes it whole, is missing",
             path);
    return TT_OK;
}

static tt_status verify_file(tt_comm *comm, const char *path, bool deep, int64_t *bad)
{
    tt_st_folder f;
    TT_TRY(tt_agree(tt_comm_world(comm), "verify", tt_st_open_file(path, &f)));
    tt_status status = verify_set(comm, &f, "file", deep, bad);
    tt_st_close(&f);
    return status;
}

static tt_status verify(tt_comm *comm, const char *path, bool deep, int threads)
{
    int64_t bad = 0;
    TT_TRY(tt_agree(tt_comm_world(comm), "verify", check_names(path)));
    if (has(path, TT_CHECKPOINT_MANIFEST)) TT_TRY(verify_checkpoint(comm, path, threads));
    TT_TRY(tt_dir_exists(path) ? verify_sets(comm, path, deep, &bad) : verify_file(comm, path, deep, &bad));
    tt_status status = TT_OK;
    if (bad) status = tt_error_set(TT_EVERDICT, "'%s': %lld tensors have values that are not finite", path, (long long)bad);
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
    .help = "Checks headers and index, of a model that each parameter of its config.json has its tensor, and of a checkpoint\n"
            "the size and every checksum that its manifest has.\n"
            "Exit status 0: whole; 1: not, and the message says where.",
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
