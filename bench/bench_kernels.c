/* bench_kernels.c - how fast the kernels of this machine are, beside the fastest plain product of the same
 * run; products also beside those of the library oneDNN.
 *
 *   build/bench/bench_kernels [threads [part]]      parts: linear grouped attention head rows update
 *
 * Each number is the median of a few calls after a first one; backends take turns, so that what else the
 * machine does falls on both. A product of [M,K] and [K,N] counts 2 M N K operations; attention counts what
 * causality leaves: T (T+1)/2 pairs, forward 4 and backward 10 operations for each dimension of a head.
 * TARTAN_ISA caps the instruction set of the own kernels, ONEDNN_MAX_CPU_ISA the library's. Data are small
 * random numbers, so that nothing is denormal.
 */
#include "kernels/ops.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* With one thread the processor's time, so that other work on the machine does not count. */
static clockid_t clock_id = CLOCK_PROCESS_CPUTIME_ID;

static double now(void)
{
    struct timespec t;
    clock_gettime(clock_id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(tt_status s)
{
    if (s == TT_OK) return;
    fprintf(stderr, "bench_kernels: %s\n", tt_error_text());
    exit(tt_status_exit(s));
}

static tt_mat matrix(tt_dtype type, int64_t rows, int64_t cols)
{
    static uint64_t key;
    void *p;
    must(tt_alloc("bench", rows * cols, tt_dtype_size(type), &p));
    tt_mat m = tt_mat_of(p, type, rows, cols);
    float x[4096];
    tt_rng_normal(++key, 0, 4096, x);
    for (int64_t i = 0; i < rows * cols; i += 4096)
        tt_convert((char *)p + (size_t)i * tt_dtype_size(type), type, x, TT_F32,
                   rows * cols - i < 4096 ? rows * cols - i : 4096);
    return m;
}

enum { OWN, LIBRARY, NUM_BACKENDS, MAX_CALLS = 21, MAX_LINES = 128 };

static const tt_ops *const tables[NUM_BACKENDS] = {&tt_ops_cpu, &tt_ops_onednn};
static tt_kernel *contexts[NUM_BACKENDS];

typedef struct seconds {
    double of[NUM_BACKENDS]; /* 0: not measured */
} seconds;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a call that speaks of `k`, on the first `backends`: medians of several, within about a quarter of a
 * second each. */
#define SECONDS(backends, call)                                                                                      \
    __extension__({                                                                                                  \
        double t_[NUM_BACKENDS][MAX_CALLS], spent_ = 0;                                                              \
        seconds s_ = {{0}};                                                                                          \
        int n_ = -1;                                                                                                 \
        for (; n_ < MAX_CALLS && (n_ < 3 || spent_ < 0.25 * (backends)); n_++)                                       \
            for (int b_ = 0; b_ < (backends); b_++) {                                                                \
                tt_kernel *k = contexts[b_];                                                                         \
                double begin_ = now();                                                                               \
                call;                                                                                                \
                if (n_ >= 0) spent_ += t_[b_][n_] = now() - begin_;                                                  \
            }                                                                                                        \
        for (int b_ = 0; b_ < (backends); b_++) {                                                                    \
            qsort(t_[b_], (size_t)n_, sizeof t_[b_][0], ascending);                                                  \
            s_.of[b_] = t_[b_][n_ / 2];                                                                              \
        }                                                                                                            \
        s_;                                                                                                          \
    })

typedef struct line {
    char what[96];
    double rate[NUM_BACKENDS]; /* operations or bytes, 1e9 per second; 0: not measured */
    const char *unit;
} line;

static line lines[MAX_LINES];
static int num_lines;

static void note(double work, seconds s, const char *unit, const char *format, const char *type, long long a,
                 long long b, long long c)
{
    line *l = &lines[num_lines++];
    snprintf(l->what, sizeof l->what, format, type, a, b, c);
    for (int i = 0; i < NUM_BACKENDS; i++) l->rate[i] = s.of[i] > 0 ? work / s.of[i] * 1e-9 : 0;
    l->unit = unit;
}

static void bench_linear(tt_dtype type, int64_t M, int64_t N, int64_t K)
{
    const char *name = tt_dtype_name(type);
    double work = 2.0 * (double)M * (double)N * (double)K;
    tt_mat x = matrix(type, M, K), dy = matrix(type, M, N), y = matrix(TT_F32, M, N), dx = matrix(TT_F32, M, K);
    tt_mat dw = matrix(TT_F32, N, K), none = {0};
    tt_mat w = matrix(type, N, K);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->linear(k, x, w, none, false, y))), "GF/s",
         "%-4s linear     %4lld x %lld x %lld", name, M, N, K);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->linear_dx(k, dy, w, false, dx))), "GF/s",
         "%-4s linear_dx  %4lld x %lld x %lld", name, M, N, K);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->linear_dw(k, dy, x, false, dw))), "GF/s",
         "%-4s linear_dw  %4lld x %lld x %lld", name, M, N, K);
    tt_mat all[] = {x, dy, y, dx, dw, w};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tt_free(all[i].data);
}

static void bench_grouped(tt_dtype type, int64_t ROWS)
{
    enum { G = 64, N = 1024, K = 2048 };
    const char *name = tt_dtype_name(type);
    double work = 2.0 * G * (double)ROWS * N * K;
    tt_mat x = matrix(type, G * ROWS, K), dy = matrix(type, G * ROWS, N), y = matrix(type, G * ROWS, N);
    tt_mat dx = matrix(TT_F32, G * ROWS, K), w = matrix(type, G * N, K), dw = matrix(TT_F32, G * N, K);
    tt_mat weight[G], dweight[G];
    int64_t offset[G + 1];
    for (int g = 0; g <= G; g++) offset[g] = g * ROWS;
    for (int g = 0; g < G; g++) {
        weight[g] = tt_mat_rows(w, g * N, (g + 1) * N);
        dweight[g] = tt_mat_rows(dw, g * N, (g + 1) * N);
    }
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->grouped_linear(k, x, weight, G, offset, y))), "GF/s",
         "%-4s grouped_linear %lld of %lld x 1024 x %lld", name, G, ROWS, K);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->grouped_dx(k, dy, weight, G, offset, false, dx))), "GF/s",
         "%-4s grouped_dx     %lld of %lld x 1024 x %lld", name, G, ROWS, K);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->grouped_dw(k, dy, x, G, offset, false, dweight))), "GF/s",
         "%-4s grouped_dw     %lld of %lld x 1024 x %lld", name, G, ROWS, K);
    tt_mat all[] = {x, dy, y, dx, w, dw};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tt_free(all[i].data);
}

static void bench_attention(tt_dtype type, int64_t T)
{
    const char *name = tt_dtype_name(type);
    tt_attention_shape s = {.heads = 16, .kv_heads = 16, .qk_dim = 128, .v_dim = 128, .scale = 0.08838834764};
    double pairs = (double)T * ((double)T + 1) / 2 * 16;
    int64_t offset[] = {0, T};
    tt_docs docs = {1, offset, NULL};
    tt_mat m[8], lse = matrix(TT_F32, T, 16);
    for (int i = 0; i < 8; i++) m[i] = matrix(type, T, 2048);
    note(pairs * 4 * 128, SECONDS(1, must(k->ops->attention(k, &s, &docs, m[0], m[1], m[2], m[3], lse))), "GF/s",
         "%-4s attention      T %4lld, 16 heads of 128", name, T, 0, 0);
    note(pairs * 10 * 128,
         SECONDS(1, must(k->ops->attention_back(k, &s, &docs, m[4], m[0], m[1], m[2], m[3], lse, m[5], m[6], m[7]))),
         "GF/s", "%-4s attention_back T %4lld, 16 heads of 128", name, T, 0, 0);
    for (int i = 0; i < 8; i++) tt_free(m[i].data);
    tt_free(lse.data);
}

/* As src/model/head.c has it: 512 rows of logits at a time, of OLMoE's shape. The first ones write the gradient of the
 * weight, later ones add to it. */
static void bench_head(tt_dtype type)
{
    enum { M = 512, V = 50304, D = 2048 };
    const char *name = tt_dtype_name(type);
    double work = 2.0 * M * V * D;
    tt_mat x = matrix(type, M, D), w = matrix(type, V, D), dy = matrix(type, M, V);
    tt_mat y = matrix(TT_F32, M, V), dx = matrix(TT_F32, M, D), dw = matrix(TT_F32, V, D);
    int32_t targets[M];
    tt_loss_sums sums = {0};
    for (int i = 0; i < M; i++) targets[i] = i;
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->linear(k, x, w, (tt_mat){0}, false, y))), "GF/s",
         "%-4s head           %lld x %lld x %lld", name, M, V, D);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->linear_dx(k, dy, w, false, dx))), "GF/s",
         "%-4s head_dx        %lld x %lld x %lld", name, M, V, D);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->linear_dw(k, dy, x, false, dw))), "GF/s",
         "%-4s head_dw, first %lld x %lld x %lld", name, M, V, D);
    note(work, SECONDS(NUM_BACKENDS, must(k->ops->linear_dw(k, dy, x, true, dw))), "GF/s",
         "%-4s head_dw, added %lld x %lld x %lld", name, M, V, D);
    if (type == TT_F32)
        note(8.0 * M * V, SECONDS(1, k->ops->cross_entropy(k, y, targets, 1e-3, y, &sums)), "GB/s",
             "%-4s cross_entropy  %lld x %lld, in place", name, M, V, 0);
    tt_mat all[] = {x, w, dy, y, dx, dw};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tt_free(all[i].data);
}

static void bench_update(tt_dtype type)
{
    int64_t n = 1 << 24;
    tt_adamw a = {1e-4, 0.9, 0.999, 1e-8, 0.1, 1.0, 10, 7, 0};
    tt_mat p = matrix(type, 1, n), g = matrix(TT_F32, 1, n), m = matrix(TT_F32, 1, n), v = matrix(TT_F32, 1, n);
    double size = type == TT_BF16 ? 2 : 4;
    contexts[OWN]->ops->zero(contexts[OWN], v);
    note((double)n * (2 * size + 20), SECONDS(1, k->ops->adamw(k, &a, p, g, m, v)), "GB/s",
         "%-4s adamw          %lld elements", tt_dtype_name(type), n, 0, 0);
    note((double)n * 4, SECONDS(1, k->ops->sum_squares(k, g)), "GB/s", "%-4s sum_squares    %lld elements", "F32", n,
         0, 0);
    note((double)n * 8, SECONDS(1, k->ops->copy(k, g, m)), "GB/s", "%-4s copy           %lld elements", "F32", n, 0,
         0);
    tt_free(p.data), tt_free(g.data), tt_free(m.data), tt_free(v.data);
}

static void bench_rows(void)
{
    enum { T = 2048, D = 2048 };
    tt_mat x = matrix(TT_F32, T, D), y = matrix(TT_BF16, T, D), w = matrix(TT_F32, 1, D), dw = matrix(TT_F32, 1, D);
    tt_mat b = matrix(TT_BF16, T, D), h = matrix(TT_BF16, T, D), rstd = matrix(TT_F32, 1, T);
    tt_mat e = matrix(TT_F32, 64, D), logits = matrix(TT_F32, T, 64);
    double n = (double)T * D;
    note(n * 6, SECONDS(1, k->ops->rmsnorm(k, x, w, 1e-5, y, rstd.data)), "GB/s", "%-4s rmsnorm        %lld x %lld",
         "F32", T, D, 0);
    note(n * 14, SECONDS(1, k->ops->rmsnorm_back(k, y, x, w, rstd.data, true, x, dw)), "GB/s",
         "%-4s rmsnorm_back   %lld x %lld", "F32", T, D, 0);
    note(n * 6, SECONDS(1, k->ops->swiglu(k, y, b, h)), "GB/s", "%-4s swiglu         %lld x %lld", "BF16", T, D, 0);
    note(n * 12, SECONDS(1, k->ops->swiglu_back(k, h, y, b, NULL, NULL, y, b, h)), "GB/s",
         "%-4s swiglu_back    %lld x %lld", "BF16", T, D, 0);
    note(n * 2 * 64, SECONDS(1, k->ops->router_logits(k, x, e, logits)), "GF/s",
         "%-4s router_logits  %lld x 64 x %lld", "F32", T, D, 0);
    tt_mat all[] = {x, y, w, dw, b, h, rstd, e, logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tt_free(all[i].data);
}

static bool wanted(const char *part, const char *only)
{
    return !only || strcmp(part, only) == 0;
}

static void bench_all(const char *only)
{
    static const int64_t rows[] = {16, 64, 128, 512, 1024};
    static const tt_dtype types[] = {TT_F32, TT_BF16};
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows && wanted("linear", only); i++)
            bench_linear(types[t], rows[i], 2048, 2048);
        if (wanted("linear", only)) bench_linear(types[t], 128, 1024, 2048);
        if (wanted("linear", only)) bench_linear(types[t], 1024, 1024, 2048);
        for (int64_t rows = 16; rows <= 128 && wanted("grouped", only); rows *= 2) bench_grouped(types[t], rows);
        if (wanted("attention", only)) bench_attention(types[t], 1024);
        if (wanted("attention", only)) bench_attention(types[t], 2048);
    }
    if (wanted("head", only)) bench_head(TT_F32);
    if (wanted("head", only)) bench_head(TT_BF16);
    if (wanted("rows", only)) bench_rows();
    if (wanted("update", only)) bench_update(TT_F32);
    if (wanted("update", only)) bench_update(TT_BF16);
}

static void print_all(int threads)
{
    double best = 0;
    for (int i = 0; i < num_lines; i++)
        for (int b = 0; b < NUM_BACKENDS; b++)
            if (strcmp(lines[i].unit, "GF/s") == 0 && lines[i].rate[b] > best) best = lines[i].rate[b];
    printf("%d threads; share of the best product, %.1f GF/s\n%-56s", threads, best, "");
    for (int b = 0; b < NUM_BACKENDS; b++) printf(" %8s          ", tables[b]->name);
    for (int i = 0; i < num_lines; i++) {
        printf("\n%-56s", lines[i].what);
        for (int b = 0; b < NUM_BACKENDS && lines[i].rate[b] > 0; b++) {
            printf(" %8.1f %s", lines[i].rate[b], lines[i].unit);
            if (strcmp(lines[i].unit, "GF/s") == 0) printf(" %3.0f %%", 100 * lines[i].rate[b] / best);
        }
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    if (threads < 1) threads = 1;
    if (threads > 1) clock_id = CLOCK_MONOTONIC;
    for (int b = 0; b < NUM_BACKENDS; b++) must(tt_kernel_create(tables[b], threads, &contexts[b]));
    bench_all(argc > 2 ? argv[2] : NULL);
    if (num_lines == 0) {
        fprintf(stderr, "bench_kernels: there is no part \"%s\"\n", argv[2]);
        return 2;
    }
    print_all(threads);
    for (int b = 0; b < NUM_BACKENDS; b++) tt_kernel_destroy(&contexts[b]);
    return 0;
}
