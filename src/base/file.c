#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static tt_status io_error(const char *verb, const char *path)
{
    return tt_error_set(TT_EIO, "cannot %s '%s': %s", verb, path, strerror(errno));
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
        if (mkdir(part, 0777) != 0 && !(errno == EEXIST && tt_dir_exists(part)))
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
    *f = (tt_file){.fd = open(path, O_RDWR | O_CLOEXEC | flags, 0666)};
    if (f->fd < 0) return io_error(flags ? "create" : "open for writing", path);
    f->path = strdup(path);
    if (!f->path) {
        close(f->fd);
        return tt_error_set(TT_ENOMEM, "out of memory");
    }
    return TT_OK;
}

tt_status tt_file_create(tt_file *f, const char *path, int64_t size)
{
    TT_TRY(open_for_writing(f, path, O_CREAT | O_TRUNC));
    f->size = size;
    if (ftruncate(f->fd, size) == 0) return TT_OK;
    tt_status status = io_error("set the size of", path);
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
        ssize_t n = pwrite(f->fd, p, bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return io_error("write", f->path);
        p += n, offset += n, bytes -= (size_t)n;
    }
    return TT_OK;
}

tt_status tt_file_sync(const tt_file *f)
{
    return fsync(f->fd) == 0 ? TT_OK : io_error("flush", f->path);
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
    if (status == TT_OK && rename(temporary, path) != 0) status = io_error("rename into place", path);
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
