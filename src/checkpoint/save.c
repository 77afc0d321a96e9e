#include "checkpoint/save.h"
#include "base/checked.h"
#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_FILE_BYTES 5000000000
#define PIECE_ELEMENTS     ((int64_t)1 << 20)

/* --- what goes where ----------------------------------------------------------------------------------------- */

typedef struct plan {
    int64_t num;
    tt_st_item *items;
    int64_t *item_of;   /* [params] */
    int num_files;
    tt_st_plan files;
} plan;

static void free_plan(plan *p)
{
    tt_st_plan_free(&p->files);
    free(p->items);
    free(p->item_of);
    *p = (plan){0};
}

typedef struct place {
    int file;
    int64_t begin, param;
} place;

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static tt_status list_items(const tt_params *params, const tt_source *source, plan *p)
{
    place *places = calloc((size_t)params->num + 1, sizeof *places);
    p->items = calloc((size_t)params->num + 1, sizeof *p->items);
    p->item_of = calloc((size_t)params->num + 1, sizeof *p->item_of);
    if (!places || !p->items || !p->item_of) {
        free(places);
        return tt_error_set(TT_ENOMEM, "out of memory for the layout of the files");
    }
    p->num = params->num;
    for (int64_t i = 0; i < params->num; i++) {
        const tt_st_tensor *t = source ? &source->folder.tensors[source->tensor[i]] : NULL;
        places[i] = t ? (place){t->file, t->begin, i} : (place){0, i, i};
    }
    qsort(places, (size_t)params->num, sizeof *places, by_place);
    for (int64_t j = 0; j < params->num; j++) {
        const tt_param *e = &params->at[places[j].param];
        p->items[j] = (tt_st_item){.name = e->name, .dtype = e->stored, .ndim = e->ndim, .file = places[j].file};
        memcpy(p->items[j].shape, e->shape, sizeof e->shape);
        p->item_of[places[j].param] = j;
    }
    free(places);
    return TT_OK;
}

/* A file of the source all of whose tensors were left out must not leave a gap in the numbering. */
static void close_gaps(plan *p)
{
    int last = -1, used = -1;
    for (int64_t j = 0; j < p->num; j++) {
        if (p->items[j].file != last) used++;
        last = p->items[j].file;
        p->items[j].file = used;
    }
    p->num_files = used + 1;
}

static tt_status make_plan(const tt_params *params, const tt_save_options *o, plan *p)
{
    *p = (plan){0};
    tt_status status = list_items(params, o->source, p);
    if (status == TT_OK && o->source)
        close_gaps(p);
    else if (status == TT_OK)
        p->num_files = tt_st_split(p->items, p->num, o->max_file_bytes ? o->max_file_bytes : DEFAULT_FILE_BYTES);
    const json_t *metadata = o->source ? o->source->folder.metadata[0] : NULL;
    if (status == TT_OK) status = tt_st_layout(p->items, p->num, p->num_files, "model", metadata, &p->files);
    if (status != TT_OK) free_plan(p);
    return status;
}

/* --- writing ------------------------------------------------------------------------------------------------- */

static tt_status temporary_path(char *out, size_t size, const char *folder, const char *name)
{
    char hidden[512];
    snprintf(hidden, sizeof hidden, "%s.tmp", name);
    return tt_path_join(out, size, folder, hidden);
}

static tt_status create_files(const char *folder, const tt_st_plan *files)
{
    char path[4096];
    for (int i = 0; i < files->num_files; i++) {
        tt_file f;
        TT_TRY(temporary_path(path, sizeof path, folder, files->file_names[i]));
        TT_TRY(tt_file_create(&f, path, files->file_bytes[i]));
        tt_status status = tt_file_write_at(&f, 0, files->headers[i], (size_t)files->header_bytes[i]);
        tt_file_close(&f);
        TT_TRY(status);
    }
    return TT_OK;
}

/* Elements of `data` to where they belong in the file, converted in pieces. */
static tt_status write_range(const tt_file *f, const tt_st_item *item, int64_t first, int64_t count, const void *data,
                             tt_dtype type, int64_t *bytes)
{
    size_t to = tt_dtype_size(item->dtype), from = tt_dtype_size(type);
    int64_t at = item->begin + first * (int64_t)to;
    *bytes += count * (int64_t)to;
    if (type == item->dtype) return tt_file_write_at(f, at, data, (size_t)count * to);
    void *piece = malloc((size_t)tt_min_i64(count, PIECE_ELEMENTS) * to + 1);
    TT_CHECK(piece, TT_ENOMEM, "out of memory while writing '%s'", item->name);
    tt_status status = TT_OK;
    for (int64_t i = 0; i < count && status == TT_OK; i += PIECE_ELEMENTS) {
        int64_t n = tt_min_i64(PIECE_ELEMENTS, count - i);
        tt_convert(piece, item->dtype, (const char *)data + (size_t)i * from, type, n);
        status = tt_file_write_at(f, at + i * (int64_t)to, piece, (size_t)n * to);
    }
    free(piece);
    return status;
}

/* This rank's ranges of every file, one file open at a time. Files without a range of this rank are not opened. */
static tt_status write_ranges(const char *folder, const plan *p, const tt_save_range *ranges, int64_t num,
                              int64_t *bytes)
{
    char path[4096];
    for (int i = 0; i < p->files.num_files; i++) {
        tt_file f = {.fd = -1};
        tt_status status = TT_OK;
        for (int64_t j = 0; j < num && status == TT_OK; j++) {
            const tt_st_item *item = &p->items[ranges[j].item];
            if (item->file != i || ranges[j].count == 0) continue;
            if (!f.path) {
                status = temporary_path(path, sizeof path, folder, p->files.file_names[i]);
                if (status == TT_OK) status = tt_file_open_write(&f, path);
            }
            if (status == TT_OK)
                status = write_range(&f, item, ranges[j].first, ranges[j].count, ranges[j].data, ranges[j].type, bytes);
        }
        if (f.path && status == TT_OK) status = tt_file_sync(&f);
        tt_file_close(&f);
        TT_TRY(status);
    }
    return TT_OK;
}

static tt_status publish(const char *folder, const tt_st_plan *files)
{
    char from[4096], to[4096];
    for (int i = 0; i < files->num_files; i++) {
        TT_TRY(temporary_path(from, sizeof from, folder, files->file_names[i]));
        TT_TRY(tt_path_join(to, sizeof to, folder, files->file_names[i]));
        TT_CHECK(rename(from, to) == 0, TT_EIO, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
    }
    return TT_OK;
}

static void remove_temporaries(const char *folder, const tt_st_plan *files)
{
    char path[4096];
    for (int i = 0; i < files->num_files; i++)
        if (temporary_path(path, sizeof path, folder, files->file_names[i]) == TT_OK) unlink(path);
}

/* --- the rest of a model folder ------------------------------------------------------------------------------ */

tt_status tt_save_check(const char *folder, bool overwrite)
{
    static const char *const markers[] = {"model.safetensors", "model.safetensors.index.json", "config.json"};
    char path[4096];
    for (size_t i = 0; i < sizeof markers / sizeof *markers && !overwrite; i++) {
        TT_TRY(tt_path_join(path, sizeof path, folder, markers[i]));
        TT_CHECK(!tt_file_exists(path), TT_ECONFIG,
                 "output folder '%s' already holds a model (%s); choose another folder, or for sft set overwrite_output_dir",
                 folder, markers[i]);
    }
    return TT_OK;
}

tt_status tt_save_copy_aux(const char *from, const char *to)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json",
        "merges.txt",     "added_tokens.json",     "generation_config.json",
    };
    char source[4096], target[4096];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        TT_TRY(tt_path_join(source, sizeof source, from, names[i]));
        TT_TRY(tt_path_join(target, sizeof target, to, names[i]));
        if (tt_file_exists(source)) TT_TRY(tt_file_copy(source, target));
    }
    return TT_OK;
}

/* Files of a model that stood here before and that the new one does not replace. */
static void remove_stale(const char *folder, const tt_st_folder *old, const tt_st_plan *files)
{
    char path[4096];
    for (int i = 0; i < old->num_files; i++) {
        bool kept = false;
        for (int j = 0; j < files->num_files; j++) kept |= strcmp(old->file_names[i], files->file_names[j]) == 0;
        if (!kept && tt_path_join(path, sizeof path, folder, old->file_names[i]) == TT_OK) unlink(path);
    }
}

/* Rank 0, after all ranges are on the disk. An index that would name files of two models goes first and the new one comes
 * last: whoever looks in between finds a folder that does not load, never one that loads a mixture. One file that replaces
 * one file needs no such care: the rename does it. */
static tt_status finish_folder(const char *folder, const plan *p, const tt_save_options *o)
{
    char path[4096];
    if (o->aux_folder) TT_TRY(tt_save_copy_aux(o->aux_folder, folder));
    TT_TRY(tt_path_join(path, sizeof path, folder, "config.json"));
    if (o->config) TT_TRY(tt_json_save(path, o->config, false));
    tt_st_folder old = {0};
    bool replaces = o->overwrite && tt_st_open_folder(folder, &old) == TT_OK;
    TT_TRY(tt_path_join(path, sizeof path, folder, TT_ST_INDEX_FILE));
    if (o->overwrite) unlink(path);
    tt_status status = publish(folder, &p->files);
    if (status == TT_OK && replaces) remove_stale(folder, &old, &p->files);
    tt_st_close(&old);
    TT_TRY(status);
    if (p->files.num_files > 1) {
        const json_t *extra = o->source ? o->source->folder.index_metadata : NULL;
        TT_TRY(tt_st_write_index(folder, &p->files, p->items, p->num, extra));
    }
    return TT_OK;
}

/* --- together ------------------------------------------------------------------------------------------------ */

/* create on rank 0 | all write | finish on rank 0; failures are agreed on after each. */
static tt_status write_all(const char *folder, const tt_mesh *mesh, const plan *p, const tt_save_range *ranges,
                           int64_t num_ranges, const tt_save_options *o, int64_t *bytes)
{
    tt_status status = TT_OK;
    bool first = mesh->rank == 0;
    if (first) {
        status = tt_dir_create(folder);
        if (status == TT_OK && o) status = tt_save_check(folder, o->overwrite);
        if (status == TT_OK) status = create_files(folder, &p->files);
    }
    status = tt_agree(mesh->world, "save-create", status);
    if (status == TT_OK)
        status = tt_agree(mesh->world, "save-write", write_ranges(folder, p, ranges, num_ranges, bytes));
    if (status == TT_OK) {
        if (first) status = o ? finish_folder(folder, p, o) : publish(folder, &p->files);
        status = tt_agree(mesh->world, "save-publish", status);
    }
    if (status != TT_OK && first) remove_temporaries(folder, &p->files);
    return status;
}

tt_status tt_save_model(const char *folder, const tt_shards *shards, const tt_save_options *options,
                        tt_save_report *report)
{
    const tt_mesh *mesh = tt_shards_mesh(shards);
    int64_t num, bytes = 0;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    plan p;
    tt_comm_set_phase(mesh->comm, "save");
    tt_status status = make_plan(tt_shards_params(shards), options, &p);
    tt_save_range *ranges = calloc((size_t)num + 1, sizeof *ranges);
    if (status == TT_OK && !ranges) status = tt_error_set(TT_ENOMEM, "out of memory while saving");
    for (int64_t i = 0; i < num && status == TT_OK; i++) {
        tt_mat m = tt_shards_view(shards, &pieces[i], TT_PART_WEIGHT);
        ranges[i] = (tt_save_range){p.item_of[pieces[i].param], pieces[i].first, pieces[i].count, m.data, m.dtype};
    }
    status = tt_agree(mesh->world, "save-layout", status);
    if (status == TT_OK) status = write_all(folder, mesh, &p, ranges, num, options, &bytes);
    if (status == TT_OK) *report = (tt_save_report){bytes, p.num_files};
    free(ranges);
    free_plan(&p);
    return status;
}

tt_status tt_save_file_check(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    TT_CHECK(dot && strcmp(dot, ".safetensors") == 0 && dot > name, TT_ECONFIG,
             "output file '%s' must end in .safetensors", path);
    return TT_OK;
}

tt_status tt_save_file(const char *path, const tt_mesh *mesh, tt_st_item *items, int64_t num_items,
                       const tt_save_range *ranges, int64_t num_ranges)
{
    char folder[4096], stem[512];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    TT_TRY(tt_save_file_check(path));
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (slash == path) snprintf(folder, sizeof folder, "/");
    snprintf(stem, sizeof stem, "%.*s", (int)(dot - name), name);
    plan p = {.num = num_items, .items = items, .num_files = 1};
    int64_t bytes = 0;
    for (int64_t i = 0; i < num_items; i++) items[i].file = 0;
    tt_status status = tt_agree(mesh->world, "save-layout", tt_st_layout(items, num_items, 1, stem, NULL, &p.files));
    if (status == TT_OK) status = write_all(folder, mesh, &p, ranges, num_ranges, NULL, &bytes);
    tt_st_plan_free(&p.files);
    return status;
}
