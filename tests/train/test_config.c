/* The configuration: every source, what is refused and how it is said, and the resolved file read back. */
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/yaml.h"
#include "train/config_key.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- reading for the tests ------------------------------------------------------------------------------ */

static json_t *json(const char *text)
{
    json_t *v;
    assert_ok(tt_json_parse(text, strlen(text), "test", &v));
    return v;
}

/* A configuration from YAML text; the caller frees it, whatever the outcome. */
static tt_status from_yaml(tt_config *c, const char *text)
{
    json_t *values, *lines;
    assert_ok(tt_config_init(c));
    assert_ok(tt_yaml_parse(text, strlen(text), "sft.yaml", &values, &lines));
    tt_status status = tt_config_from_json(values, lines, "sft.yaml", c);
    json_decref(values);
    json_decref(lines);
    return status;
}

static void assert_equal_configs(const tt_config *a, const tt_config *b, const char *text)
{
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++) {
        const tt_config_key *k = tt_config_key_of((tt_config_id)i);
        json_t *x = tt_config_get(a, k), *y = tt_config_get(b, k);
        char s[100], t[100];
        tt_config_spell(x, s, sizeof s);
        tt_config_spell(y, t, sizeof t);
        if (!json_equal(x, y)) fail_msg("key %s was %s and came back as %s\n%s", k->name, s, t, text);
        json_decref(x);
        json_decref(y);
    }
}

/* Write c, read it, resolve it: nothing may change. */
static void assert_round_trip(const tt_config *c)
{
    char *text;
    tt_config again;
    assert_ok(tt_config_yaml(c, &text));
    tt_status status = from_yaml(&again, text);
    if (status == TT_OK) status = tt_config_resolve(&again);
    if (status != TT_OK) fail_msg("the resolved configuration is refused: %s\n%s", tt_error_text(), text);
    assert_equal_configs(c, &again, text);
    tt_config_free(&again);
    free(text);
}

/* --- tests ---------------------------------------------------------------------------------------------- */

static void defaults_are_trl_s(void **state)
{
    (void)state;
    tt_config c;
    assert_ok(tt_config_init(&c));
    assert_null(c.model_name_or_path);
    assert_string_equal(c.dataset_train_split, "train");
    assert_string_equal(c.output_dir, "trainer_output");
    assert_int_equal(c.per_device_train_batch_size, 8);
    assert_int_equal(c.gradient_accumulation_steps, 1);
    assert_close(c.learning_rate, 2e-5, 0);
    assert_close(c.num_train_epochs, 3, 0);
    assert_int_equal(c.max_steps, -1);
    assert_int_equal(c.max_length, 1024);
    assert_int_equal(c.lr_scheduler_type, TT_SCHEDULE_LINEAR);
    assert_int_equal(c.optim, TT_OPTIMIZER_ADAMW_TORCH_FUSED);
    assert_close(c.adam_beta2, 0.999, 0);
    assert_close(c.adam_epsilon, 1e-8, 0);
    assert_close(c.max_grad_norm, 1, 0);
    assert_close(c.logging_steps, 10, 0);
    assert_true(c.gradient_checkpointing);
    assert_true(isnan(c.router_aux_loss_coef));
    assert_int_equal(c.pad_to_multiple_of, TT_CONFIG_UNSET);
    assert_int_equal(c.loss_type, TT_LOSS_NLL);
    assert_int_equal(c.bf16, TT_FLAG_UNSET);
    assert_int_equal(c.expert_dispatch, TT_DISPATCH_ALLTOALL);
    assert_false(c.even_batches);
    tt_mesh_sizes sizes = tt_config_mesh_sizes(&c);
    assert_true(sizes.fsdp_size == 0 && sizes.tp_size == 1 && sizes.ep_size == 1);
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++) assert_false(tt_config_is_set(&c, (tt_config_id)i));
    assert_ok(tt_config_resolve(&c));
    assert_int_equal(c.bf16, TT_FLAG_TRUE);
    assert_int_equal(c.data_seed, 42);
    assert_int_equal(c.eval_packing, TT_FLAG_FALSE);
    assert_close(c.eval_steps, 10, 0);
    assert_false(tt_config_is_set(&c, TT_KEY_data_seed));
    assert_round_trip(&c);
    assert_error(tt_config_require(&c, TT_KEY_dataset_name), TT_ECONFIG, "key 'dataset_name' is missing");
    tt_config_free(&c);
    tt_config_free(&c);
}

/* Which of the fixtures' configurations ask for something that is not built. */
static bool wants_unbuilt(const json_t *v)
{
    return json_is_true(json_object_get(v, "packing")) || json_is_true(json_object_get(v, "padding_free")) ||
           json_object_get(v, "eval_strategy");
}

static void every_configuration_of_the_fixtures_is_read(void **state)
{
    (void)state;
    const char *patterns[] = {"sft/prepare/*/config.yaml", "sft/runs/*/config.yaml"};
    int accepted = 0, gated = 0;
    for (int p = 0; p < 2; p++) {
        glob_t found;
        assert_int_equal(glob(test_fixture(patterns[p]), 0, NULL, &found), 0);
        for (size_t i = 0; i < found.gl_pathc; i++) {
            tt_config c;
            json_t *values;
            assert_ok(tt_yaml_load(found.gl_pathv[i], 1 << 16, &values, NULL));
            assert_ok(tt_config_init(&c));
            assert_ok(tt_config_load(found.gl_pathv[i], &c));
            if (wants_unbuilt(values)) {
                assert_error(tt_config_resolve(&c), TT_ECONFIG, "not supported yet");
                gated++;
            } else {
                assert_ok(tt_config_resolve(&c));
                assert_round_trip(&c);
                accepted++;
            }
            tt_config_free(&c);
            json_decref(values);
        }
        globfree(&found);
    }
    assert_int_equal(accepted + gated, 53);
    assert_true(accepted > 30 && gated > 10);
}

static void refused_configurations_of_the_fixtures(void **state)
{
    (void)state;
    /* The rest of the file is about data, and its configurations are fine. */
    static const struct {
        const char *name, *part;
    } refused[] = {
        {"padding_free with max_length", "key 'padding_free' is true, but max_length is set"},
        {"packing without max_length", "key 'packing' is true, but max_length is null"},
        {"unknown loss_type", "key 'loss_type' is string \"zzz\"; expected one of nll, chunked_nll, dft"},
        {"unknown packing_strategy", "expected one of bfd, bfd_split, wrapped"},
        {"packing_strategy bfd-requeue", "packing is not supported yet; set packing: false"},
        {"unknown truncation_mode", "expected one of keep_start, keep_end"},
        {"fractional warm-up", "key 'warmup_steps' is real 1.5"},
        {"warmup_ratio", "key 'warmup_ratio' is unknown; write the share as warmup_steps: 0.1"},
    };
    enum { NUM = sizeof refused / sizeof *refused };
    int used = 0, rows = 0;
    static char line[8192];
    FILE *f = fopen(test_fixture("sft/prepare/refused.jsonl"), "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); rows++) {
        json_t *row = json(line);
        const char *name = json_string_value(json_object_get(row, "name"));
        tt_config c;
        int i = 0;
        while (i < NUM && strcmp(name, refused[i].name) != 0) i++;
        assert_ok(tt_config_init(&c));
        tt_status status = tt_config_from_json(json_object_get(row, "config"), NULL, "sft.yaml", &c);
        if (status == TT_OK) status = tt_config_resolve(&c);
        if (i < NUM)
            assert_error(status, TT_ECONFIG, refused[i].part), used++;
        else if (status != TT_OK)
            fail_msg("%s: %s", name, tt_error_text());
        tt_config_free(&c);
        json_decref(row);
    }
    fclose(f);
    assert_int_equal(rows, 26);
    assert_int_equal(used, NUM);
}

static void yaml_1_1_is_understood(void **state)
{
    (void)state;
    tt_config c;
    assert_ok(from_yaml(&c,
                        "eval_strategy: no\nsave_strategy: off\nlogging_strategy: no\nlearning_rate: 1e-5\n"
                        "adam_epsilon: 1.0e-7\nmax_length: null\nwarmup_steps: 0.1\nlogging_steps: 5.0\n"
                        "max_steps: 1e3\nnum_train_epochs: 2\ncompletion_only_loss: yes\nmax_grad_norm: ~\n"
                        "pad_to_multiple_of: auto\nlora_target_modules: [q_proj]\nreport_to: [none]\n"
                        "lr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: 5e-1}\n"
                        "resume_from_checkpoint: false\nfp16: \"false\"\nlora_modules_to_save: lm_head\n"));
    assert_ok(tt_config_resolve(&c));
    assert_int_equal(c.eval_strategy, TT_EVALUATION_NO);
    assert_int_equal(c.save_strategy, TT_SAVING_NO);
    assert_int_equal(c.logging_strategy, TT_INTERVAL_NO);
    assert_close(c.learning_rate, 1e-5, 0);
    assert_close(c.adam_epsilon, 1e-7, 0);
    assert_int_equal(c.max_length, TT_CONFIG_UNSET);
    assert_close(c.warmup_steps, 0.1, 0);
    assert_close(c.logging_steps, 5, 0);
    assert_int_equal(c.max_steps, 1000);
    assert_int_equal(c.completion_only_loss, TT_FLAG_TRUE);
    assert_close(c.max_grad_norm, 0, 0);
    assert_int_equal(c.pad_to_multiple_of, TT_CONFIG_UNSET);
    /* A list of one stays a list: endings of names, where a text would be a regular expression. */
    assert_true(json_is_array(c.lora_target_modules));
    assert_true(json_is_string(c.lora_modules_to_save));
    assert_null(c.resume_from_checkpoint);
    assert_true(tt_config_is_set(&c, TT_KEY_max_length));
    assert_false(tt_config_is_set(&c, TT_KEY_seed));
    assert_round_trip(&c);
    tt_config_free(&c);
}

static void sizes_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *yaml;
        int64_t bytes;
    } rows[] = {{"max_memory: 20GiB", 20ll << 30},
                {"max_memory: 20 GB", 20000000000},
                {"max_memory: 1.5kB", 1500},
                {"max_memory: 512KiB", 512 << 10},
                {"max_memory: 0.25TiB", 1ll << 38},
                {"max_memory: 3TB", 3000000000000},
                {"max_memory: 7MB", 7000000},
                {"max_memory: 7B", 7},
                {"max_memory: 12345678901", 12345678901},
                {"max_memory: '12345678901'", 12345678901},
                {"max_memory: 2e9", 2000000000},
                {"max_memory: null", TT_CONFIG_UNSET},
                {"seed: 1", TT_CONFIG_UNSET}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tt_config c;
        assert_ok(from_yaml(&c, rows[i].yaml));
        if (c.max_memory != rows[i].bytes) fail_msg("%s: %lld bytes", rows[i].yaml, (long long)c.max_memory);
        assert_ok(tt_config_resolve(&c));
        assert_round_trip(&c);
        tt_config_free(&c);
    }
}

static void wrong_values_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *part;
    } rows[] = {
        {"seed: 1\nper_device_train_batch_size: -2",
         "sft.yaml:2: key 'per_device_train_batch_size' is integer -2; expected a whole number, at least 1"},
        {"gradient_accumulation_steps: 0",
         "key 'gradient_accumulation_steps' is integer 0; expected a whole number, at least 1"},
        {"max_length: 0", "a whole number, at least 1, or null"},
        {"max_length: 1.5", "key 'max_length' is real 1.5"},
        {"max_length: long", "key 'max_length' is string \"long\""},
        {"max_length: true", "key 'max_length' is boolean true"},
        {"max_length: \"99999999999999999999\"", "key 'max_length' is"},
        {"max_length: \"-9223372036854775808\"", "key 'max_length' is"},
        {"seed: -1", "at least 0, at most 4294967295"},
        {"seed: 4294967296", "at most 4294967295"},
        {"seed: null", "key 'seed' is null; expected a whole number"},
        {"adam_beta1: 1.0", "a finite number, at least 0, below 1"},
        {"adam_beta2: -0.1", "key 'adam_beta2' is real -0.1"},
        {"learning_rate: '.nan'",
         "key 'learning_rate' is string \".nan\"; expected a finite number, at least 0"},
        {"learning_rate: inf", "expected a finite number"},
        {"learning_rate: 1e999", "expected a finite number"},
        {"learning_rate: '0x10'", "expected a finite number"},
        {"learning_rate: -1.0", "expected a finite number, at least 0"},
        {"learning_rate: \"\"", "expected a finite number"},
        {"learning_rate: [1.0]", "key 'learning_rate' is array [1.0]"},
        {"num_train_epochs: 0", "above 0"},
        {"max_steps: -2", "at least -1"},
        {"max_steps: 0", "key 'max_steps' is 0, but a run of no steps"},
        {"warmup_steps: 1.5", "a whole number of steps, or a share of all steps below 1, at least 0"},
        {"logging_steps: 0", "above 0"},
        {"packing: maybe", "key 'packing' is string \"maybe\"; expected true or false"},
        {"packing: 1", "key 'packing' is integer 1; expected true or false"},
        {"packing: null", "key 'packing' is null"},
        {"lr_scheduler_type: cosin", "one of linear, cosine,"},
        {"save_strategy: true", "one of no, steps, epoch, best"},
        {"dataset_name: 2024",
         "key 'dataset_name' is integer 2024; expected a text, or null: put it in quotes"},
        {"dataset_name: [a]", "expected a text"},
        {"lr_scheduler_kwargs: 3", "expected a mapping, or null"},
        {"lr_scheduler_kwargs: \"{\"", "key 'lr_scheduler_kwargs': not valid JSON"},
        {"lr_scheduler_kwargs: \"[1]\"", "expected a mapping, or null"},
        {"datasets: {path: a}", "expected a list"},
        {"lora_target_modules: [1]", "a text or a list of texts, or null"},
        {"fsdp_size: 0", "key 'fsdp_size' is integer 0; expected a whole number, at least 1, or null"},
        {"ep_size: -1", "at least 1"},
        {"router_aux_loss_coef: -0.1", "at least 0, or null"},
        {"router_aux_loss_scope: group", "global, rank"},
        {"lora_dropout: 1.0", "below 1"},
        {"max_memory: 20gb", "key 'max_memory' is string \"20gb\"; expected a number of bytes, or a size such as 20GiB or 1.5GB, at least 1, or null"},
        {"max_memory: 20Gb", "such as 20GiB"},
        {"max_memory: GiB", "such as 20GiB"},
        {"max_memory: 1e3GB", "such as 20GiB"},
        {"max_memory: '0x10GB'", "such as 20GiB"},
        {"max_memory: 1.2.3GB", "such as 20GiB"},
        {"max_memory: 20  GB", "such as 20GiB"},
        {"max_memory: 20GB of it", "such as 20GiB"},
        {"max_memory: -1GB", "such as 20GiB"},
        {"max_memory: 0", "at least 1"},
        {"max_memory: 0.1B", "at least 1"},
        {"max_memory: 5000000TiB", "such as 20GiB"},
        {"max_memory: 0.5", "key 'max_memory' is real 0.5"},
        {"max_memory: \"\"", "such as 20GiB"},
        {"max_memory: [1GB]", "such as 20GiB"},
        {"threads: -1", "at least 0"},
        {"dataset_kwargs: {skip: true}", "'skip' is unknown; only skip_prepare_dataset"},
        {"dataset_kwargs: {skip_prepare_dataset: 1}",
         "skip_prepare_dataset is integer; expected true or false"},
        {"fp16: true\nbf16: true", "sft.yaml:1: key 'fp16' is true, but bf16 is true too"},
        {"load_best_model_at_end: true", "but eval_strategy is no"},
        {"load_best_model_at_end: true\neval_strategy: epoch",
         "set save_strategy to the value of eval_strategy"},
        {"load_best_model_at_end: true\neval_strategy: steps\neval_steps: 3\nsave_steps: 10",
         "no multiple of eval_steps"},
        {"lr_scheduler_type: cosine\nlr_scheduler_kwargs: {min_lr: 0.1}",
         "sft.yaml:2: key 'lr_scheduler_kwargs': schedule cosine has no parameter 'min_lr'"},
        {"lr_scheduler_type: cosine_with_min_lr",
         "sft.yaml:1: key 'lr_scheduler_type': schedule cosine_with_min_lr needs min_lr"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tt_config c;
        tt_status status = from_yaml(&c, rows[i].yaml);
        if (status == TT_OK) status = tt_config_resolve(&c);
        if (status == TT_OK) fail_msg("accepted: %s", rows[i].yaml);
        assert_error(status, TT_ECONFIG, rows[i].part);
        tt_config_free(&c);
    }
}

static void unknown_keys_get_the_nearest_name(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *part;
    } rows[] = {
        {"seed: 3\nmax_lenght: 10", "sft.yaml:2: key 'max_lenght' is unknown; the nearest key is max_length"},
        {"learning_rte: 1", "the nearest key is learning_rate"},
        {"expert_dispach: alltoall", "the nearest key is expert_dispatch"},
        {"activation_checkpoint: true", "the nearest key is activation_checkpointing"},
        {"per_device_batch_size: 2", "the nearest key is per_device_"},
        {"evaluation_strategy: 'no'", "its name is now eval_strategy"},
        {"router_aux_loss_scaling: mean", "leave it out"},
        {"\"\": 1", "key '' is unknown"},
        {"gradient_checkpointing: true\nactivation_checkpointing: true",
         "sft.yaml:2: key 'activation_checkpointing' is given twice, as gradient_checkpointing and as "
         "activation_checkpointing"},
    };
    tt_config c;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_error(from_yaml(&c, rows[i].yaml), TT_ECONFIG, rows[i].part);
        tt_config_free(&c);
    }
    /* A key of any length costs no more than a long one. */
    char *name = malloc(100001);
    memset(name, 'x', 100000);
    name[100000] = '\0';
    json_t *v = json_pack("{s: i}", name, 1);
    assert_ok(tt_config_init(&c));
    assert_error(tt_config_from_json(v, NULL, "sft.yaml", &c), TT_ECONFIG, "is unknown");
    json_decref(v);
    free(name);
    v = json_array();
    assert_error(tt_config_from_json(v, NULL, "sft.yaml", &c), TT_ECONFIG, "expected a mapping of keys");
    json_decref(v);
    tt_config_free(&c);
    assert_ok(from_yaml(
        &c, "activation_checkpointing: false\nactivation_checkpointing_kwargs: {use_reentrant: false}"));
    assert_false(c.gradient_checkpointing);
    assert_true(tt_config_is_set(&c, TT_KEY_gradient_checkpointing));
    tt_config_free(&c);
}

#define OPTIONS(c, ...)                                                                                      \
    tt_config_options((c), (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)), (char *[]){__VA_ARGS__})

static void options_win_over_the_file(void **state)
{
    (void)state;
    tt_config c;
    assert_ok(from_yaml(&c, "learning_rate: 0.1\npacking: true\nseed: 3\nmax_length: 12"));
    assert_ok(OPTIONS(&c, "--learning_rate", "1e-4", "--no_packing", "--max-steps=-1", "--max_length", "null",
                      "--shuffle_dataset", "--assistant_only_loss", "false", "--completion-only-loss",
                      "--lr_scheduler_type=cosine", "--lr_scheduler_kwargs", "{\"num_cycles\": 1.5}",
                      "--lora_target_modules", "q_proj", "k_proj", "--report_to", "none",
                      "--lora_target_parameters=[\"a\"]", "--activation_checkpointing=off", "--seed", "4",
                      "--seed", "5", "--dataset_name", "a b=c.jsonl", "--output_dir=--odd",
                      "--lora_modules_to_save", "all-linear", "--no-bf16"));
    assert_ok(tt_config_resolve(&c));
    assert_close(c.learning_rate, 1e-4, 0);
    assert_false(c.packing);
    assert_int_equal(c.max_steps, -1);
    assert_int_equal(c.max_length, TT_CONFIG_UNSET);
    assert_true(c.shuffle_dataset);
    assert_false(c.assistant_only_loss);
    assert_int_equal(c.completion_only_loss, TT_FLAG_TRUE);
    assert_close(json_real_value(json_object_get(c.lr_scheduler_kwargs, "num_cycles")), 1.5, 0);
    assert_int_equal(json_array_size(c.lora_target_modules), 2);
    assert_int_equal(json_array_size(c.lora_target_parameters), 1);
    assert_string_equal(json_string_value(c.lora_modules_to_save), "all-linear");
    assert_false(c.gradient_checkpointing);
    assert_int_equal(c.seed, 5);
    assert_string_equal(c.dataset_name, "a b=c.jsonl");
    assert_string_equal(c.output_dir, "--odd");
    assert_int_equal(c.bf16, TT_FLAG_FALSE);
    assert_int_equal(c.origin[TT_KEY_seed].source, TT_FROM_COMMAND_LINE);
    assert_round_trip(&c);
    tt_config_free(&c);
}

static void wrong_options_are_named(void **state)
{
    (void)state;
    tt_config c;
    assert_ok(tt_config_init(&c));
    assert_error(OPTIONS(&c, "--max_lenght", "3"), TT_ECONFIG,
                 "--max_lenght is unknown; the nearest key is max_length");
    assert_error(OPTIONS(&c, "file.yaml"), TT_ECONFIG, "unexpected argument 'file.yaml'");
    assert_error(OPTIONS(&c, "--packing", "maybe"), TT_ECONFIG,
                 "--packing is string \"maybe\"; expected true or false");
    assert_error(OPTIONS(&c, "--"), TT_ECONFIG, "unexpected argument '--'");
    assert_error(OPTIONS(&c, "-s", "3"), TT_ECONFIG, "unexpected argument '-s'");
    assert_error(OPTIONS(&c, "--seed"), TT_ECONFIG, "--seed needs a value");
    assert_error(OPTIONS(&c, "--seed", "--packing"), TT_ECONFIG, "--seed needs a value");
    assert_error(OPTIONS(&c, "--seed="), TT_ECONFIG, "--seed is string \"\"");
    assert_error(OPTIONS(&c, "--seed", "x"), TT_ECONFIG, "--seed is string \"x\"");
    assert_error(OPTIONS(&c, "--no_seed"), TT_ECONFIG, "--no_seed is unknown");
    assert_error(OPTIONS(&c, "--no_packing=true"), TT_ECONFIG, "write --packing=false");
    assert_error(OPTIONS(&c, "--dataset_name", "\xff"), TT_ECONFIG, "not valid UTF-8");
    assert_error(OPTIONS(&c, "--lora_target_modules", "a", "\xff"), TT_ECONFIG, "not valid UTF-8");
    assert_error(OPTIONS(&c, "--lr_scheduler_kwargs", "{a: 1}"), TT_ECONFIG, "not valid JSON");
    assert_ok(OPTIONS(&c, "--optim", "adafactor"));
    assert_error(
        tt_config_resolve(&c), TT_ECONFIG,
        "--optim: adafactor is not supported yet; set optim to one of: adamw_torch, adamw_torch_fused, sgd");
    assert_int_equal(c.seed, 42);
    assert_ok(tt_config_options(&c, 0, NULL));
    tt_config_free(&c);
}

static void what_is_not_built_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *part;
    } rows[] = {
        {"use_peft: true", "sft.yaml:1: key 'use_peft' is true: training of LoRA adapters is not supported "
                           "yet; set use_peft: false"},
        {"load_in_8bit: true", "set load_in_8bit: false"},
        {"load_in_4bit: true", "not supported yet"},
        {"packing: true", "packing is not supported yet; set packing: false"},
        {"padding_free: true\nmax_length: null", "set padding_free: false"},
        {"eval_strategy: steps", "steps is not supported yet; set eval_strategy to one of: no"},
        {"eval_on_start: true", "evaluation during training is not supported yet"},
        {"datasets: [{path: a}]",
         "a mixture of data sets is not supported yet; name one data set with dataset_name"},
        {"streaming: true", "not supported yet"},
        {"dataset_config: main", "leave it out"},
        {"resume_from_checkpoint: true\nignore_data_skip: true", "set ignore_data_skip: false"},
        {"fp16: true", "set fp16: false"},
        {"label_smoothing_factor: 0.1", "set label_smoothing_factor: 0.0"},
        {"neftune_noise_alpha: 5", "not supported yet"},
        {"loss_type: dft", "set loss_type to one of: nll"},
        {"train_sampling_strategy: group_by_length", "one of: random, sequential"},
        {"optim: sgd\noptim_args: a=1", "leave it out"},
        {"lr_scheduler_type: reduce_lr_on_plateau", "reduce_lr_on_plateau is not supported yet"},
        {"lr_scheduler_type: greedy", "greedy is not supported yet"},
        {"report_to: tensorboard", "set report_to: none"},
        {"report_to: [none, wandb]", "set report_to: none"},
        {"push_to_hub: true", "uploading is not supported yet"},
        {"torch_compile: true", "not supported yet"},
        {"use_liger_kernel: true", "not supported yet"},
        {"auto_find_batch_size: true", "not supported yet"},
        {"save_strategy: best", "best is not supported yet; set save_strategy to one of: no, steps, epoch"},
        {"dtype: float16", "set dtype to one of: float32, bfloat16"},
        {"dtype: auto", "auto is not supported yet"},
        {"average_tokens_across_devices: false", "set average_tokens_across_devices: true"},
        {"activation_offloading: true", "not supported yet"},
        {"model_init_kwargs: {dtype: auto}", "not supported yet"},
        {"fsdp: full_shard", "set fsdp_size, tp_size and ep_size"},
        {"deepspeed: zero3.json", "not supported yet"},
        {"accelerator_config: {even_batches: false}", "even_batches is a key of its own"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tt_config c;
        assert_ok(from_yaml(&c, rows[i].yaml));
        assert_error(tt_config_resolve(&c), TT_ECONFIG, rows[i].part);
        tt_config_free(&c);
    }
}

static void what_asks_for_nothing_is_accepted(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "use_peft: false\nlora_r: 8\nlora_target_modules: all-linear\nuse_rslora: true",
        "load_in_4bit: false\nbnb_4bit_quant_type: nf4",
        "packing: false\npacking_strategy: wrapped\neval_packing: false",
        "eval_strategy: no\neval_steps: 5\nper_device_eval_batch_size: 2\nbf16_full_eval: "
        "true\neval_dataset_name: a",
        "datasets: []\nstreaming: false",
        "resume_from_checkpoint: null\nignore_data_skip: true",
        "label_smoothing_factor: 0\nneftune_noise_alpha: null",
        "loss_type: chunked_nll",
        "save_strategy: no\nsave_steps: 100\nsave_total_limit: 2\nsave_only_model: true\nasync_save: true",
        "save_strategy: steps\nsave_steps: 0.1\nsave_total_limit: -1\nresume_from_checkpoint: out/checkpoint-3",
        "save_strategy: epoch\nsave_dtype: bfloat16\nresume_from_checkpoint: true\nresume_override: [dataset, order]",
        "save_dtype: null\nresume_override: seed",
        "save_total_limit: null",
        "report_to: none\nrun_name: x",
        "report_to: []",
        "push_to_hub: false\nhub_model_id: me/x",
        "torch_compile: false\nuse_liger_kernel: false\nauto_find_batch_size: false\nfull_determinism: true",
        "attn_implementation: flash_attention_2\nuse_cpu: true\ndataloader_num_workers: "
        "4\ntrust_remote_code: true",
        "use_cache: false\ndo_train: true\ndo_eval: false\ntf32: true\ndisable_tqdm: true\nproject: x",
        "dtype: bfloat16\nbf16: false",
        "fsdp: ''\ndeepspeed: false\naccelerator_config: {}\nmodel_init_kwargs: null",
        "shuffle_dataset: true\ntrain_sampling_strategy: sequential\ndataloader_drop_last: true",
        "include_num_input_tokens_seen: no\nnonfinite: skip\nep_size: 4\nexpert_dispatch: "
        "allgather\nfsdp_size: 2",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tt_config c;
        tt_status status = from_yaml(&c, rows[i]);
        if (status == TT_OK) status = tt_config_resolve(&c);
        if (status != TT_OK) fail_msg("%s\n%s", tt_error_text(), rows[i]);
        assert_round_trip(&c);
        tt_config_free(&c);
    }
}

static void packing_implies_padding_free(void **state)
{
    (void)state;
    tt_config c;
    assert_ok(from_yaml(&c, "packing: true"));
    (void)tt_config_resolve(&c);
    assert_true(c.padding_free);
    assert_int_equal(c.eval_packing, TT_FLAG_TRUE);
    tt_config_free(&c);
    assert_ok(from_yaml(&c, "packing: true\npacking_strategy: wrapped"));
    (void)tt_config_resolve(&c);
    assert_false(c.padding_free);
    tt_config_free(&c);
    assert_ok(from_yaml(&c, "fp16: true"));
    (void)tt_config_resolve(&c);
    assert_int_equal(c.bf16, TT_FLAG_FALSE);
    tt_config_free(&c);
}

/* Whatever the kind of a key. */
static void null_is_refused_where_a_value_is_needed(void **state)
{
    (void)state;
    int refused[TT_KIND_WORD + 1] = {0};
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++) {
        tt_config c;
        char option[80], expected[120];
        const tt_config_key *k = tt_config_key_of((tt_config_id)i);
        snprintf(option, sizeof option, "--%s", k->name);
        snprintf(expected, sizeof expected, "%s is null; expected ", option);
        assert_ok(tt_config_init(&c));
        tt_status status = tt_config_options(&c, 2, (char *[]){option, "null"});
        if (tt_config_nullable(k)) {
            assert_ok(status);
        } else {
            assert_error(status, TT_ECONFIG, expected);
            refused[k->kind]++;
        }
        tt_config_free(&c);
    }
    const tt_config_kind kinds[] = {TT_KIND_BOOL, TT_KIND_INT, TT_KIND_REAL, TT_KIND_STEPS, TT_KIND_WORD};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) assert_true(refused[kinds[i]] > 0);
}

static void count_warnings(void *user, tt_log_level level, const char *text)
{
    (void)text;
    if (level == TT_LOG_WARN) ++*(int *)user;
}

static void deprecated_spellings_warn_and_change(void **state)
{
    (void)state;
    int warnings = 0;
    tt_config c;
    tt_log_set_hook(count_warnings, &warnings);
    assert_ok(from_yaml(&c, "loss_type: chunked_nll\npacking_strategy: bfd-requeue"));
    assert_ok(tt_config_resolve(&c));
    assert_int_equal(c.loss_type, TT_LOSS_NLL);
    assert_int_equal(c.packing_strategy, TT_PACKING_BFD_SPLIT);
    assert_int_equal(warnings, 2);
    assert_ok(tt_config_resolve(&c));
    assert_int_equal(warnings, 2);
    tt_log_set_hook(NULL, NULL);
    tt_config_free(&c);
}

static void what_has_no_effect_is_told(void **state)
{
    (void)state;
    for (int sgd = 0; sgd < 2; sgd++) {
        int warnings = 0;
        tt_config c;
        tt_log_set_hook(count_warnings, &warnings);
        assert_ok(from_yaml(&c, sgd ? "optim: sgd\noptim_state_dtype: bfloat16" : "optim_state_dtype: bfloat16"));
        assert_ok(tt_config_resolve(&c));
        assert_int_equal(warnings, sgd);
        tt_log_set_hook(NULL, NULL);
        tt_config_free(&c);
    }
}

static void texts_and_numbers_survive_the_file(void **state)
{
    (void)state;
    /* Quotes, a line break and a tab, C1 controls (NEL), line and paragraph separators, a BOM, characters
     * beyond 16 bits, and texts that YAML 1.1 would take for something else. */
    static const char *const texts[] = {
        "no",
        "1e-5",
        "2024-07-26",
        "null",
        "~",
        "a: b # c",
        "'",
        "\"\\/",
        "line\n\ttab",
        "\x7f\xc2\x80\xc2\x85\xe2\x80\xa8\xe2\x80\xa9\xef\xbb\xbf\xef\xbf\xbe",
        "\xf0\x9f\x90\x8d \xe4\xbd\xa0",
        "{a}",
        "[b]",
        "%d",
        "- x",
        " lead",
        ""};
    static const double numbers[] = {
        1e-5, 0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 1e15, 123456789012345680.0, 2, 1e22};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        tt_config c;
        assert_ok(tt_config_init(&c));
        json_t *v = json_pack("{s: s, s: f, s: {s: f, s: s}, s: [s, s], s: s}", "dataset_text_field",
                              texts[i], "learning_rate", numbers[i % 9], "gradient_checkpointing_kwargs", "x",
                              numbers[(i + 1) % 9], "y", texts[i], "lora_modules_to_save", texts[i], "b",
                              "run_name", texts[i]);
        assert_non_null(v);
        assert_ok(tt_config_from_json(v, NULL, "sft.yaml", &c));
        assert_ok(tt_config_resolve(&c));
        assert_round_trip(&c);
        json_decref(v);
        tt_config_free(&c);
    }
}

/* Any value under any key: refused with TT_ECONFIG, or taken over, written and read back the same. */
static void any_value_under_any_key(void **state)
{
    (void)state;
    static const char *const values[] = {"null",
                                         "true",
                                         "false",
                                         "0",
                                         "1",
                                         "-1",
                                         "9223372036854775807",
                                         "-9223372036854775808",
                                         "0.5",
                                         "1e300",
                                         "-0.0",
                                         "\"\"",
                                         "\"a\\u0000b\"",
                                         "\"1e-5\"",
                                         "\"[]\"",
                                         "\"{\"",
                                         "[]",
                                         "{}",
                                         "[\"x\"]",
                                         "[[[[1]]]]",
                                         "{\"a\": {\"b\": [null, 1e-9, \"no\"]}}",
                                         "\"no\"",
                                         "\"none\"",
                                         "\"steps\"",
                                         "4294967295",
                                         "\"123456789012345678901234567890\"",
                                         "{\"a\": \"\\u0000\", \"skip_prepare_dataset\": true}",
                                         "[{\"a\": \"\\u0000\"}]"};
    int accepted = 0;
    for (int k = 0; k < TT_CONFIG_NUM_KEYS; k++)
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            const char *name = tt_config_key_of((tt_config_id)k)->name;
            json_t *v = json_object();
            json_object_set_new(v, name, json(values[i]));
            tt_config c;
            assert_ok(tt_config_init(&c));
            tt_status status = tt_config_from_json(v, NULL, "sft.yaml", &c);
            if (status == TT_OK) status = tt_config_resolve(&c);
            if (status == TT_OK)
                assert_round_trip(&c), accepted++;
            else if (status != TT_ECONFIG || !strstr(tt_error_text(), name))
                fail_msg("%s: %s gave %s: %s", name, values[i], tt_status_name(status), tt_error_text());
            tt_config_free(&c);
            json_decref(v);
        }
    assert_true(accepted > TT_CONFIG_NUM_KEYS);
}

static void deep_values_are_refused(void **state)
{
    (void)state;
    tt_config c;
    assert_ok(tt_config_init(&c));
    for (int depth = 60; depth < 65; depth++) {
        char text[200] = "";
        for (int i = 0; i < depth - 1; i++) strcat(text, "[");
        for (int i = 0; i < depth - 1; i++) strcat(text, "]");
        json_t *v = json_pack("{s: {s: o}}", "gradient_checkpointing_kwargs", "a", json(text));
        tt_status status = tt_config_from_json(v, NULL, "sft.yaml", &c);
        json_decref(v);
        if (depth > 62) {
            assert_error(status, TT_ECONFIG,
                         "key 'gradient_checkpointing_kwargs' nests deeper than 62 levels");
        } else {
            assert_ok(status);
            assert_ok(tt_config_resolve(&c));
            assert_round_trip(&c);
        }
    }
    tt_config_free(&c);
}

static void a_file_sets_the_environment_first(void **state)
{
    (void)state;
    char path[1100];
    const char *text = "seed: 7\nenv:\n  TT_TEST_D: early\nmax_lenght: 3\n";
    tt_config c;
    snprintf(path, sizeof path, "%s/sft.yaml", test_folder("config-load"));
    assert_ok(tt_file_write_all(path, text, strlen(text)));
    assert_ok(tt_config_init(&c));
    assert_error(tt_config_load(path, &c), TT_ECONFIG, "sft.yaml:4: key 'max_lenght' is unknown");
    assert_string_equal(getenv("TT_TEST_D"), "early");
    assert_int_equal(c.seed, 7);
    assert_error(tt_config_load("no/such.yaml", &c), TT_ECONFIG, "no/such.yaml");
    tt_config_free(&c);
}

static void the_file_has_every_key(void **state)
{
    (void)state;
    char path[1100], *text, *help, line[120];
    size_t bytes;
    tt_config c;
    snprintf(path, sizeof path, "%s/resolved.yaml", test_folder("config"));
    assert_ok(from_yaml(&c, "learning_rate: 1e-4\nlora_r: 4"));
    assert_ok(tt_config_resolve(&c));
    assert_ok(tt_config_write(path, &c));
    assert_ok(tt_file_read_all(path, 1 << 20, &text, &bytes));
    assert_ok(tt_config_help(&help));
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++) {
        const char *name = tt_config_key_of((tt_config_id)i)->name;
        snprintf(line, sizeof line, "%s: ", name);
        if (!strstr(text, line)) fail_msg("%s is not in the file", name);
        snprintf(line, sizeof line, "  --%s", name);
        if (!strstr(help, line)) fail_msg("%s is not in the help text", name);
    }
    assert_non_null(strstr(text, "\n# Optimizer\nlearning_rate: 0.0001\n"));
    assert_non_null(strstr(text, "\nadam_epsilon: 1.0e-08\n"));
    assert_non_null(strstr(text, "\nlora_r: 4\n"));
    assert_non_null(strstr(text, "\nsave_steps: 500\n"));
    assert_non_null(strstr(text, "\n# eval_on_start: false\n"));
    assert_non_null(strstr(help, "\n  --max_length  (default 1024)\n"));
    assert_non_null(strstr(help, "at least 1, or null"));
    assert_non_null(strstr(help, "--gradient_checkpointing, --activation_checkpointing"));
    assert_error(tt_config_write("no/such/folder/x.yaml", &c), TT_EIO, "no/such/folder");
    free(text);
    free(help);
    tt_config_free(&c);
}

static void the_environment_is_set_and_not_kept(void **state)
{
    (void)state;
    json_t *v =
        json("{\"env\": {\"TT_TEST_A\": \"x y\", \"TT_TEST_B\": 3, \"TT_TEST_C\": true}, \"seed\": 1}");
    assert_ok(tt_config_apply_env(v, "sft.yaml"));
    assert_string_equal(getenv("TT_TEST_A"), "x y");
    assert_string_equal(getenv("TT_TEST_B"), "3");
    assert_string_equal(getenv("TT_TEST_C"), "True");
    tt_config c;
    char *text;
    assert_ok(tt_config_init(&c));
    assert_ok(tt_config_from_json(v, NULL, "sft.yaml", &c));
    assert_ok(tt_config_yaml(&c, &text));
    assert_null(strstr(text, "TT_TEST_A"));
    free(text);
    tt_config_free(&c);
    json_decref(v);
    static const char *const bad[] = {
        "{\"env\": [1]}",           "{\"env\": {\"\": \"x\"}}", "{\"env\": {\"A=B\": \"x\"}}",
        "{\"env\": {\"A\": null}}", "{\"env\": {\"A\": [1]}}",  "{\"env\": {\"A\": \"a\\u0000\"}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        v = json(bad[i]);
        assert_error(tt_config_apply_env(v, "sft.yaml"), TT_ECONFIG, "sft.yaml: key 'env'");
        json_decref(v);
    }
}

static void an_empty_file_is_the_defaults(void **state)
{
    (void)state;
    tt_config c;
    json_t *v = json_null();
    assert_ok(tt_config_init(&c));
    assert_ok(tt_config_from_json(v, NULL, "sft.yaml", &c));
    assert_ok(tt_config_resolve(&c));
    tt_config_free(&c);
}

int main(void)
{
    tt_log_set_level(TT_LOG_SILENT); /* of what is deprecated */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_trl_s),
        cmocka_unit_test(every_configuration_of_the_fixtures_is_read),
        cmocka_unit_test(refused_configurations_of_the_fixtures),
        cmocka_unit_test(yaml_1_1_is_understood),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(wrong_values_are_named),
        cmocka_unit_test(unknown_keys_get_the_nearest_name),
        cmocka_unit_test(options_win_over_the_file),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(what_is_not_built_is_refused_by_name),
        cmocka_unit_test(what_asks_for_nothing_is_accepted),
        cmocka_unit_test(packing_implies_padding_free),
        cmocka_unit_test(deprecated_spellings_warn_and_change),
        cmocka_unit_test(what_has_no_effect_is_told),
        cmocka_unit_test(null_is_refused_where_a_value_is_needed),
        cmocka_unit_test(texts_and_numbers_survive_the_file),
        cmocka_unit_test(any_value_under_any_key),
        cmocka_unit_test(deep_values_are_refused),
        cmocka_unit_test(a_file_sets_the_environment_first),
        cmocka_unit_test(the_file_has_every_key),
        cmocka_unit_test(the_environment_is_set_and_not_kept),
        cmocka_unit_test(an_empty_file_is_the_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
