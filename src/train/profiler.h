/* profiler.h - the profile of a run on a mesh (base/profile.h): sums over its steps, what all ranks report, the trace.
 *
 * A profiler that is zero is off: each function then does nothing.
 */
#ifndef TT_TRAIN_PROFILER_H
#define TT_TRAIN_PROFILER_H

#include "base/profile.h"
#include "kernels/ops.h"
#include "tartan/comm.h"

#include <jansson.h>

/* Steps and their times, added up. */
typedef struct tt_profile_sums {
    int64_t steps;
    tt_times times;
} tt_profile_sums;

typedef struct tt_profiler {
    tt_profile *profile; /* owned; NULL: off */
    tt_comm *comm;       /* borrowed, and the kernel, which both point to the profile */
    tt_kernel *kernel;
    double origin;       /* tt_seconds here when the trace begins, at one instant on all ranks */
    tt_profile_sums record; /* since the last record */
    tt_profile_sums first, later; /* the first step is apart: it touches memory that later ones find */
} tt_profiler;

/* tt_profiler_open - from now on comm and kernel tell the profile what they do. Collective over the world. */
tt_status tt_profiler_open(tt_profiler *p, tt_comm *comm, tt_kernel *kernel);
/* tt_profiler_stop - no more is told. tt_profiler_close - and all is forgotten. Accept a zeroed struct. Local. */
void tt_profiler_stop(tt_profiler *p);
void tt_profiler_close(tt_profiler *p);

void tt_profiler_step_begin(tt_profiler *p, int64_t step);
void tt_profiler_step_end(tt_profiler *p);

/* tt_profiler_record - the member "profile" of a record: "steps", and in "ranks" for each rank its seconds per step ("step"), by
 * stage and by phase, means over the steps since the last record. Collective over the world. */
tt_status tt_profiler_record(tt_profiler *p, json_t *record);

/* Of a whole run: seconds per step, means over the steps behind the first, or of the first where there is no other. */
typedef struct tt_profile_report {
    int64_t steps; /* 0: there is none */
    int ranks;
    tt_times mean;                 /* of the ranks */
    double most[TT_NUM_PHASES];    /* of the rank that spends most in a phase */
    int most_rank[TT_NUM_PHASES];
    int64_t events, left_out;      /* of all ranks' threads */
} tt_profile_report;

/* tt_profiler_report - the same on all ranks. Collective over the world. */
tt_status tt_profiler_report(const tt_profiler *p, tt_profile_report *out);
/* tt_profile_report_text - a table of it; lines end in newlines. */
void tt_profile_report_text(const tt_profile_report *r, char *out, size_t size);

/* tt_profiler_trace - stops, and writes all events in the Trace Event Format, which Perfetto and chrome://tracing open: one
 * process for each rank, in it one thread for each thread. One file; every rank writes its own range of it. Collective over the
 * world. */
tt_status tt_profiler_trace(tt_profiler *p, const char *path);

#endif
