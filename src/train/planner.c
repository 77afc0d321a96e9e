#include "train/planner.h"
#include "base/checked.h"
#include "comm/shared.h"

#include <stdio.h>
#include <stdlib.h>

static double mib(int64_t bytes)
{
    return (double)bytes / 1048576;
}

/* --- the largest micro-step -------------------------------------------------------------------------------------- */

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static int64_t sum_of_largest(int64_t *counts, int64_t num, int64_t most)
{
    int64_t sum = 0;
    qsort(counts, (size_t)num, sizeof *counts, descending);
    for (int64_t i = 0; i < tt_min_i64(num, most); i++) sum += counts[i];
    return sum;
}

tt_status tt_planner_largest(const tt_dataset *d, int64_t batch, int64_t *tokens, int64_t *targets)
{
    int64_t num = tt_dataset_rows(d);
    int64_t *lengths = calloc((size_t)num, sizeof *lengths), *trained = calloc((size_t)num, sizeof *trained);
    tt_status status = lengths && trained ? TT_OK
                                           : tt_error_set(TT_ENOMEM, "out of memory for the lengths of %lld rows", (long long)num);
    for (int64_t i = 0; i < num && status == TT_OK; i++) {
        const int32_t *ids, *labels;
        tt_dataset_row(d, i, &ids, &labels, &lengths[i]);
        for (int64_t k = 1; k < lengths[i]; k++) trained[i] += labels[k] != TT_IGNORE;
    }
    if (status == TT_OK) {
        *tokens = sum_of_largest(lengths, num, batch);
        *targets = sum_of_largest(trained, num, batch);
    }
    free(lengths);
    free(trained);
    return status;
}

/* --- the choice -------------------------------------------------------------------------------------------------- */

static tt_status refuse(int64_t limit, const tt_memory_shape *s, const tt_memory_choice *c)
{
    char terms[400];
    size_t n = 0;
    for (int t = 0; t < TT_MEMORY_NUM_TERMS; t++)
        if (c->plan.bytes[t] > 0)
            n += (size_t)snprintf(terms + n, sizeof terms - n, "%s%s %.1f", n ? ", " : "",
                                  tt_memory_term_name((tt_memory_term)t), mib(c->plan.bytes[t]));
    return tt_error_set(TT_ECONFIG,
                        "max_memory is %lld bytes, %.1f MiB, and the %d rank%s of a host need%s %.1f MiB %s, with micro-steps of "
                        "up to %lld tokens (%s MiB %s, and 5 %% in reserve); raise max_memory, %s",
                        (long long)limit, mib(limit), c->ranks, c->ranks > 1 ? "s" : "", c->ranks > 1 ? "" : "s", mib(c->bytes),
                        s->recompute ? "at least" : "when all layers keep their activations", (long long)s->tokens, terms,
                        c->ranks > 1 ? "each" : "in all",
                        s->recompute ? "lower per_device_train_batch_size or max_length, or use more hosts"
                                     : "or set gradient_checkpointing: true, with which as many layers keep them as fit");
}

static tt_status choose(int64_t limit, const tt_model_config *config, const tt_memory_shape *s, tt_memory_choice *c)
{
    tt_model_table table;
    TT_TRY(tt_model_table_build(config, &table));
    c->kept_layers = s->recompute ? tt_min_i64(s->kept_layers, config->num_layers) : config->num_layers;
    tt_status status = limit > 0 ? tt_memory_keep(config, &table, s, c->ranks, limit, &c->kept_layers, &c->plan)
                                 : tt_memory_plan(config, &table, s, &c->plan);
    tt_model_table_free(&table);
    TT_TRY(status);
    c->bytes = tt_memory_with_margin(&c->plan, c->ranks);
    return c->kept_layers < 0 ? refuse(limit, s, c) : TT_OK;
}

tt_status tt_planner_choose(tt_comm *comm, int64_t limit, const tt_model_config *config, const tt_memory_shape *shape,
                            tt_memory_choice *out)
{
    tt_memory_shape s = *shape;
    tt_group *world = tt_comm_world(comm);
    int64_t most[] = {tt_comm_host_size(comm), s.tokens, s.targets};
    TT_TRY(tt_allreduce_max_i64(world, "memory", most, 3));
    TT_TRY(tt_shared_possible(world, &s.shared));
    s.tokens = most[1], s.targets = most[2];
    *out = (tt_memory_choice){.ranks = (int)most[0]};
    return tt_agree(world, "memory", choose(limit, config, &s, out));
}
