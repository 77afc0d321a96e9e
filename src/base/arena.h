/* arena.h - step memory: granted in order, returned in reverse order, all at once.
 *
 *   tt_arena_mark m = tt_arena_save(a);   ... grants ...   tt_arena_restore(a, m);
 *
 * An arena is one run of addresses, reserved with its first grant: as many as the machine has memory. So grants lie end to end
 * whatever was granted before, and what it takes is what it has held at its fullest: addresses that were never granted have no
 * memory behind them, and those that were keep theirs for the next step. Grants are aligned to 64 bytes. In test builds (TT_DEBUG_MEMORY) memory is filled with
 * NaN bytes on grant and on release, so that a value nobody wrote, or one read after its time, shows up as NaN; the address
 * sanitizer reports every access beside what is granted.
 */
#ifndef TT_BASE_ARENA_H
#define TT_BASE_ARENA_H

#include "tartan/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct tt_arena tt_arena;
typedef struct tt_arena_mark {
    int64_t used;
} tt_arena_mark;

/* `what` is a static string for messages and tables. */
tt_status tt_arena_create(const char *what, tt_arena **out);
void tt_arena_destroy(tt_arena **a);

/* tt_arena_expect - what it will hold at most. Before the first grant. Only a limit on addresses (ulimit -v) makes a difference:
 * with one so many are reserved, else a sixteenth of the limit. */
void tt_arena_expect(tt_arena *a, int64_t bytes);

/* tt_arena_grant - count elements of `size` bytes each, uninitialised; zero counts give a valid pointer.
 * TT_ENOMEM with the sizes when the product overflows or the system refuses. */
tt_status tt_arena_grant(tt_arena *a, int64_t count, size_t size, void **out);
/* tt_arena_grant_zero - the same, zeroed. */
tt_status tt_arena_grant_zero(tt_arena *a, int64_t count, size_t size, void **out);

tt_arena_mark tt_arena_save(const tt_arena *a);
void tt_arena_restore(tt_arena *a, tt_arena_mark mark);

/* Highest number of bytes granted at one time since creation. */
int64_t tt_arena_peak(const tt_arena *a);

/* tt_alloc - a long-lived block (parameters, optimizer state), 64-byte aligned, zeroed; free with tt_free.
 * Pages that are never touched cost nothing. TT_ENOMEM names `what` and the bytes. */
tt_status tt_alloc(const char *what, int64_t count, size_t size, void **out);
void tt_free(void *p);

#endif
