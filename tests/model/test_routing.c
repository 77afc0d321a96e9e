/* Which experts a model chooses: exact ties, biases that differ in the last digits, what chooses and what weighs. That
 * meshes choose alike is shown by test_layouts.c; here the choice itself is held against the rule. */
#include "support/test.h"
#include "support/trial.h"

#include "checkpoint/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_T = 80, MAX_E = 64, MAX_LAYERS = 4 };

/* What the router of each MoE layer saw and said in one forward pass of one rank. */
typedef struct routed {
    int64_t T, K, E;
    int layers, last; /* last: MoE layer whose logits came last */
    float logits[MAX_LAYERS][MAX_T * MAX_E], gates[MAX_LAYERS][MAX_T * 8];
    int32_t ids[MAX_LAYERS][MAX_T * 8];
} routed;

static void listen(void *user, const char *what, int layer, tt_mat m)
{
    (void)layer;
    routed *r = user;
    if (!strcmp(what, "router_logits"))
        r->last++;
    else if (strcmp(what, "gates") != 0)
        return;
    float *out = strcmp(what, "gates") ? r->logits[r->last] : r->gates[r->last];
    memcpy(out, m.data, (size_t)(m.rows * m.cols) * sizeof *out);
}

/* A row of T tokens through the model. */
static tt_status route(tt_engine *e, int64_t T, routed *r)
{
    const tt_model_config *c = &e->config;
    int32_t ids[MAX_T], *lists[MAX_LAYERS];
    tt_micro_result result;
    tt_batch b = {0};
    for (int64_t t = 0; t < T; t++) ids[t] = (int32_t)((t * 7 + e->mesh->rank * 3 + 2) % c->vocab_size);
    *r = (routed){.T = T,
                  .K = c->experts_per_token,
                  .E = c->num_experts,
                  .last = -1,
                  .layers = tt_model_moe_index(c, (int)c->num_layers)};
    TT_CHECK(r->K <= 8 && r->E <= MAX_E && r->layers <= MAX_LAYERS && T <= MAX_T, TT_EINTERNAL,
             "test arrays are too small");
    for (int i = 0; i < r->layers; i++) lists[i] = r->ids[i];
    tt_batch_row row = {.length = T, .ids = ids};
    TT_TRY(tt_batch_add(&b, &row, 0, c->vocab_size));
    e->model.tap = listen;
    e->model.tap_user = r;
    tt_micro micro = {.batch = &b, .record = lists};
    tt_status status = tt_model_micro_step(&e->model, &micro, &result);
    e->model.tap = NULL;
    tt_batch_free(&b);
    return status;
}

static bool chosen(const routed *r, int layer, int64_t t, int64_t expert)
{
    for (int64_t i = 0; i < r->K; i++)
        if (r->ids[layer][t * r->K + i] == expert) return true;
    return false;
}

/* --- ties ------------------------------------------------------------------------------------------------------ */

/* Experts e, e + 3, e + 6 ... have equal rows: a later one is chosen only where all earlier ones are. */
static tt_status check_ties(tt_engine *e, void *arg)
{
    static const int64_t sizes[] = {1, 5, 6, 7, 13, 14, 15, 16, 17, 31, 32, 33, 55, 56, 57, 64, 65};
    int *partly = arg;
    routed *r = malloc(sizeof *r);
    tt_status status = TT_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && status == TT_OK; i++) {
        status = route(e, sizes[i], r);
        for (int layer = 0; layer < r->layers && status == TT_OK; layer++)
            for (int64_t t = 0; t < r->T; t++)
                for (int64_t x = 3; x < r->E; x++) {
                    bool before = chosen(r, layer, t, x - 3), here = chosen(r, layer, t, x);
                    if (r->logits[layer][t * r->E + x] != r->logits[layer][t * r->E + x - 3])
                        status = tt_error_set(TT_EVERDICT,
                                              "scores of equal rows differ at token %lld of %lld, expert %lld",
                                              (long long)t, (long long)r->T, (long long)x);
                    if (here && !before)
                        status = tt_error_set(TT_EVERDICT, "token %lld of %lld, layer %d: expert %lld before %lld",
                                              (long long)t, (long long)r->T, layer, (long long)x, (long long)(x - 3));
                    if (e->mesh->rank == 0) *partly += before && !here;
                }
    }
    free(r);
    return status;
}

static void ties_choose_the_lower_index(void **state)
{
    (void)state;
    static const tt_ops *const tables[] = {&tt_ops_ref, &tt_ops_cpu};
    static const int experts[] = {9, 16, 17, 33, 64};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        for (int world = 1; world <= 2; world++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                char config[600];
                int partly = 0;
                snprintf(
                    config, sizeof config,
                    "{\"model_type\": \"olmoe\", \"vocab_size\": 50, \"hidden_size\": 32, \"num_hidden_layers\": 2,"
                    "\"num_attention_heads\": 4, \"num_experts\": %d, \"num_experts_per_tok\": 4,"
                    "\"intermediate_size\": 4, \"initializer_range\": 0.2}",
                    experts[i]);
                trial_model model = {.name = "ties", .config = config, .edit = trial_triples};
                trial_run run = {.model = &model,
                                 .mesh = TRIAL_MESH(world, world),
                                 .ops = tables[(i + (size_t)bf16) % 2],
                                 .bf16_compute = bf16};
                assert_ok(trial_on_mesh(&run, check_ties, &partly));
                assert_true(partly > 100); /* the cut falls between equals again and again */
            }
}

/* --- biases ---------------------------------------------------------------------------------------------------- */

#define NEAR_SEVEN 10

/* Scores are all 1/2, so the biases alone choose: 7 + 0.002 times a permutation. BF16 has steps of 0.03 there, F16 of
 * 0.004. */
static int64_t rank_of(int64_t expert)
{
    return (expert * 7 + 4) % NEAR_SEVEN;
}

static float biases_near_seven(const tt_param *p, int64_t element, float value)
{
    if (strstr(p->name, "mlp.gate.weight")) return 0;
    if (strstr(p->name, "correction_bias")) return 7 + 0.002f * (float)rank_of(element);
    return trial_liven(p, element, value);
}

static tt_status best_biases_win(tt_engine *e, void *arg)
{
    (void)arg;
    routed *r = malloc(sizeof *r);
    tt_status status = route(e, 20, r);
    for (int layer = 0; layer < r->layers && status == TT_OK; layer++)
        for (int64_t t = 0; t < r->T; t++)
            for (int64_t x = 0; x < r->E; x++)
                if (chosen(r, layer, t, x) != (rank_of(x) >= NEAR_SEVEN - r->K))
                    status = tt_error_set(TT_EVERDICT, "expert %lld with bias rank %lld is%s chosen", (long long)x,
                                          (long long)rank_of(x), chosen(r, layer, t, x) ? "" : " not");
    free(r);
    return status;
}

typedef struct save_job {
    const char *folder;
} save_job;

static tt_status save_model(tt_engine *e, void *arg)
{
    save_job *j = arg;
    tt_save_report report;
    tt_save_options o = {.config = e->config.source};
    TT_TRY(best_biases_win(e, NULL));
    return tt_save_model(j->folder, e->shards, &o, &report);
}

static void biases_keep_their_digits(void **state)
{
    (void)state;
    static const trial_mesh meshes[] = {TRIAL_MESH(1, 1), TRIAL_MESH(2, 2), TRIAL_MESH(4, 2), TRIAL_MESH(5, 5)};
    trial_model model = {
        .name = "near seven",
        .edit = biases_near_seven,
        .config = "{\"model_type\": \"glm4_moe\", \"vocab_size\": 30, \"hidden_size\": 16, \"num_hidden_layers\": 3,"
                  "\"num_attention_heads\": 2, \"num_key_value_heads\": 2, \"n_routed_experts\": 10, "
                  "\"num_experts_per_tok\": 3,"
                  "\"moe_intermediate_size\": 4, \"intermediate_size\": 8, \"initializer_range\": 0.2, \"dtype\": "
                  "\"bfloat16\"}"};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (int kind = 0; kind < 3; kind++) {
            char folder[1200];
            snprintf(folder, sizeof folder, "%s/model", test_folder("near-seven"));
            save_job j = {folder};
            trial_run run = {.model = &model,
                             .mesh = meshes[i],
                             .ops = i % 2 ? &tt_ops_ref : &tt_ops_cpu,
                             .bf16_compute = kind > 0,
                             .bf16_weights = kind > 1};
            assert_ok(trial_on_mesh(&run, save_model, &j));
            /* From a file whose other tensors are BF16. */
            run.folder = folder;
            assert_ok(trial_on_mesh(&run, best_biases_win, NULL));
        }
}

/* --- what weighs ----------------------------------------------------------------------------------------------- */

/* Gates by hand from the logits: the score without its bias. And the bias does choose: some token takes an expert that the
 * scores alone would leave out. */
static tt_status check_gates(tt_engine *e, void *arg)
{
    const tt_model_config *c = &e->config;
    int *swayed = arg, mine = 0;
    routed *r = malloc(sizeof *r);
    tt_status status = route(e, 30, r);
    for (int layer = 0; layer < r->layers && status == TT_OK; layer++)
        for (int64_t t = 0; t < r->T; t++) {
            double s[MAX_E], sum = 0, least = INFINITY;
            for (int64_t x = 0; x < r->E; x++) s[x] = 1 / (1 + exp(-(double)r->logits[layer][t * r->E + x]));
            for (int64_t i = 0; i < r->K; i++) {
                double score = s[r->ids[layer][t * r->K + i]];
                sum += score;
                least = fmin(least, score);
            }
            for (int64_t x = 0; x < r->E; x++) mine += !chosen(r, layer, t, x) && s[x] > least;
            for (int64_t i = 0; i < r->K; i++) {
                double want = c->gate_scale * s[r->ids[layer][t * r->K + i]] / (c->normalise_gates ? sum : 1);
                double got = r->gates[layer][t * r->K + i];
                /* An exponential, a division and a sum of K, each rounded once or twice. */
                if (!(fabs(got - want) <= 1e-6 * want))
                    status = tt_error_set(TT_EVERDICT, "gate of expert %d is %.9g, expected %.9g",
                                          r->ids[layer][t * r->K + i], got, want);
            }
        }
    if (e->mesh->rank == 0) *swayed += mine;
    free(r);
    return status;
}

static void the_bias_chooses_and_does_not_weigh(void **state)
{
    (void)state;
    static const char *const names[] = {"glm4, groups, shared, tied", "glm4, 10 experts"};
    for (int i = 0; i < 2; i++)
        for (int world = 1; world <= 4; world++)
            for (int bf16 = 0; bf16 < 2; bf16++) {
                int swayed = 0;
                trial_run run = {.model = trial_find_model(names[i]),
                                 .mesh = TRIAL_MESH(world, world),
                                 .ops = bf16 ? &tt_ops_cpu : &tt_ops_ref,
                                 .bf16_compute = bf16};
                assert_ok(trial_on_mesh(&run, check_gates, &swayed));
                assert_true(swayed > 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_choose_the_lower_index),
        cmocka_unit_test(biases_keep_their_digits),
        cmocka_unit_test(the_bias_chooses_and_does_not_weigh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
