/* cmd_init.c - tartan init: a model folder with random weights for a geometry. */
#include "base/file.h"
#include "base/log.h"
#include "cli/options.h"
#include "train/engine.h"

#include <stdio.h>
#include <string.h>

static tt_status check_tokenizer(const char *folder)
{
    char path[4096];
    TT_TRY(tt_path_join(path, sizeof path, folder, "tokenizer.json"));
    TT_CHECK(tt_file_exists(path), TT_ECONFIG, "--tokenizer: '%s' does not exist", path);
    return TT_OK;
}

static tt_status set_dtype(json_t *config, const char *dtype)
{
    tt_dtype type;
    if (!dtype) return TT_OK;
    TT_CHECK(tt_dtype_from_config_name(dtype, &type) && type != TT_F64 && type != TT_F8_E4M3, TT_ECONFIG,
             "--dtype is '%s'; expected float32, bfloat16 or float16", dtype);
    bool old = json_object_get(config, "torch_dtype") && !json_object_get(config, "dtype");
    json_object_set_new(config, old ? "torch_dtype" : "dtype", json_string(dtype));
    return TT_OK;
}

/* Read once for its messages, which name this file; the engine reads the object again. */
static tt_status check_config(json_t *config, const char *path)
{
    tt_model_config parsed;
    TT_TRY(tt_model_config_read(config, path, &parsed));
    tt_model_config_warn(&parsed);
    tt_model_config_free(&parsed);
    return TT_OK;
}

/* The object to write: the given one, with the type that the weights get. */
static tt_status read_config(const char *path, const char *dtype, json_t **out)
{
    json_t *config;
    TT_TRY(tt_json_load(path, 16 << 20, &config));
    tt_status status = check_config(config, path);
    if (status == TT_OK) status = set_dtype(config, dtype);
    if (status == TT_OK)
        *out = config;
    else
        json_decref(config);
    return status;
}

static tt_status create(tt_comm *comm, json_t *config, const char *folder, const char *tokenizer, int64_t seed)
{
    tt_engine engine;
    tt_save_report report;
    tt_engine_options o = {
        .config = config,
        .init_seed = (uint64_t)seed,
        .ops = &tt_ops_ref,
        .resident = TT_F32,
        .compute = TT_F32,
        .moments = TT_F32,
        .threads = 1,
    };
    TT_TRY(tt_engine_open(comm, &o, &engine));
    tt_save_options save = {.config = config, .aux_folder = tokenizer};
    tt_status status = tt_save_model(folder, engine.shards, &save, &report);
    if (status == TT_OK)
        tt_info("%s: %lld parameters in %lld tensors, %d file%s", folder,
                (long long)tt_params_total(&engine.table.params), (long long)engine.table.params.num, report.num_files,
                report.num_files > 1 ? "s" : "");
    tt_engine_close(&engine);
    return status;
}

static tt_status run(tt_comm *comm, const tt_command *self, int argc, char **argv)
{
    const char *positional[2], *tokenizer = NULL, *dtype = NULL;
    int64_t seed = 0;
    bool help;
    const tt_option options[] = {
        {"tokenizer", TT_OPTION_TEXT, &tokenizer, "folder whose tokenizer files are copied into OUT"},
        {"seed", TT_OPTION_INT, &seed, "of the random weights (default 0)"},
        {"dtype", TT_OPTION_TEXT, &dtype, "type on disk: float32, bfloat16, float16 (default: what CONFIG.json says)"},
    };
    TT_TRY(tt_options_parse(comm, self, options, sizeof options / sizeof *options, argc, argv, positional, &help));
    if (help) return TT_OK;
    json_t *config = NULL;
    tt_status status = tt_save_check(positional[1], false);
    if (status == TT_OK && tokenizer) status = check_tokenizer(tokenizer);
    if (status == TT_OK) status = read_config(positional[0], dtype, &config);
    status = tt_agree(tt_comm_world(comm), "init", status);
    if (status == TT_OK) status = create(comm, config, positional[1], tokenizer, seed);
    json_decref(config);
    return status;
}

const tt_command tt_cmd_init = {
    .name = "init",
    .arguments = "CONFIG.json OUT",
    .summary = "random weights for a geometry, as a model folder",
    .help = "Weights are normal with deviation initializer_range, norms 1, biases 0. They depend on the seed and the names\n"
            "of the tensors alone, not on the number of ranks.",
    .min_positional = 2,
    .max_positional = 2,
    .run = run,
};
