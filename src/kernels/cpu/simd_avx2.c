/* simd_avx2.c - tt_ops_cpu for one instruction set; the Makefile has its flags. */
#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)
#define NAME(x) tt_cpu_avx2_##x
#include "kernels/cpu/body.inc"
#endif
