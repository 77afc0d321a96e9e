#include "base/checked.h"
#include "base/rng.h"
#include "train/certify_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- one run, on the mesh or on one process ---------------------------------------------------------------------- */

#define RELATIVE_TOLERANCE 1e-5 /* loss and norm; gradients: certify_gradients.c */

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

static tt_status open_run(tt_comm *comm, const tt_certify_options *o, tt_mesh_sizes mesh, const tt_ops *ops, tt_certify_run *r)
{
    tt_engine_options e = {
        .folder = o->model,
        .mesh = mesh,
        .ops = ops,
        .resident = TT_F32,
        .compute = TT_F32,
        .moments = TT_F32,
        .threads = o->threads,
        .train = true,
    };
    TT_TRY(tt_engine_open(comm, &e, &r->engine));
    tt_status status = tt_batch_file_rows(o->rows, r->engine.mesh->fsdp_size, r->engine.mesh->fsdp_rank,
                                          r->engine.config.vocab_size, &r->batch);
    if (status == TT_OK) status = allocate_choices(r);
    return tt_agree(tt_comm_world(comm), "certify-batch", status);
}

/* Loss, gradients, norm. replay: use the run's choices instead of recording them. */
static tt_status execute(tt_certify_run *r, bool replay)
{
    tt_model *m = &r->engine.model;
    const tt_model_config *c = &r->engine.config;
    double coef = c->output_router_logits && c->has_balance_loss ? c->balance_coef : 0;
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
    tt_shards_zero_gradients(m->shards, m->kernel);
    TT_TRY(tt_model_micro_step(m, &micro, &result));
    double nll = m->mesh->tp_rank == 0 ? result.sums.nll : 0;
    TT_TRY(tt_allreduce_f64(m->mesh->world, "certify-loss", &nll, 1));
    r->loss = nll / (double)r->targets + coef * result.balance_loss;
    return tt_gradient_norm(m, &r->norm);
}

/* --- the reference on one process ---------------------------------------------------------------------------------- */

/* Weights and gradients, in fp32, of the reference and of its other order of summation, both held until the comparison is
 * over: 16 bytes per parameter, and the activations beside them. */
static tt_status check_memory(const tt_certify_run *mesh_run)
{
    int64_t need = tt_params_total(&mesh_run->engine.table.params) * 4 * 4;
    int64_t free_bytes = (int64_t)sysconf(_SC_AVPHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    FILE *f = fopen("/proc/meminfo", "r"); /* AVPHYS leaves out what the page cache would give back */
    char line[256];
    long long kilobytes;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %lld kB", &kilobytes) == 1) free_bytes = tt_max_i64(free_bytes, kilobytes * 1024);
    if (f) fclose(f);
    TT_CHECK(need <= free_bytes, TT_ENOMEM,
             "certify: the reference on one process needs about %lld bytes, of which %lld are free; certify a model of the "
             "same family with fewer layers or experts",
             (long long)need, (long long)free_bytes);
    return TT_OK;
}

/* The joint batch with the mesh's choices, on a table of reference kernels. Rank 0 alone, in a world of its own. */
static tt_status open_reference(const tt_certify_options *o, const tt_ops *ops, tt_certify_run *r)
{
    TT_TRY(tt_comm_create_self(&r->self));
    return open_run(r->self, o, (tt_mesh_sizes){0}, ops, r);
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
    TT_TRY(open_reference(o, &tt_ops_alt, r));
    for (int i = 0; i < num_moe(&r->engine.config); i++)
        memcpy(r->choices[i], reference->choices[i],
               (size_t)(r->batch.T * r->engine.config.experts_per_token) * sizeof **r->choices);
    return execute(r, true);
}

/* --- together ------------------------------------------------------------------------------------------------------ */

static tt_status compare(const tt_certify_options *o, tt_certify_run *mesh_run, tt_certify_run *reference,
                         tt_certify_run *alternative, tt_certify_report *report)
{
    tt_group *world = mesh_run->engine.mesh->world;
    bool root = mesh_run->engine.mesh->rank == 0;
    tt_status status = root ? check_memory(mesh_run) : TT_OK;
    if (root && status == TT_OK) status = open_reference(o, &tt_ops_ref, reference);
    TT_TRY(tt_agree(world, "certify-reference", status));
    TT_TRY(tt_certify_gather_choices(mesh_run, reference));
    /* How long one thread of plain C takes for the whole model is no sign of a fault. */
    double timeout = tt_comm_timeout(mesh_run->engine.mesh->comm);
    tt_comm_set_timeout(mesh_run->engine.mesh->comm, 0);
    if (root) status = run_reference(reference, report);
    if (root && status == TT_OK) status = run_alternative(o, reference, alternative);
    TT_TRY(tt_agree(world, "certify-reference", status));
    tt_comm_set_timeout(mesh_run->engine.mesh->comm, timeout);
    return tt_certify_compare_gradients(mesh_run, reference, alternative, report);
}

/* Verdict at rank 0, then known to all. */
static tt_status conclude(const tt_certify_run *mesh_run, const tt_certify_run *reference, tt_certify_report *r)
{
    const tt_mesh *mesh = mesh_run->engine.mesh;
    r->targets = mesh_run->targets;
    r->loss[0] = mesh_run->loss, r->loss[1] = reference->loss;
    r->norm[0] = mesh_run->norm, r->norm[1] = reference->norm;
    r->loss_good = fabs(r->loss[0] - r->loss[1]) <= RELATIVE_TOLERANCE * fabs(r->loss[1]);
    r->norm_good = fabs(r->norm[0] - r->norm[1]) <= RELATIVE_TOLERANCE * r->norm[1];
    r->tokens = mesh->tp_rank == 0 ? mesh_run->batch.T : 0;
    TT_TRY(tt_allreduce_i64(mesh->world, "certify-tokens", &r->tokens, 1));
    int32_t passed = mesh->rank == 0 && r->loss_good && r->norm_good && r->bad_rows == 0 && r->wrong_choices == 0;
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
    if (status == TT_OK) status = open_run(comm, o, o->mesh, NULL, &mesh_run);
    if (status == TT_OK && o->save_outputs) {
        mesh_run.logits = malloc((size_t)(mesh_run.batch.T * mesh_run.engine.config.vocab_size) * sizeof(float) + 1);
        if (!mesh_run.logits) status = tt_error_set(TT_ENOMEM, "certify: out of memory for the logits");
        status = tt_agree(mesh_run.engine.mesh->world, "certify-logits", status);
    }
    if (status == TT_OK) status = execute(&mesh_run, false);
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
    for (int64_t i = 0; i < r->num_rows; i++) free(r->names[i]);
    free(r->names);
    free(r->rows);
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
