#include "train/checkpoints.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/recorder.h"
#include "train/metrics.h"
#include "train/steps.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DONE, WRITING, FAILED };

typedef struct tt_flight {
    tt_checkpoint_writer *writer;
    char path[4096];
    int64_t step;
    double began;
    bool beside; /* by a thread */
    pthread_t thread;
    _Atomic int64_t moved;
    _Atomic int state;
    tt_status status;
    char message[1024]; /* error texts are per thread */
} tt_flight;

bool tt_checkpoints_due(const tt_checkpoints *c, int64_t done, bool epoch_ends, bool last)
{
    tt_saving strategy = c->config->save_strategy;
    if (strategy == TT_SAVING_NO) return false;
    if (last || (strategy == TT_SAVING_EPOCH && epoch_ends)) return true;
    return strategy == TT_SAVING_STEPS && done % tt_steps_interval(c->config->save_steps, c->total) == 0;
}

/* --- writing -------------------------------------------------------------------------------------------------- */

static void *write_beside(void *user)
{
    tt_flight *f = user;
    f->status = tt_checkpoint_write(f->writer, &f->moved);
    if (f->status != TT_OK) snprintf(f->message, sizeof f->message, "%s", tt_error_text());
    atomic_store(&f->state, f->status == TT_OK ? DONE : FAILED);
    return NULL;
}

/* Signals stay with the thread that trains. */
static bool start_thread(tt_flight *f)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    f->beside = pthread_create(&f->thread, NULL, write_beside, f) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return f->beside;
}

/* The other ranks wait for this one's bytes: tt_comm_transfer_begin. */
static void write_here(const tt_checkpoints *c, tt_flight *f)
{
    tt_comm *comm = tt_shards_mesh(c->shards)->comm;
    tt_shard_bytes bytes = tt_shards_bytes(c->shards);
    tt_comm_transfer_begin(comm, bytes.weights + bytes.moments);
    f->status = tt_checkpoint_write(f->writer, tt_comm_moved(comm));
    tt_comm_transfer_end(comm);
    if (f->status != TT_OK) snprintf(f->message, sizeof f->message, "%s", tt_error_text());
}

/* Likewise, while the thread writes on. */
static void wait_for_thread(const tt_checkpoints *c, tt_flight *f)
{
    tt_comm *comm = tt_shards_mesh(c->shards)->comm;
    const struct timespec pause = {.tv_nsec = 5000000};
    int64_t told = 0;
    tt_shard_bytes bytes = tt_shards_bytes(c->shards);
    tt_comm_transfer_begin(comm, bytes.weights + bytes.moments);
    while (atomic_load(&f->state) == WRITING) {
        int64_t moved = atomic_load(&f->moved);
        tt_comm_transfer_add(comm, moved - told);
        told = moved;
        nanosleep(&pause, NULL);
    }
    pthread_join(f->thread, NULL);
    tt_comm_transfer_end(comm);
}

/* --- life of a save ------------------------------------------------------------------------------------------- */

static void free_flight(tt_checkpoints *c)
{
    free(c->flight);
    c->flight = NULL;
}

/* Its name, and what the older ones must make room for. Collective. */
static tt_status publish(tt_checkpoints *c)
{
    tt_flight *f = c->flight;
    const tt_mesh *mesh = tt_shards_mesh(c->shards);
    int64_t keep = c->config->save_total_limit;
    tt_save_report report;
    if (f->status != TT_OK) tt_error_set(f->status, "%s", f->message);
    TT_TRY(tt_checkpoint_publish(&f->writer, f->status, &report));
    c->num++;
    c->newest = f->step;
    tt_info("saved '%s' in %.1f s", f->path, tt_seconds() - f->began);
    if (keep <= 0) return TT_OK; /* unset is below */
    bool first = mesh->rank == 0;
    return tt_agree(mesh->world, "checkpoint-prune",
                    first ? tt_checkpoint_prune(c->config->output_dir, (int)keep, c->spare ? c->spare : f->path) : TT_OK);
}

/* Collective. */
static tt_status finish(tt_checkpoints *c)
{
    if (c->flight->beside) wait_for_thread(c, c->flight);
    tt_status status = publish(c);
    free_flight(c);
    return status;
}

static tt_status begin(tt_checkpoints *c, int64_t step, bool beside, const json_t *train, const json_t *state)
{
    tt_flight *f = calloc(1, sizeof *f);
    TT_TRY(tt_agree(tt_shards_mesh(c->shards)->world, "checkpoint",
                    f ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for a checkpoint")));
    c->flight = f;
    f->step = step;
    f->began = tt_seconds();
    snprintf(f->path, sizeof f->path, "%s/checkpoint-%lld", c->config->output_dir, (long long)step);
    tt_checkpoint_options o = {
        .model = &c->model,
        .with_state = !c->config->save_only_model,
        .copy = beside ? &c->copy : NULL,
        .step = step,
        .train = train,
        .trainer_state = state,
    };
    return tt_checkpoint_begin(f->path, c->shards, &o, &f->writer);
}

static tt_status save(tt_checkpoints *c, int64_t step, bool last, const json_t *train, const json_t *state)
{
    bool beside = c->config->async_save && !last;
    if (c->flight) TT_TRY(finish(c));
    tt_status status = begin(c, step, beside, train, state);
    if (status != TT_OK) {
        free_flight(c);
        return status;
    }
    tt_flight *f = c->flight;
    atomic_store(&f->state, WRITING);
    if (beside && start_thread(f)) return TT_OK;
    write_here(c, f);
    atomic_store(&f->state, f->status == TT_OK ? DONE : FAILED);
    return beside ? TT_OK : finish(c); /* beside: ranks whose threads did start are still at it */
}

tt_status tt_checkpoints_save(tt_checkpoints *c, int64_t step, bool last, const json_t *train, const json_t *state)
{
    double start = tt_seconds();
    tt_status status = save(c, step, last, train, state);
    c->seconds += tt_seconds() - start;
    return status;
}

int64_t tt_checkpoints_pending(const tt_checkpoints *c)
{
    return c->flight ? atomic_load(&c->flight->state) : DONE;
}

tt_status tt_checkpoints_poll(tt_checkpoints *c, int64_t pending)
{
    if (!c->flight || pending == WRITING) return TT_OK;
    double start = tt_seconds();
    tt_status status = finish(c);
    c->seconds += tt_seconds() - start;
    return status;
}

/* --- the end -------------------------------------------------------------------------------------------------- */

/* Others do not know that this rank has failed, and would wait for it as long as its thread writes. */
static void abandon(tt_checkpoints *c, tt_status status)
{
    const tt_mesh *mesh = tt_shards_mesh(c->shards);
    if (mesh->world_size > 1) tt_comm_abort(mesh->comm, tt_status_exit(status), tt_error_text());
    if (c->flight->beside) pthread_join(c->flight->thread, NULL);
    tt_checkpoint_drop(&c->flight->writer);
    free_flight(c);
}

static tt_status end(tt_checkpoints *c, tt_status status)
{
    char text[2048];
    if (!c->flight) return status;
    const tt_mesh *mesh = tt_shards_mesh(c->shards);
    if (status == TT_OK) return tt_checkpoints_poll(c, DONE);
    if (mesh->world_size > 1 && !tt_comm_agreed(mesh->comm)) {
        abandon(c, status);
        return status;
    }
    snprintf(text, sizeof text, "%s", tt_error_text());
    if (finish(c) != TT_OK) tt_warn("the checkpoint under way was lost: %s", tt_error_text());
    /* Agreed on again, since that is what leaving in peace depends on. */
    return tt_agree(mesh->world, "training", tt_error_set(status, "%s", text));
}

tt_status tt_checkpoints_end(tt_checkpoints *c, tt_status status)
{
    status = end(c, status);
    tt_checkpoint_copy_free(&c->copy);
    return status;
}
