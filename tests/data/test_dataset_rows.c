/* Rows that are refused, removed, counted or cut; the catalogue of public bugs (S-.., D-.. are its numbers). */
#include "data/support.h"

static tt_status load(const char *rows, const tt_prepare *p, tt_dataset **d)
{
    *d = NULL;
    return tt_dataset_load(write_text(rows), p, d);
}

static tt_dataset *load_ok(const char *rows, const tt_prepare *p)
{
    tt_dataset *d;
    assert_ok(load(rows, p, &d));
    return d;
}

static void expect_refused_with(const char *rows, const tt_prepare *p, tt_status status, const char *message)
{
    tt_dataset *d;
    assert_error(load(rows, p, &d), status, message);
    assert_null(d);
}

static void expect_refused(const char *rows, tt_status status, const char *message)
{
    tt_prepare p = defaults();
    expect_refused_with(rows, &p, status, message);
}

/* --- the trainer's list of refusals ----------------------------------------------------------------------------- */

static const struct outcome {
    const char *name;
    tt_status status;
    const char *message;
} outcomes[] = {
    {"conversations with role and content", TT_EDATA, "call the column `messages`"},
    {"prompt only", TT_EDATA, "has a prompt but no completion"},
    {"alpaca", TT_EDATA, "write instruction and input as `prompt`"},
    {"preference", TT_EDATA, "preference data"},
    {"empty conversation", TT_EDATA, "rows.jsonl:2: column 'messages' has no messages"},
    {"assistant_only_loss on text", TT_ECONFIG, "assistant_only_loss needs conversations"},
    {"assistant_only_loss, row without assistant", TT_EDATA, "rows.jsonl:2: assistant_only_loss finds no text"},
    {"assistant_only_loss, template unknown to TRL without markers", TT_ECONFIG, "chat_template_path"},
    {"eos_token not in vocabulary", TT_ECONFIG, "eos_token '<nope>' is not in the vocabulary"},
    {"images", TT_EDATA, "has a column 'image'"},
    {"content null", TT_EDATA, "rows.jsonl:2"},
    /* accepted by the trainer, which then trains nothing: */
    {"all rows lose their targets", TT_EDATA, "none of its 2 rows has anything to train"},
    {"all labels ignored, no max_length", TT_EDATA, "none of its 2 rows has anything to train"},
    /* refused by the trainer because it looks before it converts: */
    {"sharegpt with assistant_only_loss", TT_OK, ""},
    {"unknown roles", TT_OK, ""},
};

/* Not about the preparation of rows: keys of the configuration, packing, schedule. */
static const char *const not_about_rows[] = {
    "padding_free with max_length",
    "packing without max_length",
    "unknown loss_type",
    "loss_type chunked_nll",
    "unknown packing_strategy",
    "packing_strategy bfd-requeue",
    "unknown truncation_mode",
    "skip_prepare_dataset with masks",
    "fractional warm-up",
    "warmup_ratio",
    "router_aux_loss_coef unset",
};

static const struct outcome *find_outcome(const char *name)
{
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++)
        if (strcmp(outcomes[i].name, name) == 0) return &outcomes[i];
    for (size_t i = 0; i < sizeof not_about_rows / sizeof *not_about_rows; i++)
        if (strcmp(not_about_rows[i], name) == 0) return NULL;
    fail_msg("no expectation for '%s'", name);
    return NULL;
}

static void check_outcome(const struct outcome *o, const json_t *test)
{
    const json_t *config = json_object_get(test, "config"), *row;
    char text[2048], *source = NULL;
    size_t used = 0, i, bytes;
    tt_prepare p = defaults();
    p.max_length = json_integer_value(json_object_get(config, "max_length"));
    p.assistant_only_loss = json_is_true(json_object_get(config, "assistant_only_loss"));
    p.eos_token = json_string_value(json_object_get(config, "eos_token"));
    if (json_object_get(config, "chat_template_path"))
        assert_ok(tt_file_read_all(test_fixture("sft/template/chatml_plain.jinja"), 1 << 16, &source, &bytes));
    p.template_source = source;
    json_array_foreach(json_object_get(test, "rows"), i, row)
    {
        used += json_dumpb(row, text + used, sizeof text - used, 0);
        text[used++] = '\n';
    }
    text[used] = '\0';
    tt_dataset *d;
    if (o->status == TT_OK)
        assert_ok(load(text, &p, &d));
    else
        assert_error(load(text, &p, &d), o->status, o->message);
    tt_dataset_destroy(&d);
    free(source);
}

static void the_trainers_refusals(void **state)
{
    (void)state;
    json_t *tests = load_lines(test_fixture("sft/prepare/refused.jsonl")), *test;
    size_t i, checked = 0;
    json_array_foreach(tests, i, test)
    {
        const struct outcome *o = find_outcome(json_string_value(json_object_get(test, "name")));
        if (!o) continue;
        check_outcome(o, test);
        checked++;
    }
    assert_int_equal(checked, sizeof outcomes / sizeof *outcomes);
    json_decref(tests);
}

/* --- bad files and rows ----------------------------------------------------------------------------------------- */

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n"

static void bad_files(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    tt_dataset *d = NULL;
    assert_error(tt_dataset_load("tests/fixtures", &p, &d), TT_EFORMAT, "not a regular file");
    assert_error(tt_dataset_load("tests/no-such.jsonl", &p, &d), TT_EIO, "no-such.jsonl");
    expect_refused("", TT_EDATA, "has no rows");
    expect_refused("\n \n", TT_EDATA, "has no rows");
    expect_refused("[]", TT_EDATA, "has no rows");
    expect_refused(CHAT "{\"messages\":", TT_EFORMAT, "rows.jsonl:2: not valid JSON");
    expect_refused("[" CHAT ",", TT_EFORMAT, "the file ends inside its array");
    expect_refused("\n\n7\n", TT_EDATA, "rows.jsonl:3: the row is integer");
    expect_refused("[[1]]", TT_EDATA, "rows.jsonl:1: the row is array");
    expect_refused("{\"text\":\"\xFF\"}", TT_EFORMAT, "rows.jsonl:1");
}

static void bad_rows(void **state)
{
    (void)state;
    static const struct {
        const char *rows, *message;
    } cases[] = {
        {"{}", "no column 'text'"},
        {"{\"id\":1,\"body\":\"x\"}", "columns: id, body"},
        {"{\"text\":1}", "rows.jsonl:1: column 'text' is integer; expected a string"},
        {"{\"text\":null}", "no column 'text'"},
        {"{\"messages\":\"x\"}", "`messages` must be a list"},
        {"{\"messages\":[7]}", "messages[0] is integer"},
        {"{\"messages\":[{\"content\":\"a\"}]}", "messages[0]: 'role' is missing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":3}]}", "messages[0]: content is integer"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]}", "only text can be trained"},
        {"{\"conversations\":[]}", "column 'conversations' has no messages"},
        {"{\"prompt\":\"a\",\"completion\":[]}", "prompt is string and completion is array"},
        {"{\"prompt\":[],\"completion\":[]}", "column 'prompt' has no messages"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":[]}",
         "column 'completion' has no messages"},
        {"{\"prompt\":3,\"completion\":\"a\"}", "prompt is integer"},
        {"{\"text\":\"a\",\"images\":[]}", "has a column 'images'"},
        {"{\"text\":\"a\"}\n" CHAT, "rows.jsonl:2: this row is conversation (messages), but the first row is text"},
        {CHAT "{\"text\":\"a\"}", "rows.jsonl:2: this row is text, but the first row is conversation"},
        {"{\"input_ids\":7}", "column 'input_ids' is integer"},
        {"{\"input_ids\":[1,\"2\"]}", "input_ids[1] is string"},
        {"{\"input_ids\":[1,2.0]}", "input_ids[1] is real"},
        {"{\"input_ids\":[1,-1]}", "input_ids[1] is -1, outside of 0 to 2047"},
        {"{\"input_ids\":[2047,2048]}", "input_ids[1] is 2048, outside of 0 to 2047"},
        {"{\"input_ids\":[1,2],\"labels\":[1]}", "'labels' has 1 numbers, 'input_ids' has 2"},
        {"{\"input_ids\":[1,2],\"labels\":[1,-99]}", "labels[1] is -99"},
        {"{\"input_ids\":[1,2],\"labels\":[1,2048]}", "labels[1] is 2048"},
        {"{\"input_ids\":[1,2],\"labels\":{}}", "column 'labels' is object"},
        {"{\"input_ids\":[1,2],\"assistant_masks\":[1,2]}", "assistant_masks[1] is 2, outside of 0 to 1"},
        {"{\"input_ids\":[1,2],\"labels\":[1,2]}\n{\"input_ids\":[1,2]}",
         "rows.jsonl:2: the first row has a column 'labels'"},
        {"{\"input_ids\":[1,2]}\n{\"input_ids\":[1,2],\"labels\":[1,2]}", "the first row has no column 'labels'"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":7}", "column 'tools' is integer"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":[]}",
         "'chat_template_kwargs' is array"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{\"messages\":[]}}",
         "chat_template_kwargs sets 'messages'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i].rows, TT_EDATA, cases[i].message);
    expect_refused("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":\"[\"}", TT_EFORMAT,
                   "rows.jsonl:1: tools: not valid JSON");
    expect_refused("{\"text\":\"a\",\"text\":\"b\"}", TT_EFORMAT, "duplicate");
}

/* Every row cut short at every byte, and with every byte replaced: an error or not, but nothing worse. */
static void damaged_rows_do_no_harm(void **state)
{
    (void)state;
    static const char *const rows[] = {
        ("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u00e9\"}]}],"
         "\"tools\":\"[{}]\"}"),
        "{\"conversations\":[{\"from\":\"function_call\",\"value\":\"{\\\"name\\\":\\\"f\\\"}\"}]}",
        "{\"input_ids\":[12,2047],\"labels\":[-100,3],\"assistant_masks\":[1,true]}",
        "[{\"prompt\":\"a\",\"completion\":\"b\"}]",
    };
    static const char replaced[] = {'\0', '"', '[', '}', '\n', '9', '-', '\xFF'};
    tt_prepare p = defaults();
    p.template_source = "{{ messages }}{{ tools }}";
    p.threads = 1;
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        size_t n = strlen(rows[k]);
        int accepted = 0;
        for (size_t i = 0; i <= n; i++)
            for (size_t c = 0; c <= sizeof replaced; c++) {
                char text[256];
                tt_dataset *d = NULL;
                memcpy(text, rows[k], n + 1);
                if (c < sizeof replaced) text[i] = replaced[c];
                const char *path = write_rows("rows.jsonl", text, c < sizeof replaced ? n : i);
                accepted += tt_dataset_load(path, &p, &d) == TT_OK;
                tt_dataset_destroy(&d);
            }
        assert_true(accepted > 0);
    }
}

static void options_that_do_not_fit(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    p.max_length = -1;
    expect_refused_with(CHAT, &p, TT_ECONFIG, "max_length is -1");
    p = defaults();
    p.completion_only_loss = 1;
    expect_refused_with(CHAT, &p, TT_ECONFIG, "completion_only_loss needs prompt and completion");
    expect_refused_with("{\"input_ids\":[1,2]}", &p, TT_ECONFIG, "completion_only_loss needs");
    p = defaults();
    p.assistant_only_loss = true;
    expect_refused_with("{\"input_ids\":[1,2],\"assistant_masks\":[1,1]}", &p, TT_ECONFIG, "needs conversations");
    p = defaults();
    p.tokenizer = tokenizer("glm"); /* has no template */
    expect_refused_with(CHAT, &p, TT_ECONFIG, "no chat template; name one with chat_template_path");
    p = defaults();
    p.template_source = "{% macro m() %}{% generation %}a{% endgeneration %}{% endmacro %}{{ m() }}";
    p.template_name = "macro.jinja";
    p.assistant_only_loss = true;
    expect_refused_with(CHAT, &p, TT_ECONFIG, "chat_template_path: macro.jinja:1:"); /* marks that cannot be found */
    p.assistant_only_loss = false;
    p.template_source = "{% if %}";
    p.template_name = "broken.jinja";
    expect_refused_with(CHAT, &p, TT_EFORMAT, "broken.jinja");
    p = defaults();
    p.vocab_size = 2000; /* a model with fewer rows than the tokenizer has ids */
    expect_refused_with("{\"text\":\"a\"}", &p, TT_EDATA,
                        "rows.jsonl:1: token id 2047, but the model's vocabulary has 2000");
    p = defaults();
    p.eos_token = "\xC4\xA0the"; /* the vocabulary's spelling of " the", but no text that is encoded as it */
    expect_refused_with("{\"text\":\"b\"}", &p, TT_ECONFIG, "is encoded as");
    p = defaults();
    p.template_source = "{{ raise_exception('no such thing') }}";
    expect_refused_with(CHAT, &p, TT_EDATA, "no such thing");
}

/* --- shapes ----------------------------------------------------------------------------------------------------- */

static void nul_bom_crlf_and_arrays_are_fine(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    tt_dataset *a = load_ok("\xEF\xBB\xBF{\"text\":\"a\\u0000b\"}\r\n\r\n{\"text\":\"c\"}", &p);
    tt_dataset *b = load_ok("[\n{\"text\":\"a\\u0000b\"},\n\n {\"text\":\"c\", \"other\": [1]}]\n", &p);
    int64_t index, line;
    char *text;
    size_t bytes;
    assert_int_equal(tt_dataset_rows(a), 2);
    assert_int_equal(tt_dataset_fingerprint(a), tt_dataset_fingerprint(b));
    tt_dataset_source(a, 1, &index, &line);
    assert_int_equal(index, 1);
    assert_int_equal(line, 3);
    tt_dataset_source(b, 1, &index, &line);
    assert_int_equal(line, 4);
    assert_ok(tt_dataset_render(b, 0, &text, &bytes));
    assert_int_equal(bytes, 3 + strlen("<|im_end|>"));
    assert_memory_equal(text, "a\0b<|im_end|>", bytes);
    free(text);
    tt_dataset_destroy(&a);
    tt_dataset_destroy(&b);
}

/* Columns that a loader filled with null are absent. */
static void null_columns_are_absent(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    tt_dataset *a =
        load_ok("{\"text\":\"a\",\"prompt\":null,\"messages\":null,\"input_ids\":null,\"image\":null}", &p);
    tt_dataset *b = load_ok("{\"text\":\"a\"}", &p);
    assert_int_equal(tt_dataset_fingerprint(a), tt_dataset_fingerprint(b));
    tt_dataset_destroy(&a);
    tt_dataset_destroy(&b);
    a = load_ok("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":null,\"chat_template_kwargs\":null}",
                &p);
    tt_dataset_destroy(&a);
}

/* A message list in the wrong template: D-02, absent keys stay absent and null ones are. */
static void absent_stays_absent(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    p.template_source = "{% for m in messages %}{{ 'yes' if 'tool_calls' in m else 'no' }},{% endfor %}";
    tt_dataset *d = load_ok("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n"
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":[]}]}\n"
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":null}]}\n",
                            &p);
    static const char *const expected[] = {"no,", "yes,", "no,"};
    for (int64_t i = 0; i < 3; i++) {
        char *text;
        size_t bytes;
        assert_ok(tt_dataset_render(d, i, &text, &bytes));
        assert_string_equal(text, expected[i]);
        free(text);
    }
    tt_dataset_destroy(&d);
}

/* Rows with keyword arguments, tools in both forms, the run's date, special tokens and their override. */
static void templates_see_their_variables(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    p.template_source = "{{ eos_token }}|{{ bos_token is defined }}|{{ tools is none }}|{{ tools|length if tools }}|"
                        "{{ mode }}|{{ template_date }}|{{ add_generation_prompt }}|{{ documents is none }}";
    p.template_date = "2026-01-02";
    p.eos_token = "<|endoftext|>";
    tt_dataset *d = load_ok("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":\"[{}, "
                            "{}]\",\"chat_template_kwargs\":{\"mode\":\"m\"}}\n"
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}\n"
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{"
                            "\"eos_token\":\"E\",\"tools\":[1]}}\n"
                            "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":null}\n",
                            &p);
    static const char *const expected[] = {
        "<|endoftext|>|False|False|2|m|2026-01-02|False|True", "<|endoftext|>|False|False|1||2026-01-02|False|True",
        "E|False|False|1||2026-01-02|False|True", "<|endoftext|>|False|True|||2026-01-02|False|True"};
    for (int64_t i = 0; i < 4; i++) {
        char *text;
        size_t bytes;
        assert_ok(tt_dataset_render(d, i, &text, &bytes));
        assert_string_equal(text, expected[i]);
        free(text);
    }
    tt_dataset_destroy(&d);
}

/* What render shows is what was encoded. */
static void rendered_text_encodes_to_the_row(void **state)
{
    (void)state;
    static const char *const rows[] = {
        CHAT CHAT,
        "{\"text\":\"Hi \xF0\x9F\x98\x80\"}\n{\"text\":\"b<|im_end|>\"}",
        "{\"prompt\":\"Hi\",\"completion\":\" there\"}",
        ("{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":[{\"role\":\"assistant\","
         "\"content\":\"b\"}]}"),
        "{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\"}]}",
        "{\"input_ids\":[32, 33, 2047]}",
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        tt_prepare p = defaults();
        tt_dataset *d = load_ok(rows[k], &p);
        for (int64_t i = 0; i < tt_dataset_rows(d); i++) {
            char *text;
            size_t bytes;
            tt_encoding e = {0};
            const int32_t *ids, *labels;
            int64_t n;
            assert_ok(tt_dataset_render(d, i, &text, &bytes));
            assert_ok(tt_tokenizer_encode(p.tokenizer, text, bytes, false, &e));
            tt_dataset_row(d, i, &ids, &labels, &n);
            assert_int_equal(e.count, n);
            assert_memory_equal(e.ids, ids, (size_t)n * sizeof *ids);
            tt_encoding_free(&e);
            free(text);
        }
        tt_dataset_destroy(&d);
    }
}

/* --- EOS, truncation, removal ----------------------------------------------------------------------------------- */

/* S-06: EOS that the data has stays trained; no pad token is involved here. */
static void the_eos_label_is_kept(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    tt_dataset *d = load_ok("{\"input_ids\":[5,2047]}\n{\"input_ids\":[5,6]}", &p);
    expect_row(d, 0, (int32_t[]){5, 2047}, (int32_t[]){5, 2047}, 2, "S-06");
    expect_row(d, 1, (int32_t[]){5, 6}, (int32_t[]){5, 6}, 2, "D-03"); /* used as it is, and counted */
    assert_int_equal(tt_dataset_report(d)->warnings[TT_WARN_NO_FINAL_EOS].rows, 1);
    assert_int_equal(tt_dataset_report(d)->warnings[TT_WARN_NO_FINAL_EOS].first_line, 2);
    tt_dataset_destroy(&d);
    d = load_ok("{\"text\":\"\"}\n{\"text\":\"a<|im_end|>\"}\n{\"text\":\"a\"}\n{\"text\":\"a<|im_end|>\\n\"}"
                "\n{\"text\":\"aa\"}",
                &p);
    const int32_t *ids, *labels;
    int64_t n;
    for (int64_t i = 0; i < tt_dataset_rows(d); i++) {
        tt_dataset_row(d, i, &ids, &labels, &n);
        assert_int_equal(labels[n - 1], 2047);
        if (n > 1) assert_int_not_equal(labels[n - 2], 2047);
    }
    tt_dataset_destroy(&d);
}

/* S-10: ten prompt tokens, max_length 8: nothing is left to train, the row goes. D-04: neither is an empty
 * completion whose EOS is cut off. */
static void rows_without_targets_are_removed(void **state)
{
    (void)state;
    static const char rows[] =
        "{\"input_ids\":[1,2,3,4,5,6,7,8,9,10,11,2047],\"labels\":[-100,-100,-100,-100,-100,-100,"
        "-100,-100,-100,-100,11,2047]}\n{\"input_ids\":[1,2],\"labels\":[-100,2]}\n";
    tt_prepare p = defaults();
    p.max_length = 8;
    tt_dataset *d = load_ok(rows, &p);
    const tt_data_report *r = tt_dataset_report(d);
    int64_t index, line;
    assert_int_equal(tt_dataset_rows(d), 1);
    tt_dataset_source(d, 0, &index, &line);
    assert_int_equal(index, 1);
    assert_int_equal(line, 2);
    assert_int_equal(r->rows_read, 2);
    assert_int_equal(r->rows_untrained, 1);
    assert_int_equal(r->rows_truncated, 1);
    assert_int_equal(r->tokens_truncated, 4);
    assert_int_equal(r->tokens, 2);
    assert_int_equal(r->targets, 1);
    tt_dataset_destroy(&d);
    p.keep_end = true;
    d = load_ok(rows, &p);
    expect_row(d, 0, (int32_t[]){5, 6, 7, 8, 9, 10, 11, 2047},
               (int32_t[]){-100, -100, -100, -100, -100, -100, 11, 2047}, 8, "keep_end");
    tt_dataset_destroy(&d);
    p.for_packing = true;
    d = load_ok(rows, &p);
    assert_int_equal(tt_dataset_rows(d), 2);
    assert_int_equal(tt_dataset_report(d)->tokens, 14);
    tt_dataset_destroy(&d);
    p = defaults(); /* also without a limit, and when the row is empty */
    d = load_ok("{\"input_ids\":[]}\n{\"input_ids\":[1,2]}", &p);
    assert_int_equal(tt_dataset_report(d)->rows_untrained, 1);
    tt_dataset_destroy(&d);
}

/* A first label never enters the loss, so one label at the start is nothing to train. */
static void the_first_label_is_no_target(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    expect_refused("{\"input_ids\":[1,2],\"labels\":[1,-100]}", TT_EDATA, "none of its 1 rows has anything to train");
    tt_dataset *d =
        load_ok("{\"input_ids\":[1,2],\"labels\":[1,-100]}\n{\"input_ids\":[1,2,3],\"labels\":[1,2,3]}", &p);
    assert_int_equal(tt_dataset_report(d)->targets, 2);
    assert_int_equal(tt_dataset_rows(d), 2); /* the trainer keeps such a row, too */
    tt_dataset_destroy(&d);
}

static void rows_without_assistant_can_be_skipped(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    p.assistant_only_loss = true;
    static const char rows[] = CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n" CHAT;
    expect_refused_with(rows, &p, TT_EDATA, "rows.jsonl:2: assistant_only_loss finds no text");
    p.skip_without_assistant = true;
    tt_dataset *d = load_ok(rows, &p);
    assert_int_equal(tt_dataset_rows(d), 2);
    assert_int_equal(tt_dataset_report(d)->rows_unanswered, 1);
    tt_dataset_destroy(&d);
}

/* --- masks ------------------------------------------------------------------------------------------------------ */

/* S-08: where the encodings part, the first differing token is trained; such rows are counted. Two newlines
 * are one token, so prompt "a\n" and completion "\nb" merge across the border. */
static void merges_across_the_border_are_counted(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    tt_dataset *d =
        load_ok("{\"prompt\":\"a b\",\"completion\":\" c\"}\n{\"prompt\":\"a\\n\",\"completion\":\"\\nb\"}", &p);
    const tt_data_report *r = tt_dataset_report(d);
    const int32_t *ids, *labels;
    int64_t n;
    assert_int_equal(r->warnings[TT_WARN_PREFIX_MISMATCH].rows, 1);
    assert_int_equal(r->warnings[TT_WARN_PREFIX_MISMATCH].first_line, 2);
    tt_dataset_row(d, 1, &ids, &labels, &n);
    assert_int_equal(labels[0], TT_IGNORE); /* "a" */
    assert_int_equal(labels[1], ids[1]);    /* both newlines */
    assert_int_equal(n, 4);
    tt_dataset_destroy(&d);
}

/* The template's stop must be a token of its own (C-11, 1.7.6). */
static void an_open_end_is_reported(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    p.assistant_only_loss = true;
    p.template_source =
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>{% endfor %}";
    tt_dataset *d = load_ok(CHAT, &p);
    assert_string_equal(tt_dataset_report(d)->open_end, "y");
    tt_dataset_destroy(&d);
    p.template_source = "{% for m in messages %}{% generation %}{{ m.content }}<|im_end|>\n \n{% "
                        "endgeneration %}{% endfor %}";
    d = load_ok(CHAT, &p);
    assert_null(tt_dataset_report(d)->open_end);
    tt_dataset_destroy(&d);
    p.template_source = "{% if messages|length > 2 %}{{ raise_exception('two only') }}{% endif %}"
                        "x {% generation %}{{ messages[1].content }}{% endgeneration %}";
    d = load_ok(CHAT, &p);
    assert_null(tt_dataset_report(d)->open_end);
    tt_dataset_destroy(&d);
}

/* A tokenizer like "small" whose post-processor puts `first` in front and `last` behind (NULL: nothing). */
static tt_tokenizer *with_post_processor(const char *first, const char *last)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    char folder[1100], from[1100], to[1200];
    tt_tokenizer *t;
    snprintf(folder, sizeof folder, "%s", test_folder("tokenizer"));
    for (int i = 0; i < 2; i++) {
        json_t *value;
        snprintf(from, sizeof from, "%s/%s", test_fixture("tokenizers/small"), files[i]);
        snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        assert_ok(tt_json_load(from, 1 << 24, &value));
        if (i == 0) {
            json_t *single = json_array(), *special = json_object();
            const char *const sides[] = {first, NULL, last};
            for (int k = 0; k < 3; k++) {
                if (k == 1)
                    json_array_append_new(single, json_pack("{s:{s:s,s:i}}", "Sequence", "id", "A", "type_id", 0));
                if (!sides[k]) continue;
                json_array_append_new(single,
                                      json_pack("{s:{s:s,s:i}}", "SpecialToken", "id", sides[k], "type_id", 0));
                json_object_set_new(special, sides[k],
                                    json_pack("{s:s,s:[i],s:[s]}", "id", sides[k], "ids",
                                              tt_tokenizer_id(tokenizer("small"), sides[k]), "tokens", sides[k]));
            }
            json_object_set_new(value, "post_processor",
                                json_pack("{s:s,s:o,s:[],s:o}", "type", "TemplateProcessing", "single", single,
                                          "pair", "special_tokens", special));
        }
        assert_ok(tt_json_save(to, value, false));
        json_decref(value);
    }
    assert_ok(tt_tokenizer_load(folder, &t));
    return t;
}

/* S-07: the template is the only author of a conversation, the post-processor of plain text. One BOS each. */
static void one_bos_only(void **state)
{
    (void)state;
    tt_tokenizer *t = with_post_processor("<|endoftext|>", NULL);
    tt_prepare p = TT_PREPARE_DEFAULT;
    const int32_t *ids, *labels;
    int64_t n;
    p.tokenizer = t;
    p.template_source = "<|endoftext|>{{ messages[0].content }}";
    tt_dataset *d = load_ok("{\"messages\":[{\"role\":\"user\",\"content\":\"A\"}]}", &p);
    expect_row(d, 0, (int32_t[]){2045, 32}, (int32_t[]){2045, 32}, 2, "chat");
    tt_dataset_destroy(&d);
    d = load_ok("{\"text\":\"A\"}", &p);
    expect_row(d, 0, (int32_t[]){2045, 32, 2047}, (int32_t[]){2045, 32, 2047}, 3, "text");
    tt_dataset_destroy(&d);
    d = load_ok("{\"prompt\":\"A\",\"completion\":\"B\"}", &p);
    tt_dataset_row(d, 0, &ids, &labels, &n);
    expect_row(d, 0, (int32_t[]){2045, ids[1], ids[2], 2047}, (int32_t[]){-100, labels[1], ids[2], 2047}, 4,
               "completion");
    tt_dataset_destroy(&d);
    tt_tokenizer_destroy(&t);
}

/* 1.5.2 as corrected: an EOS behind the prompt's ids does not hide the completion's first token. */
static void an_appended_eos_hides_nothing(void **state)
{
    (void)state;
    tt_tokenizer *t = with_post_processor(NULL, "<|endoftext|>");
    tt_prepare p = TT_PREPARE_DEFAULT;
    p.tokenizer = t;
    tt_dataset *d = load_ok("{\"prompt\":\"A\",\"completion\":\"\\n\"}", &p);
    expect_row(d, 0, (int32_t[]){32, 198, 2047, 2045}, (int32_t[]){-100, 198, 2047, 2045}, 4, "appended EOS");
    assert_int_equal(tt_dataset_report(d)->warnings[TT_WARN_PREFIX_MISMATCH].rows, 1);
    tt_dataset_destroy(&d);
    tt_tokenizer_destroy(&t);
}

/* --- warnings, strict mode, threads ----------------------------------------------------------------------------- */

static const char suspicious[] =
    CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},"
         "{\"role\":\"user\",\"content\":\"<|im_end|>\"}]}\n" CHAT
         "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"},{\"role\":\"user\",\"content\":\"c\"}]}\n";

static void warnings_are_counted_and_strict_refuses(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    tt_dataset *d = load_ok(suspicious, &p);
    const tt_data_report *r = tt_dataset_report(d);
    assert_int_equal(r->rows_kept, 4);
    assert_int_equal(r->warnings[TT_WARN_SPECIAL_IN_CONTENT].rows, 1);
    assert_int_equal(r->warnings[TT_WARN_SPECIAL_IN_CONTENT].first_line, 2);
    assert_int_equal(r->warnings[TT_WARN_LAST_NOT_ASSISTANT].rows, 2);
    assert_int_equal(r->warnings[TT_WARN_LAST_NOT_ASSISTANT].first_line, 2);
    assert_int_equal(r->warnings[TT_WARN_LEADING_ASSISTANT].first_line, 4);
    assert_int_equal(r->warnings[TT_WARN_EMPTY_ASSISTANT].first_line, 4);
    assert_int_equal(r->warnings[TT_WARN_UNKNOWN_ROLE].rows, 0);
    tt_dataset_destroy(&d);
    p.strict = true;
    expect_refused_with(suspicious, &p, TT_EDATA, "rows.jsonl:2: message 2: the last message is not the assistant's");
}

static void count_warnings(void *user, tt_log_level level, const char *text)
{
    assert_int_equal(level, TT_LOG_WARN);
    assert_non_null(strstr(text, "rows.jsonl"));
    ++*(int *)user;
}

static void reports_are_logged(void **state)
{
    (void)state;
    int lines = 0;
    tt_prepare p = defaults();
    p.max_length = 12;
    tt_dataset *d = load_ok(suspicious, &p);
    tt_log_set_level(TT_LOG_SILENT);
    tt_log_set_hook(count_warnings, &lines);
    tt_data_report_log(tt_dataset_report(d), "rows.jsonl");
    tt_log_set_hook(NULL, NULL);
    tt_log_set_level(TT_LOG_INFO);
    assert_int_equal(lines, 5); /* truncation and four kinds */
    tt_dataset_destroy(&d);
}

/* Many rows of very different lengths, so that they fill several blocks and pieces. */
static char *many_rows(int64_t count, int64_t broken, int64_t broken_too)
{
    char *text = malloc((size_t)count * 200);
    size_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i == broken || i == broken_too) {
            n += (size_t)sprintf(text + n, "{\"text\":%lld}\n", (long long)i);
            continue;
        }
        n += (size_t)sprintf(text + n, "{\"text\":\"%lld", (long long)i);
        for (int64_t k = 0; k < i % 23; k++) n += (size_t)sprintf(text + n, " word%lld", (long long)k % 7);
        n += (size_t)sprintf(text + n, "\"}\n");
    }
    return text;
}

static void threads_change_nothing(void **state)
{
    (void)state;
    char *good = many_rows(9001, -1, -1), *bad = many_rows(9001, 4567, 4569);
    uint64_t first = 0;
    for (int threads = 1; threads <= 5; threads += 2) {
        tt_prepare p = defaults();
        p.threads = threads;
        p.max_length = 20;
        tt_dataset *d = load_ok(good, &p);
        if (threads == 1) first = tt_dataset_fingerprint(d);
        assert_int_equal(tt_dataset_rows(d), 9001);
        assert_int_equal(tt_dataset_fingerprint(d), first);
        for (int64_t i = 0; i < 9001; i += 500) {
            int64_t index, line;
            tt_dataset_source(d, i, &index, &line);
            assert_int_equal(index, i);
            assert_int_equal(line, i + 1);
        }
        tt_dataset_destroy(&d);
        expect_refused_with(bad, &p, TT_EDATA, "rows.jsonl:4568: column 'text' is integer");
    }
    free(good);
    free(bad);
}

static void the_fingerprint_sees_ids_labels_and_borders(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "{\"input_ids\":[1,2,3],\"labels\":[1,2,3]}",
        "{\"input_ids\":[1,2,4],\"labels\":[1,2,4]}",
        "{\"input_ids\":[1,2,3],\"labels\":[-100,2,3]}",
        "{\"input_ids\":[1,2,3,1,2,3],\"labels\":[1,2,3,1,2,3]}",
        "{\"input_ids\":[1,2,3],\"labels\":[1,2,3]}\n{\"input_ids\":[1,2,3],\"labels\":[1,2,3]}",
    };
    enum { N = sizeof rows / sizeof *rows };
    uint64_t prints[N];
    tt_prepare p = defaults();
    for (int i = 0; i < N; i++) {
        tt_dataset *d = load_ok(rows[i], &p);
        prints[i] = tt_dataset_fingerprint(d);
        for (int k = 0; k < i; k++) assert_int_not_equal(prints[i], prints[k]);
        tt_dataset_destroy(&d);
    }
}

/* The file may change between loading and rendering. */
static void a_changed_file_is_noticed(void **state)
{
    (void)state;
    tt_prepare p = defaults();
    tt_dataset *d = load_ok(CHAT CHAT, &p);
    char *text;
    size_t bytes;
    write_text("{}\n");
    assert_error(tt_dataset_render(d, 1, &text, &bytes), TT_EFORMAT, "ends at byte");
    tt_dataset_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_trainers_refusals),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(bad_rows),
        cmocka_unit_test(damaged_rows_do_no_harm),
        cmocka_unit_test(options_that_do_not_fit),
        cmocka_unit_test(nul_bom_crlf_and_arrays_are_fine),
        cmocka_unit_test(null_columns_are_absent),
        cmocka_unit_test(absent_stays_absent),
        cmocka_unit_test(templates_see_their_variables),
        cmocka_unit_test(rendered_text_encodes_to_the_row),
        cmocka_unit_test(the_eos_label_is_kept),
        cmocka_unit_test(rows_without_targets_are_removed),
        cmocka_unit_test(the_first_label_is_no_target),
        cmocka_unit_test(rows_without_assistant_can_be_skipped),
        cmocka_unit_test(merges_across_the_border_are_counted),
        cmocka_unit_test(an_open_end_is_reported),
        cmocka_unit_test(one_bos_only),
        cmocka_unit_test(an_appended_eos_hides_nothing),
        cmocka_unit_test(warnings_are_counted_and_strict_refuses),
        cmocka_unit_test(reports_are_logged),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(the_fingerprint_sees_ids_labels_and_borders),
        cmocka_unit_test(a_changed_file_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, free_tokenizers);
}
