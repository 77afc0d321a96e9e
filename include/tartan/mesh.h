/* tartan/mesh.h - the two-dimensional mesh: who holds which experts, who shares a batch.
 *
 *   W = fsdp_size * tp_size                ranks in the world
 *   tp_size    consecutive ranks that share one batch          tp_rank   = rank % tp_size
 *   fsdp_size  distinct batches in a micro-step                fsdp_rank = rank / tp_size
 *   ep_size    consecutive ranks that together hold every      ep_rank   = rank % ep_size
 *              expert once; each owns a contiguous block
 *   efsdp_size = W / ep_size, ranks that own the same          efsdp_rank = rank / ep_size
 *              experts and shard them further
 *
 *   W = 4, ep_size = 2, tp_size = 1, 8 experts:
 *        rank      0     1     2     3
 *        experts   0-3   4-7   0-3   4-7       ep groups {0,1} {2,3}, efsdp groups {0,2} {1,3}
 *
 * Everything that is not a routed expert is sharded over all W ranks.
 */
#ifndef TARTAN_MESH_H
#define TARTAN_MESH_H

#include "tartan/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tt_dispatch_kind { TT_DISPATCH_ALLTOALL, TT_DISPATCH_ALLGATHER, TT_DISPATCH_ALLREDUCE } tt_dispatch_kind;

/* What the user asked for. 0 = the default: tp_size 1, ep_size 1, fsdp_size W / tp_size. */
typedef struct tt_mesh_sizes {
    int64_t fsdp_size, tp_size, ep_size;
    tt_dispatch_kind dispatch;
} tt_mesh_sizes;

typedef struct tt_mesh {
    tt_comm *comm; /* borrowed */
    int world_size, rank;
    int fsdp_size, fsdp_rank;
    int tp_size, tp_rank;
    int ep_size, ep_rank;
    int efsdp_size, efsdp_rank;
    tt_dispatch_kind dispatch;
    tt_group *world; /* borrowed from comm */
    tt_group *tp;    /* ranks that share this rank's batch */
    tt_group *ep;    /* ranks that together hold this rank's set of experts */
    tt_group *efsdp; /* ranks that own the same experts */
} tt_mesh;

/* tt_mesh_resolve - fill in the defaults and refuse what cannot be, before anything is allocated or read.
 *   num_experts  0 for a model without routed experts
 * Pure: depends on its arguments alone. TT_ECONFIG names both numbers and the remedy. */
tt_status tt_mesh_resolve(tt_mesh_sizes *sizes, int world_size, int64_t num_experts);

/* tt_mesh_create - the mesh of `sizes` (resolved here again) over comm's world. Local. */
tt_status tt_mesh_create(tt_comm *comm, tt_mesh_sizes sizes, int64_t num_experts, tt_mesh **out);
void tt_mesh_destroy(tt_mesh **mesh);

/* tt_mesh_experts - experts [*begin, *end) that ep rank `ep_rank` of `ep_size` owns: contiguous blocks, the first
 * E mod ep_size ranks own one more. Pure. */
void tt_mesh_experts(int64_t num_experts, int ep_size, int ep_rank, int64_t *begin, int64_t *end);
/* tt_mesh_expert_owner - the ep rank that owns expert e. Pure. */
int tt_mesh_expert_owner(int64_t num_experts, int ep_size, int64_t e);

#ifdef __cplusplus
}
#endif
#endif
