/* manifest.h - the text that proves a checkpoint whole. For the files of this folder.
 *
 *   {
 *     "checksum": "0123456789abcdef",     XXH64 of this file's bytes, with these sixteen digits as zeros
 *     "format": "tartan checkpoint", "version": 1, "step": ..., "with_state": ..., "mesh": {...}, "precision": {...},
 *     "train": ...,
 *     "files": {
 *       "NAME": {"bytes": 300, "ends": [100,300], "xxh64": ["...","..."]}, ...
 *
 * Bytes [0, 100) and [100, 300) of that file have those checksums: ranges follow each other without gaps, so that every byte of
 * every file but this one is covered once. docs/checkpoints.md describes the members.
 */
#ifndef TT_CHECKPOINT_MANIFEST_H
#define TT_CHECKPOINT_MANIFEST_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/output.h"

#define TT_MANIFEST_MAX (128 << 20) /* bytes: three million ranges */

/* tt_manifest_write - head: the members between "checksum" and "files". stretches are sorted in place; their `file` is an
 * index into names[num_names]. TT_EINTERNAL unless they cover every file without gaps. Local. */
tt_status tt_manifest_write(const char *path, const json_t *head, const char *const *names, int num_names,
                            tt_stretches *stretches);

/* tt_manifest_read - checksum, JSON, and the form of all members but "train". Local. TT_EFORMAT, TT_EIO. */
tt_status tt_manifest_read(const char *path, json_t **out);

/* Range i of a file's entry, for i from 0 on; false behind the last. */
bool tt_manifest_range(const json_t *entry, size_t i, tt_stretch *out);

#endif
