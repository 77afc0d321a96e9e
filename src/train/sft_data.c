/* sft_data.c - from the configuration's data keys to rows. */
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "data/sampler.h"
#include "train/sft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_TEMPLATE_BYTES (1 << 20)

/* chat_template_path: a template file, or a tokenizer folder to take the template from. The text is owned. */
static tt_status read_template(const char *path, char **text)
{
    tt_tokenizer *other;
    size_t bytes;
    if (!tt_dir_exists(path)) {
        tt_status status = tt_file_read_all(path, MAX_TEMPLATE_BYTES, text, &bytes);
        return status == TT_OK ? status : tt_error_context(status, "chat_template_path");
    }
    TT_TRY(tt_tokenizer_load(path, &other));
    const char *source = tt_tokenizer_chat_template(other, false);
    *text = source ? strdup(source) : NULL;
    tt_tokenizer_destroy(&other);
    TT_CHECK(source, TT_ECONFIG, "chat_template_path: the tokenizer in '%s' has no chat template", path);
    TT_CHECK(*text, TT_ENOMEM, "out of memory for a chat template");
    return TT_OK;
}

tt_status tt_sft_load_model_config(const tt_config *c, tt_model_config *out)
{
    TT_TRY(tt_config_require(c, TT_KEY_model_name_or_path));
    TT_CHECK(
        tt_dir_exists(c->model_name_or_path), TT_ECONFIG,
        "model_name_or_path: there is no folder '%s'; name one with config.json, weights and tokenizer (nothing is "
        "downloaded)",
        c->model_name_or_path);
    TT_TRY(tt_model_config_load(c->model_name_or_path, out));
    tt_model_config_warn(out);
    return TT_OK;
}

/* Padding is never computed, so the token has no effect; a wrong name is still a mistake. */
static tt_status check_pad_token(const tt_config *c, const tt_tokenizer *t)
{
    TT_CHECK(!c->pad_token || tt_tokenizer_id(t, c->pad_token) >= 0, TT_ECONFIG,
             "pad_token '%.60s' is not in the vocabulary of '%s'; name a token that it has, or leave it out",
             c->pad_token, c->model_name_or_path);
    return TT_OK;
}

/* The file itself, or FOLDER/SPLIT.jsonl or .json. */
static tt_status find_data(const tt_config *c, char *out, size_t size)
{
    static const char *const endings[] = {"jsonl", "json"};
    char name[512];
    int n = snprintf(out, size, "%s", c->dataset_name);
    TT_CHECK(n >= 0 && (size_t)n < size, TT_ECONFIG, "dataset_name is too long: %.200s", c->dataset_name);
    TT_CHECK(access(c->dataset_name, F_OK) == 0, TT_ECONFIG,
             "dataset_name: there is no file or folder '%s'; name a JSON-lines or JSON file (nothing is downloaded)",
             c->dataset_name);
    if (!tt_dir_exists(c->dataset_name)) return TT_OK;
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "%s.%s", c->dataset_train_split, endings[i]);
        TT_TRY(tt_path_join(out, size, c->dataset_name, name));
        if (tt_file_exists(out)) return TT_OK;
    }
    return tt_error_set(TT_ECONFIG, "dataset_name: folder '%s' has neither %s.jsonl nor %s.json (dataset_train_split)",
                        c->dataset_name, c->dataset_train_split, c->dataset_train_split);
}

static tt_status shuffle(const tt_config *c, tt_sft_data *d)
{
    if (!c->shuffle_dataset) return TT_OK;
    int64_t n = tt_dataset_rows(d->rows);
    d->shuffled = malloc((size_t)n * sizeof *d->shuffled + 1);
    TT_CHECK(d->shuffled, TT_ENOMEM, "out of memory for the order of %lld rows", (long long)n);
    tt_order_shuffle((uint64_t)c->seed, n, d->shuffled);
    return TT_OK;
}

static tt_status load(const tt_config *c, int64_t vocab_size, int threads, const char *template_text, tt_sft_data *d)
{
    char path[4096];
    tt_prepare o = TT_PREPARE_DEFAULT;
    o.tokenizer = d->tokenizer;
    o.template_source = template_text;
    o.template_name = c->chat_template_path;
    o.template_date = c->template_date;
    o.text_field = c->dataset_text_field;
    o.eos_token = c->eos_token;
    o.assistant_only_loss = c->assistant_only_loss;
    o.completion_only_loss = (int)c->completion_only_loss;
    o.max_length = c->max_length == TT_CONFIG_UNSET ? 0 : c->max_length;
    o.keep_end = c->truncation_mode == TT_TRUNCATION_KEEP_END;
    o.vocab_size = vocab_size;
    o.threads = threads;
    TT_TRY(find_data(c, path, sizeof path));
    TT_TRY(tt_dataset_load(path, &o, &d->rows));
    tt_data_report_log(tt_dataset_report(d->rows), path);
    return shuffle(c, d);
}

tt_status tt_sft_load_data(const tt_config *c, int64_t vocab_size, int threads, tt_sft_data *out)
{
    char *template_text = NULL;
    *out = (tt_sft_data){0};
    TT_TRY(tt_config_require(c, TT_KEY_model_name_or_path));
    TT_TRY(tt_config_require(c, TT_KEY_dataset_name));
    tt_status status = tt_tokenizer_load(c->model_name_or_path, &out->tokenizer);
    if (status == TT_OK) status = check_pad_token(c, out->tokenizer);
    if (status == TT_OK && c->chat_template_path) status = read_template(c->chat_template_path, &template_text);
    if (status == TT_OK) status = load(c, vocab_size, threads, template_text, out);
    free(template_text);
    if (status != TT_OK) tt_sft_data_free(out);
    return status;
}

void tt_sft_data_free(tt_sft_data *d)
{
    tt_dataset_destroy(&d->rows);
    tt_tokenizer_destroy(&d->tokenizer);
    free(d->shuffled);
    *d = (tt_sft_data){0};
}
