/* simd_base.c - tt_ops_cpu for what every machine of the target has (x86-64: SSE2). */
#define NAME(x) tt_cpu_base_##x
#include "kernels/cpu/body.inc"
