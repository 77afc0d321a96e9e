/* One batch, every layout: models of odd shapes on every mesh, with rows in any order on ranks and micro-steps, against one
 * process that sees the joint batch - the loss, the choices of experts, and the gradient of every parameter.
 *
 * Each model meets each world with each ep_size meets each plan of rows. The tp_sizes and dispatchers that go with a world
 * and an ep_size take turns by model; with TT_FULL the table is complete, each model meets each of them. All plans of a mesh
 * run on one engine, one behind the other, so each finds memory that another batch has used. Ways to run that must not
 * matter (kernels, recomputation, pieces of logits, rounds of the exchange) take turns. */
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Both sides round in other places. One sum of float products of n terms is off by about sqrt(n) 2^-24; through the depth
 * of these models 1e-6 is seen, and a fault shows in the first digits. */
#define GRADIENT_TOLERANCE 1e-5
#define LOSS_TOLERANCE     5e-6
#define BALANCE            0.05

enum { MAX_PLANS = 16 };

/* --- every model, mesh and plan ------------------------------------------------------------------------------- */

typedef struct expected {
    trial_shape shape;
    trial_batch batches[MAX_PLANS];
    trial_result results[MAX_PLANS];
} expected;

static expected *cache[32];

/* The balance loss is on for every second plan of a family that has one; it is defined by the split into micro-steps, and
 * so is its reference. */
static double balance_of(const trial_shape *s, int plan)
{
    return s->config.has_balance_loss && s->config.num_experts > 0 && plan % 2 == 0 ? BALANCE : 0;
}

static expected *expected_of(int model)
{
    if (cache[model]) return cache[model];
    expected *e = calloc(1, sizeof *e);
    assert_non_null(e);
    assert_ok(trial_shape_open(&trial_models[model], &e->shape));
    for (int i = 0; i < trial_num_plans; i++) {
        double balance = balance_of(&e->shape, i);
        trial_batch_make(&trial_plans[i], e->shape.config.vocab_size, (uint64_t)i, &e->batches[i]);
        trial_reference(&e->shape, &e->batches[i], balance == 0, balance, &e->results[i]);
    }
    cache[model] = e;
    return e;
}

static int free_expected(void **state)
{
    (void)state;
    for (int i = 0; i < trial_num_models; i++) {
        if (!cache[i]) continue;
        for (int j = 0; j < trial_num_plans; j++) trial_result_close(&cache[i]->results[j]);
        trial_shape_close(&cache[i]->shape);
        free(cache[i]);
    }
    return 0;
}

typedef struct table_job {
    const expected *e;
    int turn;
    trial_result got[MAX_PLANS];
} table_job;

static tt_status all_plans(tt_engine *engine, void *arg)
{
    table_job *j = arg;
    for (int i = 0; i < trial_num_plans; i++) {
        int turn = j->turn + i;
        engine->model.recompute = turn % 3 != 0;
        engine->model.kept_layers = turn % 2;
        engine->model.loss_chunk = (const int64_t[]){256, 7, 1, 2}[turn % 4];
        engine->model.booked_pairs = (const int64_t[]){0, 3, 1, 0, 16}[turn % 5];
        tt_status status = trial_gradients(engine, &j->e->shape, &j->e->batches[i], false,
                                           balance_of(&j->e->shape, i), NULL, &j->got[i]);
        if (status != TT_OK) return tt_error_context(status, "%s", trial_plans[i].name);
    }
    return TT_OK;
}

static void compare_result(const expected *e, int plan, const trial_result *got)
{
    const trial_result *want = &e->results[plan];
    const char *name = trial_plans[plan].name;
    double targets = (double)tt_max_i64(want->targets, 1);
    trial_compare_choices(name, &got->choices, &want->choices);
    assert_int_equal(got->targets, want->targets);
    if (!(fabs(got->nll - want->nll) <= LOSS_TOLERANCE * targets))
        fail_msg("%s: nll is %.9g, expected %.9g", name, got->nll, want->nll);
    if (!(fabs(got->balance - want->balance) <= 2e-6 * trial_plans[plan].num_micros))
        fail_msg("%s: balance loss is %.9g, expected %.9g", name, got->balance, want->balance);
    if (!(fabs(got->norm - want->norm) <= GRADIENT_TOLERANCE * want->norm))
        fail_msg("%s: gradient norm is %.9g, expected %.9g", name, got->norm, want->norm);
    if (want->targets == 0 && balance_of(&e->shape, plan) == 0 && !(got->norm == 0 && got->nll == 0))
        fail_msg("%s: loss %g and norm %g without a target", name, got->nll, got->norm);
    trial_compare(&e->shape, name, got->gradients, want->gradients, GRADIENT_TOLERANCE);
}

static void layout_does_not_matter(void **state)
{
    const trial_entry *t = *state;
    table_job j = {.e = expected_of(t->model), .turn = t->turn};
    trial_run run = {
        .model = &trial_models[t->model], .mesh = t->mesh, .ops = t->turn % 2 ? &tt_ops_cpu : &tt_ops_ref};
    for (int i = 0; i < trial_num_plans; i++) assert_ok(trial_result_open(&j.e->shape, &j.got[i]));
    assert_ok(trial_on_mesh(&run, all_plans, &j));
    for (int i = 0; i < trial_num_plans; i++) {
        compare_result(j.e, i, &j.got[i]);
        trial_result_close(&j.got[i]);
    }
}

/* The table has the bite it is meant to have: rows of the table below are what the plans and models are there for. */
static void the_table_has_what_it_is_for(void **state)
{
    (void)state;
    int idle = 0, ties = 0, one = 0;
    for (int m = 0; m < trial_num_models; m++) {
        expected *e = expected_of(m);
        const tt_params *params = &e->shape.table.params;
        for (int64_t i = 0; i < params->num; i++) {
            if (params->at[i].expert < 0) continue;
            double sum = 0;
            for (int64_t k = e->shape.begin[i]; k < e->shape.begin[i + 1]; k++)
                sum += fabs(e->results[0].gradients[k]);
            idle += sum == 0;
        }
        ties += trial_models[m].ties;
        if (trial_models[m].edit != trial_all_last) continue;
        for (int c = 0; c < 7; c++) {
            int32_t *ids = trial_choice(&e->results[0].choices, 0, 0, c);
            one += ids[0] == e->shape.config.num_experts - 1;
        }
    }
    assert_true(idle > 0); /* experts without a token in a batch of dozens */
    assert_int_equal(ties, 2);
    assert_int_equal(one, 7);
}

/* --- recomputation --------------------------------------------------------------------------------------------- */

typedef struct single_job {
    const trial_shape *shape;
    const trial_batch *batch;
    double balance;
    trial_result *out;
} single_job;

static tt_status single(tt_engine *e, void *arg)
{
    single_job *j = arg;
    return trial_gradients(e, j->shape, j->batch, false, j->balance, NULL, j->out);
}

static void run_single(const trial_run *run, const trial_shape *s, const trial_batch *b, double balance,
                       trial_result *out)
{
    single_job j = {s, b, balance, out};
    assert_ok(trial_result_open(s, out));
    assert_ok(trial_on_mesh(run, single, &j));
}

/* In float the second forward pass has the operands of the first, and so the bits. */
static void recomputation_changes_no_bit(void **state)
{
    (void)state;
    static const trial_mesh meshes[] = {TRIAL_MESH(1, 1), TRIAL_MESH(2, 2), TRIAL_MESH(3, 3), TRIAL_MESH(4, 2),
                                        TRIAL_MESH(6, 3)};
    for (int m = 0; m < trial_num_models; m++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            trial_shape s;
            trial_batch b;
            trial_result kept, again;
            trial_run run = {.model = &trial_models[m],
                             .mesh = meshes[i],
                             .ops = (m + i) % 2 ? &tt_ops_ref : &tt_ops_cpu,
                             .booked = i % 2 ? 2 : 0};
            assert_ok(trial_shape_open(run.model, &s));
            trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
            if (trial_mesh_fits(&s, run.mesh)) {
                run.mesh = trial_turn(&s, run.mesh, m);
                run_single(&run, &s, &b, balance_of(&s, 0), &again);
                run.keep_all = true;
                run_single(&run, &s, &b, balance_of(&s, 0), &kept);
                trial_same_bits(&s, run.model->name, again.gradients, kept.gradients);
                trial_result_close(&kept);
                trial_result_close(&again);
            }
            trial_shape_close(&s);
        }
}

/* --- replicas -------------------------------------------------------------------------------------------------- */

typedef struct replica_job {
    single_job single;
    uint64_t hash[8]; /* by rank */
} replica_job;

static void hash_rows(void *user, const char *what, int layer, tt_mat m)
{
    uint64_t *hash = user;
    (void)what, (void)layer;
    for (int64_t i = 0; i < m.rows; i++)
        *hash = XXH3_64bits_withSeed(tt_mat_row(m, i), (size_t)m.cols * tt_dtype_size(m.dtype), *hash);
}

static tt_status hash_everything(tt_engine *e, void *arg)
{
    replica_job *j = arg;
    e->model.tap = hash_rows;
    e->model.tap_user = &j->hash[e->mesh->rank];
    return single(e, &j->single);
}

/* Ranks that share a batch hold the same bits in every block, router and gate, forward and again: else the sum of their
 * gradients would be that of several models. */
static void replicas_hold_the_same_bits(void **state)
{
    (void)state;
    int replicas = 0;
    for (int m = 0; m < trial_num_models; m++)
        for (int i = 0; i < trial_num_meshes; i++) {
            trial_shape s;
            trial_batch b;
            trial_result out;
            assert_ok(trial_shape_open(&trial_models[m], &s));
            trial_run run = {.model = s.model,
                             .mesh = trial_turn(&s, trial_meshes[i], m + i),
                             .ops = (m + i) % 2 ? &tt_ops_ref : &tt_ops_cpu,
                             .bf16_compute = m % 3 == 2};
            trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
            if (run.mesh.tp > 1 && trial_mesh_fits(&s, run.mesh)) {
                replica_job j = {.single = {&s, &b, balance_of(&s, 0), &out}};
                assert_ok(trial_result_open(&s, &out));
                assert_ok(trial_on_mesh(&run, hash_everything, &j));
                for (int r = 0; r < run.mesh.world; r++, replicas++)
                    if (j.hash[r] != j.hash[r / run.mesh.tp * run.mesh.tp])
                        fail_msg("%s, %s: rank %d differs from the first that shares its batch", s.model->name,
                                 trial_mesh_name(run.mesh), r);
                trial_result_close(&out);
            }
            trial_shape_close(&s);
        }
    assert_true(replicas > 100);
}

/* --- packed rows ----------------------------------------------------------------------------------------------- */

/* The documents of a batch's packed rows as rows of their own. */
static void unpack(const trial_batch *packed, trial_batch *out)
{
    *out = *packed;
    out->num_rows = 0;
    for (int r = 0; r < packed->num_rows; r++) {
        const tt_batch_row *row = &packed->rows[r];
        for (int64_t c = 0, start = 0; c < row->length; c++) {
            if (c + 1 < row->length && row->positions[c + 1] != 0) continue;
            out->rows[out->num_rows++] =
                (tt_batch_row){.length = c + 1 - start, .ids = row->ids + start, .labels = row->labels + start};
            start = c + 1;
        }
    }
}

static const trial_plan packed_plan = {
    "packed", (const trial_row_kind[]){TRIAL_PACKED, TRIAL_PACKED, TRIAL_PACKED, TRIAL_PACKED, TRIAL_PACKED}, 5, 1,
    trial_spread};

static void packed_is_separate(void **state)
{
    (void)state;
    for (int m = 0; m < trial_num_models; m++) {
        trial_shape s;
        trial_batch packed, separate;
        trial_result want, got;
        assert_ok(trial_shape_open(&trial_models[m], &s));
        trial_batch_make(&packed_plan, s.config.vocab_size, 21, &packed);
        unpack(&packed, &separate);
        assert_int_equal(separate.num_rows, 15);
        trial_reference(&s, &separate, true, 0, &want);
        for (int world = 1; world <= 3; world++) {
            trial_run run = {.model = s.model, .mesh = TRIAL_MESH(world, world)};
            if (!trial_mesh_fits(&s, run.mesh)) continue;
            run.mesh = trial_turn(&s, run.mesh, m);
            run_single(&run, &s, &packed, 0, &got);
            assert_int_equal(got.targets, want.targets);
            assert_close(got.nll, want.nll, LOSS_TOLERANCE * (double)want.targets);
            trial_compare(&s, s.model->name, got.gradients, want.gradients, GRADIENT_TOLERANCE);
            trial_result_close(&got);
        }
        trial_result_close(&want);
        trial_shape_close(&s);
    }
}

typedef struct logits_job {
    const trial_batch *batch;
    int64_t V;
    float *logits; /* [rows * columns, V] */
    const tt_batch *micro;
} logits_job;

static tt_status keep_logits(void *user, int64_t first, tt_mat m)
{
    logits_job *j = user;
    for (int64_t i = 0; i < m.rows; i++) {
        int64_t place = (int64_t)j->micro->rows[first + i] * TRIAL_MAX_LENGTH + j->micro->columns[first + i];
        memcpy(j->logits + place * j->V, tt_mat_row(m, i), (size_t)j->V * sizeof *j->logits);
    }
    return TT_OK;
}

static tt_status forward_only(tt_engine *e, void *arg)
{
    logits_job j = *(logits_job *)arg; /* its `micro` is this rank's */
    tt_batch micros[TRIAL_MAX_MICROS];
    tt_micro_result r;
    int num;
    TT_TRY(trial_micros(e, j.batch, false, micros, &num));
    j.micro = &micros[0];
    tt_micro micro = {.batch = &micros[0], .logits = keep_logits, .logits_user = &j};
    tt_status status = tt_model_micro_step(&e->model, &micro, &r);
    tt_batch_free(&micros[0]);
    return status;
}

/* On the reference kernels, where the bits of a row depend on that row alone. */
static void another_document_moves_nothing(void **state)
{
    (void)state;
    for (int m = 0; m < trial_num_models; m++)
        for (int world = 1; world <= 2; world++) {
            trial_shape s;
            trial_batch one, two;
            trial_run run = {.model = &trial_models[m], .mesh = TRIAL_MESH(world, world)};
            assert_ok(trial_shape_open(run.model, &s));
            trial_batch_make(&packed_plan, s.config.vocab_size, 22, &one);
            trial_batch_make(&packed_plan, s.config.vocab_size, 22, &two);
            for (int c = 3; c < 7; c++) /* the middle document of row 2 */
                two.numbers[2][0][c] = (int32_t)((two.numbers[2][0][c] + 1) % s.config.vocab_size);
            for (int r = 0; r < two.num_rows; r++) /* `two` was not moved: its rows point into itself */
                assert_ptr_equal(two.rows[r].ids, two.numbers[r][0]);
            size_t n = (size_t)(TRIAL_MAX_ROWS * TRIAL_MAX_LENGTH * s.config.vocab_size);
            float *logits = calloc(2 * n, sizeof *logits);
            if (trial_mesh_fits(&s, run.mesh)) {
                logits_job a = {&one, s.config.vocab_size, logits, NULL},
                           b = {&two, s.config.vocab_size, logits + n, NULL};
                assert_ok(trial_on_mesh(&run, forward_only, &a));
                assert_ok(trial_on_mesh(&run, forward_only, &b));
                for (int place = 0; place < TRIAL_MAX_ROWS * TRIAL_MAX_LENGTH; place++) {
                    bool changed = place >= 2 * TRIAL_MAX_LENGTH + 3 && place < 2 * TRIAL_MAX_LENGTH + 7;
                    size_t bytes = (size_t)s.config.vocab_size * sizeof *logits;
                    const float *x = logits + (int64_t)place * s.config.vocab_size;
                    if ((memcmp(x, x + n, bytes) != 0) != changed)
                        fail_msg("%s, world %d: row %d, column %d %s", s.model->name, world, place / TRIAL_MAX_LENGTH,
                                 place % TRIAL_MAX_LENGTH, changed ? "did not change" : "changed");
                }
            }
            free(logits);
            trial_shape_close(&s);
        }
}

/* --- wide worlds ----------------------------------------------------------------------------------------------- */

/* More ranks than one machine has cores: all ranks share one batch, groups of them do, and experts are one a rank. */
static void wide_worlds(void **state)
{
    (void)state;
    static const trial_mesh meshes[] = {
        {64, 64, 64, TT_DISPATCH_ALLREDUCE}, {32, 8, 8, TT_DISPATCH_ALLREDUCE}, {64, 32, 32, TT_DISPATCH_ALLREDUCE},
        {64, 64, 1, TT_DISPATCH_ALLTOALL},   {64, 64, 8, TT_DISPATCH_ALLTOALL}, {64, 8, 64, TT_DISPATCH_ALLGATHER},
    };
    static const trial_model model = {
        .name = "glm4, 64 experts",
        .config = "{\"model_type\": \"glm4_moe\", \"vocab_size\": 40, \"hidden_size\": 16, \"num_hidden_layers\": 2,"
                  "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"n_routed_experts\": 64,"
                  "\"num_experts_per_tok\": 6, \"n_shared_experts\": 1, \"moe_intermediate_size\": 8,"
                  "\"intermediate_size\": 20, \"initializer_range\": 0.2, \"rope_theta\": 10000.0}"};
    const char *const plans[] = {"every kind of row", "reversed, in micro-steps of which one is empty"};
    trial_shape s;
    assert_ok(trial_shape_open(&model, &s));
    for (int p = 0; p < 2; p++) {
        trial_batch b;
        trial_result want, got;
        trial_batch_make(trial_find_plan(plans[p]), s.config.vocab_size, 5, &b);
        trial_reference(&s, &b, true, 0, &want);
        for (size_t i = 0; i < (test_full() ? sizeof meshes / sizeof *meshes : 2); i++) {
            trial_run run = {.model = &model, .mesh = meshes[i]};
            run_single(&run, &s, &b, 0, &got);
            trial_compare_choices(trial_mesh_name(run.mesh), &got.choices, &want.choices);
            assert_close(got.nll, want.nll, LOSS_TOLERANCE * (double)want.targets);
            trial_compare(&s, trial_mesh_name(run.mesh), got.gradients, want.gradients, GRADIENT_TOLERANCE);
            trial_result_close(&got);
        }
        trial_result_close(&want);
    }
    trial_shape_close(&s);
}

int main(void)
{
    static struct CMUnitTest tests[TRIAL_MAX_TESTS + 6];
    const struct CMUnitTest others[] = {
        cmocka_unit_test(the_table_has_what_it_is_for),
        cmocka_unit_test(recomputation_changes_no_bit),
        cmocka_unit_test(replicas_hold_the_same_bits),
        cmocka_unit_test(packed_is_separate),
        cmocka_unit_test(another_document_moves_nothing),
        cmocka_unit_test(wide_worlds),
    };
    size_t num = trial_tests(layout_does_not_matter, 1, tests);
    memcpy(tests + num, others, sizeof others);
    return _cmocka_run_group_tests("layouts", tests, num + sizeof others / sizeof *others, NULL, free_expected);
}
