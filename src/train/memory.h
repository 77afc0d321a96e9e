/* memory.h - peak bytes of one rank by term, from the table and the mesh alone, before anything is allocated.
 *
 * The terms that live for the whole run are exact. Those of a micro-step follow the grants of src/model term by term, for
 * T tokens on the rank and whatever routing: a round of the exchange brings a rank at most twice the K pairs that balanced
 * routing brings it for each token that it sends out (moe/dispatch.h), and no more than one round is at hand at a time.
 * Of what the ranks of a host share each counts an equal part, so that the sum over ranks is what the host needs.
 *
 * Left out, and what the margin of tt_memory_keep is for: the program itself and the data set, blocks of operands that the
 * kernels' threads copy (a few MiB each), messages under way, the rounding up of buffers, and the lists of an exchange of more
 * rounds (16 bytes a pair).
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
    int64_t kept_layers; /* with recompute; TT_KEPT_LAYERS unless the planner says else */
    bool shared;         /* all ranks are on one host and share memory: tt_shards_are_shared */
    bool copy, copy_moments; /* for checkpoints that are written beside training */
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
    TT_MEMORY_SCRATCH,     /* of exchanges, experts, MLPs */
    TT_MEMORY_COPY,        /* of weights and moments, for checkpoints that are written beside training */
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

/* What `ranks` ranks of a host are given for a plan: 5 % more than it. */
int64_t tt_memory_with_margin(const tt_memory *plan, int ranks);

/* tt_memory_keep - how many of the last layers keep all their activations: with recomputation the largest number for which
 * tt_memory_with_margin is at most `limit`, without it all or none that fits. shape->kept_layers is not read.
 *   *kept  0 .. layers, or -1 when nothing fits
 *   *plan  of that choice; when nothing fits, the least there is
 * A function of its arguments alone: ranks that pass the same decide alike. */
tt_status tt_memory_keep(const tt_model_config *config, const tt_model_table *table, const tt_memory_shape *shape, int ranks,
                         int64_t limit, int64_t *kept, tt_memory *plan);

#endif
