/* Loading and saving whole models on meshes of ranks that are threads, and what is refused. */
#include "support/test.h"

#include "base/checked.h"
#include "base/file.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct job {
    const char *from, *to;
    int ep;
    tt_dtype resident;
    bool overwrite;
    int64_t elements, bytes_read, bytes_written, total, carried; /* over all ranks */
} job;

static tt_status load_and_save(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_engine e;
    tt_save_report saved;
    tt_comm_set_timeout(comm, 60);
    tt_engine_options o = {.folder = j->from, .mesh = {.ep_size = j->ep}, .ops = &tt_ops_ref, .resident = j->resident,
                           .compute = j->resident, .moments = TT_F32, .threads = 1};
    TT_TRY(tt_engine_open(comm, &o, &e));
    tt_save_options s = {.source = &e.source, .config = e.config.source, .aux_folder = j->from, .overwrite = j->overwrite};
    tt_status status = tt_save_model(j->to, e.shards, &s, &saved);
    int64_t sums[] = {e.load.elements, e.load.bytes_read, saved.bytes_written};
    if (status == TT_OK) status = tt_allreduce_i64(tt_comm_world(comm), "test", sums, 3);
    if (tt_comm_rank(comm) == 0 && status == TT_OK) {
        j->elements = sums[0], j->bytes_read = sums[1], j->bytes_written = sums[2];
        j->total = tt_params_total(&e.table.params);
        j->carried = e.source.carried_bytes;
    }
    tt_engine_close(&e);
    return status;
}

static void same_tensors(const char *a, const char *b)
{
    tt_st_folder x, y;
    assert_ok(tt_st_open_folder(a, &x));
    assert_ok(tt_st_open_folder(b, &y));
    assert_int_equal(x.num_tensors, y.num_tensors);
    assert_int_equal(x.num_files, y.num_files);
    for (int64_t i = 0; i < x.num_tensors; i++) {
        const tt_st_tensor *p = &x.tensors[i], *q = &y.tensors[i];
        assert_string_equal(p->name, q->name);
        assert_int_equal(p->dtype, q->dtype);
        assert_string_equal(x.file_names[p->file], y.file_names[q->file]);
        size_t n = (size_t)(p->end - p->begin);
        assert_int_equal(n, q->end - q->begin);
        char *u = malloc(2 * n + 1), *v = u + n;
        assert_ok(tt_file_read_at(&x.files[p->file], p->begin, u, n));
        assert_ok(tt_file_read_at(&y.files[q->file], q->begin, v, n));
        if (memcmp(u, v, n) != 0) fail_msg("%s: '%s' differs from %s", b, p->name, a);
        free(u);
    }
    tt_st_close(&x);
    tt_st_close(&y);
}

/* Headers and data, of every file of weights, and the index. */
static void same_files(const char *a, const char *b)
{
    tt_st_folder f;
    assert_ok(tt_st_open_folder(a, &f));
    for (int i = 0; i < f.num_files; i++) {
        char path[2][1400], *text[2];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            assert_ok(tt_path_join(path[k], sizeof path[k], k ? b : a, f.file_names[i]));
            assert_ok(tt_file_read_all(path[k], 1 << 24, &text[k], &bytes[k]));
        }
        if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0) fail_msg("%s is not %s", path[1], path[0]);
        free(text[0]);
        free(text[1]);
    }
    tt_st_close(&f);
}

/* Configurations say the same, key by key, also what tartan does not know. */
static void same_config(const char *a, const char *b)
{
    char path[2][1400];
    json_t *config[2];
    for (int k = 0; k < 2; k++) {
        assert_ok(tt_path_join(path[k], sizeof path[k], k ? b : a, "config.json"));
        assert_ok(tt_json_load(path[k], 1 << 20, &config[k]));
    }
    if (!json_equal(config[0], config[1])) fail_msg("%s does not say what %s says", path[1], path[0]);
    json_decref(config[0]);
    json_decref(config[1]);
}

static void untrained_weights_are_byte_identical(void **state)
{
    (void)state;
    static const char *const models[] = {"O1", "O1-sharded", "O1-fused", "O2", "Q1", "Q1-bf16", "Q1-f16",
                                         "Q1-mixed", "Q2", "G1", "G1-mtp", "G2", "G2-sharded"};
    static const char *const thorough[] = {"O1-sharded", "O1-fused", "Q1-mixed", "G1-mtp", "G2"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int world = 1; world <= 5; world++)
            for (int ep = 1; ep <= world; ep++) {
                char from[200], to[1200];
                /* Every mesh for a sharded, a fused, a mixed, a carrying and a grouped model; the corners for the others. */
                bool all = false;
                for (size_t k = 0; k < sizeof thorough / sizeof *thorough; k++) all |= !strcmp(models[i], thorough[k]);
                if (world % ep || (!all && world != ep * ep)) continue;
                snprintf(from, sizeof from, "tests/fixtures/%s/model", models[i]);
                snprintf(to, sizeof to, "%s/out", test_folder("model-files"));
                job j = {.from = from, .to = to, .ep = ep, .resident = TT_F32};
                assert_ok(tt_comm_run_threads(world, load_and_save, &j));
                same_tensors(from, to);
                same_files(from, to);
                same_config(from, to);
                /* Every element once: read by one rank, written by one rank; what is carried is copied once. */
                assert_int_equal(j.elements, j.total);
                assert_int_equal(j.carried > 0, !strcmp(models[i], "G1-mtp"));
                assert_int_equal(j.bytes_read + j.carried, j.bytes_written);
            }
}

static void bf16_weights_stay_bf16(void **state)
{
    (void)state;
    char to[1200];
    snprintf(to, sizeof to, "%s/out", test_folder("model-files"));
    job j = {.from = "tests/fixtures/Q1-bf16/model", .to = to, .ep = 2, .resident = TT_BF16};
    assert_ok(tt_comm_run_threads(2, load_and_save, &j));
    same_tensors(j.from, to);
}

static void a_model_is_not_replaced_unasked(void **state)
{
    (void)state;
    char to[1200], stale[1300];
    snprintf(to, sizeof to, "%s/out", test_folder("model-files"));
    job j = {.from = "tests/fixtures/O1-sharded/model", .to = to, .ep = 1, .resident = TT_F32};
    assert_ok(tt_comm_run_threads(2, load_and_save, &j));
    assert_error(tt_comm_run_threads(2, load_and_save, &j), TT_ECONFIG, "already holds a model");
    same_tensors(j.from, to);
    /* Replaced on request, by a model in one file: the old shards and their index go. */
    job k = {.from = "tests/fixtures/O1/model", .to = to, .ep = 1, .resident = TT_F32, .overwrite = true};
    assert_ok(tt_comm_run_threads(2, load_and_save, &k));
    same_tensors(k.from, to);
    snprintf(stale, sizeof stale, "%s/model.safetensors.index.json", to);
    assert_false(tt_file_exists(stale));
    snprintf(stale, sizeof stale, "%s/model-00001-of-00003.safetensors", to);
    assert_false(tt_file_exists(stale));
}

/* --- refusals ------------------------------------------------------------------------------------------------ */

/* A copy of O1 with its header changed: `from` replaced by `to` of the same length everywhere it stands. */
static const char *altered_model(const char *from, const char *to)
{
    static char folder[1200];
    char path[1300], *text;
    size_t bytes;
    assert_int_equal(strlen(from), strlen(to));
    snprintf(folder, sizeof folder, "%s", test_folder("altered"));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(tt_file_copy("tests/fixtures/O1/model/config.json", path));
    assert_ok(tt_file_read_all("tests/fixtures/O1/model/model.safetensors", 1 << 20, &text, &bytes));
    char *at = text + 8;
    while (*from && (at = memmem(at, bytes - (size_t)(at - text), from, strlen(from)))) {
        memcpy(at, to, strlen(to));
        at += strlen(to);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(tt_file_write_all(path, text, bytes));
    free(text);
    return folder;
}

static void what_does_not_fit_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        tt_status status;
        const char *message;
    } cases[] = {
        {"\"model.norm.weight\"", "\"model.morn.weight\"", TT_EMISMATCH, "'model.norm.weight' is missing"},
        {"experts.7.up_proj", "experts.9.up_proj", TT_EMISMATCH, "experts.7.up_proj.weight' is missing"},
        {"\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[96,32]", "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[32,96]",
         TT_EMISMATCH, "'lm_head.weight' has shape [32, 96]"},
        {"\"lm_head.weight\":{\"dtype\":\"F32\"", "\"lm_head.weight\":{\"dtype\":\"I32\"", TT_EMISMATCH, "has type I32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job j = {.from = altered_model(cases[i].from, cases[i].to), .to = "build/never", .ep = 1, .resident = TT_F32};
        assert_error(tt_comm_run_threads(2, load_and_save, &j), cases[i].status, cases[i].message);
    }
}

static void change_config(const char *folder, const char *key, json_t *value)
{
    char path[1300];
    json_t *object;
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(tt_json_load(path, 1 << 20, &object));
    if (value) json_object_set_new(object, key, value);
    else json_object_del(object, key);
    assert_ok(tt_json_save(path, object, false));
    json_decref(object);
}

static void configurations_that_cannot_be_honoured(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *message;
    } cases[] = {
        {"model_type", "\"gpt9\"", "model_type gpt9 is not supported"},
        {"model_type", "\"olmoe\\u0000x\"", "key 'model_type' holds a NUL character"},
        {"dtype", "\"float32\\u0000\"", "key 'dtype' holds a NUL character"},
        {"architectures", "[{\"a\": \"\\u0000\"}]", "key 'architectures' holds a NUL character"},
        {"rms_norm_eps", "null", "key 'rms_norm_eps' is null; expected a number"},
        {"router_aux_loss_coef", "null", "key 'router_aux_loss_coef' is null"},
        {"hidden_act", "\"gelu\"", "key 'hidden_act' is \"gelu\""},
        {"attention_dropout", "0.1", "key 'attention_dropout' is 0.1"},
        {"rope_scaling", "{\"rope_type\":\"yarn\",\"factor\":4.0}", "key 'rope_type' is \"yarn\""},
        {"rope_parameters", "{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"factor\":2}", "unknown rotary parameter 'factor'"},
        {"hidden_size", "\"32\"", "key 'hidden_size' is string"},
        {"hidden_size", "-32", "key 'hidden_size' is -32"},
        {"num_experts", "0", "key 'num_experts' is 0"},
        {"num_experts", "1000000", "2 layers of 1000000 experts"},
        {"intermediate_size", "0", "key 'intermediate_size' is 0"},
        {"clip_qkv", "0", "clip_qkv is 0"},
        {"rope_scaling", "\"yarn\"", "key 'rope_scaling' is string"},
        {"partial_rotary_factor", "1e300", "partial_rotary_factor is 1e+300"},
        {"partial_rotary_factor", "-0.5", "partial_rotary_factor is -0.5"},
        {"num_experts_per_tok", "9", "num_experts_per_tok"},
        {"num_key_value_heads", "3", "num_key_value_heads"},
        {"head_dim", "16", "head_dim must be hidden_size / num_attention_heads"},
        {"num_hidden_layers", "100000000000", "num_hidden_layers"},
        {"vocab_size", "9223372036854775807", "vocab_size"},
        {"vocab_size", "1e300", "vocab_size"},
        {"pad_token_id", "96", "pad_token_id 96"},
        {"quantization_config", "{\"quant_method\":\"fp8\"}", "another weight_block_size"},
        {"quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}", "another weight_block_size"},
        {"quantization_config", "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", "has fmt 'e5m2'"},
        {"quantization_config", "{\"quant_method\":\"compressed-tensors\"}", "quant_method 'compressed-tensors'"},
        {"quantization_config", "8", "quant_method '?'"},
        {"dtype", "\"int4\"", "dtype int4 is not supported"},
        {"dtype", "\"float8_e4m3fn\"", "dtype float8_e4m3fn is not supported"},
        {"dtype", "\"float64\"", "dtype float64 is not supported"},
        {"num_hidden_layers", "3", "'model.layers.2.input_layernorm.weight' is missing"},
        {"num_hidden_layers", "1", "model.layers.1."},
        {"tie_word_embeddings", "true", "differs from 'model.embed_tokens.weight'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *folder = altered_model("", "");
        change_config(folder, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL));
        job j = {.from = folder, .to = "build/never", .ep = 1, .resident = TT_F32};
        tt_status status = tt_comm_run_threads(1, load_and_save, &j);
        if (status == TT_OK) fail_msg("%s = %s was accepted", cases[i].key, cases[i].value);
        if (!strstr(tt_error_text(), cases[i].message)) fail_msg("%s: %s", cases[i].key, tt_error_text());
    }
    const char *folder = altered_model("", "");
    change_config(folder, "vocab_size", NULL);
    job j = {.from = folder, .to = "build/never", .ep = 1, .resident = TT_F32};
    assert_error(tt_comm_run_threads(1, load_and_save, &j), TT_EFORMAT, "key 'vocab_size' is missing");
}

/* A key that no reader knows, with a value of every kind, is in the saved config.json; one that would no longer be true is
 * not. */
static void unknown_keys_are_kept(void **state)
{
    (void)state;
    char to[1200], path[1300];
    json_t *config;
    const char *folder = altered_model("", "");
    json_t *value = json_loads("{\"a\": [1, 2.5, null, \"\u00e9\"], \"b\": {\"c\": true}}", 0, NULL);
    assert_non_null(value);
    change_config(folder, "a_key_of_tomorrow", json_deep_copy(value));
    snprintf(to, sizeof to, "%s/out", test_folder("model-files"));
    job j = {.from = folder, .to = to, .ep = 1, .resident = TT_F32};
    assert_ok(tt_comm_run_threads(2, load_and_save, &j));
    same_config(folder, to);
    change_config(folder, "quantization_config",
                  json_loads("{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"weight_block_size\": [128, 128]}", 0, NULL));
    snprintf(to, sizeof to, "%s/out", test_folder("model-files"));
    assert_ok(tt_comm_run_threads(2, load_and_save, &j));
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_ok(tt_json_load(path, 1 << 20, &config));
    assert_null(json_object_get(config, "quantization_config"));
    assert_true(json_equal(json_object_get(config, "a_key_of_tomorrow"), value));
    json_decref(config);
    json_decref(value);
}

/* Keys of the other families, and sizes whose products do not fit. Nothing but the configuration is read. */
static void configurations_of_other_families(void **state)
{
    (void)state;
    static const struct {
        const char *model, *key, *value, *message;
    } cases[] = {
        {"Q1", "layer_types", "\"full_attention\"", "'layer_types' is no list of 3 layers"},
        {"Q1", "layer_types", "[\"full_attention\"]", "'layer_types' is no list of 3 layers"},
        {"Q1", "layer_types", "[\"full_attention\",\"full_attention\",\"sliding_attention\"]", "for layer 2"},
        {"Q1", "moe_intermediate_size", "-1", "key 'moe_intermediate_size' is -1"},
        {"Q1", "decoder_sparse_step", "0", "key 'decoder_sparse_step' is 0"},
        {"G1", "n_routed_experts", "-8", "key 'n_routed_experts' is -8"},
        {"G1", "n_shared_experts", "9223372036854775807", "n_shared_experts is negative or too large"},
        {"G1", "n_shared_experts", "2000000000", "n_shared_experts is negative or too large"},
        {"G1", "moe_intermediate_size", "9223372036854775807", "key 'moe_intermediate_size' is 9223372036854775807"},
        {"G1", "scoring_func", "\"softmax\"", "key 'scoring_func' is \"softmax\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[200];
        json_t *object;
        tt_model_config c;
        snprintf(path, sizeof path, "tests/fixtures/%s/model/config.json", cases[i].model);
        assert_ok(tt_json_load(path, 1 << 20, &object));
        json_object_set_new(object, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        assert_error(tt_model_config_read(object, path, &c), TT_EFORMAT, cases[i].message);
        json_decref(object);
    }
}

static void models_beyond_counting_are_refused(void **state)
{
    (void)state;
    json_t *object;
    tt_model_config c;
    tt_model_table t;
    assert_ok(tt_json_load("tests/fixtures/Q1/model/config.json", 1 << 20, &object));
    json_object_set_new(object, "hidden_size", json_integer((int64_t)1 << 30));
    json_object_set_new(object, "moe_intermediate_size", json_integer((int64_t)1 << 28));
    assert_ok(tt_model_config_read(object, "config.json", &c));
    assert_error(tt_model_table_build(&c, &t), TT_ECONFIG, "more parameters than can be counted");
    tt_model_config_free(&c);
    json_decref(object);
}

/* --- random weights ------------------------------------------------------------------------------------------ */

typedef struct init_job {
    const char *to;
    int ep;
} init_job;

static tt_status init_and_save(tt_comm *comm, void *arg)
{
    init_job *j = arg;
    json_t *config;
    tt_engine e;
    tt_save_report saved;
    TT_TRY(tt_json_load("tests/fixtures/G2/model/config.json", 1 << 20, &config));
    tt_engine_options o = {.config = config, .init_seed = 5, .mesh = {.ep_size = j->ep}, .ops = &tt_ops_ref,
                           .resident = TT_F32, .compute = TT_F32, .moments = TT_F32, .threads = 1};
    tt_status status = tt_engine_open(comm, &o, &e);
    tt_save_options s = {.config = config, .max_file_bytes = 100000, .overwrite = true};
    if (status == TT_OK) status = tt_save_model(j->to, e.shards, &s, &saved);
    tt_engine_close(&e);
    json_decref(config);
    return status;
}

static void random_weights_do_not_depend_on_the_mesh(void **state)
{
    (void)state;
    char one[1200], other[1200];
    snprintf(one, sizeof one, "%s/one", test_folder("init"));
    snprintf(other, sizeof other, "%s", one);
    strcpy(strrchr(other, '/'), "/other");
    init_job j = {one, 1};
    assert_ok(tt_comm_run_threads(1, init_and_save, &j));
    for (int world = 2; world <= 4; world++) {
        init_job k = {other, world};
        assert_ok(tt_comm_run_threads(world, init_and_save, &k));
        same_tensors(one, other);
    }
    tt_st_folder f;
    assert_ok(tt_st_open_folder(one, &f));
    assert_true(f.num_files > 3); /* cut at 100,000 bytes */
    float row[48];
    /* The row of the padding token, norms and biases as models.md says. */
    assert_ok(tt_st_read(&f, tt_st_find(&f, "model.embed_tokens.weight"), 3 * 48, 48, TT_F32, row));
    for (int i = 0; i < 48; i++) assert_true(row[i] == 0);
    assert_ok(tt_st_read(&f, tt_st_find(&f, "model.norm.weight"), 0, 48, TT_F32, row));
    for (int i = 0; i < 48; i++) assert_true(row[i] == 1);
    tt_st_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(untrained_weights_are_byte_identical),
        cmocka_unit_test(bf16_weights_stay_bf16),
        cmocka_unit_test(a_model_is_not_replaced_unasked),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(configurations_that_cannot_be_honoured),
        cmocka_unit_test(unknown_keys_are_kept),
        cmocka_unit_test(configurations_of_other_families),
        cmocka_unit_test(models_beyond_counting_are_refused),
        cmocka_unit_test(random_weights_do_not_depend_on_the_mesh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
