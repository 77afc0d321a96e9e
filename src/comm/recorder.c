#include "comm/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- where it lies ------------------------------------------------------------------------------------------- */

/* A file in memory that has no name: nothing is left of it when its process ends, however it ends. Others of the host find it
 * through the process, as long as they belong to the same user. */
static int create_file(char *path, size_t size)
{
    int fd = memfd_create("tartan-recorder", MFD_CLOEXEC);
    if (fd >= 0) snprintf(path, size, "/proc/%d/fd/%d", (int)getpid(), fd);
    else path[0] = '\0';
    return fd;
}

static tt_recorder *map(int fd)
{
    void *at = mmap(NULL, sizeof(tt_recorder), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

tt_status tt_recorder_open(int rank, char *path, size_t size, tt_recorder **out)
{
    tt_recorder *r = NULL;
    *out = NULL;
    if (path) {
        int fd = create_file(path, size); /* stays open: that is how others find it */
        if (fd >= 0 && ftruncate(fd, sizeof *r) == 0) r = map(fd);
        if (fd >= 0 && !r) close(fd), path[0] = '\0';
    }
    if (!r) {
        void *at = mmap(NULL, sizeof *r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        TT_CHECK(at != MAP_FAILED, TT_ENOMEM, "no memory for the record of rank %d: %s", rank, strerror(errno));
        r = at;
    }
    r->now.rank = rank;
    r->now.pid = (int32_t)getpid();
    if (gethostname(r->now.host, sizeof r->now.host - 1) != 0) snprintf(r->now.host, sizeof r->now.host, "unknown");
    snprintf(r->now.phase, sizeof r->now.phase, "start");
    *out = r;
    return TT_OK;
}

tt_recorder *tt_recorder_map(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    tt_recorder *r = fd < 0 ? NULL : map(fd);
    if (fd >= 0) close(fd);
    return r;
}

void tt_recorder_close(tt_recorder **r)
{
    if (*r) munmap(*r, sizeof **r);
    *r = NULL;
}

/* --- writing ------------------------------------------------------------------------------------------------- */

static void change(tt_recorder *r)
{
    atomic_store_explicit(&r->sequence, atomic_load_explicit(&r->sequence, memory_order_relaxed) + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}

static void changed(tt_recorder *r)
{
    atomic_store_explicit(&r->sequence, atomic_load_explicit(&r->sequence, memory_order_relaxed) + 1, memory_order_release);
}

static void set_name(char *to, const char *from)
{
    size_t n = strnlen(from, TT_RECORD_NAME - 1);
    memcpy(to, from, n);
    to[n] = '\0';
}

int tt_recorder_add_group(tt_recorder *r, uint64_t key, const char *name)
{
    int n = 0;
    while (n < r->now.num_groups && r->now.groups[n].key != key) n++; /* the same ranks may meet again under a new group */
    if (n == TT_RECORD_GROUPS) return -1;
    change(r);
    r->now.groups[n] = (tt_recorded_group){.key = key};
    set_name(r->now.groups[n].name, name);
    if (n == r->now.num_groups) r->now.num_groups++;
    changed(r);
    return n;
}

void tt_recorder_phase(tt_recorder *r, const char *phase)
{
    change(r);
    set_name(r->now.phase, phase);
    changed(r);
}

void tt_recorder_step(tt_recorder *r, int64_t step)
{
    change(r);
    r->now.step = step;
    changed(r);
}

void tt_recorder_timeout(tt_recorder *r, double seconds)
{
    change(r);
    r->now.timeout = seconds;
    changed(r);
}

void tt_recorder_begin(tt_recorder *r, int group, uint32_t number)
{
    if (group < 0) return;
    change(r);
    r->now.groups[group].begun = number;
    changed(r);
}

void tt_recorder_wait(tt_recorder *r, const char *name, int group, uint32_t number)
{
    change(r);
    tt_recorded_op *at = &r->now.at;
    set_name(at->name, name);
    memcpy(at->phase, r->now.phase, sizeof at->phase);
    at->group = group, at->number = number;
    at->since = tt_seconds();
    r->now.waiting = true;
    changed(r);
}

void tt_recorder_end(tt_recorder *r)
{
    change(r);
    tt_recorded_op *last = &r->now.last[r->now.num_ended++ % TT_RECORD_OPS];
    *last = r->now.at;
    last->since = tt_seconds();
    r->now.waiting = false;
    changed(r);
}

void tt_recorder_moving(tt_recorder *r, bool moving, int64_t bytes)
{
    change(r);
    atomic_store(&r->moved, 0);
    r->now.moving = moving;
    r->now.moving_since = tt_seconds();
    r->now.bytes_to_move = bytes;
    changed(r);
}

/* --- reading ------------------------------------------------------------------------------------------------- */

void tt_record_close_names(tt_record *r)
{
    r->host[sizeof r->host - 1] = r->phase[sizeof r->phase - 1] = '\0';
    r->at.name[TT_RECORD_NAME - 1] = r->at.phase[TT_RECORD_NAME - 1] = '\0';
    for (int i = 0; i < TT_RECORD_OPS; i++) r->last[i].name[TT_RECORD_NAME - 1] = r->last[i].phase[TT_RECORD_NAME - 1] = '\0';
    for (int i = 0; i < TT_RECORD_GROUPS; i++) r->groups[i].name[TT_RECORD_NAME - 1] = '\0';
    if (r->num_groups < 0 || r->num_groups > TT_RECORD_GROUPS) r->num_groups = 0;
}

bool tt_recorder_read(tt_recorder *r, tt_record *out)
{
    bool whole = false;
    for (int i = 0; i < 1000 && !whole; i++) {
        if (i > 0) sched_yield();
        uint32_t before = atomic_load_explicit(&r->sequence, memory_order_acquire);
        memcpy(out, &r->now, sizeof *out);
        atomic_thread_fence(memory_order_acquire);
        whole = before % 2 == 0 && atomic_load_explicit(&r->sequence, memory_order_relaxed) == before;
    }
    tt_record_close_names(out);
    return whole;
}
