/* mpi.c - ranks as MPI processes. The only file that knows MPI; nothing in a build without it.
 *
 * Data moves by MPI_Isend, MPI_Irecv and MPI_Test on a duplicate of MPI_COMM_WORLD, so that no message of an
 * embedding program is ever taken for ours. MPI's own collectives serve set-up only.
 *
 * A tag holds the group's number between the two ranks and the operation's number modulo WINDOW. That the
 * window comes round is harmless: MPI keeps the order of messages with equal tags, and all ranks of a group
 * post its operations in the same order.
 *
 * MPI's errors are returned (MPI_ERRORS_RETURN) and become TT_ECOMM. What MPI does not offer is to take a
 * matched transfer back: after a failed operation its memory may still be read or written while MPI is
 * called, so the process must not call MPI again but abort or exit.
 */
#ifdef TT_HAVE_MPI

#include "comm/backend.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WINDOW 256

typedef struct mpi_rank {
    MPI_Comm comm;
    bool finalize; /* this library has initialised MPI */
    int rank;
    tt_recorder *recorder;
} mpi_rank;

_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a transfer's handle must hold an MPI_Request");

static tt_status check(int code, const char *what)
{
    if (code == MPI_SUCCESS) return TT_OK;
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;
    MPI_Error_string(code, text, &length);
    return tt_error_set(TT_ECOMM, "%s: %s", what, text);
}

/* --- transfers ---------------------------------------------------------------------------------------- */

static tt_status post_bytes(mpi_rank *me, const tt_transfer *t, void *data, size_t bytes, uint64_t *handle)
{
    MPI_Request request;
    int tag = (int)(t->tag >> 32) * WINDOW + (int)(t->tag % WINDOW);
    if (t->is_send)
        TT_TRY(check(MPI_Isend(data, (int)bytes, MPI_BYTE, t->peer, tag, me->comm, &request), "MPI_Isend"));
    else
        TT_TRY(check(MPI_Irecv(data, (int)bytes, MPI_BYTE, t->peer, tag, me->comm, &request), "MPI_Irecv"));
    memcpy(handle, &request, sizeof request);
    return TT_OK;
}

static tt_status test_bytes(const tt_transfer *t, uint64_t *handle, int *done, int *count)
{
    MPI_Request request;
    MPI_Status status;
    memcpy(&request, handle, sizeof request);
    int code = MPI_Test(&request, done, &status);
    memcpy(handle, &request, sizeof request);
    if (code != MPI_SUCCESS) {
        check(code, t->is_send ? "sending" : "receiving");
        return tt_error_context(TT_ECOMM, "rank %d", t->peer);
    }
    if (*done) MPI_Get_count(&status, MPI_BYTE, count);
    return TT_OK;
}

static void cancel_bytes(const tt_transfer *t, uint64_t handle)
{
    MPI_Request request;
    memcpy(&request, &handle, sizeof request);
    if (request == MPI_REQUEST_NULL) return;
    if (!t->is_send) MPI_Cancel(&request);
    MPI_Request_free(&request);
}

/* The test build sends a note ahead of each transfer: which operation it belongs to and how long it is. So ranks that
 * disagree about their operations are found where they do, as with threads as ranks. */
#ifdef TT_CHECK_OPERATIONS
static tt_status post_note(mpi_rank *me, tt_transfer *t)
{
    t->note = (tt_transfer_note){.bytes = t->bytes};
    snprintf(t->note.name, sizeof t->note.name, "%s", t->name);
    t->note_done = false;
    return post_bytes(me, t, &t->note, sizeof t->note, &t->note_handle);
}

static tt_status test_note(tt_transfer *t)
{
    int done, count;
    if (t->note_done) return TT_OK;
    TT_TRY(test_bytes(t, &t->note_handle, &done, &count));
    if (!done) return TT_OK;
    t->note_done = true;
    t->note.name[sizeof t->note.name - 1] = '\0';
    TT_CHECK(t->is_send || strncmp(t->note.name, t->name, sizeof t->note.name - 1) == 0, TT_ECOMM,
             "rank %d is in operation %s: ranks disagree about the order of operations", t->peer, t->note.name);
    TT_CHECK(t->note.bytes == t->bytes, TT_ECOMM, "expects %zu bytes from rank %d, which sends %zu: ranks disagree about sizes",
             t->bytes, t->peer, (size_t)t->note.bytes);
    return TT_OK;
}

static void cancel_note(const tt_transfer *t)
{
    if (!t->note_done) cancel_bytes(t, t->note_handle);
}

#define NOTE_DONE(t) ((t)->note_done)
#else
#define post_note(me, t) TT_OK
#define test_note(t)     TT_OK
#define cancel_note(t)   ((void)0)
#define NOTE_DONE(t)     true
#endif

static tt_status post(void *self, tt_transfer *t)
{
    TT_TRY(post_note(self, t));
    return post_bytes(self, t, t->data, t->bytes, &t->handle);
}

static tt_status test(void *self, tt_transfer *t)
{
    (void)self;
    int done, count;
    TT_TRY(test_note(t));
    if (!NOTE_DONE(t)) return TT_OK;
    TT_TRY(test_bytes(t, &t->handle, &done, &count));
    if (!done) return TT_OK;
    TT_CHECK(t->is_send || count == (int)t->bytes, TT_ECOMM,
             "expects %zu bytes from rank %d, which sends %d: ranks disagree about sizes or the order of operations", t->bytes,
             t->peer, count);
    t->done = true;
    return TT_OK;
}

/* See the head of this file: a receive that nothing has matched is really withdrawn, the rest is only let go. */
static void cancel(void *self, tt_transfer *t)
{
    (void)self;
    cancel_note(t);
    cancel_bytes(t, t->handle);
}

/* --- end of the world --------------------------------------------------------------------------------- */

static void abort_ranks(void *self, int exit_status, const char *text)
{
    mpi_rank *me = self;
    fprintf(stderr, "tartan: rank %d: %s\n", me->rank, text);
    fflush(NULL);
    MPI_Abort(me->comm, exit_status);
    _exit(exit_status);
}

static void close_rank(void *self, bool healthy)
{
    mpi_rank *me = self;
    if (healthy) {
        MPI_Comm_free(&me->comm);
        if (me->finalize) MPI_Finalize();
    }
    /* Of a world that failed others may still want to know what this rank did, until it exits. */
    if (healthy) tt_recorder_close(&me->recorder);
    free(me);
}

static const tt_backend backend = {
    .name = "MPI",
    .post = post,
    .test = test,
    .cancel = cancel,
    .abort = abort_ranks,
    .close = close_rank,
};

/* --- start -------------------------------------------------------------------------------------------- */

bool tt_mpi_is_running(void)
{
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    return initialised && !finalised;
}

/* Only one thread of a rank calls MPI, but others (OpenMP) exist. */
static tt_status start_mpi(mpi_rank *me)
{
    int level, finalised;
    MPI_Finalized(&finalised);
    TT_CHECK(!finalised, TT_ECONFIG, "MPI was finalised already in this process and cannot start again");
    if (tt_mpi_is_running()) {
        MPI_Query_thread(&level);
    } else {
        TT_TRY(check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread"));
        me->finalize = true;
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    TT_CHECK(level >= MPI_THREAD_FUNNELED, TT_ECONFIG,
             "this MPI runs without thread support, but compute uses threads: initialise it with "
             "MPI_THREAD_FUNNELED");
    TT_TRY(check(MPI_Comm_dup(MPI_COMM_WORLD, &me->comm), "MPI_Comm_dup"));
    return check(MPI_Comm_set_errhandler(me->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

static tt_status find_host(mpi_rank *me, tt_link *link)
{
    MPI_Comm host;
    TT_TRY(check(MPI_Comm_split_type(me->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
                 "MPI_Comm_split_type"));
    MPI_Comm_rank(host, &link->host_rank);
    MPI_Comm_size(host, &link->host_size);
    return check(MPI_Comm_free(&host), "MPI_Comm_free");
}

static tt_status find_place(mpi_rank *me, int launched_size, tt_link *link)
{
    int *tag_ub, found;
    TT_TRY(check(MPI_Comm_rank(me->comm, &link->rank), "MPI_Comm_rank"));
    TT_TRY(check(MPI_Comm_size(me->comm, &link->size), "MPI_Comm_size"));
    me->rank = link->rank;
    /* Otherwise each of N processes would train the whole job alone, over the others' files. */
    TT_CHECK(launched_size == 0 || launched_size == link->size, TT_ECONFIG,
             "the launcher started %d processes, but MPI sees %d: start with the mpirun of the MPI that "
             "tartan was "
             "built with, or with srun --mpi=pmix (or pmi2)",
             launched_size, link->size);
    TT_TRY(check(MPI_Comm_get_attr(me->comm, MPI_TAG_UB, &tag_ub, &found), "MPI_Comm_get_attr"));
    /* The standard promises tags up to 32767. */
    link->max_groups = (found ? *tag_ub : 32767) / WINDOW;
    return find_host(me, link);
}

tt_status tt_mpi_open(int launched_size, tt_link *out)
{
    tt_status status;
    *out = (tt_link){.backend = &backend};
    mpi_rank *me = calloc(1, sizeof *me);
    TT_CHECK(me, TT_ENOMEM, "no memory for a rank");
    TT_GO(start_mpi(me));
    TT_GO(find_place(me, launched_size, out));
    TT_GO(tt_recorder_open(out->rank, out->recorder_path, sizeof out->recorder_path, &me->recorder));
    out->recorder = me->recorder;
    out->self = me;
    return TT_OK;
fail:
    free(me);
    return status;
}

#else
typedef int tt_mpi_is_not_built; /* ISO C wants a declaration in each file */
#endif
