#include "train/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Operations that move what grows with tokens or weights; the rest is small talk. */
static const char *const operations[] = {
    "gather-unit",    "reduce-gradient",    "dispatch-tokens",  "return-outputs",
    "dispatch-gradients", "return-gradients", "share-outputs",  "share-gradients",
};

#define MAX_COUNT ((json_int_t)1 << 53) /* of a file: what is counted on top still fits */
#define NUM_OPERATIONS (sizeof operations / sizeof *operations)

static int64_t num_moe(const tt_model *m)
{
    return tt_model_moe_index(m->config, (int)m->config->num_layers);
}

static int64_t num_counts(const tt_model *m)
{
    return num_moe(m) * (m->config->num_experts + 2);
}

tt_status tt_statistics_begin(tt_statistics *s, tt_model *model)
{
    *s = (tt_statistics){.model = model};
    s->counts = calloc((size_t)num_counts(model) + 1, sizeof *s->counts);
    s->bytes = calloc(NUM_OPERATIONS, sizeof *s->bytes);
    if (!s->counts || !s->bytes) {
        tt_statistics_end(s);
        return tt_error_set(TT_ENOMEM, "out of memory for statistics");
    }
    model->expert_counts = s->counts;
    model->expert_bytes = s->counts + num_moe(model) * model->config->num_experts;
    return TT_OK;
}

void tt_statistics_end(tt_statistics *s)
{
    if (s->model) s->model->expert_counts = s->model->expert_bytes = NULL;
    free(s->counts);
    free(s->bytes);
    *s = (tt_statistics){0};
}

static json_t *layer_of(const int64_t *counts, int64_t E, int layer)
{
    int64_t total = 0, largest = 0, idle = 0;
    double entropy = 0;
    for (int64_t e = 0; e < E; e++) {
        total += counts[e];
        idle += counts[e] == 0;
        if (counts[e] > largest) largest = counts[e];
    }
    for (int64_t e = 0; e < E && total > 0; e++) {
        double share = (double)counts[e] / (double)total;
        if (share > 0) entropy -= share * log(share);
    }
    json_t *o = json_object();
    json_object_set_new(o, "layer", json_integer(layer));
    json_object_set_new(o, "entropy", json_real(E > 1 ? entropy / log((double)E) : 1));
    json_object_set_new(o, "largest_share", json_real(total > 0 ? (double)largest / (double)total : 0));
    json_object_set_new(o, "idle", json_integer(idle));
    return o;
}

static tt_status record_experts(tt_statistics *s, json_t *record)
{
    const tt_model_config *c = s->model->config;
    int64_t E = c->num_experts, n = num_counts(s->model);
    TT_TRY(tt_allreduce_i64(s->model->mesh->world, "expert-statistics", s->counts, n));
    json_t *list = json_array();
    for (int i = 0, moe = 0; i < c->num_layers; i++) {
        if (!c->is_moe[i]) continue;
        json_t *o = layer_of(s->counts + E * moe, E, i);
        const int64_t *bytes = s->model->expert_bytes + 2 * moe++;
        json_array_append_new(list, o);
        if (s->model->mesh->world_size == 1) continue;
        json_object_set_new(o, "bytes_forward", json_integer(bytes[0]));
        json_object_set_new(o, "bytes_backward", json_integer(bytes[1]));
    }
    json_object_set_new(record, "experts", list);
    memset(s->counts, 0, (size_t)n * sizeof *s->counts);
    return TT_OK;
}

/* Since the last record, all ranks together. */
static tt_status sum_bytes(const tt_statistics *s, int64_t *sent)
{
    for (size_t i = 0; i < NUM_OPERATIONS; i++)
        sent[i] = tt_comm_bytes_sent(s->model->mesh->comm, operations[i]) - s->bytes[i];
    return tt_allreduce_i64(s->model->mesh->world, "traffic-statistics", sent, NUM_OPERATIONS);
}

static tt_status record_bytes(tt_statistics *s, json_t *record)
{
    int64_t sent[NUM_OPERATIONS];
    TT_TRY(sum_bytes(s, sent));
    for (size_t i = 0; i < NUM_OPERATIONS; i++) s->bytes[i] = tt_comm_bytes_sent(s->model->mesh->comm, operations[i]);
    json_t *o = json_object();
    for (size_t i = 0; i < NUM_OPERATIONS; i++)
        if (sent[i] > 0) json_object_set_new(o, operations[i], json_integer(sent[i]));
    json_object_set_new(record, "bytes_sent", o);
    return TT_OK;
}

tt_status tt_statistics_record(tt_statistics *s, json_t *record)
{
    if (num_moe(s->model) > 0) TT_TRY(record_experts(s, record));
    if (s->model->mesh->world_size > 1) TT_TRY(record_bytes(s, record));
    return TT_OK;
}

/* --- over a checkpoint ----------------------------------------------------------------------------------------------- */

tt_status tt_statistics_save(const tt_statistics *s, json_t **out)
{
    int64_t n = num_counts(s->model), sent[NUM_OPERATIONS];
    int64_t *sums = malloc((size_t)(n + 1) * sizeof *sums);
    tt_status status = tt_agree(s->model->mesh->world, "expert-statistics",
                                sums ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for statistics"));
    if (status == TT_OK) memcpy(sums, s->counts, (size_t)n * sizeof *sums);
    if (status == TT_OK) status = tt_allreduce_i64(s->model->mesh->world, "expert-statistics", sums, n);
    if (status == TT_OK) status = sum_bytes(s, sent);
    json_t *counts = json_array(), *bytes = json_object();
    for (int64_t i = 0; i < n && status == TT_OK; i++) json_array_append_new(counts, json_integer(sums[i]));
    for (size_t i = 0; i < NUM_OPERATIONS && status == TT_OK; i++)
        json_object_set_new(bytes, operations[i], json_integer(sent[i]));
    *out = json_pack("{s:o, s:o}", "experts", counts, "bytes_sent", bytes);
    free(sums);
    return status;
}

tt_status tt_statistics_restore(tt_statistics *s, const json_t *saved, const char *where)
{
    const json_t *counts = json_object_get(saved, "experts"), *bytes = json_object_get(saved, "bytes_sent");
    int64_t n = num_counts(s->model);
    TT_CHECK(json_is_array(counts) && json_is_object(bytes), TT_EFORMAT, "%s: \"statistics\" are not usable", where);
    for (size_t i = 0; i < json_array_size(counts); i++) {
        json_int_t count = json_integer_value(json_array_get(counts, i));
        TT_CHECK(count >= 0 && count <= MAX_COUNT, TT_EFORMAT, "%s: \"statistics\" count %lld", where, (long long)count);
    }
    if (s->model->mesh->rank > 0) return TT_OK;
    for (int64_t i = 0; i < n && (int64_t)json_array_size(counts) == n; i++)
        s->counts[i] = json_integer_value(json_array_get(counts, (size_t)i));
    for (size_t i = 0; i < NUM_OPERATIONS; i++) s->bytes[i] -= json_integer_value(json_object_get(bytes, operations[i]));
    return TT_OK;
}
