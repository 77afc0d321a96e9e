/* safetensors.c - reading: headers, the index of a sharded model, ranges of tensors.
 * The format and the rules are in safetensors.h.
 *
 * A folder is opened in this order, so that each complaint is about one thing:
 *   index      entries (tensor, file), sorted by file: the list of files
 *   header     of each file: entries appended to one list; those of the file are sorted by place and must tile it
 *   names      the whole list sorted by name: no name twice
 *   agreement  index and list walked side by side
 */
#include "checkpoint/safetensors.h"
#include "base/checked.h"
#include "base/json_walk.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little-endian and read as they lie");

enum {
    MAX_ENTRY = 4096,        /* bytes of one tensor's description: a real one has about a hundred */
    MAX_METADATA = 100000,   /* members of "__metadata__", which cost most per byte: real ones have a few */
    MAX_SMALL = 1024 * 1024, /* bytes of what an index says beside its map */
};

bool tt_st_size(tt_dtype type, int ndim, const int64_t *shape, int64_t *count, int64_t *bytes)
{
    int64_t n = 1, size;
    if (ndim < 0 || ndim > TT_ST_MAX_DIMS) return false;
    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || !tt_mul_i64(n, shape[i], &n)) return false;
    if (!tt_mul_i64(n, (int64_t)tt_dtype_size(type), &size)) return false;
    if (count) *count = n;
    if (bytes) *bytes = size;
    return true;
}

/* --- one entry of a header ------------------------------------------------------------------------- */

/* array of at most `limit` integers, none negative */
static tt_status read_counts(const char *path, const char *name, const char *key, const json_t *array,
                             int limit, int *n, int64_t *values)
{
    TT_CHECK(json_is_array(array), TT_EFORMAT,
             "%s: tensor '%.200s': '%s' is %s; expected an array of integers", path, name, key,
             array ? tt_json_kind(array) : "missing");
    TT_CHECK(json_array_size(array) <= (size_t)limit, TT_EFORMAT,
             "%s: tensor '%.200s': '%s' has %zu numbers; at most %d are accepted", path, name, key,
             json_array_size(array), limit);
    *n = (int)json_array_size(array);
    for (int i = 0; i < *n; i++) {
        const json_t *v = json_array_get(array, (size_t)i);
        TT_CHECK(json_is_integer(v) && json_integer_value(v) >= 0, TT_EFORMAT,
                 "%s: tensor '%.200s': element %d of '%s' is not a non-negative integer", path, name, i, key);
        values[i] = json_integer_value(v);
    }
    return TT_OK;
}

static tt_status read_dtype(const char *path, const char *name, const json_t *value, tt_dtype *out)
{
    TT_CHECK(json_is_string(value), TT_EFORMAT, "%s: tensor '%.200s': 'dtype' is %s; expected a string", path,
             name, value ? tt_json_kind(value) : "missing");
    TT_CHECK(tt_dtype_from_name(json_string_value(value), out), TT_EFORMAT,
             "%s: tensor '%.200s' has dtype '%.40s', which is not known here", path, name,
             json_string_value(value));
    return TT_OK;
}

static tt_status check_members(const char *path, const char *name, json_t *entry)
{
    const char *key;
    json_t *value;
    TT_CHECK(json_is_object(entry), TT_EFORMAT, "%s: tensor '%.200s' is described by %s; expected an object",
             path, name, tt_json_kind(entry));
    json_object_foreach(entry, key, value)
    {
        bool known =
            strcmp(key, "dtype") == 0 || strcmp(key, "shape") == 0 || strcmp(key, "data_offsets") == 0;
        TT_CHECK(known, TT_EFORMAT,
                 "%s: tensor '%.200s' has a member '%.60s'; expected dtype, shape and data_offsets only",
                 path, name, key);
    }
    return TT_OK;
}

/* t->name is set; data is where the data section lies in the file. */
static tt_status read_entry(const tt_file *file, json_t *entry, int64_t data, tt_st_tensor *t)
{
    int64_t offsets[2], bytes, available = file->size - data;
    int num_offsets;
    const char *path = file->path;
    TT_TRY(check_members(path, t->name, entry));
    TT_TRY(read_dtype(path, t->name, json_object_get(entry, "dtype"), &t->dtype));
    TT_TRY(read_counts(path, t->name, "shape", json_object_get(entry, "shape"), TT_ST_MAX_DIMS, &t->ndim,
                       t->shape));
    TT_TRY(read_counts(path, t->name, "data_offsets", json_object_get(entry, "data_offsets"), 2, &num_offsets,
                       offsets));
    TT_CHECK(num_offsets == 2, TT_EFORMAT, "%s: tensor '%.200s': 'data_offsets' has %d numbers; expected 2",
             path, t->name, num_offsets);
    TT_CHECK(tt_st_size(t->dtype, t->ndim, t->shape, NULL, &bytes), TT_EFORMAT,
             "%s: tensor '%.200s': the product of its shape is beyond 63 bits", path, t->name);
    TT_CHECK(offsets[0] <= offsets[1], TT_EFORMAT,
             "%s: tensor '%.200s' ends at byte %" PRId64 ", before it begins at %" PRId64, path, t->name,
             offsets[1], offsets[0]);
    TT_CHECK(offsets[1] - offsets[0] == bytes, TT_EFORMAT,
             "%s: tensor '%.200s' has a shape of %" PRId64 " bytes, but data_offsets of %" PRId64, path,
             t->name, bytes, offsets[1] - offsets[0]);
    TT_CHECK(offsets[1] <= available, TT_EFORMAT,
             "%s: tensor '%.200s' ends at byte %" PRId64 " of the data, but the file holds %" PRId64
             ": it is cut short or its header is wrong",
             path, t->name, offsets[1], available);
    t->begin = data + offsets[0];
    t->end = data + offsets[1];
    return TT_OK;
}

/* --- one header ------------------------------------------------------------------------------------ */

static tt_status read_metadata(tt_st_folder *f, int file, tt_json_piece piece)
{
    const char *path = f->files[file].path;
    tt_json_walk w;
    char *key = NULL;
    json_t *value = NULL;
    tt_status status;
    TT_CHECK(!f->metadata[file], TT_EFORMAT, "%s: '__metadata__' appears twice", path);
    f->metadata[file] = json_object();
    TT_CHECK(f->metadata[file], TT_ENOMEM, "%s: out of memory", path);
    TT_GO(tt_json_walk_begin(&w, piece.text, piece.bytes, path));
    for (;;) {
        TT_GO(tt_json_walk_next(&w, &key, &piece));
        if (!key) return TT_OK;
        if (*piece.text == '"') TT_GO(tt_json_walk_parse(&w, piece, TT_ST_MAX_HEADER, &value));
        if (!value)
            status = tt_error_set(TT_EFORMAT, "%s: '%.100s' is not a string", path, key);
        else if (json_object_get(f->metadata[file], key))
            status = tt_error_set(TT_EFORMAT, "%s: '%.100s' appears twice", path, key);
        else if (json_object_size(f->metadata[file]) == MAX_METADATA)
            status = tt_error_set(TT_EFORMAT, "%s: more than %d members", path, MAX_METADATA);
        else if (json_object_set_new(f->metadata[file], key, json_incref(value)) != 0)
            status = tt_error_set(TT_ENOMEM, "%s: out of memory", path);
        json_decref(value);
        free(key);
        key = NULL, value = NULL;
        if (status != TT_OK) goto fail;
    }
fail:
    free(key);
    return tt_error_context(status, "__metadata__");
}

/* Room for one more tensor; num_tensors grows when the entry is complete enough to be freed. */
static tt_status grow(tt_st_folder *f, int64_t *capacity)
{
    if (f->num_tensors < *capacity) return TT_OK;
    int64_t more = *capacity ? *capacity * 2 : 64;
    tt_st_tensor *tensors = realloc(f->tensors, (size_t)more * sizeof *tensors);
    TT_CHECK(tensors, TT_ENOMEM, "%s: out of memory for %" PRId64 " tensors", f->path, more);
    f->tensors = tensors;
    *capacity = more;
    return TT_OK;
}

/* Takes name. */
static tt_status add_tensor(tt_st_folder *f, int file, char *name, json_t *entry, int64_t data,
                            int64_t *capacity)
{
    tt_status status = grow(f, capacity);
    if (status != TT_OK) {
        free(name);
        return status;
    }
    tt_st_tensor *t = &f->tensors[f->num_tensors++];
    *t = (tt_st_tensor){.name = name, .file = file};
    TT_CHECK(*name, TT_EFORMAT, "%s: a tensor has an empty name", f->files[file].path);
    return read_entry(&f->files[file], entry, data, t);
}

static tt_status read_entries(tt_st_folder *f, int file, const char *text, size_t bytes, int64_t *capacity)
{
    const char *path = f->files[file].path;
    tt_json_walk w;
    TT_TRY(tt_json_walk_begin(&w, text, bytes, path));
    for (;;) {
        char *key;
        tt_json_piece piece;
        json_t *entry = NULL;
        TT_TRY(tt_json_walk_next(&w, &key, &piece));
        if (!key) return TT_OK;
        tt_status status;
        if (strcmp(key, "__metadata__") == 0) {
            free(key);
            status = read_metadata(f, file, piece);
        } else if ((status = tt_json_walk_parse(&w, piece, MAX_ENTRY, &entry)) != TT_OK) {
            tt_error_context(status, "tensor '%.200s'", key);
            free(key);
        } else {
            status = add_tensor(f, file, key, entry, 8 + (int64_t)bytes, capacity);
        }
        json_decref(entry);
        TT_TRY(status);
    }
}

static int by_place(const void *a, const void *b)
{
    const tt_st_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Tensors [first, num_tensors) are those of one file. */
static tt_status check_tiling(tt_st_folder *f, int file, int64_t first, int64_t data)
{
    const char *path = f->files[file].path, *before = "the header";
    int64_t at = data, n = f->num_tensors - first;
    tt_st_tensor *t = n ? f->tensors + first : NULL; /* without tensors there is no array */
    if (n > 1) qsort(t, (size_t)n, sizeof *t, by_place);
    for (int64_t i = 0; i < n; i++) {
        TT_CHECK(t[i].begin <= at, TT_EFORMAT,
                 "%s: bytes %" PRId64 " to %" PRId64
                 " of the data, before tensor '%.200s', belong to no tensor",
                 path, at - data, t[i].begin - data, t[i].name);
        TT_CHECK(t[i].begin == at, TT_EFORMAT,
                 "%s: tensor '%.200s' begins at byte %" PRId64
                 " of the data, inside '%.200s', which ends at %" PRId64,
                 path, t[i].name, t[i].begin - data, before, at - data);
        at = t[i].end;
        before = t[i].name;
    }
    TT_CHECK(at == f->files[file].size, TT_EFORMAT,
             "%s: %" PRId64 " bytes at the end of the file belong to no tensor", path,
             f->files[file].size - at);
    return TT_OK;
}

static int by_name(const void *a, const void *b)
{
    const tt_st_tensor *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : x->file - y->file;
}

/* Of a file whose tensors do not tile it: a name that is there twice is the better reason. */
static tt_status refuse_tiling(tt_st_folder *f, int file, int64_t first, tt_status status)
{
    int64_t n = f->num_tensors - first;
    tt_st_tensor *t = n ? f->tensors + first : NULL;
    if (n > 1) qsort(t, (size_t)n, sizeof *t, by_name);
    for (int64_t i = 1; i < n; i++)
        TT_CHECK(strcmp(t[i - 1].name, t[i].name) != 0, TT_EFORMAT, "%s: tensor '%.200s' appears twice", f->files[file].path,
                 t[i].name);
    return status;
}

static tt_status read_header(tt_st_folder *f, int file, int64_t *capacity)
{
    const tt_file *source = &f->files[file];
    uint64_t n;
    TT_CHECK(source->size >= 8, TT_EFORMAT, "%s: has %" PRId64 " bytes; a safetensors file has at least 8",
             source->path, source->size);
    TT_TRY(tt_file_read_at(source, 0, &n, sizeof n));
    TT_CHECK(n <= TT_ST_MAX_HEADER, TT_EFORMAT,
             "%s: is not a safetensors file, or a damaged one: it claims a header of %" PRIu64
             " bytes; at most %d are accepted",
             source->path, n, TT_ST_MAX_HEADER);
    TT_CHECK((int64_t)n <= source->size - 8, TT_EFORMAT,
             "%s: claims a header of %" PRIu64 " bytes, but the file has %" PRId64 " after the length",
             source->path, n, source->size - 8);
    char *text = malloc((size_t)n + 1);
    TT_CHECK(text, TT_ENOMEM, "%s: out of memory for a header of %" PRIu64 " bytes", source->path, n);
    int64_t first = f->num_tensors;
    tt_status status = tt_file_read_at(source, 8, text, (size_t)n);
    if (status == TT_OK && (n == 0 || text[0] != '{'))
        status = tt_error_set(TT_EFORMAT, "%s: the header does not begin with '{'", source->path);
    if (status == TT_OK) status = read_entries(f, file, text, (size_t)n, capacity);
    free(text);
    TT_TRY(status);
    status = check_tiling(f, file, first, 8 + (int64_t)n);
    return status == TT_OK ? TT_OK : refuse_tiling(f, file, first, status);
}

/* --- all files of a folder ------------------------------------------------------------------------- */

static tt_status sort_by_name(tt_st_folder *f)
{
    const tt_st_tensor *t = f->tensors;
    if (f->num_tensors > 1) qsort(f->tensors, (size_t)f->num_tensors, sizeof *f->tensors, by_name);
    for (int64_t i = 1; i < f->num_tensors; i++) {
        if (strcmp(t[i - 1].name, t[i].name) != 0) continue;
        TT_CHECK(t[i - 1].file != t[i].file, TT_EFORMAT, "%s: tensor '%.200s' appears twice",
                 f->files[t[i].file].path, t[i].name);
        return tt_error_set(TT_EFORMAT, "%s: tensor '%.200s' is in '%s' and in '%s'", f->path, t[i].name,
                            f->file_names[t[i - 1].file], f->file_names[t[i].file]);
    }
    return TT_OK;
}

/* num_files counts those that are open, so that tt_st_close is right at any time. */
static tt_status reserve(tt_st_folder *f, const char *path, int num_files)
{
    size_t n = (size_t)num_files;
    *f = (tt_st_folder){.path = strdup(path),
                        .files = calloc(n, sizeof *f->files),
                        .file_names = calloc(n, sizeof *f->file_names),
                        .metadata = calloc(n, sizeof *f->metadata)};
    TT_CHECK(f->path && f->files && f->file_names && f->metadata, TT_ENOMEM, "%s: out of memory for %d files",
             path, num_files);
    return TT_OK;
}

static tt_status add_file(tt_st_folder *f, const char *path, const char *name, int64_t *capacity)
{
    int file = f->num_files;
    TT_TRY(tt_file_open(&f->files[file], path));
    f->num_files++;
    f->file_names[file] = strdup(name);
    TT_CHECK(f->file_names[file], TT_ENOMEM, "%s: out of memory", path);
    return read_header(f, file, capacity);
}

tt_status tt_st_open_file(const char *path, tt_st_folder *out)
{
    int64_t capacity = 0;
    const char *slash = strrchr(path, '/');
    tt_status status = reserve(out, path, 1);
    if (status == TT_OK) status = add_file(out, path, slash ? slash + 1 : path, &capacity);
    if (status == TT_OK) status = sort_by_name(out);
    if (status != TT_OK) tt_st_close(out);
    return status;
}

void tt_st_close(tt_st_folder *f)
{
    for (int64_t i = 0; i < f->num_tensors; i++) free(f->tensors[i].name);
    for (int i = 0; i < f->num_files; i++) {
        tt_file_close(&f->files[i]);
        free(f->file_names[i]);
        json_decref(f->metadata[i]);
    }
    json_decref(f->index_metadata);
    free(f->tensors);
    free(f->files);
    free(f->file_names);
    free(f->metadata);
    free(f->path);
    *f = (tt_st_folder){0};
}

/* --- the index ------------------------------------------------------------------------------------- */

typedef struct index_entry {
    char *name, *file;
} index_entry;

typedef struct index_map {
    const char *path;
    index_entry *entries;
    int64_t count, capacity;
    bool seen;
    json_t *metadata;
} index_map;

static void free_index(index_map *m)
{
    for (int64_t i = 0; i < m->count; i++) {
        free(m->entries[i].name);
        free(m->entries[i].file);
    }
    free(m->entries);
    json_decref(m->metadata);
}

/* Takes name. */
static tt_status add_to_index(index_map *m, char *name, const json_t *file)
{
    if (m->count == m->capacity) {
        int64_t more = m->capacity ? m->capacity * 2 : 64;
        index_entry *entries = realloc(m->entries, (size_t)more * sizeof *entries);
        if (!entries) {
            free(name);
            return tt_error_set(TT_ENOMEM, "%s: out of memory for %" PRId64 " tensors", m->path, more);
        }
        m->entries = entries;
        m->capacity = more;
    }
    index_entry *e = &m->entries[m->count++];
    *e = (index_entry){.name = name};
    TT_CHECK(json_is_string(file), TT_EFORMAT, "%s: the file of tensor '%.200s' is %s; expected a string",
             m->path, name, tt_json_kind(file));
    const char *text = json_string_value(file);
    TT_CHECK(
        *text && *text != '.' && !strchr(text, '/') && strlen(text) == json_string_length(file), TT_EFORMAT,
        "%s: tensor '%.200s' is said to be in '%.200s'; expected the plain name of a file in this folder",
        m->path, name, text);
    e->file = strdup(text);
    TT_CHECK(e->file, TT_ENOMEM, "%s: out of memory", m->path);
    return TT_OK;
}

static tt_status read_weight_map(index_map *m, tt_json_piece piece)
{
    tt_json_walk w;
    TT_CHECK(!m->seen, TT_EFORMAT, "%s: 'weight_map' appears twice", m->path);
    m->seen = true;
    TT_TRY(tt_json_walk_begin(&w, piece.text, piece.bytes, m->path));
    for (;;) {
        char *key;
        json_t *file;
        TT_TRY(tt_json_walk_next(&w, &key, &piece));
        if (!key) return TT_OK;
        tt_status status = tt_json_walk_parse(&w, piece, MAX_ENTRY, &file);
        if (status == TT_OK) {
            status = add_to_index(m, key, file);
            json_decref(file);
        } else {
            free(key);
        }
        TT_TRY(status);
    }
}

/* One member beside the map: "metadata" is kept, any other is only checked for being JSON. */
static tt_status read_index_extra(index_map *m, const tt_json_walk *w, const char *key, tt_json_piece piece)
{
    json_t *value;
    TT_TRY(tt_json_walk_parse(w, piece, MAX_SMALL, &value));
    tt_status status = TT_OK;
    if (strcmp(key, "metadata") != 0 || json_is_null(value)) {
        json_decref(value);
    } else if (m->metadata || !json_is_object(value)) {
        status = tt_error_set(TT_EFORMAT, "%s: 'metadata' %s", m->path,
                              m->metadata ? "appears twice" : "is not an object");
        json_decref(value);
    } else {
        m->metadata = value;
    }
    return status;
}

static tt_status parse_index(index_map *m, const char *text, size_t bytes)
{
    tt_json_walk w;
    TT_TRY(tt_json_walk_begin(&w, text, bytes, m->path));
    for (;;) {
        char *key;
        tt_json_piece piece;
        TT_TRY(tt_json_walk_next(&w, &key, &piece));
        if (!key) break;
        tt_status status =
            strcmp(key, "weight_map") == 0 ? read_weight_map(m, piece) : read_index_extra(m, &w, key, piece);
        free(key);
        TT_TRY(status);
    }
    TT_CHECK(m->seen, TT_EFORMAT, "%s: has no 'weight_map'", m->path);
    TT_CHECK(m->count > 0, TT_EFORMAT, "%s: 'weight_map' lists no tensor", m->path);
    return TT_OK;
}

static int entries_by_file(const void *a, const void *b)
{
    const index_entry *x = a, *y = b;
    int order = strcmp(x->file, y->file);
    return order ? order : strcmp(x->name, y->name);
}

static int entries_by_name(const void *a, const void *b)
{
    return strcmp(((const index_entry *)a)->name, ((const index_entry *)b)->name);
}

/* Entries are sorted by file. */
static bool starts_a_file(const index_map *m, int64_t i)
{
    return i == 0 || strcmp(m->entries[i - 1].file, m->entries[i].file) != 0;
}

static tt_status open_listed_files(const char *folder, const index_map *m, tt_st_folder *out)
{
    int64_t num_files = 0, capacity = 0;
    char path[4096];
    for (int64_t i = 0; i < m->count; i++) num_files += starts_a_file(m, i);
    TT_CHECK(num_files <= INT32_MAX, TT_EFORMAT, "%s: lists too many files", m->path);
    TT_TRY(reserve(out, folder, (int)num_files));
    for (int64_t i = 0; i < m->count; i++) {
        if (!starts_a_file(m, i)) continue;
        const index_entry *e = &m->entries[i];
        TT_TRY(tt_path_join(path, sizeof path, folder, e->file));
        tt_status status = add_file(out, path, e->file, &capacity);
        if (status == TT_EIO)
            tt_error_context(status, "%s puts tensor '%.200s' into '%.200s'", m->path, e->name, e->file);
        TT_TRY(status);
    }
    return sort_by_name(out);
}

/* Both sorted by name: each name must be on both sides, with the same file. */
static tt_status check_agreement(const index_map *m, const tt_st_folder *f)
{
    for (int64_t i = 1; i < m->count; i++)
        TT_CHECK(strcmp(m->entries[i - 1].name, m->entries[i].name) != 0, TT_EFORMAT,
                 "%s: tensor '%.200s' is listed twice", m->path, m->entries[i].name);
    for (int64_t i = 0, k = 0; i < m->count || k < f->num_tensors; i++, k++) {
        const index_entry *e = i < m->count ? &m->entries[i] : NULL;
        const tt_st_tensor *t = k < f->num_tensors ? &f->tensors[k] : NULL;
        int order = !e ? 1 : !t ? -1 : strcmp(e->name, t->name);
        TT_CHECK(order >= 0, TT_EFORMAT,
                 "%s: tensor '%.200s' is listed, but not in '%.200s' or any other listed file", m->path,
                 e->name, e->file);
        TT_CHECK(order <= 0, TT_EFORMAT, "%s: tensor '%.200s' of '%.200s' is not listed", m->path, t->name,
                 f->file_names[t->file]);
        TT_CHECK(strcmp(e->file, f->file_names[t->file]) == 0, TT_EFORMAT,
                 "%s: tensor '%.200s' is said to be in '%.200s', but is in '%.200s'", m->path, e->name,
                 e->file, f->file_names[t->file]);
    }
    return TT_OK;
}

static bool lists_file(const tt_st_folder *f, const char *name)
{
    for (int i = 0; i < f->num_files; i++)
        if (strcmp(f->file_names[i], name) == 0) return true;
    return false;
}

/* single: the name of the file that would hold everything, if there is one beside the index. */
static tt_status open_sharded(const char *folder, const char *index_path, const char *single, tt_st_folder *out)
{
    index_map m = {.path = index_path};
    char *text;
    size_t bytes;
    TT_TRY(tt_file_read_all(index_path, TT_ST_MAX_HEADER, &text, &bytes));
    tt_status status = parse_index(&m, text, bytes);
    free(text);
    if (status != TT_OK) goto fail;
    qsort(m.entries, (size_t)m.count, sizeof *m.entries, entries_by_file);
    TT_GO(open_listed_files(folder, &m, out));
    qsort(m.entries, (size_t)m.count, sizeof *m.entries, entries_by_name);
    TT_GO(check_agreement(&m, out));
    if (single && !lists_file(out, single)) {
        status = tt_error_set(TT_EFORMAT, "%s: there is also a %s, which it does not list; remove the one that is out of date",
                              index_path, single);
        goto fail;
    }
    out->sharded = true;
    out->index_metadata = json_incref(m.metadata);
fail:
    free_index(&m);
    return status;
}

/* A folder without weights by name: since a kill stopped their replacement, or since it never had any. */
static tt_status refuse_folder(const char *folder, const char *index_path, const char *single)
{
    char path[4096 + sizeof TT_ST_REPLACED];
    bool interrupted = false;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s", i ? index_path : single, TT_ST_REPLACED);
        interrupted |= tt_file_exists(path);
    }
    TT_CHECK(!interrupted, TT_EIO,
             "'%s': the replacement of a model was interrupted; the new one is complete, but some of its files still have names "
             "that end in " TT_ST_TEMPORARY ": remove that ending, and the files that end in " TT_ST_REPLACED, folder);
    return tt_error_set(TT_EIO, "'%s' holds neither %s nor %s; weights in other formats must be converted first", folder,
                        strrchr(single, '/') + 1, strrchr(index_path, '/') + 1);
}

tt_status tt_st_open_stem(const char *folder, const char *stem, tt_st_folder *out)
{
    char index_path[4096], single[4096], name[512];
    *out = (tt_st_folder){0};
    TT_CHECK(tt_dir_exists(folder), TT_EIO, "'%s' is not a folder", folder);
    snprintf(name, sizeof name, "%s.safetensors.index.json", stem);
    TT_TRY(tt_path_join(index_path, sizeof index_path, folder, name));
    snprintf(name, sizeof name, "%s.safetensors", stem);
    TT_TRY(tt_path_join(single, sizeof single, folder, name));
    bool has_index = tt_file_exists(index_path), has_single = tt_file_exists(single);
    if (!has_index && !has_single) return refuse_folder(folder, index_path, single);
    if (has_index) {
        tt_status status = open_sharded(folder, index_path, has_single ? name : NULL, out);
        if (status != TT_OK) tt_st_close(out);
        return status;
    }
    TT_TRY(tt_st_open_file(single, out));
    char *path = strdup(folder);
    if (!path) {
        tt_st_close(out);
        return tt_error_set(TT_ENOMEM, "%s: out of memory", folder);
    }
    free(out->path);
    out->path = path;
    return TT_OK;
}

tt_status tt_st_open_folder(const char *folder, tt_st_folder *out)
{
    return tt_st_open_stem(folder, "model", out);
}

/* --- tensors --------------------------------------------------------------------------------------- */

const tt_st_tensor *tt_st_find(const tt_st_folder *f, const char *name)
{
    int64_t low = 0, high = f->num_tensors;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, f->tensors[middle].name);
        if (order == 0) return &f->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* Elements that lie from `offset` on in the file, piece by piece through a buffer. */
static tt_status read_converted(const tt_file *file, tt_dtype stored, int64_t offset, int64_t count,
                                tt_dtype type, char *data)
{
    size_t size = tt_dtype_size(stored);
    int64_t per_piece = (int64_t)(TT_ST_PIECE / size);
    void *piece = malloc(TT_ST_PIECE);
    TT_CHECK(piece, TT_ENOMEM, "%s: out of memory for a buffer of %d bytes", file->path, TT_ST_PIECE);
    tt_status status = TT_OK;
    for (int64_t i = 0; i < count && status == TT_OK; i += per_piece) {
        int64_t n = tt_min_i64(per_piece, count - i);
        status = tt_file_read_at(file, offset + i * (int64_t)size, piece, (size_t)n * size);
        if (status == TT_OK) tt_convert(data + (size_t)i * tt_dtype_size(type), type, piece, stored, n);
    }
    free(piece);
    return status;
}

tt_status tt_st_read(const tt_st_folder *f, const tt_st_tensor *t, int64_t first, int64_t count,
                     tt_dtype type, void *data)
{
    const tt_file *file = &f->files[t->file];
    int64_t size = (int64_t)tt_dtype_size(t->dtype), total = (t->end - t->begin) / size;
    TT_CHECK(first >= 0 && count >= 0 && first <= total && count <= total - first, TT_EINTERNAL,
             "%s: tensor '%.200s' has %" PRId64 " elements; %" PRId64 " from %" PRId64 " on were asked for",
             file->path, t->name, total, count, first);
    if (count == 0) return TT_OK;
    if (type == t->dtype) return tt_file_read_at(file, t->begin + first * size, data, (size_t)(count * size));
    TT_CHECK(tt_dtype_is_weight(type) && tt_dtype_is_weight(t->dtype), TT_EFORMAT,
             "%s: tensor '%.200s' has dtype %s, which cannot become %s", file->path, t->name,
             tt_dtype_name(t->dtype), tt_dtype_name(type));
    return read_converted(file, t->dtype, t->begin + first * size, count, type, data);
}
