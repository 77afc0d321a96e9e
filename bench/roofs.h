/* roofs.h - what this machine can do at most, measured in the same run as what is held against it: plain matrix products
 * by a library, and plain passes over memory.
 *
 * A product is y = x w^T of 2048 x 2048 x 2048 by oneDNN, operands fp32 or bf16, sums fp32; the best of several. Where the
 * processor lacks bf16 instructions the library's bf16 product is slow, and the roof of bf16 compute is the fp32 one.
 * Other libraries may be faster: baseline_roofs.py measures those of the Python side, and compare.py takes the best.
 * A pass goes over arrays that no cache holds: copy (2 x 4 bytes an element) and triad a = b + s c (3 x 4), as STREAM
 * counts them.
 */
#ifndef TT_BENCH_ROOFS_H
#define TT_BENCH_ROOFS_H

#include "base/clock.h"
#include "kernels/ops.h"

#include <math.h>

/* tt_roof_product - GFLOP/s of one rank; called by all ranks at once, the sum over ranks is the machine's. */
static inline tt_status tt_roof_product(int threads, tt_dtype type, double *gflops)
{
    enum { N = 2048, RUNS = 6 };
    tt_kernel *k = NULL;
    void *x = NULL, *w = NULL, *y = NULL;
    double best = INFINITY;
    tt_status status = tt_kernel_create(&tt_ops_onednn, threads, &k);
    if (status == TT_OK) status = tt_alloc("roof", (int64_t)N * N, tt_dtype_size(type), &x);
    if (status == TT_OK) status = tt_alloc("roof", (int64_t)N * N, tt_dtype_size(type), &w);
    if (status == TT_OK) status = tt_alloc("roof", (int64_t)N * N, sizeof(float), &y);
    for (int64_t i = 0; i < (int64_t)N * N && status == TT_OK; i++) {
        float value = 0.01f * (float)(i % 101 - 50);
        tt_convert((char *)x + (size_t)i * tt_dtype_size(type), type, &value, TT_F32, 1);
        tt_convert((char *)w + (size_t)i * tt_dtype_size(type), type, &value, TT_F32, 1);
    }
    tt_mat a = tt_mat_of(x, type, N, N), b = tt_mat_of(w, type, N, N), c = tt_mat_of(y, TT_F32, N, N);
    for (int i = 0; i < RUNS && status == TT_OK; i++) {
        double start = tt_seconds();
        status = k->ops->linear(k, a, b, (tt_mat){0}, false, c);
        best = fmin(best, tt_seconds() - start);
    }
    tt_free(x), tt_free(w), tt_free(y);
    tt_kernel_destroy(&k);
    *gflops = 2e-9 * N * N * N / best;
    return status;
}

typedef struct tt_roof_passes {
    double copy, triad; /* GB/s */
} tt_roof_passes;

/* tt_roof_memory - with all threads of one process; `elements` floats in each of three arrays. */
static inline tt_status tt_roof_memory(int threads, int64_t elements, tt_roof_passes *out)
{
    enum { RUNS = 5 };
    void *blocks[3] = {NULL, NULL, NULL};
    tt_status status = TT_OK;
    for (int i = 0; i < 3 && status == TT_OK; i++) status = tt_alloc("roof", elements, sizeof(float), &blocks[i]);
    float *restrict a = blocks[0], *restrict b = blocks[1], *restrict c = blocks[2];
    double copy = INFINITY, triad = INFINITY;
    if (status != TT_OK) elements = 0;
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < elements; i++) a[i] = b[i] = c[i] = 1; /* pages are given to who touches them */
    for (int run = 0; run < RUNS; run++) {
        double start = tt_seconds();
#pragma omp parallel for simd num_threads(threads)
        for (int64_t i = 0; i < elements; i++) a[i] = b[i];
        double middle = tt_seconds();
#pragma omp parallel for simd num_threads(threads)
        for (int64_t i = 0; i < elements; i++) a[i] = b[i] + 3 * c[i];
        copy = fmin(copy, middle - start), triad = fmin(triad, tt_seconds() - middle);
    }
    for (int i = 0; i < 3; i++) tt_free(blocks[i]);
    *out = (tt_roof_passes){.copy = 8e-9 * (double)elements / copy, .triad = 12e-9 * (double)elements / triad};
    return status;
}

#endif
