/* mesh.c - checks of sizes, rank arithmetic, groups. See tartan/mesh.h for the picture.
 *
 * All refusals stand here, in one function that needs neither ranks nor files, so a wrong mesh costs nothing.
 */
#include "tartan/mesh.h"

#include "base/checked.h"

#include <stdlib.h>

/* --- sizes -------------------------------------------------------------------------------------------- */

/* printf's long long, in short. */
#define LL(x) ((long long)(x))

static tt_status check_size(const char *key, int64_t value)
{
    TT_CHECK(value >= 0, TT_ECONFIG,
             "%s: %lld is below 1: give a size of at least 1, or leave it out for the default", key,
             LL(value));
    return TT_OK;
}

static tt_status resolve_world(tt_mesh_sizes *s, int world_size)
{
    if (s->tp_size == 0) s->tp_size = 1;
    if (s->fsdp_size == 0) {
        TT_CHECK(world_size % s->tp_size == 0, TT_ECONFIG,
                 "tp_size %lld does not divide the %d ranks: start a multiple of %lld ranks, or choose a "
                 "tp_size that "
                 "divides %d",
                 LL(s->tp_size), world_size, LL(s->tp_size), world_size);
        s->fsdp_size = world_size / s->tp_size;
    }
    int64_t product;
    TT_CHECK(tt_mul_i64(s->fsdp_size, s->tp_size, &product), TT_ECONFIG,
             "fsdp_size %lld * tp_size %lld is beyond 64 bits, but there are %d ranks: leave fsdp_size out",
             LL(s->fsdp_size), LL(s->tp_size), world_size);
    TT_CHECK(product == world_size, TT_ECONFIG,
             "fsdp_size %lld * tp_size %lld = %lld, but there are %d ranks: start %lld ranks, or leave "
             "fsdp_size out",
             LL(s->fsdp_size), LL(s->tp_size), LL(product), world_size, LL(product));
    return TT_OK;
}

static tt_status resolve_experts(tt_mesh_sizes *s, int world_size, int64_t num_experts)
{
    if (s->ep_size == 0) s->ep_size = 1;
    TT_CHECK(world_size % s->ep_size == 0, TT_ECONFIG,
             "ep_size %lld does not divide the %d ranks: choose an ep_size that divides %d, or start a "
             "multiple of %lld "
             "ranks",
             LL(s->ep_size), world_size, world_size, LL(s->ep_size));
    TT_CHECK(num_experts > 0 || s->ep_size == 1, TT_ECONFIG,
             "ep_size is %lld, but the model has 0 routed experts: leave ep_size out", LL(s->ep_size));
    TT_CHECK(num_experts == 0 || num_experts >= s->ep_size, TT_ECONFIG,
             "ep_size %lld is more than the model's %lld experts: choose an ep_size of at most %lld",
             LL(s->ep_size), LL(num_experts), LL(num_experts));
    return TT_OK;
}

static tt_status check_dispatch(const tt_mesh_sizes *s, int64_t num_experts)
{
    switch (s->dispatch) {
    case TT_DISPATCH_ALLTOALL:
    case TT_DISPATCH_ALLGATHER:
        return TT_OK;
    case TT_DISPATCH_ALLREDUCE:
        break;
    default:
        return tt_error_set(TT_ECONFIG,
                            "expert_dispatch: %d is none of alltoall (0), allgather (1), allreduce (2)",
                            (int)s->dispatch);
    }
    TT_CHECK(s->ep_size == s->tp_size, TT_ECONFIG,
             "expert_dispatch: allreduce needs ranks that share a batch: ep_size %lld must equal tp_size "
             "%lld; make "
             "them equal, or use alltoall",
             LL(s->ep_size), LL(s->tp_size));
    TT_CHECK(num_experts % s->ep_size == 0, TT_ECONFIG,
             "expert_dispatch: allreduce needs equal shares: %lld experts do not divide over ep_size %lld; "
             "use alltoall, "
             "or an ep_size that divides them",
             LL(num_experts), LL(s->ep_size));
    return TT_OK;
}

tt_status tt_mesh_resolve(tt_mesh_sizes *sizes, int world_size, int64_t num_experts)
{
    tt_mesh_sizes s = *sizes;
    TT_CHECK(world_size >= 1, TT_ECONFIG, "a world of %d ranks: at least 1 is needed", world_size);
    TT_CHECK(num_experts >= 0, TT_ECONFIG, "a model with %lld experts: 0 is the least", LL(num_experts));
    TT_TRY(check_size("fsdp_size", s.fsdp_size));
    TT_TRY(check_size("tp_size", s.tp_size));
    TT_TRY(check_size("ep_size", s.ep_size));
    TT_TRY(resolve_world(&s, world_size));
    TT_TRY(resolve_experts(&s, world_size, num_experts));
    TT_TRY(check_dispatch(&s, num_experts));
    *sizes = s;
    return TT_OK;
}

/* --- groups ------------------------------------------------------------------------------------------- */

/* The group of ranks first, first + step, ... */
static tt_status create_group(tt_mesh *m, const char *name, int first, int step, int size, tt_group **out)
{
    int *ranks = calloc((size_t)size, sizeof *ranks);
    TT_CHECK(ranks, TT_ENOMEM, "no memory for group %s of %d ranks", name, size);
    for (int i = 0; i < size; i++) ranks[i] = first + i * step;
    tt_status status = tt_group_create(m->comm, name, ranks, size, out);
    free(ranks);
    return status;
}

tt_status tt_mesh_create(tt_comm *comm, tt_mesh_sizes sizes, int64_t num_experts, tt_mesh **out)
{
    tt_status status;
    *out = NULL;
    TT_TRY(tt_mesh_resolve(&sizes, tt_comm_size(comm), num_experts));
    tt_mesh *m = calloc(1, sizeof *m);
    TT_CHECK(m, TT_ENOMEM, "no memory for the mesh");
    m->comm = comm, m->world = tt_comm_world(comm), m->dispatch = sizes.dispatch;
    m->world_size = tt_comm_size(comm), m->rank = tt_comm_rank(comm);
    m->fsdp_size = (int)sizes.fsdp_size, m->tp_size = (int)sizes.tp_size, m->ep_size = (int)sizes.ep_size;
    m->efsdp_size = m->world_size / m->ep_size;
    m->tp_rank = m->rank % m->tp_size, m->fsdp_rank = m->rank / m->tp_size;
    m->ep_rank = m->rank % m->ep_size, m->efsdp_rank = m->rank / m->ep_size;
    TT_GO(create_group(m, "tp", m->rank - m->tp_rank, 1, m->tp_size, &m->tp));
    TT_GO(create_group(m, "ep", m->rank - m->ep_rank, 1, m->ep_size, &m->ep));
    TT_GO(create_group(m, "efsdp", m->ep_rank, m->ep_size, m->efsdp_size, &m->efsdp));
    *out = m;
    return TT_OK;
fail:
    tt_mesh_destroy(&m);
    return status;
}

void tt_mesh_destroy(tt_mesh **mesh)
{
    tt_mesh *m = *mesh;
    *mesh = NULL;
    if (!m) return;
    tt_group_destroy(&m->tp);
    tt_group_destroy(&m->ep);
    tt_group_destroy(&m->efsdp);
    free(m);
}

/* --- experts ------------------------------------------------------------------------------------------ */

void tt_mesh_experts(int64_t num_experts, int ep_size, int ep_rank, int64_t *begin, int64_t *end)
{
    *begin = tt_block_begin(num_experts, ep_size, ep_rank);
    *end = tt_block_begin(num_experts, ep_size, ep_rank + 1);
}

int tt_mesh_expert_owner(int64_t num_experts, int ep_size, int64_t e)
{
    int64_t small = num_experts / ep_size, num_longer = num_experts % ep_size;
    int64_t in_longer = num_longer * (small + 1);
    return (int)(e < in_longer ? e / (small + 1) : num_longer + (e - in_longer) / small);
}
