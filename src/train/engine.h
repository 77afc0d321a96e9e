/* engine.h - a model folder opened on a mesh: every part in one place, in the order in which they depend on each other.
 *
 *   configuration -> table -> source files -> mesh -> kernel -> shards -> model -> weights
 *
 * What can be refused is refused before weights are read.
 */
#ifndef TT_TRAIN_ENGINE_H
#define TT_TRAIN_ENGINE_H

#include "checkpoint/checkpoint.h"
#include "train/step.h"

typedef struct tt_engine_options {
    const char *folder;       /* model folder; NULL with `config`: random weights */
    const tt_checkpoint *checkpoint; /* of `folder`: optimizer state comes along; its checksums are the caller's to verify; NULL: none */
    json_t *config;           /* with folder NULL: the object of config.json (borrowed) */
    uint64_t init_seed;       /* with folder NULL */
    tt_mesh_sizes mesh;
    const tt_ops *ops;        /* NULL: tt_ops_default, which the environment may name */
    tt_dtype resident, compute, moments; /* F64 for all with tt_ops_ref_f64 */
    int threads;
    bool train, with_moments; /* allocate gradients, optimizer state */
    bool bare;                /* hold no unit yet: tt_engine_hold */
    const tt_read_watch *watch; /* of the weights being read; NULL: nobody watches */
} tt_engine_options;

/* Fields are for reading; tests and certify reach into them. */
typedef struct tt_engine {
    tt_model_config config;
    tt_model_table table;
    tt_source source;   /* source.tensor is NULL when weights are random */
    tt_mesh *mesh;
    tt_kernel *kernel;
    tt_shards *shards;
    tt_model model;
    tt_load_report load;      /* of this rank; zero when weights are random */
    tt_load_summary loaded;   /* of all ranks */
} tt_engine;

/* tt_engine_check_mesh - tt_mesh_resolve for this model. Pure. TT_ECONFIG. */
tt_status tt_engine_check_mesh(tt_mesh_sizes *sizes, int world_size, const tt_model_config *config);

/* tt_engine_open - collective over comm's world; all ranks return the same status. On failure *e is empty. */
tt_status tt_engine_open(tt_comm *comm, const tt_engine_options *o, tt_engine *e);
/* tt_engine_hold - let go of the weights and gradients held, and hold those of units[num] alone: loaded from the folder as
 * tt_engine_open does, gradients zero. o: the options that the engine was opened with. Local; after a failure the engine can
 * only be closed. */
tt_status tt_engine_hold(tt_engine *e, const tt_engine_options *o, const int *units, int num);
/* Accepts an empty engine. Local. */
void tt_engine_close(tt_engine *e);

#endif
