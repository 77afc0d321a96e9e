/* flops.h - the useful work of a step, and the rate that it is held against. The one place of both.
 *
 *   useful = 6 (B tokens + H targets) + 12 L N d pairs
 *
 *   B  parameters of the blocks that a token uses: all but the experts it did not choose
 *   H  elements of the output matrix, which works for tokens with a target alone
 *   L, N, d   layers, heads, width of a head
 *   pairs     (token, token that it sees) pairs, itself included: T (T + 1) / 2 for one document of T tokens without a window
 *
 * Six: a multiply-add forward and two backward, each two operations. Per pair a score and a value, 2 d each forward and twice
 * that backward. What is computed a second time (gradient checkpointing, scores in backward) is not useful; looking up an
 * embedding is no work. Norms and the like are of lower order and left out.
 */
#ifndef TT_TRAIN_FLOPS_H
#define TT_TRAIN_FLOPS_H

#include "model/batch.h"
#include "model/config.h"
#include "params/params.h"
#include "tartan/comm.h"

/* tt_flops_pairs - of one batch. Pure. */
int64_t tt_flops_pairs(const tt_docs *docs, int64_t window);

/* tt_flops_useful - of a step over so many tokens, targets and pairs, all ranks together. Pure. */
double tt_flops_useful(const tt_model_config *c, const tt_params *p, double tokens, double targets, double pairs);

/* tt_flops_rate - operations a second of a plain fp32 product of 1024 x 1024 x 1024 elements (of fewer, where one would take
 * more than 40 ms) with the threads of k, on all ranks of the world at the same time, added up. Takes about 50 ms. Collective. */
tt_status tt_flops_rate(tt_group *world, tt_kernel *k, double *rate);

#endif
