/* model.h - a decoder-only mixture-of-experts model on a mesh: forward and backward of one micro-step.
 *
 * The code is written for one process. It asks units for weights (src/shard) and the dispatcher to move tokens (src/moe);
 * a world of one is the base case of the same code.
 *
 *   one step:  N = supervised targets of the step, all ranks, all micro-steps        (src/train/step.h)
 *              zero gradients
 *              for each micro-step:  tt_model_micro_step(scale = 1/N)                 this file
 *              norm = sqrt(all-reduce(sum of squares of owned gradients)); clip; update of the owned shards
 *
 *   one micro-step, forward:   embedding unit: gather, look up, release
 *                              each block:     gather dense unit; attention; router; gather experts; exchange; release
 *                              head unit:      gather; final norm; per chunk of rows: logits, loss, their gradients
 *                  backward:   each block, last to first: gather; recompute (gradient checkpointing) with the stored
 *                              routing; gradients; reduce-scatter; release
 *                              embedding unit: scatter-add; reduce-scatter
 *
 * Memory: `keep` lives from forward to backward (block inputs, routing), `work` inside one block. A block whose activations
 * are kept leaves them in `work` until its backward pass; the last to come is the first to go. The last block keeps them
 * also with gradient checkpointing: its backward pass comes first, and would only make them anew. Experts that get more than
 * fits into one round of the exchange keep nothing in any case: backward makes one round's anew at a time.
 */
#ifndef TT_MODEL_MODEL_H
#define TT_MODEL_MODEL_H

#include "model/batch.h"
#include "model/table.h"
#include "moe/dispatch.h"
#include "shard/shard.h"

/* Looks at intermediate results (tests, certify), real, [T,*]: called with "embed", "block", "router_logits", "gates", and
 * in backward with the gradients of the first two, "block_gradient" from the last layer on and then "embed_gradient". */
typedef void (*tt_tap)(void *user, const char *what, int layer, tt_mat m);

typedef struct tt_model {
    const tt_model_config *config; /* borrowed */
    const tt_model_table *table;   /* borrowed */
    const tt_mesh *mesh;           /* borrowed */
    tt_shards *shards;             /* borrowed */
    tt_kernel *kernel;             /* borrowed */
    tt_arena *keep, *work;         /* owned */
    bool recompute;                /* gradient checkpointing: keep block inputs only ... */
    int64_t kept_layers;           /* ... but all of the last layers, so many */
    int64_t loss_chunk;            /* rows of logits at a time */
    int64_t booked_pairs;          /* (row, expert) pairs that a rank receives per exchange round, 0 = twice its balanced share */
    int64_t *expert_counts;        /* [MoE layers, E] += choices of each forward pass; NULL: not counted */
    int64_t *expert_bytes;         /* [MoE layers, 2] += bytes that this rank sends in the exchange (moe/dispatch.h),
                                    * forward and backward; NULL: not counted */
    tt_tap tap;                    /* may be NULL */
    void *tap_user;
} tt_model;

enum { TT_LOSS_CHUNK = 512, TT_KEPT_LAYERS = 1 };
/* tt_model_init - over parts that outlive it. recompute true, kept_layers TT_KEPT_LAYERS, loss_chunk TT_LOSS_CHUNK. Local. */
tt_status tt_model_init(tt_model *m, const tt_model_config *config, const tt_model_table *table, tt_shards *shards,
                        tt_kernel *kernel);
void tt_model_fini(tt_model *m);

/* Whose tokens the statistics of a micro-step's balance loss are taken over. */
typedef enum tt_balance_scope {
    TT_BALANCE_GLOBAL, /* all ranks' together: the placement of rows on ranks does not matter */
    TT_BALANCE_RANK    /* each rank's own batch apart: the loss is the mean over the batches that have tokens, as where
                        * ranks compute it alone and their gradients are averaged */
} tt_balance_scope;

/* What to do with a batch. */
typedef struct tt_micro {
    const tt_batch *batch;  /* may hold no tokens: the rank takes part all the same */
    bool backward;          /* false: loss and logits only; gradients are not touched */
    double scale;           /* gradient of sum(nll) * scale: 1 / targets of the whole step */
    double balance;         /* weight of the balance loss in this micro-step, 0: off */
    tt_balance_scope balance_scope; /* the same on every rank */
    /* Expert choices. replay: [MoE layer] arrays [T,K] to use instead of choosing; record: the same arrays, filled. */
    const int32_t *const *replay;
    int32_t *const *record;
    /* Called with logits [n,V] real of tokens [first, first + n), in order, covering tokens from first_logit on. */
    tt_status (*logits)(void *user, int64_t first, tt_mat logits_MV);
    void *logits_user;
    int64_t first_logit;
} tt_micro;

typedef struct tt_micro_result {
    tt_loss_sums sums;   /* this rank's */
    double balance_loss; /* of all ranks; 0 when off */
} tt_micro_result;

/* tt_model_micro_step - forward and, if asked, backward: gradients of
 *     scale * (sum of nll over all ranks) + balance * balance_loss
 * are added to the gradient shards. Collective over the mesh. */
tt_status tt_model_micro_step(tt_model *m, const tt_micro *micro, tt_micro_result *out);

/* MoE layers in front of layer i: index into replay and record. */
int tt_model_moe_index(const tt_model_config *c, int layer);

/* --- one part alone (certify) ---------------------------------------------------------------------------------- */

/* Statistics of the balance loss over all MoE layers and ranks. */
typedef struct tt_balance {
    double rows;    /* tokens times MoE layers */
    double *counts; /* [E] choices of each expert */
    double *sums;   /* [E] router probabilities of each expert */
} tt_balance;

/* tt_balance_value - the balance loss. Pure. */
double tt_balance_value(const tt_balance *b, int64_t num_experts);

/* Parts in the order of a forward pass: 0 the embedding, 1 + i block i, 1 + num_layers the head with the final norm. */

/* tt_model_part_units - the units of a part, which are those that tt_model_part needs; returns how many. Pure. */
int tt_model_part_units(const tt_model *m, int part, int units[2]);

/* tt_model_part - forward and backward of one part, as tt_model_micro_step runs it among the others; gradients of weights
 * are added to the shards. micro asks for backward.
 *   x_TD     real; in: what the part in front gives, which the embedding does not read; out: what this one gives, but the
 *            head leaves it alone
 *   dx_TD    real; in: gradient of what this part gives, which the head does not read; out: gradient of what the part in
 *            front gives, but the embedding leaves it alone
 *   balance  where micro->balance is not 0: rows and counts of all blocks, read; sums, to which a block adds its own
 *   sums     of the loss, to which the head adds
 * Collective over the mesh. */
tt_status tt_model_part(tt_model *m, const tt_micro *micro, int part, tt_mat x_TD, tt_mat dx_TD, tt_balance *balance,
                        tt_loss_sums *sums);

#endif
