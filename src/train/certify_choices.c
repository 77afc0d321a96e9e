/* certify_choices.c - expert choices: gathered from the mesh, replayed in the reference, judged apart. */
#include "train/certify_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bound on the error of a score, relative to the largest logit of its row: that of a gradient tensor. */
#define CHOICE_BOUND 1e-5

/* --- choices: from the mesh to the reference ----------------------------------------------------------------------- */

tt_status tt_certify_gather_choices(const tt_certify_run *mesh_run, tt_certify_run *reference)
{
    const tt_model_config *c = &mesh_run->engine.config;
    int64_t width = c->experts_per_token * (int64_t)sizeof(int32_t);
    tt_certify_places p;
    TT_TRY(tt_certify_places_open(mesh_run, &reference->batch, width, &p));
    tt_status status = TT_OK;
    for (int i = 0; i < tt_model_moe_index(c, (int)c->num_layers) && status == TT_OK; i++)
        status = tt_certify_gather(&p, "certify-choices", width, mesh_run->choices[i],
                                   reference->choices ? reference->choices[i] : NULL);
    tt_certify_places_close(&p);
    return status;
}

/* --- choices: judged ------------------------------------------------------------------------------------------------ */

struct tt_certify_judge {
    const tt_certify_run *reference;
    tt_certify_report *report;
    double *score;     /* [E] */
    double *group;     /* [groups] */
    int32_t *own;      /* [K] what the reference would choose */
    float *gates, *probs; /* [K], [E] */
};

static bool contains(const int32_t *ids, int64_t K, int32_t e)
{
    for (int64_t j = 0; j < K; j++)
        if (ids[j] == e) return true;
    return false;
}

/* A group counts by the sum of its two best scores. */
static double group_score(const double *score, int64_t size)
{
    double best = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < size; i++) {
        if (score[i] > best) second = best, best = score[i];
        else if (score[i] > second) second = score[i];
    }
    return best + second;
}

/* Groups that count at least `least`, without group g itself. */
static int64_t rivals(const tt_certify_judge *j, int64_t g, double least)
{
    int64_t n = 0;
    for (int64_t h = 0; h < j->reference->engine.config.expert_groups; h++) n += h != g && j->group[h] >= least;
    return n;
}

/* Whether scores that are off by at most `bound` each could have led to these experts: all of them in groups that may have
 * been kept, and none clearly worse than an expert that was left out of a group that must have been kept. */
static bool explainable(tt_certify_judge *j, double bound, const int32_t *mesh_ids)
{
    const tt_model_config *c = &j->reference->engine.config;
    int64_t K = c->experts_per_token, size = c->num_experts / c->expert_groups;
    double least = INFINITY, most = -INFINITY;
    for (int64_t g = 0; g < c->expert_groups; g++) j->group[g] = group_score(j->score + g * size, size);
    for (int64_t a = 0; a < K; a++) {
        int32_t e = mesh_ids[a];
        if (e < 0 || e >= c->num_experts || contains(mesh_ids, a, e)) return false;
        /* Strictly more than 4 bounds ahead: not even rounding brings this group past so many. */
        double ahead = nextafter(j->group[e / size] + 4 * bound, INFINITY);
        if (rivals(j, e / size, ahead) >= c->kept_groups) return false;
        least = fmin(least, j->score[e]);
    }
    for (int64_t g = 0; g < c->expert_groups; g++) {
        if (rivals(j, g, j->group[g] - 4 * bound) >= c->kept_groups) continue;
        for (int64_t e = g * size; e < (g + 1) * size; e++)
            if (!contains(mesh_ids, K, (int32_t)e)) most = fmax(most, j->score[e]);
    }
    return most - least <= 2 * bound;
}

static void judge_row(tt_certify_judge *j, int layer, int64_t t, double bound, const int32_t *mesh_ids)
{
    int64_t K = j->reference->engine.config.experts_per_token;
    bool differs = false, wrong = !explainable(j, bound, mesh_ids);
    for (int64_t a = 0; a < K; a++) differs |= !contains(j->own, K, mesh_ids[a]);
    j->report->choices += K;
    if (differs && !wrong) j->report->near_ties++;
    if (wrong && j->report->wrong_choices++ == 0)
        snprintf(j->report->first_wrong, sizeof j->report->first_wrong, "layer %d, batch row %d, column %d", layer,
                 j->reference->batch.rows[t], j->reference->batch.columns[t]);
}

/* Called by the reference model with the router's logits of each MoE layer. */
static void judge_layer(void *user, const char *what, int layer, tt_mat logits)
{
    tt_certify_judge *j = user;
    if (strcmp(what, "router_logits") != 0) return;
    const tt_engine *e = &j->reference->engine;
    const tt_model_config *c = &e->config;
    tt_kernel *k = e->kernel;
    int64_t K = c->experts_per_token, E = c->num_experts, bias_param = e->table.layers[layer].router_bias;
    const int32_t *mesh_ids = j->reference->choices[tt_model_moe_index(c, layer)];
    tt_mat bias = bias_param >= 0 ? tt_unit_weight(e->shards, bias_param) : (tt_mat){0};
    tt_route_shape shape = {E, K, c->normalise_gates, c->expert_groups, c->kept_groups, c->gate_scale};
    tt_mat g = tt_mat_of(j->gates, TT_F32, 1, K), p = tt_mat_of(j->probs, TT_F32, 1, E);
    for (int64_t t = 0; t < logits.rows; t++) {
        const float *z = tt_mat_row(logits, t);
        tt_mat row = tt_mat_rows(logits, t, t + 1);
        double largest = 1;
        for (int64_t i = 0; i < E; i++) largest = fmax(largest, fabs(z[i]));
        if (c->router == TT_ROUTER_SOFTMAX) k->ops->route_softmax(k, &shape, row, false, j->own, g, p);
        else k->ops->route_sigmoid(k, &shape, row, bias, false, j->own, g, p);
        for (int64_t i = 0; i < E; i++)
            j->score[i] = c->router == TT_ROUTER_SOFTMAX ? z[i] : j->probs[i] + (bias.data ? ((const float *)bias.data)[i] : 0.0);
        judge_row(j, layer, t, CHOICE_BOUND * largest, mesh_ids + t * K);
    }
}

tt_status tt_certify_judge_choices(tt_certify_run *reference, tt_certify_report *report, tt_certify_judge **out)
{
    const tt_model_config *c = &reference->engine.config;
    size_t E = (size_t)c->num_experts + 1, K = (size_t)c->experts_per_token + 1;
    tt_certify_judge *j = *out = calloc(1, sizeof *j);
    TT_CHECK(j, TT_ENOMEM, "certify: out of memory");
    *j = (tt_certify_judge){
        .reference = reference,
        .report = report,
        .score = malloc(E * sizeof(double)),
        .group = malloc(E * sizeof(double)), /* no more groups than experts */
        .own = malloc(K * sizeof(int32_t)),
        .gates = malloc(K * sizeof(float)),
        .probs = malloc(E * sizeof(float)),
    };
    TT_CHECK(j->score && j->group && j->own && j->gates && j->probs, TT_ENOMEM, "certify: out of memory");
    reference->engine.model.tap = judge_layer;
    reference->engine.model.tap_user = j;
    return TT_OK;
}

void tt_certify_judge_end(tt_certify_judge **j)
{
    if (!*j) return;
    free((*j)->score);
    free((*j)->group);
    free((*j)->own);
    free((*j)->gates);
    free((*j)->probs);
    free(*j);
    *j = NULL;
}
