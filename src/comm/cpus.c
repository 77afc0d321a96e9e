/* cpus.c - a rank's share of the host's CPUs.
 *
 * Launchers bind ranks to CPUs by rules of their own, some of which leave most of a host idle. The rank then
 * takes its fair slice of what the launcher itself may use: the mask of the parent process when that holds
 * all of ours (mpirun, its daemon, slurmstepd), else all CPUs; the kernel keeps only those that the job's
 * cpuset allows. CPUs are put in the order (package, core, CPU) before they are cut, so that the two threads
 * of a core fall to the same rank.
 */
#include "comm/comm.h"

#include "base/checked.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The kernel refuses masks shorter than its own; this is as long as any kernel's. */
#define MAX_CPUS 8192

typedef struct cpu_mask {
    cpu_set_t bits[MAX_CPUS / CPU_SETSIZE];
} cpu_mask;

typedef struct cpu {
    int package, core, number;
} cpu;

static int count(const cpu_mask *m)
{
    return CPU_COUNT_S(sizeof *m, m->bits);
}

/* The mask of a process or thread (0: this thread). */
static bool read_mask(pid_t process, cpu_mask *m)
{
    memset(m, 0, sizeof *m);
    return sched_getaffinity(process, sizeof *m, m->bits) == 0;
}

static bool write_mask(const cpu_mask *m)
{
    return sched_setaffinity(0, sizeof *m, m->bits) == 0;
}

static bool holds(const cpu_mask *large, const cpu_mask *small)
{
    cpu_mask both;
    CPU_AND_S(sizeof both, both.bits, large->bits, small->bits);
    return CPU_EQUAL_S(sizeof both, both.bits, small->bits);
}

/* What the launcher may use on this host. The kernel answers by what it makes of the wish. */
static void launcher_mask(const cpu_mask *own, cpu_mask *out)
{
    cpu_mask wish;
    if (!read_mask(getppid(), &wish) || !holds(&wish, own)) memset(&wish, 0xFF, sizeof wish);
    *out = *own;
    if (!write_mask(&wish)) return;
    if (!read_mask(0, out)) *out = *own;
    write_mask(own);
}

static int topology(int number, const char *what)
{
    char path[128];
    int value = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", number, what);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%d", &value) != 1) value = 0;
    fclose(f);
    return value;
}

static int compare_cpus(const void *a_, const void *b_)
{
    const cpu *a = a_, *b = b_;
    if (a->package != b->package) return a->package < b->package ? -1 : 1;
    if (a->core != b->core) return a->core < b->core ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* Part `index` of `parts` of the CPUs in a mask; false when memory is short. */
static bool slice_mask(const cpu_mask *all, int parts, int index, cpu_mask *out)
{
    int num = 0, total = count(all);
    cpu *cpus = calloc((size_t)total, sizeof *cpus);
    if (!cpus) return false;
    for (int i = 0; i < MAX_CPUS && num < total; i++)
        if (CPU_ISSET_S(i, sizeof *all, all->bits))
            cpus[num++] = (cpu){topology(i, "physical_package_id"), topology(i, "core_id"), i};
    qsort(cpus, (size_t)num, sizeof *cpus, compare_cpus);
    memset(out, 0, sizeof *out);
    for (int64_t i = tt_block_begin(num, parts, index); i < tt_block_begin(num, parts, index + 1); i++)
        CPU_SET_S(cpus[i].number, sizeof *out, out->bits);
    free(cpus);
    return true;
}

int tt_comm_threads_per_rank(tt_comm *comm, int wanted)
{
    const tt_link *link = &comm->link;
    cpu_mask own, all, slice;
    if (!read_mask(0, &own)) return wanted > 0 ? wanted : 1;
    all = own;
    if (link->launched) launcher_mask(&own, &all);
    int fair = (int)tt_max_i64(1, count(&all) / link->host_size);
    int threads = wanted > 0 ? wanted : fair;
    /* `fair` CPUs are at hand only where a launcher's mask is wider than ours. */
    if (link->launched && count(&own) < threads && count(&own) < fair &&
        slice_mask(&all, link->host_size, link->host_rank, &slice))
        write_mask(&slice);
    return threads;
}
