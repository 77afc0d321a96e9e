#include "train/hosts.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    NAME_BYTES = 65,     /* of a host: HOST_NAME_MAX and a NUL */
    PATIENCE_MS = 3000,  /* for a new file to show up: caches of network file systems know a folder for some seconds */
    MAX_FILES = 1 << 16, /* of a model */
};

typedef char host_name[NAME_BYTES];

typedef struct hosts {
    tt_comm *comm;
    host_name *names; /* [size], by rank */
    bool several;
} hosts;

/* --- who is where --------------------------------------------------------------------------------------------- */

static void find_name(const char *given, host_name out)
{
    memset(out, 0, NAME_BYTES);
    if (given)
        snprintf(out, NAME_BYTES, "%s", given);
    else if (gethostname(out, NAME_BYTES - 1) != 0)
        snprintf(out, NAME_BYTES, "?");
}

static tt_status find_hosts(tt_comm *comm, const char *given, hosts *h)
{
    host_name mine;
    int size = tt_comm_size(comm);
    *h = (hosts){.comm = comm};
    find_name(given, mine);
    h->names = calloc((size_t)size, sizeof *h->names);
    tt_status status = h->names ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the names of %d hosts", size);
    status = tt_agree(tt_comm_world(comm), "hosts", status);
    if (status == TT_OK) status = tt_allgather(tt_comm_world(comm), "hosts", mine, h->names, sizeof mine);
    for (int r = 1; r < size && status == TT_OK; r++) h->several |= strcmp(h->names[r], h->names[0]) != 0;
    return status;
}

/* "host 'b' (rank 2)" */
typedef struct label {
    char text[NAME_BYTES + 32];
} label;

static label label_of(const hosts *h, int rank)
{
    label l;
    snprintf(l.text, sizeof l.text, "host '%s' (rank %d)", h->names[rank], rank);
    return l;
}

static label me(const hosts *h)
{
    return label_of(h, tt_comm_rank(h->comm));
}

static tt_status of_first(const hosts *h, void *data, size_t bytes)
{
    return tt_broadcast(tt_comm_world(h->comm), "hosts", 0, data, bytes);
}

static tt_status agree(const hosts *h, tt_status status)
{
    return tt_agree(tt_comm_world(h->comm), "hosts", status);
}

/* --- one path ------------------------------------------------------------------------------------------------- */

/* What tells a file from another that has the same name, on whatever host. */
typedef struct identity {
    int64_t present, size, seconds, nanoseconds, inode;
} identity;

static identity identify(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return (identity){0};
    return (identity){1, st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (int64_t)st.st_ino};
}

/* Present on all or on none. *own: some rank sees another file than rank 0. */
static tt_status check_present(const hosts *h, const char *key, const char *path, bool *present, bool *own)
{
    identity mine = identify(path), first = mine;
    TT_TRY(of_first(h, &first, sizeof first));
    tt_status status = TT_OK;
    if (mine.present != first.present)
        status = tt_error_set(TT_ECONFIG,
                              "%s: %s has no '%s', which %s has; put it on a file system that all hosts share, or copy it to "
                              "each host",
                              key, mine.present ? label_of(h, 0).text : me(h).text, path,
                              mine.present ? me(h).text : label_of(h, 0).text);
    TT_TRY(agree(h, status));
    int64_t differs = memcmp(&mine, &first, sizeof mine) != 0;
    TT_TRY(tt_allreduce_max_i64(tt_comm_world(h->comm), "hosts", &differs, 1));
    *present = first.present;
    *own = differs;
    return TT_OK;
}

/* --- contents ------------------------------------------------------------------------------------------------- */

/* A file's size and a hash of its first bytes; a size of -1: it cannot be read. */
typedef struct content {
    char name[256];
    int64_t size;
    uint64_t hash;
} content;

static uint64_t hash_bytes(const tt_file *f, int64_t bytes)
{
    enum { PIECE = 1 << 16 };
    uint64_t hash = 0;
    XXH64_state_t *state = XXH64_createState();
    char *piece = malloc(PIECE);
    if (state && piece) XXH64_reset(state, 0);
    for (int64_t at = 0; state && piece && at < bytes; at += PIECE) {
        size_t n = (size_t)(bytes - at < PIECE ? bytes - at : PIECE);
        if (tt_file_read_at(f, at, piece, n) != TT_OK) break;
        XXH64_update(state, piece, n);
    }
    if (state && piece) hash = XXH64_digest(state);
    XXH64_freeState(state);
    free(piece);
    return hash;
}

/* header: of a safetensors file, which begins with its length. */
static void read_content(const char *path, bool header, content *c)
{
    tt_file f;
    uint64_t length = 0;
    c->size = -1;
    c->hash = 0;
    if (tt_file_open(&f, path) != TT_OK) return;
    c->size = f.size;
    int64_t bytes = f.size;
    if (header && f.size >= 8 && tt_file_read_at(&f, 0, &length, 8) == TT_OK && length <= TT_ST_MAX_HEADER &&
        (int64_t)length + 8 < bytes)
        bytes = (int64_t)length + 8;
    c->hash = hash_bytes(&f, bytes);
    tt_file_close(&f);
}

/* --- the model ------------------------------------------------------------------------------------------------ */

typedef struct listing {
    int64_t num;
    content *files; /* by name */
} listing;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const content *)a)->name, ((const content *)b)->name);
}

static bool is_weights(const char *name)
{
    size_t n = strlen(name), m = strlen(".safetensors");
    return n > m && strcmp(name + n - m, ".safetensors") == 0;
}

static tt_status list_file(const char *folder, const char *name, listing *l)
{
    char path[4096];
    bool weights = is_weights(name);
    if (!weights && strcmp(name, "config.json") != 0 && strcmp(name, TT_ST_INDEX_FILE) != 0) return TT_OK;
    TT_CHECK(l->num < MAX_FILES, TT_EFORMAT, "'%s' has more than %d files of weights", folder, MAX_FILES);
    if ((l->num & (l->num - 1)) == 0) { /* a power of 2: full */
        content *grown = realloc(l->files, (size_t)(l->num ? 2 * l->num : 1) * sizeof *grown);
        TT_CHECK(grown, TT_ENOMEM, "out of memory for the files of '%s'", folder);
        l->files = grown;
    }
    content *c = &l->files[l->num++];
    *c = (content){0};
    snprintf(c->name, sizeof c->name, "%s", name);
    TT_TRY(tt_path_join(path, sizeof path, folder, name));
    read_content(path, weights, c);
    return TT_OK;
}

static tt_status list_model(const char *folder, listing *l)
{
    const struct dirent *entry;
    tt_status status = TT_OK;
    *l = (listing){0};
    DIR *dir = opendir(folder);
    TT_CHECK(dir, TT_EIO, "cannot open folder '%s': %s", folder, strerror(errno));
    while (status == TT_OK && (entry = readdir(dir))) status = list_file(folder, entry->d_name, l);
    closedir(dir);
    if (l->num > 0) qsort(l->files, (size_t)l->num, sizeof *l->files, by_name);
    return status;
}

static tt_status lacks_file(label without, label with, const char *folder, const char *name)
{
    return tt_error_set(TT_EMISMATCH,
                        "the copies of model '%s' differ: %s has no '%s', which %s has; copy the folder again, or put it on a "
                        "file system that all hosts share",
                        folder, without.text, name, with.text);
}

/* This rank's files against those of rank 0, both by name. */
static tt_status compare_models(const hosts *h, const char *folder, const listing *mine, const listing *first)
{
    for (int64_t i = 0, k = 0; i < mine->num || k < first->num; i++, k++) {
        const content *a = k < first->num ? &first->files[k] : NULL, *b = i < mine->num ? &mine->files[i] : NULL;
        int order = !a ? 1 : !b ? -1 : strcmp(a->name, b->name);
        if (order > 0) return lacks_file(label_of(h, 0), me(h), folder, b->name);
        if (order < 0) return lacks_file(me(h), label_of(h, 0), folder, a->name);
        TT_CHECK(a->size == b->size, TT_EMISMATCH,
                 "the copies of model '%s' differ: '%s' has %lld bytes on %s and %lld on %s; copy the folder again, or put it "
                 "on a file system that all hosts share",
                 folder, a->name, (long long)a->size, label_of(h, 0).text, (long long)b->size, me(h).text);
        TT_CHECK(a->hash == b->hash, TT_EMISMATCH,
                 "the copies of model '%s' differ: '%s' has %s on %s than on %s; copy the folder again, or put it on a file "
                 "system that all hosts share",
                 folder, a->name, is_weights(a->name) ? "another header" : "other contents", me(h).text,
                 label_of(h, 0).text);
    }
    return TT_OK;
}

static tt_status compare_copies(const hosts *h, const char *folder)
{
    listing mine = {0}, first = {0};
    tt_status status;
    TT_GO(agree(h, list_model(folder, &mine)));
    first.num = mine.num;
    TT_GO(of_first(h, &first.num, sizeof first.num));
    first.files = calloc((size_t)first.num + 1, sizeof *first.files);
    status = first.files ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the files of '%s'", folder);
    TT_GO(agree(h, status));
    if (tt_comm_rank(h->comm) == 0 && mine.num > 0) memcpy(first.files, mine.files, (size_t)mine.num * sizeof *mine.files);
    if (first.num > 0) TT_GO(of_first(h, first.files, (size_t)first.num * sizeof *first.files));
    TT_GO(agree(h, compare_models(h, folder, &mine, &first)));
    tt_info("model '%s': hosts have copies of their own, equal in config.json and in the names, sizes and headers of %lld files",
            folder, (long long)first.num);
fail:
    free(mine.files);
    free(first.files);
    return status;
}

static tt_status check_model(const hosts *h, const char *folder)
{
    char path[4096];
    bool present, own;
    TT_TRY(agree(h, tt_path_join(path, sizeof path, folder, "config.json")));
    TT_TRY(check_present(h, "model_name_or_path", path, &present, &own));
    return present && own ? compare_copies(h, folder) : TT_OK;
}

/* --- the output ----------------------------------------------------------------------------------------------- */

/* What rank 0 has made. */
typedef struct probe {
    int64_t made; /* 0: it could not, which those who write there will tell */
    int64_t up;   /* in the folder so many steps above the output */
    char name[64];
} probe;

/* "a/b" to "a", "a" to ".", "/a" to "/". */
static void go_up(char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    while (n > 1 && path[n - 1] == '/') n--;
    if (n == 0) path[n++] = '.';
    path[n] = '\0';
}

static void make_probe(const char *output, probe *p, char *path, size_t size)
{
    char folder[4096];
    struct timespec t;
    *p = (probe){0};
    if (snprintf(folder, sizeof folder, "%s", output) >= (int)sizeof folder || !*folder) return;
    for (; !tt_dir_exists(folder); p->up++) {
        if (!strcmp(folder, ".") || !strcmp(folder, "/")) return;
        go_up(folder);
    }
    clock_gettime(CLOCK_REALTIME, &t);
    snprintf(p->name, sizeof p->name, ".tartan-probe-%lld-%llx", (long long)getpid(),
             (long long)t.tv_sec * 1000000000 + t.tv_nsec);
    if (tt_path_join(path, size, folder, p->name) != TT_OK) return;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return;
    close(fd);
    p->made = 1;
}

static tt_status see_probe(const hosts *h, const char *output, const probe *p)
{
    char folder[4096], path[4200];
    int n = snprintf(folder, sizeof folder, "%s", output), fd, reason = 0;
    TT_CHECK(n >= 0 && (size_t)n < sizeof folder, TT_ECONFIG, "path is too long: %.200s", output);
    for (int64_t i = 0; i < p->up; i++) go_up(folder);
    TT_TRY(tt_path_join(path, sizeof path, folder, p->name));
    for (int waited = 0;; waited += 50) {
        fd = open(path, O_WRONLY | O_CLOEXEC);
        reason = errno;
        if (fd >= 0 || reason != ENOENT || waited >= PATIENCE_MS) break;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    if (fd >= 0) {
        close(fd);
        return TT_OK;
    }
    TT_CHECK(reason == ENOENT, TT_ECONFIG,
             "output '%s': %s cannot write a file that %s has made in '%s': %s; every rank writes its own part of the results, "
             "so give all hosts the right to write there",
             output, me(h).text, label_of(h, 0).text, folder, strerror(reason));
    return tt_error_set(TT_ECONFIG,
                        "output '%s': %s does not see the file that %s has made in '%s'; every rank writes its own part of the "
                        "results, so name a folder on a file system that all hosts share",
                        output, me(h).text, label_of(h, 0).text, folder);
}

static tt_status check_output(const hosts *h, const char *output)
{
    probe p = {0};
    char path[4200];
    bool maker = tt_comm_rank(h->comm) == 0;
    if (maker) make_probe(output, &p, path, sizeof path);
    tt_status status = of_first(h, &p, sizeof p);
    if (status == TT_OK && p.made) status = agree(h, maker ? TT_OK : see_probe(h, output, &p));
    if (maker && p.made) unlink(path);
    return status;
}

/* --- together ------------------------------------------------------------------------------------------------- */

static tt_status check(const hosts *h, const tt_host_view *v)
{
    bool present, own;
    if (!h->several) return TT_OK;
    if (v->model) TT_TRY(check_model(h, v->model));
    if (v->data) TT_TRY(check_present(h, "dataset_name", v->data, &present, &own));
    return v->output ? check_output(h, v->output) : TT_OK;
}

tt_status tt_hosts_check(tt_comm *comm, const tt_host_view *v)
{
    hosts h;
    tt_status status = find_hosts(comm, v->host, &h);
    if (status == TT_OK) status = check(&h, v);
    free(h.names);
    return status;
}

static tt_status name_difference(const hosts *h, const char *const *paths, int num)
{
    for (int i = 0; i < num; i++) {
        content mine = {0}, first;
        if (paths[i]) read_content(paths[i], false, &mine);
        first = mine;
        TT_TRY(of_first(h, &first, sizeof first));
        tt_status status = TT_OK;
        if (mine.size != first.size || mine.hash != first.hash)
            status = tt_error_set(TT_EDATA,
                                  "'%s' has other contents on %s than on %s; every rank prepares the data itself, so copy it "
                                  "again, or put it on a file system that all hosts share",
                                  paths[i], me(h).text, label_of(h, 0).text);
        TT_TRY(agree(h, status));
    }
    return TT_OK;
}

static tt_status check_data(const hosts *h, uint64_t fingerprint, const char *const *paths, int num)
{
    uint64_t first = fingerprint;
    if (!h->several) return TT_OK;
    TT_TRY(of_first(h, &first, sizeof first));
    int64_t differs = first != fingerprint;
    TT_TRY(tt_allreduce_max_i64(tt_comm_world(h->comm), "hosts", &differs, 1));
    if (!differs) return TT_OK;
    TT_TRY(name_difference(h, paths, num));
    tt_status status = TT_OK;
    if (first != fingerprint)
        status = tt_error_set(TT_EDATA,
                              "the data is prepared in another way on %s than on %s, from equal files; are both the same "
                              "build of tartan?",
                              me(h).text, label_of(h, 0).text);
    return agree(h, status);
}

tt_status tt_hosts_check_data(tt_comm *comm, const tt_host_view *v, uint64_t fingerprint, const char *const *paths,
                              int num)
{
    hosts h;
    tt_status status = find_hosts(comm, v->host, &h);
    if (status == TT_OK) status = check_data(&h, fingerprint, paths, num);
    free(h.names);
    return status;
}
