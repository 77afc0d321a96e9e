/* checkpoint.c - writing: begin, write, publish. manifest.h has the proof, checkpoint_read.c the way back. */
#include "checkpoint/checkpoint.h"
#include "base/arena.h"
#include "base/checked.h"
#include "base/json.h"
#include "checkpoint/manifest.h"
#include "checkpoint/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define STATE_INDEX TT_STATE_STEM ".safetensors.index.json"

enum { MODEL, STATE, NUM_SETS };

struct tt_checkpoint_writer {
    const tt_mesh *mesh;
    tt_save_options model; /* what it points to is borrowed */
    char *folder, *temporary;
    bool with_state;
    tt_layout layouts[NUM_SETS];
    tt_save_range *ranges[NUM_SETS];
    tt_output outputs[NUM_SETS];
    tt_stretches written; /* files are numbered: those of the model, those of the state, then the small ones */
    char *copy;           /* borrowed; NULL: ranges point into the shards */
    /* rank 0 */
    json_t *head, *trainer_state;
    tt_save_small small;
};

static void free_writer(tt_checkpoint_writer **writer)
{
    tt_checkpoint_writer *w = *writer;
    *writer = NULL;
    for (int i = 0; i < NUM_SETS; i++) {
        tt_layout_free(&w->layouts[i]);
        free(w->ranges[i]);
    }
    free(w->written.at);
    json_decref(w->head);
    json_decref(w->trainer_state);
    free(w->folder);
    free(w->temporary);
    free(w);
}

void tt_checkpoint_drop(tt_checkpoint_writer **w)
{
    if (*w) free_writer(w);
}

/* --- begin --------------------------------------------------------------------------------------------------- */

/* "folder/checkpoint-7/" is "folder/checkpoint-7". */
static tt_status set_paths(tt_checkpoint_writer *w, const char *folder)
{
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    TT_CHECK(n > 0 && n < 3800, TT_ECONFIG, "not a usable path for a checkpoint: '%.200s'", folder);
    w->folder = strndup(folder, n);
    if (!w->folder || asprintf(&w->temporary, "%s" TT_ST_TEMPORARY, w->folder) < 0) {
        w->temporary = NULL;
        return tt_error_set(TT_ENOMEM, "out of memory for a checkpoint");
    }
    return TT_OK;
}

/* What is known of the run, in the order in which the manifest has it. */
static tt_status make_head(tt_checkpoint_writer *w, const tt_shards *shards, const tt_checkpoint_options *o)
{
    static const char *const dispatch[] = {"alltoall", "allgather", "allreduce"};
    const tt_mesh *m = w->mesh;
    tt_precision p = tt_shards_precision(shards);
    w->head = json_pack("{s:s, s:i, s:I, s:b, s:{s:i, s:i, s:i, s:i, s:s}, s:{s:s, s:s}, s:o}", "format", "tartan checkpoint",
                        "version", TT_CHECKPOINT_VERSION, "step", (json_int_t)o->step, "with_state", o->with_state, "mesh",
                        "world_size", m->world_size, "fsdp_size", m->fsdp_size, "tp_size", m->tp_size, "ep_size", m->ep_size,
                        "expert_dispatch", dispatch[m->dispatch], "precision", "weights", tt_dtype_config_name(p.resident),
                        "moments", tt_dtype_config_name(p.moments), "train", o->train ? json_deep_copy(o->train) : json_object());
    w->trainer_state = json_deep_copy(o->trainer_state);
    TT_CHECK(w->head && (w->trainer_state || !o->trainer_state), TT_ENOMEM, "out of memory for a manifest");
    return TT_OK;
}

static int64_t piece_bytes(const tt_shards *shards, const tt_piece *piece, bool moments)
{
    const tt_param *p = &tt_shards_params(shards)->at[piece->param];
    tt_precision precision = tt_shards_precision(shards);
    size_t size = tt_dtype_size(tt_state_type(precision, p, TT_STATE_MASTER));
    if (moments && p->trained) size += 2 * tt_dtype_size(tt_state_type(precision, p, TT_STATE_MOMENT1));
    return tt_round_up(piece->count * (int64_t)size, 64);
}

static int64_t copy_bytes(const tt_shards *shards, bool moments)
{
    int64_t num, sum = 0;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    for (int64_t i = 0; i < num; i++) sum += piece_bytes(shards, &pieces[i], moments);
    return sum;
}

void tt_checkpoint_copy_free(tt_checkpoint_copy *c)
{
    tt_free(c->memory);
    *c = (tt_checkpoint_copy){0};
}

static tt_status reserve_copy(tt_checkpoint_copy *c, int64_t bytes)
{
    if (c->bytes >= bytes && c->memory) return TT_OK;
    tt_checkpoint_copy_free(c);
    TT_TRY(tt_alloc("the copy that a checkpoint is written from", bytes + 1, 1, &c->memory));
    c->bytes = bytes;
    return TT_OK;
}

/* A piece's elements: in the copy at *at, which moves on, or where they are. */
static const void *keep(const tt_checkpoint_writer *w, tt_mat m, int64_t *at)
{
    if (!w->copy) return m.data;
    char *to = w->copy + *at;
    size_t bytes = (size_t)m.cols * tt_dtype_size(m.dtype);
    memcpy(to, m.data, bytes);
    *at += (int64_t)bytes;
    return to;
}

/* The state of a piece, behind its weights; the order is that of the layout's items. master: its weights. */
static void add_state(tt_checkpoint_writer *w, const tt_shards *shards, const tt_piece *piece, int64_t item, bool moments,
                      const tt_save_range *master, int64_t *at)
{
    tt_output *o = &w->outputs[STATE];
    const tt_params *params = tt_shards_params(shards);
    for (int k = 0; k < 2 && moments && params->at[piece->param].trained; k++) {
        tt_mat m = tt_shards_view(shards, piece, k ? TT_PART_MOMENT2 : TT_PART_MOMENT1);
        w->ranges[STATE][o->num_ranges++] = (tt_save_range){item++, piece->first, piece->count, keep(w, m, at), m.dtype};
    }
    if (tt_layout_has_master(params, &w->layouts[MODEL], tt_shards_precision(shards), piece->param))
        w->ranges[STATE][o->num_ranges++] = (tt_save_range){item, piece->first, piece->count, master->data, master->type};
}

/* What this rank writes, copied if so asked. */
static tt_status list_ranges(tt_checkpoint_writer *w, const tt_shards *shards, bool moments, tt_checkpoint_copy *copy)
{
    int64_t num, at = 0;
    const tt_params *params = tt_shards_params(shards);
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    TT_TRY(tt_save_list_weights(shards, &w->layouts[MODEL], &w->ranges[MODEL], &w->outputs[MODEL].num_ranges));
    if (copy) {
        TT_TRY(reserve_copy(copy, copy_bytes(shards, moments)));
        w->copy = copy->memory;
    }
    w->ranges[STATE] = calloc((size_t)num * TT_NUM_STATE_KINDS + 1, sizeof *w->ranges[STATE]);
    int64_t *first_item = calloc((size_t)params->num + 1, sizeof *first_item);
    if (!w->ranges[STATE] || !first_item) {
        free(first_item);
        return tt_error_set(TT_ENOMEM, "out of memory for a list of %lld pieces", (long long)num);
    }
    for (int64_t i = 0; i < params->num; i++)
        first_item[i + 1] = first_item[i] + (moments && params->at[i].trained ? 2 : 0) +
                            tt_layout_has_master(params, &w->layouts[MODEL], tt_shards_precision(shards), i);
    for (int64_t i = 0; i < num; i++) {
        tt_save_range *weights = &w->ranges[MODEL][i];
        int64_t next = at + (copy ? piece_bytes(shards, &pieces[i], moments) : 0);
        weights->data = keep(w, tt_shards_view(shards, &pieces[i], TT_PART_WEIGHT), &at);
        if (w->with_state) add_state(w, shards, &pieces[i], first_item[pieces[i].param], moments, weights, &at);
        at = next;
    }
    free(first_item);
    return TT_OK;
}

static void set_outputs(tt_checkpoint_writer *w)
{
    for (int i = 0; i < NUM_SETS; i++) {
        tt_output *o = &w->outputs[i];
        o->folder = w->temporary;
        o->suffix = "";
        o->layout = &w->layouts[i];
        o->ranges = w->ranges[i];
        o->written = &w->written;
        o->first_file = i == STATE ? w->layouts[MODEL].files.num_files : 0;
        tt_output_share(o, w->mesh);
    }
}

static tt_status plan(tt_checkpoint_writer *w, const char *folder, const tt_shards *shards, bool moments,
                      const tt_checkpoint_options *o)
{
    TT_TRY(set_paths(w, folder));
    if (w->mesh->rank == 0) TT_TRY(make_head(w, shards, o));
    TT_TRY(tt_layout_model(tt_shards_params(shards), &w->model, &w->layouts[MODEL]));
    if (w->with_state)
        TT_TRY(tt_layout_state(tt_shards_params(shards), &w->layouts[MODEL], tt_shards_precision(shards), moments,
                               w->model.max_file_bytes, &w->layouts[STATE]));
    TT_TRY(list_ranges(w, shards, moments, o->copy));
    set_outputs(w);
    return TT_OK;
}

static tt_status parent_of(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/');
    int n = snprintf(out, size, "%.*s", !slash ? 1 : slash == path ? 1 : (int)(slash - path), slash ? path : ".");
    TT_CHECK(n > 0 && (size_t)n < size, TT_ECONFIG, "path is too long: %.200s", path);
    return TT_OK;
}

/* Rank 0: room, and files at full size in a folder that nobody takes for a checkpoint. */
static tt_status prepare(tt_checkpoint_writer *w)
{
    char parent[4096];
    int64_t bytes;
    TT_TRY(parent_of(w->folder, parent, sizeof parent));
    TT_CHECK(w->model.overwrite || (!tt_dir_exists(w->folder) && !tt_file_exists(w->folder)), TT_ECONFIG,
             "'%s' exists; remove it, choose another output folder, or set overwrite_output_dir", w->folder);
    TT_CHECK(tt_checkpoint_is_ours(w->folder) || (!tt_dir_exists(w->folder) && !tt_file_exists(w->folder)), TT_ECONFIG,
             "'%s' exists and is no checkpoint of tartan's; move it away", w->folder);
    TT_TRY(tt_dir_remove(w->temporary)); /* of a run that was killed */
    TT_CHECK(tt_add_i64(tt_save_total_bytes(&w->layouts[MODEL].files), tt_save_total_bytes(&w->layouts[STATE].files), &bytes),
             TT_EINTERNAL, "'%s' would be larger than 63 bits can count", w->folder);
    TT_TRY(tt_dir_room(parent, bytes));
    TT_TRY(tt_dir_create(w->temporary));
    for (int i = 0; i < NUM_SETS; i++) TT_TRY(tt_output_create(&w->outputs[i]));
    return TT_OK;
}

/* Removes what there is of a checkpoint that failed, or says where it lies. Keeps the message. Rank 0. */
static tt_status discard(const tt_checkpoint_writer *w, tt_status status)
{
    char text[1024];
    if (!w->temporary) return status;
    snprintf(text, sizeof text, "%s", tt_error_text());
    bool gone = tt_dir_remove(w->temporary) == TT_OK;
    return tt_error_set(status, gone ? "%s" : "%s; what there is of the checkpoint lies in '%s'", text, w->temporary);
}

tt_status tt_checkpoint_begin(const char *folder, const tt_shards *shards, const tt_checkpoint_options *options,
                              tt_checkpoint_writer **out)
{
    const tt_mesh *mesh = tt_shards_mesh(shards);
    int64_t moments = tt_shards_bytes(shards).moments; /* none on a rank without trained elements */
    *out = NULL;
    tt_comm_set_phase(mesh->comm, "save");
    tt_checkpoint_writer *w = calloc(1, sizeof *w);
    tt_status status = w ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for a checkpoint");
    status = tt_agree(mesh->world, "checkpoint-begin", status);
    if (status == TT_OK) status = tt_allreduce_max_i64(mesh->world, "checkpoint-moments", &moments, 1);
    if (status == TT_OK) {
        w->mesh = mesh;
        w->model = *options->model;
        w->with_state = options->with_state;
        status = plan(w, folder, shards, moments > 0 && options->with_state, options);
        status = tt_agree(mesh->world, "checkpoint-layout", status);
    }
    if (status == TT_OK) {
        if (mesh->rank == 0 && (status = prepare(w)) != TT_OK) status = discard(w, status);
        status = tt_agree(mesh->world, "checkpoint-create", status);
    }
    if (status == TT_OK)
        *out = w;
    else if (w)
        free_writer(&w);
    return status;
}

/* --- write --------------------------------------------------------------------------------------------------- */

/* Rank 0: what stands beside the tensors. */
static tt_status write_small_files(tt_checkpoint_writer *w)
{
    char path[4096];
    const tt_layout *state = &w->layouts[STATE];
    TT_TRY(tt_save_small_files(w->temporary, "", &w->layouts[MODEL], &w->model, &w->small));
    if (state->files.num_files > 1) {
        TT_TRY(tt_path_join(path, sizeof path, w->temporary, STATE_INDEX));
        TT_TRY(tt_st_write_index(path, &state->files, state->items, state->num, NULL));
        w->small.names[w->small.num++] = STATE_INDEX;
    }
    if (w->trainer_state) {
        TT_TRY(tt_path_join(path, sizeof path, w->temporary, "trainer_state.json"));
        TT_TRY(tt_json_save(path, w->trainer_state, true));
        w->small.names[w->small.num++] = "trainer_state.json";
    }
    return TT_OK;
}

static tt_status hash_small_files(tt_checkpoint_writer *w)
{
    char path[4096], *text;
    size_t bytes;
    int64_t first = w->layouts[MODEL].files.num_files + w->layouts[STATE].files.num_files;
    for (int i = 0; i < w->small.num; i++) {
        TT_TRY(tt_path_join(path, sizeof path, w->temporary, w->small.names[i]));
        TT_TRY(tt_file_read_all(path, INT64_MAX - 1, &text, &bytes));
        tt_stretch all = {first + i, 0, (int64_t)bytes, XXH64(text, bytes, 0)};
        free(text);
        if (bytes > 0) TT_TRY(tt_stretches_add(&w->written, all));
    }
    return TT_OK;
}

int64_t tt_checkpoint_bytes(const tt_checkpoint_writer *w)
{
    return tt_output_bytes(&w->outputs[MODEL]) + tt_output_bytes(&w->outputs[STATE]);
}

tt_status tt_checkpoint_write(tt_checkpoint_writer *w, _Atomic int64_t *done)
{
    for (int i = 0; i < NUM_SETS; i++) {
        w->outputs[i].done = done;
        TT_TRY(tt_output_write(&w->outputs[i]));
    }
    if (w->mesh->rank > 0) return TT_OK;
    TT_TRY(write_small_files(w));
    return hash_small_files(w);
}

/* --- publish ------------------------------------------------------------------------------------------------- */

/* The lists of all ranks end to end in rank 0's. Collective. */
static tt_status gather(tt_checkpoint_writer *w)
{
    tt_group *world = w->mesh->world;
    int size = w->mesh->world_size;
    bool first = w->mesh->rank == 0;
    int64_t mine = w->written.num * (int64_t)sizeof *w->written.at, sum = 0;
    int64_t *bytes = calloc(2 * (size_t)size, sizeof *bytes), *eight = bytes + size;
    tt_status status = tt_agree(world, "checkpoint-hashes",
                                bytes ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the checksums of %d ranks", size));
    for (int r = 0; r < size && status == TT_OK; r++) eight[r] = sizeof mine;
    if (status == TT_OK) status = tt_gatherv(world, "checkpoint-hashes", 0, &mine, sizeof mine, bytes, eight);
    tt_stretch *all = NULL;
    if (status == TT_OK) {
        for (int r = 0; r < size && first; r++) sum += bytes[r];
        if (first && !(all = malloc((size_t)sum + 1))) status = tt_error_set(TT_ENOMEM, "out of memory for checksums");
        status = tt_agree(world, "checkpoint-hashes", status);
    }
    if (status == TT_OK) status = tt_gatherv(world, "checkpoint-hashes", 0, w->written.at, mine, all, bytes);
    if (status == TT_OK && first) {
        free(w->written.at);
        w->written = (tt_stretches){sum / (int64_t)sizeof *all, sum / (int64_t)sizeof *all, all};
        all = NULL;
    }
    free(all);
    free(bytes);
    return status;
}

/* Headers are rank 0's, and other ranks' data may wait in a network file system for whoever asks last. */
static tt_status flush_files(const tt_checkpoint_writer *w)
{
    char path[4096];
    for (int s = 0; s < NUM_SETS; s++) {
        const tt_st_plan *files = &w->layouts[s].files;
        for (int i = 0; i < files->num_files; i++) {
            tt_file f;
            TT_TRY(tt_path_join(path, sizeof path, w->temporary, files->file_names[i]));
            TT_TRY(tt_file_open_write(&f, path));
            tt_status status = f.size == files->file_bytes[i]
                                   ? tt_file_sync(&f)
                                   : tt_error_set(TT_EIO, "'%s' has %lld bytes instead of %lld: it was changed meanwhile", path,
                                                  (long long)f.size, (long long)files->file_bytes[i]);
            tt_file_close(&f);
            TT_TRY(status);
        }
    }
    return TT_OK;
}

static tt_status write_manifest(tt_checkpoint_writer *w)
{
    char path[4096];
    const tt_st_plan *model = &w->layouts[MODEL].files, *state = &w->layouts[STATE].files;
    int num = model->num_files + state->num_files + w->small.num;
    const char **names = malloc((size_t)num * sizeof *names);
    TT_CHECK(names, TT_ENOMEM, "out of memory for a manifest of %d files", num);
    for (int i = 0; i < num; i++) {
        int in_state = i - model->num_files, in_small = in_state - state->num_files;
        names[i] = in_state < 0 ? model->file_names[i] : in_small < 0 ? state->file_names[in_state] : w->small.names[in_small];
    }
    tt_status status = tt_path_join(path, sizeof path, w->temporary, TT_CHECKPOINT_MANIFEST);
    if (status == TT_OK) status = tt_manifest_write(path, w->head, names, num, &w->written);
    free(names);
    return status;
}

/* The temporary folder gets its name. An older checkpoint of that name trades places with it, or steps aside where the file
 * system cannot trade, and goes. */
static tt_status take_name(const tt_checkpoint_writer *w)
{
    char aside[4096];
    bool swapped = false;
    if (!tt_dir_exists(w->folder)) return tt_file_rename(w->temporary, w->folder);
    TT_CHECK(w->model.overwrite && tt_checkpoint_is_ours(w->folder), TT_ECONFIG, "'%s' came to be while it was written",
             w->folder);
    TT_TRY(tt_file_swap(w->temporary, w->folder, &swapped));
    if (swapped) return tt_dir_remove(w->temporary);
    snprintf(aside, sizeof aside, "%s" TT_ST_REPLACED, w->folder);
    TT_TRY(tt_dir_remove(aside));
    TT_TRY(tt_file_rename(w->folder, aside));
    tt_status status = tt_file_rename(w->temporary, w->folder);
    if (status != TT_OK) {
        char text[1024];
        snprintf(text, sizeof text, "%s", tt_error_text());
        bool back = tt_file_rename(aside, w->folder) == TT_OK;
        return tt_error_set(status, back ? "%s" : "%s; the checkpoint that it should replace is '%s'", text, aside);
    }
    return tt_dir_remove(aside);
}

/* Rank 0, when all ranks have written. */
static tt_status finish(tt_checkpoint_writer *w)
{
    char parent[4096];
    TT_TRY(parent_of(w->folder, parent, sizeof parent));
    TT_TRY(flush_files(w));
    TT_TRY(tt_dir_sync(w->temporary));
    TT_TRY(write_manifest(w));
    TT_TRY(tt_dir_sync(w->temporary));
    TT_TRY(take_name(w));
    return tt_dir_sync(parent);
}

tt_status tt_checkpoint_publish(tt_checkpoint_writer **writer, tt_status mine, tt_save_report *report)
{
    tt_checkpoint_writer *w = *writer;
    tt_group *world = w->mesh->world;
    bool first = w->mesh->rank == 0;
    tt_comm_set_phase(w->mesh->comm, "save");
    tt_status status = tt_agree(world, "checkpoint-write", mine);
    if (status == TT_OK) status = gather(w);
    if (status == TT_OK) status = tt_agree(world, "checkpoint-publish", first ? finish(w) : TT_OK);
    if (status != TT_OK && first) status = discard(w, status);
    if (status == TT_OK)
        *report = (tt_save_report){w->outputs[MODEL].bytes + w->outputs[STATE].bytes,
                                   w->layouts[MODEL].files.num_files + w->layouts[STATE].files.num_files};
    free_writer(writer);
    return status;
}
