/* The forms that one model may have on disk: experts stacked or apart, FP8 blocks, layers that are carried along. Whatever the
 * form, every mesh holds the same bits, reads what it owns and no more, and writes the form back. */
#include "support/test.h"
#include "support/trial.h"
#include "support/variant.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- one way to look at a model ---------------------------------------------------------------------------------- */

typedef struct look {
    const trial_shape *shape;
    const char *save;     /* folder, NULL: not saved */
    float *weights;       /* [total] */
    tt_load_summary loaded;
    int64_t carried;
} look;

/* Counts are those of what the rank owns, by its pieces and the types of the files. */
static tt_status check_report(const tt_engine *e)
{
    int64_t num, elements = 0, bytes = 0;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        const tt_st_tensor *t = &e->source.folder.tensors[e->source.tensor[pieces[i].param]];
        elements += pieces[i].count;
        bytes += pieces[i].count * (int64_t)tt_dtype_size(t->dtype);
    }
    const tt_load_report *r = &e->load;
    TT_CHECK(r->elements == elements && r->bytes_owned == bytes && r->bytes_read == bytes && r->pieces == num &&
                 r->memory <= TT_READ_MEMORY,
             TT_EVERDICT, "rank %d: %lld elements, %lld bytes, %lld pieces read into %lld; it owns %lld, %lld, %lld",
             e->mesh->rank, (long long)r->elements, (long long)r->bytes_read, (long long)r->pieces, (long long)r->memory,
             (long long)elements, (long long)bytes, (long long)num);
    TT_CHECK(e->loaded.slowest >= 0 && e->loaded.slowest < e->mesh->world_size && e->loaded.seconds >= r->seconds &&
                 e->loaded.bytes_read == e->loaded.bytes_owned,
             TT_EVERDICT, "rank %d: the summary does not fit", e->mesh->rank);
    return TT_OK;
}

static tt_status look_at(tt_engine *e, void *arg)
{
    look *l = arg;
    tt_save_report report;
    TT_TRY(check_report(e));
    if (e->mesh->rank == 0) l->loaded = e->loaded, l->carried = e->source.carried_bytes;
    trial_collect(e, l->shape, TT_PART_WEIGHT, l->weights);
    if (!l->save) return TT_OK;
    tt_save_options o = {.source = &e->source, .config = e->config.source, .overwrite = true};
    return tt_save_model(l->save, e->shards, &o, &report);
}

static look look_on(const trial_shape *s, trial_mesh mesh, const char *folder, const char *save)
{
    look l = {.shape = s, .save = save, .weights = malloc((size_t)s->total * sizeof(float))};
    trial_run run = {.model = s->model, .mesh = mesh, .folder = folder};
    memset(l.weights, 0xFF, (size_t)s->total * sizeof(float)); /* NaN */
    assert_ok(trial_on_mesh(&run, look_at, &l));
    return l;
}

static void same_file(const char *a, const char *b, const char *name)
{
    char path[2][1400], *text[2];
    size_t bytes[2];
    for (int k = 0; k < 2; k++) {
        assert_ok(tt_path_join(path[k], sizeof path[k], k ? b : a, name));
        assert_ok(tt_file_read_all(path[k], 1 << 26, &text[k], &bytes[k]));
    }
    if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0) fail_msg("%s is not %s", path[1], path[0]);
    free(text[0]);
    free(text[1]);
}

static tt_status save_plainly(tt_engine *e, void *arg)
{
    tt_save_report report;
    tt_save_options o = {.config = e->config.source, .overwrite = true};
    return tt_save_model(arg, e->shards, &o, &report);
}

/* Random weights of a model in a folder. */
static void make_model(const trial_model *m, const char *folder)
{
    trial_run run = {.model = m, .mesh = TRIAL_MESH(1, 1)};
    assert_ok(trial_on_mesh(&run, save_plainly, (void *)folder));
}

/* Loaded on all; saved, which waits for the disk, on every third. */
static const trial_mesh meshes[] = {TRIAL_MESH(1, 1), TRIAL_MESH(2, 1), TRIAL_MESH(2, 2), TRIAL_MESH(3, 1), TRIAL_MESH(3, 3),
                                    TRIAL_MESH(4, 2), TRIAL_MESH(4, 4), TRIAL_MESH(5, 1), TRIAL_MESH(5, 5), TRIAL_MESH(6, 3)};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

/* --- stacks ------------------------------------------------------------------------------------------------------ */

/* 8, 9 and 10 experts, which most of the meshes do not divide. */
static void stacked_experts_are_the_experts(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe", "olmoe, 10 experts, tied, clamped", "qwen3, a dense layer between",
                                        "glm4, 10 experts"};
    char root[1100], apart[1200], stacked[1200], out[1200];
    snprintf(root, sizeof root, "%s", test_folder("stacked"));
    snprintf(apart, sizeof apart, "%s/apart", root);
    snprintf(stacked, sizeof stacked, "%s/stacked", root);
    snprintf(out, sizeof out, "%s/out", root);
    for (size_t m = 0; m < sizeof names / sizeof *names; m++) {
        trial_shape s;
        variant *v = malloc(sizeof *v);
        assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
        make_model(s.model, apart);
        variant_read(apart, v);
        variant_stack(v);
        assert_true(v->num < s.table.params.num);
        variant_write(v, stacked);
        look want = look_on(&s, meshes[0], apart, NULL);
        for (int i = 0; i < NUM_MESHES; i++) {
            if (!trial_mesh_fits(&s, meshes[i])) continue;
            look got = look_on(&s, meshes[i], stacked, i % 3 ? NULL : out);
            trial_same_bits(&s, names[m], got.weights, want.weights);
            assert_int_equal(got.loaded.bytes_read, want.loaded.bytes_read);
            if (i % 3 == 0) same_file(stacked, out, "model.safetensors");
            free(got.weights);
        }
        free(want.weights);
        variant_free(v);
        free(v);
        trial_shape_close(&s);
    }
}

/* --- FP8 --------------------------------------------------------------------------------------------------------- */

/* Matrices of one block, of several, and with partial blocks in rows, columns and both. */
static const trial_model wide = {
    .name = "wide",
    .config = "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 40, \"hidden_size\": 160, \"num_hidden_layers\": 2,"
              "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 40, \"num_experts\": 5,"
              "\"num_experts_per_tok\": 2, \"norm_topk_prob\": true, \"moe_intermediate_size\": 136,"
              "\"intermediate_size\": 260, \"mlp_only_layers\": [0], \"rms_norm_eps\": 1e-6, \"dtype\": \"float32\"}",
};

typedef struct gradient_job {
    const trial_shape *shape;
    const trial_batch *batch;
    trial_result *out;
} gradient_job;

static tt_status gradients(tt_engine *e, void *arg)
{
    gradient_job *j = arg;
    return trial_gradients(e, j->shape, j->batch, false, 0, NULL, j->out);
}

/* The model in blocks computes, bit for bit, what the model of the values that they mean computes. */
static void fp8_blocks_are_their_values(void **state)
{
    (void)state;
    char root[1100], source[1200], fp8[1200], plain[1200], out[1200];
    snprintf(root, sizeof root, "%s", test_folder("fp8"));
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(fp8, sizeof fp8, "%s/fp8", root);
    snprintf(plain, sizeof plain, "%s/plain", root);
    snprintf(out, sizeof out, "%s/out", root);
    trial_shape s;
    trial_batch b;
    assert_ok(trial_shape_open(&wide, &s));
    trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
    make_model(&wide, source);
    for (int narrow = 0; narrow < 2; narrow++) {
        variant *v = malloc(2 * sizeof *v), *values = v + 1;
        variant_read(source, v);
        variant_quantise(v, narrow ? TT_BF16 : TT_F32, values);
        variant_write(v, fp8);
        variant_write(values, plain);
        for (int i = 0; i < NUM_MESHES; i++) {
            if (!trial_mesh_fits(&s, meshes[i])) continue;
            look want = look_on(&s, meshes[i], plain, NULL), got = look_on(&s, meshes[i], fp8, i % 3 ? NULL : out);
            trial_same_bits(&s, "FP8", got.weights, want.weights);
            assert_true(got.loaded.scale_bytes > 0 && want.loaded.scale_bytes == 0);
            assert_true(got.loaded.bytes_read < want.loaded.bytes_read / 3);
            /* Saved in the type of the configuration: here the values without loss. */
            if (i % 3 == 0) same_file(plain, out, "model.safetensors");
            if (i % 3 == 0) same_file(plain, out, "config.json");
            free(want.weights);
            free(got.weights);
            trial_result r[2];
            for (int k = 0; k < 2; k++) {
                trial_run run = {.model = &wide, .mesh = meshes[i], .folder = k ? fp8 : plain};
                gradient_job j = {&s, &b, &r[k]};
                assert_ok(trial_result_open(&s, &r[k]));
                assert_ok(trial_on_mesh(&run, gradients, &j));
            }
            assert_true(r[0].nll == r[1].nll && r[0].norm == r[1].norm);
            trial_same_bits(&s, "FP8 gradients", r[1].gradients, r[0].gradients);
            trial_result_close(&r[0]);
            trial_result_close(&r[1]);
        }
        variant_free(v);
        variant_free(values);
        free(v);
    }
    trial_shape_close(&s);
}

/* A configuration that says bfloat16 gets its FP8 matrices in bfloat16, and everything else as it was. */
static void fp8_is_saved_in_the_configured_type(void **state)
{
    (void)state;
    char root[1100], fp8[1200], out[1200];
    snprintf(root, sizeof root, "%s", test_folder("fp8-type"));
    snprintf(fp8, sizeof fp8, "%s/fp8", root);
    snprintf(out, sizeof out, "%s/out", root);
    trial_shape s;
    variant *v = malloc(3 * sizeof *v), *values = v + 1, *saved = v + 2;
    assert_ok(trial_shape_open(&wide, &s));
    make_model(&wide, fp8);
    variant_read(fp8, v);
    variant_quantise(v, TT_F32, values);
    json_object_set_new(v->config, "dtype", json_string("bfloat16"));
    variant_write(v, fp8);
    look l = look_on(&s, meshes[5], fp8, out);
    variant_read(out, saved);
    assert_int_equal(saved->num, values->num);
    int matrices = 0;
    for (int i = 0; i < saved->num; i++) {
        const tt_st_item *got = &saved->items[i], *want = &values->items[i];
        int64_t count;
        assert_string_equal(got->name, want->name);
        assert_true(tt_st_size(got->dtype, got->ndim, got->shape, &count, NULL));
        bool fp8_matrix = v->items[variant_find(v, got->name)].dtype == TT_F8_E4M3;
        assert_int_equal(got->dtype, fp8_matrix ? TT_BF16 : TT_F32);
        if (!fp8_matrix) assert_memory_equal(saved->data[i], values->data[i], (size_t)count * 4);
        matrices += fp8_matrix;
        for (int64_t k = 0; k < count && fp8_matrix; k++)
            assert_int_equal(((uint16_t *)saved->data[i])[k], tt_f32_to_bf16(((float *)values->data[i])[k]));
    }
    assert_true(matrices > 10);
    assert_null(json_object_get(saved->config, "quantization_config"));
    free(l.weights);
    for (int k = 0; k < 3; k++) variant_free(&v[k]);
    free(v);
    trial_shape_close(&s);
}

/* --- what is carried --------------------------------------------------------------------------------------------- */

/* Rotary buffers, a copy of a tied head, and two layers beyond the last, one with FP8 blocks and one with stacks: trained
 * around, and saved again but for the copy. */
static void what_is_not_trained_is_carried(void **state)
{
    (void)state;
    char root[1100], from[1200], out[1200];
    snprintf(root, sizeof root, "%s", test_folder("carried"));
    snprintf(from, sizeof from, "%s/from", root);
    snprintf(out, sizeof out, "%s/out", root);
    trial_shape s;
    variant *v = malloc(2 * sizeof *v), *saved = v + 1;
    assert_ok(trial_shape_open(trial_find_model("olmoe, 10 experts, tied, clamped"), &s));
    make_model(s.model, from);
    look want = look_on(&s, meshes[0], from, NULL);
    variant_read(from, v);
    uint8_t bytes[600];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(7 * i + 1);
    int embedding = variant_find(v, "model.embed_tokens.weight");
    variant_add(v, "lm_head.weight", TT_F32, 2, v->items[embedding].shape, v->data[embedding]);
    variant_add(v, "model.layers.0.self_attn.rotary_emb.inv_freq", TT_F32, 1, (int64_t[]){4}, bytes);
    variant_add(v, "model.layers.2.eh_proj.weight", TT_F8_E4M3, 2, (int64_t[]){24, 25}, bytes);
    variant_add(v, "model.layers.2.eh_proj.weight_scale_inv", TT_F32, 2, (int64_t[]){1, 1}, bytes);
    variant_add(v, "model.layers.2.nothing", TT_I64, 2, (int64_t[]){0, 9}, bytes);
    variant_add(v, "model.layers.11.eh_proj.weight", TT_BF16, 1, (int64_t[]){300}, bytes);
    variant_add(v, "model.layers.11.mlp.experts.gate_up_proj", TT_F32, 3, (int64_t[]){2, 3, 5}, bytes);
    variant_write(v, from);
    for (int i = 0; i < NUM_MESHES; i += 3) {
        if (!trial_mesh_fits(&s, meshes[i])) continue;
        look got = look_on(&s, meshes[i], from, out);
        trial_same_bits(&s, "carried", got.weights, want.weights);
        assert_int_equal(got.carried, 16 + 600 + 4 + 600 + 120);
        variant_read(out, saved);
        assert_int_equal(saved->num, v->num - 1);
        for (int k = 0, j = 0; k < v->num; k++) {
            int64_t size;
            if (strcmp(v->items[k].name, "lm_head.weight") == 0) continue;
            assert_string_equal(saved->items[j].name, v->items[k].name);
            assert_int_equal(saved->items[j].dtype, v->items[k].dtype);
            assert_true(tt_st_size(v->items[k].dtype, v->items[k].ndim, v->items[k].shape, NULL, &size));
            assert_memory_equal(saved->data[j], v->data[k], (size_t)size);
            j++;
        }
        variant_free(saved);
        free(got.weights);
    }
    free(want.weights);
    variant_free(v);
    free(v);
    trial_shape_close(&s);
}

/* --- refusals ---------------------------------------------------------------------------------------------------- */

enum { NEW_SHAPE = 3 };

/* Changes to a stacked, an apart or an FP8 form of one model, each refused by name. */
static const struct {
    char form;          /* a: apart, s: stacked, 8: FP8 */
    const char *remove; /* a tensor, or NULL */
    const char *add;
    tt_dtype type;
    int ndim;
    int64_t shape[NEW_SHAPE];
    const char *message;
} refusals[] = {
    {'s', NULL, "model.layers.1.mlp.experts.0.up_proj.weight", TT_F32, 2, {136, 160},
     "'model.layers.1.mlp.experts.0.up_proj.weight' is there twice: by itself and within 'model.layers.1.mlp.experts.gate_up_proj'"},
    {'s', "model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.gate_up_proj", TT_F32, 3, {5, 160, 272},
     "'model.layers.1.mlp.experts.gate_up_proj' has shape [5, 160, 272]; config.json asks for [5, 272, 160]"},
    {'s', "model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_proj", TT_F32, 2, {800, 136},
     "'model.layers.1.mlp.experts.down_proj' has shape [800, 136]"},
    {'s', "model.layers.1.mlp.experts.down_proj", "model.layers.1.mlp.experts.down_proj", TT_F8_E4M3, 3, {5, 160, 136},
     "'model.layers.1.mlp.experts.down_proj' has type F8_E4M3"},
    {'s', "model.layers.1.mlp.experts.down_proj", NULL, TT_F32, 0, {0},
     "'model.layers.1.mlp.experts.0.down_proj.weight' is missing"},
    {'s', NULL, "model.layers.1.mlp.experts.gate_up_projs", TT_F32, 1, {1},
     "'model.layers.1.mlp.experts.gate_up_projs' belongs to no parameter of the model that config.json describes; nearest is "
     "'model.layers.1.mlp.experts.gate_up_proj'"},
    {'a', "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norms.weight", TT_F32, 1, {40},
     "'model.layers.1.self_attn.q_norm.weight' is missing; config.json describes a model that has it. Of the tensors that "
     "belong to no parameter, 'model.layers.1.self_attn.q_norms.weight' has the nearest name"},
    {'a', NULL, "model.layers.2.input_layernorm.weight", TT_F32, 1, {160},
     "'model.layers.2.input_layernorm.weight' belongs to no parameter"},
    {'a', NULL, "model.layers.1.eh_proj.weight", TT_F32, 1, {1}, "'model.layers.1.eh_proj.weight' belongs to no parameter"},
    {'a', NULL, "model.layers.02.eh_proj.weight", TT_F32, 1, {1}, "'model.layers.02.eh_proj.weight' belongs to no parameter"},
    {'a', NULL, "model.layers.0.self_attn.q_proj.weight_scale_inv", TT_F32, 2, {2, 2},
     "'model.layers.0.self_attn.q_proj.weight_scale_inv' belongs to no parameter"},
    {'8', "model.layers.0.self_attn.q_proj.weight_scale_inv", NULL, TT_F32, 0, {0},
     "'model.layers.0.self_attn.q_proj.weight' has type F8_E4M3, but is not a matrix with a tensor "
     "'model.layers.0.self_attn.q_proj.weight_scale_inv' beside it"},
    {'8', "model.layers.0.self_attn.q_proj.weight_scale_inv", "model.layers.0.self_attn.q_proj.weight_scale_inv", TT_F32, 2,
     {2, 1}, "'model.layers.0.self_attn.q_proj.weight_scale_inv' has shape [2, 1]; config.json asks for [2, 2]"},
    {'8', "model.layers.0.self_attn.q_proj.weight_scale_inv", "model.layers.0.self_attn.q_proj.weight_scale_inv", TT_F16, 2,
     {2, 2}, "'model.layers.0.self_attn.q_proj.weight_scale_inv' has type F16"},
    {'8', "model.norm.weight", "model.norm.weight", TT_F8_E4M3, 1, {160}, "'model.norm.weight' has type F8_E4M3"},
};

static void what_does_not_fit_is_named(void **state)
{
    (void)state;
    char source[1200], folder[1200];
    snprintf(source, sizeof source, "%s/source", test_folder("refused"));
    snprintf(folder, sizeof folder, "%s-changed", source);
    make_model(&wide, source);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        variant *v = malloc(2 * sizeof *v);
        trial_run run = {.model = &wide, .mesh = TRIAL_MESH(2, 1), .folder = folder};
        variant_read(source, v);
        memset(&v[1], 0, sizeof v[1]);
        if (refusals[i].form == 's') variant_stack(v);
        if (refusals[i].form == '8') variant_quantise(v, TT_F32, &v[1]);
        if (refusals[i].remove) variant_remove(v, refusals[i].remove);
        if (refusals[i].add) variant_add(v, refusals[i].add, refusals[i].type, refusals[i].ndim, refusals[i].shape, NULL);
        variant_write(v, folder);
        tt_status status = trial_on_mesh(&run, look_at, NULL);
        if (status != TT_EMISMATCH || !strstr(tt_error_text(), refusals[i].message))
            fail_msg("case %zu: %s: %s\n  expected: %s", i, tt_status_name(status), status ? tt_error_text() : "",
                     refusals[i].message);
        variant_free(&v[0]);
        variant_free(&v[1]);
        free(v);
    }
}

int main(void)
{
    tt_log_set_level(TT_LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacked_experts_are_the_experts),     cmocka_unit_test(fp8_blocks_are_their_values),
        cmocka_unit_test(fp8_is_saved_in_the_configured_type), cmocka_unit_test(what_is_not_trained_is_carried),
        cmocka_unit_test(what_does_not_fit_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
