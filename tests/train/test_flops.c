/* The formula of useful work, against counts by hand, and what it is held against. */
#include "support/fixture.h"
#include "support/test.h"

#include "base/json.h"
#include "train/flops.h"
#include "train/metrics.h"

#include <stdio.h>

/* Pairs by looking at each of them. */
static int64_t count_pairs(const tt_docs *docs, int64_t window)
{
    int64_t pairs = 0;
    for (int64_t d = 0; d < docs->num; d++)
        for (int64_t t = docs->offset[d]; t < docs->offset[d + 1]; t++)
            for (int64_t s = docs->offset[d]; s <= t; s++) pairs += window == 0 || t - s < window;
    return pairs;
}

static void pairs_are_counted(void **state)
{
    (void)state;
    int64_t offset[] = {0, 1, 1, 8, 20, 23};
    for (int64_t num = 0; num <= 5; num++)
        for (int64_t window = 0; window <= 14; window++) {
            tt_docs docs = {.num = num, .offset = offset};
            assert_int_equal(tt_flops_pairs(&docs, window), count_pairs(&docs, window));
        }
}

/* Products of one token, by name: an element of a matrix is a multiply-add. */
static double elements(const tt_engine *e)
{
    double sum = 0;
    const tt_params *p = &e->table.params;
    for (int64_t i = 0; i < p->num; i++) {
        bool ends = p->units[p->at[i].unit].kind == TT_UNIT_EMBEDDING || p->units[p->at[i].unit].kind == TT_UNIT_HEAD;
        if (!ends && p->at[i].expert < e->config.experts_per_token) sum += (double)p->at[i].count;
    }
    return sum;
}

static tt_status body(fixture *f, void *arg)
{
    const tt_engine *e = &f->engine;
    const tt_model_config *c = &e->config;
    double head = (double)(c->vocab_size * c->hidden_size), tokens = 30, targets = 20, pairs = 200, rate = 0;
    double attention = 2.0 * 3 * 2 * (double)(c->head_dim * c->num_heads * c->num_layers); /* score and value, three times */
    double expected = 6 * elements(e) * tokens + 6 * head * targets + attention * pairs;
    double got = tt_flops_useful(c, &e->table.params, tokens, targets, pairs);
    (void)arg;
    /* The final norm is in the head's unit: its width is the only difference. */
    TT_CHECK(got >= expected && got <= expected + 6 * (double)c->hidden_size * tokens, TT_EVERDICT, "%s: %.17g, expected %.17g",
             f->run->id, got, expected);
    TT_TRY(tt_flops_rate(e->mesh->world, e->kernel, &rate));
    TT_CHECK(rate > 1e6 && rate < 1e15, TT_EVERDICT, "%g operations a second", rate);
    return TT_OK;
}

static void the_formula_is_that_of_the_parameters(void **state)
{
    (void)state;
    static const char *const ids[] = {"O1", "Q1", "G1", "O2", "Q2", "G2"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        fixture_run r = {.id = ids[i], .ops = &tt_ops_cpu, .world = 2, .ep = 1};
        assert_ok(fixture_on_mesh(&r, body, NULL));
    }
}

/* 2048 x 2 = 4096 tokens of T = 2048 with OLMoE's numbers: what the formula gives when it is worked out on paper. */
static void olmoe_by_hand(void **state)
{
    (void)state;
    json_t *config = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:b, s:f, s:b}", "model_type", "olmoe", "vocab_size", 50304,
                               "hidden_size", 2048, "intermediate_size", 1024, "num_hidden_layers", 2, "num_attention_heads", 16,
                               "num_experts", 64, "num_experts_per_tok", 8, "norm_topk_prob", 0, "rms_norm_eps", 1e-5,
                               "tie_word_embeddings", 0);
    tt_model_config c;
    tt_model_table table;
    int64_t offset[] = {0, 2048, 4096};
    tt_docs docs = {.num = 2, .offset = offset};
    assert_ok(tt_model_config_read(config, "config.json", &c));
    assert_ok(tt_model_table_build(&c, &table));
    double matrices = 2 * (4 * 2048.0 * 2048 + 64 * 2048.0 + 8 * 3 * 2048.0 * 1024), norms = 2 * 4 * 2048.0 + 2048;
    double expected = 6 * ((matrices + norms) * 4096 + 2048.0 * 50304 * 4094) + 12 * 2 * 2048.0 * 2 * (2048 * 2049 / 2.0);
    /* Sums of a few numbers below 1e13. */
    assert_close(tt_flops_useful(&c, &table.params, 4096, 4094, (double)tt_flops_pairs(&docs, 0)), expected, 1e-15 * 8 * expected);
    tt_model_table_free(&table);
    tt_model_config_free(&c);
    json_decref(config);
}

/* The one record of a step of 5e9 operations. */
static json_t *record_with(double rate)
{
    char path[1100];
    tt_metrics m;
    json_t *record;
    tt_step_result r = {.tokens = 100, .flops = 5e9};
    snprintf(path, sizeof path, "%s/metrics.jsonl", test_folder("flops"));
    assert_ok(tt_metrics_open(&m, path, false));
    m.rate = rate;
    tt_metrics_add(&m, &r, 1);
    assert_ok(tt_metrics_record(&m, 1, 0.5, 1e-3, 1, NULL));
    assert_true(m.flops == 0); /* the next record begins anew */
    tt_metrics_close(&m);
    assert_ok(tt_json_load(path, 1 << 20, &record));
    return record;
}

/* Both are what tokens_per_second is, times 5e7 operations a token. Numbers are written with 15 digits. */
static void records_have_the_rate(void **state)
{
    (void)state;
    json_t *with = record_with(2e11), *without = record_with(0);
    double tokens = json_real_value(json_object_get(with, "tokens_per_second"));
    assert_close(json_real_value(json_object_get(with, "tflops")) / (tokens * 5e7 * 1e-12), 1, 1e-13);
    assert_close(json_real_value(json_object_get(with, "mfu")) / (tokens * 5e7 / 2e11), 1, 1e-13);
    assert_true(json_real_value(json_object_get(without, "tflops")) > 0);
    assert_null(json_object_get(without, "mfu"));
    json_decref(with);
    json_decref(without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_counted),
        cmocka_unit_test(the_formula_is_that_of_the_parameters),
        cmocka_unit_test(olmoe_by_hand),
        cmocka_unit_test(records_have_the_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
