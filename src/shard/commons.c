/* commons.c - see commons.h. Buffers are placed by first fit in one region that grows to the most that was in use at one time:
 * a step takes the same sizes in the same order as the one before, so from the second on nothing grows. */
#include "shard/commons.h"
#include "base/checked.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 256 /* bytes */

/* A buffer in use; in the order of their places. */
typedef struct extent {
    int64_t at, bytes;
} extent;

struct tt_commons {
    tt_group *group;
    tt_shared *weights, *units;
    extent *extents;
    int num, capacity;
    int64_t begun, ended; /* number of the last meeting that was */
    int64_t given;        /* number of the last meeting begun when a buffer was last given back; -1: none was */
    tt_meeting again;     /* of rule 2 */
};

tt_status tt_commons_create(tt_group *group, int64_t weights, int64_t units, tt_commons **out)
{
    bool possible;
    tt_status status;
    *out = NULL;
    TT_TRY(tt_shared_possible(group, &possible));
    if (!possible) return TT_OK;
    tt_commons *c = calloc(1, sizeof *c);
    TT_GO(tt_agree(group, "share-memory", c ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the shard table")));
    *c = (tt_commons){.group = group, .given = -1};
    TT_GO(tt_shared_create(group, "weights", weights, &c->weights));
    if (c->weights) TT_GO(tt_shared_create(group, "units in use", units, &c->units));
    if (!c->units) goto fail; /* with status TT_OK: they send messages */
    TT_GO(tt_shared_grow(c->weights, weights));
    *out = c;
    return TT_OK;
fail:
    tt_commons_destroy(&c);
    return status;
}

void tt_commons_destroy(tt_commons **commons)
{
    tt_commons *c = *commons;
    *commons = NULL;
    if (!c) return;
    tt_meeting_free(&c->again);
    tt_shared_destroy(&c->weights);
    tt_shared_destroy(&c->units);
    free(c->extents);
    free(c);
}

tt_group *tt_commons_group(const tt_commons *c)
{
    return c->group;
}

void *tt_commons_weights(const tt_commons *c)
{
    return tt_shared_base(c->weights);
}

int64_t tt_commons_bytes(const tt_commons *c)
{
    return (tt_shared_bytes(c->weights) + tt_shared_bytes(c->units)) / tt_group_size(c->group);
}

/* --- buffers ------------------------------------------------------------------------------------------------- */

/* The first gap that is wide enough: its place among the extents, and where it begins. */
static int find_gap(const tt_commons *c, int64_t bytes, int64_t *at)
{
    int i = 0;
    for (*at = 0; i < c->num && c->extents[i].at - *at < bytes; i++) *at = c->extents[i].at + c->extents[i].bytes;
    return i;
}

static tt_status make_room(tt_commons *c)
{
    if (c->num < c->capacity) return TT_OK;
    extent *grown = realloc(c->extents, (size_t)(2 * c->capacity + 8) * sizeof *grown);
    TT_CHECK(grown, TT_ENOMEM, "out of memory");
    c->extents = grown;
    c->capacity = 2 * c->capacity + 8;
    return TT_OK;
}

tt_status tt_commons_take(tt_commons *c, const char *name, int64_t bytes, void **out)
{
    int64_t at;
    *out = NULL;
    TT_TRY(make_room(c));
    bytes = tt_round_up(bytes, ALIGN);
    int i = find_gap(c, bytes, &at);
    TT_TRY(tt_shared_grow(c->units, at + bytes));
    if (c->given >= c->ended) {
        TT_TRY(tt_meeting_begin(c, name, &c->again));
        TT_TRY(tt_meeting_end(c, &c->again));
    }
    memmove(&c->extents[i + 1], &c->extents[i], (size_t)(c->num - i) * sizeof *c->extents);
    c->extents[i] = (extent){at, bytes};
    c->num++;
    *out = (char *)tt_shared_base(c->units) + at;
    return TT_OK;
}

void tt_commons_give(tt_commons *c, void *base)
{
    int64_t at = (char *)base - (char *)tt_shared_base(c->units);
    int i = 0;
    while (i < c->num && c->extents[i].at != at) i++;
    TT_ASSERT(i < c->num);
    memmove(&c->extents[i], &c->extents[i + 1], (size_t)(c->num - i - 1) * sizeof *c->extents);
    c->num--;
    c->given = c->begun;
}

/* --- meetings ------------------------------------------------------------------------------------------------ */

tt_status tt_meeting_begin(tt_commons *c, const char *name, tt_meeting *m)
{
    size_t size = (size_t)tt_group_size(c->group);
    if (!m->signs) m->signs = calloc(size, 1);
    TT_CHECK(m->signs, TT_ENOMEM, "out of memory");
    m->number = ++c->begun;
    /* What was written is about other memory than what is sent: order between the two is ours to ask for. */
    atomic_thread_fence(memory_order_release);
    return tt_allgather_begin(c->group, name, &m->signs[tt_group_rank(c->group)], m->signs, 1, &m->request);
}

tt_status tt_meeting_end(tt_commons *c, tt_meeting *m)
{
    if (!m->request) return TT_OK;
    TT_TRY(tt_request_end(&m->request));
    atomic_thread_fence(memory_order_acquire);
    c->ended = tt_max_i64(c->ended, m->number);
    return TT_OK;
}

void tt_meeting_free(tt_meeting *m)
{
    if (m->request) tt_request_end(&m->request);
    free(m->signs);
    m->signs = NULL;
}
