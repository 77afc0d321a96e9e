#include "train/flops.h"
#include "base/checked.h"

#include <math.h>

int64_t tt_flops_pairs(const tt_docs *docs, int64_t window)
{
    int64_t pairs = 0;
    for (int64_t d = 0; d < docs->num; d++) {
        int64_t n = docs->offset[d + 1] - docs->offset[d], full = window > 0 ? tt_min_i64(n, window) : n;
        pairs += full * (full + 1) / 2 + (n - full) * full;
    }
    return pairs;
}

double tt_flops_useful(const tt_model_config *c, const tt_params *p, double tokens, double targets, double pairs)
{
    double head = (double)c->vocab_size * (double)c->hidden_size;
    double blocks = (double)tt_params_active(p, c->experts_per_token) - (c->tied ? 1 : 2) * head;
    double attention = 12 * (double)c->num_layers * (double)c->num_heads * (double)c->head_dim;
    return 6 * (blocks * tokens + head * targets) + attention * pairs;
}

/* --- the rate --------------------------------------------------------------------------------------------------- */

enum { LEAST = 256, MOST = 1024 }; /* edges of the matrices */
#define SECONDS 0.04

static tt_status product(tt_kernel *k, const float *x, float *y, int64_t n, double *best)
{
    tt_mat w = tt_mat_of((float *)x, TT_F32, n, n);
    double start = tt_seconds();
    TT_TRY(k->ops->linear(k, w, w, (tt_mat){0}, false, tt_mat_of(y, TT_F32, n, n)));
    *best = fmin(*best, tt_seconds() - start);
    return TT_OK;
}

/* The first product of an edge also brings memory and threads into being; the larger ones are tried as long as they are quick. */
static tt_status measure(tt_kernel *k, const float *x, float *y, double *rate)
{
    int64_t edge = LEAST;
    double best = INFINITY, until = tt_seconds() + SECONDS;
    for (int i = 0; i < 2; i++) TT_TRY(product(k, x, y, edge, &best));
    while (edge < MOST && 8 * best < SECONDS) {
        edge *= 2, best = INFINITY;
        for (int i = 0; i < 2; i++) TT_TRY(product(k, x, y, edge, &best));
    }
    while (tt_seconds() < until) TT_TRY(product(k, x, y, edge, &best));
    *rate = 2 * pow((double)edge, 3) / best;
    return TT_OK;
}

tt_status tt_flops_rate(tt_group *world, tt_kernel *k, double *rate)
{
    void *x = NULL, *y = NULL;
    *rate = 0;
    tt_status status = tt_alloc("measuring a product", MOST * MOST, sizeof(float), &x);
    if (status == TT_OK) status = tt_alloc("measuring a product", MOST * MOST, sizeof(float), &y);
    for (int i = 0; i < MOST * MOST && status == TT_OK; i++) ((float *)x)[i] = (float)(i % 7) * 0.1f;
    status = tt_agree(world, "product-rate", status); /* and all begin together */
    if (status == TT_OK) status = tt_agree(world, "product-rate", measure(k, x, y, rate));
    if (status == TT_OK) status = tt_allreduce_f64(world, "product-rate", rate, 1);
    tt_free(x);
    tt_free(y);
    return status;
}
