/* Every fixture of the built families against what the Python library computes: outputs, router choices, loss, every
 * gradient, and the weights after three optimizer steps; on one process and on meshes of ranks that are threads.
 * Tolerances are those that tests/fixtures/README.md argues for in section 7. */
#include "support/fixture.h"
#include "support/test.h"

#include "base/checked.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOGITS_TOLERANCE   5e-5
#define GRADIENT_TOLERANCE 2e-5
#define LOSS_TOLERANCE     5e-6
#define BALANCE_TOLERANCE  2e-6

/* --- outputs ------------------------------------------------------------------------------------------------- */

typedef struct outputs {
    fixture *f;
    const tt_st_folder *expected;
    const tt_batch *batch;
    int64_t width;
    bool variant; /* of a base fixture: holds logits and choices only */
    tt_status status;
} outputs;

/* Row of the [B,S,*] tensor that token t is. */
static int64_t place(const outputs *o, int64_t t)
{
    return o->batch->rows[t] * o->width + o->batch->columns[t];
}

static tt_status compare_rows(outputs *o, const char *name, tt_mat m, int64_t first)
{
    const tt_st_tensor *t = tt_st_find(o->expected, name);
    float *row = malloc((size_t)m.cols * 2 * sizeof *row);
    tt_status status = TT_OK;
    for (int64_t i = 0; t && i < m.rows && status == TT_OK; i++) {
        status = tt_st_read(o->expected, t, place(o, first + i) * m.cols, m.cols, TT_F32, row);
        tt_convert(row + m.cols, TT_F32, tt_mat_row(m, i), m.dtype, m.cols);
        if (status == TT_OK) status = fixture_compare(name, row + m.cols, row, m.cols, LOGITS_TOLERANCE);
    }
    free(row);
    return status;
}

static void look(void *user, const char *what, int layer, tt_mat m)
{
    outputs *o = user;
    char name[64];
    if (o->status != TT_OK || o->variant) return;
    if (!strcmp(what, "embed")) snprintf(name, sizeof name, "hidden.embed");
    else if (!strcmp(what, "block")) snprintf(name, sizeof name, "hidden.%d", layer);
    else if (!strcmp(what, "router_logits")) snprintf(name, sizeof name, "router_logits.%d", layer);
    else return;
    if (!tt_st_find(o->expected, name))
        o->status = tt_error_set(TT_EVERDICT, "the fixture has no tensor '%s'", name);
    else
        o->status = compare_rows(o, name, m, 0);
}

static tt_status look_at_logits(void *user, int64_t first, tt_mat logits)
{
    outputs *o = user;
    TT_CHECK(tt_st_find(o->expected, "logits"), TT_EVERDICT, "the fixture has no logits");
    return compare_rows(o, "logits", logits, first);
}

static int by_value(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Recorded choices against topk_ids, which are sorted. */
static tt_status compare_choices(outputs *o, int layer, int32_t *ids, int64_t K)
{
    char name[64];
    int32_t row[64];
    snprintf(name, sizeof name, "topk_ids.%d", layer);
    const tt_st_tensor *t = tt_st_find(o->expected, name);
    TT_CHECK(t, TT_EVERDICT, "the fixture has no tensor '%s'", name);
    for (int64_t i = 0; i < o->batch->T; i++) {
        qsort(ids + i * K, (size_t)K, sizeof *ids, by_value);
        TT_TRY(tt_file_read_at(&o->expected->files[t->file], t->begin + place(o, i) * K * 4, row, (size_t)K * 4));
        for (int64_t j = 0; j < K; j++)
            TT_CHECK(row[j] == ids[i * K + j], TT_EVERDICT, "%s: token %lld chose expert %d, expected %d", name,
                     (long long)i, ids[i * K + j], row[j]);
    }
    return TT_OK;
}

static tt_status open_expected(const fixture *f, const char *name, tt_st_folder *out)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    return tt_st_open_file(path, out);
}

static tt_status check_outputs(fixture *f, void *arg)
{
    (void)arg;
    const tt_model_config *c = &f->engine.config;
    tt_st_folder expected;
    json_t *batch_object, *variant = NULL;
    tt_batch *micros;
    int num, layers = (int)c->num_layers, moe = tt_model_moe_index(c, layers);
    const char *batch_name = "batch.json";
    TT_TRY(fixture_json(f, "expected.json", &variant));
    if (json_object_get(variant, "batch")) batch_name = json_string_value(json_object_get(variant, "batch"));
    TT_TRY(fixture_json(f, batch_name, &batch_object));
    TT_TRY(fixture_micros(f, batch_object, batch_name, &micros, &num));
    TT_TRY(open_expected(f, "expected.safetensors", &expected));
    outputs o = {f, &expected, &micros[0], 12, json_object_get(variant, "of") != NULL, TT_OK};
    int64_t bytes = micros[0].T * c->experts_per_token * 4;
    int32_t **record = calloc((size_t)moe + 1, sizeof *record);
    for (int i = 0; i < moe; i++) record[i] = malloc((size_t)bytes + 1);
    f->engine.model.tap = look;
    f->engine.model.tap_user = &o;
    tt_micro micro = {.batch = &micros[0], .record = record, .logits = look_at_logits, .logits_user = &o};
    tt_micro_result r;
    tt_status status = tt_model_micro_step(&f->engine.model, &micro, &r);
    if (status == TT_OK) status = o.status;
    for (int i = 0; i < layers && status == TT_OK; i++)
        if (c->is_moe[i]) status = compare_choices(&o, i, record[tt_model_moe_index(c, i)], c->experts_per_token);
    double nll = json_number_value(json_object_get(variant, "nll_sum"));
    double targets = json_number_value(json_object_get(variant, "n_targets"));
    if (status == TT_OK && fabs(r.sums.nll - nll) > LOSS_TOLERANCE * targets)
        status = tt_error_set(TT_EVERDICT, "nll sum is %.9g, expected %.9g", r.sums.nll, nll);
    if (status == TT_OK && r.sums.targets != (int64_t)targets)
        status = tt_error_set(TT_EVERDICT, "%lld targets, expected %g", (long long)r.sums.targets, targets);
    for (int i = 0; i < moe; i++) free(record[i]);
    free(record);
    tt_st_close(&expected);
    fixture_free_micros(&micros, num);
    json_decref(batch_object);
    json_decref(variant);
    return status;
}

/* --- gradients ----------------------------------------------------------------------------------------------- */

static tt_status compare_number(const char *what, double got, double expected, double tolerance)
{
    TT_CHECK(fabs(got - expected) <= tolerance, TT_EVERDICT, "%s is %.9g, expected %.9g (tolerance %g)", what, got,
             expected, tolerance);
    return TT_OK;
}

/* The first step on memory that another batch has used, so that nothing may depend on what it left behind. */
static tt_status dirty_memory(fixture *f)
{
    json_t *train;
    tt_batch *micros;
    int num;
    fixture_sums sums;
    TT_TRY(fixture_json(f, "train.json", &train));
    const json_t *step = json_array_get(json_object_get(train, "steps"), 0);
    const json_t *batch = json_array_get(json_object_get(step, "micro_batches"), 0);
    TT_TRY(fixture_micros(f, batch, "train.json", &micros, &num));
    tt_status status = fixture_gradients(f, micros, num, 0, &sums);
    fixture_free_micros(&micros, num);
    json_decref(train);
    return status;
}

static tt_status check_gradients(fixture *f, void *arg)
{
    (void)arg;
    json_t *batch, *expected;
    tt_batch *micros;
    tt_st_folder tensors;
    fixture_sums sums;
    double norm;
    int num;
    TT_TRY(dirty_memory(f));
    TT_TRY(fixture_json(f, "batch.json", &batch));
    TT_TRY(fixture_json(f, "expected.json", &expected));
    TT_TRY(open_expected(f, "expected.safetensors", &tensors));
    TT_TRY(fixture_micros(f, batch, "batch.json", &micros, &num));
    double coef = json_number_value(json_object_get(expected, "aux_coefficient"));
    tt_status status = fixture_gradients(f, micros, num, coef, &sums);
    double n = (double)sums.targets, loss = sums.nll / n + coef * sums.balance;
    if (status == TT_OK) status = tt_gradient_norm(&f->engine.model, &norm);
    if (status == TT_OK) status = fixture_compare_gradients(f, &tensors, GRADIENT_TOLERANCE);
    if (status == TT_OK)
        status = compare_number("loss", loss, json_number_value(json_object_get(expected, "loss")), LOSS_TOLERANCE);
    if (status == TT_OK && coef != 0)
        status = compare_number("balance loss", sums.balance, json_number_value(json_object_get(expected, "aux_loss")),
                                BALANCE_TOLERANCE);
    double expected_norm = json_number_value(json_object_get(expected, "grad_norm"));
    if (status == TT_OK) status = compare_number("gradient norm", norm, expected_norm, 5e-6 * expected_norm);
    tt_st_close(&tensors);
    fixture_free_micros(&micros, num);
    json_decref(batch);
    json_decref(expected);
    return status;
}

/* --- three optimizer steps ----------------------------------------------------------------------------------- */

static tt_status run_step(fixture *f, const json_t *train, int k, double coef)
{
    const json_t *step = json_array_get(json_object_get(train, "steps"), (size_t)k);
    const json_t *expected = json_object_get(step, "expected");
    tt_step_options o = {
        .lr = 0.01,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .max_grad_norm = 1,
        .balance = coef, /* the fixtures add it in full for each micro-batch */
    };
    tt_step_result r;
    TT_TRY(fixture_step(f, train, k, o, &r));
    double norm = json_number_value(json_object_get(expected, "grad_norm_before_clipping"));
    TT_TRY(compare_number("gradient norm", r.grad_norm, norm, (k ? 1e-4 : 5e-6) * norm));
    double loss = json_number_value(json_object_get(expected, "loss"));
    return compare_number("loss", r.loss, loss, k ? 5e-5 : 5e-6);
}

static tt_status check_training(fixture *f, void *arg)
{
    (void)arg;
    json_t *train, *expected;
    tt_st_folder after;
    tt_status status = TT_OK;
    TT_TRY(fixture_json(f, "train.json", &train));
    TT_TRY(fixture_json(f, "expected.json", &expected));
    TT_TRY(open_expected(f, "after.safetensors", &after));
    double coef = json_number_value(json_object_get(expected, "aux_coefficient"));
    for (int k = 0; k < 3 && status == TT_OK; k++) {
        status = run_step(f, train, k, coef);
        if (status != TT_OK) tt_error_context(status, "step %d", k + 1);
    }
    if (status == TT_OK) status = fixture_compare_weights(f, &after, 2e-4, json_object_get(train, "shaky_elements"));
    tt_st_close(&after);
    json_decref(train);
    json_decref(expected);
    return status;
}

/* --- the table ----------------------------------------------------------------------------------------------- */

typedef struct entry {
    fixture_run run;
    tt_status (*body)(fixture *, void *);
} entry;

static void run_entry(void **state)
{
    entry *e = *state;
    tt_status status = fixture_on_mesh(&e->run, e->body, NULL);
    if (status != TT_OK) fail_msg("%s: %s", tt_status_name(status), tt_error_text());
}

#define MAX_ENTRIES 1024
static entry entries[MAX_ENTRIES];
static struct CMUnitTest tests[MAX_ENTRIES];
static int num_entries;

static void add(const char *what, tt_status (*body)(fixture *, void *), fixture_run run)
{
    char name[200];
    static const char *const dispatch[] = {"alltoall", "allgather", "allreduce"};
    snprintf(name, sizeof name, "%s %s %s world %d tp %d ep %d %s%s%s%s%s", run.model ? run.model : run.id, what,
             run.ops->name, run.world, run.tp ? run.tp : 1, run.ep, dispatch[run.dispatch], run.recompute ? "" : ", no recompute", run.row_micros ? ", rows as micro-steps" : "",
             run.booked ? ", rounds" : "", run.as_saved ? ", as saved" : "");
    TT_ASSERT(num_entries < MAX_ENTRIES);
    entries[num_entries] = (entry){run, body};
    tests[num_entries] = (struct CMUnitTest){strdup(name), run_entry, NULL, NULL, &entries[num_entries]};
    num_entries++;
}

static const char *const ids[] = {"O1", "O2", "Q1", "Q2", "G1", "G2"};
enum { NUM_IDS = sizeof ids / sizeof *ids };

/* Every mesh of up to four ranks with every dispatcher that it allows. The fixtures take turns with training: test_meshes.c
 * trains on all meshes, and more strictly. */
static void add_layouts(int fixture, const tt_ops *ops)
{
    const char *id = ids[fixture];
    int turn = 0;
    for (int world = 1; world <= 4; world++)
        for (int tp = 1; tp <= world; tp++)
            for (int ep = 1; ep <= world; ep++)
                for (tt_dispatch_kind d = TT_DISPATCH_ALLTOALL; d <= TT_DISPATCH_ALLREDUCE; d++) {
                    tt_mesh_sizes sizes = {0, tp, ep, d};
                    if (tt_mesh_resolve(&sizes, world, 8) != TT_OK) continue;
                    if (tp == 1 && d == TT_DISPATCH_ALLTOALL) continue; /* add_meshes */
                    fixture_run run = {.id = id, .ops = ops, .world = world, .tp = tp, .ep = ep, .dispatch = d, .recompute = true};
                    add("gradients", check_gradients, run);
                    if (test_full() || turn++ % NUM_IDS == fixture) add("training", check_training, run);
                }
}

static void add_meshes(const char *id, const tt_ops *ops)
{
    bool balance = !strcmp(id, "O2") || !strcmp(id, "Q2");
    for (int world = 1; world <= 4; world++)
        for (int ep = 1; ep <= world; ep++) {
            if (world % ep) continue;
            add("gradients", check_gradients, (fixture_run){.id = id, .ops = ops, .world = world, .ep = ep, .recompute = true});
            add("gradients", check_gradients, (fixture_run){.id = id, .ops = ops, .world = world, .ep = ep, .booked = ep > 1 ? 3 : 0});
            add("training", check_training, (fixture_run){.id = id, .ops = ops, .world = world, .ep = ep, .recompute = true});
            /* The balance loss is defined per micro-step: another split is another loss. */
            if (!balance)
                add("training", check_training, (fixture_run){.id = id, .ops = ops, .world = world, .ep = ep, .row_micros = true});
        }
}

int main(void)
{
    static const tt_ops *const tables[] = {&tt_ops_ref, &tt_ops_cpu};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
        for (int i = 0; i < NUM_IDS; i++) {
            add("outputs", check_outputs, (fixture_run){.id = ids[i], .ops = tables[t], .world = 1, .ep = 1});
            add("outputs", check_outputs,
                (fixture_run){.id = ids[i], .ops = tables[t], .world = 1, .ep = 1, .as_saved = "config.as_saved.json"});
            add_meshes(ids[i], tables[t]);
            if (tables[t] == &tt_ops_ref) add_layouts(i, tables[t]);
        }
        static const char *const variants[] = {"Q1-bf16", "Q1-f16", "Q1-mixed"};
        for (size_t i = 0; i < 3; i++)
            add("outputs", check_outputs, (fixture_run){.id = variants[i], .ops = tables[t], .world = 1, .ep = 1});
        static const char *const sharded[][2] = {{"O1", "O1-sharded/model"}, {"G2", "G2-sharded/model"},
                                                 {"O1", "O1-fused/model"}, {"G1", "G1-mtp/model"}};
        for (size_t i = 0; i < sizeof sharded / sizeof *sharded; i++)
            for (int world = 1; world <= 2; world++)
                add("gradients", check_gradients,
                    (fixture_run){.id = sharded[i][0], .model = sharded[i][1], .ops = tables[t], .world = world, .ep = world, .recompute = true});
        const int64_t chunks[] = {1, 7, 256};
        for (size_t i = 0; i < 3; i++)
            add("gradients", check_gradients,
                (fixture_run){.id = "O2", .ops = tables[t], .world = 1, .ep = 1, .recompute = true, .loss_chunk = chunks[i]});
    }
    return _cmocka_run_group_tests("fixtures", tests, (size_t)num_entries, NULL, NULL);
}
