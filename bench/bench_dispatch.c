/* bench_dispatch.c - what the exchange of a MoE layer sends and how long it takes: alltoall, which sends a token once to each
 * rank that owns one of its experts, allgather and allreduce, beside one copy for each chosen expert.
 *
 *   build/bench/bench_dispatch [--tokens 256] [--hidden 2048] [--experts 64] [--chosen 8] [--dispatch alltoall] [--bf16]
 *                              [--repeat 3]                  ranks are threads, ep_size 2, 4 and 8; all ways by default
 *   mpirun -n 4 build/bench/bench_dispatch [...]             ranks are processes, ep_size = their number
 *
 * Each token chooses its experts at random, all with the same chance. `tokens` are those of each rank; under allreduce the
 * ranks share a batch of ep_size times as many, so that a group has as many tokens whatever the way. Experts compute nothing,
 * rows return as they came; backward is with recomputation. Bytes are those that left a rank, counted by tt_dispatch_bytes,
 * per token of the group and layer, plan included; `formula` is that of src/moe/dispatch.h for the choices made, `copies` the
 * same with a row for every chosen expert of another rank. Milliseconds are the least of --repeat.
 */
#include "base/checked.h"
#include "base/rng.h"
#include "moe/dispatch.h"
#include "train/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    int64_t tokens, hidden, experts, chosen, repeat;
    bool bf16;
} shape;

static const char *const ways[] = {"alltoall", "allgather", "allreduce"};

typedef struct job {
    const shape *s;
    tt_dispatch_kind way;
} job;

/* Sums over the ranks of a group, forward and backward; seconds of the slowest rank. */
typedef struct totals {
    int64_t counted[2], formula[2], copies[2], tokens;
    double seconds[2];
} totals;

/* One rank's layer. */
typedef struct layer {
    tt_mesh *mesh;
    tt_kernel *kernel;
    tt_arena *keep, *work;
    tt_routing r;
    tt_mat x, y, dgates; /* [T,D] compute; [T,D] and [T,K] real */
} layer;

/* --- one layer ------------------------------------------------------------------------------------------------- */

static tt_status grant(tt_arena *a, tt_dtype type, int64_t rows, int64_t cols, tt_mat *out)
{
    void *data;
    TT_TRY(tt_arena_grant_zero(a, rows * cols, tt_dtype_size(type), &data));
    *out = tt_mat_of(data, type, rows, cols);
    return TT_OK;
}

/* The first K of a shuffled deck of experts, from numbers of the batch's own. */
static void choose(const shape *s, tt_routing *r, int batch)
{
    int32_t *deck = malloc((size_t)s->experts * sizeof *deck);
    for (int64_t e = 0; e < s->experts; e++) deck[e] = (int32_t)e;
    for (int64_t t = 0; t < r->T; t++)
        for (int64_t i = 0; i < r->K; i++) {
            uint32_t word[4];
            tt_rng_block(tt_rng_key((uint64_t)batch, "bench"), 0, (uint64_t)(t * r->K + i), word);
            int64_t at = i + (int64_t)(word[0] % (uint32_t)(s->experts - i));
            int32_t swap = deck[i];
            r->ids[t * r->K + i] = deck[at];
            deck[i] = deck[at], deck[at] = swap;
        }
    free(deck);
}

static tt_status open_layer(tt_comm *comm, const job *j, layer *l)
{
    const shape *s = j->s;
    bool shared = j->way == TT_DISPATCH_ALLREDUCE;
    int ep = tt_comm_size(comm);
    tt_mesh_sizes sizes = {.ep_size = ep, .tp_size = shared ? ep : 1, .dispatch = j->way};
    *l = (layer){.r = {.T = s->tokens * (shared ? ep : 1), .K = s->chosen, .E = s->experts}};
    TT_TRY(tt_mesh_create(comm, sizes, s->experts, &l->mesh));
    TT_TRY(tt_kernel_create(&tt_ops_cpu, tt_comm_threads_per_rank(comm, 0), &l->kernel));
    TT_TRY(tt_arena_create("bench", &l->keep));
    TT_TRY(tt_arena_create("bench", &l->work));
    TT_TRY(tt_arena_grant(l->keep, l->r.T * l->r.K, sizeof *l->r.ids, (void **)&l->r.ids));
    TT_TRY(grant(l->keep, TT_F32, l->r.T, l->r.K, &l->r.gates));
    TT_TRY(grant(l->keep, s->bf16 ? TT_BF16 : TT_F32, l->r.T, s->hidden, &l->x));
    TT_TRY(grant(l->keep, TT_F32, l->r.T, s->hidden, &l->y));
    TT_TRY(grant(l->keep, TT_F32, l->r.T, s->chosen, &l->dgates));
    choose(s, &l->r, l->mesh->fsdp_rank);
    return TT_OK;
}

static void close_layer(layer *l)
{
    tt_arena_destroy(&l->work);
    tt_arena_destroy(&l->keep);
    tt_kernel_destroy(&l->kernel);
    tt_mesh_destroy(&l->mesh);
}

/* Rows to the experts, and, when `back`, real ones of the same number to the tokens. */
static tt_status there_and_back(layer *l, int round, const char *there, const char *back)
{
    tt_mat rows, results;
    TT_TRY(tt_dispatch_rows(l->mesh, l->kernel, l->work, &l->r, round, there, l->x, &rows));
    if (!back) return TT_OK;
    TT_TRY(grant(l->work, TT_F32, rows.rows, rows.cols, &results));
    return tt_combine_rows(l->mesh, l->kernel, l->work, &l->r, round, back, results, l->y);
}

/* The operations of src/model/moe.c, in its order. */
static tt_status forward(layer *l)
{
    TT_TRY(tt_dispatch_plan(l->mesh, l->kernel, l->keep, 0, &l->r));
    for (int q = 0; q < l->r.num_rounds; q++) {
        tt_arena_mark mark = tt_arena_save(l->work);
        TT_TRY(there_and_back(l, q, "dispatch-tokens", "return-outputs"));
        tt_arena_restore(l->work, mark);
    }
    return tt_share_rows(l->mesh, l->kernel, "share-outputs", l->y);
}

static tt_status backward(layer *l)
{
    for (int q = 0; q < l->r.num_rounds; q++) {
        tt_mat dpair;
        tt_arena_mark mark = tt_arena_save(l->work);
        TT_TRY(there_and_back(l, q, "dispatch-tokens", NULL));
        TT_TRY(grant(l->work, TT_F32, l->r.rounds[q].P, 1, &dpair));
        TT_TRY(tt_return_gate_gradients(l->mesh, l->kernel, l->work, &l->r, q, dpair, l->dgates));
        TT_TRY(there_and_back(l, q, "dispatch-gradients", "return-gradients"));
        tt_arena_restore(l->work, mark);
    }
    TT_TRY(tt_share_rows(l->mesh, l->kernel, "share-gates", l->dgates));
    return tt_share_rows(l->mesh, l->kernel, "share-gradients", l->y);
}

/* --- formulas -------------------------------------------------------------------------------------------------- */

/* This rank's part of src/moe/dispatch.h, Costs, for so many rows and pairs that go to other ranks; reduce: results are
 * summed over them. */
static void formula(const layer *l, bool reduce, int64_t rows, int64_t pairs, int64_t bytes[2])
{
    int64_t ep = l->mesh->ep_size, D = l->x.cols, s = (int64_t)tt_dtype_size(l->x.dtype), r = 4;
    int64_t shares = reduce ? r * 2 * (ep - 1) : 0, T = l->r.T;
    bytes[0] = 16 * ep * (ep - 1) + 16 * (ep - 1) * l->r.num_rounds + 4 * (rows + pairs) + r * pairs + (s + r) * D * rows +
               shares * tt_div_up(D * T, ep);
    bytes[1] = (s + s + r) * D * rows + r * pairs + shares * (tt_div_up(D * T, ep) + tt_div_up(l->r.K * T, ep));
}

/* For a batch that ranks share, one copy per expert is what alltoall of this rank's part of it would send. */
static void count(const layer *l, totals *t)
{
    const tt_mesh *mesh = l->mesh;
    const tt_routing *r = &l->r;
    bool reduce = mesh->dispatch == TT_DISPATCH_ALLREDUCE, gather = mesh->dispatch == TT_DISPATCH_ALLGATHER;
    int64_t begin = reduce ? r->T * mesh->tp_rank / mesh->tp_size : 0;
    int64_t end = reduce ? r->T * (mesh->tp_rank + 1) / mesh->tp_size : r->T, rows = 0, pairs = 0;
    for (int64_t i = begin; i < end; i++)
        for (int to = 0; to < mesh->ep_size; to++) {
            int64_t n = 0;
            for (int64_t k = 0; k < r->K; k++) n += tt_mesh_expert_owner(r->E, mesh->ep_size, r->ids[i * r->K + k]) == to;
            rows += to != mesh->ep_rank && (n > 0 || gather);
            pairs += to != mesh->ep_rank ? n : 0;
        }
    formula(l, reduce, reduce ? 0 : rows, reduce ? 0 : pairs, t->formula);
    formula(l, false, pairs, pairs, t->copies);
    t->tokens = end - begin;
}

/* --- all of it ------------------------------------------------------------------------------------------------- */

static tt_status measure(layer *l, const shape *s, totals *t)
{
    tt_comm *comm = l->mesh->comm;
    t->seconds[0] = t->seconds[1] = INFINITY;
    for (int64_t i = -1; i < s->repeat; i++) { /* one to warm up */
        tt_arena_mark mark = tt_arena_save(l->keep);
        for (int way = 0; way < 2; way++) {
            TT_TRY(tt_barrier(l->mesh->world, "bench"));
            int64_t before = tt_dispatch_bytes(comm);
            double start = tt_seconds();
            TT_TRY(way ? backward(l) : forward(l));
            t->counted[way] = tt_dispatch_bytes(comm) - before;
            TT_TRY(tt_barrier(l->mesh->world, "bench"));
            if (i >= 0) t->seconds[way] = fmin(t->seconds[way], tt_seconds() - start);
        }
        if (i == 0) count(l, t);
        tt_arena_restore(l->keep, mark);
    }
    return TT_OK;
}

static tt_status run_layer(tt_comm *comm, const job *j)
{
    layer l;
    totals t = {0};
    tt_status status = open_layer(comm, j, &l);
    if (status == TT_OK) status = measure(&l, j->s, &t);
    int ep = tt_comm_size(comm);
    close_layer(&l);
    TT_TRY(status);
    TT_TRY(tt_allreduce_i64(tt_comm_world(comm), "bench", t.counted, 7));
    if (tt_comm_rank(comm) > 0) return TT_OK;
    for (int way = 0; way < 2; way++) {
        double tokens = (double)t.tokens;
        printf("%2d  %-9s  %-8s %10.1f %10.1f %10.1f %7.2f %8.2f\n", ep, ways[j->way], way ? "backward" : "forward",
               (double)t.counted[way] / tokens, (double)t.formula[way] / tokens, (double)t.copies[way] / tokens,
               (double)t.copies[way] / (double)t.counted[way], t.seconds[way] * 1e3);
    }
    return TT_OK;
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    return run_layer(comm, arg);
}

static tt_status run(tt_comm *comm, const shape *s, const char *only)
{
    int world = tt_comm_size(comm);
    if (tt_comm_rank(comm) == 0)
        printf("%lld tokens a rank x %lld, %lld experts, %lld chosen, %s rows; bytes per token and layer\n"
               "ep  dispatch   way         counted    formula     copies   ratio       ms\n",
               (long long)s->tokens, (long long)s->hidden, (long long)s->experts, (long long)s->chosen,
               s->bf16 ? "bf16" : "fp32");
    for (int ep = world > 1 ? world : 2; ep <= (world > 1 ? world : 8); ep *= 2)
        for (int way = 0; way < 3; way++) {
            job j = {s, (tt_dispatch_kind)way};
            if (only && strcmp(only, ways[way]) != 0) continue;
            TT_TRY(world > 1 ? run_layer(comm, &j) : tt_comm_run_threads(ep, rank_main, &j));
        }
    return TT_OK;
}

static int wrong(const char *what)
{
    fprintf(stderr, "bench_dispatch: what is '%s'? See the head of bench/bench_dispatch.c\n", what);
    return 2;
}

int main(int argc, char **argv)
{
    shape s = {.tokens = 256, .hidden = 2048, .experts = 64, .chosen = 8, .repeat = 3};
    const char *only = NULL;
    const struct {
        const char *name;
        int64_t *value;
    } options[] = {{"--tokens", &s.tokens}, {"--hidden", &s.hidden}, {"--experts", &s.experts}, {"--chosen", &s.chosen},
                   {"--repeat", &s.repeat}};
    if (argc == 2 && !strcmp(argv[1], "--help")) {
        printf("bench_dispatch [--tokens 256] [--hidden 2048] [--experts 64] [--chosen 8] [--repeat 3] [--bf16]\n"
               "               [--dispatch alltoall|allgather|allreduce]\n"
               "Bytes and milliseconds of a MoE layer's exchange; the head of bench/bench_dispatch.c explains.\n");
        return 0;
    }
    for (int i = 1; i < argc; i++) {
        size_t j = 0, n = sizeof options / sizeof *options;
        if (!strcmp(argv[i], "--bf16")) {
            s.bf16 = true;
            continue;
        }
        if (i + 1 == argc) return wrong(argv[i]);
        if (!strcmp(argv[i], "--dispatch")) {
            only = argv[++i];
            if (strcmp(only, ways[0]) && strcmp(only, ways[1]) && strcmp(only, ways[2])) return wrong(only);
            continue;
        }
        while (j < n && strcmp(argv[i], options[j].name) != 0) j++;
        if (j == n) return wrong(argv[i]);
        *options[j].value = atoll(argv[++i]);
        if (*options[j].value < 1) return wrong(argv[i]);
    }
    if (s.chosen > s.experts) return wrong("--chosen above --experts");
    tt_comm *comm;
    tt_status status = tt_comm_create(&comm);
    if (status == TT_OK) {
        status = run(comm, &s, only);
        if (status != TT_OK) tt_comm_abort(comm, tt_status_exit(status), tt_error_text());
        tt_comm_destroy(&comm);
    }
    return tt_status_exit(status);
}
