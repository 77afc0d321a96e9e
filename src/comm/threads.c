/* threads.c - threads as ranks: the whole of tartan on a mesh inside one process, for tests and simulation.
 *
 * Each rank has a mailbox with two lists of transfers that wait for their other half: sends of others to it,
 * and its own receives. Whoever comes second takes the first entry that matches (source, tag) out of the list
 * under the mailbox's lock, copies the bytes from the sender's memory to the receiver's without the lock, and
 * marks both done. Entries are the transfers themselves: nothing is allocated and no byte is copied twice.
 *
 * It also checks what MPI cannot: both halves must come from operations of the same name and size, so a
 * program whose ranks disagree about the order of operations is caught in tests.
 *
 * Memory of one is memory of all: what ranks share (shared.c) is a list of blocks here, each with a count of users.
 *
 * A rank that returns (with an error or not) is marked; whoever waits for it then fails, and so do, one after
 * the other, those that wait for these; all name the first. Ranks that do not depend on the lost one may
 * finish what they are at: in tt_agree all get the message even when the first already returns with it.
 */
#include "comm/comm.h"

#include "base/log.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PENDING, DONE, CANCELLED, DIFFERENT_SIZE, DIFFERENT_NAME };

typedef struct thread_world thread_world;

typedef struct thread_rank {
    thread_world *world;
    int rank;
    pthread_t thread;
    tt_comm *comm;
    pthread_mutex_t lock;
    tt_transfer *sends, *receives; /* waiting; first posted first */
    _Atomic bool left;
    int blame; /* the rank whose failure made this one leave, or itself; written before left */
    /* How it ended. */
    tt_status status;
    bool only_saw; /* it failed because another rank had */
    bool aborted;
    char text[2048];
} thread_rank;

/* Memory that several ranks use. */
typedef struct shared_block {
    void *base, *mapping;
    size_t mapped;
    int users; /* that have not let go */
    struct shared_block *next;
} shared_block;

struct thread_world {
    int size;
    tt_status (*rank_main)(tt_comm *comm, void *arg);
    void *arg;
    tt_log_level log_level;
    _Atomic int aborter; /* -1: none */
    thread_rank *ranks;
    tt_recorder **recorders; /* [size] outlive the ranks: others look at them */
    pthread_mutex_t lock;    /* of the list of blocks */
    shared_block *blocks;
};

/* --- matching ----------------------------------------------------------------------------------------- */

static void append(tt_transfer **list, tt_transfer *t)
{
    while (*list) list = &(*list)->next;
    t->next = NULL;
    *list = t;
}

static bool unlink_transfer(tt_transfer **list, const tt_transfer *t)
{
    while (*list && *list != t) list = &(*list)->next;
    if (!*list) return false;
    *list = t->next;
    return true;
}

/* The first entry of a mailbox's list that is the other half of t, taken out of it. */
static tt_transfer *take_match(tt_transfer **list, const tt_transfer *t)
{
    while (*list && !((*list)->tag == t->tag && (*list)->owner == t->peer && (*list)->peer == t->owner))
        list = &(*list)->next;
    tt_transfer *found = *list;
    if (found) *list = found->next;
    return found;
}

static void deliver(tt_transfer *send, tt_transfer *receive)
{
    int state = DONE;
    if (send->name != receive->name && strcmp(send->name, receive->name) != 0)
        state = DIFFERENT_NAME;
    else if (send->bytes != receive->bytes)
        state = DIFFERENT_SIZE;
    else
        memcpy(receive->data, send->data, send->bytes);
    send->peer_name = receive->name, send->peer_bytes = receive->bytes;
    receive->peer_name = send->name, receive->peer_bytes = send->bytes;
    /* From its store on, a transfer belongs to its owner again and may be gone. */
    atomic_store_explicit(&send->state, state, memory_order_release);
    atomic_store_explicit(&receive->state, state, memory_order_release);
}

static tt_status post(void *self, tt_transfer *t)
{
    thread_rank *me = self;
    thread_rank *box = t->is_send ? &me->world->ranks[t->peer] : me;
    t->owner = me->rank;
    atomic_store_explicit(&t->state, PENDING, memory_order_relaxed);
    pthread_mutex_lock(&box->lock);
    tt_transfer *other = take_match(t->is_send ? &box->receives : &box->sends, t);
    if (!other) append(t->is_send ? &box->sends : &box->receives, t);
    pthread_mutex_unlock(&box->lock);
    if (other) deliver(t->is_send ? t : other, t->is_send ? other : t);
    return TT_OK;
}

static tt_status test(void *self, tt_transfer *t)
{
    (void)self;
    switch (atomic_load_explicit(&t->state, memory_order_acquire)) {
    case DONE:
        t->done = true;
        return TT_OK;
    case DIFFERENT_NAME:
        return tt_error_set(TT_ECOMM,
                            "rank %d is in operation %s: ranks disagree about the order of operations",
                            t->peer, t->peer_name);
    case DIFFERENT_SIZE:
        return tt_error_set(TT_ECOMM, "%s %zu bytes %s rank %d, which %s %zu: ranks disagree about sizes",
                            t->is_send ? "sends" : "expects", t->bytes, t->is_send ? "to" : "from", t->peer,
                            t->is_send ? "expects" : "sends", t->peer_bytes);
    default:
        return TT_OK;
    }
}

static void cancel(void *self, tt_transfer *t)
{
    thread_rank *me = self;
    thread_rank *box = t->is_send ? &me->world->ranks[t->peer] : me;
    pthread_mutex_lock(&box->lock);
    bool unlinked = unlink_transfer(t->is_send ? &box->sends : &box->receives, t);
    pthread_mutex_unlock(&box->lock);
    if (unlinked) atomic_store_explicit(&t->state, CANCELLED, memory_order_relaxed);
    /* Otherwise the other side is copying at this moment. */
    while (atomic_load_explicit(&t->state, memory_order_acquire) == PENDING) sched_yield();
}

static bool peer_failed(void *self, int peer, int *who)
{
    thread_world *world = ((thread_rank *)self)->world;
    *who = atomic_load_explicit(&world->aborter, memory_order_acquire);
    if (*who >= 0) return true;
    if (!atomic_load_explicit(&world->ranks[peer].left, memory_order_acquire)) return false;
    *who = world->ranks[peer].blame;
    return true;
}

static void abort_ranks(void *self, int exit_status, const char *text)
{
    (void)exit_status;
    thread_rank *me = self;
    int nobody = -1;
    if (!me->aborted) snprintf(me->text, sizeof me->text, "%s", text);
    me->aborted = true;
    atomic_compare_exchange_strong(&me->world->aborter, &nobody, me->rank);
}

/* --- shared memory -------------------------------------------------------------------------------------- */

#define HUGE_PAGE ((size_t)2 << 20)

/* Addresses alone: the system provides a page when it is touched. */
static tt_status share(void *self, size_t bytes, int users, void **out)
{
    thread_world *world = ((thread_rank *)self)->world;
    shared_block *b = calloc(1, sizeof *b);
    TT_CHECK(b, TT_ENOMEM, "no memory for a block that ranks share");
    b->mapped = bytes + HUGE_PAGE, b->users = users;
    b->mapping = mmap(NULL, b->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->mapping == MAP_FAILED) {
        free(b);
        return tt_error_set(TT_ENOMEM, "the system refuses %zu bytes that ranks share", bytes);
    }
    *out = b->base = (void *)(((uintptr_t)b->mapping + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (bytes >= 4 * HUGE_PAGE) madvise(b->base, bytes, MADV_HUGEPAGE);
    pthread_mutex_lock(&world->lock);
    b->next = world->blocks;
    world->blocks = b;
    pthread_mutex_unlock(&world->lock);
    return TT_OK;
}

static void free_block(shared_block **at)
{
    shared_block *b = *at;
    *at = b->next;
    munmap(b->mapping, b->mapped);
    free(b);
}

static void let_go(void *self, void *base)
{
    thread_world *world = ((thread_rank *)self)->world;
    pthread_mutex_lock(&world->lock);
    shared_block **at = &world->blocks;
    while ((*at)->base != base) at = &(*at)->next;
    if (--(*at)->users == 0) free_block(at);
    pthread_mutex_unlock(&world->lock);
}

static void close_rank(void *self, bool healthy)
{
    (void)self, (void)healthy;
}

static const tt_backend backend = {
    .name = "threads",
    .post = post,
    .test = test,
    .cancel = cancel,
    .peer_failed = peer_failed,
    .share = share,
    .unshare = let_go,
    .abort = abort_ranks,
    .close = close_rank,
};

/* --- life of a world ---------------------------------------------------------------------------------- */

static void *run_rank(void *arg)
{
    thread_rank *me = arg;
    tt_log_set_level(me->world->log_level);
    me->status = me->world->rank_main(me->comm, me->world->arg);
    me->only_saw = me->status == TT_ECOMM && me->comm->lost_rank >= 0 && !me->aborted;
    me->blame = me->comm->lost_rank >= 0 ? me->comm->lost_rank : me->rank;
    if (me->status != TT_OK)
        snprintf(me->text, sizeof me->text, "%s", tt_error_text());
    else if (me->aborted)
        me->status = TT_ECOMM;
    atomic_store_explicit(&me->left, true, memory_order_release);
    /* Cancels what was begun and not ended, so others may still look at this rank's mailbox but find nothing. */
    tt_comm_destroy(&me->comm);
    return NULL;
}

static tt_status create_world(thread_world *w)
{
    pthread_mutex_init(&w->lock, NULL);
    w->ranks = calloc((size_t)w->size, sizeof *w->ranks);
    w->recorders = calloc((size_t)w->size, sizeof *w->recorders);
    TT_CHECK(w->ranks && w->recorders, TT_ENOMEM, "no memory for %d ranks", w->size);
    for (int r = 0; r < w->size; r++) {
        w->ranks[r].world = w, w->ranks[r].rank = r;
        pthread_mutex_init(&w->ranks[r].lock, NULL);
    }
    for (int r = 0; r < w->size; r++) TT_TRY(tt_recorder_open(r, NULL, 0, &w->recorders[r]));
    for (int r = 0; r < w->size; r++) {
        tt_link link = {.backend = &backend,
                        .self = &w->ranks[r],
                        .rank = r,
                        .size = w->size,
                        .host_rank = r,
                        .host_size = w->size,
                        .max_groups = INT32_MAX,
                        .recorder = w->recorders[r],
                        .recorders = w->recorders};
        TT_TRY(tt_comm_open(&link, &w->ranks[r].comm));
    }
    return TT_OK;
}

static void destroy_world(thread_world *w)
{
    for (int r = 0; w->ranks && r < w->size; r++) {
        tt_comm_destroy(&w->ranks[r].comm);
        pthread_mutex_destroy(&w->ranks[r].lock);
    }
    for (int r = 0; w->recorders && r < w->size; r++) tt_recorder_close(&w->recorders[r]);
    while (w->blocks) free_block(&w->blocks);
    pthread_mutex_destroy(&w->lock);
    free(w->recorders);
    free(w->ranks);
}

/* Start all ranks and wait for them. One that cannot be started counts as a rank that failed. */
static void run_world(thread_world *w)
{
    int started = 0;
    while (started < w->size &&
           pthread_create(&w->ranks[started].thread, NULL, run_rank, &w->ranks[started]) == 0)
        started++;
    for (int r = started; r < w->size; r++) {
        w->ranks[r].status = TT_ENOMEM;
        snprintf(w->ranks[r].text, sizeof w->ranks[r].text, "the system refuses a thread for rank %d of %d",
                 r, w->size);
        w->ranks[r].blame = r;
        atomic_store_explicit(&w->ranks[r].left, true, memory_order_release);
    }
    for (int r = 0; r < started; r++) pthread_join(w->ranks[r].thread, NULL);
}

/* The lowest rank that failed for a reason of its own, else the lowest that failed. */
static tt_status verdict(const thread_world *w)
{
    const thread_rank *first = NULL;
    for (int r = 0; r < w->size; r++) {
        const thread_rank *rank = &w->ranks[r];
        if (rank->status == TT_OK) continue;
        if (!first || (first->only_saw && !rank->only_saw)) first = rank;
    }
    return first ? tt_error_set(first->status, "%s", first->text) : TT_OK;
}

tt_status tt_comm_run_threads(int size, tt_status (*rank_main)(tt_comm *comm, void *arg), void *arg)
{
    TT_CHECK(size >= 1, TT_ECONFIG, "a world of %d ranks: at least 1 is needed", size);
    thread_world w = {
        .size = size, .rank_main = rank_main, .arg = arg, .log_level = tt_log_get_level(), .aborter = -1};
    tt_status status = create_world(&w);
    if (status == TT_OK) {
        run_world(&w);
        status = verdict(&w);
    }
    destroy_world(&w);
    return status;
}
