/* main.c - tartan COMMAND ...: finds the command, and turns a status into an exit code; nowhere else does. */
#include "base/log.h"
#include "cli/options.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARTAN_VERSION "0.1.0"
#ifdef TT_HAVE_MPI
#define TARTAN_MPI "with MPI"
#else
#define TARTAN_MPI "without MPI"
#endif

static const tt_command *const commands[] = {
    &tt_cmd_sft, &tt_cmd_certify, &tt_cmd_init, &tt_cmd_inspect, &tt_cmd_render, &tt_cmd_generate,
};

#define NUM_COMMANDS (sizeof commands / sizeof *commands)

static void usage(FILE *out)
{
    fprintf(out, "usage: tartan COMMAND ...        one process\n"
                 "       mpirun -n N tartan COMMAND ...   N ranks\n\n");
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", commands[i]->name, commands[i]->arguments);
        fprintf(out, "  %-30s %s\n", left, commands[i]->summary);
    }
    fprintf(out, "\ntartan COMMAND --help tells more; tartan --version\n");
}

static const tt_command *find(const char *name)
{
    for (size_t i = 0; i < NUM_COMMANDS; i++)
        if (strcmp(name, commands[i]->name) == 0) return commands[i];
    return NULL;
}

/* A failure that all ranks agreed on is told once and everybody leaves; one that others do not know of takes them down,
 * or they would wait for this rank. */
static int finish(tt_comm *comm, tt_status status)
{
    int code = tt_status_exit(status);
    fflush(stdout);
    if (status != TT_OK) {
        char text[2048];
        snprintf(text, sizeof text, "%s", tt_error_text());
        bool agreed = tt_comm_agreed(comm);
        if (!agreed && tt_comm_size(comm) > 1) tt_comm_abort(comm, code, text);
        if (!agreed || tt_comm_rank(comm) == 0) fprintf(stderr, "tartan: error: %s\n", text);
    }
    tt_comm_destroy(&comm);
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        puts("tartan " TARTAN_VERSION " (" TARTAN_MPI ")");
        return 0;
    }
    const tt_command *command = find(argv[1]);
    if (!command) {
        fprintf(stderr, "tartan: error: unknown command '%s'\n\n", argv[1]);
        usage(stderr);
        return 2;
    }
    tt_comm *comm;
    tt_status status = tt_comm_create(&comm);
    if (status != TT_OK) {
        fprintf(stderr, "tartan: error: %s\n", tt_error_text());
        return tt_status_exit(status);
    }
    if (tt_comm_rank(comm) > 0) tt_log_set_level(TT_LOG_SILENT);
    return finish(comm, command->run(comm, command, argc - 2, argv + 2));
}
