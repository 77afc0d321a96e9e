#include "base/checked.h"
#include "base/log.h"
#include "base/rng.h"
#include "train/certify_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- one run, on the mesh or on one process ---------------------------------------------------------------------- */

static int num_moe(const tt_model_config *c)
{
    return tt_model_moe_index(c, (int)c->num_layers);
}

static tt_status allocate_choices(tt_certify_run *r)
{
    const tt_model_config *c = &r->engine.config;
    int n = num_moe(c);
    r->choices = calloc((size_t)n + 1, sizeof *r->choices);
    TT_CHECK(r->choices, TT_ENOMEM, "certify: out of memory");
    for (int i = 0; i < n; i++) {
        r->choices[i] = malloc((size_t)(r->batch.T * c->experts_per_token) * sizeof **r->choices + 1);
        TT_CHECK(r->choices[i], TT_ENOMEM, "certify: out of memory");
    }
    return TT_OK;
}

static void close_run(tt_certify_run *r)
{
    for (int i = 0; r->choices && i < num_moe(&r->engine.config); i++) free(r->choices[i]);
    free(r->choices);
    free(r->logits);
    free(r->values);
    tt_batch_free(&r->batch);
    tt_engine_close(&r->engine);
    tt_comm_destroy(&r->self);
    *r = (tt_certify_run){0};
}

static tt_status keep_logits(void *user, int64_t first, tt_mat logits)
{
    float *to = (float *)user + first * logits.cols;
    memcpy(to, logits.data, (size_t)(logits.rows * logits.cols) * sizeof *to);
    return TT_OK;
}

/* Room for the residual stream between the parts of the model, and its gradient. */
static tt_status allocate_streams(tt_certify_run *r)
{
    const tt_model_config *c = &r->engine.config;
    int64_t n = r->batch.T * c->hidden_size * (c->num_layers + 1);
    if (r->engine.mesh->tp_rank > 0) return TT_OK; /* the first of those that share a batch speaks for all */
    r->values = malloc((size_t)n * 2 * sizeof *r->values + 1);
    TT_CHECK(r->values, TT_ENOMEM, "certify: out of memory for the stream between layers, %lld bytes", (long long)n * 8);
    r->gradients = r->values + n;
    return TT_OK;
}

static void keep_stream(void *user, const char *what, int layer, tt_mat m)
{
    tt_certify_run *r = user;
    int64_t n = m.rows * m.cols;
    float *to = NULL;
    if (!strcmp(what, "embed")) to = r->values;
    else if (!strcmp(what, "block")) to = r->values + (layer + 1) * n;
    else if (!strcmp(what, "embed_gradient")) to = r->gradients;
    else if (!strcmp(what, "block_gradient")) to = r->gradients + (layer + 1) * n;
    if (to) memcpy(to, m.data, (size_t)n * sizeof *to);
}

static tt_engine_options engine_options(const tt_certify_options *o, tt_mesh_sizes mesh, const tt_ops *ops)
{
    return (tt_engine_options){
        .folder = o->model,
        .mesh = mesh,
        .ops = ops,
        .resident = TT_F32,
        .compute = TT_F32,
        .moments = TT_F32,
        .threads = o->threads,
        .train = true,
    };
}

static tt_status open_run(tt_comm *comm, const tt_certify_options *o, const tt_engine_options *e, tt_certify_run *r)
{
    TT_TRY(tt_engine_open(comm, e, &r->engine));
    tt_status status = tt_batch_file_rows(o->rows, r->engine.mesh->fsdp_size, r->engine.mesh->fsdp_rank,
                                          r->engine.config.vocab_size, &r->batch);
    if (status == TT_OK) status = allocate_choices(r);
    return tt_agree(tt_comm_world(comm), "certify-batch", status);
}

double tt_certify_balance(const tt_model_config *c)
{
    return c->output_router_logits && c->has_balance_loss ? c->balance_coef : 0;
}

/* Loss, gradients, norm. replay: use the run's choices instead of recording them. */
static tt_status execute(tt_certify_run *r, bool replay)
{
    tt_model *m = &r->engine.model;
    double coef = tt_certify_balance(&r->engine.config);
    tt_micro_result result;
    TT_TRY(tt_count_targets(m->mesh, &r->batch, 1, &r->targets));
    if (r->targets == 0) {
        tt_status none = tt_error_set(TT_EDATA, "certify: the batch has no supervised target; give labels");
        return tt_agree(m->mesh->world, "certify-targets", none);
    }
    tt_micro micro = {
        .batch = &r->batch,
        .backward = true,
        .scale = 1 / (double)r->targets,
        .balance = coef,
        .replay = replay ? (const int32_t *const *)r->choices : NULL,
        .record = replay ? NULL : r->choices,
        .logits = r->logits ? keep_logits : NULL,
        .logits_user = r->logits,
    };
    m->tap = r->values ? keep_stream : m->tap;
    m->tap_user = r->values ? r : m->tap_user;
    tt_shards_zero_gradients(m->shards, m->kernel);
    TT_TRY(tt_model_micro_step(m, &micro, &result));
    double nll = m->mesh->tp_rank == 0 ? result.sums.nll : 0;
    TT_TRY(tt_allreduce_f64(m->mesh->world, "certify-loss", &nll, 1));
    r->loss = nll / (double)r->targets + coef * result.balance_loss;
    return tt_gradient_norm(m, &r->norm);
}

/* The mesh's run, with the bytes that its exchange sends. */
static tt_status execute_on_mesh(tt_certify_run *r, tt_certify_report *report)
{
    const tt_model_config *c = &r->engine.config;
    int n = num_moe(c);
    int64_t *bytes = calloc(2 * (size_t)n + 1, sizeof *bytes);
    report->traffic = calloc((size_t)n + 1, sizeof *report->traffic);
    tt_status status = bytes && report->traffic ? TT_OK : tt_error_set(TT_ENOMEM, "certify: out of memory");
    status = tt_agree(r->engine.mesh->world, "certify-traffic", status);
    r->engine.model.expert_bytes = bytes;
    if (status == TT_OK) status = execute(r, false);
    r->engine.model.expert_bytes = NULL;
    if (status == TT_OK) status = tt_allreduce_i64(r->engine.mesh->world, "certify-traffic", bytes, 2 * n);
    for (int i = 0; i < c->num_layers && status == TT_OK; i++) {
        if (!c->is_moe[i]) continue;
        const int64_t *sent = bytes + 2 * report->num_moe;
        report->traffic[report->num_moe++] = (tt_certify_traffic){i, sent[0], sent[1]};
    }
    free(bytes);
    return status;
}

/* --- the reference on one process ---------------------------------------------------------------------------------- */

tt_status tt_certify_open_reference(const tt_certify_options *o, const tt_ops *ops, bool bare, tt_certify_run *r)
{
    tt_engine_options e = engine_options(o, (tt_mesh_sizes){0}, ops);
    e.bare = bare;
    TT_TRY(tt_comm_create_self(&r->self));
    TT_TRY(open_run(r->self, o, &e, r));
    r->engine.model.recompute = !bare; /* of one part everything can be kept */
    return TT_OK;
}

tt_status tt_certify_hold(const tt_certify_options *o, tt_certify_run *r, const int *units, int num)
{
    tt_engine_options e = engine_options(o, (tt_mesh_sizes){0}, r->engine.kernel->ops);
    return tt_engine_hold(&r->engine, &e, units, num);
}

int64_t tt_certify_bytes(const tt_certify_run *r)
{
    tt_shard_bytes b = tt_shards_bytes(r->engine.shards);
    const tt_model *m = &r->engine.model;
    return b.weights + b.gradients + b.units_peak +
           tt_arena_peak(m->keep) + tt_arena_peak(m->work) + tt_arena_peak(m->kernel->scratch);
}

static tt_status run_reference(tt_certify_run *r, tt_certify_report *report)
{
    tt_certify_judge *judge = NULL;
    tt_status status = tt_certify_judge_choices(r, report, &judge);
    if (status == TT_OK) status = execute(r, true);
    tt_certify_judge_end(&judge);
    return status;
}

static tt_status run_alternative(const tt_certify_options *o, const tt_certify_run *reference, tt_certify_run *r)
{
    TT_TRY(tt_certify_open_reference(o, &tt_ops_alt, false, r));
    for (int i = 0; i < num_moe(&r->engine.config); i++)
        memcpy(r->choices[i], reference->choices[i],
               (size_t)(r->batch.T * r->engine.config.experts_per_token) * sizeof **r->choices);
    return execute(r, true);
}

/* --- whole, or by layer -------------------------------------------------------------------------------------------- */

static int64_t free_memory(void)
{
    int64_t bytes = (int64_t)sysconf(_SC_AVPHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/proc/meminfo", "r"); /* AVPHYS leaves out what the page cache would give back */
    char line[256];
    long long kilobytes;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kilobytes) == 1) bytes = tt_max_i64(bytes, kilobytes * 1024);
    if (f) fclose(f);
    return bytes;
}

/* Parameters that the largest part holds. */
static int64_t largest_part(const tt_engine *e)
{
    int64_t most = 0;
    for (int part = 0; part <= e->config.num_layers + 1; part++) {
        int units[2], num = tt_model_part_units(&e->model, part, units);
        int64_t count = 0;
        for (int i = 0; i < num; i++) {
            const tt_unit *u = &e->table.params.units[units[i]];
            for (int64_t j = u->first; j < u->first + u->count; j++) count += e->table.params.at[j].count;
        }
        most = tt_max_i64(most, count);
    }
    return most;
}

/* Weights and gradients, in fp32, of the reference and of its other order of summation, both held until they are compared:
 * 16 bytes per parameter, and the activations beside them. Rank 0 alone. */
static tt_status weigh(const tt_certify_options *o, const tt_engine *e, tt_certify_report *r)
{
    int64_t part = largest_part(e) * 4 * 4;
    r->whole_bytes = tt_params_total(&e->table.params) * 4 * 4;
    r->free_bytes = o->memory ? o->memory : free_memory();
    r->by_layer = o->by_layer || r->whole_bytes > r->free_bytes;
    TT_CHECK(!r->by_layer || part <= r->free_bytes, TT_ENOMEM,
             "certify: the reference on one process needs about %lld bytes even for one layer at a time, of which %lld are "
             "free; certify a model of the same family with fewer experts",
             (long long)part, (long long)r->free_bytes);
    if (r->by_layer && !o->by_layer)
        tt_info("certify: layer by layer, since the whole reference takes about %lld bytes, of which %lld are free",
                (long long)r->whole_bytes, (long long)r->free_bytes);
    return TT_OK;
}

/* Before the mesh runs, which has to keep its streams. */
static tt_status choose_mode(const tt_certify_options *o, tt_certify_run *mesh_run, tt_certify_report *r)
{
    const tt_mesh *mesh = mesh_run->engine.mesh;
    TT_TRY(tt_agree(mesh->world, "certify-memory", mesh->rank == 0 ? weigh(o, &mesh_run->engine, r) : TT_OK));
    TT_TRY(tt_broadcast(mesh->world, "certify-mode", 0, &r->by_layer, sizeof r->by_layer));
    return tt_agree(mesh->world, "certify-streams", r->by_layer ? allocate_streams(mesh_run) : TT_OK);
}

/* --- together ------------------------------------------------------------------------------------------------------ */

static tt_status compare_gradients(const tt_certify_run *mesh_run, const tt_certify_run *reference,
                                   const tt_certify_run *alternative, tt_certify_report *report)
{
    tt_certify_comparison *c;
    tt_status status = tt_certify_comparison_open(mesh_run, report, &c);
    for (int u = 0; u < mesh_run->engine.table.params.num_units && status == TT_OK; u++)
        status = tt_certify_compare_unit(c, u, reference, alternative);
    if (status == TT_OK) tt_certify_judge_rows(report);
    tt_certify_comparison_close(&c);
    return status;
}

static tt_status compare_whole(const tt_certify_options *o, tt_certify_run *mesh_run, tt_certify_run *reference,
                               tt_certify_run *alternative, tt_certify_report *report)
{
    tt_group *world = mesh_run->engine.mesh->world;
    bool root = mesh_run->engine.mesh->rank == 0;
    tt_status status = root ? tt_certify_open_reference(o, &tt_ops_ref, false, reference) : TT_OK;
    TT_TRY(tt_agree(world, "certify-reference", status));
    TT_TRY(tt_certify_gather_choices(mesh_run, reference));
    if (root) status = run_reference(reference, report);
    if (root && status == TT_OK) status = run_alternative(o, reference, alternative);
    TT_TRY(tt_agree(world, "certify-reference", status));
    if (root) report->reference_bytes = tt_certify_bytes(reference) + tt_certify_bytes(alternative);
    return compare_gradients(mesh_run, reference, alternative, report);
}

static tt_status compare(const tt_certify_options *o, tt_certify_run *mesh_run, tt_certify_run *reference,
                         tt_certify_run *alternative, tt_certify_report *report)
{
    tt_comm *comm = mesh_run->engine.mesh->comm;
    /* How long one thread of plain C takes for the whole model is no sign of a fault. */
    double timeout = tt_comm_timeout(comm);
    tt_comm_set_timeout(comm, 0);
    TT_TRY((report->by_layer ? tt_certify_by_layer : compare_whole)(o, mesh_run, reference, alternative, report));
    tt_comm_set_timeout(comm, timeout);
    return TT_OK;
}

/* Verdict at rank 0, then known to all. */
static tt_status conclude(const tt_certify_run *mesh_run, const tt_certify_run *reference, tt_certify_report *r)
{
    const tt_mesh *mesh = mesh_run->engine.mesh;
    r->targets = mesh_run->targets;
    r->loss[0] = mesh_run->loss, r->loss[1] = reference->loss;
    r->norm[0] = mesh_run->norm, r->norm[1] = reference->norm;
    r->loss_good = fabs(r->loss[0] - r->loss[1]) <= TT_CERTIFY_TOLERANCE * fabs(r->loss[1]);
    r->norm_good = fabs(r->norm[0] - r->norm[1]) <= TT_CERTIFY_TOLERANCE * r->norm[1];
    r->tokens = mesh->tp_rank == 0 ? mesh_run->batch.T : 0;
    TT_TRY(tt_allreduce_i64(mesh->world, "certify-tokens", &r->tokens, 1));
    bool good = r->loss_good && r->norm_good && r->bad_rows == 0 && r->bad_streams == 0 && r->wrong_choices == 0;
    int32_t passed = mesh->rank == 0 && good;
    TT_TRY(tt_broadcast(mesh->world, "certify-verdict", 0, &passed, sizeof passed));
    r->passed = passed;
    return TT_OK;
}

tt_status tt_certify(tt_comm *comm, const tt_certify_options *o, tt_certify_report *report)
{
    tt_certify_run mesh_run = {0}, reference = {0}, alternative = {0};
    *report = (tt_certify_report){0};
    tt_status status = o->save_outputs ? tt_save_file_check(o->save_outputs, o->overwrite) : TT_OK;
    status = tt_agree(tt_comm_world(comm), "certify-outputs", status);
    tt_engine_options on_mesh = engine_options(o, o->mesh, NULL);
    if (status == TT_OK) status = open_run(comm, o, &on_mesh, &mesh_run);
    if (status == TT_OK) tt_model_config_warn(&mesh_run.engine.config);
    if (status == TT_OK) status = choose_mode(o, &mesh_run, report);
    if (status == TT_OK && o->save_outputs) {
        mesh_run.logits = malloc((size_t)(mesh_run.batch.T * mesh_run.engine.config.vocab_size) * sizeof(float) + 1);
        if (!mesh_run.logits) status = tt_error_set(TT_ENOMEM, "certify: out of memory for the logits");
        status = tt_agree(mesh_run.engine.mesh->world, "certify-logits", status);
    }
    if (status == TT_OK) status = execute_on_mesh(&mesh_run, report);
    if (status == TT_OK && o->save_outputs) status = tt_certify_save(o->save_outputs, o->overwrite, &mesh_run, o->rows);
    if (status == TT_OK) status = compare(o, &mesh_run, &reference, &alternative, report);
    if (status == TT_OK) status = conclude(&mesh_run, &reference, report);
    close_run(&alternative);
    close_run(&reference);
    close_run(&mesh_run);
    if (status != TT_OK) tt_certify_report_free(report);
    return status;
}

void tt_certify_report_free(tt_certify_report *r)
{
    for (int64_t i = 0; i < r->num_rows + r->num_streams; i++) free(r->names[i]);
    free(r->names);
    free(r->rows);
    free(r->streams);
    free(r->traffic);
    *r = (tt_certify_report){0};
}

/* --- rows when none are given -------------------------------------------------------------------------------------- */

tt_status tt_certify_default_rows(const char *model, int fsdp_size, tt_batch_file *out)
{
    enum { LONGEST = 16 };
    tt_model_config config;
    TT_TRY(tt_model_config_load(model, &config));
    int64_t V = config.vocab_size, num = fsdp_size + 1;
    tt_model_config_free(&config);
    *out = (tt_batch_file){.num_rows = num, .width = LONGEST};
    out->rows = calloc((size_t)num, sizeof *out->rows);
    out->numbers = malloc((size_t)(num * LONGEST) * sizeof *out->numbers);
    if (!out->rows || !out->numbers) {
        tt_batch_file_free(out);
        return tt_error_set(TT_ENOMEM, "certify: out of memory");
    }
    uint64_t key = tt_rng_key(0, "certify rows");
    for (int64_t r = 0; r < num; r++) {
        /* Lengths that differ: 16, 13, 10, 7, 16, ... so that ranks hold unequal numbers of tokens. */
        out->rows[r] = (tt_batch_row){.length = LONGEST - 3 * (r % 4), .ids = out->numbers + r * LONGEST};
        for (int64_t c = 0; c < LONGEST; c++) {
            uint32_t word[4];
            tt_rng_block(key, 0, (uint64_t)(r * LONGEST + c), word);
            out->numbers[r * LONGEST + c] = (int32_t)(word[0] % (uint32_t)V);
        }
    }
    return TT_OK;
}
