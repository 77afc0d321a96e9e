/* bench_roofs.c - what this machine can do at most, by the measurements of roofs.h: one line of JSON.
 *
 *   build/bench/bench_roofs [threads]           2 by default
 */
#include "roofs.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    enum { ELEMENTS = 128 << 20 }; /* 512 MiB an array */
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    double fp32, bf16;
    tt_roof_passes passes;
    if (threads < 1 || argc > 2) return fprintf(stderr, "usage: bench_roofs [threads]\n"), 2;
    tt_status status = tt_roof_product(threads, TT_F32, &fp32);
    if (status == TT_OK) status = tt_roof_product(threads, TT_BF16, &bf16);
    if (status == TT_OK) status = tt_roof_memory(threads, ELEMENTS, &passes);
    if (status != TT_OK) {
        fprintf(stderr, "bench_roofs: %s\n", tt_error_text());
        return tt_status_exit(status);
    }
    printf(
        "{\"threads\": %d, \"fp32_onednn\": %.1f, \"bf16_onednn\": %.1f, \"copy_gbs\": %.2f, \"triad_gbs\": %.2f}\n",
        threads, fp32, bf16, passes.copy, passes.triad);
    return 0;
}
