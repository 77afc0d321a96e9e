#include "checkpoint/load.h"
#include "base/checked.h"
#include "base/clock.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>

/* Where each piece of this rank lies in the files; returns the bytes of them all. */
static int64_t list_spans(const tt_source *source, const tt_shards *shards, tt_read_span *spans)
{
    int64_t num, bytes = 0;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    for (int64_t i = 0; i < num; i++) {
        const tt_piece *p = &pieces[i];
        const tt_st_tensor *tensors = source->folder.tensors, *t = &tensors[source->tensor[p->param]];
        int64_t scales = source->scales[p->param];
        tt_mat to = tt_shards_view(shards, p, TT_PART_WEIGHT);
        spans[i] = (tt_read_span){
            .tensor = t,
            .scales = scales < 0 ? NULL : &tensors[scales],
            .first = source->first[p->param] + p->first,
            .count = p->count,
            .type = to.dtype,
            .data = to.data,
        };
        bytes += p->count * (int64_t)tt_dtype_size(t->dtype);
    }
    return bytes;
}

tt_status tt_load_weights(const tt_source *source, tt_shards *shards, int threads, const tt_read_watch *watch,
                          tt_load_report *report)
{
    double start = tt_seconds();
    int64_t num, owned = 0;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    tt_read_result r;
    tt_read_span *spans = calloc((size_t)num + 1, sizeof *spans);
    TT_CHECK(spans, TT_ENOMEM, "out of memory for a list of %lld pieces", (long long)num);
    int64_t bytes = list_spans(source, shards, spans);
    tt_status status = tt_read_spans(&source->folder, spans, num, threads, watch, &r);
    free(spans);
    TT_TRY(status);
    for (int64_t i = 0; i < num; i++) owned += pieces[i].count;
    TT_CHECK(r.elements == owned, TT_EINTERNAL, "load filled %lld of %lld owned elements", (long long)r.elements,
             (long long)owned);
    *report = (tt_load_report){owned, num, bytes, r.bytes, r.scale_bytes, r.requests, r.memory, tt_seconds() - start};
    return TT_OK;
}

tt_status tt_load_summarise(const tt_mesh *mesh, const tt_load_report *mine, tt_load_summary *out)
{
    *out = (tt_load_summary){0};
    tt_load_report *all = calloc((size_t)mesh->world_size, sizeof *all);
    tt_status status = all ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for %d load reports", mesh->world_size);
    status = tt_agree(mesh->world, "load-report", status);
    if (status == TT_OK) status = tt_allgather(mesh->world, "load-report", mine, all, sizeof *mine);
    for (int r = 0; r < mesh->world_size && status == TT_OK; r++) {
        out->bytes_owned += all[r].bytes_owned;
        out->bytes_read += all[r].bytes_read;
        out->scale_bytes += all[r].scale_bytes;
        out->requests += all[r].requests;
        if (all[r].seconds > out->seconds) out->seconds = all[r].seconds, out->slowest = r;
    }
    free(all);
    return status;
}

void tt_load_summary_text(const tt_load_summary *s, char *out, size_t size)
{
    double bytes = (double)(s->bytes_read + s->scale_bytes), seconds = s->seconds > 1e-9 ? s->seconds : 1e-9;
    snprintf(out, size, "%.3f GB in %.1f s: %.2f GB/s, slowest rank %d, read/owned %.2f", 1e-9 * bytes, s->seconds,
             1e-9 * bytes / seconds, s->slowest, s->bytes_owned ? (double)s->bytes_read / (double)s->bytes_owned : 1);
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
