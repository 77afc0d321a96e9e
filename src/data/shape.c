/* shape.c - what kind of row is this: see prepare.h. */
#include "base/json.h"
#include "data/prepare.h"

#include <string.h>

const char *tt_row_shape_name(tt_row_shape shape)
{
    switch (shape) {
    case TT_SHAPE_IDS:
        return "token ids (input_ids)";
    case TT_SHAPE_TEXT:
        return "text";
    case TT_SHAPE_COMPLETION:
        return "prompt/completion (text)";
    case TT_SHAPE_CHAT:
        return "conversation (messages)";
    case TT_SHAPE_CHAT_COMPLETION:
        return "prompt/completion (messages)";
    case TT_SHAPE_SHAREGPT:
        return "ShareGPT (conversations)";
    }
    return "?";
}

static const json_t *column(const json_t *row, const char *key)
{
    const json_t *value = json_object_get(row, key);
    return json_is_null(value) ? NULL : value;
}

/* The keys of a row as "a, b, c" for a message; what does not fit is left out. */
static void list_keys(const json_t *row, char *out, size_t size)
{
    const char *key;
    json_t *value;
    size_t used = 0;
    out[0] = '\0';
    json_object_foreach((json_t *)row, key, value)
    {
        size_t n = strlen(key);
        if (used + n + 3 > size) return;
        memcpy(out + used, ", ", 2);
        memcpy(out + used + 2, key, n + 1);
        used += n + 2;
    }
}

static tt_status no_shape(const json_t *row, const char *text_field, const char *where)
{
    char keys[240];
    list_keys(row, keys, sizeof keys);
    const char *hint = "write messages, prompt and completion, text, or input_ids";
    if (column(row, "chosen") || column(row, "rejected"))
        hint = "chosen/rejected is preference data; for fine-tuning write the chosen answer as `completion`";
    else if (column(row, "instruction"))
        hint = "write instruction and input as `prompt` and the answer as `completion`";
    else if (column(row, "conversations"))
        hint = "`conversations` is read with `from` and `value`; with role and content call the column "
               "`messages`";
    else if (column(row, "messages"))
        hint = "`messages` must be a list of {\"role\": ..., \"content\": ...}";
    return tt_error_set(TT_EDATA, "%s: no column '%s' and no other shape of data (columns: %s); %s", where,
                        text_field, keys[0] ? keys + 2 : "none", hint);
}

static tt_status completion_shape(const json_t *row, const char *where, tt_row_shape *out)
{
    const json_t *prompt = column(row, "prompt"), *completion = column(row, "completion");
    TT_CHECK(completion, TT_EDATA, "%s: has a prompt but no completion%s", where,
             column(row, "chosen") ? "; chosen/rejected is preference data: write the chosen answer as `completion`"
                                   : "; there is nothing to train");
    if (json_is_string(prompt) && json_is_string(completion))
        *out = TT_SHAPE_COMPLETION;
    else if (json_is_array(prompt) && json_is_array(completion))
        *out = TT_SHAPE_CHAT_COMPLETION;
    else
        return tt_error_set(TT_EDATA,
                            "%s: prompt is %s and completion is %s; expected two strings or two lists of "
                            "messages",
                            where, tt_json_kind(prompt), tt_json_kind(completion));
    return TT_OK;
}

tt_status tt_row_shape_find(const json_t *row, const char *text_field, const char *where, tt_row_shape *out)
{
    static const char *const media[] = {"image", "images"};
    for (int i = 0; i < 2; i++)
        TT_CHECK(!column(row, media[i]), TT_EDATA, "%s: has a column '%s'; only text can be trained: remove it",
                 where, media[i]);
    const json_t *messages = column(row, "messages"), *conversations = column(row, "conversations");
    const json_t *text = column(row, text_field);
    if (column(row, "input_ids"))
        *out = TT_SHAPE_IDS;
    else if (column(row, "prompt"))
        return completion_shape(row, where, out);
    else if (tt_messages_is_chat(messages) || (json_is_array(messages) && !text && !conversations))
        *out = TT_SHAPE_CHAT; /* a list that is none is reported in detail when its messages are read */
    else if (tt_messages_is_sharegpt(conversations))
        *out = TT_SHAPE_SHAREGPT;
    else if (json_is_array(conversations) && json_array_size(conversations) == 0 && !text)
        return tt_error_set(TT_EDATA, "%s: column 'conversations' has no messages; remove the row", where);
    else if (json_is_string(text))
        *out = TT_SHAPE_TEXT;
    else if (text)
        return tt_error_set(TT_EDATA, "%s: column '%s' is %s; expected a string", where, text_field,
                            tt_json_kind(text));
    else
        return no_shape(row, text_field, where);
    return TT_OK;
}
