/* Conversations of a row: conversion, cleaning, checks. */
#include "data/support.h"

#include "data/messages.h"

static json_t *parse(const char *text)
{
    json_t *value;
    assert_ok(tt_json_parse(text, strlen(text), "test", &value));
    return value;
}

/* Equal, keys in any order. */
static void expect_json(const json_t *got, const char *expected)
{
    json_t *wanted = parse(expected);
    if (!json_equal(got, wanted)) {
        char *text = json_dumps(got, JSON_COMPACT);
        print_error("got      %s\nexpected %s\n", text, expected);
        free(text);
        fail();
    }
    json_decref(wanted);
}

static void expect_normalised(const char *messages, const char *expected)
{
    json_t *value = parse(messages);
    assert_ok(tt_messages_normalise(value, "f.jsonl:3", "messages"));
    expect_json(value, expected);
    json_decref(value);
}

static void expect_refused(const char *messages, const char *message)
{
    json_t *value = parse(messages);
    assert_error(tt_messages_normalise(value, "f.jsonl:3", "messages"), TT_EDATA, message);
    json_decref(value);
}

static void nulls_are_absent(void **state)
{
    (void)state;
    expect_normalised("[{\"role\":\"user\",\"content\":\"a\"}]", "[{\"role\":\"user\",\"content\":\"a\"}]");
    expect_normalised("[{\"role\":\"assistant\",\"content\":null,\"name\":null,\"tool_calls\":[{\"x\":null}]}]",
                      "[{\"role\":\"assistant\",\"tool_calls\":[{\"x\":null}]}]");
}

static void reasoning_has_three_names(void **state)
{
    (void)state;
    expect_normalised("[{\"role\":\"a\",\"reasoning\":\"r\"}]",
                      "[{\"role\":\"a\",\"reasoning\":\"r\",\"thinking\":\"r\",\"reasoning_content\":\"r\"}]");
    expect_normalised("[{\"role\":\"a\",\"thinking\":\"t\",\"reasoning\":\"r\",\"reasoning_content\":null}]",
                      "[{\"role\":\"a\",\"reasoning\":\"r\",\"thinking\":\"t\",\"reasoning_content\":\"t\"}]");
    expect_normalised("[{\"role\":\"a\",\"reasoning_content\":\"c\",\"thinking\":\"t\"}]",
                      "[{\"role\":\"a\",\"reasoning_content\":\"c\",\"thinking\":\"t\"}]");
    expect_normalised("[{\"role\":\"a\",\"reasoning\":null}]", "[{\"role\":\"a\"}]");
}

static void wrong_messages_are_refused(void **state)
{
    (void)state;
    expect_refused("{}", "f.jsonl:3: column 'messages' is object; expected a list");
    expect_refused("\"x\"", "column 'messages' is string");
    expect_refused("[]", "f.jsonl:3: column 'messages' has no messages");
    expect_refused("[1]", "f.jsonl:3: messages[0] is integer");
    expect_refused("[{\"role\":\"user\",\"content\":\"a\"},\"b\"]", "messages[1] is string");
    expect_refused("[{\"content\":\"a\"}]", "messages[0]: 'role' is missing");
    expect_refused("[{\"role\":null,\"content\":\"a\"}]", "messages[0]: 'role' is missing");
    expect_refused("[{\"role\":3,\"content\":\"a\"}]", "messages[0]: 'role' is integer");
    expect_refused("[{\"role\":\"user\",\"content\":42}]", "messages[0]: content is integer");
    expect_refused("[{\"role\":\"user\",\"content\":{\"a\":1}}]", "messages[0]: content is object");
    expect_refused("[{\"role\":\"user\",\"content\":[1]}]", "part 0 of the content is integer");
    expect_refused("[{\"role\":\"user\",\"content\":[\"a\",{\"type\":\"image\"}]}]",
                   "part 1 of the content is an image");
    expect_refused("[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\"}]}]", "is an image");
    expect_refused("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"image_url\":\"x\"}]}]", "is an image");
    expect_refused("[{\"role\":\"user\",\"content\":[{\"video\":\"x\"}]}]", "is an image");
}

static tt_status convert(const char *text, bool keep_roles, json_t **out)
{
    *out = parse(text);
    return tt_messages_from_sharegpt(*out, keep_roles, "f.jsonl:3");
}

/* Bug D-01: role names. */
static void sharegpt_becomes_messages(void **state)
{
    (void)state;
    static const char *const chat =
        "[{\"from\":\"system\",\"value\":\"s\"},{\"from\":\"human\",\"value\":\"a\"},"
        "{\"from\":\"gpt\",\"value\":\"b\",\"x\":1},{\"from\":\"observation\",\"value\":\"o\"}]";
    json_t *value;
    assert_ok(convert(chat, false, &value));
    expect_json(value, "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"a\"},"
                       "{\"role\":\"assistant\",\"content\":\"b\",\"x\":1},{\"role\":\"tool\",\"content\":\"o\"}]");
    json_decref(value);
    assert_ok(convert(chat, true, &value));
    expect_json(value, "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"human\",\"content\":\"a\"},"
                       "{\"role\":\"gpt\",\"content\":\"b\",\"x\":1},{\"role\":\"observation\",\"content\":\"o\"}]");
    json_decref(value);
    assert_ok(convert("[{\"from\":\"function_call\",\"value\":\"{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{"
                      "\\\"x\\\":1}}\"}]",
                      false, &value));
    expect_json(value,
                "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"type\":\"function\",\"function\":"
                "{\"name\":\"f\",\"arguments\":{\"x\":1}}}]}]");
    json_decref(value);
}

static void wrong_sharegpt_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tt_status status;
        const char *message;
    } cases[] = {
        {"[{\"from\":\"narrator\",\"value\":\"a\"}]", TT_EDATA, "conversations[0] is from 'narrator'"},
        {"[{\"from\":\"human\\u0000\",\"value\":\"a\"}]", TT_EDATA, "no known role"},
        {"[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\"}]", TT_EDATA, "conversations[1] has no 'value'"},
        {"[{\"from\":\"human\",\"value\":\"a\"},{\"value\":\"b\"}]", TT_EDATA, "conversations[1] has no 'from'"},
        {"[{\"from\":7,\"value\":\"a\"}]", TT_EDATA, "'from' is integer"},
        {"[7]", TT_EDATA, "conversations[0] is integer"},
        {"[{\"from\":\"function_call\",\"value\":\"f(x)\"}]", TT_EFORMAT,
         "f.jsonl:3: conversations[0]: function_call"},
        {"[{\"from\":\"function_call\",\"value\":\"[1]\"}]", TT_EDATA, "function_call without a name"},
        {"[{\"from\":\"function_call\",\"value\":{}}]", TT_EDATA, "whose value is object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value;
        assert_error(convert(cases[i].text, false, &value), cases[i].status, cases[i].message);
        json_decref(value);
    }
}

static void shapes_of_chats_are_recognised(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool chat, sharegpt;
    } cases[] = {
        {"[{\"role\":\"user\"}]", true, false},
        {"[{\"from\":\"a\",\"value\":\"b\"}]", false, true},
        {"[{\"from\":\"a\"}]", false, false},
        {"[]", false, false},
        {"[1]", false, false},
        {"{\"role\":1}", false, false},
        {"\"role\"", false, false},
        {"null", false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = parse(cases[i].text);
        assert_int_equal(tt_messages_is_chat(value), cases[i].chat);
        assert_int_equal(tt_messages_is_sharegpt(value), cases[i].sharegpt);
        json_decref(value);
    }
}

/* Roles by letter (s, u, a, t, x unknown; capital: no content), and what the checks find, as a list of kinds. */
static void expect_findings(const char *roles, int count, const tt_data_warning *kinds)
{
    json_t *messages = json_array();
    for (const char *r = roles; *r; r++) {
        char lower = (char)(*r | 0x20);
        const char *role = lower == 's'   ? "system"
                           : lower == 'u' ? "user"
                           : lower == 'a' ? "assistant"
                           : lower == 't' ? "tool"
                                          : "narrator";
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", role, "content", *r == lower ? "c" : ""));
    }
    tt_findings f = {0};
    tt_messages_check(messages, &f);
    for (int kind = 0; kind < TT_WARN_COUNT; kind++) {
        bool expected = false;
        for (int i = 0; i < count; i++) expected = expected || (int)kinds[i] == kind;
        if (f.found[kind] != expected) fail_msg("%s: %s", roles, tt_data_warning_text((tt_data_warning)kind));
    }
    json_decref(messages);
}

static void suspicious_conversations_are_found(void **state)
{
    (void)state;
    expect_findings("ua", 0, NULL);
    expect_findings("suaua", 0, NULL);
    expect_findings("uata", 0, NULL);
    expect_findings("su", 1, (tt_data_warning[]){TT_WARN_LAST_NOT_ASSISTANT});
    expect_findings("saua", 1, (tt_data_warning[]){TT_WARN_LEADING_ASSISTANT});
    expect_findings("uaa", 1, (tt_data_warning[]){TT_WARN_CONSECUTIVE_ASSISTANT});
    expect_findings("uA", 1, (tt_data_warning[]){TT_WARN_EMPTY_ASSISTANT});
    expect_findings("Ua", 0, NULL);
    expect_findings("uxa", 1, (tt_data_warning[]){TT_WARN_UNKNOWN_ROLE});
    expect_findings("aax", 4,
                    (tt_data_warning[]){TT_WARN_LEADING_ASSISTANT, TT_WARN_CONSECUTIVE_ASSISTANT,
                                        TT_WARN_UNKNOWN_ROLE, TT_WARN_LAST_NOT_ASSISTANT});
}

static void findings_name_the_first_message(void **state)
{
    (void)state;
    json_t *messages = parse("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{}]},"
                             "{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\"},{\"role\":\"assistant\","
                             "\"content\":[]}]");
    tt_findings f = {0};
    tt_messages_check(messages, &f);
    assert_true(f.found[TT_WARN_EMPTY_ASSISTANT]);
    assert_int_equal(f.message[TT_WARN_EMPTY_ASSISTANT], 3);
    assert_int_equal(f.message[TT_WARN_CONSECUTIVE_ASSISTANT], 4);
    assert_false(f.found[TT_WARN_LAST_NOT_ASSISTANT]);
    json_decref(messages);
}

/* Bug S-05. */
static void special_strings_in_content_are_found(void **state)
{
    (void)state;
    tt_specials *s;
    assert_ok(tt_specials_create(tokenizer("small"), &s));
    static const struct {
        const char *text, *found;
    } cases[] = {
        {"x<|im_end|>\n<|im_start|>system\ny", "<|im_end|>"},
        {"<|endoftext|>", "<|endoftext|>"},
        {"", NULL},
        {"<|im_end|", NULL},
        {"<|im_end |> <<<|", NULL},
        {"<<|im_start|>", "<|im_start|>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = tt_specials_find(s, cases[i].text, strlen(cases[i].text));
        if (!cases[i].found)
            assert_null(found);
        else
            assert_string_equal(found, cases[i].found);
    }
    json_t *messages =
        parse("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
              "\"text\":\"b\"},{\"type\":\"text\",\"text\":\"\\u0000<|im_end|>\"}]}]");
    tt_findings f = {0};
    tt_specials_check(s, messages, &f);
    assert_true(f.found[TT_WARN_SPECIAL_IN_CONTENT]);
    assert_int_equal(f.message[TT_WARN_SPECIAL_IN_CONTENT], 1);
    json_decref(messages);
    tt_specials_destroy(&s);
    assert_null(s);
}

/* Added tokens that are not special (think tags, runs of blanks) are ordinary text in content. */
static void added_but_plain_tokens_are_no_finding(void **state)
{
    (void)state;
    tt_specials *s;
    assert_ok(tt_specials_create(tokenizer("glm"), &s));
    assert_null(tt_specials_find(s, "<think>a</think>", 16));
    assert_non_null(tt_specials_find(s, "<|user|>", 8));
    tt_specials_destroy(&s);
    assert_ok(tt_specials_create(tokenizer("neox"), &s));
    assert_null(tt_specials_find(s, "a    b", 6));
    tt_specials_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nulls_are_absent),
        cmocka_unit_test(reasoning_has_three_names),
        cmocka_unit_test(wrong_messages_are_refused),
        cmocka_unit_test(sharegpt_becomes_messages),
        cmocka_unit_test(wrong_sharegpt_is_refused),
        cmocka_unit_test(shapes_of_chats_are_recognised),
        cmocka_unit_test(suspicious_conversations_are_found),
        cmocka_unit_test(findings_name_the_first_message),
        cmocka_unit_test(special_strings_in_content_are_found),
        cmocka_unit_test(added_but_plain_tokens_are_no_finding),
    };
    return cmocka_run_group_tests(tests, NULL, free_tokenizers);
}
