#include "train/nonfinite.h"
#include "base/checked.h"
#include "base/log.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAMED = 16 };

/* Rows that a rank suspects, as they travel; more than are named are only counted. */
typedef struct suspects {
    int64_t num;
    struct {
        int32_t micro, row;
    } at[NAMED];
} suspects;

typedef enum evidence { OWN_LOSS, LOSS_OF_BATCH, GRADIENT } evidence;

typedef struct finding {
    evidence evidence;
    suspects *ranks; /* [world] */
    int64_t total;
    int64_t weight; /* first parameter whose weights are not finite, -1: none */
    int64_t param;  /* -1: gradients are finite */
    int owner;
} finding;

/* --- one row after the other ---------------------------------------------------------------------------------- */

/* The rows of micro-batches; with nll those of micro-batches whose loss is not finite. */
typedef struct walk {
    const tt_batch *micros;
    const double *nll;
    int num, micro;
    int64_t token, doc; /* where the next row begins */
    int64_t *offset;    /* [documents of the longest + 1] of the row at hand */
} walk;

static tt_status walk_open(walk *w, const tt_batch *micros, const double *nll, int num)
{
    int64_t most = 0;
    *w = (walk){.micros = micros, .nll = nll, .num = num};
    for (int i = 0; i < num; i++) most = tt_max_i64(most, micros[i].docs.num);
    w->offset = malloc(((size_t)most + 1) * sizeof *w->offset);
    TT_CHECK(w->offset, TT_ENOMEM, "out of memory for a row");
    return TT_OK;
}

/* The next row as a batch of its own, which looks into the one that it comes from; *micro is that one's number. */
static bool walk_next(walk *w, int *micro, tt_batch *row)
{
    while (w->micro < w->num &&
           (w->token == w->micros[w->micro].T || (w->nll && isfinite(w->nll[w->micro])))) {
        w->micro++;
        w->token = w->doc = 0;
    }
    if (w->micro == w->num) return false;
    const tt_batch *b = &w->micros[w->micro];
    int64_t lo = w->token, hi = lo, docs = 0;
    while (hi < b->T && b->rows[hi] == b->rows[lo]) hi++;
    for (; w->doc < b->docs.num && b->offset[w->doc] < hi; w->doc++) w->offset[docs++] = b->offset[w->doc] - lo;
    w->offset[docs] = hi - lo;
    *row = (tt_batch){
        .T = hi - lo,
        .ids = b->ids + lo,
        .positions = b->positions + lo,
        .columns = b->columns + lo,
        .targets = b->targets + lo,
        .rows = b->rows + lo,
        .docs = {docs, w->offset, b->columns + lo},
    };
    for (int64_t t = 0; t < row->T; t++) row->num_targets += row->targets[t] != TT_NO_TARGET;
    *micro = w->micro;
    w->token = hi;
    return true;
}

static void suspect(suspects *s, int micro, const tt_batch *row)
{
    if (s->num < NAMED) {
        s->at[s->num].micro = micro;
        s->at[s->num].row = row->rows[0];
    }
    s->num++;
}

static tt_status list_rows(const tt_batch *micros, const double *nll, int num, suspects *s)
{
    walk w;
    int micro;
    tt_batch row;
    *s = (suspects){0};
    TT_TRY(walk_open(&w, micros, nll, num));
    while (walk_next(&w, &micro, &row)) suspect(s, micro, &row);
    free(w.offset);
    return TT_OK;
}

/* --- whose own loss is not finite ----------------------------------------------------------------------------- */

/* `passes` rows of every rank, side by side; a rank that has no more takes part with an empty batch. */
static tt_status run_alone(tt_model *m, walk *w, int64_t passes, suspects *s)
{
    for (int64_t i = 0; i < passes; i++) {
        int micro;
        tt_batch row, none = {.docs.offset = w->offset};
        tt_micro_result r;
        w->offset[0] = 0;
        bool there = walk_next(w, &micro, &row);
        TT_TRY(tt_model_micro_step(m, &(tt_micro){.batch = there ? &row : &none}, &r));
        if (there && !isfinite(r.sums.nll)) suspect(s, micro, &row);
    }
    return TT_OK;
}

static tt_status find_own_losses(tt_model *m, const tt_batch *micros, const double *nll, int num, int64_t passes,
                                 suspects *s)
{
    walk w;
    int64_t *counts = m->expert_counts;
    *s = (suspects){0};
    m->expert_counts = NULL; /* these passes are no part of the training that statistics tell of */
    tt_status status = tt_agree(m->mesh->world, "nonfinite-rows", walk_open(&w, micros, nll, num));
    if (status == TT_OK) status = run_alone(m, &w, passes, s);
    m->expert_counts = counts;
    free(w.offset);
    return status;
}

/* This rank's suspects. Ranks that share a batch find the same: the first of them speaks. */
static tt_status find_rows(tt_model *m, const tt_batch *micros, const double *nll, int num, evidence *kind, suspects *s)
{
    tt_group *world = m->mesh->world;
    TT_TRY(tt_agree(world, "nonfinite-rows", list_rows(micros, nll, num, s)));
    int64_t passes = s->num, found = 0;
    TT_TRY(tt_allreduce_max_i64(world, "nonfinite-rows", &passes, 1));
    if (passes > 0) TT_TRY(find_own_losses(m, micros, nll, num, passes, s));
    if (passes > 0) found = s->num;
    TT_TRY(tt_allreduce_max_i64(world, "nonfinite-rows", &found, 1));
    *kind = found > 0 ? OWN_LOSS : passes > 0 ? LOSS_OF_BATCH : GRADIENT;
    if (*kind != OWN_LOSS)
        TT_TRY(tt_agree(world, "nonfinite-rows", list_rows(micros, *kind == GRADIENT ? NULL : nll, num, s)));
    if (m->mesh->tp_rank > 0) *s = (suspects){0};
    return TT_OK;
}

/* --- the first bad weight, the first bad gradient ------------------------------------------------------------- */

static bool all_finite(tt_model *m, tt_mat v)
{
    enum { PIECE = 256 };
    double x[PIECE];
    if (v.dtype == m->kernel->ops->real) return isfinite(m->kernel->ops->sum_squares(m->kernel, v));
    for (int64_t r = 0; r < v.rows; r++)
        for (int64_t c = 0; c < v.cols; c += PIECE) {
            int64_t n = tt_min_i64(PIECE, v.cols - c);
            tt_convert(x, TT_F64, (const char *)tt_mat_row(v, r) + (size_t)c * tt_dtype_size(v.dtype), v.dtype, n);
            for (int64_t i = 0; i < n; i++)
                if (!isfinite(x[i])) return false;
        }
    return true;
}

/* The first parameter with a value that is not finite in a part of the shards, -1 when there is none, and who owns the place. */
static tt_status find_param(tt_model *m, tt_shard_part part, int64_t *param, int *owner)
{
    int64_t num, size = m->mesh->world_size, first = -INT64_MAX; /* negative, for a minimum by the maximum */
    const tt_piece *pieces = tt_shards_pieces(m->shards, &num);
    for (int64_t i = 0; i < num && first == -INT64_MAX; i++) {
        if (part == TT_PART_GRADIENT && !tt_shards_params(m->shards)->at[pieces[i].param].trained) continue;
        tt_mat v = tt_shards_view(m->shards, &pieces[i], part);
        if (!all_finite(m, v)) first = -(pieces[i].param * size + m->mesh->rank);
    }
    TT_TRY(tt_allreduce_max_i64(m->mesh->world, "nonfinite-parameter", &first, 1));
    *param = first == -INT64_MAX ? -1 : -first / size;
    *owner = first == -INT64_MAX ? 0 : (int)(-first % size);
    return TT_OK;
}

/* --- in words ------------------------------------------------------------------------------------------------- */

/* "rank 1: row 5 (line 6), row 8 (line 9); rank 3: row 2 (line 3)", without ranks when there is one. */
static void put_rows(tt_text *t, const tt_mesh *mesh, const finding *f, const tt_step_options *o)
{
    int named = 0;
    for (int rank = 0; rank < mesh->world_size; rank++) {
        const suspects *s = &f->ranks[rank];
        for (int64_t i = 0; i < s->num && i < NAMED && named < NAMED; i++, named++) {
            char name[128];
            if (o->row_name)
                o->row_name(o->row_user, s->at[i].row, name, sizeof name);
            else
                snprintf(name, sizeof name, "row %d of micro-batch %d", s->at[i].row, s->at[i].micro);
            if (i == 0 && mesh->world_size > 1) tt_text_put(t, "%srank %d: ", named ? "; " : "", rank);
            tt_text_put(t, "%s%s", i ? ", " : "", name);
        }
    }
    if (f->total > named) tt_text_put(t, ", ... (%lld in all)", (long long)f->total);
}

static void put_finding(tt_text *t, const tt_model *m, const finding *f, const tt_step_options *o, const tt_step_result *r)
{
    static const char *const why[] = {
        [OWN_LOSS] = "the loss is not finite in",
        [LOSS_OF_BATCH] = "the loss is not finite in a micro-batch with",
        [GRADIENT] = "every loss is finite; the step has",
    };
    tt_text_put(t, "step %lld: loss %g, gradient norm %g; ", (long long)o->step, r->loss, r->grad_norm);
    if (f->weight >= 0) tt_text_put(t, "the weights of '%s' are not finite; ", tt_shards_params(m->shards)->at[f->weight].name);
    tt_text_put(t, "%s ", why[f->evidence]);
    put_rows(t, m->mesh, f, o);
    if (f->param < 0)
        tt_text_put(t, "; gradients are finite");
    else if (m->mesh->world_size > 1)
        tt_text_put(t, "; first bad gradient: '%s' on rank %d", tt_shards_params(m->shards)->at[f->param].name, f->owner);
    else
        tt_text_put(t, "; first bad gradient: '%s'", tt_shards_params(m->shards)->at[f->param].name);
}

/* --- together ------------------------------------------------------------------------------------------------- */

static tt_status find(tt_model *m, const tt_batch *micros, const double *nll, int num, finding *f)
{
    suspects mine;
    tt_group *world = m->mesh->world;
    int owner;
    TT_TRY(find_param(m, TT_PART_WEIGHT, &f->weight, &owner));
    TT_TRY(find_param(m, TT_PART_GRADIENT, &f->param, &f->owner));
    TT_TRY(find_rows(m, micros, nll, num, &f->evidence, &mine));
    f->ranks = calloc((size_t)m->mesh->world_size, sizeof *f->ranks);
    tt_status status = f->ranks ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the rows of a step");
    TT_TRY(tt_agree(world, "nonfinite-rows", status));
    TT_TRY(tt_allgather(world, "nonfinite-rows", &mine, f->ranks, sizeof mine));
    for (int rank = 0; rank < m->mesh->world_size; rank++) f->total += f->ranks[rank].num;
    return TT_OK;
}

/* The message begins with a rank, which is then not added when it is agreed on: the first that has a bad row. */
static tt_status fail(const tt_model *m, const finding *f, const char *what)
{
    int rank = 0;
    char prefix[32] = "";
    while (rank + 1 < m->mesh->world_size && f->ranks[rank].num == 0) rank++;
    if (m->mesh->world_size > 1) snprintf(prefix, sizeof prefix, "rank %d: ", rank);
    return tt_error_set(TT_ENONFINITE, "%s%s. Nothing was updated. %s, or set nonfinite: skip", prefix, what,
                        f->weight >= 0 ? "Look at the model (tartan verify --deep lists such tensors)"
                                       : "Look at these rows, lower learning_rate");
}

tt_status tt_nonfinite_report(tt_model *m, const tt_batch *micros, const double *nll, int num, const tt_step_options *o,
                              const tt_step_result *r)
{
    char what[1800];
    finding f = {0};
    tt_text t = {what, sizeof what, 0};
    tt_status status = find(m, micros, nll, num, &f);
    if (status == TT_OK) {
        put_finding(&t, m, &f, o, r);
        if (o->nonfinite == TT_NONFINITE_SKIP)
            tt_warn("%s. The update was skipped", what);
        else
            status = tt_agree(m->mesh->world, "nonfinite", fail(m, &f, what));
    }
    free(f.ranks);
    return status;
}
