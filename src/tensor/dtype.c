/* dtype.c - the table of types, the narrow float formats bit by bit, and whole arrays.
 *
 * The scalar functions are branch-free integer arithmetic, so that the loops at the end become vector code:
 * they are marked `omp simd`, since plain -O2 would leave them scalar. One conversion per direction, no
 * tables, no state.
 *
 * A narrow format with M mantissa bits and a smallest normal number 2^E0 relates to f32 in three ways:
 *   normal      move the mantissa, change the exponent's bias: one shift and one addition
 *   subnormal   adding 2^(E0-M+23) to |x| leaves round(|x| / 2^(E0-M)) in the low bits of the sum: the processor
 *               rounds to nearest, ties to even, and nothing in it is a subnormal f32, which could be slow
 *   the rest    infinity and NaN, chosen last
 * A mantissa that rounds up past its end carries into the exponent by plain addition: the next power of two, the
 * first normal number or infinity, as it should be.
 */
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
    {"float32", TT_F32}, {"bfloat16", TT_BF16}, {"float16", TT_F16},           {"float64", TT_F64},
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

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* cond ? a : b by masks. The compiler may turn ?: into a branch around the additions below, since these can
 * raise floating-point flags, and a loop with such a branch does not become vector code. */
static inline uint32_t choose(bool cond, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)cond;
    return (a & mask) | (b & ~mask);
}

/* Bits of 2^e as an f32. */
#define POWER_OF_2(e) ((uint32_t)((e) + 127) << 23)

/* f16: 5 exponent bits with bias 15, 10 mantissa bits; numbers from 65520 on round to infinity. */
static inline float widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, u = (uint32_t)(h & 0x7FFFu) << 13;
    uint32_t normal = u + POWER_OF_2(-15);
    /* 2^-14 * (1 + m/1024) - 2^-14 is exact and never looks at a subnormal f32. */
    uint32_t subnormal = bits_of(of_bits(u + POWER_OF_2(-14)) - of_bits(POWER_OF_2(-14)));
    uint32_t special = u | 0x7F800000u | choose((h & 0x3FFu) != 0, 0x400000u, 0);
    uint32_t r = choose(u < (1u << 23), subnormal, normal);
    r = choose(u >= (31u << 23), special, r);
    return of_bits(r | sign);
}

static inline uint16_t narrow_f16(float x)
{
    uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u;
    u &= 0x7FFFFFFFu;
    uint32_t normal = (u - POWER_OF_2(-15) + 0xFFFu + ((u >> 13) & 1u)) >> 13;
    uint32_t subnormal = bits_of(of_bits(u) + 0.5f) - POWER_OF_2(-1);
    uint32_t nan = 0x7E00u | ((u >> 13) & 0x3FFu);
    uint32_t r = choose(u < POWER_OF_2(-14), subnormal, normal);
    r = choose(u >= POWER_OF_2(16), 0x7C00u, r);
    r = choose(u > 0x7F800000u, nan, r);
    return (uint16_t)(r | sign);
}

/* e4m3: 4 exponent bits with bias 7, 3 mantissa bits, no infinities; 0x7F and 0xFF are NaN, 448 is the largest. */
static inline float widen_e4m3(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, u = (uint32_t)(b & 0x7Fu) << 20;
    uint32_t normal = u + POWER_OF_2(-7);
    uint32_t subnormal = bits_of(of_bits(u + POWER_OF_2(-6)) - of_bits(POWER_OF_2(-6)));
    uint32_t r = choose(u < (1u << 23), subnormal, normal);
    r = choose(u == (0x7Fu << 20), 0x7FC00000u, r);
    return of_bits(r | sign);
}

static inline uint8_t narrow_e4m3(float x)
{
    uint32_t u = bits_of(x), sign = (u >> 24) & 0x80u;
    u &= 0x7FFFFFFFu;
    uint32_t normal = (u - POWER_OF_2(-7) + 0x7FFFFu + ((u >> 20) & 1u)) >> 20;
    uint32_t subnormal = bits_of(of_bits(u) + 0x1p14f) - POWER_OF_2(14);
    uint32_t r = choose(u < POWER_OF_2(-6), subnormal, normal);
    r = choose(u >= 0x43E00000u, 0x7Eu, r); /* 448 */
    r = choose(u > 0x7F800000u, 0x7Fu, r);
    return (uint8_t)(r | sign);
}

float tt_f16_to_f32(uint16_t h)
{
    return widen_f16(h);
}

uint16_t tt_f32_to_f16(float x)
{
    return narrow_f16(x);
}

float tt_e4m3_to_f32(uint8_t b)
{
    return widen_e4m3(b);
}

uint8_t tt_f32_to_e4m3(float x)
{
    return narrow_e4m3(x);
}

/* f64 to f32 for a value that is rounded once more afterwards: round to odd, i.e. cut towards zero and set
 * the last bit when anything was cut. What follows then sees on which side of a tie the value lies, so
 * rounding twice equals rounding once (24 bits are at least two more than any narrower format has). */
static float f64_to_f32_odd(double d)
{
    float f = (float)d;
    if (isnan(d) || (double)f == d) return f;
    uint32_t u = bits_of(f);
    if (fabs((double)f) > fabs(d)) u--;
    return of_bits(u | 1u);
}

/* One loop over an array per direction and type. The pointers never overlap (dtype.h). */
#define DEFINE_LOOP(name, from_type, to_type, convert)                                                       \
    static void name(to_type *to, const from_type *from, int64_t n)                                          \
    {                                                                                                        \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) to[i] = convert(from[i]);                        \
    }
DEFINE_LOOP(widen_all_bf16, uint16_t, float, tt_bf16_to_f32)
DEFINE_LOOP(widen_all_f16, uint16_t, float, widen_f16)
DEFINE_LOOP(widen_all_e4m3, uint8_t, float, widen_e4m3)
DEFINE_LOOP(widen_all_f32, float, double, (double))
DEFINE_LOOP(narrow_all_bf16, float, uint16_t, tt_f32_to_bf16)
DEFINE_LOOP(narrow_all_f16, float, uint16_t, narrow_f16)
DEFINE_LOOP(narrow_all_e4m3, float, uint8_t, narrow_e4m3)
DEFINE_LOOP(narrow_all_f64, double, float, (float))
DEFINE_LOOP(narrow_all_f64_odd, double, float, f64_to_f32_odd)
#undef DEFINE_LOOP

static void to_f32(float *dst, const void *src, tt_dtype type, int64_t n)
{
    switch (type) {
    case TT_F64:
        narrow_all_f64(dst, src, n);
        break;
    case TT_BF16:
        widen_all_bf16(dst, src, n);
        break;
    case TT_F16:
        widen_all_f16(dst, src, n);
        break;
    case TT_F8_E4M3:
        widen_all_e4m3(dst, src, n);
        break;
    default:
        TT_ASSERT(!"a type without real values");
    }
}

static void from_f32(void *dst, tt_dtype type, const float *src, int64_t n)
{
    switch (type) {
    case TT_F64:
        widen_all_f32(dst, src, n);
        break;
    case TT_BF16:
        narrow_all_bf16(dst, src, n);
        break;
    case TT_F16:
        narrow_all_f16(dst, src, n);
        break;
    case TT_F8_E4M3:
        narrow_all_e4m3(dst, src, n);
        break;
    default:
        TT_ASSERT(!"a type without real values");
    }
}

/* Through f32, in pieces that stay in the cache. */
static void convert_twice(char *to, tt_dtype dst_type, const char *from, tt_dtype src_type, int64_t n)
{
    enum { PIECE = 1024 };
    float piece[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t m = tt_min_i64(PIECE, n - i);
        const void *source = from + (size_t)i * types[src_type].bytes;
        if (src_type == TT_F64)
            narrow_all_f64_odd(piece, source, m);
        else
            to_f32(piece, source, src_type, m);
        from_f32(to + (size_t)i * types[dst_type].bytes, dst_type, piece, m);
    }
}

void tt_convert(void *dst, tt_dtype dst_type, const void *src, tt_dtype src_type, int64_t n)
{
    TT_ASSERT(types[dst_type].weight && types[src_type].weight);
    if (n == 0) return;
    if (dst_type == src_type) {
        if (dst != src) memmove(dst, src, (size_t)n * types[dst_type].bytes);
    } else if (src_type == TT_F32) {
        from_f32(dst, dst_type, src, n);
    } else if (dst_type == TT_F32) {
        to_f32(dst, src, src_type, n);
    } else {
        convert_twice(dst, dst_type, src, src_type, n);
    }
}
