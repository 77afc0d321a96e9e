/* dtype.h - element types and exact conversion between them.
 *
 * Names are those of safetensors. Conversions to a narrower type round to nearest, ties to even; values
 * beyond the range become infinities (F8_E4M3, which has none, saturates at 448). NaN stays NaN, quiet, with
 * its sign and the leading bits of its payload (as the processors' own instructions do); a copy within one
 * type keeps every bit. F64 is rounded once, whatever it becomes. Speed: about a gigabyte of f32 a second or
 * more on one core.
 */
#ifndef TT_TENSOR_DTYPE_H
#define TT_TENSOR_DTYPE_H

#include "tartan/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name on disk, bytes, is a real-valued type that weights may have */
#define TT_DTYPE_MAP(X)                                                                                      \
    X(F64, 8, true)                                                                                          \
    X(F32, 4, true)                                                                                          \
    X(F16, 2, true)                                                                                          \
    X(BF16, 2, true)                                                                                         \
    X(F8_E4M3, 1, true)                                                                                      \
    X(F8_E5M2, 1, false)                                                                                     \
    X(F8_E8M0, 1, false)                                                                                     \
    X(I64, 8, false)                                                                                         \
    X(U64, 8, false)                                                                                         \
    X(I32, 4, false)                                                                                         \
    X(U32, 4, false)                                                                                         \
    X(I16, 2, false)                                                                                         \
    X(U16, 2, false)                                                                                         \
    X(I8, 1, false)                                                                                          \
    X(U8, 1, false)                                                                                          \
    X(BOOL, 1, false)

typedef enum tt_dtype {
#define X(name, bytes, weight) TT_##name,
    TT_DTYPE_MAP(X)
#undef X
        TT_NUM_DTYPES
} tt_dtype;

size_t tt_dtype_size(tt_dtype t);
const char *tt_dtype_name(tt_dtype t);
bool tt_dtype_is_weight(tt_dtype t);
/* "BF16" -> TT_BF16; false when unknown. */
bool tt_dtype_from_name(const char *name, tt_dtype *out);
/* "bfloat16" -> TT_BF16, the spelling of config.json and of the trainer's keys; false when unknown. */
bool tt_dtype_from_config_name(const char *name, tt_dtype *out);
const char *tt_dtype_config_name(tt_dtype t);

/* tt_convert - n elements from src to dst; both must satisfy tt_dtype_is_weight. The arrays may be the same
 * only when the types are equal. Local; single-threaded. */
void tt_convert(void *dst, tt_dtype dst_type, const void *src, tt_dtype src_type, int64_t n);

static inline float tt_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {.u = (uint32_t)h << 16};
    return v.f;
}

static inline uint16_t tt_f32_to_bf16(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {.f = x};
    if ((v.u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((v.u >> 16) | 0x40u); /* quiet NaN */
    return (uint16_t)((v.u + 0x7FFFu + ((v.u >> 16) & 1u)) >> 16);
}

float tt_f16_to_f32(uint16_t h);
uint16_t tt_f32_to_f16(float x);
float tt_e4m3_to_f32(uint8_t b);
uint8_t tt_f32_to_e4m3(float x);

#endif
