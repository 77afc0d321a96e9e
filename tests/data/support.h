/* support.h - what the tests of data sets share: files of rows, tokenizers, comparison of rows. */
#ifndef TT_TESTS_DATA_SUPPORT_H
#define TT_TESTS_DATA_SUPPORT_H

#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Write text to a file of this name in the test's folder. Static buffer. */
static inline const char *write_rows(const char *name, const char *text, size_t bytes)
{
    static char folder[1024], path[1200];
    if (!folder[0]) snprintf(folder, sizeof folder, "%s", test_folder("data"));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline const char *write_text(const char *text)
{
    return write_rows("rows.jsonl", text, strlen(text));
}

enum { MAX_TOKENIZERS = 4 };
static struct {
    char name[16];
    tt_tokenizer *tokenizer;
} kept[MAX_TOKENIZERS];

/* The tokenizer "small", "neox", "glm" of the fixtures; kept for the whole program. */
static inline const tt_tokenizer *tokenizer(const char *name)
{
    int i = 0;
    while (i < MAX_TOKENIZERS && kept[i].tokenizer && strcmp(kept[i].name, name) != 0) i++;
    assert_in_range(i, 0, MAX_TOKENIZERS - 1);
    if (!kept[i].tokenizer) {
        char folder[64];
        snprintf(folder, sizeof folder, "tokenizers/%s", name);
        assert_ok(tt_tokenizer_load(test_fixture(folder), &kept[i].tokenizer));
        snprintf(kept[i].name, sizeof kept[i].name, "%s", name);
    }
    return kept[i].tokenizer;
}

static inline int free_tokenizers(void **state)
{
    (void)state;
    for (int i = 0; i < MAX_TOKENIZERS; i++) tt_tokenizer_destroy(&kept[i].tokenizer);
    return 0;
}

static inline tt_prepare defaults(void)
{
    tt_prepare p = TT_PREPARE_DEFAULT;
    p.tokenizer = tokenizer("small");
    return p;
}

/* The lines of a JSONL file as a list. */
static inline json_t *load_lines(const char *path)
{
    char *text;
    size_t bytes;
    json_t *list = json_array(), *row;
    assert_ok(tt_file_read_all(path, 1 << 26, &text, &bytes));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        assert_ok(tt_json_parse(line, strlen(line), path, &row));
        json_array_append_new(list, row);
    }
    free(text);
    return list;
}

static inline void print_numbers(const char *what, const int32_t *values, int64_t n)
{
    print_error("  %s:", what);
    for (int64_t i = 0; i < n; i++) print_error(" %d", values[i]);
    print_error("\n");
}

/* Row i of d against expected[n] ids and labels. */
static inline void expect_row(const tt_dataset *d, int64_t i, const int32_t *ids, const int32_t *labels,
                              int64_t n, const char *what)
{
    const int32_t *got_ids, *got_labels;
    int64_t count;
    tt_dataset_row(d, i, &got_ids, &got_labels, &count);
    if (count == n && memcmp(ids, got_ids, (size_t)n * sizeof *ids) == 0 &&
        memcmp(labels, got_labels, (size_t)n * sizeof *ids) == 0)
        return;
    print_error("%s, row %lld:\n", what, (long long)i);
    print_numbers("ids got     ", got_ids, count);
    print_numbers("ids expected", ids, n);
    print_numbers("labels got     ", got_labels, count);
    print_numbers("labels expected", labels, n);
    fail();
}

static inline int32_t *numbers(const json_t *list, int64_t *n)
{
    *n = (int64_t)json_array_size(list);
    int32_t *values = malloc(((size_t)*n + 1) * sizeof *values);
    for (int64_t i = 0; i < *n; i++) values[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return values;
}

#endif
