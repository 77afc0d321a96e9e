#include "support/kernel_levels.h"
#include "support/test.h"

#include "kernels/cpu/cpu.h"

#include <stdlib.h>

static const char *const isas[] = {"base", "avx2", "avx512", "avx512"};
static const char *const names[] = {"base", "avx2", "avx512", "avx512 with pairs"};
enum { PAIRS = 3 };

void kernel_cap(const char *isa)
{
    assert_int_equal(isa ? setenv("TARTAN_ISA", isa, 1) : unsetenv("TARTAN_ISA"), 0);
}

int kernel_num_levels(void)
{
    tt_kernel *k;
    kernel_cap(NULL);
    assert_ok(tt_kernel_create(&tt_ops_cpu, 1, &k));
    const tt_cpu *cpu = k->state;
    int num = cpu->has_pairs ? PAIRS + 1 : (int)cpu->isa + 1;
    tt_kernel_destroy(&k);
    return num;
}

const char *kernel_level_name(int level)
{
    return names[level];
}

kernel_rig *kernel_level_rig(const kernel_case *c, int level, tt_dtype compute, int threads)
{
    kernel_cap(isas[level]);
    kernel_rig *r = kernel_rig_create(c, &tt_ops_cpu, compute, threads);
    ((tt_cpu *)r->k->state)->pairs = level == PAIRS;
    return r;
}

void kernel_rig_run(kernel_rig *r)
{
    kernel_rig_forward(r);
    if (r->c->backward) kernel_rig_backward(r);
    kernel_rig_check_guards(r);
}
