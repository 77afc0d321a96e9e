#include "checkpoint/save.h"
#include "base/checked.h"
#include "base/json.h"
#include "checkpoint/output.h"
#include "comm/recorder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the rest of a model folder ------------------------------------------------------------------------------ */

tt_status tt_save_check(const char *folder, bool overwrite)
{
    static const char *const markers[] = {TT_ST_MODEL_FILE, TT_ST_INDEX_FILE, "config.json"};
    char path[4096];
    for (size_t i = 0; i < sizeof markers / sizeof *markers && !overwrite; i++) {
        TT_TRY(tt_path_join(path, sizeof path, folder, markers[i]));
        TT_CHECK(!tt_file_exists(path), TT_ECONFIG,
                 "output folder '%s' already holds a model (%s); choose another folder, or for sft set overwrite_output_dir",
                 folder, markers[i]);
    }
    return TT_OK;
}

tt_status tt_save_dtype(const char *name, tt_dtype *out)
{
    bool known = tt_dtype_from_config_name(name, out) && (*out == TT_F32 || *out == TT_BF16 || *out == TT_F16);
    TT_CHECK(known, TT_ECONFIG, "save_dtype is '%s'; expected float32, bfloat16 or float16", name);
    return TT_OK;
}

static const char *const aux_names[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json",
    "merges.txt",     "added_tokens.json",     "generation_config.json",
};
enum { NUM_AUX = sizeof aux_names / sizeof *aux_names };

/* Every field of the source, known or not, but for those that would no longer be true: what is saved is not quantised, and
 * may have been given another type. */
static tt_status save_config(const char *path, const tt_save_options *o)
{
    json_t *copy = json_copy((json_t *)o->config);
    TT_CHECK(copy, TT_ENOMEM, "%s: out of memory", path);
    json_object_del(copy, "quantization_config");
    bool old = json_object_get(copy, "torch_dtype") && !json_object_get(copy, "dtype");
    tt_status status = TT_OK;
    if (o->save_dtype && json_object_set_new(copy, old ? "torch_dtype" : "dtype", json_string(o->save_dtype)) != 0)
        status = tt_error_set(TT_ENOMEM, "%s: out of memory", path);
    if (status == TT_OK) status = tt_json_save(path, copy, false);
    json_decref(copy);
    return status;
}

static void note(tt_save_small *s, const char *name)
{
    TT_ASSERT(s->num < TT_SAVE_MAX_SMALL);
    s->names[s->num++] = name;
}

tt_status tt_save_small_files(const char *folder, const char *suffix, const tt_layout *l, const tt_save_options *o,
                              tt_save_small *out)
{
    char from[4096], to[4096];
    *out = (tt_save_small){0};
    for (int i = 0; o->aux_folder && i < NUM_AUX; i++) {
        TT_TRY(tt_path_join(from, sizeof from, o->aux_folder, aux_names[i]));
        TT_TRY(tt_output_path(to, sizeof to, folder, aux_names[i], suffix));
        if (!tt_file_exists(from)) continue;
        TT_TRY(tt_file_copy(from, to));
        note(out, aux_names[i]);
    }
    if (o->config) {
        TT_TRY(tt_output_path(to, sizeof to, folder, "config.json", suffix));
        TT_TRY(save_config(to, o));
        note(out, "config.json");
    }
    if (l->files.num_files > 1) {
        const json_t *extra = o->source ? o->source->folder.index_metadata : NULL;
        TT_TRY(tt_output_path(to, sizeof to, folder, TT_ST_INDEX_FILE, suffix));
        TT_TRY(tt_st_write_index(to, &l->files, l->items, l->num, extra));
        note(out, TT_ST_INDEX_FILE);
    }
    return TT_OK;
}

/* --- one model in place of another --------------------------------------------------------------------------- */

static bool exists(const char *folder, const char *name)
{
    char path[4096];
    return tt_path_join(path, sizeof path, folder, name) == TT_OK && tt_file_exists(path);
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

/* The names by which readers find weights. */
static const char *const entries[] = {TT_ST_INDEX_FILE, TT_ST_MODEL_FILE};

/* Removes the files of a folder that `unwanted` says. */
static tt_status remove_where(const char *folder, bool (*unwanted)(const char *name, const void *arg), const void *arg)
{
    char path[4096];
    tt_status status = TT_OK;
    DIR *d = opendir(folder);
    TT_CHECK(d, TT_EIO, "cannot list '%s': %s", folder, strerror(errno));
    for (struct dirent *e; status == TT_OK && (e = readdir(d));) {
        if (!unwanted(e->d_name, arg) || !exists(folder, e->d_name)) continue;
        status = tt_path_join(path, sizeof path, folder, e->d_name);
        if (status == TT_OK) status = tt_file_remove(path);
    }
    closedir(d);
    return status;
}

/* What an interrupted save has left: new files that did not get their names, and old ones behind a new model. */
static bool is_leftover(const char *name, const void *folder)
{
    bool has_model = exists(folder, entries[0]) || exists(folder, entries[1]);
    return ends_with(name, TT_ST_TEMPORARY) || (has_model && ends_with(name, TT_ST_REPLACED));
}

/* A shard of a model that is no file of this one. */
static bool is_stale(const char *name, const void *plan)
{
    const tt_st_plan *files = plan;
    int i, n, end = 0;
    if (sscanf(name, "model-%5d-of-%5d.safetensors%n", &i, &n, &end) != 2 || end == 0 || name[end]) return false;
    for (int k = 0; k < files->num_files; k++)
        if (strcmp(name, files->file_names[k]) == 0) return false;
    return true;
}

/* The state of a folder while files take their places. */
typedef struct exchange {
    const char *folder;
    const tt_st_plan *files;
    const tt_save_small *small;
    bool begun; /* something has been renamed */
} exchange;

static tt_status move(exchange *x, const char *name, const char *from_suffix, const char *to_suffix)
{
    char from[4096], to[4096];
    TT_TRY(tt_output_path(from, sizeof from, x->folder, name, from_suffix));
    TT_TRY(tt_output_path(to, sizeof to, x->folder, name, to_suffix));
    TT_TRY(tt_file_rename(from, to));
    x->begun = true;
    return TT_OK;
}

static bool same_json(const char *folder, const char *name)
{
    char path[4096];
    json_t *old = NULL, *new = NULL;
    bool same = tt_output_path(path, sizeof path, folder, name, "") == TT_OK &&
                tt_json_load(path, TT_ST_MAX_HEADER, &old) == TT_OK &&
                tt_output_path(path, sizeof path, folder, name, TT_ST_TEMPORARY) == TT_OK &&
                tt_json_load(path, TT_ST_MAX_HEADER, &new) == TT_OK && json_equal(old, new);
    json_decref(old);
    json_decref(new);
    return same;
}

/* The old model loses the name by which it is found, before anything of it is overwritten - unless one rename replaces all
 * there is: one file by one file, under the same configuration. */
static tt_status hide_old(exchange *x)
{
    bool sharded = x->files->num_files > 1;
    if (!sharded && !exists(x->folder, TT_ST_INDEX_FILE) && same_json(x->folder, "config.json")) return TT_OK;
    for (int i = 0; i < 2; i++)
        if (exists(x->folder, entries[i])) TT_TRY(move(x, entries[i], "", TT_ST_REPLACED));
    return TT_OK;
}

static tt_status place_new(exchange *x)
{
    const tt_st_plan *files = x->files;
    bool sharded = files->num_files > 1;
    for (int i = 0; i < files->num_files && sharded; i++) TT_TRY(move(x, files->file_names[i], TT_ST_TEMPORARY, ""));
    for (int i = 0; i < x->small->num; i++)
        if (strcmp(x->small->names[i], TT_ST_INDEX_FILE) != 0) TT_TRY(move(x, x->small->names[i], TT_ST_TEMPORARY, ""));
    /* All that is there is on the disk under its name before the entry is. */
    TT_TRY(tt_dir_sync(x->folder));
    TT_TRY(move(x, sharded ? TT_ST_INDEX_FILE : files->file_names[0], TT_ST_TEMPORARY, ""));
    return tt_dir_sync(x->folder);
}

/* Rank 0, after all files are on the disk under their temporary names. */
static tt_status publish_model(exchange *x, bool overwrite)
{
    char path[4096];
    tt_status status = tt_dir_sync(x->folder);
    if (status == TT_OK) status = hide_old(x);
    if (status == TT_OK) status = place_new(x);
    if (status != TT_OK && x->begun)
        return tt_error_context(status,
                                "the model is complete in '%s', but part of it still has names that end in " TT_ST_TEMPORARY
                                " (docs/checkpoints.md)",
                                x->folder);
    if (status == TT_OK && overwrite) status = remove_where(x->folder, is_stale, x->files);
    for (int i = 0; i < 2 && status == TT_OK; i++) {
        status = tt_output_path(path, sizeof path, x->folder, entries[i], TT_ST_REPLACED);
        if (status == TT_OK) status = tt_file_remove(path);
    }
    return status;
}

/* --- together ------------------------------------------------------------------------------------------------ */

int64_t tt_save_total_bytes(const tt_st_plan *files)
{
    int64_t sum = 0;
    for (int i = 0; i < files->num_files; i++)
        if (!tt_add_i64(sum, files->file_bytes[i], &sum)) return INT64_MAX;
    return sum;
}

/* Ranks that are done wait for those that still write: tt_comm_transfer_begin. */
static tt_status write_share(const tt_mesh *mesh, tt_output *w)
{
    w->done = tt_comm_moved(mesh->comm);
    tt_comm_transfer_begin(mesh->comm, tt_output_bytes(w));
    tt_status status = tt_output_write(w);
    tt_comm_transfer_end(mesh->comm);
    return tt_agree(mesh->world, "save-write", status);
}

/* Rank 0: the files at full size. */
static tt_status prepare(tt_output *w)
{
    TT_TRY(tt_dir_room(w->folder, tt_save_total_bytes(&w->layout->files)));
    return tt_output_create(w);
}

static void remove_temporaries(const tt_output *w, const tt_save_small *small)
{
    char path[4096], text[1024];
    const tt_st_plan *files = &w->layout->files;
    snprintf(text, sizeof text, "%s", tt_error_text());
    for (int i = 0; i < files->num_files + small->num; i++) {
        const char *name = i < files->num_files ? files->file_names[i] : small->names[i - files->num_files];
        if (tt_output_path(path, sizeof path, w->folder, name, w->suffix) == TT_OK) tt_file_remove(path);
    }
    tt_error_set(TT_EIO, "%s", text);
}

/* create on rank 0 | all write | publish on rank 0; failures are agreed on after each. */
static tt_status write_model(const tt_mesh *mesh, tt_output *w, const tt_save_options *o)
{
    tt_status status = TT_OK;
    bool first = mesh->rank == 0;
    tt_save_small small = {0};
    exchange x = {.folder = w->folder, .files = &w->layout->files, .small = &small};
    if (first) {
        status = tt_dir_create(w->folder);
        if (status == TT_OK) status = tt_save_check(w->folder, o->overwrite);
        if (status == TT_OK) status = remove_where(w->folder, is_leftover, w->folder);
        if (status == TT_OK) status = prepare(w);
    }
    status = tt_agree(mesh->world, "save-create", status);
    if (status == TT_OK) status = write_share(mesh, w);
    if (status == TT_OK) {
        if (first) status = tt_save_small_files(w->folder, w->suffix, w->layout, o, &small);
        if (first && status == TT_OK) status = publish_model(&x, o->overwrite);
        status = tt_agree(mesh->world, "save-publish", status);
    }
    if (status != TT_OK && first && !x.begun) remove_temporaries(w, &small);
    return status;
}

tt_status tt_save_list_weights(const tt_shards *shards, const tt_layout *l, tt_save_range **out, int64_t *num)
{
    const tt_piece *pieces = tt_shards_pieces(shards, num);
    *out = calloc((size_t)*num + 1, sizeof **out);
    TT_CHECK(*out, TT_ENOMEM, "out of memory for a list of %lld pieces", (long long)*num);
    for (int64_t i = 0; i < *num; i++) {
        tt_mat m = tt_shards_view(shards, &pieces[i], TT_PART_WEIGHT);
        int64_t first = l->source ? l->source->first[pieces[i].param] : 0;
        (*out)[i] = (tt_save_range){l->item_of[pieces[i].param], first + pieces[i].first, pieces[i].count, m.data, m.dtype};
    }
    return TT_OK;
}

tt_status tt_save_model(const char *folder, const tt_shards *shards, const tt_save_options *options,
                        tt_save_report *report)
{
    const tt_mesh *mesh = tt_shards_mesh(shards);
    tt_layout l = {0};
    tt_save_range *ranges = NULL;
    int64_t num = 0;
    tt_comm_set_phase(mesh->comm, "save");
    tt_status status = tt_layout_model(tt_shards_params(shards), options, &l);
    if (status == TT_OK) status = tt_save_list_weights(shards, &l, &ranges, &num);
    status = tt_agree(mesh->world, "save-layout", status);
    if (status == TT_OK) {
        tt_output w = {.folder = folder, .suffix = TT_ST_TEMPORARY, .layout = &l, .ranges = ranges, .num_ranges = num};
        tt_output_share(&w, mesh);
        status = write_model(mesh, &w, options);
        if (status == TT_OK) *report = (tt_save_report){w.bytes, l.files.num_files};
    }
    free(ranges);
    tt_layout_free(&l);
    return status;
}

/* --- one file ------------------------------------------------------------------------------------------------ */

tt_status tt_save_file_check(const char *path, bool overwrite)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    TT_CHECK(dot && strcmp(dot, ".safetensors") == 0 && dot > name, TT_ECONFIG,
             "output file '%s' must end in .safetensors", path);
    TT_CHECK(overwrite || !tt_file_exists(path), TT_ECONFIG,
             "output file '%s' exists; remove it or name another", path);
    return TT_OK;
}

static tt_status write_file(const tt_mesh *mesh, tt_output *w, const char *path, bool overwrite)
{
    tt_status status = TT_OK;
    bool first = mesh->rank == 0;
    const tt_save_small none = {0};
    char temporary[4096];
    if (first) {
        status = tt_dir_create(w->folder);
        if (status == TT_OK) status = tt_save_file_check(path, overwrite);
        if (status == TT_OK) status = prepare(w);
    }
    status = tt_agree(mesh->world, "save-create", status);
    if (status == TT_OK) status = write_share(mesh, w);
    if (status == TT_OK) {
        if (first) status = tt_output_path(temporary, sizeof temporary, w->folder, w->layout->files.file_names[0], w->suffix);
        if (first && status == TT_OK) status = tt_file_rename(temporary, path);
        if (first && status == TT_OK) status = tt_dir_sync(w->folder);
        status = tt_agree(mesh->world, "save-publish", status);
    }
    if (status != TT_OK && first) remove_temporaries(w, &none);
    return status;
}

tt_status tt_save_file(const char *path, bool overwrite, const tt_mesh *mesh, tt_st_item *items, int64_t num_items,
                       const tt_save_range *ranges, int64_t num_ranges)
{
    char folder[4096], stem[512];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    tt_layout l = {.num = num_items, .items = items};
    tt_output w = {.folder = folder, .suffix = TT_ST_TEMPORARY, .layout = &l, .ranges = ranges, .num_ranges = num_ranges};
    tt_status status = tt_save_file_check(path, overwrite || mesh->rank > 0);
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash == path) snprintf(folder, sizeof folder, "/");
    snprintf(stem, sizeof stem, "%.*s", (int)strlen(name) - (int)strlen(".safetensors"), name);
    for (int64_t i = 0; i < num_items; i++) items[i].file = 0;
    if (status == TT_OK) status = tt_st_layout(items, num_items, 1, stem, NULL, &l.files);
    status = tt_agree(mesh->world, "save-layout", status);
    if (status == TT_OK) status = write_file(mesh, &w, path, overwrite);
    tt_st_plan_free(&l.files);
    return status;
}
