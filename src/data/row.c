/* row.c - text and conversations to token ids and labels: see prepare.h.
 *
 * The template variables that are the same for every row (special tokens, ...) are one JSON object; each row
 * adds its own to a shallow copy. Reference counts of jansson are atomic, so threads may share the values. */
#include "data/preparer.h"
#include "base/checked.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- memory --------------------------------------------------------------------------------------------- */

tt_status tt_tokens_reserve(tt_tokens *t, int64_t more)
{
    int64_t need, bytes;
    if (!tt_add_i64(t->count, more, &need) || !tt_mul_i64(need, 2 * (int64_t)sizeof *t->ids, &bytes))
        return tt_error_set(TT_ENOMEM, "too many tokens for this machine");
    if (need <= t->capacity && t->ids) return TT_OK; /* after success the arrays exist, also for no tokens */
    int64_t capacity = tt_max_i64(tt_max_i64(need, 1024), t->capacity + t->capacity / 2);
    int32_t *ids = realloc(t->ids, (size_t)capacity * sizeof *ids);
    if (ids) t->ids = ids;
    int32_t *labels = realloc(t->labels, (size_t)capacity * sizeof *labels);
    if (labels) t->labels = labels;
    TT_CHECK(ids && labels, TT_ENOMEM, "out of memory for the ids and labels of %lld tokens", (long long)capacity);
    t->capacity = capacity;
    return TT_OK;
}

void tt_tokens_free(tt_tokens *t)
{
    free(t->ids);
    free(t->labels);
    *t = (tt_tokens){0};
}

void tt_prepare_scratch_free(tt_prepare_scratch *s)
{
    tt_encoding_free(&s->whole);
    tt_encoding_free(&s->prompt);
    free(s->text);
    *s = (tt_prepare_scratch){0};
}

static tt_status no_memory(const char *where)
{
    return tt_error_set(TT_ENOMEM, "%s: out of memory", where);
}

/* Room for `bytes` in scratch->text. */
static tt_status text_room(tt_prepare_scratch *s, size_t bytes, const char *where)
{
    if (bytes <= s->text_capacity) return TT_OK;
    char *text = realloc(s->text, bytes);
    if (!text) return no_memory(where);
    s->text = text;
    s->text_capacity = bytes;
    return TT_OK;
}

/* --- rendering ------------------------------------------------------------------------------------------ */

bool tt_row_shape_is_chat(tt_row_shape shape)
{
    return shape == TT_SHAPE_CHAT || shape == TT_SHAPE_CHAT_COMPLETION || shape == TT_SHAPE_SHAREGPT;
}

/* *out: the tools of a row as a new reference, null when it has none. A string holds JSON text. */
static tt_status row_tools(const json_t *row, const char *where, json_t **out)
{
    json_t *tools = json_object_get(row, "tools");
    if (json_is_string(tools)) {
        tt_status status = tt_json_parse(json_string_value(tools), json_string_length(tools), "tools", &tools);
        if (status != TT_OK) return tt_error_context(status, "%s", where);
    } else {
        json_incref(tools);
    }
    if (tools && !json_is_array(tools) && !json_is_null(tools)) {
        tt_status status =
            tt_error_set(TT_EDATA, "%s: column 'tools' is %s; expected a list of tools, or its JSON text", where,
                         tt_json_kind(tools));
        json_decref(tools);
        return status;
    }
    *out = tools ? tools : json_null();
    return TT_OK;
}

/* Merge a row's chat_template_kwargs into its variables, save what the preparation itself decides. */
static tt_status add_kwargs(json_t *variables, const json_t *row, const char *where)
{
    static const char *const reserved[] = {"messages", "add_generation_prompt", "chat_template"};
    json_t *kwargs = json_object_get(row, "chat_template_kwargs");
    if (!kwargs || json_is_null(kwargs)) return TT_OK;
    TT_CHECK(json_is_object(kwargs), TT_EDATA, "%s: column 'chat_template_kwargs' is %s; expected an object", where,
             tt_json_kind(kwargs));
    for (int i = 0; i < 3; i++)
        TT_CHECK(!json_object_get(kwargs, reserved[i]), TT_EDATA,
                 "%s: chat_template_kwargs sets '%s', which the preparation itself sets; remove it", where,
                 reserved[i]);
    return json_object_update(variables, kwargs) == 0 ? TT_OK : no_memory(where);
}

tt_status tt_preparer_render_messages(const tt_preparer *p, json_t *messages, const json_t *row,
                                      bool generation_prompt, const char *where, tt_rendering *out)
{
    json_t *tools = NULL, *variables = NULL;
    TT_TRY(row_tools(row, where, &tools));
    tt_status status;
    variables = json_copy(p->variables);
    if (!variables || json_object_set(variables, "messages", messages) != 0 ||
        json_object_set(variables, "tools", tools) != 0 ||
        json_object_set_new(variables, "add_generation_prompt", json_boolean(generation_prompt)) != 0)
        TT_GO(no_memory(where));
    TT_GO(add_kwargs(variables, row, where));
    bool with_tools = json_array_size(json_object_get(variables, "tools")) > 0;
    status = tt_template_render(with_tools ? p->tool_template : p->template, variables, out);
    if (status != TT_OK) tt_error_context(status, "%s", where);
fail:
    json_decref(variables);
    json_decref(tools);
    return status;
}

/* *out: the row's conversation as a new reference, cleaned; *prompt too for a chat completion (else NULL). */
static tt_status row_messages(const tt_preparer *p, json_t *row, const char *where, json_t **out, json_t **prompt)
{
    *prompt = NULL;
    if (p->shape == TT_SHAPE_CHAT_COMPLETION) {
        json_t *first = json_object_get(row, "prompt"), *second = json_object_get(row, "completion");
        TT_TRY(tt_messages_normalise(first, where, "prompt"));
        TT_TRY(tt_messages_normalise(second, where, "completion"));
        json_t *both = json_copy(first);
        if (!both || json_array_extend(both, second) != 0) {
            json_decref(both);
            return no_memory(where);
        }
        *prompt = json_incref(first);
        *out = both;
        return TT_OK;
    }
    const char *column = p->shape == TT_SHAPE_SHAREGPT ? "conversations" : "messages";
    json_t *messages = json_object_get(row, column);
    if (p->shape == TT_SHAPE_SHAREGPT) TT_TRY(tt_messages_from_sharegpt(messages, p->options.keep_roles, where));
    TT_TRY(tt_messages_normalise(messages, where, column));
    *out = json_incref(messages);
    return TT_OK;
}

/* --- labels --------------------------------------------------------------------------------------------- */

/* Tokens and spans are in order, and the spans disjoint: a token wholly before one span is before all later. */
int64_t tt_label_spans(const tt_encoding *e, const tt_rendering *r, int32_t *labels)
{
    int64_t first = 0, set = 0;
    for (int64_t i = 0; i < e->count; i++) labels[i] = TT_IGNORE;
    for (int64_t k = 0; k < r->num_spans; k++) {
        int64_t begin = r->spans[k].begin, end = r->spans[k].end;
        while (first < e->count && e->end[first] <= begin) first++;
        for (int64_t i = first; i < e->count && e->begin[i] < end; i++) {
            if (e->end[i] <= begin) continue;
            set += labels[i] == TT_IGNORE;
            labels[i] = e->ids[i];
        }
    }
    return set;
}

static int64_t common_prefix(const tt_encoding *a, const tt_encoding *b)
{
    int64_t n = tt_min_i64(a->count, b->count), i = 0;
    while (i < n && a->ids[i] == b->ids[i]) i++;
    return i;
}

/* Ignore what belongs to the prompt: the common prefix of both encodings. */
static void mask_prompt(const tt_encoding *prompt, const tt_encoding *whole, int32_t *labels, tt_findings *findings)
{
    int64_t prefix = common_prefix(prompt, whole);
    if (prefix < prompt->count) tt_findings_add(findings, TT_WARN_PREFIX_MISMATCH, -1);
    for (int64_t i = 0; i < prefix; i++) labels[i] = TT_IGNORE;
}

static tt_status encode(const tt_preparer *p, const char *text, size_t bytes, bool add_special, const char *where,
                        tt_encoding *out)
{
    out->count = 0;
    tt_status status = tt_tokenizer_encode(p->options.tokenizer, text, bytes, add_special, out);
    return status == TT_OK ? TT_OK : tt_error_context(status, "%s", where);
}

/* Put the ids of an encoding, and labels equal to them,
 * behind out->count, which stays: a row that fails later leaves nothing. */
static tt_status place(const tt_encoding *e, tt_tokens *out)
{
    TT_TRY(tt_tokens_reserve(out, e->count));
    if (e->count == 0) return TT_OK; /* then e->ids may be NULL */
    memcpy(out->ids + out->count, e->ids, (size_t)e->count * sizeof *out->ids);
    memcpy(out->labels + out->count, e->ids, (size_t)e->count * sizeof *out->labels);
    return TT_OK;
}

/* --- shapes --------------------------------------------------------------------------------------------- */

/* scratch->text = a + b, and EOS behind it unless b (a when b is NULL) ends with it. */
static tt_status join(const tt_preparer *p, const json_t *a, const json_t *b, const char *where,
                      tt_prepare_scratch *scratch, size_t *bytes)
{
    const json_t *last = b ? b : a;
    size_t na = json_string_length(a), nb = b ? json_string_length(b) : 0, ne = strlen(p->eos);
    size_t nl = json_string_length(last);
    bool ends = nl >= ne && memcmp(json_string_value(last) + nl - ne, p->eos, ne) == 0;
    TT_TRY(text_room(scratch, na + nb + ne + 1, where));
    memcpy(scratch->text, json_string_value(a), na);
    if (b) memcpy(scratch->text + na, json_string_value(b), nb);
    if (!ends) memcpy(scratch->text + na + nb, p->eos, ne);
    *bytes = na + nb + (ends ? 0 : ne);
    return TT_OK;
}

static tt_status plain_row(const tt_preparer *p, const json_t *row, const char *where, tt_prepare_scratch *scratch,
                           tt_tokens *out, tt_findings *findings)
{
    bool text_shape = p->shape == TT_SHAPE_TEXT;
    const json_t *a = json_object_get(row, text_shape ? p->text_field : "prompt");
    const json_t *b = text_shape ? NULL : json_object_get(row, "completion");
    size_t bytes;
    TT_TRY(join(p, a, b, where, scratch, &bytes));
    TT_TRY(encode(p, scratch->text, bytes, true, where, &scratch->whole));
    TT_TRY(place(&scratch->whole, out));
    if (b && p->completion_only) {
        TT_TRY(encode(p, json_string_value(a), json_string_length(a), true, where, &scratch->prompt));
        mask_prompt(&scratch->prompt, &scratch->whole, out->labels + out->count, findings);
    }
    out->count += scratch->whole.count;
    return TT_OK;
}

/* The rendered conversation's ids and labels behind out->count; *targets counts the assistant's. */
static tt_status chat_ids(const tt_preparer *p, json_t *messages, const json_t *row, const char *where,
                          tt_prepare_scratch *scratch, tt_tokens *out, int64_t *targets)
{
    tt_rendering r = {0};
    TT_TRY(tt_preparer_render_messages(p, messages, row, false, where, &r));
    tt_status status = encode(p, r.text, r.bytes, false, where, &scratch->whole);
    if (status == TT_OK) status = place(&scratch->whole, out);
    *targets = scratch->whole.count;
    if (status == TT_OK && p->options.assistant_only_loss)
        *targets = tt_label_spans(&scratch->whole, &r, out->labels + out->count);
    tt_rendering_free(&r);
    return status;
}

static tt_status prompt_ids(const tt_preparer *p, json_t *prompt, const json_t *row, const char *where,
                            tt_prepare_scratch *scratch)
{
    tt_rendering r = {0};
    TT_TRY(tt_preparer_render_messages(p, prompt, row, true, where, &r));
    tt_status status = encode(p, r.text, r.bytes, false, where, &scratch->prompt);
    tt_rendering_free(&r);
    return status;
}

static tt_status chat_row(const tt_preparer *p, json_t *row, const char *where, tt_prepare_scratch *scratch,
                          tt_tokens *out, tt_findings *findings, bool *skipped)
{
    json_t *messages, *prompt;
    tt_status status;
    int64_t targets;
    TT_TRY(row_messages(p, row, where, &messages, &prompt));
    tt_messages_check(messages, findings);
    tt_specials_check(p->specials, messages, findings);
    TT_GO(chat_ids(p, messages, row, where, scratch, out, &targets));
    if (p->options.assistant_only_loss && targets == 0) {
        *skipped = p->options.skip_without_assistant;
        if (!*skipped)
            TT_GO(tt_error_set(TT_EDATA,
                               "%s: assistant_only_loss finds no text of the assistant in this row; remove "
                               "the row",
                               where));
    }
    if (prompt && p->completion_only && !*skipped) {
        TT_GO(prompt_ids(p, prompt, row, where, scratch));
        mask_prompt(&scratch->prompt, &scratch->whole, out->labels + out->count, findings);
    }
    if (!*skipped) out->count += scratch->whole.count;
    status = TT_OK;
fail:
    json_decref(messages);
    json_decref(prompt);
    return status;
}

/* --- a row ---------------------------------------------------------------------------------------------- */

static tt_status check_shape(const tt_preparer *p, const json_t *row, const char *where)
{
    tt_row_shape shape;
    TT_TRY(tt_row_shape_find(row, p->text_field, where, &shape));
    TT_CHECK(shape == p->shape, TT_EDATA, "%s: this row is %s, but the first row is %s; one file holds one shape",
             where, tt_row_shape_name(shape), tt_row_shape_name(p->shape));
    return TT_OK;
}

static tt_status refuse_findings(const tt_findings *f, const char *where)
{
    for (int kind = 0; kind < TT_WARN_COUNT; kind++) {
        if (!f->found[kind]) continue;
        const char *text = tt_data_warning_text((tt_data_warning)kind);
        if (f->message[kind] < 0) return tt_error_set(TT_EDATA, "%s: %s", where, text);
        return tt_error_set(TT_EDATA, "%s: message %lld: %s", where, (long long)f->message[kind], text);
    }
    return TT_OK;
}

static tt_status check_ids(const tt_preparer *p, const int32_t *ids, int64_t n, const char *where)
{
    for (int64_t i = 0; i < n; i++)
        TT_CHECK(ids[i] >= 0 && ids[i] < p->vocab_size, TT_EDATA,
                 "%s: token id %d, but the model's vocabulary has %lld entries; the tokenizer in '%s' does "
                 "not belong to this model",
                 where, ids[i], (long long)p->vocab_size, tt_tokenizer_folder(p->options.tokenizer));
    return TT_OK;
}

tt_status tt_preparer_row(const tt_preparer *p, json_t *row, const char *where, tt_prepare_scratch *scratch,
                          tt_tokens *out, tt_findings *findings, bool *skipped)
{
    int64_t begin = out->count;
    *findings = (tt_findings){0};
    *skipped = false;
    TT_TRY(check_shape(p, row, where));
    tt_status status;
    if (p->shape == TT_SHAPE_IDS)
        status = tt_row_ids(p, row, where, out, findings);
    else if (tt_row_shape_is_chat(p->shape))
        status = chat_row(p, row, where, scratch, out, findings, skipped);
    else
        status = plain_row(p, row, where, scratch, out, findings);
    if (status == TT_OK) status = check_ids(p, out->ids + begin, out->count - begin, where);
    if (status == TT_OK && p->options.strict) status = refuse_findings(findings, where);
    if (status != TT_OK) out->count = begin;
    return status;
}

tt_status tt_preparer_render(const tt_preparer *p, json_t *row, const char *where, char **text, size_t *bytes)
{
    tt_prepare_scratch scratch = {0};
    tt_tokens tokens = {0};
    tt_findings findings = {0};
    tt_rendering r = {0};
    json_t *messages = NULL, *prompt = NULL;
    tt_status status;
    TT_GO(check_shape(p, row, where));
    if (p->shape == TT_SHAPE_IDS) {
        TT_GO(tt_row_ids(p, row, where, &tokens, &findings));
        TT_GO(tt_tokenizer_decode(p->options.tokenizer, tokens.ids, tokens.count, false, text, bytes));
    } else if (tt_row_shape_is_chat(p->shape)) {
        TT_GO(row_messages(p, row, where, &messages, &prompt));
        TT_GO(tt_preparer_render_messages(p, messages, row, false, where, &r));
        *text = r.text;
        *bytes = r.bytes;
        r.text = NULL;
    } else {
        bool text_shape = p->shape == TT_SHAPE_TEXT;
        const json_t *a = json_object_get(row, text_shape ? p->text_field : "prompt");
        TT_GO(join(p, a, text_shape ? NULL : json_object_get(row, "completion"), where, &scratch, bytes));
        scratch.text[*bytes] = '\0';
        *text = scratch.text;
        scratch.text = NULL;
    }
    status = TT_OK;
fail:
    json_decref(messages);
    json_decref(prompt);
    tt_rendering_free(&r);
    tt_tokens_free(&tokens);
    tt_prepare_scratch_free(&scratch);
    return status;
}
