/* shared.c - memory that the ranks of one host share.
 *
 * Processes. The group's rank 0 makes a file in memory without a name (memfd); the others open it through /proc/PID/fd, as
 * they open recorders, and all map it. Such a file depends on no mount (containers often have 64 MB in /dev/shm), and the
 * system drops it with its last mapping, after a kill as well. A number that only this region has stands at the end of the
 * file: a process of another container may have the same PID.
 * Memory is put behind it with fallocate, which fails where a touch of the page would end the process (SIGBUS).
 *
 * Threads as ranks share memory anyway: the group's rank 0 asks its backend for some (backend.h), so that sanitizers see one
 * address for one byte.
 *
 * Pages. Weights are walked from end to end by every product, so pages of 4 KiB would cost many entries in the processor's
 * table of pages. shmem_enabled is `never` on most systems and then MADV_HUGEPAGE does nothing for a shared file;
 * MADV_COLLAPSE (Linux 6.1) works all the same, on memory that is there already. It is tried piece by piece right behind
 * fallocate, so that the small pages it frees serve for the next piece. Where it fails pages stay small.
 *
 * Not here: which host's memory a page lies in (NUMA). A rank provides an equal part of each growth, not what it uses most.
 */
#include "comm/shared.h"

#include "base/checked.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/inject.h"
#include "comm/wire.h" /* which host this is */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define HUGE_PAGE ((int64_t)2 << 20)
#define PIECE     ((int64_t)32 << 20) /* allocated and made huge at a time */

struct tt_shared {
    tt_group *group;
    const char *name;
    int64_t most, backed;
    unsigned char *base;
    void *addresses; /* of processes: what was reserved, to align base in */
    size_t num_addresses;
    int fd; /* of processes, else -1 */
};

enum { UNWILLING, WILLING, UNCLEAR };

/* What a rank tells the others. All but the first two lines is the group's rank 0's. */
typedef struct card {
    char host[TT_RECORD_HOST], boot[40];
    int32_t willing;
    char path[64];
    uint64_t mark;
    void *block; /* threads */
} card;

static bool are_threads(const tt_group *g)
{
    return g->comm->link.backend->share != NULL;
}

/* --- making and finding it ----------------------------------------------------------------------------------- */

static int64_t mark_at(const tt_shared *s)
{
    return tt_round_up(s->most, HUGE_PAGE);
}

static tt_status make_file(tt_shared *s, card *mine)
{
    struct rlimit limit;
    /* Beyond it the system sends a signal that ends the process. */
    TT_CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY, TT_EIO,
             "the size of files is limited (ulimit -f), and so is memory that is shared");
    s->fd = memfd_create("tartan-shared", MFD_CLOEXEC);
    TT_CHECK(s->fd >= 0, TT_EIO, "%s: no file in memory: %s", s->name, strerror(errno));
    if (getrandom(&mine->mark, sizeof mine->mark, 0) != sizeof mine->mark)
        mine->mark = (uint64_t)getpid() << 32 ^ (uint64_t)(tt_seconds() * 1e9);
    TT_CHECK(ftruncate(s->fd, mark_at(s) + (int64_t)sizeof mine->mark) == 0 &&
                 pwrite(s->fd, &mine->mark, sizeof mine->mark, mark_at(s)) == sizeof mine->mark,
             TT_ENOMEM, "%s: no file in memory of up to %lld bytes: %s", s->name, (long long)s->most, strerror(errno));
    snprintf(mine->path, sizeof mine->path, "/proc/%d/fd/%d", (int)getpid(), s->fd);
    return TT_OK;
}

static tt_status make(tt_shared *s, card *mine)
{
    if (s->group->rank != 0) return TT_OK;
    if (!are_threads(s->group)) return make_file(s, mine);
    return s->group->comm->link.backend->share(s->group->comm->link.self, (size_t)s->most, s->group->size, &mine->block);
}

static tt_status open_file(tt_shared *s, const card *first)
{
    uint64_t mark = 0;
    if (s->group->rank == 0) return TT_OK;
    TT_CHECK(memchr(first->path, 0, sizeof first->path) && first->path[0], TT_EIO, "rank %d made no file", s->group->ranks[0]);
    s->fd = open(first->path, O_RDWR | O_CLOEXEC);
    TT_CHECK(s->fd >= 0, TT_EIO, "%s of rank %d cannot be opened: %s", first->path, s->group->ranks[0], strerror(errno));
    TT_CHECK(pread(s->fd, &mark, sizeof mark, mark_at(s)) == sizeof mark && mark == first->mark, TT_EIO,
             "%s is not the memory of rank %d: another container's process?", first->path, s->group->ranks[0]);
    return TT_OK;
}

static tt_status map_file(tt_shared *s)
{
    s->num_addresses = (size_t)(mark_at(s) + HUGE_PAGE);
    s->addresses = mmap(NULL, s->num_addresses, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->addresses == MAP_FAILED) s->addresses = NULL;
    TT_CHECK(s->addresses, TT_ENOMEM, "%s: no %zu addresses: %s", s->name, s->num_addresses, strerror(errno));
    unsigned char *base = (unsigned char *)(((uintptr_t)s->addresses + (uintptr_t)HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    void *at = mmap(base, (size_t)mark_at(s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, s->fd, 0);
    TT_CHECK(at != MAP_FAILED, TT_ENOMEM, "%s: %lld bytes of the memory of rank %d cannot be mapped: %s", s->name,
             (long long)s->most, s->group->ranks[0], strerror(errno));
    s->base = base;
    madvise(base, (size_t)mark_at(s), MADV_HUGEPAGE);
    return TT_OK;
}

static tt_status find(tt_shared *s, const card *first)
{
    if (are_threads(s->group)) {
        s->base = first->block;
        TT_CHECK(s->base, TT_ENOMEM, "%s: rank %d has no memory for it", s->name, s->group->ranks[0]);
        return TT_OK;
    }
    TT_TRY(open_file(s, first));
    return map_file(s);
}

/* --- life ---------------------------------------------------------------------------------------------------- */

void tt_shared_destroy(tt_shared **shared)
{
    tt_shared *s = *shared;
    *shared = NULL;
    if (!s) return;
    if (are_threads(s->group) && s->base) s->group->comm->link.backend->unshare(s->group->comm->link.self, s->base);
    if (s->addresses) munmap(s->addresses, s->num_addresses);
    if (s->fd >= 0) close(s->fd);
    free(s);
}

static tt_status create(tt_group *g, const char *name, int64_t most, const card *about, card *cards, tt_shared **out)
{
    card mine = *about;
    tt_shared *s = *out = calloc(1, sizeof *s);
    tt_status status = s ? TT_OK : tt_error_set(TT_ENOMEM, "%s: out of memory", name);
    if (s) {
        *s = (tt_shared){.group = g, .name = name, .most = tt_max_i64(most, 1), .fd = -1};
        status = make(s, &mine);
    }
    char text[256] = "";
    if (status != TT_OK) snprintf(text, sizeof text, "%s", tt_error_text());
    TT_TRY(tt_allgather(g, "share-memory", &mine, cards, sizeof mine));
    if (status != TT_OK) tt_error_set(status, "%s", text);
    else status = find(s, &cards[0]);
    return tt_agree(g, "share-memory", status);
}

/* A region, or the reason why there is none. */
static tt_status create_agreed(tt_group *g, const char *name, int64_t most, const card *about, tt_shared **out)
{
    *out = NULL;
    card *cards = calloc((size_t)g->size, sizeof *cards);
    tt_status status = cards ? create(g, name, most, about, cards, out) : tt_error_set(TT_ENOMEM, "%s: out of memory", name);
    free(cards);
    if (status != TT_OK) tt_shared_destroy(out);
    return status;
}

/* --- whether it is possible ---------------------------------------------------------------------------------- */

static card introduce(void)
{
    const char *wanted = getenv("TARTAN_SHARED");
    tt_place place;
    card c = {.willing = UNCLEAR};
    if (!wanted || !*wanted || strcmp(wanted, "1") == 0) c.willing = WILLING;
    else if (strcmp(wanted, "0") == 0) c.willing = UNWILLING;
    tt_place_find(&place);
    memcpy(c.host, place.host, sizeof c.host);
    memcpy(c.boot, place.boot, sizeof c.boot);
    return c;
}

/* Whether all want to and are on one host, which nobody needs to be told. */
static tt_status expect(tt_group *g, const card *mine, bool *expected)
{
    card *cards = calloc((size_t)g->size, sizeof *cards);
    TT_CHECK(cards, TT_ENOMEM, "no memory to share memory");
    tt_status status = tt_allgather(g, "share-memory", mine, cards, sizeof *cards);
    *expected = status == TT_OK;
    for (int r = 0; r < g->size && status == TT_OK; r++)
        if (cards[r].willing == UNCLEAR)
            status = tt_error_set(TT_ECONFIG, "TARTAN_SHARED of rank %d is neither 0 nor 1; 0: ranks of a host send messages",
                                  g->ranks[r]);
    for (int r = 0; r < g->size && *expected; r++)
        *expected = cards[r].willing && !memcmp(cards[r].host, cards[0].host, sizeof cards->host) &&
                    !memcmp(cards[r].boot, cards[0].boot, sizeof cards->boot);
    free(cards);
    return status;
}

/* A plan for memory that is shared would not hold when the regions turn out to find no addresses. */
static tt_status check_addresses(void)
{
    struct rlimit limit;
    TT_CHECK(getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY, TT_EIO,
             "addresses are limited (ulimit -v), and memory that is shared takes many");
    return TT_OK;
}

tt_status tt_shared_possible(tt_group *g, bool *possible)
{
    *possible = g->shares == TT_SHARES;
    if (g->size == 1 || g->shares != TT_SHARES_UNKNOWN) return TT_OK;
    bool expected = false;
    card mine = introduce();
    tt_shared *trial = NULL;
    TT_TRY(expect(g, &mine, &expected));
    if (expected) {
        tt_status status = tt_agree(g, "share-memory", check_addresses());
        if (status == TT_OK) status = create_agreed(g, "a region to try", 1, &mine, &trial);
        if (g->comm->broken) return status;
        if (status != TT_OK) tt_info("ranks of group %s share no memory and send messages instead: %s", g->name, tt_error_text());
        g->comm->agreed = false; /* no failure of the job */
        *possible = status == TT_OK;
        tt_shared_destroy(&trial);
    }
    g->shares = *possible ? TT_SHARES : TT_SHARES_NOT;
    return TT_OK;
}

tt_status tt_shared_create(tt_group *g, const char *name, int64_t most, tt_shared **out)
{
    bool possible;
    *out = NULL;
    TT_TRY(tt_shared_possible(g, &possible));
    if (!possible) return TT_OK;
    TT_CHECK(most >= 0 && most < INT64_MAX / 4, TT_ENOMEM, "%s: %lld bytes are more than memory can address", name,
             (long long)most);
    tt_status status = create_agreed(g, name, most, &(card){0}, out);
    if (status != TT_ENOMEM || g->comm->broken) return status;
    tt_info("ranks of group %s share no memory and send messages instead: %s (ulimit -v)", g->name, tt_error_text());
    g->comm->agreed = false; /* no failure of the job */
    g->shares = TT_SHARES_NOT;
    return TT_OK;
}

/* --- memory behind it ---------------------------------------------------------------------------------------- */

/* [from, to) of the file. Pieces end at multiples of their size, so that what is made huge is whole huge pages. */
static tt_status allocate(tt_shared *s, int64_t from, int64_t to)
{
    TT_TRY(tt_inject(s->group->comm, "grow-shared"));
    for (int64_t at = from, bytes; at < to && s->fd >= 0; at += bytes) {
        bytes = tt_min_i64(PIECE - at % PIECE, to - at);
        int code;
        do code = fallocate(s->fd, 0, at, bytes);
        while (code != 0 && errno == EINTR);
        TT_CHECK(code == 0, TT_ENOMEM,
                 "%s: the system refuses %lld bytes to be shared by the ranks of a host: %s; use more hosts or a smaller model",
                 s->name, (long long)(to - at), strerror(errno));
        if (bytes >= HUGE_PAGE) madvise(s->base + at, (size_t)bytes, MADV_COLLAPSE);
    }
    return TT_OK;
}

tt_status tt_shared_grow(tt_shared *s, int64_t bytes)
{
    if (bytes <= s->backed) return TT_OK;
    TT_ASSERT(bytes <= s->most);
    int64_t unit = bytes - s->backed >= 4 * HUGE_PAGE ? HUGE_PAGE : sysconf(_SC_PAGESIZE);
    int64_t end = tt_min_i64(tt_round_up(bytes, unit), mark_at(s)), units = tt_div_up(end - s->backed, unit);
    int64_t mine = s->backed + unit * tt_block_begin(units, s->group->size, s->group->rank);
    int64_t next = s->backed + unit * tt_block_begin(units, s->group->size, s->group->rank + 1);
    TT_TRY(tt_agree(s->group, "grow-shared", allocate(s, mine, tt_min_i64(next, end))));
    s->backed = end;
    return TT_OK;
}

void *tt_shared_base(const tt_shared *s)
{
    return s->base;
}

int64_t tt_shared_bytes(const tt_shared *s)
{
    return s->backed;
}
