/* The rows of a file: both layouts, borders of blocks, and files that are damaged. */
#include "data/support.h"

#include "data/jsonl.h"

#include <sys/stat.h>
#include <unistd.h>

/* All rows of a file, read in blocks of `block` bytes, joined as "line:text|line:text|". */
static tt_status read_all(const char *path, int64_t block, char *out, size_t size)
{
    tt_jsonl *reader;
    size_t used = 0;
    int64_t index = 0;
    out[0] = '\0';
    TT_TRY(tt_jsonl_open(path, block, &reader));
    for (;;) {
        const tt_jsonl_row *rows;
        int64_t count;
        tt_status status = tt_jsonl_next(reader, &rows, &count);
        if (status != TT_OK || count == 0) {
            tt_jsonl_close(&reader);
            return status;
        }
        for (int64_t i = 0; i < count; i++) {
            assert_int_equal(rows[i].index, index++);
            used += (size_t)snprintf(out + used, size - used, "%lld:%.*s|", (long long)rows[i].line,
                                     (int)rows[i].bytes, rows[i].text);
        }
    }
}

/* The same rows for every size of block. */
static void expect_rows(const char *text, const char *expected)
{
    const char *path = write_text(text);
    char got[1024];
    for (int64_t block = 1; block < 40; block++) {
        assert_ok(read_all(path, block, got, sizeof got));
        assert_string_equal(got, expected);
    }
    assert_ok(read_all(path, 0, got, sizeof got));
    assert_string_equal(got, expected);
}

static void expect_failure(const char *text, const char *rows_before, const char *message)
{
    const char *path = write_text(text);
    char got[1024];
    for (int64_t block = 1; block < 20; block++) {
        assert_error(read_all(path, block, got, sizeof got), TT_EFORMAT, message);
        assert_string_equal(got, rows_before);
    }
}

static void lines_are_rows(void **state)
{
    (void)state;
    expect_rows("{\"a\":1}\n{\"b\":2}\n", "1:{\"a\":1}|2:{\"b\":2}|");
    expect_rows("{\"a\":1}\n{\"b\":2}", "1:{\"a\":1}|2:{\"b\":2}|");
    expect_rows("{\"a\":1}\r\n\r\n  \n{\"b\":2}\r\n", "1:{\"a\":1}|4:{\"b\":2}|");
    expect_rows("\n\n {\"a\":1} \n", "3:{\"a\":1}|");
    expect_rows("\xEF\xBB\xBF{\"a\":1}\n{}", "1:{\"a\":1}|2:{}|");
    expect_rows("{\"a\":\"\xEF\xBB\xBF\"}\n", "1:{\"a\":\"\xEF\xBB\xBF\"}|");
    expect_rows("not json\n[1]\n", "1:not json|2:[1]|");
    expect_rows("", "");
    expect_rows(" \n\t\r\n", "");
    expect_rows("\xEF\xBB\xBF", "");
}

static void array_elements_are_rows(void **state)
{
    (void)state;
    expect_rows("[]", "");
    expect_rows(" [ ] \n", "");
    expect_rows("[{\"a\":1},{\"b\":[1,{\"c\":2}]}]", "1:{\"a\":1}|1:{\"b\":[1,{\"c\":2}]}|");
    expect_rows("\xEF\xBB\xBF\n[\n {\"a\":\n1},\n\n {\"b\":2}\n]\n\n", "3:{\"a\":\n1}|6:{\"b\":2}|");
    expect_rows("[{\"a\":\"],[}\\\"],\"},1,\"x\\\\\"]", "1:{\"a\":\"],[}\\\"],\"}|1:1|1:\"x\\\\\"|");
    expect_rows("[1,,2]", "1:1|1:|1:2|");
    expect_rows("[1,]", "1:1|1:|");
    expect_rows("[}]", "1:}|");
}

static void damaged_arrays_are_refused_behind_their_rows(void **state)
{
    (void)state;
    expect_failure("[", "", "rows.jsonl:1: the file ends inside its array");
    expect_failure("[{\"a\":1},\n{\"b\"", "1:{\"a\":1}|", "rows.jsonl:2: the file ends inside its array");
    expect_failure("[{\"a\":\"x]", "", "ends inside its array");
    expect_failure("[\"\\", "", "ends inside its array");
    expect_failure("[1] 2", "1:1|", "text behind the end of the array");
    expect_failure("[1]\n\n]", "1:1|", "rows.jsonl:3: text behind the end of the array");
    expect_failure("[]\n{}", "", "text behind the end of the array");
}

static void what_is_no_file_is_refused(void **state)
{
    (void)state;
    tt_jsonl *reader = NULL;
    assert_error(tt_jsonl_open("tests/fixtures/no-such-file.jsonl", 0, &reader), TT_EIO, "no-such-file.jsonl");
    assert_error(tt_jsonl_open("tests/fixtures", 0, &reader), TT_EFORMAT, "not a regular file");
    assert_null(reader);
}

/* A file with a hole: the row is refused at the limit, before memory grows with the file. */
static void long_rows_are_bounded(void **state)
{
    (void)state;
    const char *path = write_text("{}\n");
    char got[64];
    assert_int_equal(truncate(path, (off_t)TT_JSONL_MAX_ROW + 10), 0);
    assert_error(read_all(path, 0, got, sizeof got), TT_EFORMAT, "rows.jsonl:2: this row is longer than 64 MiB");
    assert_string_equal(got, "1:{}|");
    assert_int_equal(truncate(path, 0), 0);
}

static void many_rows_come_in_several_parts(void **state)
{
    (void)state;
    enum { ROWS = 2 * TT_JSONL_MAX_ROWS + 3 };
    char *text = malloc(ROWS * 3 + 3);
    for (int kind = 0; kind < 2; kind++) {
        size_t n = 0;
        if (kind) text[n++] = '[';
        for (int i = 0; i < ROWS; i++) {
            if (i > 0) text[n++] = kind ? ',' : '\n';
            memcpy(text + n, "{}", 2);
            n += 2;
        }
        if (kind) text[n++] = ']';
        tt_jsonl *reader;
        const tt_jsonl_row *rows;
        int64_t count, total = 0;
        assert_ok(tt_jsonl_open(write_rows("rows.json", text, n), 0, &reader));
        do {
            assert_ok(tt_jsonl_next(reader, &rows, &count));
            assert_true(count <= TT_JSONL_MAX_ROWS);
            total += count;
        } while (count > 0);
        assert_int_equal(total, ROWS);
        tt_jsonl_close(&reader);
    }
    free(text);
}

static void rows_are_read_again_by_offset(void **state)
{
    (void)state;
    const char *path = write_text("{\"a\":1}\n\n{\"b\":[\"\xC3\xA9\"]}\n");
    tt_jsonl *reader;
    const tt_jsonl_row *rows;
    int64_t count;
    json_t *row;
    assert_ok(tt_jsonl_open(path, 0, &reader));
    assert_ok(tt_jsonl_next(reader, &rows, &count));
    assert_int_equal(count, 2);
    assert_ok(tt_jsonl_reload(path, &rows[1], &row));
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "b"), 0)), "\xC3\xA9");
    json_decref(row);
    tt_jsonl_row moved = rows[1];
    moved.offset++;
    assert_error(tt_jsonl_reload(path, &moved, &row), TT_EFORMAT, "rows.jsonl:3: not valid JSON");
    moved.offset += 100;
    assert_error(tt_jsonl_reload(path, &moved, &row), TT_EFORMAT, "ends at byte");
    tt_jsonl_close(&reader);
}

static tt_status parse(const char *text, size_t bytes)
{
    tt_jsonl_row row = {.text = text, .bytes = (int64_t)bytes, .line = 7};
    json_t *value = NULL;
    tt_status status = tt_jsonl_parse(&row, "f.jsonl", &value);
    json_decref(value);
    return status;
}

static void bad_rows_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        tt_status status;
        const char *message;
    } cases[] = {
        {"{\"a\": 1", TT_EFORMAT, "f.jsonl:7: not valid JSON"},
        {"{\"a\": 1} x", TT_EFORMAT, "f.jsonl:7: not valid JSON"},
        {"{\"a\": 1, \"a\": 2}", TT_EFORMAT, "duplicate"},
        {"{\"a\": \"\\ud800\"}", TT_EFORMAT, "f.jsonl:7"},
        {"{\"a\": \"\\ud800x\"}", TT_EFORMAT, "f.jsonl:7"},
        {"{\"a\": \"\xED\xA0\x80\"}", TT_EFORMAT, "unable to decode byte"},
        {"{\"a\": \"\xFF\"}", TT_EFORMAT, "unable to decode byte"},
        {"{\"a\": \"\xC0\xAF\"}", TT_EFORMAT, "unable to decode byte"},
        {"{'a': 1}", TT_EFORMAT, "not valid JSON"},
        {"{\"a\": NaN}", TT_EFORMAT, "not valid JSON"},
        {"{\"a\": 123456789012345678901}", TT_EFORMAT, "f.jsonl:7"},
        {"[1]", TT_EDATA, "f.jsonl:7: the row is array"},
        {"\"text\"", TT_EDATA, "the row is string"},
        {"null", TT_EDATA, "the row is null"},
        {"", TT_EFORMAT, "f.jsonl:7: an element of the array is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_error(parse(cases[i].text, strlen(cases[i].text)), cases[i].status, cases[i].message);
    assert_error(parse("{\"a\": \"\0\"}", 10), TT_EFORMAT, "f.jsonl:7");
    assert_ok(parse("{\"a\": \"\\u0000\"}", 15));
    assert_ok(parse("{\"a\": \"\\ud83d\\ude00\"}", 21));
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 1 << 20 };
    static char text[DEPTH];
    char got[8];
    memset(text, '[', sizeof text);
    /* The scan for elements keeps no stack. */
    assert_error(read_all(write_rows("deep.json", text, sizeof text), 0, got, sizeof got), TT_EFORMAT, "ends inside");
    memcpy(text, "{\"a\":", 5);
    assert_error(parse(text, sizeof text), TT_EFORMAT, "f.jsonl:7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_rows),
        cmocka_unit_test(array_elements_are_rows),
        cmocka_unit_test(damaged_arrays_are_refused_behind_their_rows),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(long_rows_are_bounded),
        cmocka_unit_test(many_rows_come_in_several_parts),
        cmocka_unit_test(rows_are_read_again_by_offset),
        cmocka_unit_test(bad_rows_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
