/* Checkpoints written on one mesh and read on another: every weight, moment and master with its bits, the model's files those
 * of a plain save, and the list of checkpoints of a folder. */
#include "support/saved.h"
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECKPOINT_ONLY "tartan_manifest.json optimizer.safetensors trainer_state.json"

typedef struct mesh {
    int world, ep;
} mesh;
static const mesh meshes[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {3, 3}, {4, 1}, {4, 2}, {4, 4}, {5, 1}, {5, 5}};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

static const tt_dtype types[][2] = {{TT_F32, TT_F32}, {TT_BF16, TT_F32}, {TT_F32, TT_BF16}, {TT_BF16, TT_BF16}};

static const char *file_in(const char *folder, const char *name)
{
    static char path[1500];
    assert_ok(tt_path_join(path, sizeof path, folder, name));
    return path;
}

/* Every model, every mesh to another, every pair of types; writing from a copy while the shards change every other time. */
static void any_mesh_reads_what_any_mesh_wrote(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool thorough;
    } models[] = {{"O1", true}, {"O1-sharded", false}, {"O1-fused", true}, {"O2", false}, {"Q1", false}, {"Q1-bf16", true},
                  {"Q1-f16", true}, {"Q1-mixed", true}, {"Q2", false}, {"G1", false}, {"G1-mtp", true}, {"G2", true}, {"G2-sharded", false}};
    char from[200], root[1100], at[1200], plain[1200];
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (int i = 0; i < NUM_MESHES; i++) {
            if (!models[m].thorough && i % 4 != (int)m % 4) continue;
            int k = (i * 3 + (int)m) % NUM_MESHES;
            const tt_dtype *t = types[(i + (int)m) % 4];
            snprintf(from, sizeof from, "tests/fixtures/%s/model", models[m].name);
            snprintf(root, sizeof root, "%s", test_folder("checkpoint"));
            snprintf(at, sizeof at, "%s/checkpoint-7", root);
            snprintf(plain, sizeof plain, "%s/plain", root);
            saved_run w = {.from = from, .world = meshes[i].world, .ep = meshes[i].ep, .resident = t[0], .moments = t[1], .seed = 5,
                           .checkpoint = at, .model = i % 2 ? NULL : plain, .snapshot = i % 2, .step = 7};
            assert_ok(saved_write(&w));
            if (w.model) saved_same_files(plain, at, NULL);
            tt_status status = saved_verify(at, meshes[k].world, meshes[k].ep, t[0], t[1], 5);
            if (status != TT_OK)
                fail_msg("%s from %d/%d to %d/%d: %s", models[m].name, meshes[i].world, meshes[i].ep, meshes[k].world, meshes[k].ep,
                         tt_error_text());
            char left[1300];
            snprintf(left, sizeof left, "%s" TT_ST_TEMPORARY, at);
            assert_false(tt_dir_exists(left));
        }
}

/* Each byte of a tensor is written by one rank, and all that was written is what the layout has. */
static void bytes_are_written_once(void **state)
{
    (void)state;
    char at[1200];
    for (int i = 0; i < NUM_MESHES; i++) {
        snprintf(at, sizeof at, "%s/checkpoint-7", test_folder("checkpoint-bytes"));
        saved_run w = {.from = "tests/fixtures/G1-mtp/model", .world = meshes[i].world, .ep = meshes[i].ep, .resident = TT_F32,
                       .moments = TT_F32, .seed = 5, .checkpoint = at};
        assert_ok(saved_write(&w));
        int64_t sum = 0;
        for (int k = 0; k < 2; k++) {
            tt_st_folder f;
            assert_ok(tt_st_open_stem(at, k ? TT_STATE_STEM : "model", &f));
            for (int64_t j = 0; j < f.num_tensors; j++) sum += f.tensors[j].end - f.tensors[j].begin;
            tt_st_close(&f);
        }
        assert_int_equal(w.bytes_written, sum);
    }
}

/* The layout of the state: what is there, in which type, under which name, and cut into files. */
static void state_is_what_is_trained(void **state)
{
    (void)state;
    char at[1200];
    static const struct {
        const char *model;
        tt_dtype resident, moments;
        bool masters; /* of a matrix */
    } cases[] = {{"G1", TT_F32, TT_BF16, false}, {"Q1-bf16", TT_F32, TT_F32, true}, {"Q1-bf16", TT_BF16, TT_F32, false},
                 {"Q1-f16", TT_BF16, TT_F32, true}, {"Q1-f16", TT_F32, TT_F32, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char from[200];
        tt_st_folder f;
        snprintf(from, sizeof from, "tests/fixtures/%s/model", cases[i].model);
        snprintf(at, sizeof at, "%s/checkpoint-7", test_folder("checkpoint-state"));
        saved_run w = {.from = from, .world = 2, .ep = 1, .resident = cases[i].resident, .moments = cases[i].moments, .seed = 5,
                       .checkpoint = at, .max_file_bytes = 50000};
        assert_ok(saved_write(&w));
        assert_ok(tt_st_open_stem(at, TT_STATE_STEM, &f));
        assert_true(f.sharded && f.num_files > 2);
        const tt_st_tensor *q = tt_st_find(&f, "exp_avg.model.layers.0.self_attn.q_proj.weight");
        const tt_st_tensor *q2 = tt_st_find(&f, "exp_avg_sq.model.layers.0.self_attn.q_proj.weight");
        const tt_st_tensor *n = tt_st_find(&f, "exp_avg.model.norm.weight");
        const tt_st_tensor *master = tt_st_find(&f, "master.model.layers.0.self_attn.q_proj.weight");
        assert_non_null(q);
        assert_non_null(q2);
        assert_non_null(n);
        assert_int_equal(q->dtype, cases[i].moments);
        assert_int_equal(q2->dtype, cases[i].moments);
        assert_int_equal(n->dtype, TT_F32);
        assert_int_equal(master != NULL, cases[i].masters);
        if (master) assert_int_equal(master->dtype, cases[i].resident);
        /* Buffers are not trained. */
        for (int64_t j = 0; j < f.num_tensors; j++) assert_null(strstr(f.tensors[j].name, "e_score_correction_bias"));
        tt_st_close(&f);
        assert_ok(saved_verify(at, 3, 1, cases[i].resident, cases[i].moments, 5));
    }
}

/* Another type for what is trained, and the masters that this makes necessary. */
static void a_type_that_is_asked_for(void **state)
{
    (void)state;
    char root[1100], at[1200], plain[1200];
    json_t *config;
    tt_st_folder f, source;
    snprintf(root, sizeof root, "%s", test_folder("checkpoint-dtype"));
    snprintf(at, sizeof at, "%s/checkpoint-7", root);
    snprintf(plain, sizeof plain, "%s/plain", root);
    saved_run w = {.from = "tests/fixtures/G1/model", .world = 2, .ep = 2, .resident = TT_F32, .moments = TT_F32, .seed = 5,
                   .checkpoint = at, .model = plain, .save_dtype = "bfloat16"};
    assert_ok(saved_write(&w));
    saved_same_files(plain, at, NULL);
    assert_ok(saved_verify(at, 4, 2, TT_F32, TT_F32, 5));
    assert_ok(tt_json_load(file_in(plain, "config.json"), 1 << 20, &config));
    const char *key = json_object_get(config, "dtype") ? "dtype" : "torch_dtype";
    assert_string_equal(json_string_value(json_object_get(config, key)), "bfloat16");
    json_decref(config);
    assert_ok(tt_st_open_folder(plain, &f));
    assert_ok(tt_st_open_folder(w.from, &source));
    for (int64_t i = 0; i < f.num_tensors; i++) {
        bool buffer = strstr(f.tensors[i].name, "e_score_correction_bias") != NULL;
        assert_int_equal(f.tensors[i].dtype, buffer ? source.tensors[i].dtype : TT_BF16);
    }
    tt_st_close(&f);
    tt_st_close(&source);
    w.save_dtype = "float8_e4m3fn";
    w.overwrite = true;
    assert_error(saved_write(&w), TT_ECONFIG, "save_dtype is 'float8_e4m3fn'");
}

static void what_does_not_fit_the_run_is_named(void **state)
{
    (void)state;
    char at[1200];
    tt_checkpoint c;
    snprintf(at, sizeof at, "%s/checkpoint-7", test_folder("checkpoint-fit"));
    saved_run w = {.from = "tests/fixtures/O1/model", .world = 2, .ep = 1, .resident = TT_F32, .moments = TT_F32, .seed = 5,
                   .checkpoint = at, .without_state = true};
    assert_ok(saved_write(&w));
    assert_error(saved_verify(at, 2, 1, TT_F32, TT_F32, 5), TT_ECONFIG, "without optimizer state");
    assert_ok(tt_checkpoint_open(at, &c));
    assert_false(c.with_state);
    tt_checkpoint_close(&c);
    assert_error(saved_write(&w), TT_ECONFIG, "checkpoint-7' exists");
    w.overwrite = true;
    w.without_state = false;
    assert_ok(saved_write(&w));
    assert_ok(saved_verify(at, 2, 1, TT_F32, TT_F32, 5));
    /* A lower precision reads it too, rounding. */
    assert_ok(saved_verify(at, 2, 1, TT_BF16, TT_BF16, 5));
}

/* --- the manifest, read as another program would ----------------------------------------------------------------- */

static void the_manifest_says_what_was_written(void **state)
{
    (void)state;
    char at[1200];
    tt_checkpoint c;
    snprintf(at, sizeof at, "%s/checkpoint-12", test_folder("checkpoint-manifest"));
    saved_run w = {.from = "tests/fixtures/O1-sharded/model", .world = 4, .ep = 2, .resident = TT_F32, .moments = TT_BF16, .seed = 5,
                   .checkpoint = at, .step = 12};
    assert_ok(saved_write(&w));
    assert_ok(tt_checkpoint_open(at, &c));
    assert_int_equal(c.step, 12);
    assert_true(c.with_state);
    json_t *mesh = json_object_get(c.manifest, "mesh"), *files = json_object_get(c.manifest, "files");
    assert_int_equal(json_integer_value(json_object_get(mesh, "world_size")), 4);
    assert_int_equal(json_integer_value(json_object_get(mesh, "ep_size")), 2);
    json_t *train = json_pack("{s:i, s:[i, i]}", "row", 12, "order", 3, 4);
    assert_true(json_equal(json_object_get(c.manifest, "train"), train));
    json_decref(train);
    static const char *const names[] = {"config.json", "model.safetensors.index.json", "model-00001-of-00003.safetensors",
                                        "optimizer.safetensors", "trainer_state.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!json_object_get(files, names[i])) fail_msg("%s is not in the manifest", names[i]);
    tt_checkpoint_close(&c);
}

/* Every rank takes its part of the ranges, and each range is some rank's. */
static void checksums_are_shared_out(void **state)
{
    (void)state;
    char at[1200];
    tt_checkpoint c;
    snprintf(at, sizeof at, "%s/checkpoint-12", test_folder("checkpoint-shares"));
    saved_run w = {.from = "tests/fixtures/O1-sharded/model", .world = 2, .ep = 1, .resident = TT_F32, .moments = TT_F32, .seed = 5,
                   .checkpoint = at};
    assert_ok(saved_write(&w));
    assert_ok(tt_checkpoint_open(at, &c));
    int64_t total = 0;
    const char *name;
    json_t *entry;
    json_object_foreach(json_object_get(c.manifest, "files"), name, entry) total +=
        json_integer_value(json_object_get(entry, "bytes"));
    for (int size = 1; size <= 5; size++) {
        _Atomic int64_t done = 0;
        for (int rank = 0; rank < size; rank++) assert_ok(tt_checkpoint_check(&c, rank, size, 1 + rank % 2, &done));
        assert_int_equal(done, total);
    }
    tt_checkpoint_close(&c);
}

/* --- lists of checkpoints ---------------------------------------------------------------------------------------- */

static void write_at(const char *root, int step)
{
    char at[1200];
    snprintf(at, sizeof at, "%s/checkpoint-%d", root, step);
    saved_run w = {.from = "tests/fixtures/O1/model", .world = 2, .ep = 1, .resident = TT_F32, .moments = TT_F32,
                   .seed = (uint64_t)step, .checkpoint = at, .step = step};
    assert_ok(saved_write(&w));
}

static void expect_newest(const char *root, const char *name, const char *passed)
{
    char *path, *over;
    assert_ok(tt_checkpoint_newest(root, INT64_MAX, &path, &over));
    if (!name != !path || (name && strcmp(strrchr(path, '/') + 1, name) != 0)) fail_msg("newest is %s, not %s", path, name);
    if (!passed != !over || (passed && !strstr(over, passed))) fail_msg("passed over: %s", over);
    free(path);
    free(over);
}

static bool there(const char *root, const char *name)
{
    return tt_dir_exists(file_in(root, name));
}

static void the_newest_that_is_whole(void **state)
{
    (void)state;
    char root[1100];
    snprintf(root, sizeof root, "%s", test_folder("checkpoint-newest"));
    expect_newest("build/no/such/folder", NULL, NULL);
    expect_newest(root, NULL, NULL);
    write_at(root, 9);
    write_at(root, 10);
    /* What looks like a newer one and is none. */
    static const char *const others[] = {("checkpoint-11" TT_ST_TEMPORARY), "checkpoint-012", "checkpoint-", "checkpoint-1x",
                                         "checkpoint-99999999999999999999", "Checkpoint-13", "checkpoint--1"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_ok(tt_dir_create(file_in(root, others[i])));
    expect_newest(root, "checkpoint-10", NULL);
    assert_ok(tt_dir_create(file_in(root, "checkpoint-14")));
    expect_newest(root, "checkpoint-10", "checkpoint-14: ");
    assert_ok(tt_file_remove(file_in(root, "checkpoint-10/optimizer.safetensors")));
    expect_newest(root, "checkpoint-9", "optimizer.safetensors");
}

static void the_oldest_go(void **state)
{
    (void)state;
    char root[1100], spare[1200];
    snprintf(root, sizeof root, "%s", test_folder("checkpoint-prune"));
    for (int step = 8; step <= 12; step++) write_at(root, step);
    assert_ok(tt_dir_create(file_in(root, "checkpoint-7"))); /* another program's */
    assert_ok(tt_checkpoint_prune(root, 0, NULL));
    assert_true(there(root, "checkpoint-8"));
    assert_ok(tt_checkpoint_prune(root, 4, NULL));
    assert_false(there(root, "checkpoint-8"));
    assert_true(there(root, "checkpoint-9"));
    snprintf(spare, sizeof spare, "%s/checkpoint-9/", root);
    assert_ok(tt_checkpoint_prune(root, 2, spare));
    assert_true(there(root, "checkpoint-9"));
    assert_false(there(root, "checkpoint-10"));
    assert_false(there(root, "checkpoint-11"));
    assert_true(there(root, "checkpoint-12"));
    assert_true(there(root, "checkpoint-7"));
    /* The newest is damaged: the one before is all there is. */
    write_at(root, 13);
    assert_ok(tt_file_remove(file_in(root, "checkpoint-13/config.json")));
    assert_ok(tt_checkpoint_prune(root, 1, NULL));
    assert_true(there(root, "checkpoint-12"));
    assert_false(there(root, "checkpoint-9"));
    expect_newest(root, "checkpoint-12", "checkpoint-13");
    /* None is whole: none goes. */
    assert_ok(tt_file_remove(file_in(root, "checkpoint-12/config.json")));
    assert_ok(tt_checkpoint_prune(root, 1, NULL));
    assert_true(there(root, "checkpoint-12"));
}

static void leftovers_are_swept(void **state)
{
    (void)state;
    char root[1100];
    snprintf(root, sizeof root, "%s", test_folder("checkpoint-sweep"));
    static const char *const names[] = {"checkpoint-3" TT_ST_TEMPORARY, "checkpoint-4", "checkpoint-4" TT_ST_REPLACED,
                                        "checkpoint-5" TT_ST_REPLACED, "mine" TT_ST_TEMPORARY, "checkpoint-x" TT_ST_TEMPORARY};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_ok(tt_dir_create(file_in(root, names[i])));
        char path[1500];
        snprintf(path, sizeof path, "%s/%s/file", root, names[i]);
        assert_ok(tt_file_write_all(path, "x", 1));
    }
    assert_ok(tt_checkpoint_sweep(root));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_int_equal(there(root, names[i]), i == 1 || i > 3);
    assert_true(there(root, "checkpoint-5")); /* the only one of its number has its name again */
    assert_ok(tt_checkpoint_sweep("build/no/such/folder"));
}

/* --- sizes that no test machine has --------------------------------------------------------------------------------- */

/* Offsets of a layout whose tensors and files are beyond 2^32 bytes and 2^31 elements; nothing is written. */
static void layouts_count_in_63_bits(void **state)
{
    (void)state;
    tt_params params = {0};
    tt_layout model, more;
    tt_param *p;
    int unit;
    assert_ok(tt_params_add_unit(&params, TT_UNIT_DENSE, 0, &unit));
    for (int i = 0; i < 3; i++) {
        char name[20];
        snprintf(name, sizeof name, "w%d.weight", i);
        assert_ok(tt_params_add(&params, name, (int64_t)1 << 20, (int64_t)1 << 12, &p));
        p->stored = TT_BF16;
        p->trained = i != 1;
    }
    const int64_t elements = (int64_t)1 << 32;
    tt_save_options o = {.max_file_bytes = INT64_MAX};
    tt_precision f32 = {TT_F32, TT_F32, TT_F32, TT_F32};
    assert_ok(tt_layout_model(&params, &o, &model));
    assert_int_equal(model.items[2].end - model.items[0].begin, 3 * elements * 2);
    assert_int_equal(model.files.file_bytes[0], model.items[2].end);
    assert_ok(tt_layout_state(&params, &model, f32, true, INT64_MAX, &more));
    assert_int_equal(more.num, 6); /* two moments and a master of two */
    assert_string_equal(more.items[0].name, "exp_avg.w0.weight");
    assert_string_equal(more.items[5].name, "master.w2.weight");
    for (int i = 0; i < 6; i++) assert_int_equal(more.items[i].begin - more.items[0].begin, i * elements * 4);
    tt_layout_free(&more);
    /* In files of 5 GB each tensor, being larger, has its own. */
    assert_ok(tt_layout_state(&params, &model, f32, false, 0, &more));
    assert_int_equal(more.files.num_files, 2);
    tt_layout_free(&more);
    tt_layout_free(&model);
    tt_params_free(&params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_mesh_reads_what_any_mesh_wrote),
        cmocka_unit_test(bytes_are_written_once),
        cmocka_unit_test(state_is_what_is_trained),
        cmocka_unit_test(a_type_that_is_asked_for),
        cmocka_unit_test(what_does_not_fit_the_run_is_named),
        cmocka_unit_test(the_manifest_says_what_was_written),
        cmocka_unit_test(checksums_are_shared_out),
        cmocka_unit_test(the_newest_that_is_whole),
        cmocka_unit_test(the_oldest_go),
        cmocka_unit_test(leftovers_are_swept),
        cmocka_unit_test(layouts_count_in_63_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
