/* messages.h - conversations as they lie in a row: conversion, cleaning, and checks for common mistakes.
 *
 * A message is an object with `role` and `content` (text, or a list of parts); other keys are the template's
 * business. All functions are local and may run on several threads, each with a row of its own. `where`
 * ("data.jsonl:12") and `column` ("messages") stand in front of every message of an error.
 */
#ifndef TT_DATA_MESSAGES_H
#define TT_DATA_MESSAGES_H

#include "tartan/status.h"
#include "tartan/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* What is suspicious in a row but can be trained: counted, or an error in strict mode. Name, meaning. */
#define TT_DATA_WARNING_MAP(X)                                                                                       \
    X(UNKNOWN_ROLE, "a role other than system, developer, user, assistant, tool and the like")                       \
    X(LEADING_ASSISTANT, "the assistant speaks first")                                                               \
    X(CONSECUTIVE_ASSISTANT, "two assistant messages in a row")                                                      \
    X(EMPTY_ASSISTANT, "an assistant message without content and tool calls")                                        \
    X(LAST_NOT_ASSISTANT, "the last message is not the assistant's")                                                 \
    X(SPECIAL_IN_CONTENT, "a special token's string inside content, which can fake turns")                           \
    X(PREFIX_MISMATCH, "the prompt's tokens are not the first tokens of prompt and completion")                      \
    X(NO_FINAL_EOS, "token ids that do not end with the EOS token")

typedef enum tt_data_warning {
#define X(name, text) TT_WARN_##name,
    TT_DATA_WARNING_MAP(X)
#undef X
        TT_WARN_COUNT
} tt_data_warning;

/* "the assistant speaks first". Never NULL. */
const char *tt_data_warning_text(tt_data_warning kind);

/* One kind found, and the index of the first message that shows it (-1: the row as a whole). */
typedef struct tt_findings {
    bool found[TT_WARN_COUNT];
    int64_t message[TT_WARN_COUNT];
} tt_findings;

void tt_findings_add(tt_findings *f, tt_data_warning kind, int64_t message);

/* tt_messages_is_chat - a list whose first item is an object with `role`: how a conversation is recognised. */
bool tt_messages_is_chat(const json_t *value);
/* The same for ShareGPT: its first item has `from` and `value`. */
bool tt_messages_is_sharegpt(const json_t *value);

/* tt_messages_from_sharegpt - rename `from` to `role` and `value` to `content` in every message, in place,
 * and map the role names (human -> user, gpt -> assistant, observation -> tool, ...; function_call becomes a
 * tool call of the assistant). keep_roles leaves the names as they are, as the common trainer does. TT_EDATA
 * for a role that has no mapping. */
tt_status tt_messages_from_sharegpt(json_t *messages, bool keep_roles, const char *where);

/* tt_messages_normalise - what every conversation goes through before a template sees it, in place:
 *   - keys whose value is null are removed from each message: null is the same as absent (nulls deeper inside stay);
 *   - of reasoning_content, thinking, reasoning the first that is there is given to the first two where absent.
 * TT_EDATA: not a list, empty, a message that is no object or has no role, content that is neither text nor a list of
 * parts, a part that is an image, audio or video. */
tt_status tt_messages_normalise(json_t *messages, const char *where, const char *column);

/* tt_messages_check - add to f what looks wrong in a normalised conversation (not SPECIAL_IN_CONTENT). */
void tt_messages_check(const json_t *messages, tt_findings *f);

/* --- strings of special tokens -------------------------------------------------------------------------- */

/* The strings that a tokenizer turns into special ids wherever they stand. */
typedef struct tt_specials tt_specials;

tt_status tt_specials_create(const tt_tokenizer *tokenizer, tt_specials **out);
void tt_specials_destroy(tt_specials **s);

/* tt_specials_find - the first special string in text[0..bytes), or NULL. Borrowed from s. */
const char *tt_specials_find(const tt_specials *s, const char *text, size_t bytes);

/* tt_specials_check - add SPECIAL_IN_CONTENT to f for the text of the messages' contents. */
void tt_specials_check(const tt_specials *s, const json_t *messages, tt_findings *f);

#endif
