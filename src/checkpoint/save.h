/* save.h - shards into standard files, written in place by all ranks at once.
 *
 * The layout of the files is a pure function of the table and the source (names, types, order, which file), so all ranks
 * compute it alone. Rank 0 creates the files at full size under temporary names (NAME.tartan-tmp) and writes their headers;
 * every rank writes its own byte ranges; when all are on the disk, rank 0 gives them their names.
 *
 * Where another model stood, files take its place in this order: the old index, or single file, is renamed out of the way;
 * shards, tokenizer and config.json take their names; the new index, or single file, takes its own, last. So a reader finds
 * the old model, or none, or the new one, never a mixture; docs/checkpoints.md has what a kill in between leaves. One file
 * that replaces one file under the same config.json needs no such care: one rename does it.
 *
 * With a source, the files are its files: the same tensors (stacked experts stay stacked) in the same order, each in the type
 * it had. Tensors that the source carries (checkpoint/source.h) are copied byte by byte, ranks sharing the work. FP8
 * matrices are written dequantised, in the type that the configuration names (float32 when it names none), their factors
 * not at all; so config.json is written without its quantization_config. save_dtype gives what is trained another type than
 * the source's, and config.json says so; what is not trained keeps its bytes.
 */
#ifndef TT_CHECKPOINT_SAVE_H
#define TT_CHECKPOINT_SAVE_H

#include "checkpoint/source.h"
#include "shard/shard.h"

#include <jansson.h>

typedef struct tt_save_options {
    const tt_source *source; /* NULL: table order, files of at most max_file_bytes, types `stored` of the table */
    int64_t max_file_bytes;  /* without a source, and of a checkpoint's optimizer state; 0 = 5 GB (5e9 bytes) */
    const char *save_dtype;  /* of trained tensors: float32, bfloat16, float16; NULL: as in the source */
    const json_t *config;    /* config.json to write */
    const char *aux_folder;  /* tokenizer and generation files are copied from here; NULL: none */
    bool overwrite;          /* replace a model that is already there */
} tt_save_options;

typedef struct tt_save_report {
    int64_t bytes_written; /* by this rank, with what it copied */
    int num_files;
} tt_save_report;

/* tt_save_check - refuse a folder that already holds a model unless overwrite; TT_ECONFIG. For the start of a run. Local. */
tt_status tt_save_check(const char *folder, bool overwrite);

/* tt_save_dtype - TT_ECONFIG unless it is one of the names that save_dtype takes. Pure. */
tt_status tt_save_dtype(const char *name, tt_dtype *out);

/* tt_save_model - collective over the mesh's world; all ranks return the same status. The folder is created. */
tt_status tt_save_model(const char *folder, const tt_shards *shards, const tt_save_options *options,
                        tt_save_report *report);

/* --- tensors that are not parameters (outputs, gradients) in one file ------------------------------------------ */

/* A range of a tensor of the file that this rank writes. data is F32. */
typedef struct tt_save_range {
    int64_t item, first, count;
    const void *data;
    tt_dtype type;
} tt_save_range;

/* tt_save_file_check - TT_ECONFIG unless the path is one that tt_save_file takes: NAME.safetensors, where no file stands
 * unless overwrite. For the start of a run. Local. */
tt_status tt_save_file_check(const char *path, bool overwrite);

/* tt_save_file - items (the same on all ranks) into `path`, each rank its ranges. Collective. */
tt_status tt_save_file(const char *path, bool overwrite, const tt_mesh *mesh, tt_st_item *items, int64_t num_items,
                       const tt_save_range *ranges, int64_t num_ranges);

#endif
