/* exchange.c - the one function that all operations move bytes through.
 *
 * It cuts byte ranges at the longest transfer, posts receives before sends, counts what leaves for other
 * ranks, waits by testing, and holds the deadline. A rank begins its list with the rank above its own, so
 * that not all ranks send to rank 0 first.
 *
 * Waiting: a few tests in a row, then tests with the processor offered to others in between, then short
 * sleeps. Many ranks may share few cores, and MPI moves data only while it is called, so neither spinning nor
 * long sleeps will do. Transfers are tested in order up to the first that is not done: each is tested until
 * it is done once, and any test lets MPI work on all of them.
 *
 * With a watchdog (processes) the deadline is its own, since it sees what others do even when MPI is stuck; else it is
 * kept here: an operation may last `timeout`, while no rank moves bytes of a load or a save.
 *
 * A failed operation cancels everything in flight on this rank, since its callers free their buffers next.
 */
#include "comm/comm.h"

#include "base/checked.h"
#include "comm/inject.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Tests in a row before a waiting rank gives way to others. */
#define FEW_TESTS 64

/* --- requests ----------------------------------------------------------------------------------------- */

static tt_status take_request(const tt_op *op, int64_t num, tt_request **out)
{
    tt_comm *comm = op->group->comm;
    tt_request *q = comm->requests;
    while (q && q->in_use) q = q->next;
    if (!q) {
        q = calloc(1, sizeof *q);
        TT_CHECK(q, TT_ENOMEM, "no memory for a request");
        q->comm = comm;
        q->next = comm->requests;
        comm->requests = q;
    }
    if (num > q->capacity) {
        /* Nothing points into an idle request, so its transfers may move. */
        free(q->transfers);
        q->capacity = 0;
        q->transfers = calloc((size_t)num, sizeof *q->transfers);
        TT_CHECK(q->transfers, TT_ENOMEM, "no memory for %lld transfers", (long long)num);
        q->capacity = num;
    }
    q->in_use = true;
    q->name = op->name, q->group_name = op->group->name, q->number = op->number;
    q->record = op->group->record;
    q->num = q->first = 0;
    *out = q;
    return TT_OK;
}

static void cancel(tt_request *q)
{
    const tt_link *link = &q->comm->link;
    for (int64_t i = q->first; i < q->num; i++)
        if (!q->transfers[i].done) link->backend->cancel(link->self, &q->transfers[i]);
    q->num = q->first = 0;
}

void tt_requests_free(tt_comm *comm)
{
    while (comm->requests) {
        tt_request *q = comm->requests;
        comm->requests = q->next;
        cancel(q);
        free(q->transfers);
        free(q);
    }
}

/* End of the comm's useful life: see the head of this file. */
static tt_status fail(tt_comm *comm, tt_status status)
{
    if (!comm->broken) comm->blames_others = status == TT_ECOMM;
    comm->broken = true;
    for (tt_request *q = comm->requests; q; q = q->next) cancel(q);
    return status;
}

/* --- begin -------------------------------------------------------------------------------------------- */

static int64_t count_transfers(const tt_group *group, const tt_part *parts, int num)
{
    int64_t n = 0;
    for (int i = 0; i < num; i++)
        if (parts[i].rank != group->rank)
            n += tt_div_up((int64_t)parts[i].bytes, (int64_t)group->comm->cut_bytes);
    return n;
}

static void add_transfers(tt_request *q, const tt_op *op, const tt_part *part, bool is_send)
{
    const tt_group *group = op->group;
    for (size_t at = 0; at < part->bytes; at += q->comm->cut_bytes) {
        size_t rest = part->bytes - at;
        q->transfers[q->num++] = (tt_transfer){
            .peer = group->ranks[part->rank],
            .is_send = is_send,
            .data = (unsigned char *)part->data + at,
            .bytes = rest < q->comm->cut_bytes ? rest : q->comm->cut_bytes,
            .tag = (uint64_t)group->numbers[part->rank] << 32 | op->number,
            .name = op->name,
        };
    }
}

static void add_parts(tt_request *q, const tt_op *op, const tt_part *parts, int num, bool is_send)
{
    int first = 0;
    while (first < num && parts[first].rank <= op->group->rank) first++;
    for (int i = 0; i < num; i++) {
        const tt_part *part = &parts[(first + i) % num];
        if (part->rank != op->group->rank) add_transfers(q, op, part, is_send);
    }
}

static const tt_part *own_part(const tt_group *group, const tt_part *parts, int num)
{
    static const tt_part none = {0, NULL, 0};
    for (int i = 0; i < num; i++)
        if (parts[i].rank == group->rank) return &parts[i];
    return &none;
}

static tt_status copy_own_part(const tt_op *op, const tt_part *sends, int num_sends, const tt_part *recvs,
                               int num_recvs)
{
    const tt_part *from = own_part(op->group, sends, num_sends), *to = own_part(op->group, recvs, num_recvs);
    TT_CHECK(from->bytes == to->bytes, TT_EINTERNAL, "%s: this rank sends itself %zu bytes but expects %zu",
             op->name, from->bytes, to->bytes);
    if (from->bytes && from->data != to->data) memcpy(to->data, from->data, from->bytes);
    return TT_OK;
}

/* The counter of an operation's name; equal texts may have different addresses. */
static tt_status find_counter(tt_comm *comm, const char *name, tt_counter **out)
{
    for (int i = 0; i < comm->num_counters; i++)
        if (comm->counters[i].name == name || strcmp(comm->counters[i].name, name) == 0) {
            *out = &comm->counters[i];
            return TT_OK;
        }
    tt_counter *grown = realloc(comm->counters, (size_t)(comm->num_counters + 1) * sizeof *grown);
    TT_CHECK(grown, TT_ENOMEM, "no memory for the counter of operation %s", name);
    comm->counters = grown;
    *out = &grown[comm->num_counters++];
    **out = (tt_counter){name, 0};
    return TT_OK;
}

static tt_status explain(const tt_request *q, tt_status status)
{
    return tt_error_context(status, "%s (operation %u of group %s, phase %s)", q->name, q->number,
                            q->group_name, q->comm->phase);
}

static tt_status post_all(tt_request *q, tt_counter *counter)
{
    const tt_link *link = &q->comm->link;
    int64_t num = q->num;
    /* While this runs, num is what is posted: exactly that would have to be cancelled. */
    for (q->num = 0; q->num < num; q->num++) {
        tt_transfer *t = &q->transfers[q->num];
        TT_TRY(link->backend->post(link->self, t));
        if (t->is_send) counter->bytes += (int64_t)t->bytes, q->comm->bytes_sent += (int64_t)t->bytes;
    }
    return TT_OK;
}

tt_status tt_exchange_begin(const tt_op *op, const tt_part *sends, int num_sends, const tt_part *recvs,
                            int num_recvs, tt_request **out)
{
    tt_comm *comm = op->group->comm;
    tt_counter *counter = NULL;
    tt_request *q = NULL;
    tt_status status;
    *out = NULL;
    TT_CHECK(!comm->broken, TT_ECOMM, "%s: not started, since an earlier operation of rank %d failed",
             op->name, comm->link.rank);
    TT_GO(tt_inject(comm, op->name));
    TT_GO(copy_own_part(op, sends, num_sends, recvs, num_recvs));
    TT_GO(find_counter(comm, op->name, &counter));
    TT_GO(take_request(
        op, count_transfers(op->group, sends, num_sends) + count_transfers(op->group, recvs, num_recvs), &q));
    add_parts(q, op, recvs, num_recvs, false);
    add_parts(q, op, sends, num_sends, true);
    status = post_all(q, counter);
    if (status != TT_OK) {
        explain(q, status);
        q->in_use = false;
        goto fail;
    }
    tt_recorder_begin(comm->link.recorder, op->group->record, op->number);
    *out = q;
    return TT_OK;
fail:
    return fail(comm, status);
}

/* --- end ---------------------------------------------------------------------------------------------- */

/* Move q->first on. *moved: something was done since the last call. */
static tt_status advance(tt_request *q, bool *moved)
{
    const tt_link *link = &q->comm->link;
    int64_t before = q->first;
    for (; q->first < q->num; q->first++) {
        tt_transfer *t = &q->transfers[q->first];
        if (!t->done) TT_TRY(link->backend->test(link->self, t));
        if (!t->done) break;
    }
    *moved = q->first > before;
    return TT_OK;
}

static void pause_after(const tt_comm *comm, double waited)
{
    if (waited < comm->patience)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, waited < 0.1 ? 50 * 1000 : 500 * 1000}, NULL);
}

/* World ranks of the transfers of one direction that are not done, as " 2, 5"; pieces of one part are neighbours. */
static int list_missing(const tt_request *q, bool sends, char *text, size_t size)
{
    int count = 0, last = -1;
    size_t used = 0;
    text[0] = '\0';
    for (int64_t i = q->first; i < q->num; i++) {
        const tt_transfer *t = &q->transfers[i];
        if (t->done || t->is_send != sends || t->peer == last) continue;
        last = t->peer;
        count++;
        if (used + 24 < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%d", count > 1 ? ", " : " ", t->peer);
            if (used + 24 >= size) snprintf(text + used, size - used, ", ...");
        }
    }
    return count;
}

static tt_status expired(tt_request *q)
{
    const tt_link *link = &q->comm->link;
    char from[256], to[256];
    for (int64_t i = q->first; i < q->num; i++) {
        tt_transfer *t = &q->transfers[i];
        if (!t->done) TT_TRY(link->backend->test(link->self, t));
    }
    int num_from = list_missing(q, false, from, sizeof from), num_to = list_missing(q, true, to, sizeof to);
    return tt_error_set(
        TT_ECOMM,
        "not complete after %g s%s%s%s%s: see what these ranks report; allow more time if they are "
        "only slow",
        q->comm->timeout, num_from ? "; nothing from rank" : "", from, num_to ? "; not taken by rank" : "",
        to);
}

/* TT_ECOMM when a transfer waits for a rank that will never come. The rank is asked about before the last
 * test: what it sent before it left has arrived by then. */
static tt_status check_peers(tt_request *q)
{
    const tt_link *link = &q->comm->link;
    if (!link->backend->peer_failed) return TT_OK;
    for (int64_t i = q->first; i < q->num; i++) {
        tt_transfer *t = &q->transfers[i];
        int who;
        if (t->done || !link->backend->peer_failed(link->self, t->peer, &who)) continue;
        TT_TRY(link->backend->test(link->self, t));
        if (t->done) continue;
        q->comm->lost_rank = who;
        return tt_error_set(TT_ECOMM, "rank %d has failed or left", who);
    }
    return TT_OK;
}

/* Whether a rank of this process is in the middle of a load or a save: others are patient then. */
static bool someone_moves(const tt_comm *comm)
{
    tt_record record;
    for (int r = 0; comm->link.recorders && r < comm->link.size; r++)
        if (r != comm->link.rank && tt_recorder_read(comm->link.recorders[r], &record) && record.moving) return true;
    return false;
}

/* *since: when the wait began, or a rank was last seen to move bytes. */
static bool is_overdue(const tt_comm *comm, double time, double *since)
{
    if (comm->watchdog || comm->timeout <= 0 || time - *since <= comm->timeout) return false;
    if (!someone_moves(comm)) return true;
    *since = time;
    return false;
}

static tt_status wait_all(tt_request *q)
{
    tt_comm *comm = q->comm;
    double start = 0, idle_since = 0;
    for (int64_t tests = 0;; tests++) {
        bool moved;
        TT_TRY(advance(q, &moved));
        if (q->first == q->num) return TT_OK;
        double time = tt_seconds();
        if (start == 0) start = time;
        if (moved || tests == 0) tests = 0, idle_since = time;
        if (tests < FEW_TESTS) continue;
        TT_TRY(check_peers(q));
        if (is_overdue(comm, time, &start)) return expired(q);
        pause_after(comm, time - idle_since);
    }
}

void tt_comm_progress(tt_comm *comm)
{
    for (tt_request *q = comm->requests; q && !comm->broken; q = q->next) {
        bool moved;
        tt_status status = q->in_use && q->first < q->num ? advance(q, &moved) : TT_OK;
        if (status == TT_OK) continue;
        explain(q, status);
        fail(comm, status);
    }
}

void tt_request_drop(tt_request **request)
{
    if (*request) (*request)->in_use = false;
    *request = NULL;
}

tt_status tt_request_end(tt_request **request)
{
    tt_request *q = *request;
    if (!q) return TT_OK;
    *request = NULL;
    q->in_use = false;
    if (q->comm->broken) return TT_ECOMM; /* given up by another operation's failure, whose message stays */
    TT_PHASE(q->num > 0 ? q->comm->profile : NULL, WAITING);
    tt_recorder *recorder = q->comm->link.recorder;
    if (q->record >= 0) tt_recorder_wait(recorder, q->name, q->record, q->number);
    tt_status status = wait_all(q);
    if (status == TT_OK) {
        if (q->record >= 0) tt_recorder_end(recorder);
        q->num = q->first = 0;
        return TT_OK;
    }
    explain(q, status);
    return fail(q->comm, status);
}

tt_status tt_exchange(const tt_op *op, const tt_part *sends, int num_sends, const tt_part *recvs,
                      int num_recvs)
{
    tt_request *q = NULL;
    TT_TRY(tt_exchange_begin(op, sends, num_sends, recvs, num_recvs, &q));
    return tt_request_end(&q);
}
