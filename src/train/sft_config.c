/* sft_config.c - all ranks train by one configuration: each host may have a file of its own, and each rank its options. */
#include "train/sft.h"

#include <stdlib.h>
#include <string.h>

/* The first line in which two texts differ, without its end. */
static void first_difference(const char *a, const char *b, int *length_a, const char **line_a, int *length_b, const char **line_b)
{
    for (;;) {
        size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || strncmp(a, b, n) != 0 || !a[n] || !b[m]) {
            *line_a = a, *length_a = (int)n;
            *line_b = b, *length_b = (int)m;
            return;
        }
        a += n + 1, b += m + 1;
    }
}

static tt_status compare(const char *mine, const char *first)
{
    int n, m;
    const char *here, *there;
    if (strcmp(mine, first) == 0) return TT_OK;
    first_difference(mine, first, &n, &here, &m, &there);
    return tt_error_set(TT_ECONFIG, "this rank is told '%.*s', rank 0 '%.*s': start all ranks with the same file and options",
                        n, here, m, there);
}

tt_status tt_sft_same_config(tt_comm *comm, const tt_config *config)
{
    char *mine = NULL, *first = NULL;
    tt_group *world = tt_comm_world(comm);
    tt_status status = tt_agree(world, "configuration", tt_config_yaml(config, &mine));
    int64_t bytes = status == TT_OK ? (int64_t)strlen(mine) + 1 : 0;
    if (status == TT_OK) status = tt_broadcast(world, "configuration", 0, &bytes, sizeof bytes);
    if (status == TT_OK) {
        first = malloc((size_t)bytes);
        status = tt_agree(world, "configuration", first ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory"));
    }
    if (status == TT_OK && tt_comm_rank(comm) == 0) memcpy(first, mine, (size_t)bytes);
    if (status == TT_OK) status = tt_broadcast(world, "configuration", 0, first, (size_t)bytes);
    if (status == TT_OK) status = tt_agree(world, "configuration", compare(mine, first));
    free(first);
    free(mine);
    return status;
}
