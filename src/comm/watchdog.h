/* watchdog.h - a thread of each rank with a link of its own, that knows when the job hangs or has lost a rank.
 *
 *   rank 0   collects: every rank tells it, over TCP and outside MPI, what its recorder holds
 *   rank 1   is told the same, and takes over when rank 0 is lost or silent
 *   others   speak for ranks of their host that cannot (stopped processes), and for themselves when neither answers
 *
 * At a deadline the collector writes one report, tells all ranks to leave, and leaves. A rank that fails tells it why;
 * a rank whose link closes without a word was killed. All leave with the same status and only the collector has
 * spoken. None of this needs MPI to work, nor the main thread to run.
 *
 * Which report ends a job, and after how long:
 *   a rank's error            at once
 *   a killed process          at once (its link closes)
 *   an operation              its timeout, while no rank moves bytes of a load or a save
 *   a load or a save          when a rank's bytes stand still: tt_report_stall_limit
 *   an error that another's loss may explain (a broken operation): 2 s, in which the loss itself may be noticed
 *
 * Costs: one message of about 1.5 KB per rank and beat (a tenth of the timeout, 0.1 to 5 s).
 */
#ifndef TT_COMM_WATCHDOG_H
#define TT_COMM_WATCHDOG_H

#include "comm/comm.h"

typedef struct tt_watchdog tt_watchdog;

/* tt_watchdog_start - path: where others find this rank's recorder ("": nowhere). *out is NULL in a world of one. A
 * link that cannot be made is a warning, and its ranks report for themselves. Collective over the world. */
tt_status tt_watchdog_start(tt_comm *comm, const char *path, tt_watchdog **out);

/* tt_watchdog_stop - goodbye: from now on this rank may end. After a barrier. */
void tt_watchdog_stop(tt_watchdog **w);

/* The rank's timeout, and with it the beat, is another one from now on. */
void tt_watchdog_timeout_changed(tt_watchdog *w);

/* tt_watchdog_fail - take all ranks down because of this one's failure. Returns only when the watchdog cannot.
 * consequence: another rank's failure may be the cause. */
void tt_watchdog_fail(tt_watchdog *w, int exit_status, const char *text, bool consequence);

/* tt_watchdog_catch_crashes - from now on a crash of this process (SEGV, BUS, FPE, ILL, ABRT) is reported before it dies
 * of it. */
void tt_watchdog_catch_crashes(tt_watchdog *w);

#endif
