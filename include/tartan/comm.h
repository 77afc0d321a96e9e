/* tartan/comm.h - ranks, groups of ranks, and every byte that travels between them.
 *
 * A tt_comm is one rank's endpoint. It has three backends with the same behaviour: one process alone, MPI,
 * and threads as ranks (tests, simulation). Nothing outside src/comm knows which one it is.
 *
 * Every operation names its group and itself (a static string such as "gather-unit"); the rank's current
 * phase (tt_comm_set_phase) is added for messages. All go through one function in src/comm that moves bytes
 * between pairs of ranks, counts and records them. When an operation is not complete after the comm's timeout, or a
 * rank is lost, the job ends: ranks that are processes exit, all with the same status and after one message about who
 * has arrived, who is missing and what these were doing; with threads as ranks the operation returns TT_ECOMM with
 * operation, phase and the ranks that are missing. After a failed operation the comm is of no use except for
 * tt_comm_abort and tt_comm_destroy.
 *
 * Floating-point sums are formed here in rank order, after the exchange, so that the result has the same bits
 * on every rank and on every run (MPI does not promise that for its own reductions). Sizes are 64-bit;
 * transfers above 2^31 bytes are cut. Collective means: every rank of the group calls it, in the same order,
 * with matching sizes.
 */
#ifndef TARTAN_COMM_H
#define TARTAN_COMM_H

#include "tartan/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_comm tt_comm;
typedef struct tt_group tt_group;

/* --- life --------------------------------------------------------------------------------------------- */

/* tt_comm_create - the world this process was started in: MPI when a launcher (mpirun, srun, PMI, PMIx)
 * started it, one process otherwise, in which case MPI is not even initialised. TT_ECONFIG when a launcher
 * started it but this build has no MPI. Collective over the world. */
tt_status tt_comm_create(tt_comm **out);

/* tt_comm_create_self - a world of this rank alone, beside the one it belongs to (certify's reference). Local. */
tt_status tt_comm_create_self(tt_comm **out);

/* tt_comm_run_threads - run main(comm, arg) on `size` threads as ranks 0..size-1 and wait for all.
 * Returns TT_OK, or the status and message of the lowest rank that failed for a reason of its own (ranks that
 * only saw a peer fail come second). Each rank's comm is destroyed at its end. */
tt_status tt_comm_run_threads(int size, tt_status (*rank_main)(tt_comm *comm, void *arg), void *arg);

/* tt_comm_destroy - collective when the world is healthy (MPI_Finalize); accepts NULL inside. A rank that
 * fails alone calls tt_comm_abort instead, or the others wait for it. After a failed operation MPI is not
 * finalised: it would wait for the missing ranks; the launcher takes the exit of such a process as a failure
 * of the job. */
void tt_comm_destroy(tt_comm **comm);

/* tt_comm_abort - take all ranks down at once: one line on stderr that names this rank, its host and phase, and TEXT; then
 * all exit with exit_status (1 for 0).
 * With threads as ranks nothing is printed: the operations of all ranks fail from now on, tt_comm_run_threads
 * returns this rank's status (TT_ECOMM with TEXT should it return TT_OK), and this returns. */
void tt_comm_abort(tt_comm *comm, int exit_status, const char *text);

int tt_comm_rank(const tt_comm *comm);
int tt_comm_size(const tt_comm *comm);
/* Ranks of this world on this host, and which of them this one is. */
int tt_comm_host_size(const tt_comm *comm);
int tt_comm_host_rank(const tt_comm *comm);
/* "one process", "MPI", "threads". */
const char *tt_comm_backend(const tt_comm *comm);

/* Seconds after which an operation fails; default 1800. 0 = never. */
void tt_comm_set_timeout(tt_comm *comm, double seconds);
double tt_comm_timeout(const tt_comm *comm);
/* What this rank is at, for messages: a static string ("load", "forward", "backward", "step", "save", ...), and the number
 * of the training step, from 1. Local. */
void tt_comm_set_phase(tt_comm *comm, const char *phase);
void tt_comm_set_step(tt_comm *comm, int64_t step);

/* tt_comm_transfer_begin .. _end - this rank reads or writes `bytes` of files (0: not known), and tells how far it is with
 * tt_comm_transfer_add (from any thread). While any rank is in such a transfer, operations that others wait in have no
 * deadline; with processes as ranks the transfer has: it fails when its bytes stand still for 120 s, or for twenty times
 * what 32 MiB took so far, or for the timeout if that is less. Local. */
void tt_comm_transfer_begin(tt_comm *comm, int64_t bytes);
void tt_comm_transfer_add(tt_comm *comm, int64_t bytes);
void tt_comm_transfer_end(tt_comm *comm);

/* tt_comm_catch_crashes - for programs, not libraries: from now on a crash of this process (segmentation fault, abort, ...)
 * takes all ranks down with a message that names this one, and then ends it in the usual way. Processes as ranks only.
 * Local. */
void tt_comm_catch_crashes(tt_comm *comm);

/* tt_comm_threads_per_rank - how many OpenMP threads this rank should use: the CPUs allowed on this host
 * divided by the ranks on it, at least 1; or `wanted` when that is above 0. The same on every rank of a host.
 * Local. Launchers may bind a rank to fewer CPUs than its share (Open MPI binds up to two ranks to one core
 * each). The affinity mask of the calling thread, which threads started later inherit, is then widened to
 * this rank's share of the CPUs that the launcher itself may use; so call it from the main thread, before the
 * first parallel region. A mask is never narrowed, and never touched in a run without launcher or with
 * threads as ranks. */
int tt_comm_threads_per_rank(tt_comm *comm, int wanted);

/* tt_comm_bytes_sent - bytes this rank has sent to other ranks under the operation `name` (NULL: all). */
int64_t tt_comm_bytes_sent(const tt_comm *comm, const char *name);

/* --- groups ------------------------------------------------------------------------------------------- */

/* The group of all ranks. Borrowed. */
tt_group *tt_comm_world(tt_comm *comm);

/* tt_group_create - ranks[size] of the world in the order that sums are formed in; contains the caller's own.
 * All members create it with the same list, and ranks that share several groups create these in the same
 * order: that order keeps their messages apart. `name` is static. Two groups may overlap. Local; TT_ECONFIG
 * for a bad list. */
tt_status tt_group_create(tt_comm *comm, const char *name, const int *ranks, int size, tt_group **out);
/* Accepts NULL inside; the world's group is left alone and only the pointer cleared. */
void tt_group_destroy(tt_group **group);
int tt_group_rank(const tt_group *group);
int tt_group_size(const tt_group *group);

/* --- operations, each collective over its group ------------------------------------------------------- */

tt_status tt_barrier(tt_group *group, const char *name);

/* tt_allgather - all[r * bytes ...] = what rank r passed as mine. mine may be its own place in all. */
tt_status tt_allgather(tt_group *group, const char *name, const void *mine, void *all, size_t bytes);

/* The same in two halves, so that compute can run in between. Between them neither buffer may be touched.
 * Every begin is ended, also when something else has failed meanwhile: the buffers belong to the request
 * until then. Other operations of the same group may run in between. tt_request_end accepts NULL inside; the
 * deadline counts from its call. When another operation has failed meanwhile it returns TT_ECOMM and leaves
 * that failure's message as it is. */
typedef struct tt_request tt_request;
tt_status tt_allgather_begin(tt_group *group, const char *name, const void *mine, void *all, size_t bytes,
                             tt_request **out);
tt_status tt_request_end(tt_request **request);

/* tt_alltoallv - send[r] pieces lie end to end in rank order, recv pieces likewise; bytes per peer. Peers'
 * counts are known to both sides (exchange them first with tt_alltoall). Zero counts are fine. */
tt_status tt_alltoallv(tt_group *group, const char *name, const void *send, const int64_t *send_bytes,
                       void *recv, const int64_t *recv_bytes);
/* tt_alltoall - the same with `bytes` for every pair; also in two halves, as tt_allgather_begin. */
tt_status tt_alltoall(tt_group *group, const char *name, const void *send, void *recv, size_t bytes);
tt_status tt_alltoall_begin(tt_group *group, const char *name, const void *send, void *recv, size_t bytes,
                            tt_request **out);
/* tt_comm_progress - move what has begun and not ended: MPI moves bytes only while it is called. Cheap when there is
 * nothing. A failure shows when the request is ended. Local. */
void tt_comm_progress(tt_comm *comm);

/* tt_reduce_scatter_f32 - mine[i] += sum over ranks r, in rank order, of their full[rank * count + i], i <
 * count. The sum is formed first, then added to mine. full has count * size elements and is not changed. In a
 * group of one: mine[i] += full[i]. */
tt_status tt_reduce_scatter_f32(tt_group *group, const char *name, const float *full, float *mine,
                                int64_t count);
tt_status tt_reduce_scatter_f64(tt_group *group, const char *name, const double *full, double *mine,
                                int64_t count);

/* tt_allreduce_f64 - values[i] = sum over ranks in rank order, the same bits everywhere. For small n. */
tt_status tt_allreduce_f64(tt_group *group, const char *name, double *values, int64_t n);
/* TT_ENOMEM on every rank when a sum does not fit. */
tt_status tt_allreduce_i64(tt_group *group, const char *name, int64_t *values, int64_t n);
tt_status tt_allreduce_max_i64(tt_group *group, const char *name, int64_t *values, int64_t n);

/* tt_broadcast - data of `root` (a rank of the group) to all. */
tt_status tt_broadcast(tt_group *group, const char *name, int root, void *data, size_t bytes);

/* tt_gatherv - pieces of all ranks, end to end in rank order, at root; recv and recv_bytes matter there only. */
tt_status tt_gatherv(tt_group *group, const char *name, int root, const void *send, int64_t send_bytes,
                     void *recv, const int64_t *recv_bytes);

/* tt_agree - make a failure of one a failure of all, at the border of a phase. Each rank passes its own
 * status (with this thread's message set when it failed). When none failed: TT_OK. Otherwise every rank
 * returns the status of the lowest failing rank and has its message, with "rank R: " in front when the world
 * has more than one (unless the message begins so already, as one that was agreed on before does). When the
 * exchange itself fails, a rank with a failure of its own keeps that. */
tt_status tt_agree(tt_group *group, const char *name, tt_status mine);

/* tt_comm_agreed - whether the last tt_agree over the world returned a failure: every rank has it, so one may speak
 * for all and all may leave in peace. Local. */
bool tt_comm_agreed(const tt_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
