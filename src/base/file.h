/* file.h - whole files, ranged reads and writes, folders, paths. Every message names the path and the system's reason.
 * Every change of a file or folder goes through file.c, where tests can make it fail (base/fault.h). */
#ifndef TT_BASE_FILE_H
#define TT_BASE_FILE_H

#include "tartan/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* tt_file_read_all - the file as owned memory (free), a NUL behind it that *bytes does not count.
 * Refuses more than max_bytes (TT_EFORMAT) and anything that is not a regular file. */
tt_status tt_file_read_all(const char *path, int64_t max_bytes, char **text, size_t *bytes);

/* tt_file_write_all - write to path.tmp, flush to the disk, rename over path. */
tt_status tt_file_write_all(const char *path, const void *data, size_t bytes);

/* tt_file_copy - the same, from another file; a missing source is an error. */
tt_status tt_file_copy(const char *from, const char *to);

bool tt_file_exists(const char *path);
bool tt_dir_exists(const char *path);
/* Whether both exist and are the same file or folder, by whatever names. */
bool tt_same_file(const char *a, const char *b);
/* Whether `path` is `folder` or lies below it, links followed; false when either does not exist. */
bool tt_path_inside(const char *path, const char *folder);

/* tt_dir_create - with parents; an existing folder is fine. */
tt_status tt_dir_create(const char *path);

/* tt_dir_sync - names that came, went or changed in this folder are on the disk. */
tt_status tt_dir_sync(const char *path);
/* tt_dir_remove - a folder and all that is in it; links are removed, not followed. A missing one is fine. */
tt_status tt_dir_remove(const char *path);

/* tt_file_rename - over what stands there: a file, or an empty folder. */
tt_status tt_file_rename(const char *from, const char *to);
/* tt_file_swap - two files or folders trade names, in one instant where the file system can do that; *swapped is false
 * where it cannot, and nothing has changed. */
tt_status tt_file_swap(const char *a, const char *b, bool *swapped);
/* tt_file_remove - a missing one is fine. */
tt_status tt_file_remove(const char *path);

/* tt_dir_room - TT_EIO, with the bytes needed and free, when the file system of this folder has less room than that. Quotas
 * do not show here. */
tt_status tt_dir_room(const char *path, int64_t bytes);

/* tt_path_join - "a/b" into out[size]; TT_ECONFIG when it does not fit. */
tt_status tt_path_join(char *out, size_t size, const char *folder, const char *name);

/* A file open for ranged access. Reads and writes complete fully or fail; they may run on several threads. */
typedef struct tt_file {
    int fd;
    int64_t size;   /* at opening or creation */
    char *path;     /* owned, for messages */
} tt_file;

tt_status tt_file_open(tt_file *f, const char *path);
/* tt_file_create - new file of exactly `size` bytes, whose room is reserved where the file system can do that (sparse until
 * written where not); an existing one is replaced. */
tt_status tt_file_create(tt_file *f, const char *path, int64_t size);
/* tt_file_open_write - an existing file for ranged writes. */
tt_status tt_file_open_write(tt_file *f, const char *path);
tt_status tt_file_read_at(const tt_file *f, int64_t offset, void *data, size_t bytes);
tt_status tt_file_write_at(const tt_file *f, int64_t offset, const void *data, size_t bytes);
tt_status tt_file_sync(const tt_file *f);
/* tt_file_write_back - let the system begin to write bytes [begin, end) to the disk; wait: until it has done so. So that little
 * is left for tt_file_sync; a hint, no promise. */
tt_status tt_file_write_back(const tt_file *f, int64_t begin, int64_t end, bool wait);
/* Accepts a zeroed or already closed struct. */
void tt_file_close(tt_file *f);

#endif
