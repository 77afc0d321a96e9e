/* certify_gather.c - what every rank has for its tokens, at rank 0 in the order of the joint batch. */
#include "train/certify_impl.h"

#include <stdlib.h>
#include <string.h>

/* Token of the joint batch with this row and column; rows and columns ascend there. */
static int64_t find_token(const tt_batch *joint, int32_t row, int32_t column)
{
    int64_t lo = 0, hi = joint->T;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        bool before = joint->rows[mid] < row || (joint->rows[mid] == row && joint->columns[mid] < column);
        if (before) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static tt_status gather_as_sent(tt_certify_places *p, const char *name, int64_t width, const void *mine, void *all)
{
    for (int r = 0; r < p->mesh->world_size; r++) p->bytes[r] = p->tokens[r] * width;
    return tt_gatherv(p->mesh->world, name, 0, mine, p->mine * width, all, p->bytes);
}

static tt_status open_places(tt_certify_places *p, const tt_batch *batch, const tt_batch *joint, int64_t widest)
{
    const tt_mesh *mesh = p->mesh;
    p->tokens = calloc((size_t)mesh->world_size, sizeof *p->tokens);
    p->bytes = calloc((size_t)mesh->world_size, sizeof *p->bytes);
    TT_CHECK(p->tokens && p->bytes, TT_ENOMEM, "certify: out of memory");
    p->tokens[mesh->rank] = p->mine;
    TT_TRY(tt_allgather(mesh->world, "certify-tokens", &p->tokens[mesh->rank], p->tokens, sizeof *p->tokens));
    for (int r = 0; r < mesh->world_size; r++) p->total += p->tokens[r];
    p->place = malloc((size_t)p->total * 2 * sizeof *p->place + 1);
    p->arrived = malloc(mesh->rank == 0 ? (size_t)(p->total * widest) + 1 : 1);
    TT_CHECK(p->place && p->arrived, TT_ENOMEM, "certify: out of memory for %lld tokens", (long long)p->total);
    int32_t *columns = p->place + p->total;
    TT_TRY(gather_as_sent(p, "certify-places", sizeof *columns, batch->rows, p->place));
    TT_TRY(gather_as_sent(p, "certify-places", sizeof *columns, batch->columns, columns));
    for (int64_t t = 0; t < p->total && mesh->rank == 0; t++)
        p->place[t] = (int32_t)find_token(joint, p->place[t], columns[t]);
    return TT_OK;
}

tt_status tt_certify_places_open(const tt_certify_run *mesh_run, const tt_batch *joint, int64_t widest,
                                 tt_certify_places *p)
{
    const tt_mesh *mesh = mesh_run->engine.mesh;
    /* Ranks that share a batch would send it several times. */
    *p = (tt_certify_places){.mesh = mesh, .mine = mesh->tp_rank == 0 ? mesh_run->batch.T : 0};
    tt_status status = open_places(p, &mesh_run->batch, joint, widest);
    if (status != TT_OK) tt_certify_places_close(p);
    return status;
}

void tt_certify_places_close(tt_certify_places *p)
{
    free(p->tokens);
    free(p->bytes);
    free(p->place);
    free(p->arrived);
    *p = (tt_certify_places){0};
}

tt_status tt_certify_gather(tt_certify_places *p, const char *name, int64_t width, const void *mine, void *all)
{
    TT_TRY(gather_as_sent(p, name, width, mine, p->arrived));
    for (int64_t t = 0; t < p->total && p->mesh->rank == 0; t++)
        memcpy((char *)all + p->place[t] * width, p->arrived + t * width, (size_t)width);
    return TT_OK;
}
