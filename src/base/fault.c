#include "base/fault.h"

#ifdef TT_FAULT_SWITCHES
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static tt_fault_switch planted;

void tt_fault_plant(tt_fault_switch f)
{
    planted = f;
}

bool tt_fault(tt_fault_switch f)
{
    return planted == f;
}

static _Thread_local tt_file_fault_plan file_plan;
static _Atomic int64_t operations, last_operation = -1;

void tt_file_fault_plant(tt_file_fault_plan plan)
{
    file_plan = plan;
}

void tt_file_fault_kill(int64_t operation)
{
    atomic_store(&operations, 0);
    atomic_store(&last_operation, operation);
}

int64_t tt_file_fault_operations(void)
{
    return atomic_load(&operations);
}

int tt_file_fault(tt_file_op op, const char *path, int64_t amount)
{
    int64_t last = atomic_load(&last_operation);
    if (last >= 0 && atomic_fetch_add(&operations, 1) >= last) _exit(TT_FAULT_EXIT);
    if (!(file_plan.ops & (unsigned)op) || (file_plan.path && !strstr(path, file_plan.path))) return 0;
    file_plan.after -= amount;
    if (file_plan.after >= 0) return 0;
    if (file_plan.once) file_plan.ops = 0;
    return file_plan.error;
}
#else
/* ISO C wants a declaration in every file. */
typedef int tt_fault_is_for_tests;
#endif
