/* Central finite differences in double for whole tiny models: every parameter class of every block kind, through the code
 * that trains (units, dispatch, recomputation), with the expert choices held.
 *
 * Error of a central difference with step h on a loss of order 10: truncation of order h^2, rounding 10 eps / h. With
 * h = 1e-5 both are near 1e-10; gradients that matter are above 1e-3 of the largest, so 1e-6 of max(|g|, 1e-3 largest)
 * leaves room for large third derivatives and nothing else. */
#include "support/fixture.h"
#include "support/test.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP      1e-5
#define TOLERANCE 1e-6

typedef struct problem {
    fixture *f;
    tt_batch *batch;
    double balance;
    const int32_t *const *choices;
    int64_t targets;
} problem;

static tt_status objective(const problem *p, double *out)
{
    tt_micro_result r;
    tt_micro micro = {.batch = p->batch, .scale = 1 / (double)p->targets, .balance = p->balance, .replay = p->choices};
    TT_TRY(tt_model_micro_step(&p->f->engine.model, &micro, &r));
    *out = r.sums.nll / (double)p->targets + p->balance * r.balance_loss;
    return TT_OK;
}

static tt_status check_element(const problem *p, const tt_piece *piece, int64_t i, double largest)
{
    const char *name = tt_shards_params(p->f->engine.shards)->at[piece->param].name;
    double *w = tt_shards_view(p->f->engine.shards, piece, TT_PART_WEIGHT).data;
    double g = ((double *)tt_shards_view(p->f->engine.shards, piece, TT_PART_GRADIENT).data)[i];
    double kept = w[i], up, down;
    w[i] = kept + STEP;
    TT_TRY(objective(p, &up));
    w[i] = kept - STEP;
    TT_TRY(objective(p, &down));
    w[i] = kept;
    double numeric = (up - down) / (2 * STEP), scale = fmax(fabs(g), 1e-3 * largest);
    TT_CHECK(fabs(numeric - g) <= TOLERANCE * scale, TT_EVERDICT, "'%s'[%lld]: gradient %.12g, difference quotient %.12g",
             name, (long long)i, g, numeric);
    return TT_OK;
}

static int64_t largest_element(tt_mat m)
{
    const double *g = m.data;
    int64_t best = 0;
    for (int64_t i = 1; i < m.cols; i++)
        if (fabs(g[i]) > fabs(g[best])) best = i;
    return best;
}

static tt_status check_all(const problem *p)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(p->f->engine.shards, &num);
    double largest = 0;
    for (int64_t i = 0; i < num; i++) {
        if (!tt_shards_params(p->f->engine.shards)->at[pieces[i].param].trained) continue;
        tt_mat g = tt_shards_view(p->f->engine.shards, &pieces[i], TT_PART_GRADIENT);
        largest = fmax(largest, fabs(((double *)g.data)[largest_element(g)]));
    }
    for (int64_t i = 0; i < num; i++) {
        if (!tt_shards_params(p->f->engine.shards)->at[pieces[i].param].trained) continue;
        tt_mat g = tt_shards_view(p->f->engine.shards, &pieces[i], TT_PART_GRADIENT);
        TT_TRY(check_element(p, &pieces[i], largest_element(g), largest));
        TT_TRY(check_element(p, &pieces[i], (i * 7919) % pieces[i].count, largest));
    }
    return TT_OK;
}

static tt_status body(fixture *f, void *arg)
{
    (void)arg;
    json_t *batch, *expected;
    tt_batch *micros;
    int num, moe = tt_model_moe_index(&f->engine.config, (int)f->engine.config.num_layers);
    int32_t *choices[8];
    TT_TRY(fixture_json(f, "batch.json", &batch));
    TT_TRY(fixture_json(f, "expected.json", &expected));
    TT_TRY(fixture_micros(f, batch, "batch.json", &micros, &num));
    problem p = {f, micros, json_number_value(json_object_get(expected, "aux_coefficient")),
                 (const int32_t *const *)choices, micros->num_targets};
    for (int i = 0; i < moe; i++)
        choices[i] = malloc((size_t)(micros->T * f->engine.config.experts_per_token) * sizeof **choices);
    tt_micro_result r;
    tt_micro micro = {.batch = micros, .backward = true, .scale = 1 / (double)p.targets, .balance = p.balance,
                      .record = choices};
    tt_shards_zero_gradients(f->engine.shards, f->engine.kernel);
    tt_status status = tt_model_micro_step(&f->engine.model, &micro, &r);
    if (status == TT_OK) status = check_all(&p);
    for (int i = 0; i < moe; i++) free(choices[i]);
    fixture_free_micros(&micros, num);
    json_decref(batch);
    json_decref(expected);
    return status;
}

static void run(void **state)
{
    fixture_run r = {.id = *state, .ops = &tt_ops_ref_f64, .world = 1, .ep = 1, .recompute = true};
    tt_status status = fixture_on_mesh(&r, body, NULL);
    if (status != TT_OK) fail_msg("%s", tt_error_text());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(run, "O1"), cmocka_unit_test_prestate(run, "O2"), cmocka_unit_test_prestate(run, "Q1"),
        cmocka_unit_test_prestate(run, "Q2"), cmocka_unit_test_prestate(run, "G1"), cmocka_unit_test_prestate(run, "G2"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
