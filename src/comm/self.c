/* self.c - one process alone. A rank's bytes for itself are copied above the backends, so nothing arrives
 * here. */
#include "comm/backend.h"

#include <stdio.h>
#include <unistd.h>

static tt_status refuse(void *self, tt_transfer *t)
{
    (void)self;
    return tt_error_set(TT_EINTERNAL, "%s: a world of one has no rank %d", t->name, t->peer);
}

static void cancel(void *self, tt_transfer *t)
{
    (void)self, (void)t;
}

static void leave(void *self, int exit_status, const char *text)
{
    (void)self;
    fprintf(stderr, "tartan: rank 0: %s\n", text);
    fflush(stdout);
    /* Not exit(): handlers may wait for what has just failed. */
    _exit(exit_status);
}

static void close_self(void *self, bool healthy)
{
    tt_recorder *recorder = self;
    (void)healthy;
    tt_recorder_close(&recorder);
}

static const tt_backend backend = {
    .name = "one process",
    .post = refuse,
    .test = refuse,
    .cancel = cancel,
    .abort = leave,
    .close = close_self,
};

tt_status tt_self_open(tt_link *out)
{
    *out = (tt_link){.backend = &backend, .size = 1, .host_size = 1, .max_groups = INT32_MAX};
    TT_TRY(tt_recorder_open(0, NULL, 0, &out->recorder));
    out->self = out->recorder;
    return TT_OK;
}
