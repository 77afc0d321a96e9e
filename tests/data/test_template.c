/* The template engine against renderings of the common library (tests/fixtures/sft/README.md says how they
 * were made), and against templates that mean harm. */
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "tartan/chat_template.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- helpers ------------------------------------------------------------------------------------------ */

static char *read_text(const char *path)
{
    char *text;
    size_t bytes;
    assert_ok(tt_file_read_all(path, 64 << 20, &text, &bytes));
    return text;
}

/* Calls `use` for every line of a file. */
static int each_line(const char *path, void (*use)(char *line, int number, void *context), void *context)
{
    char *text = read_text(path), *save = NULL;
    int number = 0;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        use(line, ++number, context);
    free(text);
    return number;
}

static bool same_text(const tt_rendering *got, const json_t *wanted)
{
    return got->bytes == json_string_length(wanted) &&
           memcmp(got->text, json_string_value(wanted), got->bytes) == 0 && got->text[got->bytes] == '\0';
}

static tt_status render(const char *source, json_t *variables, tt_rendering *out)
{
    tt_template *t;
    *out = (tt_rendering){0};
    TT_TRY(tt_template_compile(source, "t", &t));
    tt_status status = tt_template_render(t, variables, out);
    tt_template_destroy(&t);
    return status;
}

static void expect(const char *source, const char *wanted)
{
    json_t *none = json_object();
    tt_rendering got;
    assert_ok(render(source, none, &got));
    assert_string_equal(got.text, wanted);
    tt_rendering_free(&got);
    json_decref(none);
}

static void expect_failure(const char *source, tt_status status, const char *part)
{
    json_t *none = json_object();
    tt_rendering got;
    assert_error(render(source, none, &got), status, part);
    assert_null(got.text);
    assert_null(got.spans);
    json_decref(none);
}

/* --- engine.jsonl ------------------------------------------------------------------------------------- */

/* Variables that JSON cannot hold, and how a template makes them. */
static const struct {
    const char *variables, *prelude;
} unusual[] = {
    {"{\"d\": Infinity}", "{% set d = 1e999 %}"},
    {"{\"d\": NaN}", "{% set d = 1e999 - 1e999 %}"},
    {"{\"x\": 9223372036854775808}", "{% set x = 9223372036854775808 %}"},
    {"{\"ns\": [123456789012345678901234567890]}", "{% set ns = [123456789012345678901234567890] %}"},
};

/* What the engine leaves out on purpose. */
static const struct {
    const char *part;
    tt_status status;
    const char *why;
} left_out[] = {
    {"{% extends", TT_EFORMAT,
     "refused when compiled, not only when rendered: there is nothing to load from"},
    {"{% include", TT_EFORMAT, "the same"},
    {"lipsum()", TT_EDATA, "random text"},
    {".encode()", TT_EDATA, "bytes are no kind of value here"},
};

typedef struct engine_counts {
    int cases, unusual, left_out, wrong;
} engine_counts;

static json_t *parse_case(const char *line, const char **prelude)
{
    json_t *row;
    char *copy = strdup(line);
    *prelude = "";
    for (size_t i = 0; i < sizeof unusual / sizeof *unusual; i++) {
        char *hit = strstr(copy, unusual[i].variables);
        if (!hit) continue;
        *prelude = unusual[i].prelude;
        memset(hit + 1, ' ', strlen(unusual[i].variables) - 2);
    }
    assert_ok(tt_json_parse(copy, strlen(copy), "engine.jsonl", &row));
    free(copy);
    return row;
}

static void check_outcome(const json_t *row, const char *source, tt_status status, const tt_rendering *got,
                          int line, engine_counts *n)
{
    const json_t *error = json_object_get(row, "error"), *result = json_object_get(row, "result");
    const char *stage = json_string_value(json_object_get(error, "stage"));
    tt_status wanted = !error ? TT_OK : strcmp(stage, "compile") == 0 ? TT_EFORMAT : TT_EDATA;
    bool good = status == wanted && (error || same_text(got, result));
    if (error && good && strcmp(json_string_value(json_object_get(error, "type")), "TemplateError") == 0) {
        char text[512];
        snprintf(text, sizeof text, "t:1: %s", json_string_value(json_object_get(error, "message")));
        good = strcmp(tt_error_text(), text) == 0;
    }
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
        if (strstr(source, left_out[i].part)) {
            n->left_out++;
            good = status == left_out[i].status;
        }
    if (good) return;
    n->wrong++;
    print_error("line %d: %s\n  gave     %s: %s\n  expected %s\n", line, source, tt_status_name(status),
                status ? tt_error_text() : got->text, error ? "an error" : json_string_value(result));
}

static void check_engine_case(char *line, int number, void *context)
{
    engine_counts *n = context;
    const char *prelude;
    json_t *row = parse_case(line, &prelude);
    const char *template = json_string_value(json_object_get(row, "template"));
    char *source = malloc(strlen(prelude) + strlen(template) + 1);
    tt_rendering got;
    sprintf(source, "%s%s", prelude, template);
    tt_status status = render(source, json_object_get(row, "vars"), &got);
    check_outcome(row, source, status, &got, number, n);
    n->cases++;
    n->unusual += *prelude != '\0';
    tt_rendering_free(&got);
    free(source);
    json_decref(row);
}

static void engine_vectors_agree(void **state)
{
    (void)state;
    engine_counts n = {0};
    each_line(test_fixture("sft/template/engine.jsonl"), check_engine_case, &n);
    assert_int_equal(n.wrong, 0);
    assert_int_equal(n.cases, 343);
    assert_int_equal(n.unusual, 4);
    assert_int_equal(n.left_out, 4);
}

/* --- templates with conversations --------------------------------------------------------------------- */

/* What preparation does before a template sees a message: keys with null are dropped, and the reasoning is
 * offered under its usual names. */
static json_t *normalise(const json_t *messages)
{
    static const char *const aliases[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *all = json_deep_copy(messages), *message, *value;
    size_t i;
    json_array_foreach(all, i, message)
    {
        const char *key;
        void *next;
        json_object_foreach_safe(message, next, key, value) if (json_is_null(value))
            json_object_del(message, key);
        for (int k = 0; k < 3; k++) {
            value = json_object_get(message, aliases[k]);
            if (!value) continue;
            if (k) json_object_set(message, "reasoning_content", value);
            if (!json_object_get(message, "thinking")) json_object_set(message, "thinking", value);
            break;
        }
    }
    return all;
}

static json_t *make_variables(const json_t *row)
{
    json_t *v = json_object();
    json_object_set_new(v, "messages", normalise(json_object_get(row, "messages")));
    json_object_set(v, "tools", json_object_get(row, "tools"));
    json_object_set_new(v, "documents", json_null());
    json_object_set_new(v, "add_generation_prompt", json_false());
    json_object_update(v, json_object_get(row, "special_tokens"));
    json_object_update(v, json_object_get(row, "kwargs"));
    return v;
}

static int64_t code_points(const char *text, int64_t bytes)
{
    int64_t n = 0;
    for (int64_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static bool same_spans(const tt_rendering *got, const json_t *wanted)
{
    if (!wanted) return got->num_spans == 0;
    if ((size_t)got->num_spans != json_array_size(wanted)) return false;
    for (int64_t i = 0; i < got->num_spans; i++) {
        const json_t *span = json_array_get(wanted, (size_t)i);
        if (code_points(got->text, got->spans[i].begin) != json_integer_value(json_array_get(span, 0)) ||
            code_points(got->text, got->spans[i].end) != json_integer_value(json_array_get(span, 1)))
            return false;
    }
    return true;
}

typedef struct conversation_counts {
    const char *name;
    tt_template *template; /* NULL: every row has its own */
    int rows, failed, empty, with_spans, wrong;
} conversation_counts;

static bool agrees(const json_t *row, tt_status status, const tt_rendering *got)
{
    const json_t *error = json_object_get(row, "error");
    if (!error)
        return status == TT_OK && same_text(got, json_object_get(row, "rendered")) &&
               same_spans(got, json_object_get(row, "spans"));
    if (strcmp(json_string_value(json_object_get(error, "type")), "TemplateError") != 0)
        return status == TT_EDATA;
    const char *message = json_string_value(json_object_get(error, "message")), *text = tt_error_text();
    size_t n = strlen(message), have = strlen(text);
    return status == TT_EDATA && have > n + 2 && memcmp(text + have - n - 2, ": ", 2) == 0 &&
           strcmp(text + have - n, message) == 0;
}

static void check_conversation(char *line, int number, void *context)
{
    conversation_counts *n = context;
    json_t *row, *variables;
    tt_rendering got = {0};
    assert_ok(tt_json_parse(line, strlen(line), n->name, &row));
    n->rows++;
    n->failed += json_object_get(row, "error") != NULL;
    n->with_spans += json_array_size(json_object_get(row, "spans")) > 0;
    if (json_array_size(json_object_get(row, "messages")) == 0) {
        n->empty++; /* refused before any template is asked */
        json_decref(row);
        return;
    }
    variables = make_variables(row);
    const char *source = json_string_value(json_object_get(row, "template"));
    tt_status status =
        source ? render(source, variables, &got) : tt_template_render(n->template, variables, &got);
    if (!agrees(row, status, &got)) {
        n->wrong++;
        print_error("%s:%d (%s)\n  gave     %s: %s\n  expected %s\n", n->name, number,
                    json_string_value(json_object_get(row, "case")), tt_status_name(status),
                    status ? tt_error_text() : got.text,
                    json_object_get(row, "error") ? "an error"
                                                  : json_string_value(json_object_get(row, "rendered")));
    }
    tt_rendering_free(&got);
    json_decref(variables);
    json_decref(row);
}

static void check_template(const char *folder, const char *name, conversation_counts *n)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s.jinja", folder, name);
    char *source = read_text(path);
    assert_ok(tt_template_compile(source, path, &n->template));
    free(source);
    n->name = name;
    snprintf(path, sizeof path, "%s/%s.jsonl", folder, name);
    each_line(path, check_conversation, n);
    bool marked = n->with_spans > 0;
    assert_int_equal(tt_template_has_generation(n->template), marked);
    if (marked)
        assert_ok(tt_template_check_generation(n->template));
    else
        assert_error(tt_template_check_generation(n->template), TT_EFORMAT, "generation");
    tt_template_destroy(&n->template);
}

static void own_templates_agree(void **state)
{
    (void)state;
    static const char *const names[] = {"chatml", "chatml_plain",  "tulu",      "tulu_plain",
                                        "strict", "own_reasoning", "own_tools", "own_training"};
    conversation_counts all = {0};
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", test_fixture("sft/template"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        conversation_counts n = {0};
        check_template(folder, names[i], &n);
        assert_int_equal(n.rows, 76);
        all.failed += n.failed, all.empty += n.empty, all.wrong += n.wrong, all.with_spans += n.with_spans;
    }
    assert_int_equal(all.wrong, 0);
    assert_int_equal(all.empty, 8);
    assert_true(all.failed > 60 && all.with_spans > 200);
}

static void spans_agree(void **state)
{
    (void)state;
    conversation_counts n = {.name = "spans.jsonl"};
    each_line(test_fixture("sft/template/spans.jsonl"), check_conversation, &n);
    assert_int_equal(n.rows, 31);
    assert_int_equal(n.wrong, 0);
    assert_true(n.with_spans > 25);
}

static void templates_of_others_agree(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3_own",
                                        "qwen3",
                                        "qwen3_training",
                                        "qwen3_instruct_2507",
                                        "qwen3_instruct_2507_training",
                                        "qwen2_5",
                                        "qwen2_5_training",
                                        "qwen3_5_think",
                                        "qwen3_5_think_training",
                                        "qwen3_6",
                                        "qwen3_6_training",
                                        "glm4moe",
                                        "glm4moe_training",
                                        "llama3",
                                        "llama3_training",
                                        "llama3_1",
                                        "deepseekv3",
                                        "deepseekv3_training",
                                        "phi3_training",
                                        "gemma",
                                        "gemma_training"};
    const char *reference = test_reference("fixtures/sft/template/third-party");
    if (!reference) skip();
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", reference);
    int wrong = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        conversation_counts n = {0};
        check_template(folder, names[i], &n);
        assert_int_equal(n.rows, 76);
        wrong += n.wrong;
    }
    assert_int_equal(wrong, 0);
}

/* --- generation --------------------------------------------------------------------------------------- */

static void expect_spans(const char *source, const char *text, int count, const int64_t *bounds)
{
    json_t *none = json_object();
    tt_rendering got;
    assert_ok(render(source, none, &got));
    assert_string_equal(got.text, text);
    assert_int_equal(got.num_spans, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(got.spans[i].begin, bounds[2 * i]);
        assert_int_equal(got.spans[i].end, bounds[2 * i + 1]);
    }
    tt_rendering_free(&got);
    json_decref(none);
}

static void spans_are_disjoint_byte_ranges(void **state)
{
    (void)state;
    expect_spans("é{% generation %}ü{% endgeneration %}x", "éüx", 1, (int64_t[]){2, 4});
    expect_spans("a{% generation %}b{% generation %}c{% endgeneration %}d{% endgeneration %}e", "abcde", 1,
                 (int64_t[]){1, 4});
    expect_spans("{% for i in range(3) %}-{% generation %}{{ i }}{% endgeneration %}{% endfor %}", "-0-1-2",
                 3, (int64_t[]){1, 2, 3, 4, 5, 6});
    /* What is captured before the block does not shift it. */
    expect_spans("{% set s %}abc{% endset %}x{% generation %}{{ s }}{% endgeneration %}", "xabc", 1,
                 (int64_t[]){1, 4});
}

static void lost_generation_blocks_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "\n{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}",
        "\n{% set s %}{% generation %}x{% endgeneration %}{% endset %}{{ s }}",
        "\n{% filter trim %}{% generation %}x{% endgeneration %}{% endfilter %}",
        ("\n{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% generation %}x{% endgeneration %}{% "
         "endcall %}"),
        "\n{% for i in [1] recursive %}{% generation %}x{% endgeneration %}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        tt_template *t;
        assert_ok(tt_template_compile(sources[i], "m.jinja", &t));
        assert_false(tt_template_has_generation(t));
        assert_error(tt_template_check_generation(t), TT_EFORMAT, "m.jinja:2: ");
        assert_error(tt_template_check_generation(t), TT_EFORMAT, "move it out");
        tt_template_destroy(&t);
        expect(sources[i], "\nx");
    }
}

/* --- the table in the description of the language; its other lines are in engine.jsonl ---------------- */

static void table_of_the_language_agrees(void **state)
{
    (void)state;
    expect("{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue");
    expect("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "-4 2 3.5");
    expect("{{ 1 < 2 < 3 }} {{ 'a' == 'a' == true }}", "True False");
    expect("{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ ''.split('x') }}",
           "['a', 'b', '', 'c']['a', 'b']['']");
    expect("{{ 'héé'[-1:] }}{{ 'abc'[9] }}", "é");
    expect("{{ u|length }}{{ u|join(',') }}{{ u|list }}{% for x in u %}a{% endfor %}", "0[]");
    expect("{{ 'Hello World'|capitalize }}{{ none|default('z') }}{{ ''|default('z',true) }}",
           "Hello worldNonez");
    expect("{{ {'b':1,'a':2}|dictsort }}", "[('a', 2), ('b', 1)]");
    expect("{{ 'x\\\ny' }}", "xy");
    expect_failure("{{ 'x' + u }}", TT_EDATA, "'u' is undefined");
}

/* --- details that the vectors do not reach ------------------------------------------------------------ */

static void generators_are_true_and_walk_once(void **state)
{
    (void)state;
    expect("{% set g = [1, 2] | map('string') %}{{ g | first }}{{ g | list }}{{ g | list }}", "1['2'][]");
    expect("{{ 'y' if [] | select else 'n' }}{{ 'y' if [] | select | list else 'n' }}", "yn");
    expect_failure("{{ [1] | select | length }}", TT_EDATA, "no len()");
    expect_failure("{{ [1] | select }}", TT_EDATA, "| list");
    expect("{{ none | map('upper') | list }}{{ none | selectattr('x') | list }}", "[][]");
}

static void loops_test_items_as_late_as_they_can(void **state)
{
    (void)state;
    expect("{% set n = namespace(stop=false) %}{% for i in range(9) if not n.stop %}{{ i }}"
           "{% if i == 2 %}{% set n.stop = true %}{% endif %}{% endfor %}",
           "012");
    expect("{% for i in range(9) if i % 2 %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
           "1/4False 2/4False 3/4False 4/4True ");
    expect("{% for i in [x, y] %}{{ loop.nextitem is defined }}{{ loop.last }} {% endfor %}",
           "FalseFalse FalseTrue ");
    expect("{% for i in [1, 2] %}{% continue %}{% else %}none{% endfor %}", "none");
}

static void text_follows_unicode(void **state)
{
    (void)state;
    expect("{{ 'ΌΣΟΣ. ΣΑΣ Σ' | lower }}|{{ 'ŉa ﬃ ᾳ' | upper }}|{{ 'ǆ ß' .title() }}",
           "όσος. σας σ|ʼNA FFI ΑΙ|ǅ Ss");
    expect("{{ '\\u2003a\\u00a0'.strip() }}|{{ 'ééaé'.strip('é') }}|{{ 'aéb'.find('b') }}", "a|a|2");
    expect("{{ ['\\u200b', '\\x7f', 'é'] }}", "['\\u200b', '\\x7f', 'é']");
}

static void numbers_are_pythons(void **state)
{
    (void)state;
    expect("{{ 9223372036854775807 + 1 }} {{ -9223372036854775808 - 1 }} {{ 2 ** 100 - 2 ** 100 }}",
           "9223372036854775808 -9223372036854775809 0");
    expect("{{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 0.1 + 0.7 }} {{ 123456789012345680.0 }}",
           "5e-324 1.7976931348623157e+308 0.7999999999999999 1.2345678901234568e+17");
    expect("{{ -7.5 // 2 }} {{ -7.5 % 2 }} {{ 7 % -3 }} {{ 2 ** 0.5 }}", "-4.0 0.5 -2 1.4142135623730951");
    expect("{{ 9007199254740993 == 9007199254740992.0 }} {{ 10 ** 30 > 10 ** 29 }} {{ '0b11' | int(0, 2) }}",
           "False True 3");
    expect_failure("{{ 2 ** 128 }}", TT_EDATA, "128 bits");
    expect_failure("{{ 0x1ffffffffffffffff }}", TT_EFORMAT, "too large");
}

static void formats_are_pythons(void **state)
{
    (void)state;
    expect("{{ '%-5s|%5.1f|%+d|%x|%%|%03d' % ('é', 2.25, 3, 255, -7) }}", "é    |  2.2|+3|ff|%|-07");
    expect("{{ '%(a)s%(b)r' % {'a': 1, 'b': 'x'} }}", "1'x'");
    expect("{{ '{0:>5}{1:^5}{2:,}'.format('ab', 'c', 1234567) }}{{ '{a[k]!r}'.format(a={'k': 'v'}) }}",
           "   ab  c  1,234,567'v'");
    expect_failure("{{ '%s' % (1, 2) }}", TT_EDATA, "not all arguments");
    expect_failure("{{ '%9999999999d' % 1 }}", TT_EDATA, "too large");
    expect_failure("{{ '{:999999999}'.format(1) }}", TT_EDATA, "too large");
}

static void dates_can_be_fixed(void **state)
{
    (void)state;
    tt_rendering got;
    json_t *v = json_pack("{s:s}", "template_date", "2024-02-29T13:05:09");
    assert_ok(render("{{ strftime_now('%d %b %Y %A %j %H:%M:%S') }}", v, &got));
    assert_string_equal(got.text, "29 Feb 2024 Thursday 060 13:05:09");
    tt_rendering_free(&got);
    json_object_set_new(v, "template_date", json_string("2023-02-29"));
    assert_error(render("{{ strftime_now('%d') }}", v, &got), TT_EDATA, "template_date");
    json_decref(v);
    expect("{{ strftime_now('%Y') | length }}{{ strftime_now('') }}", "4");
}

static void errors_name_file_and_line(void **state)
{
    (void)state;
    expect_failure("a\n{{ 1 }}\n{% if x %}", TT_EFORMAT, "t:3: ");
    expect_failure("a\n\n{{ 1 +\n }}", TT_EFORMAT, "t:4: ");
    expect_failure("a\n{% for i in [1] %}\n{{ i.x.y }}{% endfor %}", TT_EDATA,
                   "t:3: 'int object' has no attribute 'x'");
    expect_failure("{% if x is nothing %}{% endif %}{{ x | nothing }}", TT_EFORMAT,
                   "t:1: no filter named 'nothing'");
    expect("{% if false %}{{ x | nothing }}{% endif %}{{ 1 if true else 2 | nothing }}", "1");
    expect_failure("{% if true %}{{ x is nothing }}{% endif %}", TT_EDATA, "no test named 'nothing'");
    expect_failure("{% for loop in [1] %}{% endfor %}", TT_EFORMAT, "'loop' cannot be assigned");
    expect_failure("\xff", TT_EFORMAT, "UTF-8");
    expect_failure("{{ '\\ud800' }}", TT_EFORMAT, "U+D800");
}

/* --- templates that mean harm ------------------------------------------------------------------------- */

static char *repeated(const char *head, const char *part, size_t count, const char *tail)
{
    size_t n = strlen(part);
    char *text = malloc(strlen(head) + n * count + strlen(tail) + 1), *to = text + strlen(head);
    strcpy(text, head);
    for (size_t i = 0; i < count; i++, to += n) memcpy(to, part, n);
    strcpy(to, tail);
    return text;
}

static void expect_refused(const char *head, const char *part, size_t count, const char *tail)
{
    char *source = repeated(head, part, count, tail);
    json_t *none = json_object();
    tt_rendering got;
    tt_status status = render(source, none, &got);
    if (status == TT_OK) fail_msg("%s%s... x %zu was accepted", head, part, count);
    assert_null(got.text);
    json_decref(none);
    free(source);
}

static void deep_source_is_refused(void **state)
{
    (void)state;
    static const char *const parts[][3] = {{"{{ ", "(", ""},
                                           {"{{ ", "[", ""},
                                           {"{{ ", "{1:", ""},
                                           {"{{ ", "-", "1 }}"},
                                           {"{{ ", "not ", "1 }}"},
                                           {"{{ ", "1 if ", "1 }}"},
                                           {"{{ ", "f(", ""},
                                           {"{{ 1", "+1", " }}"},
                                           {"{{ x", ".a", " }}"},
                                           {"{{ x", "[0]", " }}"},
                                           {"{{ x", "|trim", " }}"},
                                           {"{{ 1", " is odd", " }}"},
                                           {"", "{% if 1 %}", ""},
                                           {"", "{% for i in x %}", ""},
                                           {"", "{% generation %}", ""},
                                           {"{% set ", "(", " = 1 %}"},
                                           {"{{ 1", " if 1 else 1", " }}"},
                                           {"{{ 1", "**1", " }}"},
                                           {"{{ x", "()", " }}"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        expect_refused(parts[i][0], parts[i][1], 300000, parts[i][2]);
    expect_refused("", "{{ 'a' }}", 1000000, "");         /* more than 4 MiB */
    char *wide = repeated("{{ 1", " ~ 1", 100000, " }}"); /* wide is not deep */
    json_t *none = json_object();
    tt_rendering got;
    assert_ok(render(wide, none, &got));
    assert_int_equal(got.bytes, 100001);
    tt_rendering_free(&got);
    json_decref(none);
    free(wide);
}

static void unfinished_source_is_refused(void **state)
{
    (void)state;
    static const char *const sources[] = {"{{",
                                          "{%",
                                          "{#",
                                          "{{ '",
                                          "{{ \"\\",
                                          "{% raw %}x",
                                          "{% raw %}{% endraw",
                                          "{%- ",
                                          "{{ 1 -",
                                          "{{ x[",
                                          "{{ x[1:",
                                          "{{ x.",
                                          "{{ x|",
                                          "{{ x is",
                                          "{{ x is not",
                                          "{{ f(",
                                          "{{ f(a=",
                                          "{{ [1,",
                                          "{{ {1",
                                          "{{ {1:",
                                          "{% set",
                                          "{% set x",
                                          "{% set x %}",
                                          "{% for",
                                          "{% for x in",
                                          "{% for x in y",
                                          "{% macro",
                                          "{% macro m(",
                                          "{% macro m() %}",
                                          "{% call",
                                          "{% filter",
                                          "{% if",
                                          "{% if x %}{% else",
                                          "{% generation",
                                          "{% generation %}",
                                          "{{ '\\x",
                                          "{{ '\\u12' }}",
                                          "{{ 1e",
                                          "{% with",
                                          "{% with a",
                                          "{% print",
                                          "{{ -",
                                          "{{ not",
                                          "{{ 1 if",
                                          "{{ 1 if 1 else",
                                          "{{ a not"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        expect_failure(sources[i], TT_EFORMAT, "t:1: ");
}

static void endless_work_is_refused(void **state)
{
    (void)state;
    static const char *const sources[] = {
        "{{ 'a' * 1000000000000 }}",
        "{{ [1] * 1000000000000 }}",
        "{{ [1, 2] * 9223372036854775807 }}",
        "{{ '' * 9223372036854775807 ~ 'x' * 70000000 }}",
        "{{ range(1000000000) | list }}",
        "{{ range(-9223372036854775807, 9223372036854775807) | list }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(100000) %}{% set x = 'abcdefgh' * 100000 %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x "
        "== n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x "
        "| tojson }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | "
        "tojson }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x == "
        "[n.x] }}",
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
        "{{ [1] | tojson(indent=1000000000000) }}",
        "{{ 'x' | indent(1000000000000, true) }}",
        "{{ 'x'.ljust(1000000000000) }}",
        "{{ 'x' | center(100000000) }}",
        "{{ '%100000000d' % 1 }}",
        "{{ [1] | batch(100000000, 0) | list }}",
        "{{ [1] | slice(100000000) | list }}",
        "{% set s = 'a' * 100000 %}{{ s.rfind('b' ~ 'a' * 90000) }}{{ s.strip('b' * 1000000 ~ 'a') }}",
        "{% set s = 'a' * 100000 %}{{ s.replace('a', 'b' * 1000) }}",
        "{% set s = 'a' * 100000 %}{{ s.replace('', 'b' * 1000) }}",
        "{% for c in 'a' * 60000000 %}{% endfor %}",
        "{{ 10 ** 1000000000 }}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        expect_failure(sources[i], TT_EDATA, "t:1: ");
}

static void deep_data_is_refused(void **state)
{
    (void)state;
    json_t *deep = json_array();
    for (int i = 0; i < 1500; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_t *v = json_object();
    json_object_set_new(v, "x", deep);
    tt_rendering got;
    assert_error(render("{{ x }}", v, &got), TT_EDATA, "nested more than");
    assert_ok(render("not read, so not converted", v, &got));
    tt_rendering_free(&got);
    json_decref(v);
}

/* --- threads ------------------------------------------------------------------------------------------ */

static void *render_many(void *template)
{
    for (int i = 0; i < 200; i++) {
        json_t *v = json_pack("{s:[i,i]}", "x", i, i + 1);
        tt_rendering got;
        char wanted[64];
        snprintf(wanted, sizeof wanted, "[%d, %d]%d", i, i + 1, 2 * i + 1);
        bool good = tt_template_render(template, v, &got) == TT_OK && strcmp(got.text, wanted) == 0;
        tt_rendering_free(&got);
        json_decref(v);
        if (!good) return "wrong";
    }
    return NULL;
}

static void threads_share_a_template(void **state)
{
    (void)state;
    pthread_t threads[4];
    tt_template *t;
    assert_ok(tt_template_compile("{% macro f(a) %}{{ a | sum }}{% endmacro %}{{ x }}{{ f(x) }}", "t", &t));
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, render_many, t), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    tt_template_destroy(&t);
    assert_null(t);
    tt_template_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_vectors_agree),
        cmocka_unit_test(own_templates_agree),
        cmocka_unit_test(spans_agree),
        cmocka_unit_test(templates_of_others_agree),
        cmocka_unit_test(table_of_the_language_agrees),
        cmocka_unit_test(spans_are_disjoint_byte_ranges),
        cmocka_unit_test(lost_generation_blocks_are_refused_by_name),
        cmocka_unit_test(generators_are_true_and_walk_once),
        cmocka_unit_test(loops_test_items_as_late_as_they_can),
        cmocka_unit_test(text_follows_unicode),
        cmocka_unit_test(numbers_are_pythons),
        cmocka_unit_test(formats_are_pythons),
        cmocka_unit_test(dates_can_be_fixed),
        cmocka_unit_test(errors_name_file_and_line),
        cmocka_unit_test(deep_source_is_refused),
        cmocka_unit_test(unfinished_source_is_refused),
        cmocka_unit_test(endless_work_is_refused),
        cmocka_unit_test(deep_data_is_refused),
        cmocka_unit_test(threads_share_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
