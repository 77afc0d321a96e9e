/* certify_save.c - loss, logits and gradients of the mesh run in one file, each rank writing what it holds. */
#include "train/certify_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct output {
    int64_t num_items, num_ranges;
    tt_st_item *items;
    tt_save_range *ranges;
    char **names; /* "grad.<name>" */
    int64_t *item_of; /* [params] */
} output;

static void free_output(output *o, int64_t num_params)
{
    for (int64_t i = 0; o->names && i < num_params; i++) free(o->names[i]);
    free(o->names);
    free(o->items);
    free(o->ranges);
    free(o->item_of);
}

static tt_status allocate(output *o, const tt_certify_run *run, int64_t num_pieces)
{
    int64_t params = run->engine.table.params.num;
    o->items = calloc((size_t)params + 2, sizeof *o->items);
    o->names = calloc((size_t)params + 1, sizeof *o->names);
    o->item_of = calloc((size_t)params + 1, sizeof *o->item_of);
    o->ranges = calloc((size_t)(num_pieces + run->batch.T) + 1, sizeof *o->ranges);
    TT_CHECK(o->items && o->names && o->item_of && o->ranges, TT_ENOMEM, "certify: out of memory for the outputs");
    return TT_OK;
}

static tt_status list_items(output *o, const tt_certify_run *run, const tt_batch_file *rows)
{
    const tt_params *params = &run->engine.table.params;
    int64_t V = run->engine.config.vocab_size;
    o->items[o->num_items++] = (tt_st_item){.name = "loss", .dtype = TT_F32};
    o->items[o->num_items++] =
        (tt_st_item){.name = "logits", .dtype = TT_F32, .ndim = 3, .shape = {rows->num_rows, rows->width, V}};
    for (int64_t i = 0; i < params->num; i++) {
        const tt_param *p = &params->at[i];
        if (!p->trained) continue;
        size_t size = strlen(p->name) + sizeof "grad.";
        o->names[i] = malloc(size);
        TT_CHECK(o->names[i], TT_ENOMEM, "certify: out of memory for the outputs");
        snprintf(o->names[i], size, "grad.%s", p->name);
        o->item_of[i] = o->num_items;
        tt_st_item *item = &o->items[o->num_items++];
        *item = (tt_st_item){.name = o->names[i], .dtype = TT_F32, .ndim = p->ndim};
        memcpy(item->shape, p->shape, sizeof p->shape);
    }
    return TT_OK;
}

static void list_ranges(output *o, const tt_certify_run *run, const tt_batch_file *rows, const float *loss)
{
    const tt_mesh *mesh = run->engine.mesh;
    int64_t num, V = run->engine.config.vocab_size;
    const tt_piece *pieces = tt_shards_pieces(run->engine.shards, &num);
    if (mesh->rank == 0) o->ranges[o->num_ranges++] = (tt_save_range){0, 0, 1, loss, TT_F32};
    for (int64_t t = 0; t < run->batch.T && mesh->tp_rank == 0; t++) {
        int64_t place = run->batch.rows[t] * rows->width + run->batch.columns[t];
        o->ranges[o->num_ranges++] = (tt_save_range){1, place * V, V, run->logits + t * V, TT_F32};
    }
    for (int64_t i = 0; i < num; i++) {
        if (!run->engine.table.params.at[pieces[i].param].trained) continue;
        tt_mat g = tt_shards_view(run->engine.shards, &pieces[i], TT_PART_GRADIENT);
        o->ranges[o->num_ranges++] =
            (tt_save_range){o->item_of[pieces[i].param], pieces[i].first, pieces[i].count, g.data, g.dtype};
    }
}

tt_status tt_certify_save(const char *path, bool overwrite, const tt_certify_run *run, const tt_batch_file *rows)
{
    output o = {0};
    float loss = (float)run->loss;
    int64_t num_pieces;
    tt_shards_pieces(run->engine.shards, &num_pieces);
    tt_status status = allocate(&o, run, num_pieces);
    if (status == TT_OK) status = list_items(&o, run, rows);
    status = tt_agree(run->engine.mesh->world, "certify-outputs", status);
    if (status == TT_OK) {
        list_ranges(&o, run, rows, &loss);
        status = tt_save_file(path, overwrite, run->engine.mesh, o.items, o.num_items, o.ranges, o.num_ranges);
    }
    free_output(&o, run->engine.table.params.num);
    return status;
}
