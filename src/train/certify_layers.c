/* certify_layers.c - the references one part of the model at a time, for models of which two do not fit in memory.
 *
 * A part is the embedding, a block, or the head with the final norm. The mesh run keeps the residual stream between parts
 * and its gradient there (tt_model.tap), each rank those of its tokens. Then for each part in turn rank 0
 *
 *   holds its weights, read from the model's folder as a world of one reads them;
 *   gathers four matrices [T,D] of the joint batch: what the mesh gave to the part and what it got from it, in forward and
 *   in backward;
 *   runs forward and backward on both tables of reference kernels, on what the mesh gave, replaying the mesh's choices;
 *   compares what comes out: the stream behind the part, the choices, the gradient in front of it, and the gradient of
 *   every parameter of the part.
 *
 * Why this proves the whole: let F_i be what one process computes in part i, and G_i what the mesh does. The mesh's stream
 * is x_i+1 = G_i(x_i), and it is shown that G_i(x_i) = F_i(x_i), up to rounding, at the very x_i that the mesh had: its
 * forward pass is the chain of the F_i. So is its backward pass: the gradient that left part i+1 is the one that entered
 * part i, being the same record. The chain begins with the token ids, which rank 0 reads itself, and the head turns it
 * round: its loss and its gradient come from the stream alone. Errors do not compound on the way: what a part gets wrong is
 * found in that part, and the parts behind it are judged by what they were given.
 *
 * What couples parts beside the stream: a tied matrix has the sum of two gradients, so the embedding is run while the head
 * is held; the balance loss pools all layers, but of the others its gradient needs the counts of choices alone, exact
 * integers that rank 0 has from the start. Its value is formed at the end from the reference's probabilities.
 *
 * Costs: at rank 0, 16 bytes per parameter of the largest part, activations of that part, nine matrices [T,D] and the
 * choices of all layers; on every rank 8 (layers + 1) D bytes for each of its tokens. The time is that of the whole
 * references, without recomputation.
 */
#include "train/certify_impl.h"
#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of the two references, and what it makes of a part. */
typedef struct side {
    tt_certify_run *run;
    float *x, *dx;      /* [T,D] */
    tt_balance balance; /* counts and rows from the choices; sums grow part by part */
    tt_loss_sums sums;
} side;

typedef struct layers {
    const tt_certify_options *o;
    const tt_certify_run *mesh;
    tt_certify_report *report;
    tt_certify_places places;
    tt_certify_comparison *comparison;
    tt_certify_judge *judge;
    side sides[2];                    /* reference, alternative */
    float *given, *dgiven;            /* [T,D] the mesh's: the stream in front of the part, its gradient; */
    float *got, *dgot;                /* behind the part */
    float *matrices;                  /* all of these */
    double *statistics;               /* all balances */
    int last;                         /* the head's number */
    int64_t n;                        /* T D of the joint batch */
} layers;

static bool at_root(const layers *l)
{
    return l->mesh->engine.mesh->rank == 0;
}

/* --- open ------------------------------------------------------------------------------------------------------------ */

static tt_status allocate(layers *l)
{
    const tt_model_config *c = &l->mesh->engine.config;
    int64_t E = c->num_experts;
    l->n = l->sides[0].run->batch.T * c->hidden_size;
    l->matrices = malloc((size_t)l->n * 8 * sizeof *l->matrices + 1);
    l->statistics = calloc((size_t)E * 4 + 1, sizeof *l->statistics);
    TT_CHECK(l->matrices && l->statistics, TT_ENOMEM, "certify: out of memory for eight matrices of %lld elements",
             (long long)l->n);
    float **parts[] = {&l->given,      &l->got,         &l->dgiven,     &l->dgot,
                       &l->sides[0].x, &l->sides[0].dx, &l->sides[1].x, &l->sides[1].dx};
    for (int i = 0; i < 8; i++) *parts[i] = l->matrices + i * l->n;
    for (int i = 0; i < 2; i++) {
        l->sides[i].balance.counts = l->statistics + 2 * i * E;
        l->sides[i].balance.sums = l->sides[i].balance.counts + E;
    }
    return TT_OK;
}

/* Rows of the report: what the embedding gives; of each block what it gives and the gradient that it returns; the gradient
 * that the head returns. */
static tt_status allocate_streams(layers *l)
{
    tt_certify_report *r = l->report;
    int64_t num = 2 * (int64_t)l->last;
    char **names = realloc(r->names, (size_t)(r->num_rows + num) * sizeof *names);
    if (names) r->names = names;
    r->streams = calloc((size_t)num, sizeof *r->streams);
    TT_CHECK(names && r->streams, TT_ENOMEM, "certify: out of memory");
    for (int64_t i = 0; i < num; i++) names[r->num_rows + i] = NULL;
    r->num_streams = num;
    return TT_OK;
}

/* The mesh's choices of all layers, counted. */
static void count_choices(layers *l)
{
    const tt_certify_run *r = l->sides[0].run;
    const tt_model_config *c = &r->engine.config;
    int moe = tt_model_moe_index(c, (int)c->num_layers);
    for (int i = 0; i < 2; i++) {
        tt_balance *b = &l->sides[i].balance;
        for (int m = 0; m < moe; m++)
            for (int64_t j = 0; j < r->batch.T * c->experts_per_token; j++) b->counts[r->choices[m][j]]++;
        b->rows = (double)r->batch.T * moe;
    }
}

static tt_status open_layers(layers *l)
{
    const tt_mesh *mesh = l->mesh->engine.mesh;
    int64_t width = l->mesh->engine.config.hidden_size * (int64_t)sizeof(float);
    tt_status status = TT_OK;
    if (at_root(l)) status = tt_certify_open_reference(l->o, &tt_ops_ref, true, l->sides[0].run);
    if (at_root(l) && status == TT_OK) status = tt_certify_open_reference(l->o, &tt_ops_alt, true, l->sides[1].run);
    if (at_root(l) && status == TT_OK) status = allocate(l);
    TT_TRY(tt_agree(mesh->world, "certify-reference", status));
    TT_TRY(tt_certify_gather_choices(l->mesh, l->sides[0].run));
    if (at_root(l)) count_choices(l);
    TT_TRY(tt_certify_places_open(l->mesh, &l->sides[0].run->batch, width, &l->places));
    TT_TRY(tt_certify_comparison_open(l->mesh, l->report, &l->comparison));
    if (at_root(l)) status = allocate_streams(l);
    if (at_root(l) && status == TT_OK) status = tt_certify_judge_choices(l->sides[0].run, l->report, &l->judge);
    return tt_agree(mesh->world, "certify-streams", status);
}

static void close_layers(layers *l)
{
    tt_certify_judge_end(&l->judge);
    tt_certify_comparison_close(&l->comparison);
    tt_certify_places_close(&l->places);
    free(l->matrices);
    free(l->statistics);
}

/* --- one part -------------------------------------------------------------------------------------------------------- */

static tt_status gather_one(layers *l, const float *mine, int border, float *all)
{
    int64_t D = l->mesh->engine.config.hidden_size;
    const float *from = mine ? mine + border * l->mesh->batch.T * D : NULL;
    return tt_certify_gather(&l->places, "certify-stream", D * (int64_t)sizeof *all, from, all);
}

/* What the mesh gave to the part and got from it. Border i of the record lies behind part i. */
static tt_status gather_streams(layers *l, int part)
{
    if (part > 0) {
        TT_TRY(gather_one(l, l->mesh->values, part - 1, l->given));
        TT_TRY(gather_one(l, l->mesh->gradients, part - 1, l->dgiven));
    }
    if (part == l->last) return TT_OK;
    TT_TRY(gather_one(l, l->mesh->values, part, l->got));
    return gather_one(l, l->mesh->gradients, part, l->dgot);
}

static tt_status run_side(layers *l, side *s, int part)
{
    const tt_certify_run *reference = l->sides[0].run;
    tt_engine *e = &s->run->engine;
    size_t bytes = (size_t)l->n * sizeof *s->x;
    tt_micro micro = {
        .batch = &s->run->batch,
        .backward = true,
        .scale = 1 / (double)s->run->batch.num_targets,
        .balance = tt_certify_balance(&e->config),
        .replay = (const int32_t *const *)reference->choices,
    };
    if (part > 0) memcpy(s->x, l->given, bytes);
    if (part < l->last) memcpy(s->dx, l->dgot, bytes);
    tt_mat x = tt_mat_of(s->x, TT_F32, s->run->batch.T, e->config.hidden_size), dx = x;
    dx.data = s->dx;
    return tt_model_part(&e->model, &micro, part, x, dx, &s->balance, &s->sums);
}

/* Differences count relative to what the part adds to a stream, or a fault in it would hide beside a large stream. The
 * additions themselves round relative to the stream: at most once for attention, shared experts and each chosen expert, here
 * and there, with at most half a unit in the last place each. `from` is NULL where the part starts a stream. */
static tt_status compare_stream(layers *l, int64_t at, int part, const char *what, const float *mesh, const float *from,
                                const float *reference, const float *alternative)
{
    tt_certify_report *r = l->report;
    tt_certify_row *row = &r->streams[at];
    char name[80];
    if (part == 0) snprintf(name, sizeof name, "model.embed_tokens: %s", what);
    else if (part == l->last) snprintf(name, sizeof name, "model.norm and head: %s", what);
    else snprintf(name, sizeof name, "model.layers.%d: %s", part - 1, what);
    row->name = r->names[r->num_rows + at] = strdup(name);
    TT_CHECK(row->name, TT_ENOMEM, "certify: out of memory");
    double additions = 2 * (2 + (double)l->mesh->engine.config.experts_per_token);
    tt_distance d = tt_certify_measure(mesh, reference, l->n), yard = tt_certify_measure(alternative, reference, l->n);
    double added = from ? tt_certify_measure(from, reference, l->n).difference : d.norm;
    double rounding = from ? additions * 0x1p-24 * d.norm : 0;
    double allowed = fmax(TT_CERTIFY_TOLERANCE * added, 10 * yard.difference) + rounding;
    row->norm = added;
    row->difference = d.difference;
    row->worst = d.worst;
    row->tiny = added == 0;
    row->error = row->tiny ? d.difference : d.difference / added;
    row->tolerance = row->tiny ? allowed : allowed / added;
    row->good = row->error <= row->tolerance;
    r->bad_streams += !row->good;
    return TT_OK;
}

static tt_status run_part(layers *l, int part)
{
    const side *a = &l->sides[0], *b = &l->sides[1];
    for (int i = 0; i < 2; i++) TT_TRY(run_side(l, &l->sides[i], part));
    int64_t at = part == 0 ? 0 : 2 * (int64_t)part - 1;
    if (part < l->last)
        TT_TRY(compare_stream(l, at++, part, "output", l->got, part > 0 ? l->given : NULL, a->x, b->x));
    if (part == 0) return TT_OK;
    return compare_stream(l, at, part, "input gradient", l->dgiven, part < l->last ? l->dgot : NULL, a->dx, b->dx);
}

/* --- all parts ------------------------------------------------------------------------------------------------------- */

/* Weights, gradients and activations of both references, and the matrices between parts. */
static void note_bytes(layers *l)
{
    int64_t bytes = 9 * l->n * (int64_t)sizeof *l->matrices;
    for (int i = 0; i < 2; i++) bytes += tt_certify_bytes(l->sides[i].run);
    l->report->reference_bytes = tt_max_i64(l->report->reference_bytes, bytes);
}

/* Parts that use the units of the first of them, whose gradients are compared when all have run. */
static tt_status run_parts(layers *l, const int *parts, int num)
{
    tt_status status = TT_OK;
    int units[2], num_units = tt_model_part_units(&l->mesh->engine.model, parts[0], units);
    for (int i = 0; i < 2 && at_root(l) && status == TT_OK; i++)
        status = tt_certify_hold(l->o, l->sides[i].run, units, num_units);
    for (int i = 0; i < num; i++) {
        TT_TRY(gather_streams(l, parts[i]));
        if (at_root(l) && status == TT_OK) status = run_part(l, parts[i]);
    }
    TT_TRY(tt_agree(l->mesh->engine.mesh->world, "certify-part", status));
    for (int i = 0; i < num_units; i++)
        TT_TRY(tt_certify_compare_unit(l->comparison, units[i], l->sides[0].run, l->sides[1].run));
    if (at_root(l)) note_bytes(l);
    return TT_OK;
}

static tt_status run_all(layers *l)
{
    bool tied = l->mesh->engine.config.tied;
    for (int part = tied; part < l->last; part++) TT_TRY(run_parts(l, &part, 1));
    return run_parts(l, (const int[]){l->last, 0}, tied ? 2 : 1);
}

/* Loss and norm as one process has them. */
static void finish(layers *l)
{
    const side *s = &l->sides[0];
    const tt_model_config *c = &s->run->engine.config;
    double squares = 0, weight = tt_certify_balance(c);
    s->run->targets = s->run->batch.num_targets;
    s->run->loss = s->sums.nll / (double)s->run->targets;
    if (weight != 0) s->run->loss += weight * tt_balance_value(&s->balance, c->num_experts);
    tt_certify_judge_rows(l->report);
    for (int64_t i = 0; i < l->report->num_rows; i++) squares += l->report->rows[i].norm * l->report->rows[i].norm;
    s->run->norm = sqrt(squares);
}

tt_status tt_certify_by_layer(const tt_certify_options *o, tt_certify_run *mesh_run, tt_certify_run *reference,
                              tt_certify_run *alternative, tt_certify_report *report)
{
    layers l = {
        .o = o,
        .mesh = mesh_run,
        .report = report,
        .sides = {{.run = reference}, {.run = alternative}},
        .last = (int)mesh_run->engine.config.num_layers + 1,
    };
    tt_status status = open_layers(&l);
    if (status == TT_OK) status = run_all(&l);
    if (status == TT_OK && at_root(&l)) finish(&l);
    close_layers(&l);
    return status;
}
