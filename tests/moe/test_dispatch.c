/* The dispatcher alone, without a model: what each token sends and gets back, for every way to spread experts over ranks.
 *
 * Numbers are small whole numbers and gates powers of two, so every sum is exact in whatever order it is formed, and
 * comparisons are of equality. Column 0 of a row says which token it is, everywhere. */
#include "support/test.h"

#include "base/checked.h"
#include "moe/dispatch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 5, MAX_T = 40, MAX_K = 10 };

typedef enum pattern {
    SCATTERED,
    UNEVEN,
    FIRST_RANK_ONLY,
    LAST_RANK_ONLY,
    ALL_TO_ONE,
    ALL_TO_LAST,
    EMPTY,
    NUM_PATTERNS
} pattern;
static const char *const pattern_names[] = {
    "scattered", "uneven", "first rank only", "last rank only", "all to one", "all to the last", "empty"};

typedef struct job {
    int world, ep;
    int64_t E, K, booked;
    pattern pattern;
    int shift; /* tokens of a rank in rotated order */
} job;

/* One rank's view of a job. */
typedef struct rig {
    const job *j;
    tt_comm *comm;
    tt_mesh *mesh;
    tt_kernel *k;
    tt_arena *keep;
    tt_routing r;
    int32_t ids[MAX_T * MAX_K];
    float gates[MAX_T * MAX_K], x[MAX_T * WIDTH];
} rig;

static int64_t tokens_of(const job *j, int rank)
{
    switch (j->pattern) {
    case UNEVEN:
    case ALL_TO_LAST:
        return (rank * 7 + 3) % 12;
    case FIRST_RANK_ONLY:
        return rank == 0 ? 11 : 0;
    case LAST_RANK_ONLY:
        return rank == j->world - 1 ? 13 : 0;
    case EMPTY:
        return 0;
    default:
        return 9;
    }
}

/* Choice i of token t of a rank: K different experts, upwards for even tokens, downwards for odd ones. */
static int32_t choose(const job *j, int rank, int64_t t, int64_t i)
{
    if (j->pattern == ALL_TO_ONE) return (int32_t)i;
    if (j->pattern == ALL_TO_LAST) return (int32_t)(j->E - 1 - i);
    int64_t start = rank * 5 + t * 3, step = t % 2 ? j->E - 1 : 1;
    return (int32_t)((start + i * step) % j->E);
}

/* Place of token t in the rotated order. */
static int64_t place(const rig *g, int64_t t)
{
    return g->r.T ? (t + g->j->shift) % g->r.T : 0;
}

/* A number for (rank, token): what travels in column 0. */
static float token_number(int rank, int64_t t)
{
    return (float)(rank * 64 + t + 1);
}

static float gate_of(int rank, int64_t t, int64_t i)
{
    return (float)(1 << ((rank + t + i) % 4)) / 4;
}

static void fill(rig *g)
{
    const job *j = g->j;
    g->r = (tt_routing){.T = tokens_of(j, g->mesh->rank), .K = j->K, .E = j->E, .ids = g->ids};
    for (int64_t t = 0; t < g->r.T; t++) {
        int64_t at = place(g, t);
        for (int64_t i = 0; i < j->K; i++) {
            g->ids[at * j->K + i] = choose(j, g->mesh->rank, t, i);
            g->gates[at * j->K + i] = gate_of(g->mesh->rank, t, i);
        }
        for (int c = 0; c < WIDTH; c++)
            g->x[at * WIDTH + c] = c == 0 ? token_number(g->mesh->rank, t) : (float)(t % 5 - 2 + c);
    }
    g->r.gates = tt_mat_of(g->gates, TT_F32, g->r.T, j->K);
}

static int destinations(const rig *g, int64_t at)
{
    int n = 0;
    for (int to = 0; to < g->mesh->ep_size; to++) {
        bool any = false;
        for (int64_t i = 0; i < g->j->K; i++)
            any |= tt_mesh_expert_owner(g->j->E, g->mesh->ep_size, g->ids[at * g->j->K + i]) == to;
        n += any;
    }
    return n;
}

/* --- what the plan must be ------------------------------------------------------------------------------------- */

static tt_status check_round(const rig *g, const tt_round *q, int64_t bound)
{
    int64_t rows = 0, pairs = 0;
    for (int p = 0; p < g->mesh->ep_size; p++) rows += q->recv_rows[p], pairs += q->recv_pairs[p];
    TT_CHECK(rows == q->R && pairs == q->P, TT_EVERDICT, "counts of sources and totals differ");
    TT_CHECK(q->P <= bound, TT_EVERDICT, "%lld pairs received, at most %lld were booked", (long long)q->P, (long long)bound);
    TT_CHECK(q->expert_begin[0] == 0 && q->expert_begin[g->r.local_experts] == q->P, TT_EVERDICT,
             "experts do not cover pairs");
    for (int64_t e = 0; e < g->r.local_experts; e++)
        for (int64_t i = q->expert_begin[e] + 1; i < q->expert_begin[e + 1]; i++)
            TT_CHECK(q->pair_row[i - 1] < q->pair_row[i], TT_EVERDICT, "rows of expert %lld do not ascend",
                     (long long)e);
    bool seen[MAX_T * MAX_K * 16] = {false};
    TT_CHECK(q->row_begin[0] == 0 && q->row_begin[q->R] == q->P, TT_EVERDICT, "rows do not cover pairs");
    for (int64_t row = 0; row < q->R; row++)
        for (int64_t i = q->row_begin[row]; i < q->row_begin[row + 1]; i++) {
            int32_t pair = q->row_pair[i];
            TT_CHECK(!seen[pair] && q->pair_row[pair] == row && q->pair_arrival[pair] == i, TT_EVERDICT,
                     "pair %d is astray", pair);
            TT_CHECK(i == q->row_begin[row] || q->row_pair[i - 1] < pair, TT_EVERDICT,
                     "pairs of a row do not ascend by expert");
            seen[pair] = true;
        }
    return TT_OK;
}

/* As many rounds as it takes to give the rank with most pairs no more than are booked; with 0 twice the balanced share. */
static tt_status check_rounds(const rig *g, int64_t *bound)
{
    int64_t ep = g->mesh->ep_size, pairs[8] = {0}, most = 0, all = 0, booked = g->j->booked;
    for (int64_t i = 0; i < g->r.T * g->j->K; i++) pairs[tt_mesh_expert_owner(g->j->E, (int)ep, g->ids[i])]++;
    TT_TRY(tt_allreduce_i64(g->mesh->ep, "test-pairs", pairs, ep));
    for (int p = 0; p < ep; p++) all += pairs[p], most = tt_max_i64(most, pairs[p]);
    if (booked == 0) booked = tt_max_i64(1, 2 * tt_div_up(all, ep));
    int64_t rounds = tt_max_i64(1, tt_div_up(most, booked));
    TT_CHECK(g->r.num_rounds == rounds, TT_EVERDICT, "%d rounds, %lld are enough", g->r.num_rounds, (long long)rounds);
    *bound = booked + ep * g->j->K; /* each source's part is rounded up, and its last row may have K pairs */
    return TT_OK;
}

static tt_status check_plan(const rig *g)
{
    int64_t bound = 0;
    TT_TRY(check_rounds(g, &bound));
    int64_t sent = 0, rows = 0;
    for (int64_t t = 0; t < g->r.T; t++) rows += destinations(g, t);
    for (int q = 0; q < g->r.num_rounds; q++) {
        TT_TRY(check_round(g, &g->r.rounds[q], bound));
        sent += g->r.rounds[q].sent;
    }
    TT_CHECK(sent == rows, TT_EVERDICT, "%lld rows sent for %lld (token, rank) pairs", (long long)sent,
             (long long)rows);
    return TT_OK;
}

/* --- moving ---------------------------------------------------------------------------------------------------- */

/* Rows of all rounds there and back: y = f(rows), out = sum of what returns. by_pair: sum over pairs of
 * gate * (expert + 1) * row; else the row itself. */
static tt_status round_trip(rig *g, bool by_pair, float *out)
{
    int64_t lo, hi;
    tt_mesh_experts(g->j->E, g->mesh->ep_size, g->mesh->ep_rank, &lo, &hi);
    tt_mat out_TD = tt_mat_of(out, TT_F32, g->r.T, WIDTH);
    g->k->ops->zero(g->k, out_TD);
    for (int n = 0; n < g->r.num_rounds; n++) {
        const tt_round *q = &g->r.rounds[n];
        tt_arena_mark mark = tt_arena_save(g->k->scratch);
        tt_mat rows;
        void *data;
        TT_TRY(tt_dispatch_rows(g->mesh, g->k, g->k->scratch, &g->r, n, "dispatch-tokens",
                                tt_mat_of(g->x, TT_F32, g->r.T, WIDTH), &rows));
        TT_TRY(tt_arena_grant_zero(g->k->scratch, q->R * WIDTH, sizeof(float), &data));
        float *y = data;
        for (int64_t row = 0; row < q->R; row++) {
            const float *x = tt_mat_row(rows, row);
            for (int c = 0; c < WIDTH && !by_pair; c++) y[row * WIDTH + c] = x[c];
        }
        for (int64_t e = lo; e < hi && by_pair; e++)
            for (int64_t p = q->expert_begin[e - lo]; p < q->expert_begin[e - lo + 1]; p++) {
                const float *x = tt_mat_row(rows, q->pair_row[p]);
                float gate = *(float *)tt_mat_row(q->pair_gate, p);
                for (int c = 0; c < WIDTH; c++) y[q->pair_row[p] * WIDTH + c] += gate * (float)(e + 1) * x[c];
            }
        TT_TRY(tt_combine_rows(g->mesh, g->k, g->k->scratch, &g->r, n, "return-outputs",
                               tt_mat_of(y, TT_F32, q->R, WIDTH), out_TD));
        tt_arena_restore(g->k->scratch, mark);
    }
    return TT_OK;
}

static tt_status expect(const rig *g, const char *what, int64_t t, float got, float expected)
{
    TT_CHECK(got == expected, TT_EVERDICT, "rank %d, token %lld: %s is %g, expected %g", g->mesh->rank, (long long)t,
             what, got, expected);
    return TT_OK;
}

static tt_status check_identity(rig *g)
{
    float out[MAX_T * WIDTH];
    TT_TRY(round_trip(g, false, out));
    for (int64_t t = 0; t < g->r.T; t++)
        for (int c = 0; c < WIDTH; c++)
            TT_TRY(expect(g, "a token times its destinations", t, out[t * WIDTH + c],
                          g->x[t * WIDTH + c] * (float)destinations(g, t)));
    return TT_OK;
}

static tt_status check_experts(rig *g)
{
    float out[MAX_T * WIDTH];
    TT_TRY(round_trip(g, true, out));
    for (int64_t t = 0; t < g->r.T; t++) {
        float factor = 0;
        for (int64_t i = 0; i < g->j->K; i++)
            factor += g->gates[t * g->j->K + i] * (float)(g->ids[t * g->j->K + i] + 1);
        for (int c = 0; c < WIDTH; c++)
            TT_TRY(expect(g, "the weighted sum of experts", t, out[t * WIDTH + c], g->x[t * WIDTH + c] * factor));
    }
    return TT_OK;
}

/* The gradient of a pair is 100 * token + expert; it must arrive at the choice that the pair came from. */
static tt_status check_gate_gradients(rig *g)
{
    float dgates[MAX_T * MAX_K];
    int64_t lo, hi;
    tt_mesh_experts(g->j->E, g->mesh->ep_size, g->mesh->ep_rank, &lo, &hi);
    for (int64_t i = 0; i < g->r.T * g->j->K; i++) dgates[i] = -1; /* choices of other rounds stay as they are */
    tt_mat to = tt_mat_of(dgates, TT_F32, g->r.T, g->j->K);
    for (int n = 0; n < g->r.num_rounds; n++) {
        const tt_round *q = &g->r.rounds[n];
        tt_arena_mark mark = tt_arena_save(g->k->scratch);
        tt_mat rows;
        void *data;
        TT_TRY(tt_dispatch_rows(g->mesh, g->k, g->k->scratch, &g->r, n, "other",
                                tt_mat_of(g->x, TT_F32, g->r.T, WIDTH), &rows));
        TT_TRY(tt_arena_grant(g->k->scratch, q->P, sizeof(float), &data));
        float *d = data;
        for (int64_t e = lo; e < hi; e++)
            for (int64_t p = q->expert_begin[e - lo]; p < q->expert_begin[e - lo + 1]; p++)
                d[p] = 100 * *(float *)tt_mat_row(rows, q->pair_row[p]) + (float)e;
        TT_TRY(tt_return_gate_gradients(g->mesh, g->k, g->k->scratch, &g->r, n, tt_mat_of(d, TT_F32, q->P, 1), to));
        tt_arena_restore(g->k->scratch, mark);
    }
    for (int64_t t = 0; t < g->r.T; t++)
        for (int64_t i = 0; i < g->j->K; i++) {
            float want = 100 * g->x[t * WIDTH] + (float)g->ids[t * g->j->K + i];
            TT_TRY(expect(g, "a gate's gradient", t, dgates[t * g->j->K + i], want - 1)); /* on top of the -1 */
        }
    return TT_OK;
}

/* One row per remote destination rank, whatever the number of experts chosen there. */
static tt_status check_bytes(rig *g, int64_t before)
{
    int64_t rows = 0, copies = 0, bytes = tt_comm_bytes_sent(g->comm, "dispatch-tokens") - before;
    for (int64_t t = 0; t < g->r.T; t++) {
        bool here = false;
        for (int64_t i = 0; i < g->j->K; i++) {
            bool mine = tt_mesh_expert_owner(g->j->E, g->mesh->ep_size, g->ids[t * g->j->K + i]) == g->mesh->ep_rank;
            here |= mine;
            copies += !mine;
        }
        rows += destinations(g, t) - here;
    }
    TT_CHECK(bytes == rows * WIDTH * (int64_t)sizeof(float), TT_EVERDICT,
             "rank %d sent %lld bytes for %lld rows to other ranks", g->mesh->rank, (long long)bytes,
             (long long)rows);
    TT_CHECK(rows <= copies, TT_EVERDICT, "more rows than chosen experts");
    return TT_OK;
}

static tt_status all_checks(rig *g)
{
    tt_arena_mark mark = tt_arena_save(g->keep);
    fill(g);
    TT_TRY(tt_dispatch_plan(g->mesh, g->k, g->keep, g->j->booked, &g->r));
    TT_TRY(check_plan(g));
    int64_t before = tt_comm_bytes_sent(g->comm, "dispatch-tokens");
    TT_TRY(check_identity(g));
    TT_TRY(check_bytes(g, before));
    TT_TRY(check_experts(g));
    TT_TRY(check_gate_gradients(g));
    tt_arena_restore(g->keep, mark);
    return TT_OK;
}

static tt_status open_rig(rig *g, const job *j, tt_comm *comm)
{
    *g = (rig){.j = j, .comm = comm};
    tt_comm_set_timeout(comm, 60);
    TT_TRY(tt_mesh_create(comm, (tt_mesh_sizes){.ep_size = j->ep}, j->E, &g->mesh));
    TT_TRY(tt_kernel_create(&tt_ops_ref, 1, &g->k));
    return tt_arena_create("test", &g->keep);
}

static void close_rig(rig *g)
{
    tt_arena_destroy(&g->keep);
    tt_kernel_destroy(&g->k);
    tt_mesh_destroy(&g->mesh);
    free(g);
}

/* Every pattern of tokens, in exchanges of every size, one behind the other on the same memory. */
static tt_status rank_main(tt_comm *comm, void *arg)
{
    static const int64_t booked[] = {0, 1, 7};
    job j = *(const job *)arg;
    rig *g = malloc(sizeof *g);
    tt_status status = open_rig(g, &j, comm);
    for (int i = 0; i < 3 * NUM_PATTERNS && status == TT_OK; i++) {
        j.pattern = (pattern)(i % NUM_PATTERNS), j.booked = booked[i / NUM_PATTERNS], j.shift = i;
        status = all_checks(g);
        if (status != TT_OK)
            tt_error_context(status, "%s, booked %lld", pattern_names[j.pattern], (long long)j.booked);
    }
    close_rig(g);
    return status;
}

static void every_token_once_per_destination(void **state)
{
    (void)state;
    static const int sizes[][2] = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6},
                                   {7, 7}, {8, 8}, {4, 2}, {6, 3}, {3, 1}};
    static const int64_t experts[][2] = {{8, 2}, {10, 3}, {9, 9}, {8, 1}, {17, 4}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t e = 0; e < sizeof experts / sizeof *experts; e++) {
            job j = {.world = sizes[s][0], .ep = sizes[s][1], .E = experts[e][0], .K = experts[e][1]};
            if (tt_comm_run_threads(j.world, rank_main, &j) != TT_OK)
                fail_msg("%d ranks, ep %d, %lld experts, %lld chosen: %s", j.world, j.ep, (long long)j.E,
                         (long long)j.K, tt_error_text());
        }
}

/* Two experts of one rank, chosen by one token, cost one row: with 8 experts on 2 ranks and all of them chosen a token
 * travels once instead of four times. */
static tt_status count_one(tt_comm *comm, void *arg)
{
    int64_t *bytes = arg;
    const job j = {.world = 2, .ep = 2, .E = 8, .K = 8, .pattern = SCATTERED};
    float out[MAX_T * WIDTH];
    rig *g = malloc(sizeof *g);
    tt_status status = open_rig(g, &j, comm);
    if (status == TT_OK) {
        fill(g);
        status = tt_dispatch_plan(g->mesh, g->k, g->keep, 0, &g->r);
    }
    if (status == TT_OK) status = round_trip(g, true, out);
    bytes[tt_comm_rank(comm)] = tt_comm_bytes_sent(comm, "dispatch-tokens");
    close_rig(g);
    return status;
}

static void a_copy_per_rank_and_not_per_expert(void **state)
{
    (void)state;
    int64_t bytes[2];
    assert_ok(tt_comm_run_threads(2, count_one, bytes));
    for (int r = 0; r < 2; r++) assert_int_equal(bytes[r], 9 * WIDTH * 4); /* 9 tokens, not 9 * 4 */
}

/* Numbers that a peer must not be trusted with are refused: more choices than 32 bits can number. */
static void too_many_choices_are_refused(void **state)
{
    (void)state;
    tt_comm *comm;
    tt_mesh *mesh;
    tt_kernel *k;
    tt_routing r = {.T = INT32_MAX / 4, .K = 8, .E = 8};
    assert_ok(tt_comm_create_self(&comm));
    assert_ok(tt_mesh_create(comm, (tt_mesh_sizes){0}, 8, &mesh));
    assert_ok(tt_kernel_create(&tt_ops_ref, 1, &k));
    assert_error(tt_dispatch_plan(mesh, k, k->scratch, 0, &r), TT_ECONFIG, "too large");
    tt_kernel_destroy(&k);
    tt_mesh_destroy(&mesh);
    tt_comm_destroy(&comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_once_per_destination),
        cmocka_unit_test(a_copy_per_rank_and_not_per_expert),
        cmocka_unit_test(too_many_choices_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
