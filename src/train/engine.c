#include "train/engine.h"
#include "comm/recorder.h"

#include <stdio.h>
#include <string.h>

tt_status tt_engine_check_mesh(tt_mesh_sizes *sizes, int world_size, const tt_model_config *config)
{
    return tt_mesh_resolve(sizes, world_size, config->num_experts);
}

static tt_status open_files(const tt_engine_options *o, int world_size, tt_engine *e)
{
    tt_mesh_sizes sizes = o->mesh;
    TT_TRY(o->folder ? tt_model_config_load(o->folder, &e->config)
                     : tt_model_config_read(o->config, "config.json", &e->config));
    TT_TRY(tt_engine_check_mesh(&sizes, world_size, &e->config));
    TT_TRY(tt_model_table_build(&e->config, &e->table));
    return o->folder ? tt_source_open(o->folder, &e->table.params, e->config.tied, &e->source) : TT_OK;
}

static tt_precision precision_of(const tt_engine_options *o, const tt_ops *ops)
{
    return (tt_precision){o->resident, o->compute, ops->real, o->moments};
}

/* Ranks that are done wait for those that still read: tt_comm_transfer_begin. */
static tt_status load(const tt_engine_options *o, tt_engine *e)
{
    tt_comm *comm = e->mesh->comm;
    tt_read_watch watch = o->watch ? *o->watch : (tt_read_watch){0};
    watch.done = tt_comm_moved(comm);
    tt_shard_bytes bytes = tt_shards_bytes(e->shards);
    tt_comm_transfer_begin(comm, bytes.weights + (o->checkpoint ? bytes.moments : 0));
    tt_status status = o->checkpoint
                           ? tt_checkpoint_load(o->checkpoint, &e->source, e->shards, o->threads, &watch, &e->load)
                           : tt_load_weights(&e->source, e->shards, o->threads, &watch, &e->load);
    tt_comm_transfer_end(comm);
    return status;
}

static tt_status fill(const tt_engine_options *o, tt_engine *e)
{
    if (o->train) TT_TRY(tt_shards_train(e->shards, o->with_moments));
    if (o->folder) return load(o, e);
    tt_init_weights(e->shards, o->init_seed);
    return TT_OK;
}

/* Kernels give the ranks' messages a moment now and then. */
static void move_bytes(void *comm)
{
    tt_comm_progress(comm);
}

/* Ranks that share a batch must hold the same bits (moe/dispatch.h): a near tie that one of them breaks the other way would make
 * their parts those of two models. */
static tt_status check_replicas(const tt_mesh *mesh, const tt_kernel *k)
{
    enum { LENGTH = 64 };
    char mine[LENGTH] = "", first[LENGTH] = "";
    if (mesh->tp_size == 1) return TT_OK;
    snprintf(mine, sizeof mine, "%s%s%s, %d thread%s", k->ops->name, k->ops->isa ? " " : "", k->ops->isa ? k->ops->isa : "",
             k->threads, k->threads > 1 ? "s" : "");
    memcpy(first, mine, sizeof first);
    TT_TRY(tt_broadcast(mesh->tp, "kernels", 0, first, sizeof first));
    TT_CHECK(strcmp(mine, first) == 0, TT_ECONFIG,
             "this rank computes with kernels '%s', and another that shares its batch (tp_size %d) with '%s'; their results would "
             "differ in rounding, so set TARTAN_ISA, TARTAN_KERNELS and threads alike",
             mine, mesh->tp_size, first);
    return TT_OK;
}

static tt_status build(tt_comm *comm, const tt_engine_options *o, const tt_ops *ops, tt_engine *e)
{
    const tt_params *params = &e->table.params;
    TT_TRY(tt_mesh_create(comm, o->mesh, e->config.num_experts, &e->mesh));
    TT_TRY(tt_kernel_create(ops, o->threads, &e->kernel));
    if (tt_comm_size(comm) > 1) e->kernel->meanwhile = move_bytes, e->kernel->meanwhile_user = comm;
    TT_TRY(tt_agree(e->mesh->world, "kernels", check_replicas(e->mesh, e->kernel)));
    TT_TRY(o->bare ? tt_shards_create_units(params, e->mesh, precision_of(o, ops), NULL, 0, &e->shards)
                   : tt_shards_create(params, e->mesh, precision_of(o, ops), &e->shards));
    TT_TRY(tt_model_init(&e->model, &e->config, &e->table, e->shards, e->kernel));
    return fill(o, e);
}

tt_status tt_engine_hold(tt_engine *e, const tt_engine_options *o, const int *units, int num)
{
    tt_shards_destroy(&e->shards);
    e->model.shards = NULL;
    TT_TRY(tt_shards_create_units(&e->table.params, e->mesh, precision_of(o, e->kernel->ops), units, num, &e->shards));
    e->model.shards = e->shards;
    return fill(o, e);
}

tt_status tt_engine_open(tt_comm *comm, const tt_engine_options *o, tt_engine *e)
{
    *e = (tt_engine){0};
    tt_comm_set_phase(comm, "open");
    const tt_ops *ops = o->ops;
    tt_status status = ops ? TT_OK : tt_ops_default(&ops);
    if (status == TT_OK) status = open_files(o, tt_comm_size(comm), e);
    status = tt_agree(tt_comm_world(comm), "open-files", status);
    if (status == TT_OK) tt_comm_set_phase(comm, "load");
    if (status == TT_OK) status = tt_agree(tt_comm_world(comm), "load", build(comm, o, ops, e));
    if (status == TT_OK && o->folder) status = tt_load_summarise(e->mesh, &e->load, &e->loaded);
    if (status != TT_OK) tt_engine_close(e);
    return status;
}

void tt_engine_close(tt_engine *e)
{
    tt_model_fini(&e->model);
    tt_shards_destroy(&e->shards);
    tt_kernel_destroy(&e->kernel);
    tt_mesh_destroy(&e->mesh);
    if (e->source.tensor) tt_source_close(&e->source);
    tt_model_table_free(&e->table);
    tt_model_config_free(&e->config);
    *e = (tt_engine){0};
}
