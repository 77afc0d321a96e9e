/* safetensors.h - the files that checkpoints are made of: headers read with suspicion, layouts computed purely.
 *
 *   bytes 0..7    u64 little-endian: N, length of the header
 *   bytes 8..8+N  JSON: name -> {"dtype","shape","data_offsets":[begin,end]}, optional "__metadata__"
 *   rest          data; offsets are relative to its start
 *
 * Reading: nothing in a header is believed before it is checked (size of the header against a limit of 100,000,000
 * bytes and the file, JSON, duplicate names, dtype known, shape and product without overflow, product * size equal
 * to the range, ranges that tile the data exactly). Names must be non-empty valid text without NUL.
 * Writing: tt_st_layout turns a list of tensors into headers and offsets without touching a file, so that every rank
 * computes the same layout alone; each rank then writes its own byte ranges (checkpoint/save.h).
 */
#ifndef TT_CHECKPOINT_SAFETENSORS_H
#define TT_CHECKPOINT_SAFETENSORS_H

#include "base/file.h"
#include "tensor/dtype.h"

#include <jansson.h>

#define TT_ST_MAX_DIMS 8

typedef struct tt_st_tensor {
    char *name;
    tt_dtype dtype;
    int ndim;
    int64_t shape[TT_ST_MAX_DIMS];
    int64_t begin, end; /* bytes from the start of the FILE, not of its data section */
    int file;           /* index into the folder's files */
} tt_st_tensor;

/* A model folder's weights: model.safetensors, or the files that model.safetensors.index.json lists. */
typedef struct tt_st_folder {
    char *path;
    int num_files;
    tt_file *files;          /* open for reading */
    char **file_names;       /* without the folder */
    int64_t num_tensors;
    tt_st_tensor *tensors;   /* sorted by name (strcmp) */
    json_t **metadata;       /* per file: the "__metadata__" object or NULL */
    json_t *index_metadata;  /* "metadata" of the index, or NULL */
    bool sharded;            /* there is an index */
} tt_st_folder;

/* tt_st_open_folder - read and check all headers of a model folder. With an index: every tensor it lists must be in
 * the file it says, and every tensor of those files must be listed (TT_EFORMAT names file and tensor). File names in
 * an index must be plain (no '/', no leading dot). Local. */
tt_status tt_st_open_folder(const char *folder, tt_st_folder *out);
/* tt_st_open_file - the same for one file under any name (adapters, train state, outputs). */
tt_status tt_st_open_file(const char *path, tt_st_folder *out);
void tt_st_close(tt_st_folder *f);

/* By exact name, or NULL. */
const tt_st_tensor *tt_st_find(const tt_st_folder *f, const char *name);

/* tt_st_read - elements [first, first + count) of a tensor, converted to `type`, into data. Local; thread-safe. */
tt_status tt_st_read(const tt_st_folder *f, const tt_st_tensor *t, int64_t first, int64_t count, tt_dtype type,
                     void *data);

/* --- writing ------------------------------------------------------------------------------------------------- */

/* One tensor to be written. The caller sets the first five; tt_st_layout sets the rest. */
typedef struct tt_st_item {
    const char *name; /* borrowed */
    tt_dtype dtype;
    int ndim;
    int64_t shape[TT_ST_MAX_DIMS];
    int file; /* index of the file it goes to; within a file items keep the order given */
    int64_t begin, end; /* out: bytes from the start of that file */
} tt_st_item;

typedef struct tt_st_plan {
    int num_files;
    char **file_names;   /* "model.safetensors", or "model-00001-of-00003.safetensors", ... */
    char **headers;      /* the eight length bytes and the padded JSON, to be written at offset 0 */
    int64_t *header_bytes;
    int64_t *file_bytes; /* size of the whole file */
    int64_t total_bytes; /* of all tensors: "total_size" of the index */
} tt_st_plan;

/* tt_st_layout - offsets and headers for items (grouped by file in any order). `stem` is "model" or another base
 * name; one file gets STEM.safetensors, several STEM-0000i-of-0000n.safetensors. file_metadata (may be NULL) is one
 * object for all files; "format": "pt" is added when missing. Headers are padded with spaces to multiples of 8.
 * Pure: the same arguments give the same bytes on every rank. Free with tt_st_plan_free. */
tt_status tt_st_layout(tt_st_item *items, int64_t num_items, int num_files, const char *stem,
                       const json_t *file_metadata, tt_st_plan *out);
void tt_st_plan_free(tt_st_plan *p);

/* tt_st_split - assign files to items in order: a new file whenever the next item would push a file with at least
 * one item above max_bytes. Returns the number of files. Pure. */
int tt_st_split(tt_st_item *items, int64_t num_items, int64_t max_bytes);

/* tt_st_write_index - model.safetensors.index.json for a plan of several files. extra (may be NULL): other members of
 * its "metadata". */
tt_status tt_st_write_index(const char *folder, const tt_st_plan *plan, const tt_st_item *items, int64_t num_items,
                            const json_t *extra);

#endif
