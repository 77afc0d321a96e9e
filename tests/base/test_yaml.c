/* YAML as training configurations are written: what scalars mean, what is refused and on which line. */
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "base/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *parse(const char *text)
{
    json_t *value = NULL;
    assert_ok(tt_yaml_parse(text, strlen(text), "c.yaml", &value, NULL));
    return value;
}

/* The document as compact JSON text equals `expected`. */
static void expect(const char *text, const char *expected)
{
    json_t *value = parse(text);
    char *got = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (strcmp(got, expected) != 0) fail_msg("%s\n  gave %s\n  expected %s", text, got, expected);
    free(got);
    json_decref(value);
}

/* Every line was compared with what PyYAML 6.0 makes of it, except those marked. */
static void scalars_resolve_as_in_python(void **state)
{
    (void)state;
    static const struct {
        const char *text, *json;
    } cases[] = {
        {"true", "true"},
        {"Yes", "true"},
        {"ON", "true"},
        {"no", "false"},
        {"Off", "false"},
        {"FALSE", "false"},
        {"tRUE", "\"tRUE\""},
        {"y", "\"y\""},
        {"n", "\"n\""},
        {"null", "null"},
        {"~", "null"},
        {"", "null"},
        {"NULL", "null"},
        {"nULL", "\"nULL\""},
        {"None", "\"None\""},
        {"0", "0"},
        {"-0", "0"},
        {"17", "17"},
        {"+17", "17"},
        {"-3", "-3"},
        {"1_000", "1000"},
        {"1_", "1"},
        {"_1", "\"_1\""},
        {"0x1F", "31"},
        {"-0x1_f", "-31"},
        {"0x", "\"0x\""},
        {"017", "15"},
        {"0o17", "\"0o17\""},
        {"08", "\"08\""},
        {"00", "0"},
        {"0b101", "5"},
        {"0b2", "\"0b2\""},
        {"9223372036854775807", "9223372036854775807"},
        {"-9223372036854775808", "-9223372036854775808"},
        {"1.5", "1.5"},
        {"-1.5", "-1.5"},
        {"1.", "1.0"},
        {".5", "0.5"},
        {"-.5", "\"-.5\""},
        {"+1.0", "1.0"},
        {"1_0.2_5", "10.25"},
        {"2.0e-5", "2.0000000000000002e-5"},
        {"2.0E+3", "2000.0"},
        {"2.0e5", "\"2.0e5\""},
        {"1e-5", "\"1e-5\""},
        {"1e5", "\"1e5\""},
        {"2e-4", "\"2e-4\""},
        {"1.5e-", "\"1.5e-\""},
        {".", "\".\""},
        {"._5", "\"._5\""},
        {"1.2.3", "\"1.2.3\""},
        {"1.0.", "\"1.0.\""},
        {"-", "[null]"},
        {"+", "\"+\""},
        {"12:30", "\"12:30\""},           /* PyYAML: 750 */
        {"2024-01-02", "\"2024-01-02\""}, /* PyYAML: a date */
        {"\"no\"", "\"no\""},
        {"'17'", "\"17\""},
        {"''", "\"\""},
        {"\"a\\0b\"", "\"a\\u0000b\""},
        {"\"\\u00e9\"", "\"\xC3\xA9\""},
        {"Qwen/Qwen3-30B-A3B", "\"Qwen/Qwen3-30B-A3B\""},
        {"a # comment", "\"a\""},
        {"a#b", "\"a#b\""},
        {"|\n  no\n", "\"no\\n\""},
        {">-\n  17\n", "\"17\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200], json[200];
        snprintf(text, sizeof text, "key: %s\n", cases[i].text);
        snprintf(json, sizeof json, "{\"key\":%s}", cases[i].json);
        if (strcmp(cases[i].text, "-") == 0) snprintf(text, sizeof text, "key:\n%s\n", cases[i].text);
        expect(text, json);
    }
}

static void documents_become_values(void **state)
{
    (void)state;
    expect("", "null");
    expect("# nothing\n", "null");
    expect("---\n", "null");
    expect("---\na: 1\n...\n", "{\"a\":1}");
    expect("\xEF\xBB\xBF"
           "a: 1",
           "{\"a\":1}");
    expect("a:\n  - 1\n  - [x, {y: no}]\nb: {}\nc: []\nd:\n",
           "{\"a\":[1,[\"x\",{\"y\":false}]],\"b\":{},\"c\":[],\"d\":null}");
    expect("- a: 1\n  b: 2\n- c", "[{\"a\":1,\"b\":2},\"c\"]");
    expect("no: 1\n0: a\n\"<<\": 3\n", "{\"no\":1,\"0\":\"a\",\"<<\":3}");
    expect("lora_target_modules: [\"q_proj\", 'v_proj']",
           "{\"lora_target_modules\":[\"q_proj\",\"v_proj\"]}");
    expect("%YAML 1.1\n---\nx", "\"x\"");
}

static void what_is_refused_and_where(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a: 1\nb: 2\na: 3\n", "c.yaml:3: duplicate key 'a'"},
        {"x:\n  a: 1\n  \"a\": 3\n", "c.yaml:3: duplicate key 'a'"},
        {"a: 1\nb: &x 2\n", "c.yaml:2: anchors and aliases are not accepted"},
        {"a: 1\nb: *x\n", "c.yaml:2: anchors and aliases are not accepted"},
        {"a: &x\n  b: 1\n", "c.yaml:1: anchors"},
        {"a: &x [1]\n", "c.yaml:1: anchors"},
        {"&k a: 1\n", "c.yaml:1: anchors"},
        {"<<: {a: 1}\n", "c.yaml:1: merge keys"},
        {"a: 1\n\nb: !!str 2\n", "c.yaml:3: tags are not accepted"},
        {"a: !x [1]\n", "c.yaml:1: tags"},
        {"a: !x {b: 1}\n", "c.yaml:1: tags"},
        {"a: !!python/object/apply:os.system ['true']\n", "c.yaml:1: tags"},
        {"a: ! 1\n", "c.yaml:1: tags"},
        {"a: 1\n---\nb: 2\n", "c.yaml:2: a second document"},
        {"---\n---\n", "c.yaml:2: a second document"},
        {"? [a]\n: 1\n", "c.yaml:1: a key must be a plain text"},
        {"a: 1\n\"b\\0\": 1\n", "c.yaml:2: a key holds a NUL"},
        {"a: 9223372036854775808\n", "c.yaml:1: an integer beyond 64 bits: '9223372036854775808'"},
        {"a: -9223372036854775809\n", "an integer beyond 64 bits"},
        {"a: 0xFFFFFFFFFFFFFFFFF\n", "an integer beyond 64 bits"},
        {"a: .inf\n", "c.yaml:1: only finite"},
        {"a: -.INF\n", "c.yaml:1: only finite"},
        {"a: .NaN\n", "c.yaml:1: only finite"},
        {"a: 1.0e+999\n", "c.yaml:1: a number beyond the range"},
        {"a: 1\nb: [1, 2\n", "c.yaml:3:"},
        {"a: 1\n\tb: 2\n", "c.yaml:2:"},
        {"a: 'x\n", "c.yaml:2:"},
        {"a: b: c\n", "c.yaml:1:"},
        {"a: 1\nb: \xFF\n", "c.yaml:2:"},
        {"a: 1\nb: \xED\xA0\x80\n", "c.yaml:2:"},
        {"a: \"\\ud800\"\n", "c.yaml:1:"},
        {"a: 1\nb: \x01\n", "c.yaml:2:"},
        {"a: @x\n", "c.yaml:1:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *value = NULL, *lines = NULL;
        tt_status got = tt_yaml_parse(cases[i].text, strlen(cases[i].text), "c.yaml", &value, &lines);
        if (got != TT_ECONFIG || !strstr(tt_error_text(), cases[i].message))
            fail_msg("%s\n  gave %s: %s\n  expected %s", cases[i].text, tt_status_name(got), tt_error_text(),
                     cases[i].message);
        assert_null(value);
        assert_null(lines);
    }
}

static void depth_is_bounded(void **state)
{
    (void)state;
    enum { MANY = 300000 };
    char *text = malloc(MANY + 1);
    assert_non_null(text);
    json_t *value = NULL;
    for (int depth = TT_YAML_MAX_DEPTH; depth <= TT_YAML_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        tt_status got = tt_yaml_parse(text, 2 * (size_t)depth, "c.yaml", &value, NULL);
        assert_int_equal(got, depth <= TT_YAML_MAX_DEPTH ? TT_OK : TT_ECONFIG);
        if (got == TT_OK) json_decref(value);
    }
    assert_error(tt_yaml_parse(text, 2 * (TT_YAML_MAX_DEPTH + 1), "c.yaml", &value, NULL), TT_ECONFIG,
                 "too deeply");
    static const char *const units[] = {"[", "{", "- ", "? ", "{a: ", "!", "&", "'", "-\n"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        size_t n = strlen(units[i]);
        for (size_t k = 0; k < MANY; k++) text[k] = units[i][k % n];
        if (tt_yaml_parse(text, MANY, "c.yaml", &value, NULL) == TT_OK) json_decref(value);
    }
    free(text);
}

static void lines_of_top_level_keys(void **state)
{
    (void)state;
    const char *text = "# head\n\nmodel: x\nlora:\n  model: y\n\"quoted\": [1,\n  2]\nlast: 1\n";
    json_t *value, *lines;
    assert_ok(tt_yaml_parse(text, strlen(text), "c.yaml", &value, &lines));
    assert_int_equal(json_object_size(lines), 4);
    assert_int_equal(tt_yaml_line(lines, "model"), 3);
    assert_int_equal(tt_yaml_line(lines, "lora"), 4);
    assert_int_equal(tt_yaml_line(lines, "quoted"), 6);
    assert_int_equal(tt_yaml_line(lines, "last"), 8);
    assert_int_equal(tt_yaml_line(lines, "absent"), 0);
    json_decref(value);
    json_decref(lines);
    assert_ok(tt_yaml_parse("- a: 1", 6, "c.yaml", &value, &lines));
    assert_int_equal(json_object_size(lines), 0);
    json_decref(value);
    json_decref(lines);
}

static void files_are_loaded_and_named(void **state)
{
    (void)state;
    char path[1200];
    json_t *value, *lines;
    snprintf(path, sizeof path, "%s/sft.yaml", test_folder("yaml"));
    assert_ok(tt_file_write_all(path, "a: 1\nb: [\n", 10));
    assert_error(tt_yaml_load(path, 100, &value, &lines), TT_ECONFIG, "sft.yaml:3: ");
    assert_error(tt_yaml_load(path, 9, &value, &lines), TT_EFORMAT, "at most 9");
    assert_error(tt_yaml_load("no/such.yaml", 9, &value, &lines), TT_EIO, "no/such.yaml");
    assert_ok(tt_file_write_all(path, "a: 1\nb: 2\n", 10));
    assert_ok(tt_yaml_load(path, 10, &value, &lines));
    assert_int_equal(json_integer_value(json_object_get(value, "b")), 2);
    json_decref(value);
    json_decref(lines);
}

/* Many keys: time is linear, or this test would not end within its limit. */
static void many_keys(void **state)
{
    (void)state;
    enum { N = 50000 };
    char *text = malloc(N * 12 + 1), *at = text;
    assert_non_null(text);
    for (int i = 0; i < N; i++) at += sprintf(at, "k%d: %d\n", i, i % 10);
    json_t *value;
    assert_ok(tt_yaml_parse(text, (size_t)(at - text), "c.yaml", &value, NULL));
    assert_int_equal(json_object_size(value), N);
    json_decref(value);
    free(text);
}

/* Random bytes in a valid document: any outcome but a crash, and a message with each failure. */
static void mutated_documents_do_no_harm(void **state)
{
    (void)state;
    static const char base[] =
        "---\nmodel: Qwen/x # c\nlr: 2.0e-5\nlist: [a, 'b', \"c\\n\"]\nm: {k: no, j: ~}\n"
        "text: |\n  one\n  two\nseq:\n- 1\n- - 2\n  - x: y\n";
    static const char interesting[] = "\0\n\t :-?[]{}'\"|>&*!%@#,\\\xFF\xC3.0~<";
    const uint64_t seed = 20240229;
    print_message("seed %llu\n", (unsigned long long)seed);
    uint64_t x = seed;
    for (int round = 0; round < 20000; round++) {
        char text[sizeof base];
        memcpy(text, base, sizeof base);
        size_t n = sizeof base - 1;
        for (int edits = 1 + round % 4; edits > 0; edits--) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            text[(x >> 33) % n] = interesting[(x >> 20) % (sizeof interesting - 1)];
        }
        if (round % 5 == 0) n = (x >> 40) % n;
        json_t *value = NULL, *lines = NULL;
        tt_error_set(TT_OK, "%s", "");
        if (tt_yaml_parse(text, n, "c.yaml", &value, &lines) == TT_OK) {
            assert_non_null(value);
            json_decref(value);
            json_decref(lines);
        } else {
            assert_non_null(strstr(tt_error_text(), "c.yaml:"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_resolve_as_in_python),
        cmocka_unit_test(documents_become_values),
        cmocka_unit_test(what_is_refused_and_where),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(lines_of_top_level_keys),
        cmocka_unit_test(files_are_loaded_and_named),
        cmocka_unit_test(many_keys),
        cmocka_unit_test(mutated_documents_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
