/* tartan/trainer.h - fine-tune a model from a program of your own.
 *
 *   tt_comm_create(&comm);                                     the world this process was started in
 *   tt_trainer_open(comm, &options, &trainer);                 weights into shards
 *   for each step: tt_trainer_step(trainer, rows, n, lr, &result);
 *   tt_trainer_save(trainer, "out", false);
 *   tt_trainer_close(&trainer);
 *   tt_comm_destroy(&comm);
 *
 * Every function is collective over the comm's world: all ranks call it, in the same order, with the same options; only the
 * rows differ. A failure that is found before weights move is the same on all ranks; after a failure inside a step, save or
 * open that names another rank, the comm is good for tt_comm_abort and tt_comm_destroy only. examples/ has programs.
 *
 * A program that may be told to stop, by a signal or a clock, has ranks agree behind a step: 1 on any of them, passed to
 * tt_allreduce_max_i64(tt_comm_world(comm), "stop", &stop, 1), is 1 on all.
 */
#ifndef TARTAN_TRAINER_H
#define TARTAN_TRAINER_H

#include "tartan/mesh.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_trainer tt_trainer;

/* Start from TT_TRAINER_OPTIONS. */
typedef struct tt_trainer_options {
    const char *model;       /* folder with config.json and safetensors; read, never written */
    tt_mesh_sizes mesh;      /* zeros: every rank its own batch, ep_size 1 */
    bool bf16;               /* operands of matrix products in bfloat16; weights and sums stay fp32 */
    bool recompute;          /* keep block inputs only and compute the rest again in backward ... */
    int64_t kept_layers;     /* ... but keep all of the last layers, so many: more memory, less work */
    int threads;             /* of each rank; 0: its share of the host's cpus */
    bool sgd;                /* plain SGD instead of AdamW */
    double beta1, beta2, epsilon, weight_decay;
    double max_grad_norm;    /* 0: no clipping */
    double balance;          /* weight of the router's balance loss, 0: off ... */
    bool balance_by_rank;    /* ... taken over each rank's own rows, as the common stack does; else over all ranks' together */
} tt_trainer_options;

#define TT_TRAINER_OPTIONS                                                                                             \
    {                                                                                                                  \
        .bf16 = true, .recompute = true, .kept_layers = 1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8,              \
        .max_grad_norm = 1.0                                                                                           \
    }

/* One row of a rank's micro-step; all borrowed for the call. labels are not shifted: labels[i] belongs to ids[i], and the
 * prediction at i - 1 is trained to give it; -100 is not trained. labels NULL: every token is trained. */
typedef struct tt_trainer_row {
    int64_t length;
    const int32_t *ids, *labels;
} tt_trainer_row;

/* The rows of one micro-step of this rank; num may be 0. Ranks that share a batch (tp_size) pass the same rows. */
typedef struct tt_trainer_micro {
    int64_t num;
    const tt_trainer_row *rows;
} tt_trainer_micro;

typedef struct tt_trainer_result {
    double loss;      /* mean nll per trained token of the step over all ranks, plus the balance loss */
    double grad_norm; /* before clipping */
    double accuracy;  /* share of trained tokens that were the most likely ones */
    int64_t tokens;   /* of the step, all ranks, each counted once */
    int64_t targets;  /* of them trained */
} tt_trainer_result;

/* tt_trainer_open - TT_ECONFIG for options and meshes that cannot be, TT_EMISMATCH and TT_EFORMAT for the folder, TT_ENOMEM.
 * *out is owned by the caller. comm is borrowed until the close. */
tt_status tt_trainer_open(tt_comm *comm, const tt_trainer_options *options, tt_trainer **out);
void tt_trainer_close(tt_trainer **trainer);

/* tt_trainer_step - forward and backward over micros[num] (the same num on every rank), clip, update with learning rate lr.
 * TT_EDATA for rows that do not fit the model, TT_ENONFINITE when loss or norm is not finite: nothing was updated. */
tt_status tt_trainer_step(tt_trainer *trainer, const tt_trainer_micro *micros, int num, double lr,
                          tt_trainer_result *result);

/* tt_trainer_save - the model as a folder like its source: names, types, files, tokenizer. Refused (TT_ECONFIG) when the
 * folder holds a model already, unless overwrite. */
tt_status tt_trainer_save(tt_trainer *trainer, const char *folder, bool overwrite);

/* This rank's place in the mesh. Borrowed. */
const tt_mesh *tt_trainer_mesh(const tt_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
