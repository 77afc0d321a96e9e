/* prepare.c - options checked against the first row of a data set, before any row is prepared: see prepare.h. */
#include "base/checked.h"
#include "base/json.h"
#include "data/preparer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tt_row_shape tt_preparer_shape(const tt_preparer *p)
{
    return p->shape;
}

const char *tt_preparer_open_end(const tt_preparer *p)
{
    return p->open_end[0] ? p->open_end : NULL;
}

void tt_preparer_destroy(tt_preparer **preparer)
{
    tt_preparer *p = *preparer;
    if (!p) return;
    if (p->tool_template != p->template) tt_template_destroy(&p->tool_template);
    tt_template_destroy(&p->template);
    json_decref(p->variables);
    tt_specials_destroy(&p->specials);
    free(p->text_field);
    free(p->eos);
    free(p);
    *preparer = NULL;
}

static tt_status copy_text(const char *text, char **out)
{
    *out = strdup(text);
    TT_CHECK(*out, TT_ENOMEM, "out of memory while preparing data");
    return TT_OK;
}

/* --- options -------------------------------------------------------------------------------------------- */

static tt_status check_numbers(const tt_prepare *o)
{
    TT_CHECK(o->max_length >= 0, TT_ECONFIG, "max_length is %lld; use a positive number, or null for no limit",
             (long long)o->max_length);
    TT_CHECK(o->threads >= 0, TT_ECONFIG, "%d threads for preparing data; use a positive number, or 0 for all",
             o->threads);
    TT_CHECK(o->vocab_size >= 0 && o->vocab_size <= INT32_MAX, TT_ECONFIG, "a vocabulary of %lld entries",
             (long long)o->vocab_size);
    return TT_OK;
}

/* EOS: the one asked for, or the tokenizer's. */
static tt_status find_eos(tt_preparer *p)
{
    const tt_tokenizer *t = p->options.tokenizer;
    const char *wanted = p->options.eos_token, *eos = wanted ? wanted : tt_tokenizer_special(t, "eos_token");
    p->eos_id = -1;
    if (!eos) return TT_OK;
    TT_TRY(copy_text(eos, &p->eos));
    p->eos_id = tt_tokenizer_id(t, eos);
    TT_CHECK(p->eos_id >= 0 || !wanted, TT_ECONFIG,
             "eos_token '%.60s' is not in the vocabulary of '%s'; name a token that it has", wanted,
             tt_tokenizer_folder(t));
    return TT_OK;
}

/* EOS is appended as text, so its text must come back as one id. */
static tt_status check_eos_text(const tt_preparer *p)
{
    const tt_tokenizer *t = p->options.tokenizer;
    TT_CHECK(p->eos, TT_ECONFIG, "the tokenizer in '%s' has no EOS token to end texts with; set eos_token",
             tt_tokenizer_folder(t));
    tt_encoding e = {0};
    tt_status status = tt_tokenizer_encode(t, p->eos, strlen(p->eos), false, &e);
    int64_t count = e.count;
    tt_encoding_free(&e);
    TT_TRY(status);
    TT_CHECK(count == 1, TT_ECONFIG,
             "the EOS token '%.60s' of '%s' is encoded as %lld tokens, so a model could not learn it; set "
             "eos_token "
             "to an added token",
             p->eos, tt_tokenizer_folder(t), (long long)count);
    return TT_OK;
}

static tt_status check_losses(tt_preparer *p, const char *where)
{
    const tt_prepare *o = &p->options;
    bool has_completion = p->shape == TT_SHAPE_COMPLETION || p->shape == TT_SHAPE_CHAT_COMPLETION;
    bool can_mask = has_completion || (p->id_columns & TT_HAS_COMPLETION_MASK);
    TT_CHECK(!o->assistant_only_loss || tt_row_shape_is_chat(p->shape), TT_ECONFIG,
             "%s: assistant_only_loss needs conversations, but the data is %s; turn it off", where,
             tt_row_shape_name(p->shape));
    TT_CHECK(o->completion_only_loss != 1 || can_mask, TT_ECONFIG,
             "%s: completion_only_loss needs prompt and completion, but the data is %s; turn it off", where,
             tt_row_shape_name(p->shape));
    p->completion_only = o->completion_only_loss < 0 ? has_completion : o->completion_only_loss != 0;
    return TT_OK;
}

/* --- template ------------------------------------------------------------------------------------------- */

static tt_status compile_templates(tt_preparer *p)
{
    const tt_prepare *o = &p->options;
    const char *folder = tt_tokenizer_folder(o->tokenizer);
    const char *source = o->template_source, *tools = o->template_source;
    const char *name = o->template_name ? o->template_name : folder;
    if (!source) {
        name = folder;
        tools = tt_tokenizer_chat_template(o->tokenizer, true);
        source = tt_tokenizer_chat_template(o->tokenizer, false);
        if (!source) source = tools;
    }
    TT_CHECK(source, TT_ECONFIG,
             "the data is conversations, but the tokenizer in '%s' has no chat template; name one with "
             "chat_template_path",
             folder);
    TT_TRY(tt_template_compile(source, name, &p->template));
    p->tool_template = p->template;
    if (tools && strcmp(tools, source) != 0) {
        p->tool_template = NULL;
        TT_TRY(tt_template_compile(tools, name, &p->tool_template));
    }
    if (!o->assistant_only_loss || tt_template_check_generation(p->template) == TT_OK) return TT_OK;
    return tt_error_context(TT_ECONFIG, "assistant_only_loss needs a template that marks the assistant's text; name "
                                        "one with chat_template_path");
}

static tt_status make_variables(tt_preparer *p)
{
    static const char *const roles[] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                        "sep_token", "cls_token", "mask_token"};
    const tt_prepare *o = &p->options;
    int failed = !(p->variables = json_object()) || json_object_set_new(p->variables, "documents", json_null());
    for (size_t i = 0; i < sizeof roles / sizeof *roles && !failed; i++) {
        const char *text = i == 1 ? p->eos : tt_tokenizer_special(o->tokenizer, roles[i]);
        if (text) failed = json_object_set_new(p->variables, roles[i], json_string(text));
    }
    if (!failed && o->template_date)
        failed = json_object_set_new(p->variables, "template_date", json_string(o->template_date));
    TT_CHECK(!failed, TT_ENOMEM,
             "out of memory for the variables of the chat template (or a special token of '%s' "
             "is no valid UTF-8)",
             tt_tokenizer_folder(o->tokenizer));
    return TT_OK;
}

/* --- does an assistant's turn end with something the model can learn to stop with? ---------------------- */

static bool is_blank(const char *text, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (!memchr(" \t\r\n", text[i], 4)) return false;
    return true;
}

/* Note the last marked token that is not white space, unless it is an added token. */
static void judge_end(tt_preparer *p, const tt_encoding *e, const tt_rendering *r, const int32_t *labels)
{
    for (int64_t i = e->count - 1; i >= 0; i--) {
        int64_t bytes = e->end[i] - e->begin[i];
        if (labels[i] == TT_IGNORE || is_blank(r->text + e->begin[i], bytes)) continue;
        if (!tt_tokenizer_is_added(p->options.tokenizer, e->ids[i]))
            snprintf(p->open_end, sizeof p->open_end, "%.*s", (int)tt_min_i64(bytes, 63), r->text + e->begin[i]);
        return;
    }
}

static tt_status probe_end(tt_preparer *p)
{
    tt_rendering r = {0};
    tt_encoding e = {0};
    int32_t *labels = NULL;
    json_t *row = json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user", "content", "dummy",
                            "role", "assistant", "content", "dummy", "role", "user", "content", "dummy");
    TT_CHECK(row, TT_ENOMEM, "out of memory while preparing data");
    tt_status status = tt_preparer_render_messages(p, json_object_get(row, "messages"), row, false, "probe", &r);
    json_decref(row);
    /* A template that refuses this conversation says nothing about others. */
    if (status != TT_OK) return status == TT_ENOMEM ? status : TT_OK;
    TT_GO(tt_tokenizer_encode(p->options.tokenizer, r.text, r.bytes, false, &e));
    labels = malloc(((size_t)e.count + 1) * sizeof *labels);
    if (!labels) TT_GO(tt_error_set(TT_ENOMEM, "out of memory while preparing data"));
    tt_label_spans(&e, &r, labels);
    judge_end(p, &e, &r, labels);
fail:
    free(labels);
    tt_encoding_free(&e);
    tt_rendering_free(&r);
    return status;
}

/* --- creation ------------------------------------------------------------------------------------------- */

static tt_status set_up(tt_preparer *p, const json_t *first_row, const char *where)
{
    const tt_prepare *o = &p->options;
    TT_TRY(check_numbers(o));
    TT_TRY(copy_text(o->text_field ? o->text_field : "text", &p->text_field));
    p->vocab_size = o->vocab_size ? o->vocab_size : tt_tokenizer_size(o->tokenizer);
    TT_TRY(find_eos(p));
    TT_TRY(tt_row_shape_find(first_row, p->text_field, where, &p->shape));
    if (p->shape == TT_SHAPE_IDS) p->id_columns = tt_row_id_columns(first_row);
    TT_TRY(check_losses(p, where));
    if (p->shape == TT_SHAPE_TEXT || p->shape == TT_SHAPE_COMPLETION) return check_eos_text(p);
    if (!tt_row_shape_is_chat(p->shape)) return TT_OK;
    TT_TRY(compile_templates(p));
    TT_TRY(make_variables(p));
    TT_TRY(tt_specials_create(o->tokenizer, &p->specials));
    return o->assistant_only_loss ? probe_end(p) : TT_OK;
}

tt_status tt_preparer_create(const tt_prepare *options, const json_t *first_row, const char *where, tt_preparer **out)
{
    tt_preparer *p = calloc(1, sizeof *p);
    TT_CHECK(p, TT_ENOMEM, "out of memory while preparing data");
    p->options = *options;
    tt_status status = set_up(p, first_row, where);
    if (status == TT_OK)
        *out = p;
    else
        tt_preparer_destroy(&p);
    return status;
}
