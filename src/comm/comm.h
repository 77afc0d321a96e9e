/* comm.h - what the files of src/comm share: the endpoint, its groups, and the one way to move bytes.
 *
 *   tartan/comm.h   collectives.c  reduce.c  agree.c      what callers see
 *                             |
 *                   exchange.c: tt_exchange_begin .. tt_request_end  --->  recorder.c: what this rank is doing
 *                             |                                              ^
 *                   shared.c: memory that the ranks of a host share
 *                   backend.h: self.c | threads.c | mpi.c          watchdog.c: who hangs, who is lost  (report.c, wire.c)
 */
#ifndef TT_COMM_COMM_H
#define TT_COMM_COMM_H

#include "base/profile.h"
#include "comm/backend.h"

/* One entry of an exchange: bytes to or from a rank of the group. */
typedef struct tt_part {
    int rank;
    void *data; /* a send does not change it */
    size_t bytes;
} tt_part;

/* An operation under way on this rank. Each takes one number of its group; all its exchanges carry it. */
typedef struct tt_op {
    tt_group *group;
    const char *name;
    uint32_t number;
} tt_op;

/* An exchange in flight. Kept by the comm and used again, so that a training step allocates none. */
struct tt_request {
    tt_comm *comm;
    bool in_use;
    const char *name, *group_name;
    uint32_t number;
    int record; /* of the group */
    tt_transfer *transfers;
    int64_t num, capacity;
    int64_t first; /* all before it are done */
    tt_request *next;
};

typedef struct tt_counter {
    const char *name;
    int64_t bytes;
} tt_counter;

/* Whether the ranks of a group see each other's memory (shared.c). */
typedef enum tt_shares { TT_SHARES_UNKNOWN, TT_SHARES, TT_SHARES_NOT } tt_shares;

struct tt_group {
    tt_comm *comm;
    const char *name;
    bool is_world; /* belongs to the comm */
    int size, rank;
    int *ranks;   /* [size] world ranks */
    int *numbers; /* [size] which of the groups that this rank shares with rank r this is: equal on both sides */
    uint32_t operations;
    int record; /* its place in the recorder, -1: none */
    tt_shares shares;
};

struct tt_watchdog;

struct tt_comm {
    tt_link link;
    struct tt_watchdog *watchdog; /* of processes; NULL: none */
    tt_group *world;
    const char *phase;
    double timeout;         /* seconds; 0 = never */
    double patience;        /* seconds of polling before a waiting rank begins to sleep */
    bool broken;            /* an operation failed: no more can run */
    bool blames_others;     /* ... and that may be another rank's failure */
    bool agreed;            /* the last tt_agree of the world was a failure: every rank has it */
    int injected;           /* operations that a planned failure counts (inject.h) */
    int lost_rank;          /* ... because of this rank's failure; -1: for another reason */
    int *num_shared;        /* [size] groups so far that hold this rank and rank r */
    tt_part *sends, *recvs; /* [size] lists for the operation at hand */
    const void **pieces;    /* [size] what a sum is formed from */
    int32_t *codes;         /* [size] what ranks say in tt_agree and tt_barrier */
    size_t cut_bytes;       /* longest transfer */
    size_t scratch_bytes;   /* what a reduction may hold of others' data */
    void *scratch;          /* allocated by the first reduction */
    tt_request *requests;
    tt_counter *counters;
    int num_counters;
    int64_t bytes_sent;
    tt_profile *profile;     /* NULL: nobody asks where time goes */
};

/* tt_comm_open - an endpoint over an open link; takes the link over when it succeeds. Local. */
tt_status tt_comm_open(const tt_link *link, tt_comm **out);

/* tt_comm_set_limits - for tests: cut transfers at cut_bytes, let reductions hold scratch_bytes. The same on
 * all ranks, and between operations only. Local. */
void tt_comm_set_limits(tt_comm *comm, size_t cut_bytes, size_t scratch_bytes);

/* tt_comm_set_profile - time blocked in operations goes to the phase "waiting" of *p, which the comm borrows until it is set
 * to NULL. Local. */
void tt_comm_set_profile(tt_comm *comm, tt_profile *p);

static inline tt_op tt_op_start(tt_group *group, const char *name)
{
    return (tt_op){group, name, ++group->operations};
}

/* tt_exchange_begin - post all sends and receives of one exchange of `op`, each list with at most one entry
 * per rank of the group. Empty entries are left out, the rank's own is copied at once (nothing to do when it
 * is in place). The lists may be used again on return, the memory they name after tt_request_end. */
tt_status tt_exchange_begin(const tt_op *op, const tt_part *sends, int num_sends, const tt_part *recvs,
                            int num_recvs, tt_request **out);
/* tt_exchange - begin and end. */
tt_status tt_exchange(const tt_op *op, const tt_part *sends, int num_sends, const tt_part *recvs,
                      int num_recvs);

/* tt_request_drop - let a request go whose exchange was given up by a failure; keeps the failure's message. */
void tt_request_drop(tt_request **request);

/* tt_requests_free - cancel what is in flight and free all requests. */
void tt_requests_free(tt_comm *comm);

#endif
