/* Data sets against the reference: the same rows, ids, masks and labels as the common trainer prepares.
 *
 * tests/fixtures/sft/prepare/NAME holds config.yaml, data.jsonl, tokenized.jsonl (ids and masks before
 * truncation) and prepared.jsonl (ids and labels). Sets that are packed are compared before packing. Five
 * sets use templates of others; they and those templates are read below TT_REFERENCE. */
#include "data/support.h"

/* The folder of a set of the fixtures. Static buffer. */
static const char *set_folder(const char *name)
{
    static char folder[1200];
    char path[128];
    snprintf(path, sizeof path, "sft/prepare/%s", name);
    snprintf(folder, sizeof folder, "%s", test_fixture(path));
    return folder;
}

/* What a config.yaml of the fixtures holds, as far as it concerns preparation. */
typedef struct config {
    tt_prepare prepare;
    bool packing, shuffled;
    char template_path[512];
    char *template_source;
    char text_field[32], eos[32];
} config;

static bool is_true(const char *value)
{
    return strcmp(value, "true") == 0;
}

static void read_key(config *c, const char *folder, const char *key, const char *value)
{
    static const char *const elsewhere[] = {
        "model_name_or_path",
        "dataset_name",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "pad_to_multiple_of",
        "padding_free",
        "packing_strategy",
        "seed",
        "eval_strategy",
        "eval_packing",
        "eval_dataset_name",
    };
    tt_prepare *p = &c->prepare;
    if (strcmp(key, "max_length") == 0)
        p->max_length = strcmp(value, "null") == 0 ? 0 : atoll(value);
    else if (strcmp(key, "assistant_only_loss") == 0)
        p->assistant_only_loss = is_true(value);
    else if (strcmp(key, "completion_only_loss") == 0)
        p->completion_only_loss = is_true(value);
    else if (strcmp(key, "packing") == 0)
        c->packing = is_true(value);
    else if (strcmp(key, "shuffle_dataset") == 0)
        c->shuffled = is_true(value);
    else if (strcmp(key, "truncation_mode") == 0)
        p->keep_end = strcmp(value, "keep_end") == 0;
    else if (strcmp(key, "eos_token") == 0)
        snprintf(c->eos, sizeof c->eos, "%s", value), p->eos_token = c->eos;
    else if (strcmp(key, "dataset_text_field") == 0)
        snprintf(c->text_field, sizeof c->text_field, "%s", value), p->text_field = c->text_field;
    else if (strcmp(key, "chat_template_path") == 0)
        snprintf(c->template_path, sizeof c->template_path, "%s/%s", folder, value);
    else {
        for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
            if (strcmp(key, elsewhere[i]) == 0) return;
        fail_msg("key %s of %s is not known to this test", key, folder);
    }
}

static config read_config(const char *folder)
{
    config c = {.prepare = TT_PREPARE_DEFAULT};
    char path[512], *text;
    size_t bytes;
    json_t *info;
    snprintf(path, sizeof path, "%s/config.yaml", folder);
    assert_ok(tt_file_read_all(path, 1 << 16, &text, &bytes));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *colon = strstr(line, ": ");
        assert_non_null(colon);
        *colon = '\0';
        read_key(&c, folder, line, colon + 2);
    }
    free(text);
    snprintf(path, sizeof path, "%s/case.json", folder);
    assert_ok(tt_json_load(path, 1 << 16, &info));
    const char *name = json_string_value(json_object_get(info, "tokenizer"));
    c.prepare.tokenizer = tokenizer(!name ? "small" : strstr(name, "glm") ? "glm" : "neox");
    json_decref(info);
    return c;
}

/* The template's text; `replaces` names another file in the same folder (the trainer replaces some templates). */
static void read_template(config *c, const char *replaces)
{
    size_t bytes;
    if (!c->template_path[0]) return;
    if (replaces) strcpy(strrchr(c->template_path, '/') + 1, replaces);
    assert_ok(tt_file_read_all(c->template_path, 1 << 20, &c->template_source, &bytes));
    c->prepare.template_source = c->template_source;
    c->prepare.template_name = c->template_path;
}

static const json_t *find_row(const json_t *rows, int64_t number)
{
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row)
    {
        if (json_integer_value(json_object_get(row, "row")) == number) return row;
    }
    return NULL;
}

/* Labels of a tokenized row: ids where all masks are 1. */
static void labels_from_masks(const json_t *row, const int32_t *ids, int32_t *labels, int64_t n)
{
    static const char *const masks[] = {"completion_mask", "assistant_masks"};
    for (int64_t i = 0; i < n; i++) labels[i] = ids[i];
    for (int k = 0; k < 2; k++) {
        const json_t *mask = json_object_get(row, masks[k]);
        for (int64_t i = 0; mask && i < n; i++)
            if (!json_integer_value(json_array_get(mask, (size_t)i))) labels[i] = TT_IGNORE;
    }
}

/* Every row of d against the expected row of its number; all of those, in the file's order. */
static void expect_rows(const tt_dataset *d, const json_t *expected, const char *what)
{
    assert_int_equal(tt_dataset_rows(d), json_array_size(expected));
    for (int64_t i = 0, last = -1; i < tt_dataset_rows(d); i++) {
        int64_t index, line, n;
        tt_dataset_source(d, i, &index, &line);
        assert_true(index > last);
        last = index;
        const json_t *row = find_row(expected, index);
        if (!row) fail_msg("%s: row %lld was expected to be removed", what, (long long)index);
        int32_t *ids = numbers(json_object_get(row, "input_ids"), &n), *labels;
        if (json_object_get(row, "labels")) {
            labels = numbers(json_object_get(row, "labels"), &n);
        } else {
            labels = malloc(((size_t)n + 1) * sizeof *labels);
            labels_from_masks(row, ids, labels, n);
        }
        expect_row(d, i, ids, labels, n, what);
        free(ids);
        free(labels);
    }
}

static void compare(const char *folder, const char *data, const char *expected_name, const tt_prepare *p)
{
    char path[600], expected_path[600];
    tt_dataset *d;
    snprintf(path, sizeof path, "%s/%s", folder, data);
    snprintf(expected_path, sizeof expected_path, "%s/%s", folder, expected_name);
    json_t *expected = load_lines(expected_path);
    assert_ok(tt_dataset_load(path, p, &d));
    expect_rows(d, expected, expected_path);
    tt_dataset_destroy(&d);
    json_decref(expected);
}

/* Ids and masks of all rows before truncation. */
static void check_tokenized(const char *folder, const config *c)
{
    char path[600];
    snprintf(path, sizeof path, "%s/tokenized.jsonl", folder);
    if (!tt_file_exists(path)) return;
    tt_prepare p = c->prepare;
    json_t *rows = load_lines(path);
    p.for_packing = true;
    p.completion_only_loss = json_object_get(json_array_get(rows, 0), "completion_mask") != NULL;
    json_decref(rows);
    compare(folder, "data.jsonl", "tokenized.jsonl", &p);
}

static void check_folder(const char *folder, const char *replaces)
{
    config c = read_config(folder);
    read_template(&c, replaces);
    check_tokenized(folder, &c);
    if (!c.packing) compare(folder, "data.jsonl", "prepared.jsonl", &c.prepare);
    free(c.template_source);
}

static void check_own(const char *const *names, int count)
{
    for (int i = 0; i < count; i++) check_folder(set_folder(names[i]), NULL);
}

#define CHECK_OWN(...)                                                                                               \
    do {                                                                                                             \
        static const char *const names[] = {__VA_ARGS__};                                                            \
        check_own(names, (int)(sizeof names / sizeof *names));                                                       \
    } while (0)

static void texts(void **state)
{
    (void)state;
    CHECK_OWN("text", "text_field", "text_keep_end", "text_unlimited", "text_eos", "text_padding_free",
              "text_padding_free_multiple", "shuffle");
}

static void prompts_and_completions(void **state)
{
    (void)state;
    CHECK_OWN("prompt_completion", "prompt_completion_whole", "prompt_completion_short");
}

static void chat_prompts_and_completions(void **state)
{
    (void)state;
    CHECK_OWN("prompt_completion_chat", "prompt_completion_chat_whole", "prompt_completion_chat_assistant",
              "prompt_completion_chat_assistant_whole", "prompt_completion_chat_own");
}

static void conversations(void **state)
{
    (void)state;
    CHECK_OWN("conversation", "conversation_assistant", "conversation_assistant_long", "tulu_assistant",
              "glm_own_assistant", "reasoning_own", "reasoning_own_assistant");
}

static void tools(void **state)
{
    (void)state;
    CHECK_OWN("tools_own", "tools_own_as_text", "tools_own_assistant");
}

static void token_ids(void **state)
{
    (void)state;
    CHECK_OWN("pretokenised", "pretokenised_labels", "pretokenised_masks");
}

static void sets_that_are_packed(void **state)
{
    (void)state;
    CHECK_OWN("pack_bfd", "pack_bfd_split", "pack_wrapped", "pack_bfd_assistant", "pack_bfd_split_assistant",
              "pack_wrapped_assistant", "pack_bfd_completion", "pack_bfd_shuffle", "pack_wrapped_padding_free",
              "evaluation");
}

static void evaluation_data(void **state)
{
    (void)state;
    const char *folder = set_folder("evaluation");
    config c = read_config(folder);
    compare(folder, "eval.jsonl", "eval_prepared.jsonl", &c.prepare);
}

/* The trainer ignores completion_only_loss on data without completions; here that is an error. */
static void completion_only_needs_completions(void **state)
{
    (void)state;
    const char *folder = set_folder("completion_only_on_text");
    config c = read_config(folder);
    char path[600];
    tt_dataset *d = NULL;
    snprintf(path, sizeof path, "%s/data.jsonl", folder);
    assert_error(tt_dataset_load(path, &c.prepare, &d), TT_ECONFIG,
                 "completion_only_loss needs prompt and completion");
    assert_null(d);
    c.prepare.completion_only_loss = -1;
    compare(folder, "data.jsonl", "prepared.jsonl", &c.prepare);
}

/* With keep_roles the names human and gpt reach the template, as in the trainer. */
static void sharegpt_with_its_own_roles(void **state)
{
    (void)state;
    const char *folder = set_folder("sharegpt");
    config c = read_config(folder);
    c.prepare.keep_roles = true;
    check_tokenized(folder, &c);
    compare(folder, "data.jsonl", "prepared.jsonl", &c.prepare);
}

/* The trainer refuses assistant_only_loss for this file, since it looks before it converts. Converted first,
 * it is the same as the conversation with role and content. */
static void sharegpt_equals_its_conversation(void **state)
{
    (void)state;
    const char *folder = set_folder("sharegpt_roles_ok");
    config c = read_config(folder);
    char path[600];
    tt_dataset *shared, *plain;
    snprintf(path, sizeof path, "%s/data.jsonl", folder);
    assert_ok(tt_dataset_load(path, &c.prepare, &shared));
    json_t *rows = load_lines(path), *row;
    char *text = calloc(1, 1 << 20);
    size_t i, used = 0;
    json_array_foreach(rows, i, row)
    {
        json_t *messages = json_object_get(row, "conversations");
        assert_ok(tt_messages_from_sharegpt(messages, true, path));
        json_object_set(row, "messages", messages);
        json_object_del(row, "conversations");
        used += json_dumpb(row, text + used, (1 << 20) - used, JSON_COMPACT);
        text[used++] = '\n';
    }
    assert_ok(tt_dataset_load(write_rows("rows.jsonl", text, used), &c.prepare, &plain));
    assert_int_equal(tt_dataset_rows(shared), 10);
    assert_int_equal(tt_dataset_fingerprint(shared), tt_dataset_fingerprint(plain));
    free(text);
    json_decref(rows);
    tt_dataset_destroy(&shared);
    tt_dataset_destroy(&plain);
}

static void templates_of_others(void **state)
{
    (void)state;
    static const struct {
        const char *name, *replaces;
    } cases[] = {
        {"prompt_completion_chat_qwen3", NULL},
        {"tools_qwen3", NULL},
        {"tools_as_text", NULL},
        {"tools_qwen3_assistant", "qwen3_training.jinja"},
        {"glm_assistant", "glm4moe_training.jinja"},
    };
    if (!test_reference("")) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[128], folder[512];
        snprintf(name, sizeof name, "fixtures/sft/prepare/%s", cases[i].name);
        snprintf(folder, sizeof folder, "%s", test_reference(name));
        check_folder(folder, cases[i].replaces);
    }
}

/* --- masks of rendered conversations ---------------------------------------------------------------------------- */

static json_t *variables_of(const json_t *row)
{
    json_t *variables = json_deep_copy(json_object_get(row, "special_tokens"));
    json_t *messages = json_deep_copy(json_object_get(row, "messages"));
    tt_status status = tt_messages_normalise(messages, "test", "messages");
    if (status != TT_OK) {
        /* The trainer renders these; here they are mistakes in the data. */
        static const char *const refused[] = {"missing role", "content number", "content list, image"};
        const char *name = json_string_value(json_object_get(row, "case"));
        int i = 0;
        while (i < 3 && strcmp(name, refused[i]) != 0) i++;
        if (i == 3) fail_msg("%s: %s", name, tt_error_text());
        json_decref(messages);
        json_decref(variables);
        return NULL;
    }
    json_object_set_new(variables, "messages", messages);
    json_object_set(variables, "tools", json_object_get(row, "tools"));
    json_object_set_new(variables, "documents", json_null());
    json_object_set_new(variables, "add_generation_prompt", json_false());
    json_object_update(variables, json_object_get(row, "kwargs"));
    return variables;
}

/* 1 when the row has a mask to compare with. */
static int check_mask(const tt_template *t, const json_t *row, const char *file)
{
    tt_rendering r;
    tt_encoding e = {0};
    int64_t n, marks = 0;
    if (!json_object_get(row, "assistant_masks")) return 0;
    json_t *variables = variables_of(row);
    if (!variables) return 0;
    assert_ok(tt_template_render(t, variables, &r));
    const tt_tokenizer *small = tokenizer(json_string_value(json_object_get(row, "tokenizer")));
    assert_ok(tt_tokenizer_encode(small, r.text, r.bytes, false, &e));
    int32_t *ids = numbers(json_object_get(row, "ids"), &n);
    int32_t *mask = numbers(json_object_get(row, "assistant_masks"), &n);
    int32_t *labels = malloc(((size_t)e.count + 1) * sizeof *labels);
    int64_t set = tt_label_spans(&e, &r, labels);
    bool same = n == e.count && (n == 0 || memcmp(ids, e.ids, (size_t)n * sizeof *ids) == 0);
    for (int64_t i = 0; i < n && same; i++) {
        same = labels[i] == (mask[i] ? ids[i] : TT_IGNORE);
        marks += mask[i];
    }
    if (!same || marks != set) {
        print_numbers("mask  ", mask, n);
        print_numbers("labels", labels, e.count);
        fail_msg("%s: %s", file, json_string_value(json_object_get(row, "case")));
    }
    free(ids), free(mask), free(labels);
    tt_encoding_free(&e);
    tt_rendering_free(&r);
    json_decref(variables);
    return 1;
}

/* Bugs S-02, S-03, S-09. */
static void masks_of_marked_templates(void **state)
{
    (void)state;
    static const char *const names[] = {"chatml", "tulu", "own_training"};
    int compared = 0;
    for (int k = 0; k < 3; k++) {
        char name[128], *source;
        size_t bytes, i;
        tt_template *t;
        json_t *row;
        snprintf(name, sizeof name, "sft/template/%s.jinja", names[k]);
        assert_ok(tt_file_read_all(test_fixture(name), 1 << 20, &source, &bytes));
        assert_ok(tt_template_compile(source, name, &t));
        snprintf(name, sizeof name, "sft/template/%s.jsonl", names[k]);
        json_t *rows = load_lines(test_fixture(name));
        json_array_foreach(rows, i, row)
        {
            compared += check_mask(t, row, name);
        }
        json_decref(rows);
        tt_template_destroy(&t);
        free(source);
    }
    assert_int_equal(compared, 201); /* of 204 with a mask */
}

static void masks_of_small_spans(void **state)
{
    (void)state;
    json_t *rows = load_lines(test_fixture("sft/template/spans.jsonl")), *row;
    int compared = 0;
    size_t i;
    json_array_foreach(rows, i, row)
    {
        tt_template *t;
        assert_ok(tt_template_compile(json_string_value(json_object_get(row, "template")), "spans", &t));
        compared += check_mask(t, row, "spans.jsonl");
        tt_template_destroy(&t);
    }
    assert_int_equal(compared, 30); /* one of the 31 has no block */
    json_decref(rows);
}

/* --- the data of the example ------------------------------------------------------------------------------------ */

static void the_example_has_its_totals(void **state)
{
    (void)state;
    tt_tokenizer *t;
    tt_dataset *d;
    tt_prepare p = TT_PREPARE_DEFAULT;
    assert_ok(tt_tokenizer_load("examples/chat/tokenizer", &t));
    p.tokenizer = t;
    p.max_length = 256;
    assert_ok(tt_dataset_load("examples/chat/train.jsonl", &p, &d));
    const tt_data_report *r = tt_dataset_report(d);
    assert_int_equal(r->rows_read, 4000);
    assert_int_equal(r->rows_kept, 4000);
    assert_int_equal(r->rows_truncated, 0);
    assert_int_equal(r->tokens, 170238);
    assert_int_equal(r->targets, 170238 - 4000);
    for (int kind = 0; kind < TT_WARN_COUNT; kind++) assert_int_equal(r->warnings[kind].rows, 0);
    tt_dataset_destroy(&d);
    p.assistant_only_loss = true;
    assert_ok(tt_dataset_load("examples/chat/eval.jsonl", &p, &d));
    assert_int_equal(tt_dataset_report(d)->rows_kept, 300);
    assert_null(tt_dataset_report(d)->open_end);
    tt_dataset_destroy(&d);
    tt_tokenizer_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(prompts_and_completions),
        cmocka_unit_test(chat_prompts_and_completions),
        cmocka_unit_test(conversations),
        cmocka_unit_test(tools),
        cmocka_unit_test(token_ids),
        cmocka_unit_test(sets_that_are_packed),
        cmocka_unit_test(evaluation_data),
        cmocka_unit_test(completion_only_needs_completions),
        cmocka_unit_test(sharegpt_with_its_own_roles),
        cmocka_unit_test(sharegpt_equals_its_conversation),
        cmocka_unit_test(templates_of_others),
        cmocka_unit_test(masks_of_marked_templates),
        cmocka_unit_test(masks_of_small_spans),
        cmocka_unit_test(the_example_has_its_totals),
    };
    return cmocka_run_group_tests(tests, NULL, free_tokenizers);
}
