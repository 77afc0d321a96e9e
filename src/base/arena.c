#include "base/arena.h"
#include "base/checked.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT   64
#define HUGE_PAGE ((int64_t)2 << 20)
#define BLOCK_BYTES ((size_t)1 << 20)

typedef struct block {
    char *base;
    size_t size;
} block;

struct tt_arena {
    const char *what;
    block *blocks;
    int num_blocks;
    int current;   /* block that grants come from */
    size_t used;   /* bytes granted in it */
    size_t total;  /* bytes granted in all blocks */
    size_t peak;
};

static void fill(void *p, size_t bytes)
{
#ifdef TT_DEBUG_MEMORY
    memset(p, 0xFF, bytes); /* NaN in f32, f64, bf16 and f16; -1 in integers */
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
    if (bytes >= 4 * HUGE_PAGE) madvise(begin, (size_t)(end - begin), MADV_HUGEPAGE);
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
    if (!raw)
        return tt_error_set(TT_ENOMEM, "%s: the system refuses %lld bytes; use more ranks or a smaller model",
                            what, (long long)bytes);
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
    for (int i = 0; i < (*a)->num_blocks; i++) tt_free((*a)->blocks[i].base);
    free((*a)->blocks);
    free(*a);
    *a = NULL;
}

static tt_status add_block(tt_arena *a, size_t bytes)
{
    void *base;
    size_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
    TT_TRY(tt_alloc(a->what, (int64_t)size, 1, &base));
    block *grown = realloc(a->blocks, (size_t)(a->num_blocks + 1) * sizeof *grown);
    if (!grown) {
        tt_free(base);
        return tt_error_set(TT_ENOMEM, "%s: out of memory", a->what);
    }
    a->blocks = grown;
    a->blocks[a->num_blocks++] = (block){base, size};
    return TT_OK;
}

tt_status tt_arena_book(tt_arena *a, int64_t bytes)
{
    TT_ASSERT(a->num_blocks == 0 && bytes >= 0);
    return add_block(a, (size_t)bytes);
}

tt_status tt_arena_grant(tt_arena *a, int64_t count, size_t size, void **out)
{
    int64_t wanted;
    *out = NULL;
    if (count < 0 || !tt_mul_i64(count, (int64_t)size, &wanted) || wanted > INT64_MAX - ALIGNMENT)
        return tt_error_set(TT_ENOMEM, "%s: %lld elements of %zu bytes are more than memory can address", a->what,
                            (long long)count, size);
    size_t bytes = (size_t)tt_round_up(tt_max_i64(wanted, ALIGNMENT), ALIGNMENT);
    /* Blocks that are too small for this grant are passed over; they serve again after a restore. */
    while (a->current < a->num_blocks && a->used + bytes > a->blocks[a->current].size) {
        a->current++;
        a->used = 0;
    }
    if (a->current == a->num_blocks) TT_TRY(add_block(a, bytes));
    *out = a->blocks[a->current].base + a->used;
    a->used += bytes;
    a->total += bytes;
    if (a->total > a->peak) a->peak = a->total;
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
    return (tt_arena_mark){a->current, a->used, a->total};
}

/* An empty arena that took several blocks gets one instead, for the most it has held: else blocks that came for small uses stay
 * beside those for larger ones, whose grants they are too small for. Refused, it has none, and the next grant asks again. */
static void join_blocks(tt_arena *a)
{
    if (a->num_blocks > 1) {
        while (a->num_blocks > 0) tt_free(a->blocks[--a->num_blocks].base);
        if (add_block(a, a->peak) != TT_OK) a->num_blocks = 0;
    }
    a->current = 0;
    a->used = 0;
}

void tt_arena_restore(tt_arena *a, tt_arena_mark mark)
{
    TT_ASSERT(mark.total <= a->total);
    for (int i = mark.block; i < a->num_blocks && i <= a->current; i++) {
        size_t from = i == mark.block ? mark.used : 0;
        size_t to = i == a->current ? a->used : a->blocks[i].size;
        if (to > from) fill(a->blocks[i].base + from, to - from);
    }
    a->current = mark.block;
    a->used = mark.used;
    a->total = mark.total;
    if (a->total == 0) join_blocks(a);
}

size_t tt_arena_peak(const tt_arena *a)
{
    return a->peak;
}

size_t tt_arena_held(const tt_arena *a)
{
    size_t bytes = 0;
    for (int i = 0; i < a->num_blocks; i++) bytes += a->blocks[i].size;
    return bytes;
}
