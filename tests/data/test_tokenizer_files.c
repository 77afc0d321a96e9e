/* Broken tokenizer.json files: unsupported, inconsistent, truncated, nested, scratched. */
#define TOKENIZER_FOLDER "tokenizer_files"
#include "data/tokenizer_support.h"

static void unsupported_components_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        parts p;
        const char *message;
    } bad[] = {
        {{.normalizer = "{\"type\":\"BertNormalizer\"}"}, "'BertNormalizer'"},
        {{.normalizer = "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"\"}"}, "'Precompiled'"},
        {{.normalizer = "{\"type\":\"Nmt\"}"}, "'Nmt'"},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"ByteLevel\"}]}"}, "'ByteLevel'"},
        {{.normalizer = "{\"type\":\"Sequence\",\"normalizers\":{}}"}, "normalizers"},
        {{.normalizer = "[]"}, "normalizer is array"},
        {{.normalizer = "{}"}, "type"},
        {{.normalizer = "{\"type\":\"Prepend\"}"}, "prepend"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":\"x\",\"content\":\"\"}"}, "pattern"},
        {{.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}"}, "Replace"},
        {{.pre = "{\"type\":\"UnicodeScripts\"}"}, "'UnicodeScripts'"},
        {{.pre = "{\"type\":\"BertPreTokenizer\"}"}, "'BertPreTokenizer'"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Sideways\"}"}, "'Sideways'"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"}}"}, "behavior"},
        {{.pre = "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\",\"Regex\":\"b\"},\"behavior\":"
                 "\"Isolated\"}"},
         "pattern"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTES_ONLY ",{\"type\":\"WhitespaceSplit\"}]}"},
         "last"},
        {{.pre = "{\"type\":\"Sequence\",\"pretokenizers\":[" BYTES_ONLY "," BYTES_ONLY "]}"}, "twice"},
        {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"}, "replacement"},
        {{.pre = "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"}, "'last'"},
        {{.pre = "{\"type\":\"ByteLevel\",\"use_regex\":1}"}, "use_regex"},
        {{.post = "{\"type\":\"BertProcessing\"}"}, "'BertProcessing'"},
        {{.post = "{\"type\":\"RobertaProcessing\"}"}, "'RobertaProcessing'"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[]}"}, "0 times"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"B\"}}]}"}, "'B'"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}]}"}, "'<s>'"},
        {{.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\"}},{"
                  "\"Sequence\":{\"id\":"
                  "\"A\"}}],\"special_tokens\":{\"s\":{\"ids\":[777]}}}"},
         "777"},
        {{.decoder = "{\"type\":\"WordPiece\"}"}, "'WordPiece'"},
        {{.decoder = "{\"type\":\"CTC\"}"}, "'CTC'"},
        {{.model = ",\"dropout\":0.1"}, "dropout"},
        {{.model = ",\"unk_token\":\"nowhere\""}, "'nowhere'"},
        {{.model = ",\"unk_token\":7"}, "unk_token"},
        {{.model = ",\"fuse_unk\":\"yes\""}, "fuse_unk"},
    };
    tt_tokenizer *t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(load_parts(&bad[i].p, &t), TT_EFORMAT, bad[i].message);
}

static void bad_vocabularies_and_merges_are_refused(void **state)
{
    (void)state;
    static const struct {
        parts p;
        const char *message;
    } bad[] = {
        {{.vocab = ",\"x1\":97"}, "two tokens"},
        {{.vocab = ",\"a\":300"}, "'a' is listed twice"},
        {{.vocab = ",\"\\u0061\":300"}, "'a' is listed twice"},
        {{.vocab = ",\"x1\":16777216"}, "16777216"},
        {{.vocab = ",\"x1\":99999999999999999999"}, "whole number"},
        {{.vocab = ",\"x1\":-1"}, "whole number"},
        {{.vocab = ",\"x1\":1.5"}, "whole number"},
        {{.vocab = ",\"x1\":1e3"}, "whole number"},
        {{.vocab = ",\"x1\":007"}, "whole number"},
        {{.vocab = ",\"x1\":\"300\""}, "whole number"},
        {{.vocab = ",\"x1\":[300]"}, "whole number"},
        {{.vocab = ",\"\\ud83d\":300"}, "surrogate"},
        {{.vocab = ",\"\\udc00\":300"}, "surrogate"},
        {{.vocab = ",\"\\x\":300"}, "escape"},
        {{.vocab = ",\"\\u00g0\":300"}, "hexadecimal"},
        {{.vocab = ",\"a\tb\":300"}, "end of a string"},
        {{.vocab = ",\"\xC3(\":300"}, "UTF-8"},
        {{.vocab = ",300:\"x\""}, "a string expected"},
        {{.vocab = ","}, "a string expected"},
        {{.merges = "\"a b\""}, "'ab'"},
        {{.merges = "[\"a\",\"nowhere\"]"}, "'nowhere'"},
        {{.merges = "[\"nowhere\",\"a\"]"}, "merge number 0"},
        {{.merges = "\"ab\""}, "one space"},
        {{.merges = "\"a b c\""}, "one space"},
        {{.vocab = ",\"ab\":300", .merges = "[\"a\",\"b\"],\"a b\""}, "pair"},
        {{.vocab = ",\"ab\":300", .merges = "\"a b\",[\"a\",\"b\"]"}, "a string expected"},
        {{.merges = "[\"a\",\"b\",\"c\"]"}, "two tokens"},
        {{.merges = "[\"a\"]"}, "second token"},
        {{.merges = "7"}, "pair"},
        {{.model = ",\"vocab\":{}"}, "vocab"},
        {{.model = ",\"continuing_subword_prefix\":\"##\"", .vocab = ",\"ab\":300", .merges = "\"a b\""}, "'##'"},
        {{.added = ADDED(400, "x1", "") "," ADDED(400, "y1", "")}, "two tokens"},
        {{.added = ADDED(400, "x1", "") "," ADDED(401, "x1", "")}, "twice"},
        {{.added = ADDED(97, "x1", "")}, "which the vocabulary gives to 'a'"},
        {{.added = ADDED(400, "a", "")}, "id 97"},
        {{.added = ADDED(-1, "x1", "")}, "-1"},
        {{.added = ADDED(16777216, "x1", "")}, "16777216"},
        {{.added = ADDED(4294967296, "x1", "")}, "4294967296"},
        {{.added = "{\"id\":400}"}, "content"},
        {{.added = "7"}, "added_tokens[0]"},
        {{.added = ADDED(400, "x1", ",\"lstrip\":3")}, "lstrip"},
    };
    tt_tokenizer *t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(load_parts(&bad[i].p, &t), TT_EFORMAT, bad[i].message);
}

static void bad_files_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"", "JSON"},
        {"[]", "the file holds array"},
        {"{}", "'model' is nothing"},
        {"{\"model\":[]}", "'model' is array"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "'Unigram'"},
        {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "'WordPiece'"},
        {"{\"model\":{\"vocab\":[],\"merges\":[]}}", "model.vocab is array"},
        {"{\"model\":{\"vocab\":{},\"merges\":{}}}", "model.merges is object"},
        {"{\"model\":{\"vocab\":{}}}", "model.merges is nothing"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]},\"model\":{}}", "duplicate"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}} x", "JSON"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]},\"added_tokens\":{}}", "added_tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0]},\"merges\":[]}}", "not valid JSON"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[}]}}", "not valid JSON"}};
    tt_tokenizer *t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(load_text(bad[i][0], strlen(bad[i][0]), &t), TT_EFORMAT, bad[i][1]);
    const char *least = "\xEF\xBB\xBF{\"model\":{\"merges\":[],\"vocab\":{}}}"; /* nothing in it, and a BOM */
    assert_ok(load_text(least, strlen(least), &t));
    expect_ids(t, "", "");
    tt_tokenizer_destroy(&t);
}

/* `open` n times, then `middle`, then `close` n times. */
static char *nested(const char *head, const char *open, const char *middle, const char *close, const char *tail,
                    int n)
{
    char *text =
        malloc(strlen(head) + strlen(middle) + strlen(tail) + (size_t)n * (strlen(open) + strlen(close)) + 1);
    assert_non_null(text);
    char *p = stpcpy(text, head);
    for (int i = 0; i < n; i++) p = stpcpy(p, open);
    p = stpcpy(p, middle);
    for (int i = 0; i < n; i++) p = stpcpy(p, close);
    stpcpy(p, tail);
    return text;
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    tt_tokenizer *t;
    static const struct {
        const char *head, *open, *middle, *close, *tail;
        int n;
        const char *message;
    } deep[] = {
        {"", "[", "", "]", "", 500000, "JSON"},
        {"{\"model\":{\"vocab\":", "{\"a\":", "1", "}", ",\"merges\":[]}}", 500000, "whole number"},
        {"{\"model\":{\"vocab\":{},\"merges\":", "[", "", "]", "}}", 500000, "a string expected"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]},\"normalizer\":", "{\"type\":\"Sequence\",\"normalizers\":[",
         "{\"type\":\"NFC\"}", "]}", "}", 100, "nested"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":", "{\"type\":\"Sequence\",\"pretokenizers\":[",
         "", "]}", "}", 100, "nested"}};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        char *text = nested(deep[i].head, deep[i].open, deep[i].middle, deep[i].close, deep[i].tail, deep[i].n);
        assert_error(load_text(text, strlen(text), &t), TT_EFORMAT, deep[i].message);
        free(text);
    }
}

/* A file with most components, for cutting and scratching. */
static char *rich_file(void)
{
    return file_of(&(parts){
        .normalizer =
            "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":{"
            "\"Regex\":"
            "\"\\\\s+\"},\"content\":\" \"},{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}]}",
        .pre = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{"
               "L}+|[^\\\\s\\\\p{L}]\"},"
               "\"behavior\":\"MergedWithNext\",\"invert\":false},{\"type\":\"Digits\"}," GPT2_SPLIT "]}",
        .post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{"
                "\"SpecialToken\":{\"id\":\"e\"}}],"
                "\"special_tokens\":{\"e\":{\"ids\":[400]}}}",
        .vocab = ",\"ab\":300,\"abc\":301",
        .merges = "[\"a\",\"b\"],[\"ab\",\"c\"]",
        .model = ",\"ignore_merges\":true,\"byte_fallback\":false",
        .added =
            ADDED(400, "<e>", ",\"special\":true") "," ADDED(401, "foo", ",\"single_word\":true,\"lstrip\":true")});
}

static void truncated_files_are_refused(void **state)
{
    (void)state;
    tt_tokenizer *t = NULL;
    char *text = rich_file();
    size_t bytes = strlen(text);
    for (size_t n = 0; n < bytes; n += n < 700 || n > 3000 ? 1 : 7) {
        tt_status status = load_text(text, n, &t);
        if (status != TT_EFORMAT) fail_msg("the first %zu of %zu bytes: %s", n, bytes, tt_status_name(status));
    }
    assert_ok(load_text(text, bytes, &t));
    tt_tokenizer_destroy(&t);
    free(text);
}

/* Scratched files either load, and then encode, or are refused: no crash, nothing for the sanitizers. */
static void scratched_files_do_no_harm(void **state)
{
    (void)state;
    static const char marks[] = "\"{}[],:\\0a9-\xFF ";
    char *text = rich_file(), *copy = malloc(strlen(text) + 1);
    size_t bytes = strlen(text);
    uint64_t seed = 12345;
    int loaded = 0;
    assert_non_null(copy);
    for (int round = 0; round < 2000; round++) {
        memcpy(copy, text, bytes);
        for (int k = 0; k <= round % 3; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            copy[(seed >> 20) % bytes] = marks[(seed >> 10) % (sizeof marks - 1)];
        }
        tt_tokenizer *t;
        tt_status status = load_text(copy, bytes, &t);
        if (status != TT_OK) {
            assert_int_equal(status, TT_EFORMAT);
            continue;
        }
        loaded++;
        tt_encoding e = {0};
        const char *line = "abc  foo <e>12 e\xCC\x81 \xF0\x9F\x91\xA9";
        (void)tt_tokenizer_encode(t, line, strlen(line), true, &e);
        tt_encoding_free(&e);
        tt_tokenizer_destroy(&t);
    }
    assert_true(loaded > 0);
    free(copy);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsupported_components_are_refused_by_name),
        cmocka_unit_test(bad_vocabularies_and_merges_are_refused),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(scratched_files_do_no_harm),
    };
    return cmocka_run_group_tests_name("tokenizer files", tests, NULL, NULL);
}
