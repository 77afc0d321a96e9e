/* dispatch.h - moving tokens to the ranks that own their experts, and results back.
 *
 * A tt_routing is the routing handle of one MoE layer in one micro-step: which experts each token chose and with what
 * weight, and the plan of the exchange that follows from it. Forward makes it; recomputation and backward use it again
 * and never route anew, so that rounding cannot flip a near tie between them.
 *
 * With experts spread over ep ranks (alltoall) a token is sent once per destination rank that owns at least one of its
 * chosen experts, with its local expert ids and weights; the owner sums its experts' weighted outputs and returns one row
 * per received token; the sender adds the at most min(K, ep) partial rows in rank order.
 *
 *   ep = 3, token 0 chose experts of ranks 0 and 2, token 1 of rank 2 only:
 *     slots of rank 0's sends    to 0: [t0]    to 1: []    to 2: [t0 t1]
 *     rows received by rank 2    from 0: [t0 t1]  from 1: ...  from 2: ...      R rows
 *     pairs on rank 2            one per (received row, chosen local expert), sorted by expert: P rows
 *
 * Backward is the mirror: gradients of outputs travel as tokens did (tt_dispatch_rows), gradients of inputs return as
 * outputs did (tt_combine_rows), and gradients of the weights return to tokens (tt_return_gate_gradients).
 * In an ep group of one nothing is sent and rows are views of the tokens: the same code, not another path.
 *
 * The three kinds of exchange differ in who dispatches what to whom, and in how replicas get their results:
 *     alltoall   a rank dispatches its tokens to the owners of their experts
 *     allgather  ... to every rank of the ep group; an owner computes what concerns it, the other rows come back as zero
 *     allreduce  ranks of the ep group share one batch: each takes all tokens itself, and partial results are summed
 * Ranks of a tp group share a batch. Under alltoall and allgather each dispatches its slice, rows floor(T r / tp) to
 * floor(T (r + 1) / tp), and results are all-gathered in the group: every token is dispatched once, so gradients of experts
 * need no factor, and all replicas hold the same bits (tt_share_rows).
 *
 * Rounds. An exchange is cut so that a rank receives at most `booked` pairs at a time, or a row more from each source: as many
 * rounds as the rank with most pairs needs, and an equal part of what a source has for a rank in each. The number of rounds
 * follows from counts that all ranks of the group know. Every rank takes part in every round, with zero rows if need be. Rows
 * are compact; nothing reads memory that was not written.
 *
 * Costs. Bytes that one layer sends in one micro-step, summed over the ranks of an ep group, what stays on a rank not
 * counted. With s and r the sizes of a dispatched row's element (compute) and of a real one, D the width, Q the rounds,
 * and over the tokens that ranks of the group dispatch
 *     rows    alltoall: (token, other rank that owns one of its experts); allgather: tokens (ep - 1); allreduce: 0
 *     pairs   (token, chosen expert of another rank); allreduce: 0
 * an operation named
 *     dispatch-rounds, dispatch-counts       8 ep^2 (ep - 1),  16 ep (ep - 1) Q
 *     dispatch-experts, dispatch-weights     4 (rows + pairs),  r pairs
 *     dispatch-tokens, return-outputs        s D rows,  r D rows
 *     dispatch-gradients, return-gradients   s D rows,  r D rows
 *     return-weights                         r pairs
 * and for results that replicas share, n elements per token (D for share-outputs and share-gradients, K for share-gates),
 * for each batch of T tokens
 *     alltoall, allgather                    r n T (tp - 1)
 *     allreduce                              r 2 ep (ep - 1) ceil(n T / ep)
 * Forward is the plan, tokens there, outputs back and shared; backward is tokens once more when the block is computed
 * again or has more than one round, gradients there and back, weights back, gates and gradients shared. One copy per chosen
 * expert would be rows = pairs: bench/bench_dispatch.c compares.
 */
#ifndef TT_MOE_DISPATCH_H
#define TT_MOE_DISPATCH_H

#include "kernels/ops.h"
#include "tartan/mesh.h"

/* What one round brings to this rank. */
typedef struct tt_round {
    int64_t sent;        /* rows this rank sends in this round */
    int32_t *sent_token; /* [sent] token of each, by destination, ascending within one */
    int64_t *send_rows;  /* [ep] */
    int64_t *recv_rows;  /* [ep] */
    int64_t *send_pairs, *recv_pairs; /* [ep] (row, expert) pairs that belong to them */
    int64_t *token_begin; /* [T+1] which sent rows carry partial sums of token t: sent_of[token_begin[t]..] */
    int32_t *sent_of;     /* [sent] in rank order */
    int32_t *sent_choice; /* [pairs sent] flat index t*K + k of the choice behind each pair, in sending order */

    int64_t R, P;
    int64_t *expert_begin; /* [local experts + 1] pairs of each local expert */
    int32_t *pair_row;     /* [P] received row, ascending within an expert */
    tt_mat pair_gate;      /* [P,1] real: the weight */
    int32_t *pair_arrival; /* [P] where the pair stood when it arrived: its order for the way back */
    int64_t *row_begin;    /* [R+1] pairs of each received row: row_pair[row_begin[r]..], by ascending expert */
    int32_t *row_pair;     /* [P] */
} tt_round;

typedef struct tt_routing {
    int64_t T, K, E;
    int32_t *ids;  /* [T,K] */
    tt_mat gates;  /* [T,K] real */
    tt_mat probs;  /* [T,E] real: softmax or sigmoid of the logits */
    int64_t begin, end; /* the tokens that this rank dispatches */
    int64_t local_experts;
    int num_rounds;
    tt_round *rounds;
} tt_routing;

/* tt_dispatch_plan - from ids and gates (set, with T, K, E, by the caller) to rounds. Memory from `keep`, for the life
 * of the handle. booked: received pairs per round and rank that the caller is ready for; 0 = twice the balanced share.
 * Collective over the mesh's ep group. Reads ids on the host: the one place where a device would have to wait. */
tt_status tt_dispatch_plan(const tt_mesh *mesh, tt_kernel *k, tt_arena *keep, int64_t booked, tt_routing *r);

/* tt_dispatch_rows - rows of x [T,D] to the owners of the round: *out is [R,D] of x's type, from `work`, or a view of x
 * where no row travels (an ep group of one, allreduce). `name` is the operation's name for counting. Collective over the ep group. */
tt_status tt_dispatch_rows(const tt_mesh *mesh, tt_kernel *k, tt_arena *work, const tt_routing *r, int round,
                           const char *name, tt_mat x_TD, tt_mat *out_RD);

/* tt_combine_rows - rows y [R,D] back to their tokens: out [T,D] += their sum in rank order, for the tokens that this rank
 * dispatches. Collective over the ep group. */
tt_status tt_combine_rows(const tt_mesh *mesh, tt_kernel *k, tt_arena *work, const tt_routing *r, int round,
                          const char *name, tt_mat y_RD, tt_mat out_TD);

/* tt_shares_rows - whether results of this mesh's exchange have to be shared among replicas.
 * tt_share_rows - m [T,*] real, in which each rank has its own tokens' rows (alltoall, allgather) or its experts' part of
 * every row (allreduce) and zeros elsewhere, becomes the whole on every rank that shares the batch: slices are all-gathered
 * in the tp group, parts are summed in rank order in the ep group. Nothing to do without replicas. Collective. */
bool tt_shares_rows(const tt_mesh *mesh);
tt_status tt_share_rows(const tt_mesh *mesh, tt_kernel *k, const char *name, tt_mat m);

/* tt_return_gate_gradients - [P,1] real by pair back to dgates [T,K] at the choices they belong to; choices of other rounds
 * stay as they are. Collective over the ep group. */
tt_status tt_return_gate_gradients(const tt_mesh *mesh, tt_kernel *k, tt_arena *work, const tt_routing *r, int round,
                                   tt_mat dpair_P, tt_mat dgates_TK);

/* tt_dispatch_bytes - bytes that this rank has sent so far in the operations listed under Costs: by their names, so that
 * other transfers may be on their way meanwhile. Callers give rows and results those names. Local. */
int64_t tt_dispatch_bytes(const tt_comm *comm);

#endif
