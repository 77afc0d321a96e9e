/* Parts of a model one by one, each on what the others gave in a whole micro-step: the same bits as there, on one process and
 * on meshes, with all units held and with none but those of the part. */
#include "support/fixture.h"
#include "support/test.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every value of the residual stream between two parts, and its gradient, as a micro-step passes them. */
typedef struct streams {
    int64_t T, D, layers;
    float *values, *gradients; /* [layers + 1][T,D] */
} streams;

static float *slice(const streams *s, float *of, int64_t i)
{
    return of + i * s->T * s->D;
}

static void keep(void *user, const char *what, int layer, tt_mat m)
{
    streams *s = user;
    size_t bytes = (size_t)(s->T * s->D) * sizeof(float);
    if (!strcmp(what, "embed")) memcpy(slice(s, s->values, 0), m.data, bytes);
    if (!strcmp(what, "block")) memcpy(slice(s, s->values, layer + 1), m.data, bytes);
    if (!strcmp(what, "embed_gradient")) memcpy(slice(s, s->gradients, 0), m.data, bytes);
    if (!strcmp(what, "block_gradient")) memcpy(slice(s, s->gradients, layer + 1), m.data, bytes);
}

typedef struct whole {
    streams s;
    tt_batch *micros;
    int num;
    int32_t **choices;
    tt_micro micro;
    tt_micro_result result;
    tt_balance balance;   /* sums: of the parts */
    tt_loss_sums sums;    /* likewise */
    float *x, *dx;        /* [T,D] */
} whole;

static tt_status same(const char *what, int part, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        TT_CHECK(memcmp(&a[i], &b[i], sizeof *a) == 0, TT_EVERDICT, "%s of part %d: element %lld is %.9g, expected %.9g", what,
                 part, (long long)i, a[i], b[i]);
    return TT_OK;
}

static tt_status open_whole(fixture *f, whole *w)
{
    const tt_model_config *c = &f->engine.config;
    json_t *batch;
    int64_t targets;
    int moe = tt_model_moe_index(c, (int)c->num_layers);
    TT_TRY(fixture_json(f, "batch.json", &batch));
    tt_status status = fixture_micros(f, batch, "batch.json", &w->micros, &w->num);
    json_decref(batch);
    TT_TRY(status);
    w->s = (streams){.T = w->micros->T, .D = c->hidden_size, .layers = c->num_layers};
    int64_t one = w->s.T * w->s.D;
    w->s.values = calloc((size_t)(one * (2 * c->num_layers + 4)) + 1, sizeof(float));
    w->s.gradients = w->s.values + one * (c->num_layers + 1);
    w->x = w->s.gradients + one * (c->num_layers + 1);
    w->dx = w->x + one;
    w->choices = calloc((size_t)moe + 1, sizeof *w->choices);
    for (int i = 0; i < moe; i++) w->choices[i] = calloc((size_t)(w->s.T * c->experts_per_token) + 1, sizeof **w->choices);
    w->balance.counts = calloc((size_t)c->num_experts * 2, sizeof(double));
    w->balance.sums = w->balance.counts + c->num_experts;
    TT_TRY(tt_count_targets(f->engine.mesh, w->micros, w->num, &targets));
    w->micro = (tt_micro){.batch = w->micros, .backward = true, .scale = 1 / (double)targets, .record = w->choices,
                          .balance = c->has_balance_loss ? c->balance_coef : 0};
    return TT_OK;
}

static void close_whole(fixture *f, whole *w)
{
    const tt_model_config *c = &f->engine.config;
    for (int i = 0; i < tt_model_moe_index(c, (int)c->num_layers); i++) free(w->choices[i]);
    free(w->choices);
    free(w->s.values);
    free(w->balance.counts);
    fixture_free_micros(&w->micros, w->num);
}

/* Rows and counts of all ranks and layers, from the choices alone. */
static tt_status count_choices(fixture *f, whole *w)
{
    const tt_model_config *c = &f->engine.config;
    int moe = tt_model_moe_index(c, (int)c->num_layers);
    double all[65] = {0};
    for (int i = 0; i < moe && f->engine.mesh->tp_rank == 0; i++) {
        for (int64_t j = 0; j < w->s.T * c->experts_per_token; j++) all[w->choices[i][j]]++;
        all[64] += (double)w->s.T;
    }
    TT_TRY(tt_allreduce_f64(f->engine.mesh->world, "test-counts", all, 65));
    memcpy(w->balance.counts, all, (size_t)c->num_experts * sizeof *all);
    w->balance.rows = all[64];
    return TT_OK;
}

static tt_status run_part(fixture *f, whole *w, int part)
{
    const streams *s = &w->s;
    int64_t n = s->T * s->D;
    bool embedding = part == 0, head = part > s->layers;
    memset(w->x, 0xFF, (size_t)n * sizeof *w->x);
    memset(w->dx, 0xFF, (size_t)n * sizeof *w->dx);
    if (!embedding) memcpy(w->x, slice(s, s->values, part - 1), (size_t)n * sizeof *w->x);
    if (!head) memcpy(w->dx, slice(s, s->gradients, part), (size_t)n * sizeof *w->dx);
    tt_mat x = tt_mat_of(w->x, TT_F32, s->T, s->D), dx = tt_mat_of(w->dx, TT_F32, s->T, s->D);
    TT_TRY(tt_model_part(&f->engine.model, &w->micro, part, x, dx, &w->balance, &w->sums));
    TT_TRY(same("output", part, w->x, slice(s, s->values, head ? part - 1 : part), n));
    return same("gradient", part, w->dx, slice(s, s->gradients, embedding ? 0 : part - 1), n);
}

/* Gradient shards in table order. */
static float *copy_gradients(const tt_engine *e, int64_t *n)
{
    int64_t num, at = 0;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    *n = 0;
    for (int64_t i = 0; i < num; i++) *n += pieces[i].count;
    float *all = calloc((size_t)*n + 1, sizeof *all);
    for (int64_t i = 0; i < num; at += pieces[i++].count)
        if (e->table.params.at[pieces[i].param].trained)
            memcpy(all + at, tt_shards_view(e->shards, &pieces[i], TT_PART_GRADIENT).data,
                   (size_t)pieces[i].count * sizeof *all);
    return all;
}

static tt_status compare_whole(fixture *f, whole *w, const float *expected)
{
    int64_t n;
    float *got = copy_gradients(&f->engine, &n);
    tt_status status = same("weight gradient", -1, got, expected, n);
    free(got);
    TT_TRY(status);
    TT_CHECK(w->sums.nll == w->result.sums.nll, TT_EVERDICT, "nll is %.17g, expected %.17g", w->sums.nll, w->result.sums.nll);
    if (w->micro.balance == 0) return TT_OK;
    int64_t E = f->engine.config.num_experts;
    if (f->engine.mesh->tp_rank > 0) memset(w->balance.sums, 0, (size_t)E * sizeof(double));
    TT_TRY(tt_allreduce_f64(f->engine.mesh->world, "test-sums", w->balance.sums, E));
    double value = tt_balance_value(&w->balance, E);
    /* Sums over layers in another order, in double. */
    TT_CHECK(value - w->result.balance_loss < 1e-12 && w->result.balance_loss - value < 1e-12 && value > 1, TT_EVERDICT,
             "balance loss is %.17g, expected %.17g", value, w->result.balance_loss);
    return TT_OK;
}

static tt_status parts_of(fixture *f, void *arg)
{
    (void)arg;
    tt_model *m = &f->engine.model;
    whole w = {0};
    int64_t n;
    TT_TRY(open_whole(f, &w));
    m->tap = keep;
    m->tap_user = &w.s;
    tt_shards_zero_gradients(m->shards, m->kernel);
    TT_TRY(tt_model_micro_step(m, &w.micro, &w.result));
    m->tap = NULL;
    float *expected = copy_gradients(&f->engine, &n);
    TT_TRY(count_choices(f, &w));
    w.micro.record = NULL;
    w.micro.replay = (const int32_t *const *)w.choices;
    tt_shards_zero_gradients(m->shards, m->kernel);
    tt_status status = TT_OK;
    for (int part = (int)w.s.layers + 1; part >= 0 && status == TT_OK; part--) status = run_part(f, &w, part);
    if (status == TT_OK) status = compare_whole(f, &w, expected);
    free(expected);
    close_whole(f, &w);
    return status;
}

static const char *const ids[] = {"O1", "O2", "Q1", "Q2", "G1", "G2"};

static void parts_are_the_whole(void **state)
{
    (void)state;
    static const fixture_run runs[] = {
        {.world = 1, .ep = 1},
        {.world = 1, .ep = 1, .recompute = true},
        {.world = 2, .ep = 2},
        {.world = 3, .ep = 1, .recompute = true},
        {.world = 4, .ep = 2, .tp = 2, .dispatch = TT_DISPATCH_ALLREDUCE},
    };
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        for (size_t j = 0; j < sizeof runs / sizeof *runs; j++) {
            fixture_run run = runs[j];
            run.id = ids[i];
            run.ops = &tt_ops_ref;
            tt_status status = fixture_on_mesh(&run, parts_of, NULL);
            if (status != TT_OK) fail_msg("%s, %d ranks: %s", run.id, run.world, tt_error_text());
        }
}

/* --- held alone --------------------------------------------------------------------------------------------------- */

/* An engine that holds one part at a time, loaded from the folder, gives what one that holds everything gives. */
static tt_status held_alone(fixture *f, void *arg)
{
    (void)arg;
    tt_model *m = &f->engine.model;
    tt_comm *self;
    tt_engine bare;
    whole w = {0};
    char folder[1024];
    snprintf(folder, sizeof folder, "tests/fixtures/%s/model", f->run->id);
    tt_engine_options o = {.folder = folder, .ops = &tt_ops_ref, .resident = TT_F32, .compute = TT_F32, .moments = TT_F32,
                           .threads = 1, .train = true, .bare = true};
    TT_TRY(open_whole(f, &w));
    m->tap = keep;
    m->tap_user = &w.s;
    TT_TRY(tt_model_micro_step(m, &w.micro, &w.result));
    TT_TRY(count_choices(f, &w));
    w.micro.record = NULL;
    w.micro.replay = (const int32_t *const *)w.choices;
    TT_TRY(tt_comm_create_self(&self));
    TT_TRY(tt_engine_open(self, &o, &bare));
    TT_CHECK(tt_shards_bytes(bare.shards).weights == 0, TT_EVERDICT, "a bare engine holds weights");
    tt_engine full = f->engine;
    for (int part = 0; part <= w.s.layers + 1; part++) {
        int units[2], num = tt_model_part_units(&bare.model, part, units);
        TT_TRY(tt_engine_hold(&bare, &o, units, num));
        f->engine = bare;
        tt_status status = run_part(f, &w, part);
        f->engine = full;
        TT_TRY(status);
        int64_t pieces, elements = 0;
        tt_shards_pieces(bare.shards, &pieces);
        for (int u = 0; u < num; u++) elements += bare.table.params.units[units[u]].count;
        TT_CHECK(pieces == elements && bare.load.elements > 0, TT_EVERDICT, "part %d holds %lld parameters of %lld", part,
                 (long long)pieces, (long long)elements);
    }
    tt_engine_close(&bare);
    tt_comm_destroy(&self);
    close_whole(f, &w);
    return TT_OK;
}

static void a_part_needs_its_units_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        fixture_run run = {.id = ids[i], .ops = &tt_ops_ref, .world = 1, .ep = 1};
        assert_ok(fixture_on_mesh(&run, held_alone, NULL));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_whole),
        cmocka_unit_test(a_part_needs_its_units_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
