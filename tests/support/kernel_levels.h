/* kernel_levels.h - the backend for this machine on each instruction set that the machine has. */
#ifndef TT_TESTS_SUPPORT_KERNEL_LEVELS_H
#define TT_TESTS_SUPPORT_KERNEL_LEVELS_H

#include "support/kernel_cases.h"

/* Instruction sets up to the machine's own (a cap above it gives what a lower one gave), from the plainest on. Where there
 * are products of BF16 by pairs, the last is the widest once more with these, also where the backend would not choose them. */
int kernel_num_levels(void);
const char *kernel_level_name(int level);

/* kernel_cap - TARTAN_ISA, as contexts are created under it; NULL: none. */
void kernel_cap(const char *isa);

/* As kernel_rig_create, for tt_ops_cpu. */
kernel_rig *kernel_level_rig(const kernel_case *c, int level, tt_dtype compute, int threads);

/* Forward, backward where there is one, and the guards. */
void kernel_rig_run(kernel_rig *r);

#endif
