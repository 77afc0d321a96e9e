/* messages.c - conversations as they lie in a row: see messages.h. */
#include "data/messages.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

const char *tt_data_warning_text(tt_data_warning kind)
{
    switch (kind) {
#define X(name, text)                                                                                                \
    case TT_WARN_##name:                                                                                             \
        return text;
        TT_DATA_WARNING_MAP(X)
#undef X
    case TT_WARN_COUNT:
        break;
    }
    return "?";
}

void tt_findings_add(tt_findings *f, tt_data_warning kind, int64_t message)
{
    if (f->found[kind]) return;
    f->found[kind] = true;
    f->message[kind] = message;
}

static bool first_has(const json_t *value, const char *key, const char *other)
{
    const json_t *first = json_array_get(value, 0); /* NULL unless value is a list with items */
    return json_object_get(first, key) && (!other || json_object_get(first, other));
}

bool tt_messages_is_chat(const json_t *value)
{
    return first_has(value, "role", NULL);
}

bool tt_messages_is_sharegpt(const json_t *value)
{
    return first_has(value, "from", "value");
}

/* Whether a JSON string is exactly `text`. */
static bool is_text(const json_t *value, const char *text)
{
    size_t n = strlen(text);
    return json_is_string(value) && json_string_length(value) == n && memcmp(json_string_value(value), text, n) == 0;
}

static bool is_assistant(const json_t *message)
{
    return is_text(json_object_get(message, "role"), "assistant");
}

static tt_status no_memory(const char *where)
{
    return tt_error_set(TT_ENOMEM, "%s: out of memory", where);
}

/* --- ShareGPT ------------------------------------------------------------------------------------------- */

static const struct {
    const char *from, *role;
} sharegpt_roles[] = {
    {"human", "user"},     {"user", "user"},        {"gpt", "assistant"},     {"assistant", "assistant"},
    {"bard", "assistant"}, {"bing", "assistant"},   {"chatgpt", "assistant"}, {"model", "assistant"},
    {"system", "system"},  {"observation", "tool"}, {"tool", "tool"},
};

/* A function_call's value is the JSON text of a call: {"name": ..., "arguments": ...}. */
static tt_status convert_call(json_t *message, const char *where, size_t index)
{
    json_t *value = json_object_get(message, "content"), *call = NULL;
    TT_CHECK(json_is_string(value), TT_EDATA,
             "%s: conversations[%zu] is a function_call whose value is %s; expected"
             " the JSON text of a call with name and arguments",
             where, index, tt_json_kind(value));
    tt_status status = tt_json_parse(json_string_value(value), json_string_length(value), "function_call", &call);
    if (status != TT_OK) return tt_error_context(status, "%s: conversations[%zu]", where, index);
    if (!json_is_string(json_object_get(call, "name"))) {
        json_decref(call);
        return tt_error_set(TT_EDATA, "%s: conversations[%zu] is a function_call without a name", where, index);
    }
    json_t *calls = json_pack("[{s:s, s:o}]", "type", "function", "function", call);
    if (!calls || json_object_set_new(message, "tool_calls", calls) != 0 ||
        json_object_set_new(message, "content", json_string("")) != 0 ||
        json_object_set_new(message, "role", json_string("assistant")) != 0)
        return no_memory(where);
    return TT_OK;
}

static tt_status convert_role(json_t *message, const char *where, size_t index)
{
    const json_t *from = json_object_get(message, "role");
    if (is_text(from, "function_call")) return convert_call(message, where, index);
    for (size_t i = 0; i < sizeof sharegpt_roles / sizeof *sharegpt_roles; i++) {
        if (!is_text(from, sharegpt_roles[i].from)) continue;
        return json_object_set_new(message, "role", json_string(sharegpt_roles[i].role)) ? no_memory(where) : TT_OK;
    }
    if (!json_is_string(from))
        return tt_error_set(TT_EDATA, "%s: conversations[%zu]: 'from' is %s; expected a role's name", where, index,
                            tt_json_kind(from));
    return tt_error_set(TT_EDATA,
                        "%s: conversations[%zu] is from '%.60s', which is no known role; known are human, "
                        "gpt, system, tool, observation, function_call; rename it, or write `messages` with role "
                        "and content",
                        where, index, json_string_value(from));
}

static tt_status rename_key(json_t *message, const char *from, const char *to, const char *where, size_t index)
{
    json_t *value = json_object_get(message, from);
    TT_CHECK(value, TT_EDATA, "%s: conversations[%zu] has no '%s'; every message has `from` and `value`", where,
             index, from);
    if (json_object_set(message, to, value) != 0) return no_memory(where);
    json_object_del(message, from);
    return TT_OK;
}

tt_status tt_messages_from_sharegpt(json_t *messages, bool keep_roles, const char *where)
{
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message)
    {
        TT_CHECK(json_is_object(message), TT_EDATA, "%s: conversations[%zu] is %s; expected an object", where, i,
                 tt_json_kind(message));
        TT_TRY(rename_key(message, "from", "role", where, i));
        TT_TRY(rename_key(message, "value", "content", where, i));
        if (!keep_roles) TT_TRY(convert_role(message, where, i));
    }
    return TT_OK;
}

/* --- cleaning ------------------------------------------------------------------------------------------- */

static void remove_nulls(json_t *message)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(message, next, key, value)
    {
        if (json_is_null(value)) json_object_del(message, key);
    }
}

static tt_status share_reasoning(json_t *message, const char *where)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *value = NULL;
    for (int i = 0; i < 3 && !value; i++) value = json_object_get(message, names[i]);
    if (!value) return TT_OK;
    for (int i = 0; i < 2; i++)
        if (!json_object_get(message, names[i]) && json_object_set(message, names[i], value) != 0)
            return no_memory(where);
    return TT_OK;
}

/* Whether a part of a content list is something that a text model cannot read: by its type, or by its key. */
static bool is_media(const json_t *part)
{
    static const char *const media[] = {"image", "audio", "video"};
    const char *type = json_string_value(json_object_get(part, "type"));
    for (int i = 0; i < 3; i++) {
        char url[16] = "";
        strcat(strcpy(url, media[i]), "_url");
        if ((type && strstr(type, media[i])) || json_object_get(part, media[i]) || json_object_get(part, url))
            return true;
    }
    return false;
}

static tt_status check_content(const json_t *content, const char *where, const char *column, size_t index)
{
    if (!content || json_is_string(content)) return TT_OK;
    TT_CHECK(json_is_array(content), TT_EDATA, "%s: %s[%zu]: content is %s; expected text or a list of parts", where,
             column, index, tt_json_kind(content));
    size_t i;
    const json_t *part;
    json_array_foreach(content, i, part)
    {
        TT_CHECK(json_is_object(part) || json_is_string(part), TT_EDATA,
                 "%s: %s[%zu]: part %zu of the content is %s; expected {\"type\": \"text\", \"text\": ...}", where,
                 column, index, i, tt_json_kind(part));
        TT_CHECK(!is_media(part), TT_EDATA,
                 "%s: %s[%zu]: part %zu of the content is an image, audio or video; only text can be trained", where,
                 column, index, i);
    }
    return TT_OK;
}

tt_status tt_messages_normalise(json_t *messages, const char *where, const char *column)
{
    TT_CHECK(json_is_array(messages), TT_EDATA, "%s: column '%s' is %s; expected a list of messages", where, column,
             tt_json_kind(messages));
    TT_CHECK(json_array_size(messages) > 0, TT_EDATA, "%s: column '%s' has no messages; remove the row", where,
             column);
    size_t i;
    json_t *message;
    json_array_foreach(messages, i, message)
    {
        TT_CHECK(json_is_object(message), TT_EDATA, "%s: %s[%zu] is %s; expected an object with role and content",
                 where, column, i, tt_json_kind(message));
        remove_nulls(message);
        const json_t *role = json_object_get(message, "role");
        TT_CHECK(json_is_string(role), TT_EDATA, "%s: %s[%zu]: 'role' is %s; expected a string such as \"user\"",
                 where, column, i, role ? tt_json_kind(role) : "missing");
        TT_TRY(check_content(json_object_get(message, "content"), where, column, i));
        TT_TRY(share_reasoning(message, where));
    }
    return TT_OK;
}

/* --- checks --------------------------------------------------------------------------------------------- */

static bool is_known_role(const json_t *role)
{
    static const char *const known[] = {"system", "developer", "user",        "assistant",
                                        "tool",   "function",  "observation", "ipython"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is_text(role, known[i])) return true;
    return false;
}

/* Whether a message opens a conversation without being a turn of it. */
static bool is_preamble(const json_t *message)
{
    const json_t *role = json_object_get(message, "role");
    return is_text(role, "system") || is_text(role, "developer");
}

/* Nothing to say and nothing to call. */
static bool is_empty(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    bool silent = json_is_string(content) ? json_string_length(content) == 0 : json_array_size(content) == 0;
    return silent && json_array_size(json_object_get(message, "tool_calls")) == 0;
}

void tt_messages_check(const json_t *messages, tt_findings *f)
{
    int64_t turns = 0;
    bool after_assistant = false;
    size_t i;
    const json_t *message;
    json_array_foreach(messages, i, message)
    {
        bool assistant = is_assistant(message);
        int64_t at = (int64_t)i;
        if (!is_known_role(json_object_get(message, "role"))) tt_findings_add(f, TT_WARN_UNKNOWN_ROLE, at);
        if (assistant && turns == 0) tt_findings_add(f, TT_WARN_LEADING_ASSISTANT, at);
        if (assistant && after_assistant) tt_findings_add(f, TT_WARN_CONSECUTIVE_ASSISTANT, at);
        if (assistant && is_empty(message)) tt_findings_add(f, TT_WARN_EMPTY_ASSISTANT, at);
        turns += !is_preamble(message);
        after_assistant = assistant;
    }
    if (!after_assistant) tt_findings_add(f, TT_WARN_LAST_NOT_ASSISTANT, (int64_t)json_array_size(messages) - 1);
}

/* --- strings of special tokens -------------------------------------------------------------------------- */

/* Strings sorted by first byte: those that begin with byte b are first[b] .. first[b + 1]. */
struct tt_specials {
    int64_t count;
    char **texts;
    int64_t first[257];
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The text of token id when it is special, else NULL: only special tokens vanish when decoding skips them. */
static tt_status special_text(const tt_tokenizer *t, int32_t id, char **out)
{
    *out = NULL;
    if (!tt_tokenizer_is_added(t, id)) return TT_OK;
    char *text = NULL, *skipped = NULL;
    size_t bytes, rest;
    TT_TRY(tt_tokenizer_decode(t, &id, 1, false, &text, &bytes));
    tt_status status = tt_tokenizer_decode(t, &id, 1, true, &skipped, &rest);
    if (status == TT_OK && bytes > 0 && rest == 0) {
        *out = text;
        text = NULL;
    }
    free(text);
    free(skipped);
    return status;
}

tt_status tt_specials_create(const tt_tokenizer *tokenizer, tt_specials **out)
{
    int64_t size = tt_tokenizer_size(tokenizer), added = 0;
    for (int64_t id = 0; id < size; id++) added += tt_tokenizer_is_added(tokenizer, (int32_t)id);
    tt_specials *s = calloc(1, sizeof *s);
    TT_CHECK(s, TT_ENOMEM, "out of memory for the special tokens of %s", tt_tokenizer_folder(tokenizer));
    tt_status status;
    s->texts = calloc((size_t)added + 1, sizeof *s->texts);
    if (!s->texts)
        TT_GO(tt_error_set(TT_ENOMEM, "out of memory for the special tokens of %s", tt_tokenizer_folder(tokenizer)));
    for (int64_t id = 0; id < size; id++) {
        char *text;
        TT_GO(special_text(tokenizer, (int32_t)id, &text));
        if (text) s->texts[s->count++] = text;
    }
    qsort(s->texts, (size_t)s->count, sizeof *s->texts, by_text);
    for (int64_t i = 0; i < s->count; i++) s->first[(unsigned char)s->texts[i][0] + 1]++;
    for (int b = 0; b < 256; b++) s->first[b + 1] += s->first[b];
    *out = s;
    return TT_OK;
fail:
    tt_specials_destroy(&s);
    return status;
}

void tt_specials_destroy(tt_specials **s)
{
    if (!*s) return;
    for (int64_t i = 0; i < (*s)->count; i++) free((*s)->texts[i]);
    free((*s)->texts);
    free(*s);
    *s = NULL;
}

const char *tt_specials_find(const tt_specials *s, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes; at++) {
        int64_t end = s->first[(unsigned char)text[at] + 1];
        for (int64_t i = s->first[(unsigned char)text[at]]; i < end; i++) {
            size_t n = strlen(s->texts[i]);
            if (n <= bytes - at && memcmp(s->texts[i], text + at, n) == 0) return s->texts[i];
        }
    }
    return NULL;
}

static bool has_special(const tt_specials *s, const json_t *text)
{
    return json_is_string(text) && tt_specials_find(s, json_string_value(text), json_string_length(text));
}

void tt_specials_check(const tt_specials *s, const json_t *messages, tt_findings *f)
{
    size_t i, k;
    const json_t *message, *part;
    json_array_foreach(messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        bool found = has_special(s, content);
        json_array_foreach(content, k, part)
        {
            found = found || has_special(s, part) || has_special(s, json_object_get(part, "text"));
        }
        if (found) tt_findings_add(f, TT_WARN_SPECIAL_IN_CONTENT, (int64_t)i);
    }
}
