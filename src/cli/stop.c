#include "cli/stop.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

static atomic_int first;       /* number of the first signal */
static _Atomic int64_t since;  /* its nanoseconds, 0 until they are known */

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void note(int number)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&first, &none, number)) {
        atomic_store(&since, now());
        return;
    }
    int64_t begun = atomic_load(&since);
    if (begun != 0 && now() - begun > 1000000000) _exit(128 + number);
}

void tt_stop_catch(void)
{
    struct sigaction a = {.sa_handler = note, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

int tt_stop_asked(void *user)
{
    (void)user;
    return atomic_load(&first);
}

const char *tt_stop_name(int number)
{
    return number == SIGUSR1 ? "SIGUSR1" : "SIGTERM";
}
