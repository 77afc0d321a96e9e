/* sampler.h - the order of the rows, with the generators and the bits of the common stack.
 *
 * Functions of numbers alone: every rank computes the same order and takes its share of it (train/steps.h).
 * Cost: n draws; memory: the caller's order[n], nothing else.
 */
#ifndef TT_DATA_SAMPLER_H
#define TT_DATA_SAMPLER_H

#include "tartan/status.h"

#include <stdint.h>

/* tt_order_sequential - 0 .. n-1. Local, as all here. */
void tt_order_sequential(int64_t n, int64_t *order);

/* tt_order_random - the training order of epoch `epoch`, counted from 0: a permutation of 0 .. n-1.
 * MT19937 seeded with the low 32 bits of seed + epoch;
 * for i = 0 .. n-2 element i changes places with element i + (draw mod (n - i)).
 * TT_EDATA above 2^32 - 1 rows, which a 32-bit draw does not reach. */
tt_status tt_order_random(uint64_t seed, int64_t epoch, int64_t n, int64_t *order);

/* tt_order_shuffle - the one permutation of shuffle_dataset: numpy's default generator (PCG64, seeded through its
 * seed sequence), swaps from the top with masked draws. order[i] is the old number of the row that comes to i. */
void tt_order_shuffle(uint64_t seed, int64_t n, int64_t *order);

#endif
