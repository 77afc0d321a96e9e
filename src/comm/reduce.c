/* reduce.c - sums (and one maximum) in rank order.
 *
 * Every rank receives all ranks' pieces of what it is to hold and combines them itself, rank 0's first, so
 * the bits of a result depend on neither the backend, nor timing, nor how the exchange is cut. Elements are
 * of the caller's type throughout: f32 is summed in f32.
 *
 * Memory: pieces come in rounds whose size is bounded by the comm's scratch, allocated once. There are two
 * halves, so one round is on its way while the one before is being added:
 *
 *        half 0   | receive 0 | add 0 | receive 2     | add 2 ...
 *        half 1               | receive 1     | add 1 | ...
 *
 * Each rank sends (size - 1) * count elements in tt_reduce_scatter (the least possible) and as many in
 * tt_allreduce, which is meant for small counts. Adding is not split over threads: it runs at memory speed,
 * faster than the links. Where ranks see each other's memory nothing is sent, and then it is (tt_add_in_order).
 */
#include "comm/comm.h"

#include "base/arena.h"
#include "base/checked.h"
#include "comm/shared.h"

#include <string.h>

/* Elements summed at a time, in registers and the first cache. */
#define BLOCK 512

/* into[i] (+)= pieces[0][i] o pieces[1][i] o ..., from <= i < to; false when a result does not fit. */
typedef bool (*fold_fn)(void *into, bool add, const void *const *pieces, int num, int64_t from, int64_t to);

#define FOLD_FLOAT(NAME, TYPE)                                                                               \
    static bool NAME(void *into_, bool add, const void *const *pieces, int num, int64_t from, int64_t to)    \
    {                                                                                                        \
        TYPE sum[BLOCK];                                                                                     \
        for (int64_t at = from; at < to; at += BLOCK) {                                                      \
            int64_t n = tt_min_i64(BLOCK, to - at);                                                          \
            TYPE *into = (TYPE *)into_ + at;                                                                 \
            memcpy(sum, (const TYPE *)pieces[0] + at, (size_t)n * sizeof *sum);                              \
            for (int r = 1; r < num; r++) {                                                                  \
                const TYPE *piece = (const TYPE *)pieces[r] + at;                                            \
                _Pragma("omp simd") for (int64_t i = 0; i < n; i++) sum[i] += piece[i];                      \
            }                                                                                                \
            if (add) {                                                                                       \
                _Pragma("omp simd") for (int64_t i = 0; i < n; i++) into[i] += sum[i];                       \
            } else {                                                                                         \
                memcpy(into, sum, (size_t)n * sizeof *sum);                                                  \
            }                                                                                                \
        }                                                                                                    \
        return true;                                                                                         \
    }
FOLD_FLOAT(sum_f32, float)
FOLD_FLOAT(sum_f64, double)

static bool sum_i64(void *into_, bool add, const void *const *pieces, int num, int64_t from, int64_t to)
{
    int64_t *into = into_;
    bool fits = true;
    for (int64_t i = from; i < to; i++) {
        int64_t sum = add ? into[i] : 0;
        for (int r = 0; r < num; r++) fits &= tt_add_i64(sum, ((const int64_t *)pieces[r])[i], &sum);
        into[i] = sum;
    }
    return fits;
}

static bool max_i64(void *into_, bool add, const void *const *pieces, int num, int64_t from, int64_t to)
{
    int64_t *into = into_;
    for (int64_t i = from; i < to; i++) {
        int64_t max = add ? into[i] : INT64_MIN;
        for (int r = 0; r < num; r++) max = tt_max_i64(max, ((const int64_t *)pieces[r])[i]);
        into[i] = max;
    }
    return true;
}

/* A reduction: rank r of the group gets the elements of `from` at r * stride, and folds what it gets into `into`. */
typedef struct reduction {
    tt_op op;
    fold_fn fold;
    size_t size; /* of an element */
    const unsigned char *from;
    int64_t stride;
    unsigned char *into;
    bool add;
    int64_t count;
    int64_t round; /* elements per round */
    tt_request *requests[2];
} reduction;

static int64_t round_count(const reduction *d, int64_t round)
{
    return tt_min_i64(d->round, d->count - round * d->round);
}

/* Where rank r's piece of a round lies. */
static const unsigned char *piece(const reduction *d, int64_t round, int r)
{
    const tt_group *g = d->op.group;
    if (r == g->rank) return d->from + (size_t)(r * d->stride + round * d->round) * d->size;
    int64_t slot = (round % 2) * (g->size - 1) + (r < g->rank ? r : r - 1);
    return (unsigned char *)g->comm->scratch + (size_t)(slot * d->round) * d->size;
}

static tt_status begin_round(reduction *d, int64_t round)
{
    tt_group *g = d->op.group;
    size_t bytes = (size_t)round_count(d, round) * d->size;
    int num = 0;
    for (int r = 0; r < g->size; r++) {
        if (r == g->rank) continue;
        size_t at = (size_t)(r * d->stride + round * d->round) * d->size;
        g->comm->sends[num] = (tt_part){r, (void *)(d->from + at), bytes};
        g->comm->recvs[num++] = (tt_part){r, (void *)piece(d, round, r), bytes};
    }
    return tt_exchange_begin(&d->op, g->comm->sends, num, g->comm->recvs, num, &d->requests[round % 2]);
}

static tt_status end_round(reduction *d, int64_t round, bool *fits)
{
    tt_group *g = d->op.group;
    TT_TRY(tt_request_end(&d->requests[round % 2]));
    for (int r = 0; r < g->size; r++) g->comm->pieces[r] = piece(d, round, r);
    unsigned char *into = d->into + (size_t)(round * d->round) * d->size;
    *fits &= d->fold(into, d->add, g->comm->pieces, g->size, 0, round_count(d, round));
    return TT_OK;
}

/* Elements per round: what both halves of the scratch hold for every other rank, at least one. */
static tt_status plan_rounds(reduction *d)
{
    tt_comm *comm = d->op.group->comm;
    int64_t others = d->op.group->size - 1;
    d->round = tt_max_i64(1, d->count);
    if (others == 0) return TT_OK;
    int64_t element = 2 * others * (int64_t)d->size;
    d->round = tt_min_i64(d->round, tt_max_i64(1, (int64_t)comm->scratch_bytes / element));
    /* Whole at once for good: memory that is never touched costs nothing. */
    if (!comm->scratch) {
        int64_t least = 2 * (comm->link.size - 1) * (int64_t)sizeof(int64_t);
        TT_TRY(tt_alloc("scratch of reductions", tt_max_i64((int64_t)comm->scratch_bytes, least), 1,
                        &comm->scratch));
    }
    return TT_OK;
}

static tt_status reduce(reduction d)
{
    bool fits = true;
    tt_status status;
    TT_CHECK(d.count >= 0, TT_EINTERNAL, "%s: a sum of %lld elements", d.op.name, (long long)d.count);
    TT_TRY(plan_rounds(&d));
    int64_t rounds = tt_div_up(d.count, d.round);
    for (int64_t i = 0; i <= rounds; i++) {
        if (i < rounds) TT_GO(begin_round(&d, i));
        if (i > 0) TT_GO(end_round(&d, i - 1, &fits));
    }
    TT_CHECK(fits, TT_ENOMEM, "%s: a sum over the ranks of group %s does not fit in 64 bits", d.op.name,
             d.op.group->name);
    return TT_OK;
fail:
    /* All was cancelled by the failure; the other round's request only has to be let go, its message not kept. */
    for (int i = 0; i < 2; i++) tt_request_drop(&d.requests[i]);
    return status;
}

tt_status tt_reduce_scatter_f32(tt_group *group, const char *name, const float *full, float *mine,
                                int64_t count)
{
    return reduce((reduction){.op = tt_op_start(group, name),
                              .fold = sum_f32,
                              .size = sizeof *mine,
                              .from = (const unsigned char *)full,
                              .stride = count,
                              .into = (unsigned char *)mine,
                              .add = true,
                              .count = count});
}

tt_status tt_reduce_scatter_f64(tt_group *group, const char *name, const double *full, double *mine,
                                int64_t count)
{
    return reduce((reduction){.op = tt_op_start(group, name),
                              .fold = sum_f64,
                              .size = sizeof *mine,
                              .from = (const unsigned char *)full,
                              .stride = count,
                              .into = (unsigned char *)mine,
                              .add = true,
                              .count = count});
}

/* Everyone gets everything: stride 0, and the result replaces what was sent, which a round's end allows. */
static tt_status allreduce(tt_group *group, const char *name, fold_fn fold, size_t size, void *values,
                           int64_t n)
{
    return reduce((reduction){.op = tt_op_start(group, name),
                              .fold = fold,
                              .size = size,
                              .from = values,
                              .into = values,
                              .count = n});
}

tt_status tt_allreduce_f64(tt_group *group, const char *name, double *values, int64_t n)
{
    return allreduce(group, name, sum_f64, sizeof *values, values, n);
}

tt_status tt_allreduce_i64(tt_group *group, const char *name, int64_t *values, int64_t n)
{
    return allreduce(group, name, sum_i64, sizeof *values, values, n);
}

tt_status tt_allreduce_max_i64(tt_group *group, const char *name, int64_t *values, int64_t n)
{
    return allreduce(group, name, max_i64, sizeof *values, values, n);
}

/* --- where all can be seen ------------------------------------------------------------------------------ */

#define SHARE 65536 /* elements that make a task */

static void add_in_order(tt_group *g, fold_fn fold, size_t size, const void *full, int64_t stride, void *mine,
                         int64_t count, int threads)
{
    const void **pieces = g->comm->pieces;
    for (int r = 0; r < g->size; r++) pieces[r] = (const unsigned char *)full + (size_t)(r * stride) * size;
    int team = (int)tt_min_i64(threads, tt_max_i64(1, count / SHARE));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t at = 0; at < count; at += SHARE)
        fold(mine, true, pieces, g->size, at, tt_min_i64(at + SHARE, count));
}

void tt_add_in_order_f32(tt_group *group, const float *full, int64_t stride, float *mine, int64_t count, int threads)
{
    add_in_order(group, sum_f32, sizeof *mine, full, stride, mine, count, threads);
}

void tt_add_in_order_f64(tt_group *group, const double *full, int64_t stride, double *mine, int64_t count, int threads)
{
    add_in_order(group, sum_f64, sizeof *mine, full, stride, mine, count, threads);
}
