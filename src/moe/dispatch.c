#include "moe/dispatch.h"
#include "base/checked.h"

#include <string.h>

#define GRANT(arena, count, pointer)                                                                         \
    TT_TRY(tt_arena_grant((arena), (count), sizeof *(pointer), (void **)&(pointer)))

/* --- planning ------------------------------------------------------------------------------------------------ */

/* Sends before they are cut into rounds: rows by destination, tokens ascending. */
typedef struct sends {
    int64_t *begin;  /* [ep+1] rows per destination, end to end */
    int32_t *token;  /* [rows] */
    int64_t *first;  /* [rows+1] choices of each row: choice[first[i]..first[i+1]) */
    int32_t *choice; /* [pairs] t*K + k, by ascending expert within a row */
    int64_t *cut;    /* [ep, rounds+1] rows of round q to rank p: cut[p][q] to cut[p][q+1] */
    int rounds;
} sends;

static int64_t *cuts_to(const sends *s, int to)
{
    return s->cut + (int64_t)to * (s->rounds + 1);
}

static int owner(const tt_mesh *mesh, const tt_routing *r, int32_t expert)
{
    return tt_mesh_expert_owner(r->E, mesh->ep_size, expert);
}

/* The choices of token t that rank `to` owns, by ascending expert (insertion sort of at most K). */
static int64_t choices_for(const tt_mesh *mesh, const tt_routing *r, int64_t t, int to, int32_t *out)
{
    int64_t n = 0;
    for (int64_t j = 0; j < r->K; j++) {
        int32_t at = (int32_t)(t * r->K + j);
        if (owner(mesh, r, r->ids[at]) != to) continue;
        int64_t i = n++;
        for (; i > 0 && r->ids[out[i - 1]] > r->ids[at]; i--) out[i] = out[i - 1];
        out[i] = at;
    }
    return n;
}

/* Whether token t goes to a rank that owns n of its chosen experts. */
static bool goes(const tt_mesh *mesh, int to, int64_t n)
{
    if (mesh->dispatch == TT_DISPATCH_ALLREDUCE) return to == mesh->ep_rank;
    return n > 0 || mesh->dispatch == TT_DISPATCH_ALLGATHER;
}

static tt_status list_sends(const tt_mesh *mesh, const tt_routing *r, tt_arena *work, sends *s)
{
    bool all = mesh->dispatch == TT_DISPATCH_ALLGATHER;
    int64_t most_rows = (r->end - r->begin) * (all ? mesh->ep_size : tt_min_i64(r->K, mesh->ep_size));
    GRANT(work, mesh->ep_size + 1, s->begin);
    GRANT(work, most_rows, s->token);
    GRANT(work, most_rows + 1, s->first);
    GRANT(work, r->T * r->K, s->choice);
    int64_t rows = 0, pairs = 0;
    for (int to = 0; to < mesh->ep_size; to++) {
        s->begin[to] = rows;
        for (int64_t t = r->begin; t < r->end; t++) {
            int64_t n = choices_for(mesh, r, t, to, s->choice + pairs);
            if (!goes(mesh, to, n)) continue;
            s->token[rows] = (int32_t)t;
            s->first[rows++] = pairs;
            pairs += n;
        }
    }
    s->begin[mesh->ep_size] = rows;
    s->first[rows] = pairs;
    return TT_OK;
}

/* As many rounds as the rank with most pairs needs to receive no more than are booked in each. pairs[from][to], which all know. */
static int count_rounds(int ep, int64_t booked, const int64_t *pairs)
{
    int64_t total = 0, most = 0;
    for (int to = 0; to < ep; to++) {
        int64_t received = 0;
        for (int from = 0; from < ep; from++) received += pairs[(int64_t)from * ep + to];
        total += received;
        most = tt_max_i64(most, received);
    }
    if (booked == 0) booked = 2 * tt_div_up(total, ep);
    return (int)tt_max_i64(1, tt_div_up(most, tt_max_i64(1, booked)));
}

/* Each round takes an equal part of the pairs to each rank, and those rows whose first pair is among them. */
static tt_status cut_sends(const tt_mesh *mesh, tt_arena *work, int rounds, sends *s)
{
    s->rounds = rounds;
    GRANT(work, (int64_t)mesh->ep_size * (rounds + 1), s->cut);
    for (int to = 0; to < mesh->ep_size; to++) {
        int64_t row = s->begin[to], end = s->begin[to + 1], first = s->first[row], pairs = s->first[end] - first;
        for (int q = 0; q < rounds; q++) {
            cuts_to(s, to)[q] = row;
            while (row < end && s->first[row] - first < tt_block_begin(pairs, rounds, q + 1)) row++;
        }
        cuts_to(s, to)[rounds] = end; /* rows without pairs behind the last one too */
    }
    return TT_OK;
}

/* The sending half of round q. */
static tt_status plan_sending(const tt_mesh *mesh, const tt_routing *r, tt_arena *keep, const sends *s, int q, tt_round *round)
{
    int ep = mesh->ep_size;
    GRANT(keep, ep, round->send_rows);
    GRANT(keep, ep, round->send_pairs);
    int64_t rows = 0, pairs = 0;
    for (int to = 0; to < ep; to++) {
        int64_t lo = cuts_to(s, to)[q], hi = cuts_to(s, to)[q + 1];
        rows += round->send_rows[to] = hi - lo;
        pairs += round->send_pairs[to] = s->first[hi] - s->first[lo];
    }
    round->sent = rows;
    GRANT(keep, rows, round->sent_token);
    GRANT(keep, rows, round->sent_of);
    GRANT(keep, r->T + 1, round->token_begin);
    GRANT(keep, pairs, round->sent_choice);
    rows = pairs = 0;
    for (int to = 0; to < ep; to++) {
        int64_t lo = cuts_to(s, to)[q];
        memcpy(round->sent_token + rows, s->token + lo, (size_t)round->send_rows[to] * sizeof *s->token);
        memcpy(round->sent_choice + pairs, s->choice + s->first[lo], (size_t)round->send_pairs[to] * sizeof *s->choice);
        rows += round->send_rows[to];
        pairs += round->send_pairs[to];
    }
    /* Counting sort by token keeps the order of destinations within a token. */
    memset(round->token_begin, 0, (size_t)(r->T + 1) * sizeof *round->token_begin);
    for (int64_t i = 0; i < rows; i++) round->token_begin[round->sent_token[i] + 1]++;
    for (int64_t t = 0; t < r->T; t++) round->token_begin[t + 1] += round->token_begin[t];
    for (int64_t i = 0; i < rows; i++) round->sent_of[round->token_begin[round->sent_token[i]]++] = (int32_t)i;
    for (int64_t t = r->T; t > 0; t--) round->token_begin[t] = round->token_begin[t - 1];
    round->token_begin[0] = 0;
    return TT_OK;
}

/* Send per row how many pairs it has, and per pair its local expert; then the weights. */
static tt_status exchange_pairs(const tt_mesh *mesh, tt_kernel *k, tt_arena *work, const tt_routing *r,
                                const sends *s, int q, tt_round *round, int32_t **row_pairs, int32_t **pair_expert,
                                tt_mat *arrived_gate)
{
    int ep = mesh->ep_size;
    size_t real = tt_dtype_size(r->gates.dtype);
    int64_t sent_pairs = 0, *send_bytes, *recv_bytes, at = 0;
    int32_t *out, *in;
    for (int p = 0; p < ep; p++) sent_pairs += round->send_pairs[p];
    GRANT(work, ep, send_bytes);
    GRANT(work, ep, recv_bytes);
    GRANT(work, round->sent + sent_pairs, out);
    GRANT(work, round->R + round->P, in);
    for (int to = 0; to < ep; to++) {
        int64_t lo = cuts_to(s, to)[q], rows = round->send_rows[to], base;
        tt_mesh_experts(r->E, ep, to, &base, &(int64_t){0});
        for (int64_t i = lo; i < lo + rows; i++) out[at++] = (int32_t)(s->first[i + 1] - s->first[i]);
        for (int64_t c = s->first[lo]; c < s->first[lo + rows]; c++)
            out[at++] = r->ids[s->choice[c]] - (int32_t)base;
        send_bytes[to] = (rows + round->send_pairs[to]) * (int64_t)sizeof *out;
        recv_bytes[to] = (round->recv_rows[to] + round->recv_pairs[to]) * (int64_t)sizeof *out;
    }
    TT_TRY(tt_alltoallv(mesh->ep, "dispatch-experts", out, send_bytes, in, recv_bytes));
    /* Untangle: rows' counts of all sources end to end, then pairs' experts likewise. */
    GRANT(work, round->R, *row_pairs);
    GRANT(work, round->P, *pair_expert);
    int64_t rows = 0, pairs = 0;
    const int32_t *piece = in;
    for (int from = 0; from < ep; from++) {
        memcpy(*row_pairs + rows, piece, (size_t)round->recv_rows[from] * sizeof *in);
        piece += round->recv_rows[from];
        rows += round->recv_rows[from];
        memcpy(*pair_expert + pairs, piece, (size_t)round->recv_pairs[from] * sizeof *in);
        piece += round->recv_pairs[from];
        pairs += round->recv_pairs[from];
    }
    void *gates_out, *gates_in;
    TT_TRY(tt_arena_grant(work, sent_pairs, real, &gates_out));
    TT_TRY(tt_arena_grant(work, round->P, real, &gates_in));
    k->ops->gather_rows(k, tt_mat_reshape(r->gates, 1), round->sent_choice,
                        tt_mat_of(gates_out, r->gates.dtype, sent_pairs, 1));
    for (int p = 0; p < ep; p++) {
        send_bytes[p] = round->send_pairs[p] * (int64_t)real;
        recv_bytes[p] = round->recv_pairs[p] * (int64_t)real;
    }
    TT_TRY(tt_alltoallv(mesh->ep, "dispatch-weights", gates_out, send_bytes, gates_in, recv_bytes));
    *arrived_gate = tt_mat_of(gates_in, r->gates.dtype, round->P, 1);
    return TT_OK;
}

/* Pairs sorted by expert (counting sort, stable in arrival order, so rows ascend within an expert), and the inverse. */
static tt_status plan_pairs(tt_kernel *k, tt_arena *keep, tt_arena *work, const tt_routing *r, tt_round *round,
                            const int32_t *row_pairs, const int32_t *pair_expert, tt_mat arrived_gate)
{
    int64_t experts = r->local_experts, arrival = 0;
    GRANT(keep, experts + 1, round->expert_begin);
    GRANT(keep, round->P, round->pair_row);
    GRANT(keep, round->P, round->pair_arrival);
    GRANT(keep, round->R + 1, round->row_begin);
    GRANT(keep, round->P, round->row_pair);
    memset(round->expert_begin, 0, (size_t)(experts + 1) * sizeof *round->expert_begin);
    for (int64_t i = 0; i < round->P; i++) {
        TT_CHECK(pair_expert[i] >= 0 && pair_expert[i] < experts, TT_EINTERNAL,
                 "dispatch: a peer asks for local expert %d of %lld", (int)pair_expert[i], (long long)experts);
        round->expert_begin[pair_expert[i] + 1]++;
    }
    for (int64_t e = 0; e < experts; e++) round->expert_begin[e + 1] += round->expert_begin[e];
    int64_t *next;
    GRANT(work, experts + 1, next);
    memcpy(next, round->expert_begin, (size_t)(experts + 1) * sizeof *next);
    for (int64_t row = 0; row < round->R; row++) {
        round->row_begin[row] = arrival;
        for (int32_t j = 0; j < row_pairs[row]; j++, arrival++) {
            int64_t at = next[pair_expert[arrival]]++;
            round->pair_row[at] = (int32_t)row;
            round->pair_arrival[at] = (int32_t)arrival;
            round->row_pair[arrival] = (int32_t)at; /* pairs of a row arrive by ascending expert */
        }
    }
    round->row_begin[round->R] = arrival;
    TT_ASSERT(arrival == round->P);
    void *gate;
    TT_TRY(tt_arena_grant(keep, round->P, tt_dtype_size(arrived_gate.dtype), &gate));
    round->pair_gate = tt_mat_of(gate, arrived_gate.dtype, round->P, 1);
    k->ops->gather_rows(k, arrived_gate, round->pair_arrival, round->pair_gate);
    return TT_OK;
}

static tt_status plan_round(const tt_mesh *mesh, tt_kernel *k, tt_arena *keep, const tt_routing *r, const sends *s, int q,
                            tt_round *round)
{
    int ep = mesh->ep_size;
    tt_arena_mark mark = tt_arena_save(k->scratch);
    int32_t *row_pairs, *pair_expert;
    tt_mat arrived_gate;
    int64_t *mine, *theirs; /* rows and pairs per peer */
    TT_TRY(plan_sending(mesh, r, keep, s, q, round));
    GRANT(keep, ep, round->recv_rows);
    GRANT(keep, ep, round->recv_pairs);
    GRANT(k->scratch, 2 * ep, mine);
    GRANT(k->scratch, 2 * ep, theirs);
    for (int p = 0; p < ep; p++) mine[2 * p] = round->send_rows[p], mine[2 * p + 1] = round->send_pairs[p];
    TT_TRY(tt_alltoall(mesh->ep, "dispatch-counts", mine, theirs, 2 * sizeof *mine));
    round->R = round->P = 0;
    for (int p = 0; p < ep; p++) {
        round->R += round->recv_rows[p] = theirs[2 * p];
        round->P += round->recv_pairs[p] = theirs[2 * p + 1];
    }
    TT_CHECK(round->R <= INT32_MAX && round->P <= INT32_MAX, TT_ECONFIG,
             "an exchange brings %lld rows to this rank; lower per_device_train_batch_size", (long long)round->R);
    TT_TRY(exchange_pairs(mesh, k, k->scratch, r, s, q, round, &row_pairs, &pair_expert, &arrived_gate));
    TT_TRY(plan_pairs(k, keep, k->scratch, r, round, row_pairs, pair_expert, arrived_gate));
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

tt_status tt_dispatch_plan(const tt_mesh *mesh, tt_kernel *k, tt_arena *keep, int64_t booked, tt_routing *r)
{
    TT_PHASE(k->profile, DISPATCH);
    int ep = mesh->ep_size;
    tt_arena_mark mark = tt_arena_save(k->scratch);
    sends s;
    int64_t *pairs;
    int64_t begin, end;
    TT_CHECK(r->T <= INT32_MAX / tt_max_i64(r->K, 1), TT_ECONFIG,
             "a micro-step of %lld tokens with %lld experts each is too large; lower per_device_train_batch_size",
             (long long)r->T, (long long)r->K);
    tt_mesh_experts(r->E, ep, mesh->ep_rank, &begin, &end);
    r->local_experts = end - begin;
    bool slices = mesh->dispatch != TT_DISPATCH_ALLREDUCE;
    r->begin = slices ? r->T * mesh->tp_rank / mesh->tp_size : 0;
    r->end = slices ? r->T * (mesh->tp_rank + 1) / mesh->tp_size : r->T;
    TT_TRY(list_sends(mesh, r, k->scratch, &s));
    GRANT(k->scratch, (int64_t)ep * ep, pairs);
    int64_t *mine = pairs + (int64_t)mesh->ep_rank * ep;
    for (int to = 0; to < ep; to++) mine[to] = s.first[s.begin[to + 1]] - s.first[s.begin[to]];
    TT_TRY(tt_allgather(mesh->ep, "dispatch-rounds", mine, pairs, (size_t)ep * sizeof *pairs));
    r->num_rounds = count_rounds(ep, booked, pairs);
    TT_TRY(cut_sends(mesh, k->scratch, r->num_rounds, &s));
    GRANT(keep, r->num_rounds, r->rounds);
    for (int q = 0; q < r->num_rounds; q++) TT_TRY(plan_round(mesh, k, keep, r, &s, q, &r->rounds[q]));
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

/* --- moving -------------------------------------------------------------------------------------------------- */

/* The rows are the tokens themselves, in order: nobody sends anything. */
static bool stays(const tt_mesh *mesh, const tt_routing *r)
{
    return (mesh->ep_size == 1 || mesh->dispatch == TT_DISPATCH_ALLREDUCE) && r->num_rounds == 1;
}

static tt_status exchange_rows(const tt_mesh *mesh, tt_kernel *k, const char *name, const int64_t *send_rows,
                               tt_mat from, const int64_t *recv_rows, tt_mat to)
{
    tt_arena_mark mark = tt_arena_save(k->scratch);
    int64_t row = from.cols * (int64_t)tt_dtype_size(from.dtype), *send_bytes, *recv_bytes;
    GRANT(k->scratch, mesh->ep_size, send_bytes);
    GRANT(k->scratch, mesh->ep_size, recv_bytes);
    for (int p = 0; p < mesh->ep_size; p++) {
        send_bytes[p] = send_rows[p] * row;
        recv_bytes[p] = recv_rows[p] * row;
    }
    tt_status status = tt_alltoallv(mesh->ep, name, from.data, send_bytes, to.data, recv_bytes);
    tt_arena_restore(k->scratch, mark);
    return status;
}

tt_status tt_dispatch_rows(const tt_mesh *mesh, tt_kernel *k, tt_arena *work, const tt_routing *r, int round,
                           const char *name, tt_mat x_TD, tt_mat *out_RD)
{
    TT_PHASE(k->profile, DISPATCH);
    const tt_round *q = &r->rounds[round];
    if (stays(mesh, r)) {
        *out_RD = tt_mat_rows(x_TD, r->begin, r->end);
        return TT_OK;
    }
    void *received, *packed;
    TT_TRY(tt_arena_grant(work, q->R * x_TD.cols, tt_dtype_size(x_TD.dtype), &received));
    *out_RD = tt_mat_of(received, x_TD.dtype, q->R, x_TD.cols);
    tt_arena_mark mark = tt_arena_save(k->scratch);
    TT_TRY(tt_arena_grant(k->scratch, q->sent * x_TD.cols, tt_dtype_size(x_TD.dtype), &packed));
    tt_mat out = tt_mat_of(packed, x_TD.dtype, q->sent, x_TD.cols);
    k->ops->gather_rows(k, x_TD, q->sent_token, out);
    TT_TRY(exchange_rows(mesh, k, name, q->send_rows, out, q->recv_rows, *out_RD));
    tt_arena_restore(k->scratch, mark);
    return TT_OK;
}

tt_status tt_combine_rows(const tt_mesh *mesh, tt_kernel *k, tt_arena *work, const tt_routing *r, int round,
                          const char *name, tt_mat y_RD, tt_mat out_TD)
{
    TT_PHASE(k->profile, DISPATCH);
    const tt_round *q = &r->rounds[round];
    if (stays(mesh, r)) {
        k->ops->add(k, y_RD, tt_mat_rows(out_TD, r->begin, r->end));
        return TT_OK;
    }
    tt_arena_mark mark = tt_arena_save(work);
    void *returned;
    TT_TRY(tt_arena_grant(work, q->sent * y_RD.cols, tt_dtype_size(y_RD.dtype), &returned));
    tt_mat back = tt_mat_of(returned, y_RD.dtype, q->sent, y_RD.cols);
    TT_TRY(exchange_rows(mesh, k, name, q->recv_rows, y_RD, q->send_rows, back));
    k->ops->sum_rows(k, back, q->token_begin, q->sent_of, NULL, true, out_TD);
    tt_arena_restore(work, mark);
    return TT_OK;
}

tt_status tt_return_gate_gradients(const tt_mesh *mesh, tt_kernel *k, tt_arena *work, const tt_routing *r, int round,
                                   tt_mat dpair_P, tt_mat dgates_TK)
{
    TT_PHASE(k->profile, DISPATCH);
    const tt_round *q = &r->rounds[round];
    int ep = mesh->ep_size;
    size_t real = tt_dtype_size(dpair_P.dtype);
    int64_t sent_pairs = 0, *send_bytes, *recv_bytes, *begin;
    int32_t *item;
    void *ordered, *returned;
    tt_arena_mark mark = tt_arena_save(work);
    for (int p = 0; p < ep; p++) sent_pairs += q->send_pairs[p];
    GRANT(work, ep, send_bytes);
    GRANT(work, ep, recv_bytes);
    TT_TRY(tt_arena_grant(work, q->P, real, &ordered));
    TT_TRY(tt_arena_grant(work, sent_pairs, real, &returned));
    for (int p = 0; p < ep; p++) {
        send_bytes[p] = q->recv_pairs[p] * (int64_t)real;
        recv_bytes[p] = q->send_pairs[p] * (int64_t)real;
    }
    /* row_pair lists pairs in the order in which they arrived. */
    k->ops->gather_rows(k, dpair_P, q->row_pair, tt_mat_of(ordered, dpair_P.dtype, q->P, 1));
    TT_TRY(tt_alltoallv(mesh->ep, "return-weights", ordered, send_bytes, returned, recv_bytes));
    /* Each choice was sent once, in one round: a sum over at most one item. */
    int64_t choices = r->T * r->K;
    GRANT(work, choices + 1, begin);
    GRANT(work, sent_pairs, item);
    memset(begin, 0, (size_t)(choices + 1) * sizeof *begin);
    for (int64_t i = 0; i < sent_pairs; i++) begin[q->sent_choice[i] + 1] = 1;
    for (int64_t c = 0; c < choices; c++) begin[c + 1] += begin[c];
    for (int64_t i = 0; i < sent_pairs; i++) item[begin[q->sent_choice[i]]] = (int32_t)i;
    k->ops->sum_rows(k, tt_mat_of(returned, dpair_P.dtype, sent_pairs, 1), begin, item, NULL, true,
                     tt_mat_reshape(dgates_TK, 1));
    tt_arena_restore(work, mark);
    return TT_OK;
}

/* --- replicas ------------------------------------------------------------------------------------------------ */

bool tt_shares_rows(const tt_mesh *mesh)
{
    return mesh->dispatch == TT_DISPATCH_ALLREDUCE ? mesh->ep_size > 1 : mesh->tp_size > 1;
}

/* Slices differ by at most one row: an exchange in which each rank sends its slice to all. */
static tt_status gather_slices(const tt_mesh *mesh, tt_kernel *k, const char *name, tt_mat m)
{
    int tp = mesh->tp_size;
    int64_t row = m.cols * (int64_t)tt_dtype_size(m.dtype), *send_bytes, *recv_bytes;
    int64_t mine = m.rows * mesh->tp_rank / tp, rows = m.rows * (mesh->tp_rank + 1) / tp - mine;
    char *copies;
    GRANT(k->scratch, tp, send_bytes);
    GRANT(k->scratch, tp, recv_bytes);
    TT_TRY(tt_arena_grant(k->scratch, rows * row, (size_t)tp, (void **)&copies));
    for (int r = 0; r < tp; r++) {
        memcpy(copies + r * rows * row, tt_mat_row(m, mine), (size_t)(rows * row));
        send_bytes[r] = rows * row;
        recv_bytes[r] = (m.rows * (r + 1) / tp - m.rows * r / tp) * row;
    }
    return tt_alltoallv(mesh->tp, name, copies, send_bytes, m.data, recv_bytes);
}

/* Sums in rank order, the same bits everywhere: each rank sums one part and all-gathers it. */
static tt_status sum_parts(const tt_mesh *mesh, tt_kernel *k, const char *name, tt_mat m)
{
    int64_t count = m.rows * m.cols, each = tt_div_up(count, mesh->ep_size);
    size_t size = tt_dtype_size(m.dtype);
    char *padded, *part;
    TT_TRY(tt_arena_grant_zero(k->scratch, each * mesh->ep_size, size, (void **)&padded));
    TT_TRY(tt_arena_grant_zero(k->scratch, each, size, (void **)&part));
    memcpy(padded, m.data, (size_t)count * size);
    if (m.dtype == TT_F64) TT_TRY(tt_reduce_scatter_f64(mesh->ep, name, (double *)padded, (double *)part, each));
    else TT_TRY(tt_reduce_scatter_f32(mesh->ep, name, (float *)padded, (float *)part, each));
    TT_TRY(tt_allgather(mesh->ep, name, part, padded, (size_t)each * size));
    memcpy(m.data, padded, (size_t)count * size);
    return TT_OK;
}

tt_status tt_share_rows(const tt_mesh *mesh, tt_kernel *k, const char *name, tt_mat m)
{
    if (!tt_shares_rows(mesh)) return TT_OK;
    TT_PHASE(k->profile, DISPATCH);
    TT_ASSERT(m.ld == m.cols);
    tt_arena_mark mark = tt_arena_save(k->scratch);
    tt_status status = mesh->dispatch == TT_DISPATCH_ALLREDUCE ? sum_parts(mesh, k, name, m) : gather_slices(mesh, k, name, m);
    tt_arena_restore(k->scratch, mark);
    return status;
}

/* --- counting ------------------------------------------------------------------------------------------------ */

int64_t tt_dispatch_bytes(const tt_comm *comm)
{
    static const char *const names[] = {
        "dispatch-rounds", "dispatch-counts",    "dispatch-experts", "dispatch-weights", "dispatch-tokens", "return-outputs",
        "share-outputs",   "dispatch-gradients", "return-gradients", "return-weights",   "share-gradients", "share-gates",
    };
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) sum += tt_comm_bytes_sent(comm, names[i]);
    return sum;
}
