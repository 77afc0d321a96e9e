/* safetensors_layout.c - where each tensor of a checkpoint will lie, from names, types and shapes alone.
 *
 *   offset 0     8              8 + N                                  file_bytes
 *          | N  | {"__metadata__":{...},"a":{...},...}<spaces> | a | b | ... |
 *
 * Items of a file follow one another without gaps, in the order given; the header lists them in the same
 * order, as the official writer does, so a file written from another's list has the same header, byte by
 * byte. That writer orders by falling alignment, then by name; here the order is the caller's. Headers grow
 * in memory streams, one for each file, in one pass over the items.
 */
#include "base/checked.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A header that is being written. */
typedef struct header {
    FILE *stream;
    char *text; /* owned by the stream until it is closed */
    size_t bytes;
    int64_t data; /* bytes of tensors so far */
} header;

/* JSON text of a value; NULL without memory or when a string is not valid UTF-8. */
static char *json_text(json_t *value)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(value);
    return text;
}

/* {"format":"pt", ...} */
static tt_status metadata_text(const json_t *given, char **out)
{
    json_t *all = json_object(), *value;
    const char *key;
    /* Borrowed from a const object that jansson's iterators want to be writable; nothing is written. */
    json_object_foreach((json_t *)given, key, value)
    {
        if (json_is_string(value)) continue;
        json_decref(all);
        return tt_error_set(TT_EINTERNAL, "metadata '%.100s' of a safetensors file is %s; expected a string",
                            key, tt_json_kind(value));
    }
    bool good =
        all && (!given || json_object_update(all, (json_t *)given) == 0) &&
        (json_object_get(all, "format") || json_object_set_new(all, "format", json_string("pt")) == 0);
    if (!good) {
        json_decref(all);
        return tt_error_set(TT_ENOMEM, "out of memory for the metadata of a safetensors file");
    }
    *out = json_text(all);
    TT_CHECK(*out, TT_ENOMEM, "out of memory for the metadata of a safetensors file");
    return TT_OK;
}

static int names_in_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static tt_status check_unique(const tt_st_item *items, int64_t n)
{
    const char **names = malloc((size_t)(n + 1) * sizeof *names);
    TT_CHECK(names, TT_ENOMEM, "out of memory for the names of %" PRId64 " tensors", n);
    for (int64_t i = 0; i < n; i++) names[i] = items[i].name;
    qsort(names, (size_t)n, sizeof *names, names_in_order);
    tt_status status = TT_OK;
    for (int64_t i = 1; i < n && status == TT_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = tt_error_set(TT_EMISMATCH, "tensor '%.200s' would be written twice", names[i]);
    free(names);
    return status;
}

/* Sets the item's range within the data section and appends its entry. */
static tt_status append_item(tt_st_item *item, header *h)
{
    int64_t bytes;
    TT_CHECK(*item->name && strcmp(item->name, "__metadata__") != 0, TT_EMISMATCH,
             "a tensor cannot be written under the name '%s'", item->name);
    TT_CHECK(tt_st_size(item->dtype, item->ndim, item->shape, NULL, &bytes) &&
                 tt_add_i64(h->data, bytes, &item->end),
             TT_EMISMATCH, "tensor '%.200s' cannot be written: %d dims of a size beyond 63 bits", item->name,
             item->ndim);
    item->begin = h->data;
    h->data = item->end;
    char *name = json_text(json_string(item->name));
    TT_CHECK(name, TT_EMISMATCH, "tensor '%.200s' cannot be written: its name is not valid UTF-8",
             item->name);
    fprintf(h->stream, ",%s:{\"dtype\":\"%s\",\"shape\":[", name, tt_dtype_name(item->dtype));
    for (int i = 0; i < item->ndim; i++) fprintf(h->stream, "%s%" PRId64, i ? "," : "", item->shape[i]);
    fprintf(h->stream, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", item->begin, item->end);
    free(name);
    return TT_OK;
}

static tt_status begin_headers(header *h, int num_files, const char *metadata)
{
    static const char length[8] = {0}; /* filled in at the end */
    for (int i = 0; i < num_files; i++) {
        h[i].stream = open_memstream(&h[i].text, &h[i].bytes);
        TT_CHECK(h[i].stream, TT_ENOMEM, "out of memory for the headers of %d files", num_files);
        fwrite(length, 1, sizeof length, h[i].stream);
        fprintf(h[i].stream, "{\"__metadata__\":%s", metadata);
    }
    return TT_OK;
}

/* Ends and pads the text, sets its length, and hands it to the plan. */
static tt_status end_header(header *h, int file, tt_st_plan *plan)
{
    fputc('}', h->stream);
    for (long at = ftell(h->stream); at % 8 != 0; at++) fputc(' ', h->stream);
    bool failed = ferror(h->stream);
    failed |= fclose(h->stream) != 0;
    h->stream = NULL;
    TT_CHECK(!failed, TT_ENOMEM, "out of memory for the header of '%s'", plan->file_names[file]);
    uint64_t n = h->bytes - 8;
    TT_CHECK(n <= TT_ST_MAX_HEADER, TT_EMISMATCH,
             "'%s' would get a header of %" PRIu64 " bytes; readers accept at most %d: allow smaller files",
             plan->file_names[file], n, TT_ST_MAX_HEADER);
    memcpy(h->text, &n, sizeof n);
    plan->headers[file] = h->text;
    plan->header_bytes[file] = (int64_t)h->bytes;
    h->text = NULL;
    TT_CHECK(tt_add_i64((int64_t)h->bytes, h->data, &plan->file_bytes[file]) &&
                 tt_add_i64(plan->total_bytes, h->data, &plan->total_bytes),
             TT_EMISMATCH, "'%s' would be larger than 63 bits can count", plan->file_names[file]);
    return TT_OK;
}

static tt_status name_file(tt_st_plan *plan, const char *stem, int file)
{
    int n = plan->num_files == 1 ? asprintf(&plan->file_names[file], "%s.safetensors", stem)
                                 : asprintf(&plan->file_names[file], "%s-%05d-of-%05d.safetensors", stem,
                                            file + 1, plan->num_files);
    if (n >= 0) return TT_OK;
    plan->file_names[file] = NULL;
    return tt_error_set(TT_ENOMEM, "out of memory for the names of %d files", plan->num_files);
}

static tt_status reserve(tt_st_plan *plan, int num_files)
{
    size_t n = (size_t)num_files;
    *plan = (tt_st_plan){.num_files = num_files,
                         .file_names = calloc(n, sizeof *plan->file_names),
                         .headers = calloc(n, sizeof *plan->headers),
                         .header_bytes = calloc(n, sizeof *plan->header_bytes),
                         .file_bytes = calloc(n, sizeof *plan->file_bytes)};
    TT_CHECK(plan->file_names && plan->headers && plan->header_bytes && plan->file_bytes, TT_ENOMEM,
             "out of memory for a layout of %d files", num_files);
    return TT_OK;
}

static tt_status fill(tt_st_item *items, int64_t num_items, const char *stem, const char *metadata, header *h,
                      tt_st_plan *plan)
{
    TT_TRY(begin_headers(h, plan->num_files, metadata));
    for (int64_t i = 0; i < num_items; i++) {
        TT_ASSERT(items[i].file >= 0 && items[i].file < plan->num_files);
        TT_TRY(append_item(&items[i], &h[items[i].file]));
    }
    for (int f = 0; f < plan->num_files; f++) {
        TT_TRY(name_file(plan, stem, f));
        TT_TRY(end_header(&h[f], f, plan));
    }
    for (int64_t i = 0; i < num_items; i++) { /* end_header has checked that this cannot overflow */
        items[i].begin += plan->header_bytes[items[i].file];
        items[i].end += plan->header_bytes[items[i].file];
    }
    return TT_OK;
}

tt_status tt_st_layout(tt_st_item *items, int64_t num_items, int num_files, const char *stem,
                       const json_t *file_metadata, tt_st_plan *out)
{
    TT_ASSERT(num_files >= 1 && num_items >= 0);
    char *metadata = NULL;
    *out = (tt_st_plan){0};
    header *h = calloc((size_t)num_files, sizeof *h);
    TT_CHECK(h, TT_ENOMEM, "out of memory for the headers of %d files", num_files);
    tt_status status;
    TT_GO(check_unique(items, num_items));
    TT_GO(metadata_text(file_metadata, &metadata));
    TT_GO(reserve(out, num_files));
    TT_GO(fill(items, num_items, stem, metadata, h, out));
fail:
    for (int f = 0; f < num_files; f++) {
        if (h[f].stream) fclose(h[f].stream);
        free(h[f].text);
    }
    free(h);
    free(metadata);
    if (status != TT_OK) tt_st_plan_free(out);
    return status;
}

void tt_st_plan_free(tt_st_plan *p)
{
    for (int i = 0; i < p->num_files; i++) {
        if (p->file_names) free(p->file_names[i]);
        if (p->headers) free(p->headers[i]);
    }
    free(p->file_names);
    free(p->headers);
    free(p->header_bytes);
    free(p->file_bytes);
    *p = (tt_st_plan){0};
}

int tt_st_split(tt_st_item *items, int64_t num_items, int64_t max_bytes)
{
    int file = 0;
    int64_t in_file = 0, used = 0;
    for (int64_t i = 0; i < num_items; i++) {
        int64_t bytes, sum;
        /* A size that cannot be counted gets a file of its own here and is refused by tt_st_layout. */
        if (!tt_st_size(items[i].dtype, items[i].ndim, items[i].shape, NULL, &bytes)) bytes = INT64_MAX;
        if (in_file > 0 && (!tt_add_i64(used, bytes, &sum) || sum > max_bytes)) {
            file++;
            in_file = used = 0;
        }
        items[i].file = file;
        used += bytes;
        in_file++;
    }
    return file + 1;
}

static tt_status index_tree(const tt_st_plan *plan, const tt_st_item *items, int64_t num_items,
                            const json_t *extra, json_t *metadata, json_t *map)
{
    bool good = (!extra || json_object_update(metadata, (json_t *)extra) == 0) &&
                json_object_set_new(metadata, "total_size", json_integer(plan->total_bytes)) == 0;
    for (int64_t i = 0; i < num_items && good; i++)
        good = json_object_set_new(map, items[i].name, json_string(plan->file_names[items[i].file])) == 0;
    TT_CHECK(good, TT_ENOMEM, "out of memory for an index of %" PRId64 " tensors", num_items);
    return TT_OK;
}

tt_status tt_st_write_index(const char *path, const tt_st_plan *plan, const tt_st_item *items,
                            int64_t num_items, const json_t *extra)
{
    json_t *metadata = json_object(), *map = json_object();
    json_t *all = json_pack("{s:O*, s:O*}", "metadata", metadata, "weight_map", map);
    tt_status status = all && metadata && map ? index_tree(plan, items, num_items, extra, metadata, map)
                                              : tt_error_set(TT_ENOMEM, "%s: out of memory", path);
    if (status == TT_OK) status = tt_json_save(path, all, true);
    json_decref(all);
    json_decref(metadata);
    json_decref(map);
    return status;
}
