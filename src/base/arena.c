#include "base/arena.h"
#include "base/checked.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Under the address sanitizer what is not granted must not be touched. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes)   ((void)(p), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#endif

#define ALIGNMENT ((int64_t)64)
#define HUGE_PAGE ((int64_t)2 << 20)
#define SMALL     (4 * HUGE_PAGE) /* less than this is not worth huge pages */
#define GROWTH    (4 * HUGE_PAGE)

struct tt_arena {
    const char *what;
    int64_t expected; /* 0: not said */
    char *base;       /* NULL before the first grant */
    int64_t reserved; /* addresses */
    int64_t usable;   /* of them memory may be written at; what is never granted is never touched and costs nothing */
    int64_t used, peak;
};

static void fill(void *p, int64_t bytes)
{
#ifdef TT_DEBUG_MEMORY
    memset(p, 0xFF, (size_t)bytes); /* NaN in f32, f64, bf16 and f16; -1 in integers */
#else
    (void)p, (void)bytes;
#endif
}

/* Large blocks are walked from end to end: a page of 4 KiB costs a fault, and its entry in the processor's table of pages,
 * 512 times as often as one of 2 MiB. A hint; where the system does not have them nothing changes. */
static void want_huge_pages(char *p, int64_t bytes)
{
    char *begin = (char *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    char *end = (char *)(((uintptr_t)p + (uintptr_t)bytes) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (bytes >= SMALL) madvise(begin, (size_t)(end - begin), MADV_HUGEPAGE);
}

static int64_t address_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur > INT64_MAX) return INT64_MAX;
    return (int64_t)limit.rlim_cur;
}

static tt_status refuse(const char *what, int64_t bytes)
{
    int64_t limit = address_limit();
    if (limit < INT64_MAX)
        return tt_error_set(TT_ENOMEM, "%s: no %lld bytes under the limit of %lld on addresses; raise it (ulimit -v)", what,
                            (long long)bytes, (long long)limit);
    return tt_error_set(TT_ENOMEM, "%s: the system refuses %lld bytes; use more ranks or a smaller model", what, (long long)bytes);
}

tt_status tt_alloc(const char *what, int64_t count, size_t size, void **out)
{
    int64_t bytes;
    *out = NULL;
    if (count < 0 || !tt_mul_i64(count, (int64_t)size, &bytes) || bytes > INT64_MAX - ALIGNMENT)
        return tt_error_set(TT_ENOMEM, "%s: %lld elements of %zu bytes are more than memory can address", what,
                            (long long)count, size);
    bytes = tt_round_up(tt_max_i64(bytes, ALIGNMENT), ALIGNMENT);
    /* calloc leaves large blocks untouched until they are used; aligned_alloc + memset would touch every page. */
    char *raw = calloc(1, (size_t)bytes + ALIGNMENT);
    if (!raw) return refuse(what, bytes);
    char *p = raw + ALIGNMENT - ((uintptr_t)raw & (ALIGNMENT - 1));
    want_huge_pages(p, bytes);
    /* calloc aligns to 16, so at least 16 bytes lie before p: the original pointer is kept there. */
    memcpy(p - sizeof raw, &raw, sizeof raw);
    *out = p;
    return TT_OK;
}

void tt_free(void *p)
{
    if (!p) return;
    char *raw;
    memcpy(&raw, (char *)p - sizeof raw, sizeof raw);
    free(raw);
}

tt_status tt_arena_create(const char *what, tt_arena **out)
{
    *out = calloc(1, sizeof **out);
    TT_CHECK(*out, TT_ENOMEM, "%s: out of memory", what);
    (*out)->what = what;
    return TT_OK;
}

void tt_arena_destroy(tt_arena **a)
{
    if (!*a) return;
    if ((*a)->base) {
        ASAN_UNPOISON_MEMORY_REGION((*a)->base, (*a)->usable);
        munmap((*a)->base, (size_t)(*a)->reserved);
    }
    free(*a);
    *a = NULL;
}

void tt_arena_expect(tt_arena *a, int64_t bytes)
{
    TT_ASSERT(!a->base && bytes >= 0);
    a->expected = bytes;
}

/* No arena outgrows the machine's memory. A limit on addresses is shared with other arenas and all else. */
static int64_t reservation(const tt_arena *a)
{
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE), limit = address_limit();
    if (limit < INT64_MAX) bytes = tt_min_i64(bytes, a->expected > 0 ? a->expected : limit / 16);
    return tt_round_up(tt_max_i64(bytes, 1), GROWTH);
}

static tt_status reserve(tt_arena *a)
{
    int64_t bytes = reservation(a);
    void *base = mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return refuse(a->what, bytes);
    a->base = base;
    a->reserved = bytes;
    want_huge_pages(a->base + SMALL, a->reserved - SMALL);
    return TT_OK;
}

/* Systems that promise no more memory than they have count what is usable, so it grows with the need. */
static tt_status make_usable(tt_arena *a, int64_t bytes)
{
    if (!a->base) TT_TRY(reserve(a));
    int64_t usable = tt_round_up(bytes, GROWTH);
    if (bytes > a->reserved || mprotect(a->base, (size_t)usable, PROT_READ | PROT_WRITE) != 0) return refuse(a->what, bytes);
    ASAN_POISON_MEMORY_REGION(a->base + a->usable, usable - a->usable);
    a->usable = usable;
    return TT_OK;
}

tt_status tt_arena_grant(tt_arena *a, int64_t count, size_t size, void **out)
{
    int64_t bytes;
    *out = NULL;
    if (count < 0 || !tt_mul_i64(count, (int64_t)size, &bytes) || bytes > INT64_MAX / 2)
        return tt_error_set(TT_ENOMEM, "%s: %lld elements of %zu bytes are more than memory can address", a->what,
                            (long long)count, size);
    int64_t taken = tt_round_up(tt_max_i64(bytes, 1), ALIGNMENT);
    if (taken > a->usable - a->used) TT_TRY(make_usable(a, a->used + taken));
    *out = a->base + a->used;
    a->used += taken;
    a->peak = tt_max_i64(a->peak, a->used);
    ASAN_UNPOISON_MEMORY_REGION(*out, bytes);
    fill(*out, bytes);
    return TT_OK;
}

tt_status tt_arena_grant_zero(tt_arena *a, int64_t count, size_t size, void **out)
{
    TT_TRY(tt_arena_grant(a, count, size, out));
    memset(*out, 0, (size_t)count * size);
    return TT_OK;
}

tt_arena_mark tt_arena_save(const tt_arena *a)
{
    return (tt_arena_mark){a->used};
}

void tt_arena_restore(tt_arena *a, tt_arena_mark mark)
{
    int64_t bytes = a->used - mark.used;
    TT_ASSERT(bytes >= 0);
    if (bytes == 0) return; /* perhaps nothing was ever granted */
    ASAN_UNPOISON_MEMORY_REGION(a->base + mark.used, bytes); /* between grants too */
    fill(a->base + mark.used, bytes);
    ASAN_POISON_MEMORY_REGION(a->base + mark.used, bytes);
    a->used = mark.used;
}

int64_t tt_arena_peak(const tt_arena *a)
{
    return a->peak;
}
