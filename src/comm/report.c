#include "comm/report.h"

#include "base/checked.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STALL_SECONDS 120.0
#define STALL_BYTES   ((double)(32 << 20))
#define STALL_TIMES   20.0
#define MOST_DETAILS  16 /* ranks that get a line of their own */

/* --- text ---------------------------------------------------------------------------------------------------- */

typedef struct text {
    char *at;
    size_t length, bytes;
} text;

static void add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->at + t->length, t->bytes - t->length, format, args);
    va_end(args);
    if (n > 0) t->length += (size_t)tt_min_i64(n, (int64_t)(t->bytes - t->length) - 1);
}

static void add_where(text *t, const tt_rank_report *r, int rank)
{
    add(t, "rank %d", rank);
    if (!r->known) return;
    add(t, " (host %s, pid %d, ", r->record.host, r->record.pid);
    if (r->record.step > 0) add(t, "step %lld, ", (long long)r->record.step);
    add(t, "phase %s)", r->record.phase);
}

static void add_op(text *t, const tt_record *r, const tt_recorded_op *op)
{
    add(t, "%s (operation %u", op->name, op->number);
    if (op->group >= 0 && op->group < r->num_groups) add(t, " of group %s", r->groups[op->group].name);
    add(t, ", phase %s)", op->phase);
}

/* Seconds that the rank has waited in its operation; 0 when it does not wait. */
static double waited(const tt_rank_report *r)
{
    return r->known && r->record.waiting ? r->clock - r->record.at.since + r->age : 0;
}

/* What a rank is at, or was at last: "; waits in ..." */
static void add_activity(text *t, const tt_rank_report *r)
{
    const tt_record *d = &r->record;
    if (d->moving) add(t, "; has moved %.3f GB", 1e-9 * (double)r->moved);
    if (d->moving && d->bytes_to_move > 0) add(t, " of %.3f GB", 1e-9 * (double)d->bytes_to_move);
    if (d->waiting) {
        add(t, "; waits in ");
        add_op(t, d, &d->at);
        add(t, " for %.1f s", waited(r));
    } else if (d->num_ended > 0) {
        const tt_recorded_op *last = &d->last[(d->num_ended - 1) % TT_RECORD_OPS];
        add(t, "; its last operation, %.1f s ago, was ", r->clock - last->since + r->age);
        add_op(t, d, last);
    }
}

static void add_state(text *t, const tt_rank_report *r, int rank)
{
    static const char *const state[] = {"runs", "is stopped", "sends no word", "is gone"};
    add_where(t, r, rank);
    if (!r->known) {
        add(t, " was never heard of");
        return;
    }
    add(t, " %s", state[r->state]);
    if (r->state == TT_RANK_SILENT) add(t, " for %.0f s", r->age);
    add_activity(t, r);
}

/* --- judgement ----------------------------------------------------------------------------------------------- */

double tt_report_stall_limit(const tt_rank_report *r)
{
    double timeout = r->record.timeout, seconds = r->clock - r->record.moving_since;
    double limit = STALL_SECONDS;
    if (timeout <= 0) return 0;
    if (r->moved > 0) limit = fmax(limit, STALL_TIMES * STALL_BYTES * seconds / (double)r->moved);
    return fmin(limit, timeout);
}

int tt_report_find_overdue(const tt_rank_report *ranks, const double *stalled, int size, double quiet, bool *transfer)
{
    *transfer = true;
    for (int r = 0; r < size; r++) {
        double limit = ranks[r].known && ranks[r].record.moving ? tt_report_stall_limit(&ranks[r]) : 0;
        if (limit > 0 && stalled[r] > limit) return r;
    }
    *transfer = false;
    for (int r = 0; r < size; r++) {
        double timeout = ranks[r].known ? ranks[r].record.timeout : 0;
        if (timeout > 0 && quiet > timeout && waited(&ranks[r]) > timeout) return r;
    }
    return -1;
}

/* Of a rank against an operation: has begun it, has not, is no member of its group, or cannot be told. */
enum { ARRIVED = 'a', MISSING = 'm', FOREIGN = 'f' };

static char standing(const tt_rank_report *r, const tt_recorded_group *g, uint32_t number)
{
    bool world = strcmp(g->name, "world") == 0;
    if (!r->known) return world ? MISSING : FOREIGN;
    for (int i = 0; i < r->record.num_groups; i++)
        if (r->record.groups[i].key == g->key) return r->record.groups[i].begun >= number ? ARRIVED : MISSING;
    return world ? MISSING : FOREIGN;
}

/* " 0-2, 5": ranks of one standing; or " none". Returns how many. */
static int add_ranks(text *t, const tt_rank_report *ranks, int size, const tt_recorded_group *g, uint32_t number, char which)
{
    int count = 0;
    for (int r = 0; r < size; r++) {
        if (standing(&ranks[r], g, number) != which) continue;
        int first = r;
        while (r + 1 < size && standing(&ranks[r + 1], g, number) == which) r++;
        add(t, count ? ", %d" : " %d", first);
        if (r > first) add(t, "-%d", r);
        count += r - first + 1;
    }
    if (count == 0) add(t, " none");
    return count;
}

/* Not in order, or in no operation for about as long as others have waited: these may wait, through several groups, for it. */
static bool stands(const tt_rank_report *r)
{
    const tt_record *d = &r->record;
    if (!r->known) return false;
    if (r->state != TT_RANK_RUNS) return true;
    if (d->waiting || d->num_ended == 0 || d->timeout <= 0) return false;
    return r->clock - d->last[(d->num_ended - 1) % TT_RECORD_OPS].since + r->age > d->timeout / 2;
}

/* --- reports ------------------------------------------------------------------------------------------------- */

static void add_standings(text *t, const tt_rank_report *ranks, int size, const tt_recorded_group *g, uint32_t number)
{
    int details = 0;
    add(t, "\n  arrived: ranks");
    add_ranks(t, ranks, size, g, number, ARRIVED);
    add(t, "\n  missing: ranks");
    int missing = add_ranks(t, ranks, size, g, number, MISSING);
    for (int r = 0; r < size; r++) {
        char s = standing(&ranks[r], g, number);
        /* When all have begun it and yet it does not end, everyone's state matters. */
        bool matters = s == MISSING || (missing == 0 && s == ARRIVED) || stands(&ranks[r]);
        if (!matters || ++details > MOST_DETAILS) continue;
        add(t, "\n  ");
        add_state(t, &ranks[r], r);
    }
    if (details > MOST_DETAILS) add(t, "\n  and %d more", details - MOST_DETAILS);
}

size_t tt_report_hang(const tt_rank_report *ranks, int size, int waiting, char *out, size_t bytes)
{
    text t = {out, 0, bytes};
    const tt_record *w = &ranks[waiting].record;
    add_where(&t, &ranks[waiting], waiting);
    add(&t, ": not complete after %g s: ", w->timeout);
    add_op(&t, w, &w->at);
    if (w->at.group >= 0 && w->at.group < w->num_groups)
        add_standings(&t, ranks, size, &w->groups[w->at.group], w->at.number);
    add(&t, "\n  the last checkpoint is as it was; if ranks are only slow, raise ddp_timeout");
    return t.length;
}

size_t tt_report_stall(const tt_rank_report *ranks, int rank, double stalled, char *out, size_t bytes)
{
    text t = {out, 0, bytes};
    const tt_rank_report *r = &ranks[rank];
    if (r->state == TT_RANK_RUNS) add_where(&t, r, rank);
    else add_state(&t, r, rank);
    add(&t, ": %s does not move: %.3f", r->record.phase, 1e-9 * (double)r->moved);
    if (r->record.bytes_to_move > 0) add(&t, " of %.3f", 1e-9 * (double)r->record.bytes_to_move);
    add(&t, " GB done, nothing for %.0f s", stalled);
    if (r->state == TT_RANK_RUNS) add(&t, "; look at the file system of this host");
    return t.length;
}

size_t tt_report_lost(const tt_rank_report *ranks, int rank, char *out, size_t bytes)
{
    text t = {out, 0, bytes};
    add_where(&t, &ranks[rank], rank);
    add(&t, " has ended without a word: killed from outside, perhaps for want of memory (see dmesg)");
    if (ranks[rank].known) add_activity(&t, &ranks[rank]);
    return t.length;
}

size_t tt_report_where(const tt_rank_report *r, int rank, char *out, size_t bytes)
{
    text t = {out, 0, bytes};
    add_where(&t, r, rank);
    return t.length;
}
