/* options.h - command lines of the subcommands other than sft: positional arguments, then --key value.
 *
 * A table of options drives parsing and --help. Unknown options are TT_ECONFIG with the nearest name. */
#ifndef TT_CLI_OPTIONS_H
#define TT_CLI_OPTIONS_H

#include "tartan/mesh.h"

typedef enum tt_option_type {
    TT_OPTION_TEXT,
    TT_OPTION_INT,
    TT_OPTION_SIZE, /* an integer from 1 on */
    TT_OPTION_FLAG,
    TT_OPTION_DISPATCH
} tt_option_type;

typedef struct tt_option {
    const char *name; /* without the dashes; '-' and '_' are the same on the command line */
    tt_option_type type;
    void *value; /* const char **, int64_t * (gets 0 to INT32_MAX), bool *, tt_dispatch_kind *; holds the default */
    const char *help;
} tt_option;

typedef struct tt_command {
    const char *name;
    const char *arguments;  /* "MODEL", "CONFIG.json OUT": for the usage line */
    const char *summary;    /* one line for the list of commands */
    const char *help;       /* paragraphs for --help, may be NULL */
    int min_positional, max_positional;
    tt_status (*run)(tt_comm *comm, const struct tt_command *self, int argc, char **argv);
} tt_command;

/* tt_options_parse - argv[0..argc) behind the command's name. positional[max_positional] are borrowed from argv.
 * *help_wanted: --help was given; the text has been printed by the world's first rank and nothing else is to be done.
 * Collective over the world in that ranks agree on the outcome. */
tt_status tt_options_parse(tt_comm *comm, const tt_command *command, const tt_option *options, int num_options, int argc,
                           char **argv, const char **positional, bool *help_wanted);

/* The mesh keys, for commands that run on a mesh: entries to copy into a table. */
#define TT_MESH_OPTIONS(sizes)                                                                                         \
    {"fsdp_size", TT_OPTION_SIZE, &(sizes).fsdp_size, "distinct batches in a micro-step (default: ranks / tp_size)"},   \
        {"tp_size", TT_OPTION_SIZE, &(sizes).tp_size, "ranks that share one batch (default 1)"},                        \
        {"ep_size", TT_OPTION_SIZE, &(sizes).ep_size, "ranks that together hold every expert once (default 1)"},        \
        {"expert_dispatch", TT_OPTION_DISPATCH, &(sizes).dispatch, "how tokens reach experts: alltoall, allgather, allreduce"}

extern const tt_command tt_cmd_sft, tt_cmd_certify, tt_cmd_init, tt_cmd_inspect, tt_cmd_verify, tt_cmd_render, tt_cmd_generate;

#endif
