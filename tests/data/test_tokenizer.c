/* Tokenizers as a whole: the frozen vectors of four of them, folders, threads. Parts: test_tokenizer_parts.c. */
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "tartan/tokenizer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- files ------------------------------------------------------------------------------------ */

/* Call `each` with every line of a JSONL file. */
static void for_each_line(const char *path, void (*each)(void *user, int line, const json_t *row), void *user)
{
    char *text, where[1100];
    size_t bytes;
    assert_ok(tt_file_read_all(path, 64 << 20, &text, &bytes));
    int line = 0;
    for (char *p = text, *end; p < text + bytes; p = end + 1) {
        end = memchr(p, '\n', (size_t)(text + bytes - p));
        if (!end) end = text + bytes;
        json_t *row;
        snprintf(where, sizeof where, "%s:%d", path, ++line);
        assert_ok(tt_json_parse(p, (size_t)(end - p), where, &row));
        each(user, line, row);
        json_decref(row);
    }
    free(text);
    assert_true(line > 0);
}

static const char *string_of(const json_t *row, const char *key, size_t *bytes)
{
    const json_t *v = json_object_get(row, key);
    assert_true(json_is_string(v));
    *bytes = json_string_length(v);
    return json_string_value(v);
}

/* --- SHA-256, which the vectors of long texts use (FIPS 180-4) -------------------------------- */

static uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t h[8], const unsigned char *p)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
               (rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, h, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t a = s[0], e = s[4];
        uint32_t t1 =
            s[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

static void sha256(const char *data, size_t bytes, char hex[65])
{
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char tail[128] = {0};
    size_t whole = bytes / 64 * 64, rest = bytes - whole, padded = rest < 56 ? 64 : 128;
    for (size_t i = 0; i < whole; i += 64) sha256_block(h, (const unsigned char *)data + i);
    if (rest) memcpy(tail, data + whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) tail[padded - 1 - (size_t)i] = (unsigned char)((uint64_t)bytes * 8 >> 8 * i);
    for (size_t i = 0; i < padded; i += 64) sha256_block(h, tail + i);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", h[i]);
}

/* --- vectors ---------------------------------------------------------------------------------- */

static void expect_ids(const char *what, int line, const json_t *expected, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < (int64_t)json_array_size(expected) && i < count; i++)
        if (json_integer_value(json_array_get(expected, (size_t)i)) != ids[i])
            fail_msg("%s %d: id %lld is %d, expected %lld", what, line, (long long)i, ids[i],
                     (long long)json_integer_value(json_array_get(expected, (size_t)i)));
    if ((int64_t)json_array_size(expected) != count)
        fail_msg("%s %d: %lld ids, expected %zu", what, line, (long long)count, json_array_size(expected));
}

/* Code points before byte `at`. */
static int64_t code_points(const char *text, int64_t at)
{
    int64_t n = 0;
    for (int64_t i = 0; i < at; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static void expect_ranges(int line, const json_t *expected, const char *text, const tt_encoding *e)
{
    assert_int_equal(json_array_size(expected), e->count);
    for (int64_t i = 0; i < e->count; i++) {
        const json_t *pair = json_array_get(expected, (size_t)i);
        int64_t begin = json_integer_value(json_array_get(pair, 0)),
                end = json_integer_value(json_array_get(pair, 1));
        int64_t b = code_points(text, e->begin[i]), f = code_points(text, e->end[i]);
        if (b != begin || f != end)
            fail_msg("line %d: range of id %lld is [%lld, %lld), expected [%lld, %lld)", line, (long long)i,
                     (long long)b, (long long)f, (long long)begin, (long long)end);
    }
}

static void expect_text(const char *what, int line, const tt_tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip, const char *expected, size_t expected_bytes)
{
    char *text;
    size_t bytes;
    assert_ok(tt_tokenizer_decode(t, ids, count, skip, &text, &bytes));
    if (bytes != expected_bytes || memcmp(text, expected, bytes) != 0)
        fail_msg("%s %d: decoded '%s', expected '%s'", what, line, text, expected);
    assert_int_equal(text[bytes], 0);
    free(text);
}

static void check_encode(void *user, int line, const json_t *row)
{
    const tt_tokenizer *t = user;
    size_t bytes, decoded_bytes;
    const char *text = string_of(row, "text", &bytes), *decoded = string_of(row, "decoded", &decoded_bytes);
    tt_encoding e = {0};
    assert_ok(tt_tokenizer_encode(t, text, bytes, json_is_true(json_object_get(row, "add_special_tokens")), &e));
    expect_ids("encode", line, json_object_get(row, "ids"), e.ids, e.count);
    if (json_object_get(row, "offsets")) expect_ranges(line, json_object_get(row, "offsets"), text, &e);
    expect_text("encode", line, t, e.ids, e.count, false, decoded, decoded_bytes);
    tt_encoding_free(&e);
}

static char *joined_parts(const json_t *row, size_t *bytes)
{
    const json_t *parts = json_object_get(row, "parts");
    *bytes = 0;
    for (size_t i = 0; i < json_array_size(parts); i++)
        *bytes += json_string_length(json_array_get(json_array_get(parts, i), 0)) *
                  (size_t)json_integer_value(json_array_get(json_array_get(parts, i), 1));
    char *text = malloc(*bytes + 1), *p = text;
    assert_non_null(text);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(json_array_get(parts, i), 0);
        for (int64_t n = json_integer_value(json_array_get(json_array_get(parts, i), 1)); n > 0; n--) {
            memcpy(p, json_string_value(part), json_string_length(part));
            p += json_string_length(part);
        }
    }
    return text;
}

static void check_run(void *user, int line, const json_t *row)
{
    const tt_tokenizer *t = user;
    size_t bytes, used = 0, ignored;
    char *text = joined_parts(row, &bytes), hex[65];
    tt_encoding e = {0};
    assert_ok(tt_tokenizer_encode(t, text, bytes, json_is_true(json_object_get(row, "add_special_tokens")), &e));
    assert_int_equal(e.count, json_integer_value(json_object_get(row, "n_ids")));
    int64_t n = e.count < 32 ? e.count : 32;
    expect_ids("first ids of run", line, json_object_get(row, "head"), e.ids, n);
    expect_ids("last ids of run", line, json_object_get(row, "tail"), e.ids + e.count - n, n);
    char *list = malloc((size_t)e.count * 12 + 1);
    assert_non_null(list);
    for (int64_t i = 0; i < e.count; i++) used += (size_t)sprintf(list + used, "%s%d", i ? "," : "", e.ids[i]);
    sha256(list, used, hex);
    assert_string_equal(hex, string_of(row, "sha256", &ignored));
    for (int64_t i = 0; i < e.count; i++)
        assert_true(0 <= e.begin[i] && e.begin[i] <= e.end[i] && e.end[i] <= (int64_t)bytes);
    free(list);
    free(text);
    tt_encoding_free(&e);
}

static void check_decode(void *user, int line, const json_t *row)
{
    const tt_tokenizer *t = user;
    const json_t *list = json_object_get(row, "ids");
    size_t bytes, count = json_array_size(list);
    const char *decoded = string_of(row, "decoded", &bytes);
    int32_t *ids = malloc((count + 1) * sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    expect_text("decode", line, t, ids, (int64_t)count, json_is_true(json_object_get(row, "skip_special_tokens")),
                decoded, bytes);
    free(ids);
}

static void check_vectors(const char *folder, const char *vectors, const char *name)
{
    static const struct {
        const char *kind;
        void (*check)(void *user, int line, const json_t *row);
    } kinds[] = {{"encode", check_encode}, {"runs", check_run}, {"decode", check_decode}};
    tt_tokenizer *t;
    char path[1200];
    assert_ok(tt_tokenizer_load(folder, &t));
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s-%s.jsonl", vectors, kinds[i].kind, name);
        for_each_line(path, kinds[i].check, t);
    }
    tt_tokenizer_destroy(&t);
    assert_null(t);
}

static void check_own_vectors(const char *name)
{
    char folder[200];
    snprintf(folder, sizeof folder, "tests/fixtures/tokenizers/%s", name);
    check_vectors(folder, "tests/fixtures/sft/tokenizer", name);
}

static void small_gives_the_frozen_ids(void **state)
{
    (void)state;
    check_own_vectors("small");
}

static void neox_gives_the_frozen_ids(void **state)
{
    (void)state;
    check_own_vectors("neox");
}

static void glm_gives_the_frozen_ids(void **state)
{
    (void)state;
    check_own_vectors("glm");
}

static void qwen3_gives_the_frozen_ids(void **state)
{
    (void)state;
    char folder[1024], vectors[1024];
    if (!test_reference("")) skip();
    snprintf(folder, sizeof folder, "%s", test_reference("data/qwen3-tokenizer"));
    snprintf(vectors, sizeof vectors, "%s", test_reference("fixtures/sft/tokenizer"));
    check_vectors(folder, vectors, "qwen3");
}

/* --- the interface ---------------------------------------------------------------------------- */

static tt_tokenizer *load_small(void)
{
    tt_tokenizer *t;
    assert_ok(tt_tokenizer_load(test_fixture("tokenizers/small"), &t));
    return t;
}

static void encoding_appends_and_keeps_what_was_there_on_failure(void **state)
{
    (void)state;
    tt_tokenizer *t = load_small();
    tt_encoding e = {0};
    assert_ok(tt_tokenizer_encode(t, "Hello", 5, false, &e));
    int64_t first = e.count;
    assert_ok(tt_tokenizer_encode(t, "Hello", 5, false, &e));
    assert_int_equal(e.count, 2 * first);
    assert_memory_equal(e.ids, e.ids + first, (size_t)first * sizeof *e.ids);
    assert_memory_equal(e.begin, e.begin + first, (size_t)first * sizeof *e.begin);
    assert_error(tt_tokenizer_encode(t, "ab\xC3(", 4, false, &e), TT_EDATA, "byte 2");
    assert_int_equal(e.count, 2 * first);
    assert_ok(tt_tokenizer_encode(t, "", 0, true, &e));
    assert_int_equal(e.count, 2 * first);
    tt_encoding_free(&e);
    tt_tokenizer_destroy(&t);
}

static void invalid_utf8_is_refused_with_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *place;
    } bad[] = {{"\x80", 1, "byte 0"},          {"abcdefghi\xFF", 10, "byte 9"},    {"\xC0\x80", 2, "byte 0"},
               {"a\xED\xA0\xBD", 4, "byte 1"}, {"a\xF4\x90\x80\x80", 5, "byte 1"}, {"\xE4\xBD", 2, "byte 0"},
               {"\xF0\x9F\x91", 3, "byte 0"},  {"\xE0\x9F\x80", 3, "byte 0"}};
    tt_tokenizer *t = load_small();
    tt_encoding e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(tt_tokenizer_encode(t, bad[i].text, bad[i].bytes, false, &e), TT_EDATA, bad[i].place);
    assert_int_equal(e.count, 0);
    tt_encoding_free(&e);
    tt_tokenizer_destroy(&t);
}

static void names_and_ids_agree(void **state)
{
    (void)state;
    tt_tokenizer *t = load_small();
    assert_int_equal(tt_tokenizer_size(t), 2048);
    assert_int_equal(tt_tokenizer_id(t, "<|im_end|>"), 2047);
    assert_int_equal(tt_tokenizer_id(t, "\xC4\xA0t"), 256); /* the first merge, "Gt" with a space's stand-in */
    assert_int_equal(tt_tokenizer_id(t, "no such token"), -1);
    assert_true(tt_tokenizer_is_added(t, 2045));
    assert_false(tt_tokenizer_is_added(t, 256));
    assert_false(tt_tokenizer_is_added(t, -1));
    assert_string_equal(tt_tokenizer_special(t, "eos_token"), "<|im_end|>");
    assert_null(tt_tokenizer_special(t, "bos_token"));
    assert_null(tt_tokenizer_special(t, "no such role"));
    assert_string_equal(tt_tokenizer_folder(t), "tests/fixtures/tokenizers/small");
    char *text;
    size_t bytes;
    assert_error(tt_tokenizer_decode(t, &(int32_t){2048}, 1, false, &text, &bytes), TT_EDATA, "2048");
    assert_error(tt_tokenizer_decode(t, &(int32_t){-1}, 1, false, &text, &bytes), TT_EDATA, "-1");
    assert_ok(tt_tokenizer_decode(t, NULL, 0, false, &text, &bytes));
    assert_int_equal(bytes, 0);
    assert_string_equal(text, "");
    free(text);
    tt_tokenizer_destroy(&t);
    tt_tokenizer_destroy(&t); /* accepts NULL */
}

/* A folder with the small tokenizer and this configuration. */
static const char *folder_with(const char *config, const char *template)
{
    static char folder[1024];
    char path[1200];
    snprintf(folder, sizeof folder, "%s", test_folder("tokenizer"));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_ok(tt_file_copy(test_fixture("tokenizers/small/tokenizer.json"), path));
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    if (config) assert_ok(tt_file_write_all(path, config, strlen(config)));
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    if (template) assert_ok(tt_file_write_all(path, template, strlen(template)));
    return folder;
}

static void the_configuration_names_tokens_and_templates(void **state)
{
    (void)state;
    tt_tokenizer *t;
    assert_ok(tt_tokenizer_load(folder_with(NULL, NULL), &t));
    assert_null(tt_tokenizer_chat_template(t, false));
    assert_null(tt_tokenizer_special(t, "eos_token"));
    tt_tokenizer_destroy(&t);
    const char *config = "{\"bos_token\":{\"content\":\"<s>\"},\"pad_token\":null,\"model_max_length\":1e30,"
                         "\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},"
                         "{\"name\":\"tool_use\",\"template\":\"T\"},{\"name\":\"rag\",\"template\":\"R\"}],"
                         "\"added_tokens_decoder\":{\"2047\":{\"content\":\"<|im_end|>\",\"special\":true},"
                         "\"3000\":{\"content\":\"<extra>\",\"lstrip\":true}}}";
    assert_ok(tt_tokenizer_load(folder_with(config, NULL), &t));
    assert_string_equal(tt_tokenizer_special(t, "bos_token"), "<s>");
    assert_null(tt_tokenizer_special(t, "pad_token"));
    assert_string_equal(tt_tokenizer_chat_template(t, false), "D");
    assert_string_equal(tt_tokenizer_chat_template(t, true), "T");
    assert_int_equal(tt_tokenizer_size(t), 3001);
    tt_encoding e = {0};
    assert_ok(tt_tokenizer_encode(t, "a  <extra>", 10, false, &e));
    assert_int_equal(e.count, 2);
    assert_int_equal(e.ids[1], 3000);
    assert_int_equal(e.begin[1], 1);
    tt_encoding_free(&e);
    tt_tokenizer_destroy(&t);
    assert_ok(tt_tokenizer_load(folder_with(config, "from the file\n"), &t));
    assert_string_equal(tt_tokenizer_chat_template(t, true), "from the file\n");
    tt_tokenizer_destroy(&t);
    char path[1200];
    snprintf(path, sizeof path, "%s/additional_chat_templates", folder_with(config, "D file"));
    assert_ok(tt_dir_create(path));
    strcat(path, "/tool_use.jinja");
    assert_ok(tt_file_write_all(path, "T file", 6));
    *strstr(path, "/additional") = 0;
    assert_ok(tt_tokenizer_load(path, &t));
    assert_string_equal(tt_tokenizer_chat_template(t, false), "D file");
    assert_string_equal(tt_tokenizer_chat_template(t, true), "T file");
    tt_tokenizer_destroy(&t);
}

static void bad_configurations_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config, *message;
    } bad[] = {
        {"[]", "tokenizer_config.json: the file holds array"},
        {"{\"eos_token\":3}", "eos_token"},
        {"{\"eos_token\":{\"content\":[]}}", "eos_token"},
        {"{\"eos_token\":\"a\\u0000b\"}", "NUL"},
        {"{\"chat_template\":7}", "chat_template"},
        {"{\"chat_template\":[{\"name\":\"default\"}]}", "chat_template.template"},
        {"{\"added_tokens_decoder\":{\"x\":{\"content\":\"a\"}}}", "'x'"},
        {"{\"added_tokens_decoder\":{\"99999999999999999999\":{\"content\":\"a\"}}}", "expected an id"},
        {"{\"added_tokens_decoder\":{\"5\":{\"content\":\"<|im_end|>\"}}}", "2047"},
        {"{\"added_tokens_decoder\":{\"5\":{\"content\":\"new\"}}}", "which the vocabulary gives to"},
        {"{\"added_tokens_decoder\":{\"5000\":{}}}", "5000.content"},
    };
    tt_tokenizer *t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(tt_tokenizer_load(folder_with(bad[i].config, NULL), &t), TT_EFORMAT, bad[i].message);
    assert_error(tt_tokenizer_load(folder_with(NULL, "\xFF"), &t), TT_EFORMAT, "chat_template.jinja");
    assert_error(tt_tokenizer_load("tests/fixtures/no-such-folder", &t), TT_EIO, "tokenizer.json");
}

/* --- threads ---------------------------------------------------------------------------------- */

typedef struct job {
    const tt_tokenizer *t;
    tt_encoding all;
    tt_status status;
} job;

static void encode_row(void *user, int line, const json_t *row)
{
    job *j = user;
    size_t bytes;
    (void)line;
    const char *text = string_of(row, "text", &bytes);
    if (j->status == TT_OK) j->status = tt_tokenizer_encode(j->t, text, bytes, true, &j->all);
}

static void *encode_all(void *user)
{
    for (int i = 0; i < 3; i++) for_each_line("tests/fixtures/sft/tokenizer/encode-small.jsonl", encode_row, user);
    return NULL;
}

static void threads_share_one_tokenizer(void **state)
{
    (void)state;
    tt_tokenizer *t = load_small();
    job alone = {.t = t}, pair[2] = {{.t = t}, {.t = t}};
    pthread_t threads[2];
    encode_all(&alone);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &pair[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pair[i].status, TT_OK);
        assert_int_equal(pair[i].all.count, alone.all.count);
        assert_memory_equal(pair[i].all.ids, alone.all.ids, (size_t)alone.all.count * sizeof *alone.all.ids);
        assert_memory_equal(pair[i].all.end, alone.all.end, (size_t)alone.all.count * sizeof *alone.all.end);
        tt_encoding_free(&pair[i].all);
    }
    assert_true(alone.all.count > 10000);
    tt_encoding_free(&alone.all);
    tt_tokenizer_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_gives_the_frozen_ids),
        cmocka_unit_test(neox_gives_the_frozen_ids),
        cmocka_unit_test(glm_gives_the_frozen_ids),
        cmocka_unit_test(qwen3_gives_the_frozen_ids),
        cmocka_unit_test(encoding_appends_and_keeps_what_was_there_on_failure),
        cmocka_unit_test(invalid_utf8_is_refused_with_its_place),
        cmocka_unit_test(names_and_ids_agree),
        cmocka_unit_test(the_configuration_names_tokens_and_templates),
        cmocka_unit_test(bad_configurations_are_refused),
        cmocka_unit_test(threads_share_one_tokenizer),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
