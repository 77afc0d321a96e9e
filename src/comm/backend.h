/* backend.h - what a way of moving bytes between ranks must offer. Three exist: self.c, threads.c, mpi.c.
 *
 * A backend knows pairs of ranks of the world and nothing of groups or operations. Its only promise of order:
 * transfers between the same pair with the same tag match in the order in which both sides posted them.
 * Everything else (groups, deadlines, counting, cutting, collectives) is written once above this table.
 */
#ifndef TT_COMM_BACKEND_H
#define TT_COMM_BACKEND_H

#include "comm/recorder.h"

#include <stdatomic.h>

typedef struct tt_transfer_note {
    char name[24];
    uint64_t bytes;
} tt_transfer_note;

/* One byte range on its way. Its address and its memory stay in place from post until done or cancelled. */
typedef struct tt_transfer {
    int peer; /* world rank */
    bool is_send;
    bool done;
    unsigned char *data;
    size_t bytes;     /* at least 1, at most INT_MAX */
    uint64_t tag;     /* number of the group between the pair << 32 | number of the operation in the group */
    const char *name; /* of the operation; static */
    /* The backend's own. */
    uint64_t handle;
    struct tt_transfer *next;
    int owner;
    _Atomic int state;
    const char *peer_name;
    size_t peer_bytes;
#ifdef TT_CHECK_OPERATIONS
    tt_transfer_note note;
    uint64_t note_handle;
    bool note_done;
#endif
} tt_transfer;

typedef struct tt_backend {
    const char *name;
    /* Start it; never blocks. */
    tt_status (*post)(void *self, tt_transfer *t);
    /* Set t->done when its memory may be used again. TT_ECOMM when it can never be: what came does not fit. */
    tt_status (*test)(void *self, tt_transfer *t);
    /* Give up a transfer that is not done. */
    void (*cancel)(void *self, tt_transfer *t);
    /* True when a transfer with `peer` that is not done now never will be; *who is the rank to blame.
     * NULL: peers cannot fail alone, or nobody can tell. */
    bool (*peer_failed)(void *self, int peer, int *who);
    /* Zeroed memory for so many ranks of this process, of which each lets go once; what is left at the world's end goes then.
     * NULL: ranks are processes. */
    tt_status (*share)(void *self, size_t bytes, int users, void **out);
    void (*unshare)(void *self, void *base);
    /* As tt_comm_abort. */
    void (*abort)(void *self, int exit_status, const char *text);
    /* Free self. A world that is not healthy must not be waited for. */
    void (*close)(void *self, bool healthy);
} tt_backend;

/* A rank's place in a world, as a backend opens it. */
typedef struct tt_link {
    const tt_backend *backend;
    void *self;
    int rank, size;
    int host_rank, host_size;
    int max_groups; /* tags can tell so many groups of a pair apart */
    bool launched;  /* a launcher placed this process and may have bound it to CPUs */
    tt_recorder *recorder;  /* of this rank; the backend's, until it is closed */
    tt_recorder **recorders; /* [size] of the ranks that are threads of this process, else NULL */
    char recorder_path[256]; /* where other processes find it, or "" */
} tt_link;

tt_status tt_self_open(tt_link *out);
#ifdef TT_HAVE_MPI
/* launched_size: processes that the launcher says it started, 0 when it does not say. Collective. */
tt_status tt_mpi_open(int launched_size, tt_link *out);
/* True when the embedding program has initialised MPI itself. */
bool tt_mpi_is_running(void);
#endif

/* What started this process, from its environment. */
typedef struct tt_launcher {
    const char *name; /* NULL: nobody, run alone */
    int size;         /* 0: not told */
} tt_launcher;
tt_launcher tt_launcher_find(void);

#endif
