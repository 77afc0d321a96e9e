/* The planner: its closed form against what arenas were granted, for every number of kept layers; the choice is the largest
 * that fits, to the byte; ranks with unlike rows decide alike; a run gives the same bits whatever its limit lets it keep. */
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"
#include "base/file.h"
#include "train/sft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the plan and the arenas -------------------------------------------------------------------------------------- */

typedef struct arena_job {
    const trial_run *run;
    const trial_shape *shape;
    int64_t kept;
} arena_job;

enum { TOKENS = 240 };

static tt_memory_shape shape_of(const tt_engine *e, int64_t tokens, int64_t kept)
{
    return (tt_memory_shape){
        .mesh = {e->mesh->fsdp_size, e->mesh->tp_size, e->mesh->ep_size, e->mesh->dispatch},
        .world_size = e->mesh->world_size,
        .precision = tt_shards_precision(e->shards),
        .train = true,
        .moments = true,
        .recompute = e->model.recompute,
        .kept_layers = kept,
        .shared = tt_shards_are_shared(e->shards),
        .tokens = tokens,
        .targets = tokens - 1,
        .loss_chunk = e->model.loss_chunk,
    };
}

/* Grants are rounded up to 64 bytes, and tables for each rank or expert are left out of the plan: some 20 grants in a layer and
 * arena, which take no more than this. One process does not exchange, so its plan is also not much more than what is granted. */
static tt_status compare_arena(const arena_job *j, const tt_engine *e, const char *name, int64_t granted, int64_t planned)
{
    int64_t layers = e->config.num_layers, slack = (layers + 2) * 40 * 64 + 1024;
    bool alone = e->mesh->world_size == 1 && strcmp(name, "scratch") != 0;
    TT_CHECK(granted <= planned + slack && (!alone || planned <= granted + granted / 4 + slack), TT_EVERDICT,
             "%s, %s, %s, %lld of %lld layers kept: rank %d was granted %lld bytes of %s, planned are %lld", j->shape->model->name,
             trial_mesh_name(j->run->mesh), j->run->bf16_compute ? "bf16" : "fp32", (long long)j->kept, (long long)layers,
             e->mesh->rank, (long long)granted, name, (long long)planned);
    return TT_OK;
}

static tt_status watch_arenas(tt_engine *e, void *arg)
{
    const arena_job *j = arg;
    tt_batch batch = {0};
    tt_micro_result result;
    tt_memory plan;
    int32_t ids[TOKENS];
    int64_t length = TOKENS - 20 * e->mesh->fsdp_rank, V = e->config.vocab_size;
    for (int64_t i = 0; i < length; i++) ids[i] = (int32_t)((i * i * 7 + i + e->mesh->fsdp_rank) % V);
    e->model.kept_layers = j->kept;
    e->model.loss_chunk = 64;
    tt_status status = tt_batch_add(&batch, &(tt_batch_row){.length = length, .ids = ids}, 0, V);
    tt_micro micro = {.batch = &batch, .backward = true, .scale = 1.0 / TOKENS};
    if (status == TT_OK) status = tt_model_micro_step(&e->model, &micro, &result);
    tt_batch_free(&batch);
    TT_TRY(status);
    tt_memory_shape shape = shape_of(e, TOKENS, j->kept);
    TT_TRY(tt_memory_plan(&e->config, &e->table, &shape, &plan));
    /* On more than two ranks one may get more than twice its share, in more rounds, whose lists the plan leaves out. */
    int64_t ep = e->mesh->ep_size, pair = 4 + 4 + 4 + (int64_t)tt_dtype_size(e->kernel->ops->real);
    int64_t lists = ep <= 2 ? 0 : e->config.num_layers * ep * TOKENS * (e->config.experts_per_token * pair + 8);
    TT_TRY(compare_arena(j, e, "kept activations", tt_arena_peak(e->model.keep), plan.bytes[TT_MEMORY_KEPT] + lists));
    TT_TRY(compare_arena(j, e, "block activations", tt_arena_peak(e->model.work), plan.bytes[TT_MEMORY_BLOCK]));
    /* What the reference kernels' attention puts there is theirs: keys, values, their gradients, all of them both ways. */
    int64_t own = TOKENS * (12 * e->config.head_dim + 4) * 4;
    return compare_arena(j, e, "scratch", tt_arena_peak(e->kernel->scratch),
                         tt_max_i64(own, plan.bytes[TT_MEMORY_SCRATCH]));
}

static void arenas_take_what_is_planned(void **state)
{
    (void)state;
    static const trial_mesh meshes[] = {TRIAL_MESH(1, 1), TRIAL_MESH(2, 1), TRIAL_MESH(2, 2),
                                        TRIAL_MESH(4, 2), TRIAL_MESH(4, 4), TRIAL_MESH(6, 6)};
    for (int m = 0; m < trial_num_models; m++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
            for (int turn = 0; turn < (i == 0 ? 1 : 3); turn++) {
                trial_shape s;
                if (meshes[i].world > 2 && turn != m % 3 && !test_full()) continue;
                assert_ok(trial_shape_open(&trial_models[m], &s));
                for (int64_t kept = 0; kept <= s.config.num_layers; kept++) {
                    trial_run run = {.model = s.model,
                                     .mesh = trial_turn(&s, meshes[i], turn),
                                     .bf16_compute = (m + kept + turn) % 2};
                    arena_job j = {&run, &s, kept};
                    if (trial_mesh_fits(&s, run.mesh)) assert_ok(trial_on_mesh(&run, watch_arenas, &j));
                }
                trial_shape_close(&s);
            }
}

/* --- the choice ---------------------------------------------------------------------------------------------------- */

static tt_memory_shape some_shape(const trial_shape *s, trial_mesh mesh, int turn)
{
    tt_mesh_sizes sizes = {.ep_size = mesh.ep, .tp_size = mesh.tp, .dispatch = mesh.dispatch};
    assert_ok(tt_engine_check_mesh(&sizes, mesh.world, &s->config));
    return (tt_memory_shape){
        .mesh = sizes,
        .world_size = mesh.world,
        .precision = {turn % 2 ? TT_BF16 : TT_F32, turn % 2 ? TT_BF16 : TT_F32, TT_F32, TT_F32},
        .train = true,
        .moments = true,
        .recompute = true,
        .shared = turn % 3 == 0,
        .copy = turn % 4 == 0,
        .copy_moments = turn % 8 == 0,
        .tokens = 100 + turn,
        .targets = 90,
        .loss_chunk = 64,
    };
}

/* By the definition, from the plans of all numbers. */
static void assert_largest(const trial_shape *s, const tt_memory_shape *shape, int ranks, const tt_memory *plans, int64_t limit)
{
    int64_t want = -1, kept, least = plans[0].total;
    tt_memory plan;
    for (int64_t n = 0; n <= s->config.num_layers; n++) {
        if (tt_memory_with_margin(&plans[n], ranks) <= limit) want = n;
        least = tt_min_i64(least, plans[n].total);
    }
    assert_ok(tt_memory_keep(&s->config, &s->table, shape, ranks, limit, &kept, &plan));
    if (kept != want)
        fail_msg("%s, limit %lld: %lld layers are kept, %lld fit", s->model->name, (long long)limit, (long long)kept,
                 (long long)want);
    assert_int_equal(plan.total, want < 0 ? least : plans[want].total);
}

/* At the bytes that a number takes, and one byte below. From one kept layer on each takes more than the one before. Without
 * recomputation it is all or none. */
static void the_largest_that_fits(void **state)
{
    (void)state;
    for (int m = 0; m < trial_num_models; m++)
        for (int i = 0; i < trial_num_meshes; i++) {
            trial_shape s;
            tt_memory plans[8], plan;
            int64_t kept, ranks = 1 + i % 3;
            assert_ok(trial_shape_open(&trial_models[m], &s));
            trial_mesh mesh = trial_turn(&s, trial_meshes[i], m);
            int64_t L = s.config.num_layers;
            if (trial_mesh_fits(&s, mesh)) {
                tt_memory_shape shape = some_shape(&s, mesh, i + m);
                for (int64_t n = 0; n <= L; n++) {
                    shape.kept_layers = n;
                    assert_ok(tt_memory_plan(&s.config, &s.table, &shape, &plans[n]));
                    if (n > 1 && !(plans[n].total > plans[n - 1].total))
                        fail_msg("%s: %lld kept layers take no more than %lld", s.model->name, (long long)n, (long long)n - 1);
                }
                for (int64_t n = 0; n <= L; n++)
                    for (int64_t less = 0; less < 2; less++)
                        assert_largest(&s, &shape, (int)ranks, plans, tt_memory_with_margin(&plans[n], (int)ranks) - less);
                assert_largest(&s, &shape, (int)ranks, plans, INT64_MAX);
                assert_largest(&s, &shape, (int)ranks, plans, 1);
                shape.recompute = false;
                int64_t all = tt_memory_with_margin(&plans[L], (int)ranks);
                assert_ok(tt_memory_keep(&s.config, &s.table, &shape, (int)ranks, all, &kept, &plan));
                assert_int_equal(kept, L);
                assert_ok(tt_memory_keep(&s.config, &s.table, &shape, (int)ranks, all - 1, &kept, &plan));
                assert_int_equal(kept, -1);
                assert_int_equal(plan.total, plans[L].total);
            }
            trial_shape_close(&s);
        }
}

typedef struct alike_job {
    const trial_shape *shape;
    int64_t limit;
    tt_memory_choice choice[2];
} alike_job;

static tt_memory_shape of_rank(const trial_shape *s, int rank)
{
    tt_memory_shape shape = some_shape(s, (trial_mesh)TRIAL_MESH(2, 2), 1);
    shape.tokens = rank ? 40 : 1000;
    shape.targets = rank ? 39 : 2; /* neither rank has more of both */
    return shape;
}

static tt_status choose_on_rank(tt_comm *comm, void *arg)
{
    alike_job *j = arg;
    int rank = tt_comm_rank(comm);
    tt_memory_shape shape = of_rank(j->shape, rank);
    return tt_planner_choose(comm, j->limit, &j->shape->config, &shape, &j->choice[rank]);
}

static void ranks_with_unlike_rows_decide_alike(void **state)
{
    (void)state;
    trial_shape s;
    alike_job j = {.shape = &s, .limit = INT64_MAX};
    assert_ok(trial_shape_open(trial_find_model("qwen3, a dense layer between"), &s));
    assert_ok(tt_comm_run_threads(2, choose_on_rank, &j));
    assert_int_equal(j.choice[0].ranks, 2);
    assert_int_equal(j.choice[0].kept_layers, s.config.num_layers);
    for (; j.limit > 0; j.limit = j.choice[0].bytes - 1) { /* down to where nothing fits */
        tt_status status = tt_comm_run_threads(2, choose_on_rank, &j);
        if (status != TT_OK) {
            assert_error(status, TT_ECONFIG, "max_memory is ");
            break;
        }
        assert_memory_equal(&j.choice[0], &j.choice[1], sizeof j.choice[0]);
        if (j.choice[0].kept_layers < s.config.num_layers) { /* the rank of few tokens would keep all */
            int64_t kept;
            tt_memory plan;
            tt_memory_shape shape = of_rank(&s, 1);
            assert_ok(tt_memory_keep(&s.config, &s.table, &shape, 2, j.limit, &kept, &plan));
            assert_int_equal(kept, s.config.num_layers);
        }
    }
    assert_true(j.choice[0].kept_layers <= 1 && j.limit > 0);
    trial_shape_close(&s);
}

/* --- runs ----------------------------------------------------------------------------------------------------------- */

typedef struct run_job {
    int world;
    bool checkpointing;
    int64_t limit;
    char folder[1200];
    tt_sft_report report; /* of rank 0 */
} run_job;

static tt_status rank_main(tt_comm *comm, void *arg)
{
    run_job *j = arg;
    tt_config c;
    tt_sft_report report;
    char limit[32], ep[16];
    snprintf(limit, sizeof limit, "%lld", (long long)j->limit);
    snprintf(ep, sizeof ep, "%d", j->world);
    char *options[] = {"--model_name_or_path", "tests/fixtures/sft/runs/model-qwen3_moe", "--dataset_name",
                       "tests/fixtures/sft/runs/conversation/data.jsonl", "--output_dir", j->folder, "--threads", "1",
                       "--bf16", "false", "--per_device_train_batch_size", "2", "--max_steps", "3", "--save_strategy", "no",
                       "--learning_rate", "0.001", "--max_length", "100", "--template_date", "2026-01-01", "--ep_size", ep,
                       j->checkpointing ? "--gradient_checkpointing" : "--no_gradient_checkpointing", "--max_memory", limit};
    TT_TRY(tt_config_init(&c));
    tt_status status = tt_config_options(&c, sizeof options / sizeof *options - (j->limit ? 0 : 2), options);
    if (status == TT_OK) status = tt_config_resolve(&c);
    if (status == TT_OK) status = tt_sft(comm, &c, NULL, &report);
    if (status == TT_OK && tt_comm_rank(comm) == 0) j->report = report;
    tt_config_free(&c);
    return status;
}

static tt_status run(run_job *j, const char *name)
{
    snprintf(j->folder, sizeof j->folder, "%s", test_folder(name));
    return tt_comm_run_threads(j->world, rank_main, j);
}

static void same_model(const char *a, const char *b)
{
    char path[1400];
    char *x, *y;
    size_t n, m;
    snprintf(path, sizeof path, "%s/model.safetensors", a);
    assert_ok(tt_file_read_all(path, 1 << 26, &x, &n));
    snprintf(path, sizeof path, "%s/model.safetensors", b);
    assert_ok(tt_file_read_all(path, 1 << 26, &y, &m));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* In fp32 what is computed again has the bits of the first time, so all runs are one. */
static void the_limit_changes_no_bit(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        run_job plain = {.world = world}, all = {.world = world, .checkpointing = true, .limit = (int64_t)1 << 40}, less;
        assert_ok(run(&plain, "planner-plain"));
        assert_int_equal(plain.report.choice.kept_layers, 2); /* all, without checkpointing */
        assert_ok(run(&all, "planner-all"));
        assert_int_equal(all.report.choice.kept_layers, 2);
        same_model(all.folder, plain.folder);
        assert_memory_equal(&all.report.train_loss, &plain.report.train_loss, sizeof(double));
        less = all;
        for (int64_t kept = 1; kept >= 0; kept--) {
            int64_t inputs = less.report.choice.plan.bytes[TT_MEMORY_KEPT];
            less.limit = less.report.choice.bytes - 1;
            tt_status status = run(&less, "planner-less");
            if (kept == 0 && status == TT_ECONFIG) break; /* one kept layer took the least */
            assert_ok(status);
            assert_int_equal(less.report.choice.kept_layers, kept);
            assert_true(less.report.choice.plan.bytes[TT_MEMORY_KEPT] > inputs); /* one more is computed again, and was */
            assert_true(less.report.choice.bytes <= less.limit);
            same_model(less.folder, plain.folder);
            assert_memory_equal(&less.report.train_loss, &plain.report.train_loss, sizeof(double));
        }
    }
}

static void what_cannot_fit_is_refused(void **state)
{
    (void)state;
    run_job all = {.world = 2, .limit = (int64_t)1 << 40}, j;
    assert_ok(run(&all, "planner-all"));
    j = all;
    j.limit = all.report.choice.bytes;
    assert_ok(run(&j, "planner-less"));
    j.limit = all.report.choice.bytes - 1;
    assert_error(run(&j, "planner-none"), TT_ECONFIG, "or set gradient_checkpointing: true");
    j.checkpointing = true;
    assert_ok(run(&j, "planner-less"));
    assert_true(j.report.choice.kept_layers < 2);
    j.limit = 1000000;
    assert_error(run(&j, "planner-none"), TT_ECONFIG, "max_memory is 1000000 bytes, 1.0 MiB, and the 2 ranks of a host need ");
    assert_error(run(&j, "planner-none"), TT_ECONFIG, "lower per_device_train_batch_size or max_length");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arenas_take_what_is_planned),
        cmocka_unit_test(the_largest_that_fits),
        cmocka_unit_test(ranks_with_unlike_rows_decide_alike),
        cmocka_unit_test(the_limit_changes_no_bit),
        cmocka_unit_test(what_cannot_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
