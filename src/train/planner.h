/* planner.h - what backward keeps and what it computes again, from the memory that a run may take (key max_memory).
 *
 * The plan is that of the largest micro-step that the run can have, whatever the order of the rows and whatever experts are
 * chosen. With a limit as many of the last layers keep all their activations as fit (tt_memory_keep). Recomputation is made of
 * exchanges, so ranks have to decide alike: what goes into the decision is agreed first, and nothing else does - neither what
 * is free on a host at the moment nor the rank's own rows.
 */
#ifndef TT_TRAIN_PLANNER_H
#define TT_TRAIN_PLANNER_H

#include "data/dataset.h"
#include "train/memory.h"

typedef struct tt_memory_choice {
    int64_t kept_layers;
    int ranks;      /* of the host that has most */
    int64_t bytes;  /* of all of them: plan and margin */
    tt_memory plan; /* of one rank */
} tt_memory_choice;

/* tt_planner_largest - tokens and targets of the `batch` rows that have most: no micro-step has more of either. Local. */
tt_status tt_planner_largest(const tt_dataset *rows, int64_t batch, int64_t *tokens, int64_t *targets);

/* tt_planner_choose - for a limit of so many bytes on each host; 0: none, and the shape's kept_layers it is. Its tokens and
 * targets are this rank's, `shared` is not read. TT_ECONFIG when nothing fits: the message has the terms. Collective over the
 * world, with the same limit and model; all ranks return the same. */
tt_status tt_planner_choose(tt_comm *comm, int64_t limit, const tt_model_config *config, const tt_memory_shape *shape,
                            tt_memory_choice *out);

#endif
