/* kernel.c - the context that ops run in: a table, scratch, threads, what the backend keeps. */
#include "kernels/ops.h"
#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

tt_status tt_ops_default(const tt_ops **out)
{
    static const tt_ops *const tables[] = {&tt_ops_cpu, &tt_ops_onednn, &tt_ops_ref};
    const char *wanted = getenv("TARTAN_KERNELS");
    *out = &tt_ops_cpu;
    if (!wanted || !*wanted) return TT_OK;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(wanted, tables[i]->name) == 0) {
            *out = tables[i];
            return TT_OK;
        }
    return tt_error_set(TT_ECONFIG, "TARTAN_KERNELS is \"%s\"; it may be cpu, onednn or ref, or not be set", wanted);
}

tt_status tt_kernel_create(const tt_ops *ops, int threads, tt_kernel **out)
{
    tt_status status = TT_OK;
    TT_ASSERT(threads >= 1);
    tt_kernel *k = *out = calloc(1, sizeof *k);
    TT_CHECK(k, TT_ENOMEM, "kernels: out of memory");
    TT_GO(tt_arena_create("scratch of kernels", &k->scratch));
    k->ops = ops;
    k->threads = threads;
    if (ops->open) TT_GO(ops->open(k)); /* on failure it has released what it took; close is not called */
    return TT_OK;
fail:
    tt_arena_destroy(&k->scratch);
    free(k);
    *out = NULL;
    return status;
}

void tt_kernel_destroy(tt_kernel **k)
{
    if (!*k) return;
    if ((*k)->ops->close) (*k)->ops->close(*k);
    tt_arena_destroy(&(*k)->scratch);
    free(*k);
    *k = NULL;
}
