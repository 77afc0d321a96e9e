/* Losses and gradients that are not finite: the weights of one token are spoiled, and that token stands in one row. The
 * message names that row, on every mesh; nothing is updated; and a run that skips such steps goes on. */
#include "support/test.h"

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "train/nonfinite.h"
#include "train/sft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct mesh {
    int world, tp, ep;
} mesh;

static const mesh meshes[] = {{1, 1, 1}, {2, 1, 1}, {2, 1, 2}, {2, 2, 2}, {4, 1, 2}, {4, 2, 4}, {4, 4, 1}};
enum { NUM_MESHES = sizeof meshes / sizeof *meshes };

/* --- one step ------------------------------------------------------------------------------------------------- */

enum { ROWS = 20, LENGTH = 6, MICROS = 2, BAD_TOKEN = 99, BAD_ROW = 7 };

typedef struct job {
    mesh mesh;
    const tt_ops *ops;
    bool bf16; /* weights */
    float value; /* of the embedding of BAD_TOKEN */
    int column;  /* where it stands in BAD_ROW */
    tt_nonfinite nonfinite;
    char warning[2048]; /* of rank 0 */
    int warnings;
    tt_step_result bad, good;
} job;

static const char config[] =
    "{\"model_type\": \"olmoe\", \"vocab_size\": 100, \"hidden_size\": 16, \"num_hidden_layers\": 2,"
    "\"num_attention_heads\": 2, \"num_experts\": 8, \"num_experts_per_tok\": 2, \"intermediate_size\": 8}";

static void spoil(tt_engine *e, float value)
{
    int64_t num, D = e->config.hidden_size;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        tt_mat w = tt_shards_view(e->shards, &pieces[i], TT_PART_WEIGHT);
        if (pieces[i].param != e->table.embedding) continue;
        for (int64_t k = 0; k < pieces[i].count; k++)
            if ((pieces[i].first + k) / D == BAD_TOKEN)
                tt_convert((char *)w.data + (size_t)k * tt_dtype_size(w.dtype), w.dtype, &value, TT_F32, 1);
    }
}

/* Row r belongs to batch r mod fsdp_size. */
static tt_status fill(const tt_engine *e, const job *j, bool with_bad, tt_batch *micros)
{
    for (int r = e->mesh->fsdp_rank; r < ROWS; r += e->mesh->fsdp_size) {
        int32_t ids[LENGTH];
        for (int c = 0; c < LENGTH; c++) ids[c] = (7 * r + 3 * c) % 90;
        if (r == BAD_ROW && with_bad) ids[j->column] = BAD_TOKEN;
        tt_batch_row row = {.length = LENGTH, .ids = ids};
        TT_TRY(tt_batch_add(&micros[r / e->mesh->fsdp_size % MICROS], &row, r, e->config.vocab_size));
    }
    return TT_OK;
}

static tt_status step(tt_engine *e, const job *j, bool with_bad, tt_step_options *o, tt_step_result *r)
{
    tt_batch micros[MICROS] = {{0}, {0}};
    tt_status status = fill(e, j, with_bad, micros);
    o->step++;
    if (status == TT_OK) status = tt_train_step(&e->model, micros, MICROS, o, r);
    for (int i = 0; i < MICROS; i++) tt_batch_free(&micros[i]);
    return status;
}

/* Weights and moments of this rank, end to end. */
static int64_t state_of(const tt_engine *e, float *out)
{
    int64_t num, n = 0;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    static const tt_shard_part parts[] = {TT_PART_WEIGHT, TT_PART_MOMENT1, TT_PART_MOMENT2};
    for (int64_t i = 0; i < num; i++)
        for (int k = 0; k < 3; k++, n += pieces[i].count) {
            tt_mat part = tt_shards_view(e->shards, &pieces[i], parts[k]);
            if (out) tt_convert(out + n, TT_F32, part.data, part.dtype, pieces[i].count);
        }
    return n;
}

static void listen(void *user, tt_log_level level, const char *text)
{
    job *j = user;
    if (level != TT_LOG_WARN) return;
    snprintf(j->warning, sizeof j->warning, "%s", text);
    j->warnings++;
}

static tt_status steps(tt_engine *e, job *j)
{
    tt_step_options o = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .nonfinite = j->nonfinite};
    tt_step_result r;
    TT_TRY(step(e, j, false, &o, &r)); /* moments that are not zero */
    spoil(e, j->value);
    int64_t counts[2 * 8] = {0}, counted = 0, n = state_of(e, NULL);
    float *before = malloc((size_t)n * 2 * sizeof *before), *after = before + n;
    state_of(e, before);
    e->model.expert_counts = counts;
    tt_status status = step(e, j, true, &o, &r);
    e->model.expert_counts = NULL;
    state_of(e, after);
    if (e->mesh->rank == 0) j->bad = r;
    for (int i = 0; i < 2 * 8; i++) counted += counts[i];
    if (status == TT_OK && memcmp(before, after, (size_t)n * sizeof *before) != 0)
        status = tt_error_set(TT_EVERDICT, "rank %d: a skipped step has changed weights or moments", e->mesh->rank);
    free(before);
    TT_TRY(status);
    int64_t expected = e->mesh->tp_rank == 0 ? ROWS / e->mesh->fsdp_size * LENGTH * 2 * 2 : 0;
    TT_CHECK(counted == expected, TT_EVERDICT, "%lld choices of experts counted, expected %lld", (long long)counted,
             (long long)expected);
    TT_TRY(step(e, j, false, &o, &r));
    if (e->mesh->rank == 0) j->good = r;
    return TT_OK;
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_engine e;
    json_t *object = json_loads(config, 0, NULL);
    tt_engine_options o = {
        .config = object,
        .mesh = {.tp_size = j->mesh.tp, .ep_size = j->mesh.ep},
        .ops = j->ops,
        .resident = j->bf16 ? TT_BF16 : TT_F32,
        .compute = TT_F32,
        .moments = TT_F32,
        .threads = 1,
        .train = true,
        .with_moments = true,
    };
    tt_comm_set_timeout(comm, 60);
    tt_log_set_level(TT_LOG_SILENT);
    if (tt_comm_rank(comm) == 0) tt_log_set_hook(listen, j);
    tt_status status = tt_engine_open(comm, &o, &e);
    if (status == TT_OK) {
        status = steps(&e, j);
        tt_engine_close(&e);
    }
    tt_log_set_hook(NULL, NULL);
    json_decref(object);
    return status;
}

#define BAD_WEIGHTS "the weights of 'model.embed_tokens.weight' are not finite; "

/* Which rank has the row, and what is said of it. */
static void expected_row(const mesh *m, char *out, size_t size)
{
    int fsdp = m->world / m->tp, rank = BAD_ROW % fsdp * m->tp, micro = BAD_ROW / fsdp % MICROS;
    if (m->world == 1)
        snprintf(out, size, BAD_WEIGHTS "the loss is not finite in row %d of micro-batch %d; first bad gradient: '", BAD_ROW, micro);
    else
        snprintf(out, size, BAD_WEIGHTS "the loss is not finite in rank %d: row %d of micro-batch %d; first bad gradient: '", rank,
                 BAD_ROW, micro);
}

static void the_row_is_named_and_the_run_goes_on(void **state)
{
    (void)state;
    static const float values[] = {INFINITY, NAN};
    for (int i = 0; i < NUM_MESHES * 4; i++) {
        char expected[200];
        const mesh *m = &meshes[i / 4];
        job j = {.mesh = *m,
                 .ops = i % 2 ? &tt_ops_cpu : &tt_ops_ref,
                 .value = values[i / 2 % 2],
                 .column = 2,
                 .nonfinite = TT_NONFINITE_SKIP};
        expected_row(m, expected, sizeof expected);
        assert_ok(tt_comm_run_threads(m->world, rank_main, &j));
        assert_int_equal(j.warnings, 1);
        if (!strstr(j.warning, expected)) fail_msg("world %d: '%s' lacks '%s'", m->world, j.warning, expected);
        assert_non_null(strstr(j.warning, "step 2: loss "));
        assert_non_null(strstr(j.warning, "The update was skipped"));
        assert_true(j.bad.skipped && !isfinite(j.bad.loss));
        assert_false(j.good.skipped);
        assert_close(j.good.loss, log(100), 0.1);
    }
}

static void the_row_is_named_and_the_run_ends(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_MESHES; i++) {
        char expected[200], prefix[40] = "step 2: ";
        const mesh *m = &meshes[i];
        job j = {.mesh = *m, .ops = &tt_ops_cpu, .bf16 = i % 2, .value = INFINITY, .column = 2};
        expected_row(m, expected, sizeof expected);
        assert_error(tt_comm_run_threads(m->world, rank_main, &j), TT_ENONFINITE, expected);
        if (m->world > 1) snprintf(prefix, sizeof prefix, "rank %d: step 2: ", BAD_ROW % (m->world / m->tp) * m->tp);
        if (strncmp(tt_error_text(), prefix, strlen(prefix)) != 0) fail_msg("'%s': no '%s'", tt_error_text(), prefix);
        assert_non_null(strstr(tt_error_text(), "Look at the model (tartan verify --deep lists such tensors), or set nonfinite: skip"));
        assert_int_equal(j.warnings, 0);
    }
}

/* The last token of a row predicts nothing, so its loss is fine; but it has a part in sums of products over tokens, where 0
 * times infinity is not a number. The reference kernels touch nothing of it in forward. */
static void only_gradients_are_bad(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_MESHES; i++) {
        int rows = 0;
        job j = {.mesh = meshes[i],
                 .ops = &tt_ops_ref,
                 .value = INFINITY,
                 .column = LENGTH - 1,
                 .nonfinite = TT_NONFINITE_SKIP};
        assert_ok(tt_comm_run_threads(j.mesh.world, rank_main, &j));
        assert_true(isfinite(j.bad.loss) && !isfinite(j.bad.grad_norm) && j.bad.skipped);
        if (!strstr(j.warning, "every loss is finite; the step has ") || !strstr(j.warning, ", ... (20 in all); first bad"))
            fail_msg("%s", j.warning);
        for (const char *p = j.warning; (p = strstr(p, "row ")); p += 4) rows++;
        assert_int_equal(rows, 16);
    }
}

/* --- a run ---------------------------------------------------------------------------------------------------- */

static const char *const model_files[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
enum { RUN_ROWS = 11, RUN_TOKEN = 200 };

/* A model whose embedding of RUN_TOKEN is infinite, and rows of which the sixth has it; it stands in line 8. */
static void make_run(const char *folder)
{
    char from[600], to[600];
    for (size_t i = 0; i < sizeof model_files / sizeof *model_files; i++) {
        snprintf(from, sizeof from, "%s/%s", "tests/fixtures/sft/runs/model-qwen3_moe", model_files[i]);
        snprintf(to, sizeof to, "%s/%s", folder, model_files[i]);
        assert_ok(tt_file_copy(from, to));
    }
    tt_st_folder weights;
    assert_ok(tt_st_open_folder(folder, &weights));
    const tt_st_tensor *t = tt_st_find(&weights, "model.embed_tokens.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, TT_F32);
    float row[512];
    int64_t D = t->shape[1];
    assert_in_range(D, 1, 512);
    for (int64_t i = 0; i < D; i++) row[i] = INFINITY;
    tt_file f;
    snprintf(to, sizeof to, "%s/model.safetensors", folder);
    assert_ok(tt_file_open_write(&f, to));
    assert_ok(tt_file_write_at(&f, t->begin + RUN_TOKEN * D * 4, row, (size_t)D * 4));
    tt_file_close(&f);
    tt_st_close(&weights);
    snprintf(to, sizeof to, "%s/data.jsonl", folder);
    FILE *data = fopen(to, "w");
    assert_non_null(data);
    for (int r = 0; r < RUN_ROWS; r++)
        fprintf(data, "%s{\"input_ids\": [%d, %d, %d, %d]}\n", r == 2 || r == 4 ? "\n" : "", 3 + r, 5 + r,
                r == 5 ? RUN_TOKEN : 7 + r, 9 + r);
    fclose(data);
}

typedef struct run {
    const char *folder, *nonfinite;
    int world, tp;
    int warnings; /* of rank 0 that name the row */
    tt_sft_report report;
} run;

static void listen_run(void *user, tt_log_level level, const char *text)
{
    run *r = user;
    if (level == TT_LOG_WARN && strstr(text, "row 5 (line 8); first bad gradient")) r->warnings++;
}

static tt_status run_main(tt_comm *comm, void *arg)
{
    run *r = arg;
    tt_config c;
    tt_sft_report report;
    char data[600], out[600], tp[8];
    snprintf(data, sizeof data, "%s/data.jsonl", r->folder);
    snprintf(out, sizeof out, "%s/out", r->folder);
    snprintf(tp, sizeof tp, "%d", r->tp);
    char *options[] = {"--model_name_or_path", (char *)r->folder, "--dataset_name", data, "--output_dir", out,
                       "--overwrite_output_dir", "--nonfinite", (char *)r->nonfinite, "--tp_size", tp,
                       "--shuffle_dataset", "--num_train_epochs", "2", "--per_device_train_batch_size", "2",
                       "--bf16", "false", "--threads", "1"};
    tt_comm_set_timeout(comm, 60);
    tt_log_set_level(TT_LOG_SILENT);
    if (tt_comm_rank(comm) == 0) tt_log_set_hook(listen_run, r);
    tt_status status = tt_config_init(&c);
    if (status == TT_OK) status = tt_config_options(&c, sizeof options / sizeof *options, options);
    if (status == TT_OK) status = tt_config_resolve(&c);
    if (status == TT_OK) status = tt_sft(comm, &c, NULL, &report);
    if (status == TT_OK && tt_comm_rank(comm) == 0) r->report = report;
    tt_log_set_hook(NULL, NULL);
    tt_config_free(&c);
    return status;
}

static void a_run_names_row_and_line(void **state)
{
    (void)state;
    static const mesh shapes[] = {{1, 1, 1}, {2, 1, 1}, {2, 2, 1}, {4, 1, 1}, {4, 2, 1}};
    char folder[512];
    snprintf(folder, sizeof folder, "%s", test_folder("nonfinite"));
    make_run(folder);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        run r = {.folder = folder, .nonfinite = "stop", .world = shapes[i].world, .tp = shapes[i].tp};
        assert_error(tt_comm_run_threads(r.world, run_main, &r), TT_ENONFINITE, "row 5 (line 8); first bad gradient");
        r.nonfinite = "skip";
        assert_ok(tt_comm_run_threads(r.world, run_main, &r));
        assert_int_equal(r.warnings, 2); /* once in each epoch */
        assert_true(isfinite(r.report.train_loss));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_row_is_named_and_the_run_goes_on),
        cmocka_unit_test(the_row_is_named_and_the_run_ends),
        cmocka_unit_test(only_gradients_are_bad),
        cmocka_unit_test(a_run_names_row_and_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
