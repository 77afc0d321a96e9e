/* cpu.c - the backend for this machine: which table a context gets. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

static const char *const isa_names[] = {"base", "avx2", "avx512"};

static tt_cpu_isa widest(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return TT_CPU_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return TT_CPU_AVX2;
#endif
    return TT_CPU_BASE;
}

static tt_status choose_isa(tt_cpu_isa *out)
{
    const char *cap = getenv("TARTAN_ISA");
    *out = widest();
    if (!cap || !*cap) return TT_OK;
    for (tt_cpu_isa i = TT_CPU_BASE; i <= TT_CPU_AVX512; i++)
        if (strcmp(cap, isa_names[i]) == 0) {
            if (i < *out) *out = i;
            return TT_OK;
        }
    return tt_error_set(TT_ECONFIG, "TARTAN_ISA is \"%s\"; it may be avx512, avx2 or base, or not be set", cap);
}

static void choose_pairs(tt_cpu *cpu)
{
#if defined(__x86_64__)
    cpu->has_pairs = cpu->isa == TT_CPU_AVX512 && __builtin_cpu_supports("avx512bf16");
    cpu->pairs = cpu->has_pairs && __builtin_cpu_is("amd");
#else
    (void)cpu;
#endif
}

tt_status tt_cpu_init(tt_cpu *cpu)
{
    TT_TRY(choose_isa(&cpu->isa));
    cpu->ops = tt_ops_ref;
    choose_pairs(cpu);
    tt_cpu_rows_fill(&cpu->ops);
#if defined(__x86_64__)
    if (cpu->isa == TT_CPU_AVX512)
        tt_cpu_avx512_fill(&cpu->ops);
    else if (cpu->isa == TT_CPU_AVX2)
        tt_cpu_avx2_fill(&cpu->ops);
    else
#endif
        tt_cpu_base_fill(&cpu->ops);
    cpu->ops.name = tt_ops_cpu.name;
    cpu->ops.isa = cpu->pairs ? "avx512 by pairs" : isa_names[cpu->isa];
    cpu->ops.open = tt_ops_cpu.open;
    cpu->ops.close = tt_ops_cpu.close;
    return TT_OK;
}

static tt_status open_cpu(tt_kernel *k)
{
    tt_cpu *cpu = calloc(1, sizeof *cpu);
    TT_CHECK(cpu, TT_ENOMEM, "kernels: out of memory");
    tt_status status = tt_cpu_init(cpu);
    if (status != TT_OK) {
        free(cpu);
        return status;
    }
    k->state = cpu;
    k->ops = &cpu->ops;
    return TT_OK;
}

static void close_cpu(tt_kernel *k)
{
    free(k->state);
    k->state = NULL;
    k->ops = &tt_ops_cpu;
}

const tt_ops tt_ops_cpu = {.name = "cpu", .real = TT_F32, .open = open_cpu, .close = close_cpu};
