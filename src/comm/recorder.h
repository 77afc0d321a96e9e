/* recorder.h - what a rank is doing, kept where others can read it even when the rank itself no longer runs.
 *
 * Every endpoint has a recorder. With MPI it is a mapped file, in memory and without a name, that the other ranks of the host
 * map as well; nothing is left behind whatever happens. One thread writes (the one that calls the
 * comm), any thread or process reads: a sequence number that is odd during a change tells readers to try again.
 * The bytes a rank has read or written are counted apart, by any thread.
 */
#ifndef TT_COMM_RECORDER_H
#define TT_COMM_RECORDER_H

#include "base/clock.h"
#include "tartan/comm.h"

#include <stdatomic.h>

#define TT_RECORD_GROUPS 12
#define TT_RECORD_OPS    8
#define TT_RECORD_NAME   24 /* names are cut at this, with the NUL */
#define TT_RECORD_HOST   64

/* A group of this rank: how far it is in its operations. The key is equal on all members. */
typedef struct tt_recorded_group {
    uint64_t key;
    char name[TT_RECORD_NAME];
    uint32_t begun; /* number of the newest operation begun */
} tt_recorded_group;

typedef struct tt_recorded_op {
    char name[TT_RECORD_NAME], phase[TT_RECORD_NAME];
    int32_t group; /* index into groups; -1: none, or one of more than TT_RECORD_GROUPS */
    uint32_t number;
    double since; /* CLOCK_MONOTONIC, seconds: when the rank began to wait, or when the operation ended */
} tt_recorded_op;

/* A consistent copy of a recorder. */
typedef struct tt_record {
    int32_t rank, pid;
    char host[TT_RECORD_HOST];
    char phase[TT_RECORD_NAME];
    int64_t step; /* 0: none yet */
    double timeout;
    bool waiting;
    tt_recorded_op at;                   /* when waiting */
    tt_recorded_op last[TT_RECORD_OPS];  /* ended operations, the newest at (num_ended - 1) % TT_RECORD_OPS */
    uint64_t num_ended;
    tt_recorded_group groups[TT_RECORD_GROUPS];
    int32_t num_groups;
    bool moving; /* between tt_comm_transfer_begin and _end */
    double moving_since;
    int64_t bytes_to_move;
} tt_record;

typedef struct tt_recorder {
    _Atomic uint32_t sequence;
    _Atomic int64_t moved;   /* bytes of the transfer under way */
    _Atomic int64_t alive;   /* CLOCK_MONOTONIC, milliseconds: last sign of the rank's watchdog; 0: has none */
    _Atomic bool left;       /* the watchdog has ended the process: what there was to report has been */
    tt_record now;
} tt_recorder;

/* tt_recorder_open - a recorder in plain memory (path NULL), or in a file that others can map; path gets where they find it
 * ("": nowhere) and size is that buffer's. Local. */
tt_status tt_recorder_open(int rank, char *path, size_t size, tt_recorder **out);
/* Another rank's, by its file; NULL when it cannot be mapped (another host, another container). */
tt_recorder *tt_recorder_map(const char *path);
void tt_recorder_close(tt_recorder **r);

/* Writers, by the comm's thread. */
int tt_recorder_add_group(tt_recorder *r, uint64_t key, const char *name); /* index or -1 */
void tt_recorder_phase(tt_recorder *r, const char *phase);
void tt_recorder_step(tt_recorder *r, int64_t step);
void tt_recorder_timeout(tt_recorder *r, double seconds);
void tt_recorder_begin(tt_recorder *r, int group, uint32_t number);
void tt_recorder_wait(tt_recorder *r, const char *name, int group, uint32_t number);
void tt_recorder_end(tt_recorder *r); /* what was waited for is complete */
void tt_recorder_moving(tt_recorder *r, bool moving, int64_t bytes);

/* tt_recorder_read - a consistent copy; false when the writer was stopped in the middle of a change (the copy then holds
 * what there is). Any thread, any process. */
bool tt_recorder_read(tt_recorder *r, tt_record *out);

/* Where the bytes of a rank's transfer are counted (tt_comm_transfer_begin), for code that counts in many threads. */
_Atomic int64_t *tt_comm_moved(tt_comm *comm);

/* For a record that came from another process: its texts end, its counts are in range. */
void tt_record_close_names(tt_record *r);

#endif
