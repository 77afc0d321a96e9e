/* certify_impl.h - what the parts of certify share. */
#ifndef TT_TRAIN_CERTIFY_IMPL_H
#define TT_TRAIN_CERTIFY_IMPL_H

#include "train/certify.h"
#include "train/engine.h"

#define TT_CERTIFY_TOLERANCE 1e-5 /* relative: loss, norm, and every tensor unless rounding is found to be larger */

/* --- runs: certify.c ------------------------------------------------------------------------------------------------ */

/* One evaluation of the batch, on the mesh or on one process. */
typedef struct tt_certify_run {
    tt_comm *self;     /* the reference's world of one, else NULL */
    tt_engine engine;
    tt_batch batch;
    int32_t **choices; /* [MoE layer] [T,K] */
    float *logits;     /* [T,V] of this rank's tokens when outputs are saved, else NULL */
    /* [layers + 1] [T,D] of this rank's tokens, when the comparison goes by layer, else NULL: the residual stream behind the
     * embedding and behind each block, and its gradient there. */
    float *values, *gradients;
    double loss, norm;
    int64_t targets;
} tt_certify_run;

/* tt_certify_open_reference - the joint batch on a table of reference kernels, in a world of this rank alone. bare: without
 * weights until tt_certify_hold. Local. */
tt_status tt_certify_open_reference(const tt_certify_options *o, const tt_ops *ops, bool bare, tt_certify_run *r);
/* tt_certify_hold - a bare reference's weights and gradients: those of units[num] and no others (tt_engine_hold). */
tt_status tt_certify_hold(const tt_certify_options *o, tt_certify_run *r, const int *units, int num);
/* Bytes of a reference: weights and gradients that it holds, and the most that activations have taken. */
int64_t tt_certify_bytes(const tt_certify_run *r);
/* Weight of the balance loss in the objective. */
double tt_certify_balance(const tt_model_config *c);

/* --- tokens of all ranks at rank 0, in the order of the joint batch: certify_gather.c --------------------------------- */

typedef struct tt_certify_places {
    const tt_mesh *mesh;
    int64_t *tokens, *bytes; /* [ranks] what each sends; scratch */
    int64_t mine, total;     /* tokens of this rank, of all: those of a shared batch once */
    int32_t *place;          /* [total] as they arrive: token of the joint batch */
    char *arrived;           /* [total] of the widest */
} tt_certify_places;

/* tt_certify_places_open - for up to `widest` bytes per token. joint matters on rank 0. Collective over the mesh.
 * tt_certify_gather - mine: `width` bytes for each token of this rank; all: for each of the joint batch, at rank 0. A rank
 * that shares a batch with one before it sends nothing. Collective over the mesh. */
tt_status tt_certify_places_open(const tt_certify_run *mesh_run, const tt_batch *joint, int64_t widest,
                                 tt_certify_places *out);
tt_status tt_certify_gather(tt_certify_places *p, const char *name, int64_t width, const void *mine, void *all);
void tt_certify_places_close(tt_certify_places *p);

/* --- choices: certify_choices.c --------------------------------------------------------------------------------------- */

/* tt_certify_gather_choices - the mesh's choices to rank 0, into the reference's, in the order of the joint batch.
 * `reference` matters on rank 0. Collective over the mesh. */
tt_status tt_certify_gather_choices(const tt_certify_run *mesh_run, tt_certify_run *reference);

/* tt_certify_judge_choices - let the reference's model call back with its router logits in the next run, and judge the
 * replayed choices. tt_certify_judge_end frees what it needs. Local. */
typedef struct tt_certify_judge tt_certify_judge;
tt_status tt_certify_judge_choices(tt_certify_run *reference, tt_certify_report *report, tt_certify_judge **out);
void tt_certify_judge_end(tt_certify_judge **j);

/* --- gradients: certify_gradients.c ----------------------------------------------------------------------------------- */

typedef struct tt_distance {
    double difference, norm, worst; /* norm of a - b, norm of b, largest |a - b|, which is NaN when one is */
} tt_distance;
tt_distance tt_certify_measure(const float *a, const float *b, int64_t n);

/* tt_certify_compare_unit - the gradients of a unit's parameters on the mesh against the reference's, one at a time at rank
 * 0; fills their rows of the report. The references hold the unit; they matter on rank 0.
 * tt_certify_comparison_open allocates the rows, in table order; tt_certify_judge_rows ends with a verdict on each, when all
 * are there. The first two are collective over the mesh. */
typedef struct tt_certify_comparison tt_certify_comparison;
tt_status tt_certify_comparison_open(const tt_certify_run *mesh_run, tt_certify_report *report, tt_certify_comparison **out);
tt_status tt_certify_compare_unit(tt_certify_comparison *c, int unit, const tt_certify_run *reference,
                                  const tt_certify_run *alternative);
void tt_certify_judge_rows(tt_certify_report *report);
void tt_certify_comparison_close(tt_certify_comparison **c);

/* --- by layer: certify_layers.c ---------------------------------------------------------------------------------------- */

/* tt_certify_by_layer - the whole comparison: choices, every part, every gradient; the references' loss and norm. The mesh
 * run has kept its streams. Collective over the mesh. */
tt_status tt_certify_by_layer(const tt_certify_options *o, tt_certify_run *mesh_run, tt_certify_run *reference,
                              tt_certify_run *alternative, tt_certify_report *report);

/* --- outputs: certify_save.c ------------------------------------------------------------------------------------------- */

/* tt_certify_save - loss, logits [B,S,V] and gradients of the mesh run into one file. Collective. */
tt_status tt_certify_save(const char *path, bool overwrite, const tt_certify_run *mesh_run, const tt_batch_file *rows);

#endif
