/* certify on meshes of ranks that are threads: it passes where it should, its outputs are the fixtures', and it fails when
 * the model that the mesh ran is not the one that the reference sees. */
#include "support/test.h"

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/save.h"
#include "train/certify.h"
#include "train/certify_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    const char *model, *batch, *save;
    int ep, tp;
    tt_dispatch_kind dispatch;
    bool by_layer;
    int64_t memory;
    tt_certify_report report; /* of rank 0 */
} job;

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_batch_file rows;
    json_t *object;
    tt_certify_report report;
    tt_comm_set_timeout(comm, 60);
    if (j->batch) {
        TT_TRY(tt_json_load(j->batch, 1 << 20, &object));
        tt_status status = tt_batch_file_read(object, j->batch, &rows);
        json_decref(object);
        TT_TRY(status);
    } else {
        TT_TRY(tt_certify_default_rows(j->model, tt_comm_size(comm), &rows));
    }
    tt_certify_options o = {
        .model = j->model,
        .rows = &rows,
        .mesh = {.ep_size = j->ep, .tp_size = j->tp, .dispatch = j->dispatch},
        .threads = 1,
        .save_outputs = j->save,
        .by_layer = j->by_layer,
        .memory = j->memory,
    };
    tt_status status = tt_certify(comm, &o, &report);
    tt_batch_file_free(&rows);
    if (status != TT_OK) return status;
    if (tt_comm_rank(comm) == 0) j->report = report;
    else tt_certify_report_free(&report);
    return TT_OK;
}

static void passes_on_every_mesh(void **state)
{
    (void)state;
    static const char *const models[] = {"O1", "O2", "Q1", "Q2", "G1", "G2"};
    for (size_t i = 0; i < 6; i++)
        for (int world = 1; world <= 4; world++)
            for (int ep = 1; ep <= world; ep++) {
                char model[128];
                if (world % ep) continue;
                snprintf(model, sizeof model, "tests/fixtures/%s/model", models[i]);
                job j = {.model = model, .ep = ep};
                assert_ok(tt_comm_run_threads(world, rank_main, &j));
                if (!j.report.passed || j.report.num_rows == 0 || j.report.choices == 0)
                    fail_msg("%s on %d ranks, ep %d: %lld wrong gradients, %lld wrong choices, loss %g and %g", model, world,
                             ep, (long long)j.report.bad_rows, (long long)j.report.wrong_choices, j.report.loss[0],
                             j.report.loss[1]);
                tt_certify_report_free(&j.report);
            }
}

static void certify_by_layer(const char *id, int world, int ep, int tp, tt_dispatch_kind dispatch)
{
    char model[128], batch[128];
    snprintf(model, sizeof model, "tests/fixtures/%s/model", id);
    snprintf(batch, sizeof batch, "tests/fixtures/%s/batch.json", id);
    /* The rows of the fixtures have padding and are fewer than four ranks. */
    job j = {.model = model, .batch = batch, .ep = ep, .tp = tp, .dispatch = dispatch};
    assert_ok(tt_comm_run_threads(world, rank_main, &j));
    tt_certify_report whole = j.report;
    j.by_layer = true;
    assert_ok(tt_comm_run_threads(world, rank_main, &j));
    tt_certify_report *r = &j.report;
    if (!r->passed || !r->by_layer || whole.by_layer)
        fail_msg("%s on %d ranks, ep %d, tp %d: %lld wrong gradients, %lld wrong streams, %lld wrong choices, loss %g and %g",
                 id, world, ep, tp, (long long)r->bad_rows, (long long)r->bad_streams, (long long)r->wrong_choices,
                 r->loss[0], r->loss[1]);
    assert_int_equal(r->num_rows, whole.num_rows);
    assert_int_equal(r->choices, whole.choices);
    assert_int_equal(r->targets, whole.targets);
    assert_int_equal(r->tokens, whole.tokens);
    assert_int_equal(whole.num_streams, 0);
    assert_true(r->num_streams >= 6 && r->num_streams % 2 == 0);
    assert_string_equal(r->streams[0].name, "model.embed_tokens: output");
    assert_string_equal(r->streams[1].name, "model.layers.0: output");
    assert_string_equal(r->streams[2].name, "model.layers.0: input gradient");
    assert_string_equal(r->streams[r->num_streams - 1].name, "model.norm and head: input gradient");
    /* Both references evaluate the same function at points that are apart by rounding: bounds as for one tensor. */
    assert_close(r->loss[1], whole.loss[1], 1e-5 * whole.loss[1]);
    assert_close(r->norm[1], whole.norm[1], 1e-5 * whole.norm[1]);
    for (int64_t i = 0; i < r->num_rows; i++) {
        assert_string_equal(r->rows[i].name, whole.rows[i].name);
        const tt_certify_row *w = &whole.rows[i];
        if (!w->tiny) assert_close(r->rows[i].norm, w->norm, w->tolerance * w->norm);
    }
    for (int64_t i = 0; i < r->num_streams; i++) assert_true(r->streams[i].norm > 0 && r->streams[i].good);
    tt_certify_report_free(&whole);
    tt_certify_report_free(r);
}

/* By layer it passes where the whole passes, and its reference is the same: loss, norm, the norm of every gradient. */
static void passes_by_layer(void **state)
{
    (void)state;
    static const char *const models[] = {"O1", "O2", "Q1", "Q2", "G1", "G2"};
    for (size_t i = 0; i < 6; i++) {
        certify_by_layer(models[i], 1, 1, 1, TT_DISPATCH_ALLTOALL);
        certify_by_layer(models[i], 2, 2, 1, TT_DISPATCH_ALLTOALL);
        certify_by_layer(models[i], 2, 1, 2, TT_DISPATCH_ALLTOALL);
        certify_by_layer(models[i], 3, 3, 1, TT_DISPATCH_ALLGATHER);
        certify_by_layer(models[i], 4, 2, 1, TT_DISPATCH_ALLTOALL);
        certify_by_layer(models[i], 4, 4, 2, TT_DISPATCH_ALLTOALL);
        certify_by_layer(models[i], 4, 2, 2, TT_DISPATCH_ALLREDUCE);
    }
}

/* A model folder of so many equal layers whose weights are far more than its tokens. */
static const char *deep_model(int layers)
{
    static char folder[1200];
    char text[512];
    tt_comm *comm;
    tt_engine engine;
    tt_save_report report;
    snprintf(folder, sizeof folder, "%s", test_folder("deep"));
    snprintf(text, sizeof text,
             "{\"model_type\": \"olmoe\", \"vocab_size\": 64, \"hidden_size\": 64, \"num_hidden_layers\": %d,"
             "\"num_attention_heads\": 4, \"num_experts\": 8, \"num_experts_per_tok\": 2, \"intermediate_size\": 64}",
             layers);
    json_t *config = json_loads(text, 0, NULL);
    tt_engine_options o = {.config = config, .ops = &tt_ops_ref, .resident = TT_F32, .compute = TT_F32, .moments = TT_F32,
                           .threads = 1};
    tt_save_options save = {.config = config};
    assert_ok(tt_comm_create_self(&comm));
    assert_ok(tt_engine_open(comm, &o, &engine));
    assert_ok(tt_save_model(folder, engine.shards, &save, &report));
    tt_engine_close(&engine);
    tt_comm_destroy(&comm);
    json_decref(config);
    return folder;
}

/* However many layers there are, rank 0 holds one of them. */
static void memory_is_that_of_one_layer(void **state)
{
    (void)state;
    /* A block: 4 attention matrices, router, 8 experts, two norms of D and two of heads. */
    const int64_t D = 64, block = 4 * D * D + 8 * D + 8 * 3 * D * D + 4 * D;
    int64_t bytes[2], whole[2];
    for (int i = 0; i < 2; i++) {
        int layers = i ? 20 : 2;
        job j = {.model = deep_model(layers), .ep = 2, .by_layer = true};
        assert_ok(tt_comm_run_threads(2, rank_main, &j));
        assert_true(j.report.passed);
        assert_int_equal(j.report.num_streams, 2 * (layers + 1));
        bytes[i] = j.report.reference_bytes;
        assert_int_equal(j.report.whole_bytes, 16 * (layers * block + 2 * D * D + D));
        tt_certify_report_free(&j.report);
        j.by_layer = false;
        assert_ok(tt_comm_run_threads(2, rank_main, &j));
        assert_true(j.report.passed && !j.report.by_layer);
        whole[i] = j.report.reference_bytes;
        assert_true(whole[i] >= j.report.whole_bytes);
        tt_certify_report_free(&j.report);
    }
    assert_int_equal(bytes[0], bytes[1]);
    if (!(bytes[1] >= 16 * block && bytes[1] < 16 * block * 3 / 2))
        fail_msg("%lld bytes for a block of %lld", (long long)bytes[1], (long long)(16 * block));
    assert_true(whole[1] - whole[0] >= 18 * 16 * block);
}

/* The whole where it fits, one layer at a time where it does not, and refused where not even that does. */
static void memory_decides(void **state)
{
    (void)state;
    job j = {.model = "tests/fixtures/Q1/model", .ep = 2};
    assert_ok(tt_comm_run_threads(2, rank_main, &j));
    int64_t whole = j.report.whole_bytes;
    assert_true(!j.report.by_layer && j.report.free_bytes > whole && whole > 0);
    tt_certify_report_free(&j.report);
    for (int less = 0; less < 2; less++) {
        j.memory = whole - less;
        assert_ok(tt_comm_run_threads(2, rank_main, &j));
        assert_true(j.report.passed);
        assert_int_equal(j.report.by_layer, less);
        assert_int_equal(j.report.free_bytes, j.memory);
        tt_certify_report_free(&j.report);
    }
    for (int by_layer = 0; by_layer < 2; by_layer++) {
        j.by_layer = by_layer;
        j.memory = 1000;
        assert_error(tt_comm_run_threads(2, rank_main, &j), TT_ENOMEM, "of which 1000 are free");
    }
}

/* Tensor `name` of two files, element by element. */
static void compare_tensor(const tt_st_folder *a, const tt_st_folder *b, const char *name, double tolerance, bool masked)
{
    const tt_st_tensor *x = tt_st_find(a, name), *y = tt_st_find(b, name);
    assert_non_null(x);
    assert_non_null(y);
    int64_t n = (x->end - x->begin) / 4;
    assert_int_equal(n, (y->end - y->begin) / 4);
    float *p = malloc((size_t)n * 2 * sizeof *p), *q = p + n;
    assert_ok(tt_st_read(a, x, 0, n, TT_F32, p));
    assert_ok(tt_st_read(b, y, 0, n, TT_F32, q));
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        /* Row 1 of the fixtures' batch is padded from column 9 on: written as 0. */
        if (masked && i / x->shape[2] >= 12 + 9) {
            assert_true(p[i] == 0);
            continue;
        }
        difference += pow((double)p[i] - q[i], 2);
        norm += pow(q[i], 2);
    }
    if (!(sqrt(difference) <= tolerance * sqrt(norm) + 1e-7)) fail_msg("%s: %g of %g", name, sqrt(difference), sqrt(norm));
    free(p);
}

static void outputs_are_the_fixtures(void **state)
{
    (void)state;
    char save[1200];
    for (int world = 1; world <= 3; world++) {
        snprintf(save, sizeof save, "%s/out.safetensors", test_folder("certify"));
        job j = {.model = "tests/fixtures/G2/model", .batch = "tests/fixtures/G2/batch.json", .save = save, .ep = world};
        assert_ok(tt_comm_run_threads(world, rank_main, &j));
        assert_true(j.report.passed);
        assert_int_equal(j.report.targets, 17);
        tt_certify_report_free(&j.report);
        tt_st_folder ours, theirs;
        assert_ok(tt_st_open_file(save, &ours));
        assert_ok(tt_st_open_file("tests/fixtures/G2/expected.safetensors", &theirs));
        compare_tensor(&ours, &theirs, "logits", 2e-5, true);
        for (int64_t i = 0; i < ours.num_tensors; i++)
            if (!strncmp(ours.tensors[i].name, "grad.", 5)) compare_tensor(&ours, &theirs, ours.tensors[i].name, 2e-5, false);
        float loss;
        assert_ok(tt_st_read(&ours, tt_st_find(&ours, "loss"), 0, 1, TT_F32, &loss));
        assert_close(loss, 6.410163, 5e-6);
        tt_st_close(&ours);
        tt_st_close(&theirs);
    }
}

/* The first of `count` experts from `first` on that is not chosen, -1 for none. */
static int32_t unchosen(const int32_t *chosen, int64_t K, int32_t first, int32_t count)
{
    for (int32_t e = first; e < first + count; e++) {
        bool taken = false;
        for (int64_t j = 0; j < K; j++) taken |= chosen[j] == e;
        if (!taken) return e;
    }
    return -1;
}

/* The judge of choices alone: what the router chose passes, and so does nothing else: an expert of another group (G2 has
 * groups), one of the same group, one twice, a number that is none. */
static void wrong_choices_are_seen(void **state)
{
    (void)state;
    enum { TOKENS = 5, MOST = 3, LAYERS = 2, AT = 3 };
    static const struct {
        const char *model, *place;
        int64_t K;
        int32_t group; /* experts per group */
    } models[] = {{"tests/fixtures/O1/model", "layer 1, batch row 0, column 3", 2, 8},
                  {"tests/fixtures/G2/model", "layer 3, batch row 0, column 3", 3, 2}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        tt_comm *comm;
        tt_certify_run run = {0};
        tt_certify_report report;
        tt_certify_judge *judge;
        tt_micro_result result;
        int64_t K = models[m].K;
        int32_t ids[TOKENS] = {9, 27, 81, 5, 4}, choices[LAYERS][TOKENS * MOST], kept[MOST], *list[LAYERS];
        for (int i = 0; i < LAYERS; i++) list[i] = choices[i];
        assert_ok(tt_comm_create_self(&comm));
        tt_engine_options o = {.folder = models[m].model, .ops = &tt_ops_ref, .resident = TT_F32, .compute = TT_F32,
                               .moments = TT_F32, .threads = 1};
        assert_ok(tt_engine_open(comm, &o, &run.engine));
        tt_batch_row row = {.length = TOKENS, .ids = ids};
        assert_ok(tt_batch_add(&run.batch, &row, 0, 96));
        tt_micro record = {.batch = &run.batch, .record = list};
        assert_ok(tt_model_micro_step(&run.engine.model, &record, &result));
        run.choices = list;
        int32_t *c = &choices[LAYERS - 1][AT * K];
        memcpy(kept, c, sizeof kept);
        for (int kind = 0; kind < 4; kind++) {
            memcpy(c, kept, (size_t)K * sizeof *c);
            if (kind == 1) c[K - 1] = unchosen(kept, K, 0, 8);
            /* One chosen expert gives way to another of its group. */
            for (int64_t j = 0; j < K && kind == 2 && !memcmp(c, kept, (size_t)K * sizeof *c); j++) {
                int32_t beside = unchosen(kept, K, kept[j] / models[m].group * models[m].group, models[m].group);
                if (beside >= 0) c[j] = beside;
            }
            if (kind == 3) c[K - 1] = c[0];
            report = (tt_certify_report){0};
            assert_ok(tt_certify_judge_choices(&run, &report, &judge));
            tt_micro replay = {.batch = &run.batch, .replay = (const int32_t *const *)list};
            assert_ok(tt_model_micro_step(&run.engine.model, &replay, &result));
            tt_certify_judge_end(&judge);
            run.engine.model.tap = NULL;
            assert_int_equal(report.choices, LAYERS * TOKENS * K);
            if (report.wrong_choices != (kind > 0) || report.near_ties != 0)
                fail_msg("%s, kind %d: %lld wrong, %lld near ties", models[m].model, kind, (long long)report.wrong_choices,
                         (long long)report.near_ties);
            if (kind) assert_string_equal(report.first_wrong, models[m].place);
        }
        tt_batch_free(&run.batch);
        tt_engine_close(&run.engine);
        tt_comm_destroy(&comm);
    }
}

static void no_targets_is_refused(void **state)
{
    (void)state;
    char path[1200];
    snprintf(path, sizeof path, "%s/batch.json", test_folder("certify"));
    FILE *f = fopen(path, "w");
    fputs("{\"input_ids\": [[1, 2, 3]], \"labels\": [[-100, -100, -100]]}", f);
    fclose(f);
    job j = {.model = "tests/fixtures/O1/model", .batch = path, .ep = 1};
    assert_error(tt_comm_run_threads(2, rank_main, &j), TT_EDATA, "no supervised target");
}

static void segments_must_fit_the_positions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {"{\"input_ids\":[[1,2,3]],\"segment_ids\":[[0,0,0]]}", true},
        {"{\"input_ids\":[[1,2,3]],\"segment_ids\":[[0,1,1]],\"position_ids\":[[0,0,1]]}", true},
        {"{\"input_ids\":[[1,2,3]],\"segment_ids\":[[0,0,-1]],\"attention_mask\":[[1,1,0]]}", true},
        {"{\"input_ids\":[[1,2,3]],\"segment_ids\":[[0,1,1]]}", false},
        {"{\"input_ids\":[[1,2,3]],\"segment_ids\":[[0,0,0]],\"position_ids\":[[0,0,1]]}", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tt_batch_file f;
        json_t *object = json_loads(cases[i].text, 0, NULL);
        if (cases[i].good) assert_ok(tt_batch_file_read(object, "batch", &f));
        else assert_error(tt_batch_file_read(object, "batch", &f), TT_EDATA, "row 0, column 1: 'segment_ids'");
        tt_batch_file_free(&f);
        json_decref(object);
    }
}

/* Before the model is run, not after. */
static void output_names_are_checked_first(void **state)
{
    (void)state;
    job j = {.model = "tests/fixtures/none/model", .batch = "tests/fixtures/O1/batch.json", .ep = 1, .save = "build/out.txt"};
    assert_error(tt_comm_run_threads(2, rank_main, &j), TT_ECONFIG, "must end in .safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_on_every_mesh),
        cmocka_unit_test(passes_by_layer),
        cmocka_unit_test(memory_is_that_of_one_layer),
        cmocka_unit_test(memory_decides),
        cmocka_unit_test(outputs_are_the_fixtures),
        cmocka_unit_test(wrong_choices_are_seen),
        cmocka_unit_test(no_targets_is_refused),
        cmocka_unit_test(segments_must_fit_the_positions),
        cmocka_unit_test(output_names_are_checked_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
