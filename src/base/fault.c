#include "base/fault.h"

#ifdef TT_FAULT_SWITCHES
static tt_fault_switch planted;

void tt_fault_plant(tt_fault_switch f)
{
    planted = f;
}

bool tt_fault(tt_fault_switch f)
{
    return planted == f;
}
#else
/* ISO C wants a declaration in every file. */
typedef int tt_fault_is_for_tests;
#endif
