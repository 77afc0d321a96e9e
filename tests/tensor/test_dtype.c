/* Narrow float formats: every bit pattern, every tie, both sides of every tie, and what lies beyond the range.
 *
 * The formats are described a second time here, as numbers in double (a sign, an integer mantissa, a power of
 * two), and rounding is taken from the definition: the nearer neighbour, the even one at equal distance. */
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct format {
    tt_dtype type;
    int mantissa, bias, exponent; /* bits of the mantissa, the bias, bits of the exponent */
    double beyond;                /* from here on, values become `top` */
    uint32_t top;                 /* code of infinity, or of the largest number where there is none */
    uint32_t nan;                 /* smallest code that is a NaN */
} format;

static const format formats[] = {
    {TT_F16, 10, 15, 5, 65520, 0x7C00, 0x7C01},
    {TT_BF16, 7, 127, 8, 0x1.FFp127, 0x7F80, 0x7F81},
    {TT_F8_E4M3, 3, 7, 4, 448, 0x7E, 0x7F},
};
#define NUM_FORMATS (sizeof formats / sizeof *formats)

static uint32_t sign_bit(const format *f)
{
    return 1u << (f->mantissa + f->exponent);
}

/* Value of a code without its sign, by definition. */
static double value_of(const format *f, uint32_t code)
{
    int e = (int)(code >> f->mantissa);
    double m = code & ((1u << f->mantissa) - 1);
    if (code == f->top && f->type != TT_F8_E4M3) return INFINITY;
    if (e == 0) return ldexp(m, 1 - f->bias - f->mantissa);
    return ldexp(m + (1 << f->mantissa), e - f->bias - f->mantissa);
}

static uint32_t code_at(const void *p, tt_dtype t, int64_t i)
{
    return tt_dtype_size(t) == 1 ? ((const uint8_t *)p)[i] : ((const uint16_t *)p)[i];
}

static uint32_t from_float(const format *f, float x)
{
    uint16_t out[1] = {0};
    tt_convert(out, f->type, &x, TT_F32, 1);
    return code_at(out, f->type, 0);
}

static uint32_t from_double(const format *f, double x)
{
    uint16_t out[1] = {0};
    tt_convert(out, f->type, &x, TT_F64, 1);
    return code_at(out, f->type, 0);
}

static void expect_code(const format *f, double x, uint32_t got, uint32_t expected, const char *how)
{
    if (got == expected) return;
    fail_msg("%s of %a from %s: code 0x%x, expected 0x%x", tt_dtype_name(f->type), x, how, got, expected);
}

/* All codes of a format, widened as one array; an array is also what vector code sees. */
static void *all_codes(const format *f, int64_t *n)
{
    *n = 2 * (int64_t)sign_bit(f);
    void *codes = calloc((size_t)*n, 2);
    assert_non_null(codes);
    for (int64_t i = 0; i < *n; i++)
        if (tt_dtype_size(f->type) == 1)
            ((uint8_t *)codes)[i] = (uint8_t)i;
        else
            ((uint16_t *)codes)[i] = (uint16_t)i;
    return codes;
}

static void every_code_widens_to_its_value(void **state)
{
    (void)state;
    for (size_t k = 0; k < NUM_FORMATS; k++) {
        const format *f = &formats[k];
        int64_t n;
        void *codes = all_codes(f, &n);
        float *values = malloc((size_t)n * sizeof *values);
        assert_non_null(values);
        tt_convert(values, TT_F32, codes, f->type, n);
        for (int64_t i = 0; i < n; i++) {
            uint32_t code = (uint32_t)i & ~sign_bit(f);
            bool negative = (uint32_t)i & sign_bit(f);
            if (code >= f->nan ? !isnan(values[i])
                               : (double)values[i] != (negative ? -1 : 1) * value_of(f, code))
                fail_msg("%s 0x%x is %a", tt_dtype_name(f->type), (unsigned)i, (double)values[i]);
            assert_int_equal(signbit(values[i]) != 0, negative);
        }
        free(values);
        free(codes);
    }
}

/* Numbers come back bit by bit; a NaN comes back as a quiet NaN with its sign and what fits of its payload. */
static void every_code_survives_the_round_trip(void **state)
{
    (void)state;
    for (size_t k = 0; k < NUM_FORMATS; k++) {
        const format *f = &formats[k];
        int64_t n;
        void *codes = all_codes(f, &n), *back = calloc((size_t)n, 2);
        double *wide = malloc((size_t)n * sizeof *wide);
        assert_non_null(back);
        assert_non_null(wide);
        uint32_t quiet = f->type == TT_F8_E4M3 ? 0 : 1u << (f->mantissa - 1);
        tt_dtype by[] = {TT_F32, TT_F64};
        for (size_t b = 0; b < 2; b++) {
            tt_convert(wide, by[b], codes, f->type, n);
            tt_convert(back, f->type, wide, by[b], n);
            for (int64_t i = 0; i < n; i++) {
                uint32_t code = (uint32_t)i;
                if ((code & ~sign_bit(f)) >= f->nan) code |= quiet;
                expect_code(f, (double)i, code_at(back, f->type, i), code, tt_dtype_name(by[b]));
            }
        }
        free(wide);
        free(back);
        free(codes);
    }
}

/* Between each code and the next: the middle goes to the even one, anything else to the nearer. For every
 * narrow format the middle is an f32, and one step of an f64 beside it is not: rounding by way of f32 would
 * fail there. */
static void ties_go_to_even(void **state)
{
    (void)state;
    for (size_t k = 0; k < NUM_FORMATS; k++) {
        const format *f = &formats[k];
        for (uint32_t code = 0; code + 1 < f->nan && value_of(f, code + 1) < INFINITY; code++) {
            double low = value_of(f, code), middle = low + (value_of(f, code + 1) - low) / 2;
            uint32_t even = code + (code & 1);
            for (int negative = 0; negative < 2; negative++) {
                double s = negative ? -1 : 1;
                uint32_t bit = negative ? sign_bit(f) : 0;
                float m = (float)middle;
                assert_true((double)m == middle);
                expect_code(f, middle, from_float(f, (float)s * m), even | bit, "f32");
                expect_code(f, middle, from_float(f, (float)s * nextafterf(m, 0)), code | bit, "f32");
                expect_code(f, middle, from_float(f, (float)s * nextafterf(m, INFINITY)), (code + 1) | bit,
                            "f32");
                expect_code(f, middle, from_double(f, s * middle), even | bit, "f64");
                expect_code(f, middle, from_double(f, s * nextafter(middle, 0)), code | bit, "f64");
                expect_code(f, middle, from_double(f, s * nextafter(middle, INFINITY)), (code + 1) | bit,
                            "f64");
            }
        }
    }
}

static void beyond_the_range(void **state)
{
    (void)state;
    for (size_t k = 0; k < NUM_FORMATS; k++) {
        const format *f = &formats[k];
        double large[] = {f->beyond, nextafter(f->beyond, INFINITY), 3.4e38, 1e300, INFINITY};
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            expect_code(f, large[i], from_double(f, large[i]), f->top, "f64");
            expect_code(f, large[i], from_double(f, -large[i]), f->top | sign_bit(f), "f64");
            if ((double)(float)large[i] < f->beyond) continue;
            expect_code(f, large[i], from_float(f, (float)large[i]), f->top, "f32");
            expect_code(f, large[i], from_float(f, -(float)large[i]), f->top | sign_bit(f), "f32");
        }
        if (f->type != TT_F8_E4M3) {
            expect_code(f, f->beyond, from_double(f, nextafter(f->beyond, 0)), f->top - 1, "f64");
            expect_code(f, f->beyond, from_float(f, nextafterf((float)f->beyond, 0)), f->top - 1, "f32");
        }
        double tiny = value_of(f, 1) / 2; /* a tie with zero, which is even */
        expect_code(f, tiny, from_double(f, tiny), 0, "f64");
        expect_code(f, tiny, from_double(f, -tiny), sign_bit(f), "f64");
        expect_code(f, tiny, from_double(f, nextafter(tiny, 1)), 1, "f64");
        expect_code(f, 0x1p-1074, from_double(f, 0x1p-1074), 0, "f64");
        expect_code(f, -0.0, from_float(f, -0.0f), sign_bit(f), "f32");
        assert_true((from_float(f, NAN) & ~sign_bit(f)) >= f->nan);
        assert_true((from_double(f, -NAN) & ~sign_bit(f)) >= f->nan);
    }
}

/* Any f32, not only those near a tie: compared with rounding a double to a multiple of the last place. */
static void any_float_rounds_to_the_nearest(void **state)
{
    (void)state;
    for (size_t k = 0; k < NUM_FORMATS; k++) {
        const format *f = &formats[k];
        for (uint64_t bits = 0; bits < 0x7F800000u; bits += 40503) {
            uint32_t u = (uint32_t)bits;
            float x;
            memcpy(&x, &u, sizeof x);
            uint32_t code = from_float(f, x);
            if (x >= (float)f->beyond) {
                expect_code(f, x, code, f->top, "f32");
                continue;
            }
            int e;
            frexp(x, &e);
            int least = 2 - f->bias; /* frexp's exponent of the smallest normal number */
            double place = ldexp(1, (e > least ? e : least) - 1 - f->mantissa);
            double expected = rint(x / place) * place;
            if (value_of(f, code) != expected)
                fail_msg("%s of %a is %a, expected %a", tt_dtype_name(f->type), (double)x, value_of(f, code),
                         expected);
        }
    }
}

static void arrays_of_any_length_equal_single_values(void **state)
{
    (void)state;
    enum { N = 2100 };
    static float x[N];
    static double d[N];
    static uint16_t h[N + 1], b[N + 1];
    for (int i = 0; i < N; i++) d[i] = x[i] = (float)((i * 2654435761u) % 100003) * 1e-3f - 50;
    for (int n = 0; n <= N; n += n < 70 ? 1 : 677) {
        h[n] = b[n] = 0xABCD;
        tt_convert(h, TT_F16, x, TT_F32, n);
        tt_convert(b, TT_BF16, h, TT_F16, n);
        assert_int_equal(h[n], 0xABCD);
        assert_int_equal(b[n], 0xABCD);
        for (int i = 0; i < n; i++) {
            assert_int_equal(h[i], tt_f32_to_f16(x[i]));
            assert_int_equal(b[i], tt_f32_to_bf16(tt_f16_to_f32(h[i])));
        }
        tt_convert(h, TT_F16, d, TT_F64, n);
        for (int i = 0; i < n; i++) assert_int_equal(h[i], tt_f32_to_f16(x[i]));
    }
}

/* A copy within one type keeps the bits of every NaN, also in place. */
static void equal_types_are_copied(void **state)
{
    (void)state;
    uint16_t in[4] = {0x7F81, 0xFFFF, 0x0001, 0x7C01}, out[4];
    for (int t = 0; t < TT_NUM_DTYPES; t++) {
        if (!tt_dtype_is_weight((tt_dtype)t) || tt_dtype_size((tt_dtype)t) > sizeof in) continue;
        memset(out, 0, sizeof out);
        tt_convert(out, (tt_dtype)t, in, (tt_dtype)t, (int64_t)(sizeof in / tt_dtype_size((tt_dtype)t)));
        assert_memory_equal(in, out, sizeof in);
        tt_convert(out, (tt_dtype)t, out, (tt_dtype)t, 1);
        assert_memory_equal(in, out, sizeof in);
    }
}

/* The reference's own reading of all 256 codes. The file is read by hand here: its reader is tested elsewhere. */
static void e4m3_codes_of_the_reference(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    json_t *header;
    assert_ok(tt_file_read_all(test_fixture("fp8-matrix/matrix.safetensors"), 1 << 20, &text, &bytes));
    uint64_t n;
    memcpy(&n, text, 8);
    assert_ok(tt_json_parse(text + 8, n, "header", &header));
    int64_t at[2];
    const char *names[] = {"codes", "codes_value"};
    for (int i = 0; i < 2; i++)
        at[i] = 8 + (int64_t)n +
                json_integer_value(
                    json_array_get(json_object_get(json_object_get(header, names[i]), "data_offsets"), 0));
    uint8_t codes[256];
    float expected[256], got[256];
    memcpy(codes, text + at[0], sizeof codes);
    memcpy(expected, text + at[1], sizeof expected);
    tt_convert(got, TT_F32, codes, TT_F8_E4M3, 256);
    for (int i = 0; i < 256; i++) {
        assert_int_equal(codes[i], i);
        if (isnan(expected[i]))
            assert_true(isnan(got[i]));
        else
            assert_memory_equal(&got[i], &expected[i], sizeof *got);
    }
    json_decref(header);
    free(text);
}

static void names_and_sizes(void **state)
{
    (void)state;
    for (int t = 0; t < TT_NUM_DTYPES; t++) {
        tt_dtype back;
        assert_true(tt_dtype_from_name(tt_dtype_name((tt_dtype)t), &back));
        assert_int_equal(back, t);
        if (tt_dtype_from_config_name(tt_dtype_config_name((tt_dtype)t), &back)) assert_int_equal(back, t);
    }
    tt_dtype t;
    assert_true(tt_dtype_from_config_name("bfloat16", &t));
    assert_int_equal(t, TT_BF16);
    assert_false(tt_dtype_from_name("F4", &t));
    assert_false(tt_dtype_from_name("bf16", &t));
    assert_false(tt_dtype_from_config_name("int8", &t));
    assert_int_equal(tt_dtype_size(TT_F64), 8);
    assert_int_equal(tt_dtype_size(TT_F8_E4M3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_widens_to_its_value),
        cmocka_unit_test(every_code_survives_the_round_trip),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(beyond_the_range),
        cmocka_unit_test(any_float_rounds_to_the_nearest),
        cmocka_unit_test(arrays_of_any_length_equal_single_values),
        cmocka_unit_test(equal_types_are_copied),
        cmocka_unit_test(e4m3_codes_of_the_reference),
        cmocka_unit_test(names_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
