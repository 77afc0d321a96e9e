/* checked.h - arithmetic on sizes that come from outside, and the assertions on our own invariants. */
#ifndef TT_BASE_CHECKED_H
#define TT_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* true and *out = a op b, or false when the result does not fit. */
static inline bool tt_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool tt_add_i64(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline int64_t tt_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t tt_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t tt_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}
static inline int64_t tt_round_up(int64_t a, int64_t unit)
{
    return tt_div_up(a, unit) * unit;
}

/* tt_block_begin - first of n items that part `index` of `parts` owns; parts differ by at most one item and the
 * first n % parts are the longer ones. The end is the begin of index + 1. */
static inline int64_t tt_block_begin(int64_t n, int64_t parts, int64_t index)
{
    int64_t small = n / parts, longer = n % parts;
    return index * small + tt_min_i64(index, longer);
}

/* A broken invariant of tartan itself: say where and stop. The abort hook is told first (src/comm takes all ranks down in it,
 * so that no other is left waiting); it may return. Never used for what users or files may cause. */
void tt_assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));
void tt_set_abort_hook(void (*hook)(const char *text));

#define TT_ASSERT(cond) ((cond) ? (void)0 : tt_assert_failed(#cond, __FILE__, __LINE__))

#endif
