#include "checkpoint/load.h"
#include "base/checked.h"
#include "base/rng.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Requests of this size keep several threads busy also when one tensor is most of a shard. */
#define REQUEST_ELEMENTS ((int64_t)4 << 20)

typedef struct request {
    const tt_st_tensor *tensor;
    int64_t first, count;
    tt_mat to;
} request;

static int64_t list_requests(const tt_source *source, const tt_shards *shards, request *out)
{
    int64_t num, n = 0;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    for (int64_t i = 0; i < num; i++) {
        tt_mat to = tt_shards_view(shards, &pieces[i], TT_PART_WEIGHT);
        for (int64_t at = 0; at < pieces[i].count; at += REQUEST_ELEMENTS, n++) {
            if (!out) continue;
            int64_t count = tt_min_i64(REQUEST_ELEMENTS, pieces[i].count - at);
            out[n] = (request){&source->folder.tensors[source->tensor[pieces[i].param]], pieces[i].first + at, count, to};
            out[n].to.data = (char *)to.data + (size_t)at * tt_dtype_size(to.dtype);
        }
    }
    return n;
}

tt_status tt_load_weights(const tt_source *source, tt_shards *shards, int threads, tt_load_report *report)
{
    double start = now();
    int64_t num = list_requests(source, shards, NULL), filled = 0, bytes = 0, owned = 0, num_pieces;
    request *list = calloc((size_t)num + 1, sizeof *list);
    TT_CHECK(list, TT_ENOMEM, "out of memory for %lld read requests", (long long)num);
    list_requests(source, shards, list);
    tt_status status = TT_OK;
    char message[1024] = "";
#pragma omp parallel for schedule(dynamic) num_threads(threads) reduction(+ : filled, bytes)
    for (int64_t i = 0; i < num; i++) {
        const request *r = &list[i];
        tt_status s = tt_st_read(&source->folder, r->tensor, r->first, r->count, r->to.dtype, r->to.data);
        if (s == TT_OK) {
            filled += r->count;
            bytes += r->count * (int64_t)tt_dtype_size(r->tensor->dtype);
            continue;
        }
        /* Error texts are per thread; the first one is carried over to the caller's. */
#pragma omp critical(tt_load)
        if (status == TT_OK) {
            status = s;
            strncpy(message, tt_error_text(), sizeof message - 1);
        }
    }
    free(list);
    if (status != TT_OK) return tt_error_set(status, "%s", message);
    const tt_piece *pieces = tt_shards_pieces(shards, &num_pieces);
    for (int64_t i = 0; i < num_pieces; i++) owned += pieces[i].count;
    TT_CHECK(filled == owned, TT_EINTERNAL, "load filled %lld of %lld owned elements", (long long)filled,
             (long long)owned);
    *report = (tt_load_report){filled, bytes, now() - start};
    return TT_OK;
}

static void init_piece(const tt_params *params, const tt_piece *piece, uint64_t seed, tt_mat to)
{
    const tt_param *p = &params->at[piece->param];
    uint64_t key = tt_rng_key(seed, p->name);
    float values[1024];
    for (int64_t at = 0; at < piece->count; at += 1024) {
        int64_t n = tt_min_i64(1024, piece->count - at), first = piece->first + at;
        if (p->init == TT_INIT_NORMAL) tt_rng_normal(key, first, n, values);
        for (int64_t i = 0; i < n; i++) {
            bool zero = p->init == TT_INIT_ZERO || (first + i) / p->shape[1] == p->zero_row;
            values[i] = zero ? 0 : p->init == TT_INIT_ONE ? 1 : (float)(params->init_std * values[i]);
        }
        tt_convert((char *)to.data + (size_t)at * tt_dtype_size(to.dtype), to.dtype, values, TT_F32, n);
    }
}

void tt_init_weights(tt_shards *shards, uint64_t seed)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    for (int64_t i = 0; i < num; i++)
        init_piece(tt_shards_params(shards), &pieces[i], seed, tt_shards_view(shards, &pieces[i], TT_PART_WEIGHT));
}
