/* bench_step.c - training steps of a model of a chosen shape: tokens/s, share of what the machine's plain products reach,
 * memory by term. bench/baseline_step.py is its counterpart, bench/compare.py runs both.
 *
 *   build/bench/bench_step [--shape olmoe] [--layers 1] [--tokens 1024] [--rows 1] [--warmup 2] [--steps 5] [--threads 0]
 *                          [--ep_size 1] [--bf16] [--resident bf16] [--moments bf16] [--no_recompute] [--kept_layers 1]
 *                          [--model FOLDER] [--experts N] [--width N] [--hidden N] [--heads N] [--chosen N] [--vocab N]
 *                          [--profile] [--json] [--config]
 *   mpirun -n 2 build/bench/bench_step --tokens 512 --ep_size 2       tokens and rows are those of each rank;
 *                                                                     TARTAN_SHARED=0 in front: ranks send messages instead
 *                                                                     of sharing memory
 *
 * Shapes are OLMoE-1B-7B (olmoe) and Qwen3-30B-A3B (qwen3), of which --layers layers are made; single numbers can be
 * changed. Weights are random and live in memory alone, or are those of --model, whose shape then counts. --config prints
 * config.json of the shape and ends. --bf16: operands of products; --resident, --moments: what is kept (f32 or bf16).
 *
 * A step is --rows rows of --tokens tokens on each rank, one micro-step, AdamW, clipping at 1. Token i of row r of all
 * rows of step s is number n = (s rows + r) tokens + i of a run, hashed (token_id), so steps and ranks have tokens of their
 * own and baseline.py makes the same ones.
 *
 * Useful work is that of src/train/flops.h. What recomputation adds (a second forward of the blocks that are not kept, but
 * for the last product of the experts, which backward does not need) is reported apart. The roofs: bench/roofs.h. --profile
 * says where the time of the timed steps goes.
 */
#include "base/checked.h"
#include "roofs.h"
#include "train/engine.h"
#include "train/flops.h"
#include "train/memory.h"
#include "train/profiler.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

typedef struct shape {
    const char *name;
    int64_t layers, experts, width, hidden, heads, chosen, vocab;
    int64_t kv_heads, head_dim; /* 0: as many as heads; what is left of hidden for each of them */
} shape;

static const shape shapes[] = {
    {"olmoe", .layers = 1, .experts = 64, .width = 1024, .hidden = 2048, .heads = 16, .chosen = 8, .vocab = 50304},
    {"qwen3", .layers = 1, .experts = 128, .width = 768, .hidden = 2048, .heads = 32, .chosen = 8, .vocab = 151936,
     .kv_heads = 4, .head_dim = 128},
};

typedef struct options {
    shape shape;
    const char *model, *resident_name, *moments_name;
    tt_dtype resident, moments;
    int64_t tokens, rows, warmup, steps, threads, ep, bf16, no_recompute, kept, profile, json, config;
} options;

typedef struct roofs {
    double fp32, bf16; /* GFLOP/s of all ranks */
} roofs;

/* What was measured. All ranks have one; rank 0's is printed. */
typedef struct outcome {
    double *seconds;             /* [steps] between two barriers, in the end in ascending order */
    double *losses, *grad_norms; /* [warmup + steps] */
    int64_t peak, peak_sum;      /* resident bytes: of the largest rank, of all */
    double useful, recomputed;   /* operations of a step, all ranks */
    tt_profile_report profile;   /* of no steps without --profile */
} outcome;

/* --- shape and batch --------------------------------------------------------------------------------------------- */

static json_t *config_of(const shape *s)
{
    bool qwen3 = !strcmp(s->name, "qwen3");
    const struct {
        const char *key;
        int64_t value;
    } counts[] = {
        {"vocab_size", s->vocab},
        {"hidden_size", s->hidden},
        {"intermediate_size", qwen3 ? 8 * s->width : s->width}, /* qwen3: of dense layers, of which there are none */
        {qwen3 ? "moe_intermediate_size" : "intermediate_size", s->width},
        {"num_hidden_layers", s->layers},
        {"num_attention_heads", s->heads},
        {"num_key_value_heads", s->kv_heads ? s->kv_heads : s->heads},
        {"head_dim", s->head_dim ? s->head_dim : s->hidden / s->heads},
        {"num_experts", s->experts},
        {"num_experts_per_tok", s->chosen}};
    json_t *c = json_pack("{s:s, s:[s], s:s, s:b, s:f, s:f, s:b}", "model_type", qwen3 ? "qwen3_moe" : "olmoe",
                          "architectures", qwen3 ? "Qwen3MoeForCausalLM" : "OlmoeForCausalLM", "dtype", "bfloat16",
                          "norm_topk_prob", qwen3, "rms_norm_eps", qwen3 ? 1e-6 : 1e-5, "rope_theta",
                          qwen3 ? 1e6 : 1e4, "tie_word_embeddings", 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(c, counts[i].key, json_integer(counts[i].value));
    return c;
}

/* Numbers 0, 1, 2, ... look random and are the same in every language: two rounds of a multiplicative hash, 32 bits. */
static int32_t token_id(int64_t n, int64_t vocab)
{
    uint32_t x = (uint32_t)n * 0x9E3779B1u;
    x = (x ^ (x >> 15)) * 0x45D9F3Bu;
    return (int32_t)((x ^ (x >> 16)) % (uint64_t)vocab);
}

static tt_status fill_batch(const options *o, const tt_engine *e, int64_t step, tt_batch *b)
{
    int64_t vocab = e->config.vocab_size, all_rows = o->rows * e->mesh->world_size;
    int32_t *ids = malloc((size_t)o->tokens * sizeof *ids);
    TT_CHECK(ids, TT_ENOMEM, "out of memory for %" PRId64 " token ids", o->tokens);
    tt_status status = TT_OK;
    tt_batch_clear(b);
    for (int64_t j = 0; j < o->rows && status == TT_OK; j++) {
        int64_t row = e->mesh->rank * o->rows + j;
        for (int64_t i = 0; i < o->tokens; i++) ids[i] = token_id((step * all_rows + row) * o->tokens + i, vocab);
        status = tt_batch_add(b, &(tt_batch_row){.length = o->tokens, .ids = ids}, (int32_t)row, vocab);
    }
    free(ids);
    return status;
}

/* --- measuring --------------------------------------------------------------------------------------------------- */

static tt_status measure_roofs(tt_comm *comm, int threads, roofs *r)
{
    double rates[2];
    TT_TRY(tt_roof_product(threads, TT_F32, &rates[0]));
    TT_TRY(tt_roof_product(threads, TT_BF16, &rates[1]));
    TT_TRY(tt_allreduce_f64(tt_comm_world(comm), "bench", rates, 2));
    *r = (roofs){rates[0], rates[1]};
    return TT_OK;
}

/* A second forward of the blocks that are not kept. */
static double recomputed(const tt_engine *e, const tt_batch *batch)
{
    const tt_params *p = &e->table.params;
    const tt_model_config *c = &e->config;
    int64_t again = e->model.recompute ? c->num_layers - e->model.kept_layers : 0, parameters = 0;
    if (again <= 0) return 0;
    for (int64_t i = 0; i < p->num; i++) {
        bool last = p->at[i].expert >= 0 && strstr(p->at[i].name, "down_proj");
        int layer = p->units[p->at[i].unit].layer;
        if (layer >= 0 && layer < again && p->at[i].expert < c->experts_per_token && !last)
            parameters += p->at[i].count;
    }
    return 2 * (double)parameters * (double)batch->T +
           4 * (double)(again * c->num_heads * c->head_dim) * (double)tt_flops_pairs(&batch->docs, c->window);
}

/* The profile has one step of the warm-up too, which its report leaves out. */
static tt_status run_steps(const options *o, tt_engine *e, tt_profiler *profiler, outcome *out)
{
    tt_batch batch = {0};
    tt_status status = TT_OK;
    for (int64_t i = 0; i < o->warmup + o->steps && status == TT_OK; i++) {
        tt_step_options step = {
            .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .max_grad_norm = 1, .step = i + 1};
        tt_step_result r;
        status = fill_batch(o, e, i, &batch);
        if (status == TT_OK) status = tt_barrier(e->mesh->world, "bench");
        double start = tt_seconds();
        if (i + 1 >= o->warmup) tt_profiler_step_begin(profiler, step.step);
        if (status == TT_OK) status = tt_train_step(&e->model, &batch, 1, &step, &r);
        if (status == TT_OK) status = tt_barrier(e->mesh->world, "bench");
        if (i + 1 >= o->warmup) tt_profiler_step_end(profiler);
        if (status != TT_OK) break;
        if (i >= o->warmup) out->seconds[i - o->warmup] = tt_seconds() - start;
        out->losses[i] = r.loss;
        out->grad_norms[i] = r.grad_norm;
        out->useful = r.flops;
        out->recomputed = recomputed(e, &batch) * e->mesh->world_size;
    }
    tt_batch_free(&batch);
    return status;
}

static tt_status measure_peak(const tt_engine *e, outcome *out)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    out->peak = out->peak_sum = (int64_t)u.ru_maxrss * 1024;
    TT_TRY(tt_allreduce_max_i64(e->mesh->world, "bench", &out->peak, 1));
    return tt_allreduce_i64(e->mesh->world, "bench", &out->peak_sum, 1);
}

static tt_status plan_memory(const options *o, const tt_engine *e, tt_memory *plan)
{
    tt_memory_shape m = {.mesh = {e->mesh->fsdp_size, 1, e->mesh->ep_size, e->mesh->dispatch},
                         .world_size = e->mesh->world_size,
                         .precision = tt_shards_precision(e->shards),
                         .train = true,
                         .moments = true,
                         .recompute = e->model.recompute,
                         .kept_layers = e->model.kept_layers,
                         .shared = tt_shards_are_shared(e->shards),
                         .tokens = o->tokens * o->rows,
                         .targets = (o->tokens - 1) * o->rows,
                         .loss_chunk = e->model.loss_chunk};
    return tt_memory_plan(&e->config, &e->table, &m, plan);
}

/* --- printing ---------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static json_t *numbers(const double *x, int64_t n)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_real(x[i]));
    return list;
}

/* Seconds of a step by stage, as the baseline tells them, and by phase. */
static void add_profile(json_t *line, const tt_times *t)
{
    json_t *phases = json_object(), *profile = json_object();
    double back = tt_times_stage(t, TT_STAGE_BACKWARD) + tt_times_stage(t, TT_STAGE_RECOMPUTE);
    json_object_set_new(phases, "forward", json_real(tt_times_stage(t, TT_STAGE_FORWARD)));
    json_object_set_new(phases, "backward", json_real(back));
    json_object_set_new(phases, "optimizer", json_real(tt_times_stage(t, TT_STAGE_OPTIMIZER)));
    for (int p = 0; p < TT_NUM_PHASES; p++)
        json_object_set_new(profile, tt_phase_name((tt_phase)p), json_real(tt_times_phase(t, (tt_phase)p)));
    json_object_set_new(line, "phases", phases);
    json_object_set_new(line, "profile", profile);
}

static tt_status print_json(const options *o, const tt_engine *e, const outcome *out, const roofs *r)
{
    tt_memory plan;
    TT_TRY(plan_memory(o, e, &plan));
    const struct {
        const char *key;
        double value;
    } reals[] = {
        {"seconds_median", out->seconds[o->steps / 2]},
        {"tokens_per_second", (double)(o->tokens * o->rows * e->mesh->world_size) / out->seconds[o->steps / 2]},
        {"useful_gflop", out->useful * 1e-9},
        {"recomputed_gflop", out->recomputed * 1e-9},
        {"roof_fp32_gflops", r->fp32},
        {"roof_bf16_gflops", r->bf16},
        {"peak_rss_mib", (double)out->peak / 1048576},
        {"peak_rss_sum_mib", (double)out->peak_sum / 1048576},
        {"planned_mib", (double)plan.total / 1048576}};
    json_t *line =
        json_pack("{s:s, s:i, s:i, s:i, s:s, s:s, s:s, s:b}", "program", "tartan", "ranks", e->mesh->world_size,
                  "threads", e->kernel->threads, "ep_size", e->mesh->ep_size, "compute", o->bf16 ? "bf16" : "fp32",
                  "resident", o->resident_name, "moments", o->moments_name, "recompute", e->model.recompute);
    json_object_set_new(line, "losses", numbers(out->losses, o->warmup + o->steps));
    json_object_set_new(line, "grad_norms", numbers(out->grad_norms, o->warmup + o->steps));
    json_object_set_new(line, "seconds", numbers(out->seconds, o->steps));
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        json_object_set_new(line, reals[i].key, json_real(reals[i].value));
    if (out->profile.steps > 0) add_profile(line, &out->profile.mean);
    char *text = line ? json_dumps(line, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(line);
    TT_CHECK(text, TT_ENOMEM, "out of memory for the result");
    printf("%s\n", text);
    free(text);
    return TT_OK;
}

static tt_status print_memory(const options *o, const tt_engine *e, const outcome *out)
{
    tt_memory plan;
    TT_TRY(plan_memory(o, e, &plan));
    tt_shard_bytes held = tt_shards_bytes(e->shards);
    int64_t measured[] = {held.weights,
                          held.gradients,
                          held.moments,
                          held.units_peak,
                          tt_arena_peak(e->model.keep),
                          tt_arena_peak(e->model.work),
                          tt_arena_peak(e->kernel->scratch),
                          0};
    printf("memory of rank 0, MiB      planned   measured\n");
    for (int t = 0; t < TT_MEMORY_NUM_TERMS; t++)
        printf("  %-22s %9.1f  %9.1f\n", tt_memory_term_name((tt_memory_term)t), (double)plan.bytes[t] / 1048576,
               (double)measured[t] / 1048576);
    printf("  %-22s %9.1f  %9.1f (peak resident of the largest rank, program and libraries included)\n", "sum",
           (double)plan.total / 1048576, (double)out->peak / 1048576);
    return TT_OK;
}

static tt_status print_text(const options *o, const tt_engine *e, const outcome *out, const roofs *r)
{
    double seconds = out->seconds[o->steps / 2], roof = o->bf16 ? fmax(r->fp32, r->bf16) : r->fp32;
    double useful = out->useful / seconds * 1e-9, all = useful + out->recomputed / seconds * 1e-9;
    printf("%d rank(s) x %d thread(s), ep_size %d, %s products, %s weights, %s moments, %" PRId64 " layer(s), "
           "%" PRId64 " row(s) of %" PRId64 " tokens a rank, recompute %s\n",
           e->mesh->world_size, e->kernel->threads, e->mesh->ep_size, o->bf16 ? "bf16" : "fp32", o->resident_name,
           o->moments_name, e->config.num_layers, o->rows, o->tokens, e->model.recompute ? "on" : "off");
    printf("step %.3f s (median of %" PRId64 ", %.3f to %.3f): %.1f tokens/s; first loss %.5f, last %.5f\n", seconds,
           o->steps, out->seconds[0], out->seconds[o->steps - 1],
           (double)(o->tokens * o->rows * e->mesh->world_size) / seconds, out->losses[0],
           out->losses[o->warmup + o->steps - 1]);
    printf("%.1f useful GFLOP/s, %.1f %% of a plain product's; with recomputation %.1f, %.1f %%; "
           "plain products: fp32 %.1f, bf16 %.1f\n",
           useful, 100 * useful / roof, all, 100 * all / roof, r->fp32, r->bf16);
    if (out->profile.steps > 0) {
        char table[4096];
        tt_profile_report_text(&out->profile, table, sizeof table);
        printf("%s", table);
    }
    return print_memory(o, e, out);
}

/* --- a run ------------------------------------------------------------------------------------------------------- */

static tt_status measure(const options *o, tt_engine *e, const roofs *r, outcome *out)
{
    tt_profiler profiler = {0};
    e->model.recompute = !o->no_recompute;
    e->model.kept_layers = o->kept;
    if (o->profile) TT_TRY(tt_profiler_open(&profiler, e->mesh->comm, e->kernel));
    tt_status status = run_steps(o, e, &profiler, out);
    if (status == TT_OK) status = tt_profiler_report(&profiler, &out->profile);
    tt_profiler_close(&profiler);
    TT_TRY(status);
    TT_TRY(measure_peak(e, out));
    qsort(out->seconds, (size_t)o->steps, sizeof *out->seconds, ascending);
    if (e->mesh->rank > 0) return TT_OK;
    return o->json ? print_json(o, e, out, r) : print_text(o, e, out, r);
}

static tt_status bench(tt_comm *comm, const options *o)
{
    tt_engine e = {0};
    roofs r;
    int threads = tt_comm_threads_per_rank(comm, (int)o->threads);
    TT_TRY(measure_roofs(comm, threads, &r));
    json_t *config = o->model ? NULL : config_of(&o->shape);
    tt_engine_options eo = {.folder = o->model,
                            .config = config,
                            .init_seed = 1,
                            .mesh = {.ep_size = o->ep},
                            .threads = threads,
                            .resident = o->resident,
                            .compute = o->bf16 ? TT_BF16 : TT_F32,
                            .moments = o->moments,
                            .train = true,
                            .with_moments = true};
    size_t all = (size_t)(o->warmup + o->steps);
    outcome out = {.seconds = calloc(all, sizeof(double)),
                   .losses = calloc(all, sizeof(double)),
                   .grad_norms = calloc(all, sizeof(double))};
    tt_status status = out.seconds && out.losses && out.grad_norms ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory");
    if (status == TT_OK) status = tt_engine_open(comm, &eo, &e);
    if (status == TT_OK) status = measure(o, &e, &r, &out);
    free(out.seconds), free(out.losses), free(out.grad_norms);
    tt_engine_close(&e);
    json_decref(config);
    return status;
}

static tt_status read_dtype(const char *key, const char *text, tt_dtype *out)
{
    *out = !strcmp(text, "bf16") ? TT_BF16 : TT_F32;
    TT_CHECK(!strcmp(text, "bf16") || !strcmp(text, "f32"), TT_ECONFIG, "--%s is '%s'; expected f32 or bf16", key,
             text);
    return TT_OK;
}

/* The named shape, of which other arguments change single numbers. */
static tt_status find_shape(int argc, char **argv, shape *out)
{
    const char *name = "olmoe";
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--shape")) name = argv[i + 1];
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strcmp(shapes[i].name, name) != 0) continue;
        *out = shapes[i];
        return TT_OK;
    }
    return tt_error_set(TT_ECONFIG, "--shape is '%s'; expected olmoe or qwen3", name);
}

static tt_status parse(int argc, char **argv, options *o)
{
    const struct {
        const char *name;
        int64_t *number;
        const char **text;
        bool flag;
    } known[] = {{"--layers", &o->shape.layers, NULL, false},
                 {"--experts", &o->shape.experts, NULL, false},
                 {"--width", &o->shape.width, NULL, false},
                 {"--hidden", &o->shape.hidden, NULL, false},
                 {"--heads", &o->shape.heads, NULL, false},
                 {"--chosen", &o->shape.chosen, NULL, false},
                 {"--vocab", &o->shape.vocab, NULL, false},
                 {"--tokens", &o->tokens, NULL, false},
                 {"--rows", &o->rows, NULL, false},
                 {"--warmup", &o->warmup, NULL, false},
                 {"--steps", &o->steps, NULL, false},
                 {"--threads", &o->threads, NULL, false},
                 {"--ep_size", &o->ep, NULL, false},
                 {"--bf16", &o->bf16, NULL, true},
                 {"--no_recompute", &o->no_recompute, NULL, true},
                 {"--kept_layers", &o->kept, NULL, false},
                 {"--profile", &o->profile, NULL, true},
                 {"--json", &o->json, NULL, true},
                 {"--config", &o->config, NULL, true},
                 {"--shape", NULL, &o->shape.name, false},
                 {"--model", NULL, &o->model, false},
                 {"--resident", NULL, &o->resident_name, false},
                 {"--moments", NULL, &o->moments_name, false}};
    TT_TRY(find_shape(argc, argv, &o->shape));
    for (int i = 1; i < argc; i++) {
        size_t j = 0, n = sizeof known / sizeof *known;
        while (j < n && strcmp(argv[i], known[j].name) != 0) j++;
        TT_CHECK(j < n && (known[j].flag || i + 1 < argc), TT_ECONFIG,
                 "what is '%s'? See the head of bench/bench_step.c", argv[i]);
        if (known[j].text)
            *known[j].text = argv[++i];
        else
            *known[j].number = known[j].flag ? 1 : atoll(argv[++i]);
    }
    TT_CHECK(o->steps > 0 && o->warmup >= 0 && o->tokens > 1 && o->rows > 0 && o->kept >= 0, TT_ECONFIG,
             "--steps and --rows must be above 0, --tokens above 1, --warmup and --kept_layers not below 0");
    TT_TRY(read_dtype("resident", o->resident_name, &o->resident));
    return read_dtype("moments", o->moments_name, &o->moments);
}

int main(int argc, char **argv)
{
    options o = {
        .resident_name = "f32", .moments_name = "f32", .tokens = 1024, .rows = 1, .warmup = 2, .steps = 5, .ep = 1, .kept = 1};
    tt_comm *comm = NULL;
    tt_status status = parse(argc, argv, &o);
    if (status != TT_OK) return fprintf(stderr, "bench_step: %s\n", tt_error_text()), tt_status_exit(status);
    if (o.config) {
        json_t *config = config_of(&o.shape);
        json_dumpf(config, stdout, JSON_INDENT(2));
        json_decref(config);
        return puts("") < 0;
    }
    status = tt_comm_create(&comm);
    if (status == TT_OK) {
        status = bench(comm, &o);
        if (status != TT_OK) tt_comm_abort(comm, 1, tt_error_text());
        tt_comm_destroy(&comm);
    }
    return tt_status_exit(status);
}
