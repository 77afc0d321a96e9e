#include "train/engine.h"

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

static tt_status build(tt_comm *comm, const tt_engine_options *o, const tt_ops *ops, tt_engine *e)
{
    tt_precision precision = {o->resident, o->compute, ops->real, o->moments};
    TT_TRY(tt_mesh_create(comm, o->mesh, e->config.num_experts, &e->mesh));
    TT_TRY(tt_kernel_create(ops, o->threads, &e->kernel));
    TT_TRY(tt_shards_create(&e->table.params, e->mesh, precision, &e->shards));
    if (o->train) TT_TRY(tt_shards_train(e->shards, o->with_moments));
    TT_TRY(tt_model_init(&e->model, &e->config, &e->table, e->shards, e->kernel));
    if (o->folder) return tt_load_weights(&e->source, e->shards, o->threads, o->watch, &e->load);
    tt_init_weights(e->shards, o->init_seed);
    return TT_OK;
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
