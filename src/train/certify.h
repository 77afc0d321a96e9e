/* certify.h - proof on a user's own model and mesh that loss, norm, expert choices and the gradient of every parameter are
 * those of one process.
 *
 * The mesh runs in fp32 on the kernels it trains with. Rank 0 then runs the same rows as one batch on the reference kernels,
 * with the mesh's expert choices replayed, and compares. How near is near enough is measured, not guessed: the same
 * reference with sums in float and in reverse order is as far from it as two correct float32 evaluations may be; a tensor
 * passes within max(1e-5, ten times that distance), relative to its norm. A tensor whose norm is below 1e-6 of the largest
 * is compared by element, absolute 1e-6 times the larger of 1 and the largest norm.
 *
 * Choices are judged apart: an expert that the reference would not have chosen passes only if it lost by no more than
 * rounding can explain: with d = 1e-5 max(1, largest logit of the row) as the bound on a score's error, a gap of 2d between
 * scores, or 4d between the sums of two that rank groups.
 */
#ifndef TT_TRAIN_CERTIFY_H
#define TT_TRAIN_CERTIFY_H

#include "model/batch.h"
#include "tartan/mesh.h"

typedef struct tt_certify_options {
    const char *model;        /* folder */
    const tt_batch_file *rows; /* the same on every rank; row r goes to fsdp rank r mod fsdp_size */
    tt_mesh_sizes mesh;
    int threads;
    const char *save_outputs; /* FILE.safetensors for loss, logits and gradients of the mesh run; NULL: none */
    bool overwrite;           /* save_outputs may replace a file */
} tt_certify_options;

typedef struct tt_certify_row {
    const char *name;   /* borrowed from the report */
    double norm, difference, worst; /* of the reference gradient; of the difference; its largest element */
    double error;       /* relative, or the largest element's absolute error for a tiny tensor */
    double tolerance;
    bool tiny, good;
} tt_certify_row;

typedef struct tt_certify_report {
    int64_t num_rows;
    tt_certify_row *rows; /* rank 0 only, in table order */
    char **names;
    int64_t targets, tokens;
    double loss[2], norm[2]; /* mesh, reference */
    int64_t choices, near_ties, wrong_choices;
    char first_wrong[160];  /* the first choice that rounding cannot explain */
    bool loss_good, norm_good;
    int64_t bad_rows;
    bool passed;            /* the same on every rank */
} tt_certify_report;

/* tt_certify - collective. TT_OK when the comparison was made, whatever its outcome (report->passed). Refuses, naming the
 * bytes, a model whose reference does not fit in rank 0's memory. */
tt_status tt_certify(tt_comm *comm, const tt_certify_options *o, tt_certify_report *report);
void tt_certify_report_free(tt_certify_report *r);

/* tt_certify_default_rows - a few short rows of random tokens, enough that every fsdp rank has one and one has two.
 * Free with tt_batch_file_free. */
tt_status tt_certify_default_rows(const char *model, int fsdp_size, tt_batch_file *out);

#endif
