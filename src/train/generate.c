#include "train/generate.h"

#include <stdlib.h>
#include <string.h>

static void add_stop(tt_generator *g, int64_t id)
{
    if (id >= 0 && g->num_stops < TT_MAX_STOPS) g->stops[g->num_stops++] = id;
}

/* config.json, generation_config.json and the tokenizer may each name end tokens; any of them ends an answer. */
static tt_status find_stops(tt_generator *g, const char *folder)
{
    char path[4096];
    json_t *object = NULL;
    for (int i = 0; i < g->engine.config.num_eos; i++) add_stop(g, g->engine.config.eos_tokens[i]);
    const char *eos = tt_tokenizer_special(g->tokenizer, "eos_token");
    if (eos) add_stop(g, tt_tokenizer_id(g->tokenizer, eos));
    TT_TRY(tt_path_join(path, sizeof path, folder, "generation_config.json"));
    if (!tt_file_exists(path)) return TT_OK;
    TT_TRY(tt_json_load(path, 1 << 20, &object));
    const json_t *ids = json_object_get(object, "eos_token_id");
    if (json_is_integer(ids)) add_stop(g, json_integer_value(ids));
    for (size_t i = 0; i < json_array_size(ids); i++) add_stop(g, json_integer_value(json_array_get(ids, i)));
    json_decref(object);
    return TT_OK;
}

static tt_status open_parts(tt_comm *comm, const char *folder, int threads, tt_generator *g)
{
    tt_engine_options o = {
        .folder = folder,
        .resident = TT_F32,
        .compute = TT_F32,
        .moments = TT_F32,
        .threads = threads,
    };
    TT_CHECK(tt_comm_size(comm) == 1, TT_ECONFIG, "generate runs on one rank; it was started on %d", tt_comm_size(comm));
    TT_TRY(tt_tokenizer_load(folder, &g->tokenizer));
    const char *source = tt_tokenizer_chat_template(g->tokenizer, false);
    if (source) TT_TRY(tt_template_compile(source, folder, &g->chat));
    TT_TRY(tt_engine_open(comm, &o, &g->engine));
    tt_model_config_warn(&g->engine.config);
    return find_stops(g, folder);
}

tt_status tt_generator_open(tt_comm *comm, const char *folder, int threads, tt_generator *g)
{
    *g = (tt_generator){0};
    tt_status status = open_parts(comm, folder, threads, g);
    if (status != TT_OK) tt_generator_close(g);
    return status;
}

void tt_generator_close(tt_generator *g)
{
    tt_engine_close(&g->engine);
    tt_template_destroy(&g->chat);
    tt_tokenizer_destroy(&g->tokenizer);
    tt_batch_free(&g->batch);
    *g = (tt_generator){0};
}

static tt_status largest(void *user, int64_t first, tt_mat logits)
{
    int32_t *best = user;
    const float *z = logits.data;
    (void)first;
    *best = 0;
    for (int64_t v = 1; v < logits.cols; v++)
        if (z[v] > z[*best]) *best = (int32_t)v;
    return TT_OK;
}

static bool stops(const tt_generator *g, int32_t id)
{
    for (int i = 0; i < g->num_stops; i++)
        if (g->stops[i] == id) return true;
    return false;
}

typedef struct text_ids {
    int32_t *at; /* owned */
    int64_t count, capacity;
} text_ids;

static tt_status append(text_ids *t, const int32_t *ids, int64_t count)
{
    if (t->count + count > t->capacity) {
        int64_t capacity = 2 * t->capacity + count;
        int32_t *at = realloc(t->at, (size_t)capacity * sizeof *at);
        TT_CHECK(at, TT_ENOMEM, "generate: out of memory for %lld tokens", (long long)capacity);
        t->at = at;
        t->capacity = capacity;
    }
    memcpy(t->at + t->count, ids, (size_t)count * sizeof *ids);
    t->count += count;
    return TT_OK;
}

static tt_status extend(tt_generator *g, text_ids *ids, int64_t max_new)
{
    for (int64_t n = 0; n < max_new; n++) {
        int32_t next = 0;
        tt_micro_result result;
        tt_batch_row row = {.length = ids->count, .ids = ids->at};
        tt_batch_clear(&g->batch);
        TT_TRY(tt_batch_add(&g->batch, &row, 0, g->engine.config.vocab_size));
        for (int64_t t = 0; t < g->batch.T; t++) g->batch.targets[t] = TT_NO_TARGET; /* nothing is trained */
        g->batch.num_targets = 0;
        tt_micro micro = {.batch = &g->batch, .logits = largest, .logits_user = &next, .first_logit = ids->count - 1};
        TT_TRY(tt_model_micro_step(&g->engine.model, &micro, &result));
        if (stops(g, next)) break;
        TT_TRY(append(ids, &next, 1));
    }
    return TT_OK;
}

static tt_status continue_text(tt_generator *g, const char *text, size_t bytes, bool special, int64_t max_new, char **out)
{
    tt_encoding e = {0};
    size_t size;
    TT_TRY(tt_tokenizer_encode(g->tokenizer, text, bytes, special, &e));
    int64_t prompt = e.count;
    text_ids ids = {0};
    tt_status status =
        prompt > 0 ? append(&ids, e.ids, prompt) : tt_error_set(TT_EDATA, "generate: the prompt is empty");
    tt_encoding_free(&e);
    if (status == TT_OK) status = extend(g, &ids, max_new);
    if (status == TT_OK)
        status = tt_tokenizer_decode(g->tokenizer, ids.at + prompt, ids.count - prompt, true, out, &size);
    free(ids.at);
    return status;
}

/* The names every template is given: messages, the generation prompt, and the special tokens that exist. */
static json_t *template_variables(const tt_generator *g, const json_t *messages)
{
    static const char *const roles[] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                        "sep_token", "cls_token", "mask_token"};
    json_t *v = json_object();
    json_object_set(v, "messages", (json_t *)messages);
    json_object_set_new(v, "tools", json_null());
    json_object_set_new(v, "documents", json_null());
    json_object_set_new(v, "add_generation_prompt", json_true());
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const char *text = tt_tokenizer_special(g->tokenizer, roles[i]);
        if (text) json_object_set_new(v, roles[i], json_string(text));
    }
    return v;
}

tt_status tt_generate_reply(tt_generator *g, const json_t *messages, int64_t max_new, char **text)
{
    tt_rendering r;
    TT_CHECK(g->chat, TT_ECONFIG, "generate: the tokenizer has no chat template; use --text for plain text");
    json_t *variables = template_variables(g, messages);
    tt_status status = tt_template_render(g->chat, variables, &r);
    json_decref(variables);
    TT_TRY(status);
    status = continue_text(g, r.text, r.bytes, false, max_new, text);
    tt_rendering_free(&r);
    return status;
}

tt_status tt_generate_text(tt_generator *g, const char *prompt, int64_t max_new, char **text)
{
    return continue_text(g, prompt, strlen(prompt), true, max_new, text);
}
