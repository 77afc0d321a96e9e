/* launch.c - what started this process, read from its environment.
 *
 * mpirun of Open MPI sets OMPI_COMM_WORLD_*, that of MPICH and srun --mpi=pmi2 set PMI_*, srun --mpi=pmix and
 * prterun set PMIX_*. A step of srun without any of these is a launch too: its N processes were not meant to
 * run alone, and MPI will show whether they find each other. A batch script has SLURM_PROCID and SLURM_NTASKS
 * as well, but it is one process and no step of several: there SLURM_STEP_NUM_TASKS is missing or 1.
 */
#include "comm/backend.h"

#include <stdlib.h>

/* 0 when missing or not a positive number. */
static int number(const char *variable)
{
    const char *text = getenv(variable);
    long n = text ? strtol(text, NULL, 10) : 0;
    return n > 0 && n <= INT32_MAX ? (int)n : 0;
}

tt_launcher tt_launcher_find(void)
{
    if (getenv("OMPI_COMM_WORLD_SIZE"))
        return (tt_launcher){"OMPI_COMM_WORLD_SIZE", number("OMPI_COMM_WORLD_SIZE")};
    if (getenv("PMI_SIZE")) return (tt_launcher){"PMI_SIZE", number("PMI_SIZE")};
    int step = getenv("SLURM_PROCID") && number("SLURM_NTASKS") > 1 ? number("SLURM_STEP_NUM_TASKS") : 0;
    if (getenv("PMI_RANK")) return (tt_launcher){"PMI_RANK", step};
    if (getenv("PMIX_RANK")) return (tt_launcher){"PMIX_RANK", step};
    if (step > 1) return (tt_launcher){"SLURM_STEP_NUM_TASKS", step};
    return (tt_launcher){NULL, 0};
}
