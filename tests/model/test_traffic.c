/* What the exchange of MoE layers sends, counted by layer and direction, is what the formulas of moe/dispatch.h say of the
 * choices that the model made: for every kind of exchange, in one round and in many, in two types, with shared batches, with
 * and without recomputation, while gathers of weights run in between. */
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EP = 4, MAX_LAYERS = 4 };

typedef struct entry {
    int world, tp, ep;
    tt_dispatch_kind dispatch;
    int64_t booked;
    bool bf16, keep_all;
} entry;

/* Sums over this rank's tokens, or over all ranks. */
typedef struct sums {
    int64_t rows, pairs, rounds;
} sums;

typedef struct job {
    const trial_batch *rows;
    int layers;
    int64_t counted[MAX_LAYERS][2], expected[MAX_LAYERS][2]; /* of all ranks */
    int64_t rounds; /* most of a layer */
} job;

/* --- the formulas ---------------------------------------------------------------------------------------------- */

/* Pairs that this rank sends to each rank of its ep group; `own` counts what goes to others. */
static void count_sends(const tt_engine *e, const tt_batch *b, const int32_t *ids, int64_t pairs[MAX_EP], sums *own)
{
    const tt_mesh *mesh = e->mesh;
    int64_t K = e->config.experts_per_token, E = e->config.num_experts;
    bool reduce = mesh->dispatch == TT_DISPATCH_ALLREDUCE;
    int64_t begin = reduce ? 0 : b->T * mesh->tp_rank / mesh->tp_size;
    int64_t end = reduce ? b->T : b->T * (mesh->tp_rank + 1) / mesh->tp_size;
    *own = (sums){0};
    for (int to = 0; to < mesh->ep_size; to++) {
        pairs[to] = 0;
        for (int64_t t = begin; t < end && !(reduce && to != mesh->ep_rank); t++) {
            int64_t n = 0;
            for (int64_t i = 0; i < K; i++) n += tt_mesh_expert_owner(E, mesh->ep_size, ids[t * K + i]) == to;
            bool goes = n > 0 || mesh->dispatch != TT_DISPATCH_ALLTOALL;
            pairs[to] += n;
            if (to == mesh->ep_rank) continue;
            own->rows += goes;
            own->pairs += n;
        }
    }
}

/* Rounds of the group: as many as the rank with most pairs takes. */
static tt_status count_rounds(const tt_engine *e, int64_t pairs[MAX_EP], int64_t *rounds)
{
    int64_t ep = e->mesh->ep_size, total = 0, most = 0, booked = e->model.booked_pairs;
    TT_TRY(tt_allreduce_i64(e->mesh->ep, "test-pairs", pairs, ep));
    for (int to = 0; to < ep; to++) total += pairs[to], most = tt_max_i64(most, pairs[to]);
    if (booked == 0) booked = 2 * tt_div_up(total, ep);
    *rounds = tt_max_i64(1, tt_div_up(most, tt_max_i64(1, booked)));
    return TT_OK;
}

/* What this rank sends so that replicas share a result of n elements per token. */
static int64_t shared_bytes(const tt_mesh *mesh, int64_t T, int64_t n)
{
    int64_t ep = mesh->ep_size, tp = mesh->tp_size, real = 4;
    if (mesh->dispatch == TT_DISPATCH_ALLREDUCE) return real * 2 * (ep - 1) * tt_div_up(n * T, ep);
    return real * n * (T * (mesh->tp_rank + 1) / tp - T * mesh->tp_rank / tp) * (tp - 1);
}

static tt_status expect_layer(const tt_engine *e, const tt_batch *b, const int32_t *ids, bool again,
                              int64_t bytes[2], int64_t *rounds)
{
    const tt_mesh *mesh = e->mesh;
    int64_t D = e->config.hidden_size, K = e->config.experts_per_token, ep = mesh->ep_size, real = 4, pairs[MAX_EP];
    int64_t compute = (int64_t)tt_dtype_size(tt_shards_precision(e->shards).compute);
    sums own;
    count_sends(e, b, ids, pairs, &own);
    TT_TRY(count_rounds(e, pairs, rounds));
    int64_t there = compute * D * own.rows, back = real * D * own.rows;
    bytes[0] = 8 * ep * (ep - 1) + 16 * (ep - 1) * *rounds + 4 * (own.rows + own.pairs) + real * own.pairs + there + back +
               shared_bytes(mesh, b->T, D);
    bytes[1] = (again || *rounds > 1 ? there : 0) + there + back + real * own.pairs + shared_bytes(mesh, b->T, D) +
               shared_bytes(mesh, b->T, K);
    return TT_OK;
}

/* --- one micro-step -------------------------------------------------------------------------------------------- */

static tt_status fill(const tt_engine *e, const trial_batch *rows, tt_batch *b)
{
    *b = (tt_batch){0};
    for (int r = 0; r < rows->num_rows; r++)
        if (r % e->mesh->fsdp_size == e->mesh->fsdp_rank) TT_TRY(tt_batch_add(b, &rows->rows[r], r, e->config.vocab_size));
    return TT_OK;
}

static tt_status step(tt_engine *e, job *j, const tt_batch *b, int32_t **choices, int64_t counted[][2], int64_t expected[][2],
                      int64_t *rounds)
{
    tt_comm *comm = e->mesh->comm;
    tt_micro_result r;
    tt_micro micro = {.batch = b, .backward = true, .scale = 1, .record = choices};
    int64_t all = tt_comm_bytes_sent(comm, NULL), weights = 0, exchange = 0;
    /* The last: the first step finds memory for units, of which ranks that share it agree that all have it. */
    static const char *const of_weights[] = {"gather-unit", "reduce-gradient", "grow-shared"};
    for (int i = 0; i < 3; i++) weights -= tt_comm_bytes_sent(comm, of_weights[i]);
    TT_TRY(tt_model_micro_step(&e->model, &micro, &r));
    for (int i = 0; i < 3; i++) weights += tt_comm_bytes_sent(comm, of_weights[i]);
    for (int i = 0; i < j->layers; i++) exchange += counted[i][0] + counted[i][1];
    TT_CHECK(tt_comm_bytes_sent(comm, NULL) - all == weights + exchange, TT_EVERDICT,
             "%lld bytes are neither of weights nor of a layer's exchange",
             (long long)(tt_comm_bytes_sent(comm, NULL) - all - weights - exchange));
    for (int i = 0; i < j->layers; i++) {
        int64_t n;
        bool again = e->model.recompute && i < j->layers - e->model.kept_layers;
        TT_TRY(expect_layer(e, b, choices[i], again, expected[i], &n));
        *rounds = tt_max_i64(*rounds, n);
    }
    return TT_OK;
}

static tt_status rank_main(tt_engine *e, void *arg)
{
    job *j = arg;
    tt_batch b;
    int32_t *choices[MAX_LAYERS];
    int64_t counted[MAX_LAYERS][2] = {{0}}, expected[MAX_LAYERS][2] = {{0}}, rounds = 0;
    TT_TRY(fill(e, j->rows, &b));
    for (int i = 0; i < j->layers; i++) choices[i] = calloc((size_t)(b.T * e->config.experts_per_token) + 1, sizeof **choices);
    e->model.expert_bytes = &counted[0][0];
    tt_status status = step(e, j, &b, choices, counted, expected, &rounds);
    for (int i = 0; i < j->layers; i++) free(choices[i]);
    tt_batch_free(&b);
    TT_TRY(status);
    TT_TRY(tt_allreduce_i64(e->mesh->world, "test-bytes", &counted[0][0], 2 * MAX_LAYERS));
    TT_TRY(tt_allreduce_i64(e->mesh->world, "test-bytes", &expected[0][0], 2 * MAX_LAYERS));
    if (e->mesh->rank > 0) return TT_OK;
    memcpy(j->counted, counted, sizeof counted);
    memcpy(j->expected, expected, sizeof expected);
    j->rounds = rounds;
    return TT_OK;
}

static const entry entries[] = {
    {1, 1, 1, TT_DISPATCH_ALLTOALL, 0, false, false},  {2, 1, 1, TT_DISPATCH_ALLTOALL, 0, false, false},
    {2, 1, 2, TT_DISPATCH_ALLTOALL, 0, false, false},  {2, 1, 2, TT_DISPATCH_ALLTOALL, 3, false, true},
    {2, 1, 2, TT_DISPATCH_ALLTOALL, 0, true, false},   {2, 1, 2, TT_DISPATCH_ALLGATHER, 0, true, false},
    {2, 2, 2, TT_DISPATCH_ALLREDUCE, 0, false, false}, {2, 2, 2, TT_DISPATCH_ALLTOALL, 0, false, false},
    {4, 1, 4, TT_DISPATCH_ALLTOALL, 0, false, false},  {4, 1, 4, TT_DISPATCH_ALLTOALL, 5, true, false},
    {4, 1, 4, TT_DISPATCH_ALLGATHER, 0, false, true},  {4, 4, 4, TT_DISPATCH_ALLREDUCE, 0, true, true},
    {4, 1, 2, TT_DISPATCH_ALLTOALL, 0, false, false},  {4, 2, 2, TT_DISPATCH_ALLTOALL, 0, true, true},
    {4, 2, 4, TT_DISPATCH_ALLTOALL, 2, false, false},  {4, 2, 4, TT_DISPATCH_ALLGATHER, 0, false, false},
    {4, 2, 2, TT_DISPATCH_ALLREDUCE, 0, false, false}, {4, 4, 2, TT_DISPATCH_ALLGATHER, 0, false, false},
    {4, 4, 4, TT_DISPATCH_ALLREDUCE, 5, false, true},  {4, 2, 4, TT_DISPATCH_ALLGATHER, 4, true, false},
};

/* All are whole numbers: equality. */
static void counted_is_the_formula(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe", "qwen3, window, biases", "glm4, groups, shared, tied"};
    int64_t most_rounds = 0;
    for (int m = 0; m < 3; m++)
        for (size_t i = 0; i < 2 * (sizeof entries / sizeof *entries); i++) {
            const entry *t = &entries[i / 2]; /* once with shared memory, once without: tokens are sent all the same */
            trial_shape s;
            trial_batch rows;
            assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
            trial_batch_make(trial_find_plan("every kind of row"), s.config.vocab_size, 0, &rows);
            job j = {.rows = &rows, .layers = tt_model_moe_index(&s.config, (int)s.config.num_layers)};
            trial_run run = {.model = s.model, .mesh = {t->world, t->ep, t->tp, t->dispatch},
                             .ops = &tt_ops_cpu, .booked = t->booked, .bf16_compute = t->bf16, .keep_all = t->keep_all,
                             .otherwise = i % 2};
            assert_in_range(j.layers, 1, MAX_LAYERS);
            assert_ok(trial_on_mesh(&run, rank_main, &j));
            for (int layer = 0; layer < j.layers; layer++)
                for (int way = 0; way < 2; way++)
                    if (j.counted[layer][way] != j.expected[layer][way])
                        fail_msg("%s, %d ranks, tp %d, ep %d, dispatch %d, MoE layer %d, %s: %lld bytes sent, %lld expected",
                                 s.model->name, t->world, t->tp, t->ep, (int)t->dispatch, layer,
                                 way ? "backward" : "forward", (long long)j.counted[layer][way],
                                 (long long)j.expected[layer][way]);
            assert_true((j.counted[0][0] > 0) == (t->ep > 1 || t->tp > 1));
            most_rounds = tt_max_i64(most_rounds, j.rounds);
            trial_shape_close(&s);
        }
    assert_true(most_rounds > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counted_is_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
