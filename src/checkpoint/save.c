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
#define COPY_BYTES         ((int64_t)8 << 20)

/* --- what goes where ----------------------------------------------------------------------------------------- */

typedef struct plan {
    int64_t num;
    tt_st_item *items;
    int64_t *item_of;        /* [params] */
    const tt_source *source; /* NULL: none, or not one of tensors that are copied */
    int64_t *tensor_of;      /* with a source: [num] which of its tensors an item is */
    int num_files;
    tt_st_plan files;
} plan;

static void free_plan(plan *p)
{
    tt_st_plan_free(&p->files);
    free(p->items);
    free(p->item_of);
    free(p->tensor_of);
    *p = (plan){0};
}

static tt_status allocate(plan *p, int64_t num_items, int64_t num_params)
{
    p->items = calloc((size_t)num_items + 1, sizeof *p->items);
    p->tensor_of = calloc((size_t)num_items + 1, sizeof *p->tensor_of);
    p->item_of = calloc((size_t)num_params + 1, sizeof *p->item_of);
    TT_CHECK(p->items && p->tensor_of && p->item_of, TT_ENOMEM, "out of memory for the layout of the files");
    return TT_OK;
}

typedef struct place {
    int file;
    int64_t begin, end, tensor;
} place;

/* All places differ, so that every rank sorts alike. */
static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* The source's tensors in the order of its files: its weights in the types that the table says, what is carried as it is. */
static tt_status list_source_items(const tt_params *params, const tt_source *source, plan *p)
{
    const tt_st_folder *f = &source->folder;
    TT_TRY(allocate(p, f->num_tensors, params->num));
    place *places = malloc((size_t)(f->num_tensors + 1) * sizeof *places);
    int64_t *item_of = calloc((size_t)f->num_tensors + 1, sizeof *item_of);
    if (!places || !item_of) {
        free(places);
        free(item_of);
        return tt_error_set(TT_ENOMEM, "out of memory for the layout of the files");
    }
    for (int64_t i = 0; i < f->num_tensors; i++) {
        const tt_st_tensor *t = &f->tensors[i];
        if (source->role[i] == TT_SOURCE_WEIGHT || source->role[i] == TT_SOURCE_CARRIED)
            places[p->num++] = (place){t->file, t->begin, t->end, i};
    }
    qsort(places, (size_t)p->num, sizeof *places, by_place);
    for (int64_t j = 0; j < p->num; j++) {
        const tt_st_tensor *t = &f->tensors[places[j].tensor];
        p->items[j] = (tt_st_item){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .file = t->file};
        memcpy(p->items[j].shape, t->shape, sizeof t->shape);
        p->tensor_of[j] = places[j].tensor;
        item_of[places[j].tensor] = j;
    }
    for (int64_t i = 0; i < params->num; i++) {
        p->item_of[i] = item_of[source->tensor[i]];
        p->items[p->item_of[i]].dtype = params->at[i].stored;
    }
    p->source = source;
    free(places);
    free(item_of);
    return TT_OK;
}

static tt_status list_table_items(const tt_params *params, plan *p)
{
    TT_TRY(allocate(p, params->num, params->num));
    for (; p->num < params->num; p->num++) {
        const tt_param *e = &params->at[p->num];
        p->items[p->num] = (tt_st_item){.name = e->name, .dtype = e->stored, .ndim = e->ndim};
        memcpy(p->items[p->num].shape, e->shape, sizeof e->shape);
        p->item_of[p->num] = p->num;
    }
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
    tt_status status = o->source ? list_source_items(params, o->source, p) : list_table_items(params, p);
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

/* Bytes [begin, begin + count) of what the source carries go into a file as they are. */
static tt_status copy_bytes(const tt_file *from, int64_t begin, const tt_file *to, int64_t at, int64_t count)
{
    char *piece = malloc((size_t)tt_min_i64(count, COPY_BYTES) + 1);
    TT_CHECK(piece, TT_ENOMEM, "out of memory while copying from '%s'", from->path);
    tt_status status = TT_OK;
    for (int64_t i = 0; i < count && status == TT_OK; i += COPY_BYTES) {
        size_t n = (size_t)tt_min_i64(COPY_BYTES, count - i);
        status = tt_file_read_at(from, begin + i, piece, n);
        if (status == TT_OK) status = tt_file_write_at(to, at + i, piece, n);
    }
    free(piece);
    return status;
}

/* What one rank writes. */
typedef struct writer {
    const char *folder;
    const plan *plan;
    const tt_save_range *ranges;
    int64_t num_ranges;
    int64_t begin, end; /* its share of the carried bytes, counted over all items */
    int64_t bytes;      /* written so far */
} writer;

/* Opens file i under its temporary name when it is needed for the first time. */
static tt_status open_once(const writer *w, int i, tt_file *f)
{
    char path[4096];
    if (f->path) return TT_OK;
    TT_TRY(temporary_path(path, sizeof path, w->folder, w->plan->files.file_names[i]));
    return tt_file_open_write(f, path);
}

static tt_status write_own(writer *w, int i, tt_file *f)
{
    for (int64_t j = 0; j < w->num_ranges; j++) {
        const tt_save_range *r = &w->ranges[j];
        const tt_st_item *item = &w->plan->items[r->item];
        if (item->file != i || r->count == 0) continue;
        TT_TRY(open_once(w, i, f));
        TT_TRY(write_range(f, item, r->first, r->count, r->data, r->type, &w->bytes));
    }
    return TT_OK;
}

static tt_status write_carried(writer *w, int i, tt_file *f)
{
    const tt_source *s = w->plan->source;
    int64_t at = 0; /* of this item among all that is carried */
    for (int64_t j = 0; s && j < w->plan->num; j++) {
        const tt_st_item *item = &w->plan->items[j];
        const tt_st_tensor *t = &s->folder.tensors[w->plan->tensor_of[j]];
        if (s->role[w->plan->tensor_of[j]] != TT_SOURCE_CARRIED) continue;
        int64_t size = t->end - t->begin, lo = tt_max_i64(w->begin, at), hi = tt_min_i64(w->end, at + size);
        if (item->file == i && lo < hi) {
            TT_TRY(open_once(w, i, f));
            TT_TRY(copy_bytes(&s->folder.files[t->file], t->begin + lo - at, f, item->begin + lo - at, hi - lo));
            w->bytes += hi - lo;
        }
        at += size;
    }
    return TT_OK;
}

/* This rank's ranges of every file, one file open at a time. Files without a range of this rank are not opened. */
static tt_status write_ranges(writer *w)
{
    for (int i = 0; i < w->plan->files.num_files; i++) {
        tt_file f = {.fd = -1};
        tt_status status = write_own(w, i, &f);
        if (status == TT_OK) status = write_carried(w, i, &f);
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

/* Every field of the source, known or not, but for one that would no longer be true: what is saved is not quantised. */
static tt_status save_config(const char *path, const json_t *config)
{
    json_t *copy = json_copy((json_t *)config);
    TT_CHECK(copy, TT_ENOMEM, "%s: out of memory", path);
    json_object_del(copy, "quantization_config");
    tt_status status = tt_json_save(path, copy, false);
    json_decref(copy);
    return status;
}

/* Rank 0, after all ranges are on the disk. An index that would name files of two models goes first and the new one comes
 * last: whoever looks in between finds a folder that does not load, never one that loads a mixture. One file that replaces
 * one file needs no such care: the rename does it. */
static tt_status finish_folder(const char *folder, const plan *p, const tt_save_options *o)
{
    char path[4096];
    if (o->aux_folder) TT_TRY(tt_save_copy_aux(o->aux_folder, folder));
    TT_TRY(tt_path_join(path, sizeof path, folder, "config.json"));
    if (o->config) TT_TRY(save_config(path, o->config));
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
static tt_status write_all(const tt_mesh *mesh, writer *w, const tt_save_options *o)
{
    const plan *p = w->plan;
    tt_status status = TT_OK;
    bool first = mesh->rank == 0;
    int64_t carried = p->source ? p->source->carried_bytes : 0;
    w->begin = tt_block_begin(carried, mesh->world_size, mesh->rank);
    w->end = tt_block_begin(carried, mesh->world_size, mesh->rank + 1);
    if (first) {
        status = tt_dir_create(w->folder);
        if (status == TT_OK && o) status = tt_save_check(w->folder, o->overwrite);
        if (status == TT_OK) status = create_files(w->folder, &p->files);
    }
    status = tt_agree(mesh->world, "save-create", status);
    if (status == TT_OK) status = tt_agree(mesh->world, "save-write", write_ranges(w));
    if (status == TT_OK) {
        if (first) status = o ? finish_folder(w->folder, p, o) : publish(w->folder, &p->files);
        status = tt_agree(mesh->world, "save-publish", status);
    }
    if (status != TT_OK && first) remove_temporaries(w->folder, &p->files);
    return status;
}

tt_status tt_save_model(const char *folder, const tt_shards *shards, const tt_save_options *options,
                        tt_save_report *report)
{
    const tt_mesh *mesh = tt_shards_mesh(shards);
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    plan p;
    tt_comm_set_phase(mesh->comm, "save");
    tt_status status = make_plan(tt_shards_params(shards), options, &p);
    tt_save_range *ranges = calloc((size_t)num + 1, sizeof *ranges);
    if (status == TT_OK && !ranges) status = tt_error_set(TT_ENOMEM, "out of memory while saving");
    for (int64_t i = 0; i < num && status == TT_OK; i++) {
        tt_mat m = tt_shards_view(shards, &pieces[i], TT_PART_WEIGHT);
        int64_t first = options->source ? options->source->first[pieces[i].param] : 0;
        ranges[i] =
            (tt_save_range){p.item_of[pieces[i].param], first + pieces[i].first, pieces[i].count, m.data, m.dtype};
    }
    status = tt_agree(mesh->world, "save-layout", status);
    writer w = {.folder = folder, .plan = &p, .ranges = ranges, .num_ranges = num};
    if (status == TT_OK) status = write_all(mesh, &w, options);
    if (status == TT_OK) *report = (tt_save_report){w.bytes, p.num_files};
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
    writer w = {.folder = folder, .plan = &p, .ranges = ranges, .num_ranges = num_ranges};
    for (int64_t i = 0; i < num_items; i++) items[i].file = 0;
    tt_status status = tt_agree(mesh->world, "save-layout", tt_st_layout(items, num_items, 1, stem, NULL, &p.files));
    if (status == TT_OK) status = write_all(mesh, &w, NULL);
    tt_st_plan_free(&p.files);
    return status;
}
