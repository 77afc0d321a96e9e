#include "comm/inject.h"

#ifdef TT_FAULT_SWITCHES
#include "base/checked.h"
#include "comm/comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct plan {
    int rank, count;
    char phase[32], operation[32], kind[16];
} plan;

static bool read_plan(plan *p)
{
    const char *text = getenv("TARTAN_FAIL");
    p->count = 1;
    return text && sscanf(text, "%d:%31[^:]:%31[^:]:%15[^:]:%d", &p->rank, p->phase, p->operation, p->kind, &p->count) >= 4;
}

static tt_status fail_by(tt_comm *comm, const char *kind)
{
    volatile double sum = 0;
    int *volatile nowhere = NULL;
    if (!strcmp(kind, "error")) return tt_error_set(TT_EIO, "a failure on purpose");
    if (!strcmp(kind, "memory")) return tt_error_set(TT_ENOMEM, "no memory, on purpose");
    if (!strcmp(kind, "abort")) tt_comm_abort(comm, 3, "a failure on purpose");
    if (!strcmp(kind, "assert")) TT_ASSERT(!"a failure on purpose");
    if (!strcmp(kind, "segv")) *nowhere = 1;
    if (!strcmp(kind, "exit")) _exit(0);
    if (!strcmp(kind, "kill")) kill(getpid(), SIGKILL);
    if (!strcmp(kind, "stop")) kill(getpid(), SIGSTOP);
    if (!strcmp(kind, "sleep")) sleep(2);
    while (!strcmp(kind, "spin")) sum = sum + 1; /* read too, or clang calls it unused */
    return TT_OK;
}

tt_status tt_inject(tt_comm *comm, const char *operation)
{
    plan p;
    if (!read_plan(&p) || comm->link.rank != p.rank) return TT_OK;
    if (strcmp(p.operation, "*") != 0 && strcmp(p.operation, operation) != 0) return TT_OK;
    if (strcmp(p.phase, "*") != 0 && strcmp(p.phase, comm->phase) != 0) return TT_OK;
    if (++comm->injected != p.count) return TT_OK;
    return fail_by(comm, p.kind);
}
#else
typedef int tt_inject_is_for_tests; /* ISO C wants a declaration in every file */
#endif
