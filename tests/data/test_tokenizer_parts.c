/* The parts of a tokenizer one by one: frozen behaviour of every component, split tables, edge cases. */
#define TOKENIZER_FOLDER "tokenizer_parts"
#include "data/tokenizer_support.h"

#include "base/file.h"
#include "base/json.h"

/* The ids of text, read as bytes, must be `expected`: what normalizer and splits leave of it. */
static void expect_bytes(const parts *p, const char *text, const char *expected)
{
    tt_tokenizer *t;
    tt_encoding e = {0};
    char bytes[256] = {0};
    assert_ok(load_parts(p, &t));
    assert_ok(tt_tokenizer_encode(t, text, strlen(text), false, &e));
    assert_true(e.count < 256);
    for (int64_t i = 0; i < e.count; i++) bytes[i] = (char)e.ids[i];
    assert_string_equal(bytes, expected);
    tt_encoding_free(&e);
    tt_tokenizer_destroy(&t);
}

/* --- frozen behaviour of every component ------------------------------------------------------ */

static int64_t byte_of(const char *text, int64_t code_point)
{
    int64_t at = 0;
    for (; code_point > 0; code_point--) do
            at++;
        while (tt_u8_inside(text[at]));
    return at;
}

static void check_case(const char *name, const tt_tokenizer *t, const json_t *row)
{
    const json_t *text = json_array_get(row, 0), *ids = json_array_get(row, 2), *ranges = json_array_get(row, 3);
    const json_t *decoded = json_array_get(row, 4);
    const char *s = json_string_value(text);
    tt_encoding e = {0};
    assert_ok(tt_tokenizer_encode(t, s, json_string_length(text), json_is_true(json_array_get(row, 1)), &e));
    if (e.count != (int64_t)json_array_size(ids))
        fail_msg("%s: '%s' has %lld ids, expected %zu", name, s, (long long)e.count, json_array_size(ids));
    for (int64_t i = 0; i < e.count; i++) {
        const json_t *range = json_array_get(ranges, (size_t)i);
        int64_t id = json_integer_value(json_array_get(ids, (size_t)i));
        int64_t begin = byte_of(s, json_integer_value(json_array_get(range, 0)));
        int64_t end = byte_of(s, json_integer_value(json_array_get(range, 1)));
        if (e.ids[i] != id || e.begin[i] != begin || e.end[i] != end)
            fail_msg("%s: '%s': number %lld is %d at [%lld, %lld), expected %lld at [%lld, %lld)", name, s,
                     (long long)i, e.ids[i], (long long)e.begin[i], (long long)e.end[i], (long long)id,
                     (long long)begin, (long long)end);
    }
    if (json_is_string(decoded)) {
        char *out;
        size_t bytes;
        assert_ok(tt_tokenizer_decode(t, e.ids, e.count, false, &out, &bytes));
        if (bytes != json_string_length(decoded) || memcmp(out, json_string_value(decoded), bytes) != 0)
            fail_msg("%s: '%s' decodes to '%s', expected '%s'", name, s, out, json_string_value(decoded));
        free(out);
    }
    tt_encoding_free(&e);
}

/* The base file with the changes of one line. */
static json_t *changed_file(const json_t *line)
{
    const char *base = json_string_value(json_object_get(line, "base")), *key;
    char name[200];
    json_t *file = json_object(), *value;
    if (base) {
        json_decref(file);
        snprintf(name, sizeof name, "tokenizers/%s/tokenizer.json", base);
        assert_ok(tt_json_load(test_fixture(name), 1 << 20, &file));
    }
    json_object_foreach(json_object_get(line, "change"), key, value)
    {
        if (base && strcmp(key, "model") == 0)
            json_object_update(json_object_get(file, key), value);
        else
            json_object_set(file, key, value);
    }
    return file;
}

static void check_variant(const json_t *line)
{
    const char *name = json_string_value(json_object_get(line, "name"));
    json_t *file = changed_file(line);
    char *text = json_dumps(file, JSON_COMPACT);
    tt_tokenizer *t;
    tt_status status = load_text(text, strlen(text), &t);
    if (status != TT_OK) fail_msg("%s: %s", name, tt_error_text());
    const json_t *cases = json_object_get(line, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) check_case(name, t, json_array_get(cases, i));
    tt_tokenizer_destroy(&t);
    free(text);
    json_decref(file);
}

static void every_component_gives_the_frozen_ids_and_ranges(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    int lines = 0;
    assert_ok(tt_file_read_all(test_fixture("tokenizers/variants.jsonl"), 16 << 20, &text, &bytes));
    for (char *p = text, *end; p < text + bytes; p = end + 1, lines++) {
        json_t *line;
        end = memchr(p, '\n', (size_t)(text + bytes - p));
        assert_non_null(end);
        assert_ok(tt_json_parse(p, (size_t)(end - p), "variants.jsonl", &line));
        check_variant(line);
        json_decref(line);
    }
    assert_int_equal(lines, 56);
    free(text);
}

/* --- split patterns --------------------------------------------------------------------------- */

/* Split steps from a list of patterns, each Isolated. */
static size_t steps_of(const json_t *patterns, tt_split_step *steps)
{
    size_t n = json_array_size(patterns);
    for (size_t i = 0; i < n; i++) {
        const json_t *p = json_array_get(patterns, i);
        steps[i] = (tt_split_step){.kind = TT_SPLIT_PATTERN, .behavior = TT_ISOLATED};
        assert_ok(tt_regex_compile(json_string_value(p), json_string_length(p), "test", &steps[i].pattern.regex));
    }
    return n;
}

static void check_pieces(const char *name, const tt_context *c, const json_t *text, const json_t *expected)
{
    const char *s = json_string_value(text);
    if (c->pieces.count != json_array_size(expected))
        fail_msg("%s: '%s' falls into %zu pieces, expected %zu", name, s, c->pieces.count, json_array_size(expected));
    for (size_t i = 0; i < c->pieces.count; i++) {
        tt_piece p = c->pieces.items[i];
        const json_t *piece = json_array_get(expected, i);
        if (p.end - p.begin != json_string_length(piece) ||
            memcmp(s + p.begin, json_string_value(piece), p.end - p.begin) != 0)
            fail_msg("%s: '%s': piece %zu is '%.*s', expected '%s'", name, s, i, (int)(p.end - p.begin), s + p.begin,
                     json_string_value(piece));
    }
}

static void patterns_split_as_tabled(void **state)
{
    (void)state;
    json_t *file, *patterns;
    const char *name;
    tt_context *c;
    assert_ok(tt_json_load(test_fixture("tokenizers/splits.json"), 1 << 20, &file));
    assert_ok(tt_context_create(&c));
    const json_t *rows = json_object_get(file, "rows");
    json_object_foreach(json_object_get(file, "patterns"), name, patterns)
    {
        tt_split_step steps[4];
        size_t count = steps_of(patterns, steps);
        for (size_t i = 0; i < json_array_size(rows); i++) {
            const json_t *row = json_array_get(rows, i), *text = json_object_get(row, "text");
            tt_view v = {json_string_value(text), json_string_length(text), NULL, 0};
            assert_ok(tt_split(steps, count, c, &v));
            check_pieces(name, c, text, json_object_get(row, name));
        }
        for (size_t i = 0; i < count; i++) tt_regex_destroy(&steps[i].pattern.regex);
    }
    tt_context_destroy(&c);
    json_decref(file);
}

static void patterns_outside_the_subset_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const bad[][2] = {{"^a", "^"},
                                         {"a$", "$"},
                                         {"\\ha", "\\h"},
                                         {"(a)\\1", "\\1"},
                                         {"[a[bc]]", "class inside a class"},
                                         {"[a&&b]", "inters"},
                                         {"(?m:a)", "(?"},
                                         {"(*UTF)a", "verb"},
                                         {"a{,3}", "{,n}"},
                                         {"a{1,2}+", "{n}+"},
                                         {"[\\Wa]", "\\W"},
                                         {"\\R", "\\R"},
                                         {"a\\", "backslash"},
                                         {"(a", "missing"},
                                         {"\\p{NoSuch}", "not supported"},
                                         {"[]a]", "empty"},
                                         {"\\p{L", "brace"},
                                         {"\\u12", "\\u"},
                                         {"[a", "missing"},
                                         {"(?<n>a)", "(?"}};
    tt_regex *r = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_error(tt_regex_compile(bad[i][0], strlen(bad[i][0]), "x.json", &r), TT_EFORMAT, bad[i][1]);
    assert_error(tt_regex_compile("a\0b", 3, "x.json", &r), TT_EFORMAT, "NUL");
    assert_null(r);
}

static void patterns_that_backtrack_without_bound_stop(void **state)
{
    (void)state;
    tt_regex *r;
    tt_regex_scratch *s;
    char text[200];
    bool found;
    size_t begin, end;
    memset(text, 'a', sizeof text);
    assert_ok(tt_regex_compile("(a+)+[bc]", 9, "x.json", &r));
    assert_ok(tt_regex_scratch_create(&s));
    assert_error(tt_regex_find(r, s, text, sizeof text, 0, &found, &begin, &end), TT_EDATA, "200 bytes");
    tt_regex_scratch_destroy(&s);
    tt_regex_destroy(&r);
}

/* Every pattern of the table on texts that are one long run, or nearly so: the pieces must cover the text,
 * and the whole must end in seconds (each text is a million characters). */
static void long_runs_split_in_linear_time(void **state)
{
    (void)state;
    enum { RUN = 1000000 };
    static const char *const units[] = {" ", "a", "^", "A", "1", "\n", " \n", "\xE4\xBD\xA0", "e\xCC\x81", " ^"};
    json_t *file, *patterns;
    const char *name;
    tt_context *c;
    char *text = malloc(3 * RUN + 1);
    assert_non_null(text);
    assert_ok(tt_json_load(test_fixture("tokenizers/splits.json"), 1 << 20, &file));
    assert_ok(tt_context_create(&c));
    json_object_foreach(json_object_get(file, "patterns"), name, patterns)
    {
        tt_split_step steps[4];
        size_t count = steps_of(patterns, steps);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            size_t n = strlen(units[u]), bytes = 0, at = 0;
            for (; bytes < RUN; bytes += n) memcpy(text + bytes, units[u], n);
            text[bytes++] = 'x';
            tt_view v = {text, bytes, NULL, 0};
            assert_ok(tt_split(steps, count, c, &v));
            for (size_t i = 0; i < c->pieces.count; at = c->pieces.items[i++].end)
                assert_int_equal(c->pieces.items[i].begin, at);
            assert_int_equal(at, bytes);
        }
        for (size_t i = 0; i < count; i++) tt_regex_destroy(&steps[i].pattern.regex);
    }
    tt_context_destroy(&c);
    json_decref(file);
    free(text);
}

/* --- edge cases ------------------------------------------------------------------------------- */

static void merges_go_from_left_to_right(void **state)
{
    (void)state;
    tt_tokenizer *t;
    assert_ok(load_parts(&(parts){.vocab = ",\"aa\":300", .merges = "[\"a\",\"a\"]"}, &t));
    expect_ids(t, "aaaaa", "300 300 97");
    expect_ids(t, "aaaaa", "300 300 97"); /* from the cache */
    expect_ids(t, "aaa", "300 97");
    expect_ids(t, "", "");
    expect_ids(t, "\0a", "0 97");
    assert_int_equal(tt_tokenizer_size(t), 301); /* with a hole */
    char *text;
    size_t bytes;
    assert_error(tt_tokenizer_decode(t, &(int32_t){299}, 1, false, &text, &bytes), TT_EDATA, "299");
    tt_tokenizer_destroy(&t);
}

static void both_forms_of_merges_are_read(void **state)
{
    (void)state;
    static const parts forms[] = {
        {.vocab = ",\"ab\":300,\"abc\":301", .merges = "\"#version: 0.2\",\"a b\",\"ab c\""},
        {.vocab = ",\"ab\":300,\"abc\":301", .merges = "[\"a\",\"b\"] , [\"ab\" , \"c\"]"},
        {.vocab = ",\"\\u0061b\":300,\"ab\\u0063\":301", .merges = "[\"\\u0061\",\"b\"],[\"ab\",\"\\u0063\"]"}};
    for (int i = 0; i < 3; i++) {
        tt_tokenizer *t;
        assert_ok(load_parts(&forms[i], &t));
        expect_ids(t, "abcab", "301 300");
        tt_tokenizer_destroy(&t);
    }
    tt_tokenizer *t; /* tokens that hold a space need pairs; without ByteLevel a space is a character */
    parts spaced = {
        .pre = "null", .vocab = ",\" \":300,\"a \":301,\"a b\":302", .merges = "[\"a\",\" \"],[\"a \",\"b\"]"};
    assert_ok(load_parts(&spaced, &t));
    expect_ids(t, "a bab", "302 97 98");
    tt_tokenizer_destroy(&t);
}

static void a_pair_listed_twice_keeps_its_later_rank(void **state)
{
    (void)state;
    tt_tokenizer *t;
    parts p = {.vocab = ",\"ab\":300,\"bc\":301", .merges = "\"a b\",\"b c\",\"a b\""};
    assert_ok(load_parts(&p, &t));
    expect_ids(t, "abc", "97 301");
    tt_tokenizer_destroy(&t);
}

static void whole_pieces_are_looked_up_when_merges_are_ignored(void **state)
{
    (void)state;
    static const char *const models[] = {",\"ignore_merges\":true", ",\"ignore_merges\":false"};
    static const char *const expected[] = {"300 32 120 121", "120 121 32 120 121"};
    for (int i = 0; i < 2; i++) {
        tt_tokenizer *t;
        assert_ok(load_parts(&(parts){.pre = GPT2_SPLIT, .vocab = ",\"xy\":300", .model = models[i]}, &t));
        expect_ids(t, "xy xy", expected[i]);
        tt_tokenizer_destroy(&t);
    }
}

static void unknown_characters_are_no_silence(void **state)
{
    (void)state;
    tt_tokenizer *t;
    tt_encoding e = {0};
    assert_ok(load_parts(&(parts){.pre = "null"}, &t));
    assert_error(tt_tokenizer_encode(t, "a\xE4\xBD\xA0", 4, false, &e), TT_EDATA, "\xE4\xBD\xA0");
    tt_tokenizer_destroy(&t);
    parts unknown = {.pre = "null", .vocab = ",\"<?>\":300", .model = ",\"unk_token\":\"<?>\",\"fuse_unk\":true"};
    assert_ok(load_parts(&unknown, &t));
    expect_ids(t,
               "a\xE4\xBD\xA0\xE5\xA5\xBD"
               "b",
               "97 300 98");
    tt_tokenizer_destroy(&t);
}

static void added_tokens_match_before_everything_else(void **state)
{
    (void)state;
    tt_tokenizer *t;
    parts p = {
        .pre = GPT2_SPLIT,
        .added =
            ADDED(400, "<|im_end|>", ",\"special\":true") "," ADDED(401, "foo", ",\"single_word\":true") "," ADDED(
                402, "<r>", ",\"rstrip\":true") "," ADDED(403, "<l>", ",\"lstrip\":true") "," ADDED(404, "", "")};
    assert_ok(load_parts(&p, &t));
    expect_ids(t, "f<|im_end|>b", "102 400 98");
    expect_ids(t, "<|im_end|", "60 124 105 109 95 101 110 100 124");
    expect_ids(t, "foo foofoo foo", "401 32 102 111 111 102 111 111 32 401");
    expect_ids(t, "foo\xCC\x81 (foo)", "102 111 111 204 129 32 40 401 41");
    expect_ids(t, "<r>  \n\xE3\x80\x80x", "402 120");
    expect_ids(t, "x \t<l>y<r>  <l>", "120 403 121 402 403");
    assert_int_equal(tt_tokenizer_size(t), 404); /* the empty token is none */
    tt_tokenizer_destroy(&t);
}

static void the_leftmost_longest_token_wins(void **state)
{
    (void)state;
    tt_tokenizer *t;
    parts p = {.added = ADDED(400, "ab", "") "," ADDED(401, "abcd", "") "," ADDED(402, "bc", "") "," ADDED(
                   403, "cdx", "") "," ADDED(100, "d", "")};
    assert_ok(load_parts(&p, &t));
    expect_ids(t, "abcd", "401");
    expect_ids(t, "abcx", "400 99 120");
    expect_ids(t, "abcdx", "401 120");
    expect_ids(t, "bcdx", "402 100 120");
    expect_ids(t, "acdx", "97 403");
    tt_tokenizer_destroy(&t);
}

static void runs_of_spaces_go_to_the_longest_token(void **state)
{
    (void)state;
    tt_tokenizer *t;
    char text[64];
    assert_ok(tt_tokenizer_load(test_fixture("tokenizers/neox"), &t));
    int32_t two = tt_tokenizer_id(t, "  "), most = tt_tokenizer_id(t, "                        ");
    int32_t b = tt_tokenizer_id(t, "\xC4\xA0"
                                   "b");
    assert_true(two >= 0 && most >= 0 && b >= 0);
    tt_encoding e = {0};
    assert_ok(tt_tokenizer_encode(t, "a  b", 4, false, &e));
    assert_int_equal(e.ids[1], two);
    e.count = 0;
    snprintf(text, sizeof text, "a%25sb", "");
    assert_ok(tt_tokenizer_encode(t, text, strlen(text), false, &e));
    assert_int_equal(e.count, 3);
    assert_int_equal(e.ids[1], most);
    assert_int_equal(e.ids[2], b);
    e.count = 0;
    snprintf(text, sizeof text, "a%26sb", "");
    assert_ok(tt_tokenizer_encode(t, text, strlen(text), false, &e));
    assert_int_equal(e.count, 4);
    assert_int_equal(e.ids[1], most);
    assert_int_equal(e.ids[2], two);
    tt_encoding_free(&e);
    tt_tokenizer_destroy(&t);
}

static void normal_forms_follow_unicode(void **state)
{
    (void)state;
    static const char *const nfc[][2] = {
        {"e\xCC\x81", "\xC3\xA9"},                     /* e, acute */
        {"\xE2\x84\xAB", "\xC3\x85"},                  /* angstrom sign */
        {"\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"},  /* U+0958, excluded from composition */
        {"\xE2\x84\xA6", "\xCE\xA9"},                  /* ohm sign */
        {"\xCD\x84", "\xCC\x88\xCC\x81"},              /* U+0344 */
        {"\xE1\x84\x80\xE1\x85\xA1", "\xEA\xB0\x80"},  /* Hangul L V */
        {"\xEA\xB0\x80\xE1\x86\xA8", "\xEA\xB0\x81"},  /* Hangul LV T */
        {"a\xCC\x87\xCC\xA3", "\xE1\xBA\xA1\xCC\x87"}, /* marks out of order */
        {"\xEF\xAC\x81", "\xEF\xAC\x81"},              /* ligature fi stays */
        {"e\xCC\x81 \xE4\xBD\xA0 o\xCC\x88", "\xC3\xA9 \xE4\xBD\xA0 \xC3\xB6"}};
    for (size_t i = 0; i < sizeof nfc / sizeof *nfc; i++)
        expect_bytes(&(parts){.normalizer = "{\"type\":\"NFC\"}"}, nfc[i][0], nfc[i][1]);
    expect_bytes(&(parts){.normalizer = "{\"type\":\"NFKC\"}"}, "\xEF\xAC\x81\xE2\x91\xA0", "fi1");
    expect_bytes(&(parts){.normalizer = "{\"type\":\"NFD\"}"}, "\xEA\xB0\x81",
                 "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8");
    expect_bytes(&(parts){.normalizer = "{\"type\":\"Lowercase\"}"}, "A\xC4\xB0\xC3\x89", "ai\xCC\x87\xC3\xA9");
}

static void normalizers_leave_alone_what_does_not_match(void **state)
{
    (void)state;
    tt_tokenizer *t;
    parts p = {.normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\p{S}\"},\"content\":\"\"}",
               .vocab = ",\"me\":300,\"metas\":301,\"ta\":302,\"tas\":303",
               .merges = "\"m e\",\"t a\",\"ta s\",\"me tas\""};
    assert_ok(load_parts(&p, &t));
    expect_ids(t, "metas", "301");
    expect_ids(t, "me$tas", "301");
    tt_tokenizer_destroy(&t);
    expect_bytes(&(parts){.normalizer = "{\"type\":\"Prepend\",\"prepend\":\"_\"}"}, "", "");
    expect_bytes(&(parts){.normalizer = "{\"type\":\"Strip\"}"},
                 " \xE3\x80\x80"
                 "a b\n",
                 "a b");
}

static void normalized_tokens_match_normalized_text(void **state)
{
    (void)state;
    tt_tokenizer *t;
    parts p = {.normalizer = "{\"type\":\"NFC\"}",
               .added = ADDED(400, "\xC3\xA9z", ",\"normalized\":true") "," ADDED(401, "e\xCC\x81q",
                                                                                  ",\"normalized\":false")};
    assert_ok(load_parts(&p, &t));
    expect_ids(t, "e\xCC\x81z", "400");
    expect_ids(t, "\xC3\xA9z", "400");
    expect_ids(t, "e\xCC\x81q", "401");
    expect_ids(t, "\xC3\xA9q", "195 169 113");
    tt_tokenizer_destroy(&t);
}

static void a_template_surrounds_the_ids_only_when_asked(void **state)
{
    (void)state;
    tt_tokenizer *t;
    parts p = {
        .post = "{\"type\":\"Sequence\",\"processors\":[" BYTES_ONLY ",{\"type\":\"TemplateProcessing\",\"single\":["
                "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
                "\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[400],\"tokens\":[\"<s>\"]}}}]}",
        .added = ADDED(400, "<s>", ",\"special\":true")};
    assert_ok(load_parts(&p, &t));
    assert_string_equal(ids_of(t, "ab", 2, true), "400 97 98");
    assert_string_equal(ids_of(t, "ab", 2, false), "97 98");
    assert_string_equal(ids_of(t, "", 0, true), "400");
    char *text;
    size_t bytes;
    int32_t ids[] = {400, 97, 0xE4, 0xBD, 98};
    assert_ok(tt_tokenizer_decode(t, ids, 5, true, &text, &bytes));
    assert_string_equal(text, "a\xEF\xBF\xBD"
                              "b"); /* two bytes of a character: one U+FFFD */
    free(text);
    tt_tokenizer_destroy(&t);
}

static void one_huge_piece_is_no_trouble(void **state)
{
    (void)state;
    enum { RUN = 524288 };
    tt_tokenizer *t;
    tt_encoding e = {0};
    char *text = malloc(RUN);
    assert_non_null(text);
    memset(text, 'a', RUN);
    parts p = {.vocab = ",\"aa\":300,\"aaaa\":301,\"aaaaaaaa\":302",
               .merges = "\"a a\",\"aa aa\",\"aaaa aaaa\"",
               .added = ADDED(400, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "")};
    assert_ok(load_parts(&p, &t));
    assert_ok(tt_tokenizer_encode(t, text, RUN, false, &e));
    assert_int_equal(e.count, RUN / 8);
    for (int64_t i = 0; i < e.count; i++) assert_int_equal(e.ids[i], 302);
    assert_int_equal(e.end[e.count - 1], RUN);
    for (int i = 0; i < RUN; i++) text[i] = i % 4 < 2 ? (char)"\xCC\xA3"[i % 2] : (char)"\xCC\x81"[i % 2];
    tt_encoding_free(&e);
    tt_tokenizer_destroy(&t);
    assert_ok(load_parts(&(parts){.normalizer = "{\"type\":\"NFC\"}"}, &t)); /* a run of marks to be sorted */
    assert_ok(tt_tokenizer_encode(t, text, RUN, false, &e));
    assert_int_equal(e.count, RUN);
    assert_int_equal(e.ids[RUN / 2 - 1], 0xA3);
    assert_int_equal(e.ids[RUN / 2 + 1], 0x81);
    tt_encoding_free(&e);
    tt_tokenizer_destroy(&t);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_component_gives_the_frozen_ids_and_ranges),
        cmocka_unit_test(patterns_split_as_tabled),
        cmocka_unit_test(patterns_outside_the_subset_are_refused_by_name),
        cmocka_unit_test(patterns_that_backtrack_without_bound_stop),
        cmocka_unit_test(long_runs_split_in_linear_time),
        cmocka_unit_test(merges_go_from_left_to_right),
        cmocka_unit_test(both_forms_of_merges_are_read),
        cmocka_unit_test(a_pair_listed_twice_keeps_its_later_rank),
        cmocka_unit_test(whole_pieces_are_looked_up_when_merges_are_ignored),
        cmocka_unit_test(unknown_characters_are_no_silence),
        cmocka_unit_test(added_tokens_match_before_everything_else),
        cmocka_unit_test(the_leftmost_longest_token_wins),
        cmocka_unit_test(runs_of_spaces_go_to_the_longest_token),
        cmocka_unit_test(normal_forms_follow_unicode),
        cmocka_unit_test(normalizers_leave_alone_what_does_not_match),
        cmocka_unit_test(normalized_tokens_match_normalized_text),
        cmocka_unit_test(a_template_surrounds_the_ids_only_when_asked),
        cmocka_unit_test(one_huge_piece_is_no_trouble),
    };
    return cmocka_run_group_tests_name("tokenizer parts", tests, NULL, NULL);
}
