/* ops.h - everything that touches the elements of a tensor: one table of operations per backend.
 *
 *   tt_ops_ref      the definition: plain C over `float`, sums in double, one thread. Certify, tests, sanitizer runs.
 *   tt_ops_ref_f64  the same source over `double`: finite differences.
 *   tt_ops_alt      the same source over `float`, sums in float and backwards: how far apart two correct float32
 *                   evaluations of a model lie (certify's yardstick).
 *   tt_ops_cpu      OpenMP, SIMD chosen at run time. Entries it does not override are ref's. The table is made when
 *                   a context is opened: calls go through k->ops.
 *   tt_ops_onednn   tt_ops_cpu with the matrix products of the library oneDNN: to hold the own ones against, and for
 *                   machines where it is faster (bench/bench_kernels.c shows both side by side).
 *
 * Nothing above src/kernels reads or writes an element, so a device backend fits behind this table.
 *
 * Types. `real` is the backend's F32 or F64: residual stream, statistics, router, gradients. `compute` is the type of
 * operands of matrix products: BF16, F32 or F64. Every op reads views of either type and writes views of either type;
 * arithmetic is in real or wider and a result is rounded once, when it is stored. So in bf16 compute a product is
 * operands rounded to bf16 and sums in fp32 or wider, on every machine.
 *
 * Rules for all ops. Shapes are the caller's duty (asserted). Outputs never overlap inputs unless the op says so.
 * Zero rows are legal everywhere and touch nothing. "+=" ops accumulate into their output, all others overwrite all of
 * it. Results do not depend on memory that nobody wrote. The same call with the same number of threads gives the same
 * bits; another number of threads changes only rounding, and for ops marked [fixed] changes nothing.
 * Local; scratch comes from the context's arena and is returned before the op ends.
 * Formulas: docs/model.md, which cites the sources.
 */
#ifndef TT_KERNELS_OPS_H
#define TT_KERNELS_OPS_H

#include "base/arena.h"
#include "base/profile.h"
#include "tensor/mat.h"

#include <stdbool.h>

typedef struct tt_ops tt_ops;

/* What ops run in. One per rank; not shared between threads of ranks. */
typedef struct tt_kernel {
    const tt_ops *ops;
    tt_arena *scratch;
    int threads;
    void *state; /* the backend's own (engines, caches) */
    tt_profile *profile; /* borrowed; NULL: nobody asks where time goes */
    /* Called every few milliseconds of a product by the thread that called the op, for what else wants time; NULL: nothing. */
    void (*meanwhile)(void *user);
    void *meanwhile_user;
} tt_kernel;

/* tt_kernel_create - for a table; threads >= 1. The environment variable TARTAN_ISA (avx512, avx2, base) caps the
 * instruction set of tt_ops_cpu (TT_ECONFIG for another value). */
tt_status tt_kernel_create(const tt_ops *ops, int threads, tt_kernel **out);
void tt_kernel_destroy(tt_kernel **k);

extern const tt_ops tt_ops_ref, tt_ops_ref_f64, tt_ops_alt, tt_ops_cpu, tt_ops_onednn;

/* tt_ops_default - tt_ops_cpu, or what the environment variable TARTAN_KERNELS names: cpu, onednn, or ref (to see
 * whether a kernel is to blame). TT_ECONFIG for another value. */
tt_status tt_ops_default(const tt_ops **out);

/* Documents end to end: document d is tokens [offset[d], offset[d+1]) and sees only itself. */
typedef struct tt_docs {
    int64_t num;
    const int64_t *offset;  /* num + 1 */
    const int32_t *column;  /* [T] place in the row that the document came from: what a sliding window counts */
} tt_docs;

typedef struct tt_attention_shape {
    int64_t heads, kv_heads; /* head n uses kv head n / (heads / kv_heads) */
    int64_t qk_dim, v_dim;
    double scale;
    int64_t window; /* token t sees s when s <= t and column[t] - column[s] < window; 0 = no window */
} tt_attention_shape;

typedef struct tt_route_shape {
    int64_t experts, chosen; /* E, K */
    bool normalise;          /* weights divided by their sum */
    int64_t groups, kept_groups; /* sigmoid router: E in equal groups of which the best are kept; 1, 1 = no grouping */
    double scale;            /* sigmoid router: factor on the weights */
} tt_route_shape;

typedef struct tt_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    double clip;       /* factor on the gradient, min(1, max_norm / (norm + 1e-6)) */
    int64_t step;      /* counts from 1 */
    /* Stochastic rounding of bf16 parameters and moments: element i of the call is element `first + i` of the stream
     * `key` (kernels/element.h has the rule for its random bits). */
    uint64_t key;
    int64_t first;
} tt_adamw;

/* Sums over the rows of one loss call. */
typedef struct tt_loss_sums {
    double nll;      /* sum of -log p(target) */
    double entropy;  /* sum of -sum p log p, in nats */
    int64_t targets; /* rows with a target */
    int64_t correct; /* rows whose largest logit (lowest index on ties) is the target */
} tt_loss_sums;

struct tt_ops {
    const char *name;
    const char *isa; /* the instructions that it uses, once opened; NULL: the compiler's */
    tt_dtype real;

    tt_status (*open)(tt_kernel *k); /* sets k->state; may be NULL */
    void (*close)(tt_kernel *k);

    /* --- products ------------------------------------------------------------------------------------------------ */

    /* Weights w [N,K] are in compute type.
     * y = x w^T (+ b) (+ y when accumulate).   x [T,K] compute, y [T,N], bias [1,N] or bias.data NULL */
    tt_status (*linear)(tt_kernel *k, tt_mat x_TK, tt_mat w_NK, tt_mat bias_N, bool accumulate, tt_mat y_TN);
    /* dx = dy w (+ dx when accumulate).        dy [T,N] compute, dx [T,K] */
    tt_status (*linear_dx)(tt_kernel *k, tt_mat dy_TN, tt_mat w_NK, bool accumulate, tt_mat dx_TK);
    /* dw = dy^T x (+ dw when accumulate).      dy, x compute; dw [N,K] real */
    tt_status (*linear_dw)(tt_kernel *k, tt_mat dy_TN, tt_mat x_TK, bool accumulate, tt_mat dw_NK);
    /* db += column sums of dy.                 db [1,N] real */
    void (*bias_db)(tt_kernel *k, tt_mat dy_TN, tt_mat db_N);

    /* The same for G weights of equal shape on compact rows sorted by weight: rows [offset[g], offset[g+1]) use
     * w[g]. Groups without rows cost nothing; their dw becomes 0, or is left as it is when accumulate. */
    tt_status (*grouped_linear)(tt_kernel *k, tt_mat x_PK, const tt_mat *w_GNK, int64_t G, const int64_t *offset,
                                tt_mat y_PN);
    tt_status (*grouped_dx)(tt_kernel *k, tt_mat dy_PN, const tt_mat *w_GNK, int64_t G, const int64_t *offset,
                            bool accumulate, tt_mat dx_PK);
    tt_status (*grouped_dw)(tt_kernel *k, tt_mat dy_PN, tt_mat x_PK, int64_t G, const int64_t *offset,
                            bool accumulate, const tt_mat *dw_GNK);

    /* --- elementwise, norms, positions --------------------------------------------------------------------------- */

    /* y = x, converted. */
    void (*copy)(tt_kernel *k, tt_mat x, tt_mat y);
    /* y += x. [fixed] */
    void (*add)(tt_kernel *k, tt_mat x, tt_mat y);
    /* n elements of real, zeroed; y *= a. */
    void (*zero)(tt_kernel *k, tt_mat y);
    void (*scale)(tt_kernel *k, double a, tt_mat y);

    /* RMSNorm of each row: r = (mean x^2 + eps)^(-1/2), y = w x r.   w [1,n], rstd [rows] real, kept for backward */
    void (*rmsnorm)(tt_kernel *k, tt_mat x, tt_mat w, double eps, tt_mat y, void *rstd);
    /* g = w dy: dx = r g - x (r^3/n) sum_j g_j x_j (+ dx when accumulate); dw += sum over rows of dy x r, skipped when
     * dw.data is NULL. dx may be dy. */
    void (*rmsnorm_back)(tt_kernel *k, tt_mat dy, tt_mat x, tt_mat w, const void *rstd, bool accumulate, tt_mat dx,
                         tt_mat dw);

    /* Angles p / theta^(2j/rotary) of T positions, j < rotary/2: cosines and sines [T, rotary/2] real. */
    void (*rope_table)(tt_kernel *k, const int32_t *positions, int64_t T, int64_t rotary, double theta, tt_mat cosine,
                       tt_mat sine);
    /* Rotate the first `rotary` dims of each of `heads` heads of x [T, heads*head_dim] in place; pairs (j, j+rotary/2),
     * or (2j, 2j+1) when interleaved; inverse = by the opposite angle (backward). [fixed] */
    void (*rope)(tt_kernel *k, tt_mat x, int64_t heads, tt_mat cosine, tt_mat sine, bool interleaved, bool inverse);

    /* y = min(max(x, -c), c); backward: dx = dy where -c <= x <= c, else 0. y may be x, dx may be dy. [fixed] */
    void (*clamp)(tt_kernel *k, tt_mat x, double c, tt_mat y);
    void (*clamp_back)(tt_kernel *k, tt_mat dy, tt_mat x, double c, tt_mat dx);

    /* h = silu(a) b. */
    void (*swiglu)(tt_kernel *k, tt_mat a, tt_mat b, tt_mat h);
    /* With row weights s (NULL: all 1): ds[row] = sum_j dh_j h_j (skipped when ds NULL), then
     * da = s dh b sigma(a) (1 + a (1 - sigma(a))), db = s dh silu(a), and h = s silu(a) b again, for the weight gradient
     * of the matrix behind it (skipped when h.data is NULL). da may be a, db may be b. s, ds real, per row. */
    void (*swiglu_back)(tt_kernel *k, tt_mat dh, tt_mat a, tt_mat b, const void *s, void *ds, tt_mat da, tt_mat db,
                        tt_mat h);

    /* --- tokens -------------------------------------------------------------------------------------------------- */

    /* x[t] = table[id[t]]. */
    void (*embed)(tt_kernel *k, const int32_t *ids, tt_mat table_VD, tt_mat x_TD);
    /* dtable[id[t]] += dx[t] in the order of t, leaving out id == skip (-1: none). [fixed] */
    void (*embed_back)(tt_kernel *k, const int32_t *ids, tt_mat dx_TD, int32_t skip, tt_mat dtable_VD);

    /* y[i] = x[index[i]]. */
    void (*gather_rows)(tt_kernel *k, tt_mat x, const int32_t *index, tt_mat y);
    /* y[r] = sum over i in [begin[r], begin[r+1]), ascending, of weight[item[i]] x[item[i]] (+ y when accumulate);
     * weight real per row of x, or NULL for 1. Rows without items become 0 (or stay). [fixed] */
    void (*sum_rows)(tt_kernel *k, tt_mat x, const int64_t *begin, const int32_t *item, const void *weight,
                     bool accumulate, tt_mat y);

    /* --- router -------------------------------------------------------------------------------------------------- */

    /* logits = x w^T in real; each element's bits depend on its row of x and its row of w alone, not on where in the
     * matrix it stands, so equal rows tie exactly. [fixed] */
    void (*router_logits)(tt_kernel *k, tt_mat x_TD, tt_mat w_ED, tt_mat logits_TE);

    /* Softmax router: probs = softmax(logits); ids = the K largest, best first, ties to the lower index; gates =
     * probs of the chosen, divided by their sum when s->normalise. replay: ids are given and stay. ids [T,K]. [fixed] */
    void (*route_softmax)(tt_kernel *k, const tt_route_shape *s, tt_mat logits_TE, bool replay, int32_t *ids_TK,
                          tt_mat gates_TK, tt_mat probs_TE);
    /* dlogits from dgates; overwrites dlogits. */
    void (*route_softmax_back)(tt_kernel *k, const tt_route_shape *s, tt_mat dgates_TK, const int32_t *ids_TK,
                               tt_mat gates_TK, tt_mat probs_TE, tt_mat dlogits_TE);
    /* Sigmoid router: probs = sigma(logits); choice by probs + bias (bias [1,E] real or data NULL) within the kept
     * groups (a group counts by the sum of its two best); gates = scale * probs of the chosen (/ (sum + 1e-20)). [fixed] */
    void (*route_sigmoid)(tt_kernel *k, const tt_route_shape *s, tt_mat logits_TE, tt_mat bias_E, bool replay,
                          int32_t *ids_TK, tt_mat gates_TK, tt_mat probs_TE);
    void (*route_sigmoid_back)(tt_kernel *k, const tt_route_shape *s, tt_mat dgates_TK, const int32_t *ids_TK,
                               tt_mat gates_TK, tt_mat probs_TE, tt_mat dlogits_TE);
    /* Balance loss: counts[e] += rows that chose e, sums[e] += sum over rows of probs[e]. In row order. [fixed] */
    void (*route_stats)(tt_kernel *k, const int32_t *ids_TK, int64_t K, tt_mat probs_TE, double *counts, double *sums);
    /* dlogits[t,e] += c probs[t,e] (f[e] - sum_j f[j] probs[t,j]). */
    void (*balance_back)(tt_kernel *k, tt_mat probs_TE, const double *f, double c, tt_mat dlogits_TE);

    /* --- attention ----------------------------------------------------------------------------------------------- */

    /* q [T, N*qk], k [T, G*qk], v [T, G*v] compute; o [T, N*v]; lse [T,N] real: log-sum-exp of the scaled scores, kept
     * for backward. Memory beside the operands is independent of T x T. */
    tt_status (*attention)(tt_kernel *k, const tt_attention_shape *s, const tt_docs *docs, tt_mat q, tt_mat key,
                           tt_mat v, tt_mat o, tt_mat lse_TN);
    /* do_ [T, N*v] compute; o as the forward pass left it. dq, dk, dv overwritten. */
    tt_status (*attention_back)(tt_kernel *k, const tt_attention_shape *s, const tt_docs *docs, tt_mat do_, tt_mat q,
                                tt_mat key, tt_mat v, tt_mat o, tt_mat lse_TN, tt_mat dq, tt_mat dk, tt_mat dv);

    /* --- loss, optimizer ------------------------------------------------------------------------------------------ */

    /* Rows of logits [M,V] real with targets in [0,V): adds to sums; dlogits = scale (softmax - onehot), skipped when
     * dlogits.data is NULL; it may be logits. TT_ENONFINITE names nothing: a non-finite nll shows in sums. */
    void (*cross_entropy)(tt_kernel *k, tt_mat logits_MV, const int32_t *targets, double scale, tt_mat dlogits_MV,
                          tt_loss_sums *sums);

    /* Sum of squares of n gradient elements, in double, in fixed blocks so that threads do not change it. [fixed] */
    double (*sum_squares)(tt_kernel *k, tt_mat g);
    /* One row vector each: p resident type; g real; m, v real or BF16. Arithmetic real or wider:
     *   g' = clip g; p -= lr wd p; m += (1-b1)(g'-m); v = b2 v + (1-b2) g'^2;
     *   p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps)
     * BF16 p, m and v are rounded stochastically with the stream a->key, each once, after p has used the new m and v.
     * [fixed] */
    void (*adamw)(tt_kernel *k, const tt_adamw *a, tt_mat p, tt_mat g, tt_mat m, tt_mat v);
    /* p -= lr (clip g + wd p). Rounding as above. [fixed] */
    void (*sgd)(tt_kernel *k, const tt_adamw *a, tt_mat p, tt_mat g);
};

#endif
