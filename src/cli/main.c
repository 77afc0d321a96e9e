/* main.c - tartan COMMAND ...: finds the command, and turns a status into an exit code; nowhere else does. */
#include "base/log.h"
#include "cli/options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#define TARTAN_VERSION "0.1.0"
#ifdef TT_HAVE_MPI
#define TARTAN_MPI "with MPI"
#else
#define TARTAN_MPI "without MPI"
#endif

static const tt_command *const commands[] = {
    &tt_cmd_sft, &tt_cmd_certify, &tt_cmd_init, &tt_cmd_inspect, &tt_cmd_verify, &tt_cmd_render, &tt_cmd_generate,
};

#define NUM_COMMANDS (sizeof commands / sizeof *commands)

static void usage(void)
{
    printf("usage: tartan COMMAND ...        one process\n"
           "       mpirun -n N tartan COMMAND ...   N ranks\n\n");
    for (size_t i = 0; i < NUM_COMMANDS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", commands[i]->name, commands[i]->arguments);
        printf("  %-30s %s\n", left, commands[i]->summary);
    }
    printf("\ntartan COMMAND --help tells more; tartan --version\n");
}

static const tt_command *find(const char *name)
{
    for (size_t i = 0; i < NUM_COMMANDS; i++)
        if (strcmp(name, commands[i]->name) == 0) return commands[i];
    return NULL;
}

static tt_status unknown(const char *name)
{
    char names[256] = "";
    size_t n = 0;
    for (size_t i = 0; i < NUM_COMMANDS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", commands[i]->name);
    if (!name) return tt_error_set(TT_ECONFIG, "a command is missing; expected one of %s (see tartan --help)", names);
    return tt_error_set(TT_ECONFIG, "unknown command '%.60s'; expected one of %s (see tartan --help)", name, names);
}

/* Results go to stdout: a full disk or a closed pipe must not look like success. */
static tt_status flush_output(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return TT_OK;
    return tt_error_set(TT_EIO, "cannot write the results to standard output: %s", strerror(errno));
}

/* One line of printable text, whatever a message quotes from a damaged file. */
static void put_message(const char *text, char *out, size_t size)
{
    size_t n = 0;
    utf8proc_int32_t ch;
    for (const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text; *p && n + 5 < size;) {
        utf8proc_ssize_t bytes = utf8proc_iterate(p, -1, &ch);
        bool printable = bytes > 0 && utf8proc_category(ch) != UTF8PROC_CATEGORY_CC;
        if (printable)
            memcpy(out + n, p, (size_t)bytes);
        else
            out[n] = bytes > 0 ? ' ' : '?';
        n += printable ? (size_t)bytes : 1;
        p += bytes > 0 ? bytes : 1;
    }
    out[n] = '\0';
}

/* A failure that all ranks agreed on is told once and everybody leaves; one that others do not know of takes them down,
 * or they would wait for this rank. */
static int finish(tt_comm *comm, tt_status status)
{
    if (status == TT_OK) status = flush_output();
    int code = tt_status_exit(status);
    if (status != TT_OK) {
        char text[2048];
        fflush(stdout);
        put_message(tt_error_text(), text, sizeof text);
        bool agreed = tt_comm_agreed(comm);
        if (!agreed && tt_comm_size(comm) > 1) tt_comm_abort(comm, code, text);
        if (!agreed || tt_comm_rank(comm) == 0) fprintf(stderr, "tartan: error: %s\n", text);
    }
    tt_comm_destroy(&comm);
    return code;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    if (!strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "help")) {
        usage();
        return 0;
    }
    if (!strcmp(name, "--version")) {
        puts("tartan " TARTAN_VERSION " (" TARTAN_MPI ")");
        return 0;
    }
    tt_comm *comm;
    tt_status status = tt_comm_create(&comm);
    if (status != TT_OK) {
        fprintf(stderr, "tartan: error: %s\n", tt_error_text());
        return tt_status_exit(status);
    }
    tt_comm_catch_crashes(comm);
    if (tt_comm_rank(comm) > 0) tt_log_set_level(TT_LOG_SILENT);
    const tt_command *command = find(name);
    if (!command) return finish(comm, tt_agree(tt_comm_world(comm), "command", unknown(argc > 1 ? name : NULL)));
    return finish(comm, command->run(comm, command, argc - 2, argv + 2));
}
