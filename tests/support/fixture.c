#include "support/fixture.h"
#include "base/checked.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    const fixture_run *run;
    tt_status (*body)(fixture *, void *);
    void *arg;
} job;

static tt_status open_engine(fixture *f)
{
    const fixture_run *r = f->run;
    char model[1024], path[1024];
    snprintf(f->folder, sizeof f->folder, "tests/fixtures/%s", r->id);
    snprintf(model, sizeof model, "tests/fixtures/%s%s", r->model ? r->model : r->id, r->model ? "" : "/model");
    tt_dtype type = r->ops->real;
    tt_engine_options o = {
        .folder = model,
        .mesh = {.ep_size = r->ep, .tp_size = r->tp, .dispatch = r->dispatch},
        .ops = r->ops,
        .resident = type,
        .compute = type,
        .moments = type,
        .threads = 1,
        .train = true,
        .with_moments = true,
    };
    TT_TRY(tt_engine_open(f->comm, &o, &f->engine));
    if (r->as_saved) { /* the other dialect must describe the same model */
        snprintf(path, sizeof path, "%s/%s", f->folder, r->as_saved);
        json_t *object;
        TT_TRY(tt_json_load(path, 1 << 20, &object));
        tt_model_config_free(&f->engine.config);
        tt_status status = tt_model_config_read(object, path, &f->engine.config);
        json_decref(object);
        TT_TRY(status);
    }
    f->engine.model.recompute = r->recompute;
    f->engine.model.kept_layers = 0; /* all of them or none */
    f->engine.model.booked_pairs = r->booked;
    if (r->loss_chunk) f->engine.model.loss_chunk = r->loss_chunk;
    return TT_OK;
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    const job *j = arg;
    fixture f = {.run = j->run, .comm = comm};
    tt_comm_set_timeout(comm, 60);
    tt_status status = open_engine(&f);
    if (status == TT_OK) status = j->body(&f, j->arg);
    tt_engine_close(&f.engine);
    return status;
}

tt_status fixture_on_mesh(const fixture_run *run, tt_status (*body)(fixture *f, void *arg), void *arg)
{
    job j = {run, body, arg};
    return tt_comm_run_threads(run->world, rank_main, &j);
}

tt_status fixture_json(const fixture *f, const char *name, json_t **out)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", f->folder, name);
    return tt_json_load(path, 64 << 20, out);
}

tt_status fixture_micros(const fixture *f, const json_t *batch, const char *where, tt_batch **micros, int *num)
{
    const tt_mesh *mesh = f->engine.mesh;
    int64_t V = f->engine.config.vocab_size;
    tt_batch_file rows;
    TT_TRY(tt_batch_file_read(batch, where, &rows));
    *num = f->run->row_micros ? (int)tt_div_up(rows.num_rows, mesh->fsdp_size) : 1;
    *micros = calloc((size_t)*num, sizeof **micros);
    tt_status status = TT_OK;
    if (!f->run->row_micros) status = tt_batch_file_rows(&rows, mesh->fsdp_size, mesh->fsdp_rank, V, *micros);
    for (int i = 0; i < *num && f->run->row_micros && status == TT_OK; i++) {
        int64_t row = (int64_t)i * mesh->fsdp_size + mesh->fsdp_rank;
        if (row < rows.num_rows) status = tt_batch_add(&(*micros)[i], &rows.rows[row], (int32_t)row, V);
    }
    tt_batch_file_free(&rows);
    return status;
}

void fixture_free_micros(tt_batch **micros, int num)
{
    for (int i = 0; i < num; i++) tt_batch_free(&(*micros)[i]);
    free(*micros);
    *micros = NULL;
}

tt_status fixture_gradients(fixture *f, tt_batch *micros, int num, double balance, fixture_sums *out)
{
    tt_model *m = &f->engine.model;
    *out = (fixture_sums){0};
    TT_TRY(tt_count_targets(f->engine.mesh, micros, num, &out->targets));
    tt_shards_zero_gradients(m->shards, m->kernel);
    for (int i = 0; i < num; i++) {
        tt_micro micro = {
            .batch = &micros[i],
            .backward = true,
            .scale = 1 / (double)out->targets,
            .balance = balance,
        };
        tt_micro_result r;
        TT_TRY(tt_model_micro_step(m, &micro, &r));
        if (f->engine.mesh->tp_rank == 0) out->nll += r.sums.nll;
        out->balance += r.balance_loss;
    }
    return tt_allreduce_f64(f->engine.mesh->world, "test-nll", &out->nll, 1);
}

tt_status fixture_step(fixture *f, const json_t *train, int k, tt_step_options o, tt_step_result *out)
{
    const json_t *step = json_array_get(json_object_get(train, "steps"), (size_t)k);
    const json_t *list = json_object_get(step, "micro_batches");
    tt_batch all[16];
    int total = 0;
    tt_status status = TT_OK;
    for (size_t i = 0; i < json_array_size(list) && status == TT_OK; i++) {
        tt_batch *micros;
        int num;
        status = fixture_micros(f, json_array_get(list, i), "train.json", &micros, &num);
        if (status != TT_OK) break;
        for (int j = 0; j < num; j++) all[total++] = micros[j];
        free(micros);
    }
    o.step = k + 1;
    if (status == TT_OK) status = tt_train_step(&f->engine.model, all, total, &o, out);
    for (int i = 0; i < total; i++) tt_batch_free(&all[i]);
    return status;
}

tt_status fixture_compare(const char *what, const float *got, const float *expected, int64_t n, double tolerance)
{
    for (int64_t i = 0; i < n; i++)
        TT_CHECK(fabs((double)got[i] - expected[i]) <= tolerance, TT_EVERDICT,
                 "%s: element %lld is %.9g, expected %.9g (tolerance %g)", what, (long long)i, got[i], expected[i],
                 tolerance);
    return TT_OK;
}

/* The piece's elements of tensor `name` of expected, and ours, both as float. */
static tt_status both(const fixture *f, const tt_st_folder *expected, const tt_piece *piece, const char *prefix,
                      tt_shard_part part, float *theirs, float *ours)
{
    const tt_param *p = &tt_shards_params(f->engine.shards)->at[piece->param];
    char name[300];
    snprintf(name, sizeof name, "%s%s", prefix, p->name);
    const tt_st_tensor *t = tt_st_find(expected, name);
    TT_CHECK(t, TT_EVERDICT, "the fixture has no tensor '%s'", name);
    TT_TRY(tt_st_read(expected, t, piece->first, piece->count, TT_F32, theirs));
    tt_mat m = tt_shards_view(f->engine.shards, piece, part);
    tt_convert(ours, TT_F32, m.data, m.dtype, piece->count);
    return TT_OK;
}

static int64_t longest(const tt_piece *pieces, int64_t num)
{
    int64_t most = 1;
    for (int64_t i = 0; i < num; i++) most = tt_max_i64(most, pieces[i].count);
    return most;
}

/* Per parameter: squares of the difference, squares of the expected values, largest difference. */
static tt_status add_pieces(fixture *f, const tt_st_folder *expected, double *sums, double *worst)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(f->engine.shards, &num);
    float *theirs = malloc((size_t)longest(pieces, num) * 2 * sizeof *theirs), *ours = theirs + longest(pieces, num);
    tt_status status = TT_OK;
    for (int64_t i = 0; i < num && status == TT_OK; i++) {
        int64_t p = pieces[i].param;
        if (!tt_shards_params(f->engine.shards)->at[p].trained) continue;
        status = both(f, expected, &pieces[i], "grad.", TT_PART_GRADIENT, theirs, ours);
        for (int64_t j = 0; j < pieces[i].count && status == TT_OK; j++) {
            double d = (double)ours[j] - theirs[j];
            sums[2 * p] += d * d;
            sums[2 * p + 1] += (double)theirs[j] * theirs[j];
            if (!(fabs(d) <= worst[p])) worst[p] = fabs(d);
        }
    }
    free(theirs);
    return status;
}

tt_status fixture_compare_gradients(fixture *f, const tt_st_folder *expected, double tolerance)
{
    const tt_params *params = tt_shards_params(f->engine.shards);
    double *sums = calloc((size_t)params->num * 3, sizeof *sums), *worst = sums + 2 * params->num, largest = 0;
    tt_status status = add_pieces(f, expected, sums, worst);
    if (status == TT_OK) status = tt_allreduce_f64(f->engine.mesh->world, "test-sums", sums, 2 * params->num);
    for (int64_t p = 0; p < params->num; p++) largest = fmax(largest, sqrt(sums[2 * p + 1]));
    for (int64_t p = 0; p < params->num && status == TT_OK; p++) {
        double difference = sqrt(sums[2 * p]), norm = sqrt(sums[2 * p + 1]);
        bool tiny = norm <= 1e-6 * largest;
        bool good = tiny ? worst[p] <= 1e-6 : difference <= tolerance * norm;
        if (!good)
            status = tt_error_set(TT_EVERDICT, "gradient of '%s': difference %g of norm %g (relative %g, largest element %g)",
                                  params->at[p].name, difference, norm, difference / norm, worst[p]);
    }
    free(sums);
    return status;
}

static bool listed(const json_t *indices, int64_t i)
{
    for (size_t j = 0; j < json_array_size(indices); j++)
        if (json_integer_value(json_array_get(indices, j)) == i) return true;
    return false;
}

tt_status fixture_compare_weights(fixture *f, const tt_st_folder *expected, double tolerance, const json_t *skip)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(f->engine.shards, &num);
    float *theirs = malloc((size_t)longest(pieces, num) * 2 * sizeof *theirs), *ours = theirs + longest(pieces, num);
    tt_status status = TT_OK;
    for (int64_t i = 0; i < num && status == TT_OK; i++) {
        const char *name = tt_shards_params(f->engine.shards)->at[pieces[i].param].name;
        const json_t *shaky = json_object_get(skip, name);
        status = both(f, expected, &pieces[i], "", TT_PART_WEIGHT, theirs, ours);
        for (int64_t j = 0; j < pieces[i].count && status == TT_OK; j++)
            if (!(fabs((double)ours[j] - theirs[j]) <= tolerance) && !listed(shaky, pieces[i].first + j))
                status = tt_error_set(TT_EVERDICT, "weight '%s'[%lld] is %.9g, expected %.9g", name,
                                      (long long)(pieces[i].first + j), ours[j], theirs[j]);
    }
    free(theirs);
    return status;
}
