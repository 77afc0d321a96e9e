/* fault.h - planted faults: proof that certify can fail (tests/train/test_certify_faults.c).
 *
 * Only the test build (-DTT_FAULT_SWITCHES) has them; elsewhere tt_fault is the constant false and the compiler drops what
 * hangs on it. Each switch is a fault that trainers of this kind have really had. */
#ifndef TT_BASE_FAULT_H
#define TT_BASE_FAULT_H

#include <stdbool.h>

/* name, what it plants */
#define TT_FAULT_MAP(X)                                                                                              \
    X(EXPERT_TIMES_EP, "gradients of experts come out ep_size times too large")                                      \
    X(DENSE_TIMES_TP, "gradients of replicated parts come out tp_size times too large")                              \
    X(ROUTER_MISSING, "no gradient flows through the router")                                                        \
    X(UNWRITTEN_ROW, "a row of the experts' output that no kernel wrote is read")                                    \
    X(SWAPPED_EXPERTS, "two local experts trade places")                                                             \
    X(ROUTED_AGAIN, "recomputation routes anew, from a perturbed input")                                             \
    X(NORM_OF_ONE_AXIS, "the gradient norm is summed over the ep group only")                                        \
    X(BALANCE_PER_RANK, "statistics of the balance loss are those of one rank")                                      \
    X(BIAS_IN_BF16, "the router's correction bias passes through bfloat16")

typedef enum tt_fault_switch {
    TT_FAULT_NONE,
#define X(name, text) TT_FAULT_##name,
    TT_FAULT_MAP(X)
#undef X
} tt_fault_switch;

#ifdef TT_FAULT_SWITCHES
/* Whether this fault is planted. Set before ranks start; all threads read it. */
bool tt_fault(tt_fault_switch f);
void tt_fault_plant(tt_fault_switch f);
#else
#define tt_fault(f) ((void)(f), false)
#endif

#endif
