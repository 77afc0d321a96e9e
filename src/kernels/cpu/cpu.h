/* cpu.h - what the files of this folder share.
 *
 * The table. tt_kernel_create calls open, which fills a table in k->state - the reference's entries, over
 * them those of the widest instruction set that the machine has and TARTAN_ISA allows - and points k->ops at
 * it. Calls go through k->ops; tt_ops_cpu itself says only what the backend is and how to open it.
 */
#ifndef TT_KERNELS_CPU_CPU_H
#define TT_KERNELS_CPU_CPU_H

#include "kernels/ops.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

typedef enum tt_cpu_isa { TT_CPU_BASE, TT_CPU_AVX2, TT_CPU_AVX512 } tt_cpu_isa;

typedef struct tt_cpu {
    tt_ops ops;
    tt_cpu_isa isa;
    /* The machine has instructions that multiply BF16 by pairs; products use them. They do so where these run
     * at the full rate of multiply-adds, and so do twice the work: on AMD's cores. On Intel's (without AMX)
     * they run at half that rate: products of BF16 are faster in F32. A rule, not a measurement, so that a
     * machine always gives the same bits. */
    bool has_pairs, pairs;
} tt_cpu;

/* tt_cpu_init - choose the instruction set and fill the table of a zeroed *cpu: what open does, also for a backend
 * that builds on this one and keeps a tt_cpu at the start of its state. */
tt_status tt_cpu_init(tt_cpu *cpu);

/* Put the ops that are compiled for one instruction set over those of a complete table. */
void tt_cpu_base_fill(tt_ops *ops);
void tt_cpu_avx2_fill(tt_ops *ops);
void tt_cpu_avx512_fill(tt_ops *ops);

/* Put ops over the reference's that run the reference on blocks of rows, by all threads: what is small beside
 * the products (routing, tables of angles), and has no tie between rows. */
void tt_cpu_rows_fill(tt_ops *ops);

/* TT_PARALLEL_FOR(k, threads, schedule, name) for (...) ... - iterations shared by so many threads. What each of them does is a
 * span of the profile, up to its own last iteration: who waits for the others shows as a gap. TT_PARALLEL_FLUSHED is the same
 * with TT_FLUSHED: for all but choices of experts, which numbers of any size may decide. */
#define TT_PRAGMA(...) _Pragma(#__VA_ARGS__)

/* TT_FLUSHED - the statement behind it takes subnormal numbers for 0 and makes none. Each costs more than a hundred cycles on
 * many processors, and training makes them by the million: what softmax leaves for tokens that are out of the question,
 * moments of weights that have no gradient any more. They are 0 beside anything that they meet. */
static inline unsigned tt_flush_begin(void)
{
#if defined(__x86_64__)
    unsigned was = _mm_getcsr();
    _mm_setcsr(was | 0x8040);
    return was;
#elif defined(__aarch64__)
    uint64_t was, flush;
    __asm__ volatile("mrs %0, fpcr" : "=r"(was));
    flush = was | 1u << 24;
    __asm__ volatile("msr fpcr, %0" ::"r"(flush));
    return (unsigned)was;
#else
    return 0;
#endif
}

static inline void tt_flush_end(unsigned was)
{
#if defined(__x86_64__)
    _mm_setcsr(was);
#elif defined(__aarch64__)
    uint64_t to = was;
    __asm__ volatile("msr fpcr, %0" ::"r"(to));
#else
    (void)was;
#endif
}

#define TT_FLUSHED for (unsigned was_ = tt_flush_begin(), flushed_ = 1; flushed_; tt_flush_end(was_), flushed_ = 0)

#define TT_PARALLEL_FOR(k, threads, how, name)                                                               \
    TT_PRAGMA(omp parallel num_threads(threads))                                                             \
    TT_SPAN((k)->profile, name) TT_PRAGMA(omp for schedule(how) nowait)
#define TT_PARALLEL_FLUSHED(k, threads, how, name)                                                           \
    TT_PRAGMA(omp parallel num_threads(threads))                                                             \
    TT_SPAN((k)->profile, name) TT_FLUSHED TT_PRAGMA(omp for schedule(how) nowait)

#endif
