/* report.h - what is told when a job hangs or loses a rank: text from records, nothing else. Pure. */
#ifndef TT_COMM_REPORT_H
#define TT_COMM_REPORT_H

#include "comm/recorder.h"

typedef enum tt_rank_state {
    TT_RANK_RUNS,
    TT_RANK_STOPPED, /* the process does not run: stopped by a signal or by a debugger */
    TT_RANK_SILENT,  /* no word from it: its host or the link to it is lost, or it has no time to speak */
    TT_RANK_LOST,    /* the process is gone */
} tt_rank_state;

/* What is known of a rank. */
typedef struct tt_rank_report {
    bool known; /* the rest is valid */
    tt_rank_state state;
    tt_record record;
    double clock; /* of the record's host, when it was read there */
    double age;   /* seconds since then */
    int64_t moved;
} tt_rank_report;

/* tt_report_stall_limit - seconds after which a transfer that does not move is given up: 120, or twenty times what
 * 32 MiB took at the rate so far, and never longer than the timeout. Loads of very different speed thus never time each
 * other out. 0 = never. */
double tt_report_stall_limit(const tt_rank_report *r);

/* What is over its deadline: a transfer in which nothing moves, or an operation that a rank waits in for longer than its
 * timeout while no rank moves bytes (loading and saving others wait for). -1: nothing. stalled[r]: seconds since the
 * transfer of rank r last moved; quiet: seconds since any rank was in a transfer. *transfer: it is the transfer. */
int tt_report_find_overdue(const tt_rank_report *ranks, const double *stalled, int size, double quiet, bool *transfer);

/* The texts, of lines without "tartan: " in front. Each names operation, phase, step, the ranks that have arrived, those
 * that have not and what these were last doing. Return the length. */
size_t tt_report_hang(const tt_rank_report *ranks, int size, int waiting, char *out, size_t bytes);
size_t tt_report_stall(const tt_rank_report *ranks, int rank, double stalled, char *out, size_t bytes);
/* rank has ended without a word. */
size_t tt_report_lost(const tt_rank_report *ranks, int rank, char *out, size_t bytes);
/* "rank 3 (host b, pid 4711, step 12, phase backward)". */
size_t tt_report_where(const tt_rank_report *r, int rank, char *out, size_t bytes);

#endif
