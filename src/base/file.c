#include "base/file.h"
#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static tt_status io_error(const char *verb, const char *path)
{
    return tt_error_set(TT_EIO, "cannot %s '%s': %s", verb, path, strerror(errno));
}

/* In front of each call that changes something: false, with errno set, when a test wants it to fail. */
static bool may(tt_file_op op, const char *path, int64_t amount)
{
    int error = tt_file_fault(op, path, amount);
    if (error) errno = error;
    return !error;
}

bool tt_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool tt_dir_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool tt_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool tt_path_inside(const char *path, const char *folder)
{
    char *p = realpath(path, NULL), *f = realpath(folder, NULL);
    size_t n = f ? strlen(f) : 0;
    bool inside = p && f && strncmp(p, f, n) == 0 && (p[n] == '/' || p[n] == '\0' || n == 1);
    free(p);
    free(f);
    return inside;
}

tt_status tt_path_join(char *out, size_t size, const char *folder, const char *name)
{
    int n = snprintf(out, size, "%s%s%s", folder, *folder && folder[strlen(folder) - 1] == '/' ? "" : "/", name);
    TT_CHECK(n >= 0 && (size_t)n < size, TT_ECONFIG, "path is too long: %.200s/%.100s", folder, name);
    return TT_OK;
}

tt_status tt_dir_create(const char *path)
{
    char part[4096];
    size_t n = strlen(path);
    TT_CHECK(n > 0 && n < sizeof part, TT_ECONFIG, "not a usable path: '%.200s'", path);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        char kept = part[i];
        part[i] = '\0';
        if (!(may(TT_FILE_CREATE, part, 1) && mkdir(part, 0777) == 0) && !(errno == EEXIST && tt_dir_exists(part)))
            return io_error("create folder", part);
        part[i] = kept;
    }
    return TT_OK;
}

tt_status tt_file_open(tt_file *f, const char *path)
{
    struct stat st;
    /* Without O_NONBLOCK a named pipe would hold us here until somebody writes; it changes nothing for files. */
    *f = (tt_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (f->fd < 0) return io_error("open", path);
    if (fstat(f->fd, &st) != 0) {
        close(f->fd);
        return io_error("inspect", path);
    }
    if (!S_ISREG(st.st_mode)) {
        close(f->fd);
        return tt_error_set(TT_EFORMAT, "'%s' is not a regular file", path);
    }
    f->size = st.st_size;
    f->path = strdup(path);
    if (!f->path) {
        close(f->fd);
        return tt_error_set(TT_ENOMEM, "out of memory");
    }
    return TT_OK;
}

static tt_status open_for_writing(tt_file *f, const char *path, int flags)
{
    *f = (tt_file){.fd = !flags || may(TT_FILE_CREATE, path, 1) ? open(path, O_RDWR | O_CLOEXEC | flags, 0666) : -1};
    if (f->fd < 0) return io_error(flags ? "create" : "open for writing", path);
    f->path = strdup(path);
    if (!f->path) {
        close(f->fd);
        return tt_error_set(TT_ENOMEM, "out of memory");
    }
    return TT_OK;
}

/* glibc's posix_fallocate writes to every block where the file system cannot reserve; the system's own call says so. */
static bool reserve(int fd, int64_t size)
{
    int r;
    if (size == 0) return true;
    do r = fallocate(fd, 0, 0, size);
    while (r != 0 && errno == EINTR);
    return r == 0 || ((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(fd, size) == 0);
}

tt_status tt_file_create(tt_file *f, const char *path, int64_t size)
{
    TT_TRY(open_for_writing(f, path, O_CREAT | O_TRUNC));
    f->size = size;
    if (reserve(f->fd, size)) return TT_OK;
    tt_status status = tt_error_set(TT_EIO, "cannot reserve %lld bytes for '%s': %s", (long long)size, path, strerror(errno));
    unlink(path);
    tt_file_close(f);
    return status;
}

tt_status tt_file_open_write(tt_file *f, const char *path)
{
    struct stat st;
    TT_TRY(open_for_writing(f, path, 0));
    if (fstat(f->fd, &st) == 0) {
        f->size = st.st_size;
        return TT_OK;
    }
    tt_status status = io_error("inspect", path);
    tt_file_close(f);
    return status;
}

tt_status tt_file_read_at(const tt_file *f, int64_t offset, void *data, size_t bytes)
{
    for (char *p = data; bytes > 0;) {
        ssize_t n = pread(f->fd, p, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error("read", f->path);
        TT_CHECK(n > 0, TT_EFORMAT, "'%s' ends at byte %lld, but %zu more bytes are needed there", f->path,
                 (long long)offset, bytes);
        p += n, offset += n, bytes -= (size_t)n;
    }
    return TT_OK;
}

tt_status tt_file_write_at(const tt_file *f, int64_t offset, const void *data, size_t bytes)
{
    for (const char *p = data; bytes > 0;) {
        ssize_t n = may(TT_FILE_WRITE, f->path, (int64_t)bytes) ? pwrite(f->fd, p, bytes, offset) : -1;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error("write", f->path);
        p += n, offset += n, bytes -= (size_t)n;
    }
    return TT_OK;
}

tt_status tt_file_write_back(const tt_file *f, int64_t begin, int64_t end, bool wait)
{
    unsigned flags = SYNC_FILE_RANGE_WRITE;
    if (wait) flags |= SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (!may(TT_FILE_SYNC, f->path, 1)) return io_error("flush", f->path);
    if (begin >= end || sync_file_range(f->fd, begin, end - begin, flags) == 0) return TT_OK;
    return errno != EIO && errno != ENOSPC ? TT_OK : io_error("flush", f->path);
}

tt_status tt_file_sync(const tt_file *f)
{
    return may(TT_FILE_SYNC, f->path, 1) && fsync(f->fd) == 0 ? TT_OK : io_error("flush", f->path);
}

void tt_file_close(tt_file *f)
{
    if (f->path) {
        close(f->fd);
        free(f->path);
    }
    *f = (tt_file){.fd = -1};
}

tt_status tt_file_read_all(const char *path, int64_t max_bytes, char **text, size_t *bytes)
{
    tt_file f;
    TT_TRY(tt_file_open(&f, path));
    tt_status status = TT_OK;
    char *data = NULL;
    if (f.size > max_bytes)
        status = tt_error_set(TT_EFORMAT, "'%s' has %lld bytes; at most %lld are accepted here", path,
                              (long long)f.size, (long long)max_bytes);
    else if (!(data = malloc((size_t)f.size + 1)))
        status = tt_error_set(TT_ENOMEM, "'%s': out of memory for %lld bytes", path, (long long)f.size);
    else
        status = tt_file_read_at(&f, 0, data, (size_t)f.size);
    if (status == TT_OK) {
        data[f.size] = '\0';
        *text = data;
        *bytes = (size_t)f.size;
    } else {
        free(data);
    }
    tt_file_close(&f);
    return status;
}

tt_status tt_file_write_all(const char *path, const void *data, size_t bytes)
{
    char temporary[4096];
    tt_file f;
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    TT_CHECK(n > 0 && (size_t)n < sizeof temporary, TT_ECONFIG, "path is too long: %.200s", path);
    TT_TRY(tt_file_create(&f, temporary, 0));
    tt_status status = tt_file_write_at(&f, 0, data, bytes);
    if (status == TT_OK) status = tt_file_sync(&f);
    tt_file_close(&f);
    if (status == TT_OK) status = tt_file_rename(temporary, path);
    if (status != TT_OK) unlink(temporary);
    return status;
}

tt_status tt_file_copy(const char *from, const char *to)
{
    char *text;
    size_t bytes;
    TT_TRY(tt_file_read_all(from, INT64_MAX - 1, &text, &bytes));
    tt_status status = tt_file_write_all(to, text, bytes);
    free(text);
    return status;
}

/* --- names ------------------------------------------------------------------------------------------------------- */

tt_status tt_dir_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error("open folder", path);
    /* Some network file systems have no such call for folders: EINVAL. */
    bool good = may(TT_FILE_SYNC, path, 1) && (fsync(fd) == 0 || errno == EINVAL);
    tt_status status = good ? TT_OK : io_error("flush folder", path);
    close(fd);
    return status;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return may(TT_FILE_REMOVE, path, 1) ? remove(path) : -1;
}

tt_status tt_dir_remove(const char *path)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) == 0 || errno == ENOENT) return TT_OK;
    return io_error("remove folder", path);
}

tt_status tt_file_rename(const char *from, const char *to)
{
    if (may(TT_FILE_RENAME, to, 1) && rename(from, to) == 0) return TT_OK;
    return tt_error_set(TT_EIO, "cannot rename '%s' to '%s': %s", from, to, strerror(errno));
}

tt_status tt_file_swap(const char *a, const char *b, bool *swapped)
{
    *swapped = may(TT_FILE_RENAME, b, 1) && renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0;
    if (*swapped || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return TT_OK;
    return tt_error_set(TT_EIO, "cannot let '%s' and '%s' trade names: %s", a, b, strerror(errno));
}

tt_status tt_file_remove(const char *path)
{
    if ((may(TT_FILE_REMOVE, path, 1) && unlink(path) == 0) || errno == ENOENT) return TT_OK;
    return io_error("remove", path);
}

tt_status tt_dir_room(const char *path, int64_t bytes)
{
    struct statvfs s;
    if (statvfs(path, &s) != 0) return io_error("inspect the file system of", path);
    double available = (double)s.f_bavail * (double)s.f_frsize;
    TT_CHECK((double)bytes <= available, TT_EIO,
             "'%s' needs %lld bytes, but its file system has %.0f free: make room, or choose another folder", path,
             (long long)bytes, available);
    return TT_OK;
}
