/* certify_impl.h - what the parts of certify share. */
#ifndef TT_TRAIN_CERTIFY_IMPL_H
#define TT_TRAIN_CERTIFY_IMPL_H

#include "train/certify.h"
#include "train/engine.h"

/* One evaluation of the batch, on the mesh or on one process. */
typedef struct tt_certify_run {
    tt_comm *self;     /* the reference's world of one, else NULL */
    tt_engine engine;
    tt_batch batch;
    int32_t **choices; /* [MoE layer] [T,K] */
    float *logits;     /* [T,V] of this rank's tokens when outputs are saved, else NULL */
    double loss, norm;
    int64_t targets;
} tt_certify_run;

/* tt_certify_gather_choices - the mesh's choices to rank 0, into the reference's, in the order of the joint batch.
 * `reference` matters on rank 0. Collective over the mesh. */
tt_status tt_certify_gather_choices(const tt_certify_run *mesh_run, tt_certify_run *reference);

/* tt_certify_judge_choices - let the reference's model call back with its router logits in the next run, and judge the
 * replayed choices. tt_certify_judge_end frees what it needs. Local. */
typedef struct tt_certify_judge tt_certify_judge;
tt_status tt_certify_judge_choices(tt_certify_run *reference, tt_certify_report *report, tt_certify_judge **out);
void tt_certify_judge_end(tt_certify_judge **j);

/* tt_certify_compare_gradients - every parameter's gradient of the mesh against the reference's, one at a time at rank 0;
 * fills the report's rows. reference and alternative matter on rank 0. Collective over the mesh. */
tt_status tt_certify_compare_gradients(const tt_certify_run *mesh_run, const tt_certify_run *reference,
                                       const tt_certify_run *alternative, tt_certify_report *report);

/* tt_certify_save - loss, logits [B,S,V] and gradients of the mesh run into one file. Collective. */
tt_status tt_certify_save(const char *path, bool overwrite, const tt_certify_run *mesh_run, const tt_batch_file *rows);

#endif
