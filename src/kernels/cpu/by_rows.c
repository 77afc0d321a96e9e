/* by_rows.c - the reference on blocks of rows, side by side: for ops whose rows have nothing to do with each
 * other. Reference ops that are used here take no scratch. */
#include "kernels/cpu/cpu.h"
#include "base/checked.h"

#include <omp.h>

#define ROWS 32

static tt_mat part(tt_mat m, int64_t begin, int64_t end)
{
    return m.data ? tt_mat_rows(m, begin, end) : m;
}

static int team(const tt_kernel *k, int64_t rows)
{
    return (int)tt_min_i64(k->threads, tt_max_i64(rows / ROWS, 1));
}

/* A call for each block of rows [b, e). */
#define BY_ROWS(k, rows, call)                                                                               \
    TT_PARALLEL_FOR(k, team(k, rows), static, __func__)                                                      \
    for (int64_t b = 0; b < (rows); b += ROWS) {                                                             \
        int64_t e = tt_min_i64(b + ROWS, (rows));                                                            \
        call;                                                                                                \
    }

static void rope_table(tt_kernel *k, const int32_t *positions, int64_t T, int64_t rotary, double theta,
                       tt_mat cosine, tt_mat sine)
{
    BY_ROWS(
        k, T,
        tt_ops_ref.rope_table(k, positions + b, e - b, rotary, theta, part(cosine, b, e), part(sine, b, e)))
}

static void route_softmax(tt_kernel *k, const tt_route_shape *s, tt_mat logits, bool replay, int32_t *ids,
                          tt_mat gates, tt_mat probs)
{
    BY_ROWS(k, logits.rows,
            tt_ops_ref.route_softmax(k, s, part(logits, b, e), replay, ids + b * s->chosen, part(gates, b, e),
                                     part(probs, b, e)))
}

static void route_softmax_back(tt_kernel *k, const tt_route_shape *s, tt_mat dgates, const int32_t *ids,
                               tt_mat gates, tt_mat probs, tt_mat dlogits)
{
    BY_ROWS(k, dlogits.rows,
            tt_ops_ref.route_softmax_back(k, s, part(dgates, b, e), ids + b * s->chosen, part(gates, b, e),
                                          part(probs, b, e), part(dlogits, b, e)))
}

static void route_sigmoid(tt_kernel *k, const tt_route_shape *s, tt_mat logits, tt_mat bias, bool replay,
                          int32_t *ids, tt_mat gates, tt_mat probs)
{
    BY_ROWS(k, logits.rows,
            tt_ops_ref.route_sigmoid(k, s, part(logits, b, e), bias, replay, ids + b * s->chosen,
                                     part(gates, b, e), part(probs, b, e)))
}

static void route_sigmoid_back(tt_kernel *k, const tt_route_shape *s, tt_mat dgates, const int32_t *ids,
                               tt_mat gates, tt_mat probs, tt_mat dlogits)
{
    BY_ROWS(k, dlogits.rows,
            tt_ops_ref.route_sigmoid_back(k, s, part(dgates, b, e), ids + b * s->chosen, part(gates, b, e),
                                          part(probs, b, e), part(dlogits, b, e)))
}

static void balance_back(tt_kernel *k, tt_mat probs, const double *f, double c, tt_mat dlogits)
{
    BY_ROWS(k, probs.rows, tt_ops_ref.balance_back(k, part(probs, b, e), f, c, part(dlogits, b, e)))
}

void tt_cpu_rows_fill(tt_ops *ops)
{
    ops->rope_table = rope_table;
    ops->route_softmax = route_softmax;
    ops->route_softmax_back = route_softmax_back;
    ops->route_sigmoid = route_sigmoid;
    ops->route_sigmoid_back = route_sigmoid_back;
    ops->balance_back = balance_back;
}
