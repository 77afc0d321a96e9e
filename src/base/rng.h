/* rng.h - counter-based random numbers: value i of a stream depends on (key, i) alone, so that random tensors,
 * dropout and stochastic rounding are the same on every mesh and in every order of evaluation.
 * Generator: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
#ifndef TT_BASE_RNG_H
#define TT_BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

/* tt_rng_block - four 32-bit words number `counter` of the stream `key`. */
void tt_rng_block(uint64_t key, uint64_t stream, uint64_t counter, uint32_t out[4]);

/* tt_rng_key - a key for (seed, name): distinct names give independent streams. xxHash64 of the name, seeded. */
uint64_t tt_rng_key(uint64_t seed, const char *name);

/* tt_rng_normal - out[i] = standard normal number (first + i) of the stream, i < n. Box-Muller in double. */
void tt_rng_normal(uint64_t key, int64_t first, int64_t n, float *out);

#endif
