/* cmd_inspect.c - tartan inspect: what a model folder, a checkpoint or a safetensors file holds. One rank; reads headers
 * only. */
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/source.h"
#include "cli/options.h"
#include "model/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_types(const tt_st_folder *f)
{
    for (int type = 0; type < TT_NUM_DTYPES; type++) {
        int64_t tensors = 0, bytes = 0;
        for (int64_t i = 0; i < f->num_tensors; i++) {
            if (f->tensors[i].dtype != (tt_dtype)type) continue;
            tensors++;
            bytes += f->tensors[i].end - f->tensors[i].begin;
        }
        if (tensors)
            printf("  %-10s %8lld tensors %16lld bytes\n", tt_dtype_name((tt_dtype)type), (long long)tensors,
                   (long long)bytes);
    }
}

static void print_tensors(const tt_st_folder *f)
{
    for (int64_t i = 0; i < f->num_tensors; i++) {
        const tt_st_tensor *t = &f->tensors[i];
        printf("  %-70s %-8s [", t->name, tt_dtype_name(t->dtype));
        for (int d = 0; d < t->ndim; d++) printf("%s%lld", d ? ", " : "", (long long)t->shape[d]);
        printf("]\n");
    }
}

static void print_files(const tt_st_folder *f, bool tensors)
{
    printf("files\n");
    for (int i = 0; i < f->num_files; i++) printf("  %-50s %16lld bytes\n", f->file_names[i], (long long)f->files[i].size);
    printf("tensors: %lld\n", (long long)f->num_tensors);
    print_types(f);
    if (tensors) print_tensors(f);
}

static void print_model(const tt_model_config *c, const tt_params *params)
{
    int64_t moe = 0;
    for (int64_t i = 0; i < c->num_layers; i++) moe += c->is_moe[i];
    printf("model\n");
    printf("  family              %s\n", c->family);
    printf("  layers              %lld, of which %lld mixture-of-experts\n", (long long)c->num_layers, (long long)moe);
    printf("  hidden, vocabulary  %lld, %lld%s\n", (long long)c->hidden_size, (long long)c->vocab_size,
           c->tied ? ", tied head" : "");
    printf("  attention           %lld heads, %lld key/value heads of %lld%s\n", (long long)c->num_heads,
           (long long)c->num_kv_heads, (long long)c->head_dim, c->window ? ", sliding window" : "");
    if (moe)
        printf("  experts             %lld of width %lld, %lld per token%s\n", (long long)c->num_experts,
               (long long)c->expert_width, (long long)c->experts_per_token, c->shared_width ? ", shared experts" : "");
    printf("  parameters          %lld, %lld active per token\n", (long long)tt_params_total(params),
           (long long)tt_params_active(params, c->experts_per_token));
}

/* "key  value" of every member, values as JSON in one line, cut. */
static void print_members(const char *title, const json_t *object)
{
    const char *key;
    json_t *value;
    if (json_object_size(object)) printf("  %s\n", title);
    json_object_foreach((json_t *)object, key, value)
    {
        char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
        printf("    %-24s %.100s%s\n", key, text ? text : "?", text && strlen(text) > 100 ? " ..." : "");
        free(text);
    }
}

/* Of a folder with a manifest. */
static tt_status inspect_checkpoint(const char *path)
{
    tt_checkpoint c;
    const char *name;
    json_t *entry;
    TT_TRY(tt_checkpoint_open(path, &c));
    printf("checkpoint\n");
    printf("  step                %lld\n", (long long)c.step);
    printf("  optimizer state     %s\n", c.with_state ? "yes" : "no: it cannot be resumed");
    print_members("written by", json_object_get(c.manifest, "mesh"));
    print_members("precision", json_object_get(c.manifest, "precision"));
    print_members("train", json_object_get(c.manifest, "train"));
    printf("files of the manifest\n");
    json_object_foreach(json_object_get(c.manifest, "files"), name, entry)
        printf("  %-50s %16lld bytes\n", name, (long long)json_integer_value(json_object_get(entry, "bytes")));
    tt_checkpoint_close(&c);
    return TT_OK;
}

static bool has_manifest(const char *path)
{
    char manifest[4096];
    return tt_path_join(manifest, sizeof manifest, path, TT_CHECKPOINT_MANIFEST) == TT_OK && tt_file_exists(manifest);
}

static tt_status inspect_folder(const char *path, bool tensors)
{
    tt_model_config config;
    tt_model_table table;
    tt_source source;
    if (has_manifest(path)) TT_TRY(inspect_checkpoint(path));
    TT_TRY(tt_model_config_load(path, &config));
    tt_model_config_warn(&config);
    tt_status status = tt_model_table_build(&config, &table);
    if (status == TT_OK) {
        print_model(&config, &table.params);
        status = tt_source_open(path, &table.params, config.tied, &source);
        if (status == TT_OK) {
            print_files(&source.folder, tensors);
            printf("every parameter has its tensor; %lld tensors take no part in training\n", (long long)source.num_ignored);
            tt_source_close(&source);
        }
        tt_model_table_free(&table);
    }
    tt_model_config_free(&config);
    return status;
}

static tt_status inspect_file(const char *path, bool tensors)
{
    tt_st_folder f;
    TT_TRY(tt_st_open_file(path, &f));
    print_files(&f, tensors);
    tt_st_close(&f);
    return TT_OK;
}

static tt_status run(tt_comm *comm, const tt_command *self, int argc, char **argv)
{
    const char *path;
    bool tensors = false, help;
    const tt_option options[] = {{"tensors", TT_OPTION_FLAG, &tensors, "list every tensor with type and shape"}};
    TT_TRY(tt_options_parse(comm, self, options, 1, argc, argv, &path, &help));
    if (help) return TT_OK;
    tt_status status = TT_OK;
    if (tt_comm_rank(comm) == 0) status = tt_dir_exists(path) ? inspect_folder(path, tensors) : inspect_file(path, tensors);
    return tt_agree(tt_comm_world(comm), "inspect", status);
}

const tt_command tt_cmd_inspect = {
    .name = "inspect",
    .arguments = "PATH",
    .summary = "what a model, checkpoint or .safetensors file holds",
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
