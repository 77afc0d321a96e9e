/* checkpoint.h - checkpoint-N: a model folder, plus what training needs to go on from it, plus the proof that it is whole.
 *
 *   checkpoint-N/
 *     config.json, tokenizer files, model*.safetensors   a model folder like any other, in the source's layout
 *     optimizer*.safetensors    exp_avg.NAME and exp_avg_sq.NAME of what is trained, with global shapes, in the type of the
 *                               moments; master.NAME, in the type in which training keeps it, where the model's file cannot
 *                               hold that exactly
 *     trainer_state.json        progress, in the common trainer's schema
 *     tartan_manifest.json      step, what training wants to find again, size of every file, and for every range that a
 *                               rank wrote its XXH64; written last
 *
 * Writing is three calls, so that the middle one can run beside training:
 *
 *   begin     collective   free space, layout, a folder under a temporary name with all files at full size
 *   write     local        this rank's ranges, from its shards or from a copy of them; no word to other ranks
 *   publish   collective   checksums to rank 0, everything on the disk, manifest, and one rename
 *
 * Until the rename the folder is "checkpoint-N.tartan-tmp" and nobody takes it for a checkpoint. A rename replaces nothing;
 * with overwrite an older checkpoint of that name trades places with the new one and is then removed.
 * Reading: any mesh reads any checkpoint, each rank the byte ranges that it owns.
 */
#ifndef TT_CHECKPOINT_CHECKPOINT_H
#define TT_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/load.h"
#include "checkpoint/save.h"

#define TT_CHECKPOINT_MANIFEST "tartan_manifest.json"
#define TT_CHECKPOINT_VERSION  1

/* Memory for a copy of a rank's shards: its weights, and its moments when they are saved. Start from zeros; it grows at first use and is kept for the next. */
typedef struct tt_checkpoint_copy {
    void *memory;
    int64_t bytes;
} tt_checkpoint_copy;
void tt_checkpoint_copy_free(tt_checkpoint_copy *c);

typedef struct tt_checkpoint_options {
    const tt_save_options *model; /* source, config, aux_folder; borrowed until the writer ends */
    bool with_state;              /* false: the model alone (save_only_model), which cannot be resumed */
    tt_checkpoint_copy *copy;     /* copy the shards into it first, so that write may run while training changes them; borrowed
                                     until the writer ends. NULL: write from the shards */
    int64_t step;
    const json_t *train;          /* goes into the manifest as "train"; rank 0's counts */
    const json_t *trainer_state;  /* rank 0's counts */
} tt_checkpoint_options;

typedef struct tt_checkpoint_writer tt_checkpoint_writer;

/* tt_checkpoint_begin - folder: the final path, whose parent exists. Collective over the world; all ranks return the same
 * status. TT_EIO with the bytes needed and free when the file system has too little room; TT_ECONFIG when the folder exists,
 * unless it is ours and options->model->overwrite. A folder that a killed run has left under the temporary name is removed. */
tt_status tt_checkpoint_begin(const char *folder, const tt_shards *shards, const tt_checkpoint_options *options,
                              tt_checkpoint_writer **out);
/* tt_checkpoint_bytes - what write will write on this rank. Local. */
int64_t tt_checkpoint_bytes(const tt_checkpoint_writer *w);
/* Local, on any thread, once. Bytes done are counted in `done` (may be NULL). */
tt_status tt_checkpoint_write(tt_checkpoint_writer *w, _Atomic int64_t *done);
/* tt_checkpoint_publish - mine: what write returned (with this thread's message). Removes the temporary folder when any rank
 * has failed, and frees the writer in any case. Collective. */
tt_status tt_checkpoint_publish(tt_checkpoint_writer **w, tt_status mine, tt_save_report *report);
/* tt_checkpoint_drop - instead of publish, when other ranks cannot be asked any more: free the writer, after write has
 * returned; the temporary folder stays. Accepts NULL inside. Local. */
void tt_checkpoint_drop(tt_checkpoint_writer **w);

/* What a manifest tells, with the sizes of all files checked against it. */
typedef struct tt_checkpoint {
    char *path;
    int64_t step;
    bool with_state;
    json_t *manifest; /* "train" is the trainer's own */
} tt_checkpoint;

/* tt_checkpoint_open - TT_EFORMAT or TT_EIO, naming what is missing, cut or damaged, unless the folder is whole as far as
 * sizes, headers and the manifest's own checksum tell. Local. */
tt_status tt_checkpoint_open(const char *folder, tt_checkpoint *out);
void tt_checkpoint_close(tt_checkpoint *c);

/* tt_checkpoint_newest - the checkpoint-N of the largest N below `below` (INT64_MAX: of all) in `folder` that opens; *passed lists those passed over as
 * "checkpoint-7: WHY", one a line, NULL for none; both are freed by the caller. *path is NULL when there is none. Local. */
tt_status tt_checkpoint_newest(const char *folder, int64_t below, char **path, char **passed);

/* tt_checkpoint_prune - delete the oldest checkpoint-N of `folder` that have a manifest of tartan's, down to `keep`; never the
 * newest that opens nor what stands behind it, nor `spare` (a path or NULL). keep 0 or less: all stay. Local: rank 0. */
tt_status tt_checkpoint_prune(const char *folder, int keep, const char *spare);

/* tt_checkpoint_is_ours - whether a manifest of tartan's stands there, readable or not, or the other files that only tartan
 * puts side by side. Others' folders of such a name are neither counted nor deleted nor replaced. tt_checkpoint_foreign - the path of a "checkpoint-N" of `folder` with N above
 * `above` that is not ours, to be freed, or NULL. tt_checkpoint_number - N of a path that ends in checkpoint-N. Local. */
bool tt_checkpoint_is_ours(const char *path);
tt_status tt_checkpoint_foreign(const char *folder, int64_t above, char **path);
bool tt_checkpoint_number(const char *path, int64_t *step);

/* tt_checkpoint_sweep - what killed runs have left in `folder`: checkpoint-N.tartan-old gets its name back where there is no
 * checkpoint-N; other such folders, and checkpoint-N.tartan-tmp, are deleted. For the start of a run, when nobody else
 * writes there. Local: rank 0. */
tt_status tt_checkpoint_sweep(const char *folder);

/* tt_checkpoint_check - every checksum of the manifest, this rank's share of the ranges. Local; callers agree. */
tt_status tt_checkpoint_check(const tt_checkpoint *c, int rank, int size, int threads, _Atomic int64_t *done);

/* tt_checkpoint_load - weights (the masters where there are any) and moments into shards whose source is this folder. Reads
 * what this rank owns; the report counts weights and moments. State is matched by name, strictly: TT_EMISMATCH for what is
 * missing, left over, or of another shape. Types may differ and are converted. TT_ECONFIG without state. Local; callers
 * agree. */
tt_status tt_checkpoint_load(const tt_checkpoint *c, const tt_source *source, tt_shards *shards, int threads,
                             const tt_read_watch *watch, tt_load_report *report);

#endif
