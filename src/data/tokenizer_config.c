/* tokenizer_config.c - tokenizer_config.json and template files: names of special tokens, tokens that
 * tokenizer.json lacks, the chat template. All of them may be absent. For tokens that both files hold, the
 * attributes in tokenizer.json count.
 */
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_impl.h"

#include <stdlib.h>

#define MAX_CONFIG ((int64_t)64 << 20)

const char *const tt_special_roles[TT_SPECIAL_ROLES] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                                        "sep_token", "cls_token", "mask_token"};

/* Strings that go out as C strings. */
static tt_status own_text(const json_t *v, const char *where, const char *key, char **out)
{
    TT_CHECK(json_is_string(v), TT_EFORMAT, "%s: key '%s' is %s; expected a string", where, key, tt_json_kind(v));
    const char *s = json_string_value(v);
    TT_CHECK(strlen(s) == json_string_length(v), TT_EFORMAT, "%s: key '%s' holds a NUL character", where, key);
    free(*out);
    *out = strdup(s);
    TT_CHECK(*out, TT_ENOMEM, "%s: no memory for key '%s'", where, key);
    return TT_OK;
}

static tt_status read_roles(tt_tokenizer *t, const json_t *root, const char *where)
{
    for (int i = 0; i < TT_SPECIAL_ROLES; i++) {
        const json_t *v = json_object_get(root, tt_special_roles[i]);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (v && !json_is_null(v)) TT_TRY(own_text(v, where, tt_special_roles[i], &t->special[i]));
    }
    return TT_OK;
}

static tt_status read_named_template(tt_tokenizer *t, const json_t *entry, const char *where)
{
    const char *name;
    TT_TRY(tt_json_get_string(entry, where, "name", "", &name));
    const json_t *source = json_object_get(entry, "template");
    if (strcmp(name, "default") == 0) return own_text(source, where, "chat_template.template", &t->template_default);
    if (strcmp(name, "tool_use") == 0) return own_text(source, where, "chat_template.template", &t->template_tools);
    return TT_OK;
}

static tt_status read_template(tt_tokenizer *t, const json_t *root, const char *where)
{
    const json_t *v = json_object_get(root, "chat_template");
    if (!v || json_is_null(v)) return TT_OK;
    if (!json_is_array(v)) return own_text(v, where, "chat_template", &t->template_default);
    for (size_t i = 0; i < json_array_size(v); i++) TT_TRY(read_named_template(t, json_array_get(v, i), where));
    return TT_OK;
}

static tt_status read_flags(const json_t *v, const char *where, tt_added *a)
{
    TT_TRY(tt_json_get_bool(v, where, "special", false, &a->special));
    TT_TRY(tt_json_get_bool(v, where, "single_word", false, &a->single_word));
    TT_TRY(tt_json_get_bool(v, where, "lstrip", false, &a->lstrip));
    TT_TRY(tt_json_get_bool(v, where, "rstrip", false, &a->rstrip));
    return tt_json_get_bool(v, where, "normalized", !a->special, &a->normalized);
}

/* One entry of added_tokens_decoder: "id": {content, flags}. */
static tt_status read_added(tt_tokenizer *t, const char *key, const json_t *v, const char *where)
{
    char *end;
    const json_t *content = json_object_get(v, "content");
    long long id = strtoll(key, &end, 10);
    TT_CHECK(*key >= '0' && *key <= '9' && !*end && id < TT_TOKEN_ID_LIMIT, TT_EFORMAT,
             "%s: added_tokens_decoder has the key '%.40s'; expected an id from 0 to %d", where, key,
             TT_TOKEN_ID_LIMIT - 1);
    TT_CHECK(json_is_string(content), TT_EFORMAT, "%s: added_tokens_decoder.%s.content is %s; expected a string",
             where, key, tt_json_kind(content));
    tt_added a = {.id = (int32_t)id, .size = json_string_length(content)};
    int32_t known = tt_vocab_find(&t->added_names, json_string_value(content), a.size);
    TT_CHECK(known < 0 || known == id, TT_EFORMAT,
             "%s: added_tokens_decoder gives '%.80s' the id %lld, but %s gives %d", where, json_string_value(content),
             id, t->where, known);
    if (known >= 0 || a.size == 0) return TT_OK;
    TT_TRY(read_flags(v, where, &a));
    a.content = malloc(a.size + 1);
    TT_CHECK(a.content, TT_ENOMEM, "%s: no memory for an added token", where);
    memcpy(a.content, json_string_value(content), a.size);
    a.content[a.size] = 0;
    return tt_tokenizer_add(t, &a, where);
}

static tt_status read_config(tt_tokenizer *t, const json_t *root, const char *where)
{
    TT_CHECK(json_is_object(root), TT_EFORMAT, "%s: the file holds %s; expected an object", where,
             tt_json_kind(root));
    TT_TRY(read_roles(t, root, where));
    TT_TRY(read_template(t, root, where));
    const json_t *added = json_object_get(root, "added_tokens_decoder");
    void *i;
    const char *key;
    json_t *v;
    for (i = json_object_iter((json_t *)added); i; i = json_object_iter_next((json_t *)added, i)) {
        key = json_object_iter_key(i);
        v = json_object_iter_value(i);
        TT_TRY(read_added(t, key, v, where));
    }
    return TT_OK;
}

static tt_status read_template_file(const char *path, char **out)
{
    char *text;
    size_t bytes;
    TT_TRY(tt_file_read_all(path, MAX_CONFIG, &text, &bytes));
    free(*out);
    *out = text;
    TT_CHECK(strlen(text) == bytes && tt_u8_check(text, bytes) == bytes, TT_EFORMAT,
             "%s: a chat template is UTF-8 text without NUL characters", path);
    return TT_OK;
}

/* Files win over the configuration as a whole: with chat_template.jinja the named ones count only as files, too. */
static tt_status read_template_files(tt_tokenizer *t)
{
    char path[4096];
    TT_TRY(tt_path_join(path, sizeof path, t->folder, "chat_template.jinja"));
    if (tt_file_exists(path)) {
        free(t->template_tools);
        t->template_tools = NULL;
        TT_TRY(read_template_file(path, &t->template_default));
    }
    TT_TRY(tt_path_join(path, sizeof path, t->folder, "additional_chat_templates/tool_use.jinja"));
    return tt_file_exists(path) ? read_template_file(path, &t->template_tools) : TT_OK;
}

tt_status tt_tokenizer_load_config(tt_tokenizer *t)
{
    char path[4096];
    TT_TRY(tt_path_join(path, sizeof path, t->folder, "tokenizer_config.json"));
    if (tt_file_exists(path)) {
        json_t *root = NULL;
        TT_TRY(tt_json_load(path, MAX_CONFIG, &root));
        tt_status status = read_config(t, root, path);
        json_decref(root);
        TT_TRY(status);
    }
    return read_template_files(t);
}
