/* fault.h - planted faults: proof that certify can fail (tests/train/test_certify_faults.c), and what becomes of files when
 * the system fails or the process is killed (tests/checkpoint/test_checkpoint_faults.c).
 *
 * Only the test build (-DTT_FAULT_SWITCHES) has them; elsewhere tt_fault is the constant false, tt_file_fault the constant
 * 0, and the compiler drops what hangs on them. Each switch is a fault that trainers of this kind have really had. */
#ifndef TT_BASE_FAULT_H
#define TT_BASE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

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

/* What the file layer asks the system for when it changes something. */
typedef enum tt_file_op {
    TT_FILE_CREATE = 1, /* files and folders */
    TT_FILE_WRITE = 2,
    TT_FILE_SYNC = 4,
    TT_FILE_RENAME = 8,
    TT_FILE_REMOVE = 16
} tt_file_op;

/* A failure of the system: operations of these kinds, on paths that contain `path`, fail with `error` once `after` bytes
 * (of writes) or calls (of others) have gone well. ops 0: none. */
typedef struct tt_file_fault_plan {
    unsigned ops;
    const char *path; /* borrowed; NULL: all */
    int64_t after;
    int error;
    bool once; /* what comes after the first failure goes well again */
} tt_file_fault_plan;

#define TT_FAULT_EXIT 77 /* status of a process that was killed by plan */

#ifdef TT_FAULT_SWITCHES
/* tt_file_fault - the errno to fail with, or 0. */
int tt_file_fault(tt_file_op op, const char *path, int64_t amount);
/* For the files that this thread touches, so that one rank of several may fail. */
void tt_file_fault_plant(tt_file_fault_plan plan);
/* tt_file_fault_kill - the process ends at once, as if killed, in front of the operation of this number, counted over all
 * threads from 0; -1: never. Starts counting anew. */
void tt_file_fault_kill(int64_t operation);
int64_t tt_file_fault_operations(void);
/* Whether this fault is planted. Set before ranks start; all threads read it. */
bool tt_fault(tt_fault_switch f);
void tt_fault_plant(tt_fault_switch f);
#else
#define tt_file_fault(op, path, amount) ((void)(op), (void)(path), (void)(amount), 0)
#define tt_fault(f) ((void)(f), false)
#endif

#endif
