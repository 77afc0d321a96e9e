/* safetensors.h - the files that checkpoints are made of: headers read with suspicion, layouts without files.
 *
 *   bytes 0..7    u64 little-endian: N, length of the header
 *   bytes 8..8+N  JSON: name -> {"dtype","shape","data_offsets":[begin,end]}, optional "__metadata__"
 *   rest          data; offsets are relative to its start
 *
 * Reading: nothing in a header is believed before it is checked (its length against TT_ST_MAX_HEADER and the
 * file, JSON, duplicate names, dtype known, shape and product without overflow, product * size equal to the
 * range, ranges that tile the data section exactly up to the end of the file). Tensors without elements may
 * lie on any border. Names must be non-empty valid text without NUL. An entry has the three members above and
 * no other: what a member we do not know would mean for the bytes cannot be guessed. Every message names the
 * file and the tensor.
 * Costs: time n log n in the header, memory about five times its bytes.
 * Left out: types below one byte (F4, F6), of which no supported family makes use, and big-endian hosts.
 *
 * Writing: tt_st_layout turns a list of tensors into headers and offsets without touching a file, so that
 * every rank computes the same layout alone; each rank then writes its own byte ranges (checkpoint/save.h).
 */
#ifndef TT_CHECKPOINT_SAFETENSORS_H
#define TT_CHECKPOINT_SAFETENSORS_H

#include "base/file.h"
#include "tensor/dtype.h"

#include <jansson.h>

#define TT_ST_MAX_DIMS   8
#define TT_ST_MAX_HEADER 100000000 /* bytes, the common readers' limit too */
#define TT_ST_MODEL_FILE "model.safetensors"
#define TT_ST_INDEX_FILE "model.safetensors.index.json"
/* Ends of names while files are written, and while others take their place (save.h). */
#define TT_ST_TEMPORARY  ".tartan-tmp"
#define TT_ST_REPLACED   ".tartan-old"

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
    char *path; /* the folder, or the file that tt_st_open_file was given */
    int num_files;
    tt_file *files;    /* open for reading */
    char **file_names; /* without the folder */
    int64_t num_tensors;
    tt_st_tensor *tensors;  /* sorted by name (strcmp) */
    json_t **metadata;      /* per file: the "__metadata__" object or NULL */
    json_t *index_metadata; /* "metadata" of the index, or NULL */
    bool sharded;           /* there is an index */
} tt_st_folder;

/* tt_st_size - elements and bytes of a tensor; false when there are too many dims, a negative one, or a
 * product beyond 63 bits. Either result may be NULL. */
bool tt_st_size(tt_dtype type, int ndim, const int64_t *shape, int64_t *count, int64_t *bytes);

/* tt_st_open_folder - read and check all headers of a model folder. With an index: every tensor it lists must
 * be in the file it says, and every tensor of those files must be listed (TT_EFORMAT names file and tensor;
 * TT_EIO when a file is missing). File names in an index must be plain (no '/', no leading dot). A folder
 * with an index and a model.safetensors that the index does not list is refused: one of them is stale. Other
 * files are not looked at. Files are in the order of their names. On failure *out is empty. Local. */
tt_status tt_st_open_folder(const char *folder, tt_st_folder *out);
/* tt_st_open_stem - the same for another base name than "model": STEM.safetensors or STEM.safetensors.index.json. */
tt_status tt_st_open_stem(const char *folder, const char *stem, tt_st_folder *out);
/* tt_st_open_file - the same for one file under any name (adapters, train state, outputs). */
tt_status tt_st_open_file(const char *path, tt_st_folder *out);
/* Accepts a zeroed or already closed struct. */
void tt_st_close(tt_st_folder *f);

/* By exact name, or NULL. */
const tt_st_tensor *tt_st_find(const tt_st_folder *f, const char *name);

/* tt_st_read - elements [first, first + count) of a tensor, converted to `type`, into data. Equal types are
 * read in place, others in pieces of TT_ST_PIECE bytes. Types that weights cannot have are not converted
 * (TT_EFORMAT). Local; thread-safe. */
#define TT_ST_PIECE (256 * 1024)
tt_status tt_st_read(const tt_st_folder *f, const tt_st_tensor *t, int64_t first, int64_t count,
                     tt_dtype type, void *data);

/* --- writing ------------------------------------------------------------------------------------ */

/* One tensor to be written. The caller sets the first five; tt_st_layout sets the rest. */
typedef struct tt_st_item {
    const char *name; /* borrowed */
    tt_dtype dtype;
    int ndim;
    int64_t shape[TT_ST_MAX_DIMS];
    int file;           /* index of the file it goes to; within a file items keep the order given */
    int64_t begin, end; /* out: bytes from the start of that file */
} tt_st_item;

typedef struct tt_st_plan {
    int num_files;
    char **file_names; /* "model.safetensors", or "model-00001-of-00003.safetensors", ... */
    char **headers;    /* the eight length bytes and the padded JSON, to be written at offset 0 */
    int64_t *header_bytes;
    int64_t *file_bytes; /* size of the whole file */
    int64_t total_bytes; /* of all tensors: "total_size" of the index */
} tt_st_plan;

/* tt_st_layout - offsets and headers for items (grouped by file in any order). `stem` is "model" or another
 * base name; one file gets STEM.safetensors, several STEM-0000i-of-0000n.safetensors. file_metadata (may be
 * NULL) is one object of strings for all files; "format": "pt" is added when missing. Headers have no white
 * space but the spaces that pad them to multiples of 8. Names must be unique over all files. A header that no
 * reader would accept is refused (TT_EMISMATCH; more and smaller files are the remedy). Pure: the same
 * arguments give the same bytes on every rank. Free with tt_st_plan_free; on failure *out is empty. */
tt_status tt_st_layout(tt_st_item *items, int64_t num_items, int num_files, const char *stem,
                       const json_t *file_metadata, tt_st_plan *out);
void tt_st_plan_free(tt_st_plan *p);

/* tt_st_split - assign files to items in order: a new file whenever the next item would push a file with at
 * least one item above max_bytes (which counts tensors, not headers). Returns the number of files, at
 * least 1. Pure. */
int tt_st_split(tt_st_item *items, int64_t num_items, int64_t max_bytes);

/* tt_st_write_index - the index of a plan of several files into `path`, keys sorted. extra (may be NULL): other
 * members of its "metadata"; "total_size" is the plan's. Local. */
tt_status tt_st_write_index(const char *path, const tt_st_plan *plan, const tt_st_item *items,
                            int64_t num_items, const json_t *extra);

#endif
