/* comm.c - life of an endpoint, groups, and what a rank may ask about itself. */
#include "comm/comm.h"

#include "base/arena.h"
#include "base/checked.h"
#include "comm/watchdog.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* Below INT_MAX, which is what MPI counts to, and a multiple of every page size. */
#define CUT_BYTES ((size_t)1 << 30)
/* Two rounds of a reduction: large enough that 64 ranks send each other pieces of 128 KiB. */
#define SCRATCH_BYTES   ((size_t)16 << 20)
#define TIMEOUT_SECONDS 1800
#define START_SECONDS   120 /* for ranks to meet */

/* --- groups ------------------------------------------------------------------------------------------- */

/* The caller's place in the list, or a message about what is wrong with it. */
static tt_status check_ranks(const tt_comm *comm, const char *name, const int *ranks, int size, int *place)
{
    char *seen = calloc((size_t)comm->link.size, 1);
    TT_CHECK(seen, TT_ENOMEM, "no memory for group %s", name);
    tt_status status = TT_OK;
    *place = -1;
    for (int i = 0; i < size && status == TT_OK; i++) {
        int r = ranks[i];
        if (r < 0 || r >= comm->link.size)
            status = tt_error_set(TT_ECONFIG, "group %s: rank %d is not in a world of %d", name, r,
                                  comm->link.size);
        else if (seen[r])
            status = tt_error_set(TT_ECONFIG, "group %s: rank %d is listed twice", name, r);
        else
            seen[r] = 1;
        if (r == comm->link.rank) *place = i;
    }
    free(seen);
    if (status == TT_OK && *place < 0)
        status = tt_error_set(TT_ECONFIG, "group %s: rank %d creates it but is not in its list of %d ranks",
                              name, comm->link.rank, size);
    return status;
}

/* Both ranks of a pair count the groups they share, so the count names the group without a word between them. */
static tt_status number_group(tt_comm *comm, tt_group *g)
{
    for (int i = 0; i < g->size; i++) {
        int r = g->ranks[i];
        TT_CHECK(
            comm->num_shared[r] < comm->link.max_groups, TT_ECONFIG,
            "group %s: ranks %d and %d share %d groups already, more than this MPI's tags can tell apart",
            g->name, comm->link.rank, r, comm->num_shared[r]);
        g->numbers[i] = comm->num_shared[r];
    }
    for (int i = 0; i < g->size; i++) comm->num_shared[g->ranks[i]]++;
    return TT_OK;
}

tt_status tt_group_create(tt_comm *comm, const char *name, const int *ranks, int size, tt_group **out)
{
    tt_status status;
    int place = -1;
    *out = NULL;
    TT_TRY(check_ranks(comm, name, ranks, size, &place));
    tt_group *g = calloc(1, sizeof *g);
    TT_CHECK(g, TT_ENOMEM, "no memory for group %s", name);
    g->comm = comm, g->name = name, g->size = size, g->rank = place;
    g->ranks = calloc((size_t)size, sizeof *g->ranks);
    g->numbers = calloc((size_t)size, sizeof *g->numbers);
    if (!g->ranks || !g->numbers) TT_GO(tt_error_set(TT_ENOMEM, "no memory for group %s", name));
    memcpy(g->ranks, ranks, (size_t)size * sizeof *ranks);
    TT_GO(number_group(comm, g));
    uint64_t key = XXH64(ranks, (size_t)size * sizeof *ranks, XXH64(name, strlen(name), 0));
    g->record = size > 1 ? tt_recorder_add_group(comm->link.recorder, key, name) : -1;
    *out = g;
    return TT_OK;
fail:
    tt_group_destroy(&g);
    return status;
}

static void free_group(tt_group *g)
{
    if (!g) return;
    free(g->ranks);
    free(g->numbers);
    free(g);
}

void tt_group_destroy(tt_group **group)
{
    tt_group *g = *group;
    *group = NULL;
    if (g && !g->is_world) free_group(g);
}

int tt_group_rank(const tt_group *group)
{
    return group->rank;
}

int tt_group_size(const tt_group *group)
{
    return group->size;
}

/* --- life --------------------------------------------------------------------------------------------- */

static tt_status create_world(tt_comm *comm)
{
    int size = comm->link.size;
    int *ranks = calloc((size_t)size, sizeof *ranks);
    TT_CHECK(ranks, TT_ENOMEM, "no memory for a world of %d ranks", size);
    for (int r = 0; r < size; r++) ranks[r] = r;
    tt_status status = tt_group_create(comm, "world", ranks, size, &comm->world);
    free(ranks);
    if (status == TT_OK) comm->world->is_world = true;
    return status;
}

static void free_comm(tt_comm *comm)
{
    tt_requests_free(comm);
    free_group(comm->world);
    free(comm->num_shared);
    free(comm->sends);
    free(comm->recvs);
    free(comm->pieces);
    free(comm->codes);
    free(comm->counters);
    tt_free(comm->scratch);
    free(comm);
}

tt_status tt_comm_open(const tt_link *link, tt_comm **out)
{
    tt_status status;
    *out = NULL;
    tt_comm *comm = calloc(1, sizeof *comm);
    TT_CHECK(comm, TT_ENOMEM, "no memory for a rank");
    size_t size = (size_t)link->size;
    comm->link = *link;
    comm->lost_rank = -1;
    comm->phase = "start";
    tt_comm_set_timeout(comm, TIMEOUT_SECONDS);
    /* With a core for each rank polling costs nobody anything, and MPI moves data only when polled. */
    comm->patience = link->host_size <= sysconf(_SC_NPROCESSORS_ONLN) ? 20e-3 : 0.5e-3;
    tt_comm_set_limits(comm, CUT_BYTES, SCRATCH_BYTES);
    comm->num_shared = calloc(size, sizeof *comm->num_shared);
    comm->sends = calloc(size, sizeof *comm->sends);
    comm->recvs = calloc(size, sizeof *comm->recvs);
    comm->pieces = calloc(size, sizeof *comm->pieces);
    comm->codes = calloc(size, sizeof *comm->codes);
    if (!comm->num_shared || !comm->sends || !comm->recvs || !comm->pieces || !comm->codes)
        TT_GO(tt_error_set(TT_ENOMEM, "no memory for a world of %d ranks", link->size));
    TT_GO(create_world(comm));
    *out = comm;
    return TT_OK;
fail:
    free_comm(comm);
    return status;
}

static tt_status open_link(tt_link *link)
{
    tt_launcher launcher = tt_launcher_find();
#ifdef TT_HAVE_MPI
    if (launcher.name || tt_mpi_is_running()) {
        TT_TRY(tt_mpi_open(launcher.size, link));
        link->launched = launcher.name != NULL;
        return TT_OK;
    }
#else
    TT_CHECK(
        !launcher.name, TT_ECONFIG,
        "started by a launcher (%s is set), but this program was built without MPI: build it with MPI=1, or "
        "start it alone",
        launcher.name);
#endif
    return tt_self_open(link);
}

tt_status tt_comm_create(tt_comm **out)
{
    tt_link link;
    *out = NULL;
    TT_TRY(open_link(&link));
    tt_status status = tt_comm_open(&link, out);
    /* The others do not know of this failure: do not wait for them. */
    if (status != TT_OK) {
        link.backend->close(link.self, false);
        return status;
    }
    tt_comm_set_timeout(*out, START_SECONDS);
    status = tt_watchdog_start(*out, link.recorder_path, &(*out)->watchdog);
    tt_comm_set_timeout(*out, TIMEOUT_SECONDS);
    if (status != TT_OK) {
        (*out)->broken = true;
        tt_comm_destroy(out);
    }
    return status;
}

tt_status tt_comm_create_self(tt_comm **out)
{
    tt_link link;
    *out = NULL;
    TT_TRY(tt_self_open(&link));
    return tt_comm_open(&link, out);
}

void tt_comm_destroy(tt_comm **comm)
{
    tt_comm *c = *comm;
    *comm = NULL;
    if (!c) return;
    /* All leave together, still watched: who is missing here has not come to its end. */
    if (c->watchdog && !c->broken) tt_barrier(c->world, "leave");
    bool healthy = !c->broken;
    if (healthy) tt_watchdog_stop(&c->watchdog);
    tt_link link = c->link;
    free_comm(c);
    link.backend->close(link.self, healthy);
}

void tt_comm_abort(tt_comm *comm, int exit_status, const char *text)
{
    if (comm->watchdog) tt_watchdog_fail(comm->watchdog, exit_status, text, comm->broken && comm->blames_others);
    comm->link.backend->abort(comm->link.self, exit_status, text);
}

void tt_comm_set_limits(tt_comm *comm, size_t cut_bytes, size_t scratch_bytes)
{
    tt_free(comm->scratch);
    comm->scratch = NULL;
    comm->cut_bytes = cut_bytes < 1 ? 1 : cut_bytes > INT_MAX ? INT_MAX : cut_bytes;
    comm->scratch_bytes = scratch_bytes;
}

/* --- questions ---------------------------------------------------------------------------------------- */

int tt_comm_rank(const tt_comm *comm)
{
    return comm->link.rank;
}

int tt_comm_size(const tt_comm *comm)
{
    return comm->link.size;
}

int tt_comm_host_size(const tt_comm *comm)
{
    return comm->link.host_size;
}

int tt_comm_host_rank(const tt_comm *comm)
{
    return comm->link.host_rank;
}

bool tt_comm_agreed(const tt_comm *comm)
{
    return comm->agreed;
}

const char *tt_comm_backend(const tt_comm *comm)
{
    return comm->link.backend->name;
}

void tt_comm_set_timeout(tt_comm *comm, double seconds)
{
    comm->timeout = seconds;
    tt_recorder_timeout(comm->link.recorder, seconds);
    if (comm->watchdog) tt_watchdog_timeout_changed(comm->watchdog);
}

double tt_comm_timeout(const tt_comm *comm)
{
    return comm->timeout;
}

void tt_comm_set_phase(tt_comm *comm, const char *phase)
{
    comm->phase = phase;
    tt_recorder_phase(comm->link.recorder, phase);
}

void tt_comm_set_profile(tt_comm *comm, tt_profile *p)
{
    comm->profile = p;
}

void tt_comm_set_step(tt_comm *comm, int64_t step)
{
    tt_recorder_step(comm->link.recorder, step);
}

void tt_comm_transfer_begin(tt_comm *comm, int64_t bytes)
{
    tt_recorder_moving(comm->link.recorder, true, bytes);
}

void tt_comm_transfer_add(tt_comm *comm, int64_t bytes)
{
    atomic_fetch_add_explicit(&comm->link.recorder->moved, bytes, memory_order_relaxed);
}

_Atomic int64_t *tt_comm_moved(tt_comm *comm)
{
    return &comm->link.recorder->moved;
}

void tt_comm_transfer_end(tt_comm *comm)
{
    tt_recorder_moving(comm->link.recorder, false, 0);
}

void tt_comm_catch_crashes(tt_comm *comm)
{
    if (comm->watchdog) tt_watchdog_catch_crashes(comm->watchdog);
}

int64_t tt_comm_bytes_sent(const tt_comm *comm, const char *name)
{
    if (!name) return comm->bytes_sent;
    for (int i = 0; i < comm->num_counters; i++)
        if (strcmp(comm->counters[i].name, name) == 0) return comm->counters[i].bytes;
    return 0;
}

tt_group *tt_comm_world(tt_comm *comm)
{
    return comm->world;
}
