#include "checkpoint/layout.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_FILE_BYTES 5000000000

void tt_layout_free(tt_layout *l)
{
    for (int64_t i = 0; l->names && i < l->num; i++) free(l->names[i]);
    tt_st_plan_free(&l->files);
    free(l->items);
    free(l->names);
    free(l->item_of);
    free(l->tensor_of);
    *l = (tt_layout){0};
}

/* --- the model ----------------------------------------------------------------------------------------------- */

static tt_status allocate(tt_layout *l, int64_t num_items, int64_t num_params)
{
    l->items = calloc((size_t)num_items + 1, sizeof *l->items);
    l->tensor_of = calloc((size_t)num_items + 1, sizeof *l->tensor_of);
    l->item_of = calloc((size_t)num_params + 1, sizeof *l->item_of);
    TT_CHECK(l->items && l->tensor_of && l->item_of, TT_ENOMEM, "out of memory for the layout of the files");
    return TT_OK;
}

typedef struct place {
    int file;
    int64_t begin, end, tensor;
} place;

/* All places differ, so that every rank sorts alike. */
static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* The source's tensors in the order of its files: its weights in the types that the table says, what is carried as it is. */
static tt_status list_source_items(const tt_params *params, const tt_source *source, tt_layout *l)
{
    const tt_st_folder *f = &source->folder;
    TT_TRY(allocate(l, f->num_tensors, params->num));
    place *places = malloc((size_t)(f->num_tensors + 1) * sizeof *places);
    int64_t *item_of = calloc((size_t)f->num_tensors + 1, sizeof *item_of);
    if (!places || !item_of) {
        free(places);
        free(item_of);
        return tt_error_set(TT_ENOMEM, "out of memory for the layout of the files");
    }
    for (int64_t i = 0; i < f->num_tensors; i++) {
        const tt_st_tensor *t = &f->tensors[i];
        if (source->role[i] == TT_SOURCE_WEIGHT || source->role[i] == TT_SOURCE_CARRIED)
            places[l->num++] = (place){t->file, t->begin, t->end, i};
    }
    qsort(places, (size_t)l->num, sizeof *places, by_place);
    for (int64_t j = 0; j < l->num; j++) {
        const tt_st_tensor *t = &f->tensors[places[j].tensor];
        l->items[j] = (tt_st_item){.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .file = t->file};
        memcpy(l->items[j].shape, t->shape, sizeof t->shape);
        l->tensor_of[j] = places[j].tensor;
        item_of[places[j].tensor] = j;
    }
    for (int64_t i = 0; i < params->num; i++) {
        l->item_of[i] = item_of[source->tensor[i]];
        l->items[l->item_of[i]].dtype = params->at[i].stored;
    }
    l->source = source;
    free(places);
    free(item_of);
    return TT_OK;
}

static tt_st_item item_of_param(const tt_param *p, const char *name, tt_dtype type)
{
    tt_st_item item = {.name = name, .dtype = type, .ndim = p->ndim};
    memcpy(item.shape, p->shape, sizeof p->shape);
    return item;
}

static tt_status list_table_items(const tt_params *params, tt_layout *l)
{
    TT_TRY(allocate(l, params->num, params->num));
    for (; l->num < params->num; l->num++) {
        const tt_param *p = &params->at[l->num];
        l->items[l->num] = item_of_param(p, p->name, p->stored);
        l->item_of[l->num] = l->num;
    }
    return TT_OK;
}

/* Another type than the source's, on request, for what training changes; the rest keeps its bytes. */
static tt_status set_types(const tt_params *params, const char *save_dtype, tt_layout *l)
{
    tt_dtype type;
    if (!save_dtype) return TT_OK;
    TT_TRY(tt_save_dtype(save_dtype, &type));
    for (int64_t i = 0; i < params->num; i++)
        if (params->at[i].trained) l->items[l->item_of[i]].dtype = type;
    return TT_OK;
}

/* A file of the source all of whose tensors were left out must not leave a gap in the numbering. */
static int close_gaps(tt_layout *l)
{
    int last = -1, used = -1;
    for (int64_t j = 0; j < l->num; j++) {
        if (l->items[j].file != last) used++;
        last = l->items[j].file;
        l->items[j].file = used;
    }
    return used + 1;
}

static int split(tt_layout *l, int64_t max_file_bytes)
{
    return tt_st_split(l->items, l->num, max_file_bytes ? max_file_bytes : DEFAULT_FILE_BYTES);
}

tt_status tt_layout_model(const tt_params *params, const tt_save_options *o, tt_layout *l)
{
    *l = (tt_layout){0};
    tt_status status = o->source ? list_source_items(params, o->source, l) : list_table_items(params, l);
    if (status == TT_OK) status = set_types(params, o->save_dtype, l);
    if (status == TT_OK) {
        int num_files = o->source ? close_gaps(l) : split(l, o->max_file_bytes);
        const json_t *metadata = o->source ? o->source->folder.metadata[0] : NULL;
        status = tt_st_layout(l->items, l->num, num_files, "model", metadata, &l->files);
    }
    if (status != TT_OK) tt_layout_free(l);
    return status;
}

/* --- the state beside it ------------------------------------------------------------------------------------- */

const char *tt_state_prefix(tt_state_kind kind)
{
    static const char *const prefixes[] = {"exp_avg.", "exp_avg_sq.", "master."};
    return prefixes[kind];
}

tt_dtype tt_state_type(tt_precision precision, const tt_param *param, tt_state_kind kind)
{
    if (param->exact) return precision.real;
    return kind == TT_STATE_MASTER ? precision.resident : precision.moments;
}

/* Every value of `from` is one of `to`: the larger types hold the smaller ones, and the two of 16 bits differ. */
static bool holds(tt_dtype to, tt_dtype from)
{
    return to == from || tt_dtype_size(to) > tt_dtype_size(from);
}

bool tt_layout_has_master(const tt_params *params, const tt_layout *model, tt_precision precision, int64_t param)
{
    const tt_param *p = &params->at[param];
    tt_dtype kept = tt_state_type(precision, p, TT_STATE_MASTER);
    /* What is not trained - buffers beside routers - came from a file's type and fits it. */
    return p->trained && !holds(model->items[model->item_of[param]].dtype, kept);
}

static tt_status add_state(tt_layout *l, const tt_param *p, tt_state_kind kind, tt_precision precision)
{
    if (asprintf(&l->names[l->num], "%s%s", tt_state_prefix(kind), p->name) < 0) {
        l->names[l->num] = NULL;
        return tt_error_set(TT_ENOMEM, "out of memory for the layout of the files");
    }
    l->items[l->num] = item_of_param(p, l->names[l->num], tt_state_type(precision, p, kind));
    l->num++;
    return TT_OK;
}

tt_status tt_layout_state(const tt_params *params, const tt_layout *model, tt_precision precision, bool moments,
                          int64_t max_file_bytes, tt_layout *l)
{
    tt_status status = TT_OK;
    *l = (tt_layout){.items = calloc((size_t)params->num * TT_NUM_STATE_KINDS + 1, sizeof *l->items),
                     .names = calloc((size_t)params->num * TT_NUM_STATE_KINDS + 1, sizeof *l->names)};
    if (!l->items || !l->names) status = tt_error_set(TT_ENOMEM, "out of memory for the layout of the files");
    for (int64_t i = 0; i < params->num && status == TT_OK; i++) {
        const tt_param *p = &params->at[i];
        for (int kind = 0; kind < TT_NUM_STATE_KINDS && status == TT_OK; kind++) {
            bool there = kind == TT_STATE_MASTER ? tt_layout_has_master(params, model, precision, i) : moments && p->trained;
            if (there) status = add_state(l, p, (tt_state_kind)kind, precision);
        }
    }
    if (status == TT_OK) status = tt_st_layout(l->items, l->num, split(l, max_file_bytes), TT_STATE_STEM, NULL, &l->files);
    if (status != TT_OK) tt_layout_free(l);
    return status;
}
