/* memory.h - peak bytes of one rank by term, from the table and the mesh alone, before anything is allocated.
 *
 * The terms that live for the whole run are exact. Those of a micro-step follow the grants of src/model term by term, for
 * T tokens on the rank and balanced routing: each rank then receives T min(K, ep) rows and T K pairs
 * (alltoall; the buffers that ranks of a shared batch or of an allgather take besides are not in the plan).
 * Of what the ranks of a host share each counts an equal part, so that the sum over ranks is what the host needs.
 */
#ifndef TT_TRAIN_MEMORY_H
#define TT_TRAIN_MEMORY_H

#include "model/table.h"
#include "shard/shard.h"

typedef struct tt_memory_shape {
    tt_mesh_sizes mesh; /* resolved */
    int world_size;
    tt_precision precision;
    bool train, moments, recompute;
    int64_t kept_layers; /* with recompute (model/model.h) */
    bool shared;         /* all ranks are on one host and share memory: tt_shards_are_shared */
    int64_t tokens;      /* of one micro-step on the rank */
    int64_t targets;     /* of them supervised, at most tokens */
    int64_t loss_chunk;
} tt_memory_shape;

/* Terms in bytes, in the order of tt_memory_term_name. */
typedef enum tt_memory_term {
    TT_MEMORY_WEIGHTS,
    TT_MEMORY_GRADIENTS,
    TT_MEMORY_MOMENTS,
    TT_MEMORY_UNITS,       /* gathered copies and full gradients of units in use */
    TT_MEMORY_KEPT,        /* activations from forward to backward */
    TT_MEMORY_BLOCK,       /* activations of one block, or of the head */
    TT_MEMORY_SCRATCH,     /* of kernels and exchanges */
    TT_MEMORY_NUM_TERMS
} tt_memory_term;
const char *tt_memory_term_name(tt_memory_term t);

typedef struct tt_memory {
    int64_t bytes[TT_MEMORY_NUM_TERMS];
    int64_t total;
} tt_memory;

/* tt_memory_plan - for ep rank 0, which owns at least as much as any other. Pure but for a little temporary memory. */
tt_status tt_memory_plan(const tt_model_config *config, const tt_model_table *table, const tt_memory_shape *shape,
                         tt_memory *out);

#endif
