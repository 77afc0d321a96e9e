/* Tokenizers made on the spot, mostly from 256 byte tokens, token n standing for byte n, so that without
 * merges the ids of a text are the bytes of its normalized form. The includer defines TOKENIZER_FOLDER, a
 * name for test_folder. */
#ifndef TT_TESTS_DATA_TOKENIZER_SUPPORT_H
#define TT_TESTS_DATA_TOKENIZER_SUPPORT_H

#include "support/test.h"

#include "data/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Fragments of tokenizer.json; NULL leaves the default. */
typedef struct parts {
    const char *normalizer, *pre, *post, *decoder;
    const char *vocab;  /* ,"token":id more than the bytes */
    const char *merges; /* inside the brackets */
    const char *model;  /* ,"field":value */
    const char *added;  /* inside the brackets */
} parts;

#define BYTES_ONLY                "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define GPT2_SPLIT                "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define ADDED(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"" flags "}"

static const char * or (const char *s, const char *fallback)
{
    return s ? s : fallback;
}

/* The vocabulary's byte tokens as JSON members. */
static inline void byte_tokens(char *out)
{
    for (int byte = 0; byte < 256; byte++) {
        char s[5] = {0};
        tt_byte_stand_in((unsigned char)byte, s);
        out += sprintf(out, "%s\"%s%s\":%d", byte ? "," : "", *s == '"' || *s == '\\' ? "\\" : "", s, byte);
    }
}

static inline char *file_of(const parts *p)
{
    char tokens[8192], *text = malloc(65536);
    assert_non_null(text);
    byte_tokens(tokens);
    snprintf(text, 65536,
             "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[%s],\"normalizer\":%s,"
             "\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,"
             "\"model\":{\"type\":\"BPE\",\"vocab\":{%s%s},\"merges\":[%s]%s}}",
             or (p->added, ""), or (p->normalizer, "null"), or (p->pre, BYTES_ONLY), or (p->post, "null"),
             or (p->decoder, "{\"type\":\"ByteLevel\"}"), tokens, or (p->vocab, ""), or (p->merges, ""),
             or (p->model, ""));
    return text;
}

static inline tt_status load_text(const char *text, size_t bytes, tt_tokenizer **t)
{
    char folder[1024], path[1200];
    snprintf(folder, sizeof folder, "%s", test_folder(TOKENIZER_FOLDER));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    FILE *f = fopen(path, "wb"); /* not tt_file_write_all, whose flush to the disk would cost thousands of these */
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    return tt_tokenizer_load(folder, t);
}

static inline tt_status load_parts(const parts *p, tt_tokenizer **t)
{
    char *text = file_of(p);
    tt_status status = load_text(text, strlen(text), t);
    free(text);
    return status;
}

/* Ids of text as "1 2 3". Static buffer. */
static inline const char *ids_of(const tt_tokenizer *t, const char *text, size_t bytes, bool special)
{
    static char out[4096];
    size_t n = 0;
    tt_encoding e = {0};
    assert_ok(tt_tokenizer_encode(t, text, bytes, special, &e));
    *out = 0;
    for (int64_t i = 0; i < e.count; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%d", i ? " " : "", e.ids[i]);
    tt_encoding_free(&e);
    return out;
}

#define expect_ids(t, text, expected) assert_string_equal(ids_of(t, text, sizeof(text) - 1, false), expected)

#endif
