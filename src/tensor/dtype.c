#include "tensor/dtype.h"
#include "base/checked.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
    bool weight;
} types[] = {
#define X(name, bytes, weight) {#name, bytes, weight},
    TT_DTYPE_MAP(X)
#undef X
};

size_t tt_dtype_size(tt_dtype t)
{
    return types[t].bytes;
}

const char *tt_dtype_name(tt_dtype t)
{
    return types[t].name;
}

bool tt_dtype_is_weight(tt_dtype t)
{
    return types[t].weight;
}

bool tt_dtype_from_name(const char *name, tt_dtype *out)
{
    for (int i = 0; i < TT_NUM_DTYPES; i++)
        if (strcmp(name, types[i].name) == 0) {
            *out = (tt_dtype)i;
            return true;
        }
    return false;
}

static const struct {
    const char *name;
    tt_dtype type;
} config_names[] = {
    {"float32", TT_F32}, {"bfloat16", TT_BF16}, {"float16", TT_F16},     {"float64", TT_F64},
    {"float", TT_F32},   {"half", TT_F16},      {"float8_e4m3fn", TT_F8_E4M3},
};

bool tt_dtype_from_config_name(const char *name, tt_dtype *out)
{
    for (size_t i = 0; i < sizeof config_names / sizeof *config_names; i++)
        if (strcmp(name, config_names[i].name) == 0) {
            *out = config_names[i].type;
            return true;
        }
    return false;
}

const char *tt_dtype_config_name(tt_dtype t)
{
    for (size_t i = 0; i < sizeof config_names / sizeof *config_names; i++)
        if (config_names[i].type == t) return config_names[i].name;
    return types[t].name;
}

float tt_f16_to_f32(uint16_t h)
{
    float sign = h & 0x8000 ? -1.0f : 1.0f;
    int exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)mantissa, -24);
    return sign * ldexpf((float)(mantissa + 1024), exponent - 25);
}

uint16_t tt_f32_to_f16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float a = fabsf(x);
    if (isnan(x)) return sign | 0x7E00;
    if (a >= 65520.0f) return sign | 0x7C00; /* halfway to the next power rounds to infinity */
    if (a < 0x1p-14f) return sign | (uint16_t)lrintf(ldexpf(a, 24));
    int exponent;
    float fraction = frexpf(a, &exponent); /* a = fraction * 2^exponent, fraction in [0.5, 1) */
    /* A mantissa that rounds up to 2048 carries into the exponent by plain addition. */
    return sign | (uint16_t)(((exponent + 14) << 10) + (lrintf(ldexpf(fraction, 11)) - 1024));
}

float tt_e4m3_to_f32(uint8_t b)
{
    float sign = b & 0x80 ? -1.0f : 1.0f;
    int exponent = (b >> 3) & 15, mantissa = b & 7;
    if ((b & 0x7F) == 0x7F) return NAN;
    if (exponent == 0) return sign * ldexpf((float)mantissa, -9);
    return sign * ldexpf((float)(mantissa + 8), exponent - 10);
}

uint8_t tt_f32_to_e4m3(float x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float a = fabsf(x);
    if (isnan(x)) return sign | 0x7F;
    if (a >= 448.0f) return sign | 0x7E;
    if (a < 0x1p-6f) return sign | (uint8_t)lrintf(ldexpf(a, 9));
    int exponent;
    float fraction = frexpf(a, &exponent);
    return sign | (uint8_t)(((exponent + 6) << 3) + (lrintf(ldexpf(fraction, 4)) - 8));
}

static void to_f32(float *dst, const void *src, tt_dtype type, int64_t n)
{
    switch (type) {
    case TT_F64:
        for (int64_t i = 0; i < n; i++) dst[i] = (float)((const double *)src)[i];
        break;
    case TT_F32: memcpy(dst, src, (size_t)n * 4); break;
    case TT_BF16:
        for (int64_t i = 0; i < n; i++) dst[i] = tt_bf16_to_f32(((const uint16_t *)src)[i]);
        break;
    case TT_F16:
        for (int64_t i = 0; i < n; i++) dst[i] = tt_f16_to_f32(((const uint16_t *)src)[i]);
        break;
    case TT_F8_E4M3:
        for (int64_t i = 0; i < n; i++) dst[i] = tt_e4m3_to_f32(((const uint8_t *)src)[i]);
        break;
    default: TT_ASSERT(!"a type without real values");
    }
}

static void from_f32(void *dst, tt_dtype type, const float *src, int64_t n)
{
    switch (type) {
    case TT_F64:
        for (int64_t i = 0; i < n; i++) ((double *)dst)[i] = src[i];
        break;
    case TT_F32: memcpy(dst, src, (size_t)n * 4); break;
    case TT_BF16:
        for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = tt_f32_to_bf16(src[i]);
        break;
    case TT_F16:
        for (int64_t i = 0; i < n; i++) ((uint16_t *)dst)[i] = tt_f32_to_f16(src[i]);
        break;
    case TT_F8_E4M3:
        for (int64_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = tt_f32_to_e4m3(src[i]);
        break;
    default: TT_ASSERT(!"a type without real values");
    }
}

void tt_convert(void *dst, tt_dtype dst_type, const void *src, tt_dtype src_type, int64_t n)
{
    TT_ASSERT(types[dst_type].weight && types[src_type].weight);
    if (dst_type == src_type) {
        if (dst != src) memmove(dst, src, (size_t)n * types[dst_type].bytes);
        return;
    }
    /* Through f32, in pieces that stay in the cache. F64 sources lose nothing that a narrower target would keep
     * except the rare double rounding, and no file of a supported family holds F64. */
    float piece[1024];
    const char *from = src;
    char *to = dst;
    if (src_type == TT_F32) {
        from_f32(dst, dst_type, src, n);
        return;
    }
    if (dst_type == TT_F32) {
        to_f32(dst, src, src_type, n);
        return;
    }
    for (int64_t i = 0; i < n; i += 1024) {
        int64_t m = tt_min_i64(1024, n - i);
        to_f32(piece, from + (size_t)i * types[src_type].bytes, src_type, m);
        from_f32(to + (size_t)i * types[dst_type].bytes, dst_type, piece, m);
    }
}
