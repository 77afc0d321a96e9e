/* clock.h - the one clock of what is measured and waited for: monotonic, the same for all processes of a host. */
#ifndef TT_BASE_CLOCK_H
#define TT_BASE_CLOCK_H

#include <time.h>

/* Seconds since some moment. Safe in signal handlers. */
static inline double tt_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
