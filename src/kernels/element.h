/* element.h - what every backend for this machine needs to read and write elements of views: loads and stores
 * in the type that arithmetic is done in, and the stochastic rounding of bf16 parameters and moments.
 *
 * A load is exact whenever `type` holds the view's type. A store rounds to nearest, ties to even; from F64 to
 * a type of 16 bits it goes through F32, which is the type that results have by contract (tensor/dtype.h).
 */
#ifndef TT_KERNELS_ELEMENT_H
#define TT_KERNELS_ELEMENT_H

#include "base/rng.h"
#include "tensor/mat.h"

static inline void *tt_element_at(tt_mat m, int64_t row, int64_t col)
{
    return (char *)m.data + (size_t)(row * m.ld + col) * tt_dtype_size(m.dtype);
}

/* tt_element_load - n elements of a row from column `col` on, as `type` (F32 or F64). */
static inline void tt_element_load(void *out, tt_dtype type, tt_mat m, int64_t row, int64_t col, int64_t n)
{
    tt_convert(out, type, tt_element_at(m, row, col), m.dtype, n);
}

/* tt_element_store - the opposite. */
static inline void tt_element_store(tt_mat m, int64_t row, int64_t col, const void *x, tt_dtype type,
                                    int64_t n)
{
    tt_convert(tt_element_at(m, row, col), m.dtype, x, type, n);
}

/* tt_bf16_stochastic - x or a neighbour: bf16 is the upper half of a float, and 16 random bits are added to
 * the lower half before it is cut off. A value that lies the fraction f of the way from one bf16 (the one
 * nearer to zero) to the next is thus rounded away from zero with probability f exactly, so the mean of the
 * result is x, and a value that bf16 holds stays what it is. Infinities and NaN are kept. */
static inline uint16_t tt_bf16_stochastic(float x, uint32_t random)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = x};
    if ((v.u & 0x7F800000u) == 0x7F800000u) return tt_f32_to_bf16(x);
    return (uint16_t)((v.u + (random & 0xFFFFu)) >> 16);
}

/* What of an element is rounded. */
typedef enum tt_rounded { TT_ROUND_PARAMETER, TT_ROUND_MOMENT1, TT_ROUND_MOMENT2 } tt_rounded;

/* tt_rounding_bits - the random bits of an element, the same on every backend and for every way to cut a parameter into
 * calls. A block of the stream, tt_rng_block(key, 0, e / 8), serves eight elements: its words hold eight halves,
 * h0 = word[0] & 0xFFFF, h1 = word[0] >> 16, h2 = word[1] & 0xFFFF and so on, and element e with j = e % 8 takes
 *
 *   parameter h[j]     first moment h[j] ^ h[j + 1]     second moment h[j] ^ h[j + 2]     places modulo 8
 *
 * All 24 are uniform, and any two are independent, since no two are made of the same halves: means, variances and
 * covariances of the rounding errors are those of 24 random numbers, at a third of their price. */
static inline uint32_t tt_rounding_bits(const uint32_t word[4], int64_t element, tt_rounded what)
{
    int j = (int)(element % 8), k = (j + (int)what) % 8;
    uint32_t own = word[j / 2] >> (j % 2 * 16), other = word[k / 2] >> (k % 2 * 16);
    return (what == TT_ROUND_PARAMETER ? own : own ^ other) & 0xFFFFu;
}

/* tt_bf16_store_stochastic - elements first .. first + n - 1 of the stream `key`, rounded from x. */
static inline void tt_bf16_store_stochastic(uint16_t *out, const float *x, tt_rounded what, uint64_t key,
                                            int64_t first, int64_t n)
{
    uint32_t word[4];
    for (int64_t i = 0; i < n; i++) {
        int64_t e = first + i;
        if (i == 0 || e % 8 == 0) tt_rng_block(key, 0, (uint64_t)e / 8, word);
        out[i] = tt_bf16_stochastic(x[i], tt_rounding_bits(word, e, what));
    }
}

#endif
