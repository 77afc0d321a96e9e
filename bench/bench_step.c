/* bench_step.c - one training step of a chosen shape: tokens/s, share of the machine's own plain product rate, memory by term.
 *
 *   build/bench/bench_step [--layers 1] [--tokens 1024] [--experts 64] [--width 1024] [--hidden 2048] [--heads 16]
 *                          [--chosen 8] [--vocab 50304] [--steps 3] [--ep_size 1] [--threads 0] [--bf16] [--no_recompute]
 *                          [--profile]
 *   mpirun -n 2 build/bench/bench_step --tokens 512 --ep_size 2       tokens are those of each rank; TARTAN_SHARED=0 in front:
 *                                                                     ranks send messages instead of sharing memory
 *
 * The defaults are OLMoE-1B-7B with one layer. Weights are random and live in memory alone. Useful work is that of
 * src/train/flops.h; recomputation is not counted. The roof is a plain fp32 product of 2048 x 2048 x 2048 through oneDNN with
 * all threads of all ranks of the host, measured in the same run. --profile says where the time of the steps goes, the one to
 * warm up left out.
 */
#include "base/checked.h"
#include "train/engine.h"
#include "train/memory.h"
#include "train/metrics.h"
#include "train/profiler.h"

#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct shape {
    int64_t layers, tokens, experts, width, hidden, heads, chosen, vocab, steps, ep, threads, bf16, no_recompute, profile;
} shape;

static json_t *config_of(const shape *s)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:b}", "model_type", "olmoe", "dtype",
                     "float32", "vocab_size", (json_int_t)s->vocab, "hidden_size", (json_int_t)s->hidden,
                     "intermediate_size", (json_int_t)s->width, "num_hidden_layers", (json_int_t)s->layers,
                     "num_attention_heads", (json_int_t)s->heads, "num_experts", (json_int_t)s->experts,
                     "num_experts_per_tok", (json_int_t)s->chosen, "norm_topk_prob", 0, "rms_norm_eps", 1e-5,
                     "tie_word_embeddings", 0);
}

/* GFLOP/s of one rank while all of them work; the sum over ranks is the machine's. */
static double roof(int threads)
{
    enum { N = 2048 };
    float *a = calloc((size_t)N * N, 4), *b = calloc((size_t)N * N, 4), *c = calloc((size_t)N * N, 4);
    double best = 1e9;
    omp_set_num_threads(threads);
    for (int i = 0; i < N * N; i++) a[i] = b[i] = (float)(i % 7) * 0.1f;
    for (int i = 0; i < 5; i++) {
        double start = tt_seconds();
        dnnl_sgemm('N', 'N', N, N, N, 1.0f, a, N, b, N, 0.0f, c, N);
        best = fmin(best, tt_seconds() - start);
    }
    free(a), free(b), free(c);
    return 2.0 * N * N * N / best * 1e-9;
}

static tt_status fill_batch(const shape *s, int rank, tt_batch *b)
{
    int32_t *ids = malloc((size_t)s->tokens * sizeof *ids);
    for (int64_t i = 0; i < s->tokens; i++) ids[i] = (int32_t)(((uint64_t)(i + rank * s->tokens) * 2654435761u >> 7) % (uint64_t)s->vocab);
    tt_batch_row row = {.length = s->tokens, .ids = ids};
    tt_status status = tt_batch_add(b, &row, rank, s->vocab);
    free(ids);
    return status;
}

static tt_status time_steps(tt_engine *e, tt_profiler *p, const shape *s, const tt_batch *b, double *seconds,
                            tt_step_result *r)
{
    double *times = calloc((size_t)s->steps, sizeof *times);
    for (int64_t i = -1; i < s->steps; i++) { /* one to warm up */
        tt_step_options o = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .max_grad_norm = 1, .step = i + 2};
        TT_TRY(tt_barrier(e->mesh->world, "bench"));
        double start = tt_seconds();
        tt_profiler_step_begin(p, o.step);
        TT_TRY(tt_train_step(&e->model, b, 1, &o, r));
        TT_TRY(tt_barrier(e->mesh->world, "bench"));
        tt_profiler_step_end(p);
        if (i >= 0) times[i] = tt_seconds() - start;
    }
    for (int64_t i = 0; i < s->steps; i++) /* insertion sort: the median */
        for (int64_t j = i; j > 0 && times[j - 1] > times[j]; j--) {
            double t = times[j];
            times[j] = times[j - 1], times[j - 1] = t;
        }
    *seconds = times[s->steps / 2];
    free(times);
    return TT_OK;
}

static void print_memory(const tt_engine *e, const shape *s)
{
    struct rusage u;
    tt_memory plan;
    tt_memory_shape m = {
        .mesh = {e->mesh->fsdp_size, 1, e->mesh->ep_size, e->mesh->dispatch}, .world_size = e->mesh->world_size,
        .precision = tt_shards_precision(e->shards), .train = true, .moments = true, .recompute = e->model.recompute,
        .kept_layers = e->model.kept_layers, .shared = tt_shards_are_shared(e->shards),
        .tokens = s->tokens, .targets = s->tokens - 1, .loss_chunk = e->model.loss_chunk};
    if (tt_memory_plan(&e->config, &e->table, &m, &plan) != TT_OK) return;
    tt_shard_bytes held = tt_shards_bytes(e->shards);
    getrusage(RUSAGE_SELF, &u);
    int64_t measured[] = {held.weights, held.gradients, held.moments, held.units_peak,
                          (int64_t)tt_arena_peak(e->model.keep), (int64_t)tt_arena_peak(e->model.work),
                          (int64_t)tt_arena_peak(e->kernel->scratch)};
    printf("memory of rank 0, MiB      planned   measured\n");
    for (int t = 0; t < TT_MEMORY_NUM_TERMS; t++)
        printf("  %-22s %9.1f  %9.1f\n", tt_memory_term_name((tt_memory_term)t), (double)plan.bytes[t] / 1048576,
               (double)measured[t] / 1048576);
    printf("  %-22s %9.1f  %9.1f (peak resident, program and libraries included)\n", "sum", (double)plan.total / 1048576,
           (double)u.ru_maxrss / 1024);
}

static void print_profile(const tt_profile_report *r)
{
    char table[4096];
    tt_profile_report_text(r, table, sizeof table);
    printf("%s", table);
}

static tt_status bench(tt_comm *comm, const shape *s)
{
    tt_engine e;
    tt_batch b = {0};
    tt_step_result r;
    tt_profiler profiler = {0};
    tt_profile_report profile;
    double seconds;
    int threads = tt_comm_threads_per_rank(comm, (int)s->threads);
    json_t *config = config_of(s);
    tt_dtype compute = s->bf16 ? TT_BF16 : TT_F32;
    tt_engine_options o = {.config = config, .init_seed = 1, .mesh = {.ep_size = s->ep},
                           .resident = TT_F32, .compute = compute, .moments = TT_F32, .threads = threads,
                           .train = true, .with_moments = true};
    double rate = roof(threads);
    TT_TRY(tt_allreduce_f64(tt_comm_world(comm), "bench", &rate, 1));
    TT_TRY(tt_engine_open(comm, &o, &e));
    e.model.recompute = !s->no_recompute;
    TT_TRY(fill_batch(s, tt_comm_rank(comm), &b));
    if (s->profile) TT_TRY(tt_profiler_open(&profiler, comm, e.kernel));
    TT_TRY(time_steps(&e, &profiler, s, &b, &seconds, &r));
    TT_TRY(tt_profiler_report(&profiler, &profile));
    if (tt_comm_rank(comm) == 0) {
        double tokens = (double)s->tokens * tt_comm_size(comm);
        printf("%d rank(s) x %d thread(s), ep_size %lld, %s products, %lld layer(s), %lld tokens a rank, recompute %s\n",
               tt_comm_size(comm), threads, (long long)s->ep, s->bf16 ? "bf16" : "fp32", (long long)s->layers,
               (long long)s->tokens, s->no_recompute ? "off" : "on");
        printf("step %.3f s (median of %lld): %.1f tokens/s, %.1f useful GFLOP/s, %.1f %% of the plain product's %.1f; loss %.5f\n",
               seconds, (long long)s->steps, tokens / seconds, r.flops / seconds * 1e-9, r.flops / seconds * 1e-7 / rate, rate,
               r.loss);
        if (s->profile) print_profile(&profile);
        print_memory(&e, s);
    }
    tt_batch_free(&b);
    tt_profiler_close(&profiler);
    tt_engine_close(&e);
    json_decref(config);
    return TT_OK;
}

int main(int argc, char **argv)
{
    shape s = {.layers = 1, .tokens = 1024, .experts = 64, .width = 1024, .hidden = 2048, .heads = 16, .chosen = 8,
               .vocab = 50304, .steps = 3, .ep = 1};
    const struct {
        const char *name;
        int64_t *value;
        bool flag;
    } options[] = {{"--layers", &s.layers, false}, {"--tokens", &s.tokens, false}, {"--experts", &s.experts, false},
                   {"--width", &s.width, false},   {"--hidden", &s.hidden, false}, {"--heads", &s.heads, false},
                   {"--chosen", &s.chosen, false}, {"--vocab", &s.vocab, false},   {"--steps", &s.steps, false},
                   {"--ep_size", &s.ep, false},    {"--threads", &s.threads, false}, {"--bf16", &s.bf16, true},
                   {"--no_recompute", &s.no_recompute, true},
                   {"--profile", &s.profile, true}};
    for (int i = 1; i < argc; i++) {
        size_t j = 0, n = sizeof options / sizeof *options;
        while (j < n && strcmp(argv[i], options[j].name) != 0) j++;
        if (j == n || (!options[j].flag && i + 1 == argc)) {
            fprintf(stderr, "bench_step: what is '%s'? See the head of bench/bench_step.c\n", argv[i]);
            return 2;
        }
        *options[j].value = options[j].flag ? 1 : atoll(argv[++i]);
    }
    tt_comm *comm;
    tt_status status = tt_comm_create(&comm);
    if (status == TT_OK) {
        status = bench(comm, &s);
        if (status != TT_OK) tt_comm_abort(comm, 1, tt_error_text());
        tt_comm_destroy(&comm);
    }
    return tt_status_exit(status);
}
