/* Runs that go on from a checkpoint: train 5 = train N + resume 5 - N, bit for bit on the same mesh - weights, moments, records -
 * from the middle of an epoch and from its border, written beside training or not; and to rounding from any mesh to any other
 * with the same rows in a step. What may not change is refused by name.
 *
 * 21 rows and 12 of them a step: an epoch has two steps, of 12 and of 9 rows, so that steps 1 and 3 end in the middle of an
 * epoch, 2 and 4 at its end. */
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "data/jsonl.h"
#include "train/sft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "tests/fixtures/sft/runs/model-qwen3_moe"
#define DATA  "tests/fixtures/sft/runs/conversation/data.jsonl"

enum { STEPS = 5, ROWS = 12, MAX_OPTIONS = 64 };

typedef struct mesh {
    int world, tp, ep, batch; /* batch x fsdp_size x accumulation = ROWS */
    const char *dispatch;
} mesh;

typedef struct job {
    mesh mesh;
    const char *folder;
    const char *const *options; /* further ones, up to NULL */
    const char *apart;          /* NULL, or the checkpoint that rank 1 goes on from, as if its host had a copy of its own */
    int64_t stop_after;         /* 0: not stopped */
    tt_sft_report report;       /* of rank 0 */
} job;

typedef struct asked {
    int64_t count, at;
} asked;

/* Asked three times before training, then behind each step but the last. */
static int stop(void *user)
{
    asked *a = user;
    return a->count++ == a->at ? 10 : 0;
}

static tt_status configure(const job *j, int rank, tt_config *c)
{
    const mesh *m = &j->mesh;
    char tp[8], ep[8], batch[8], accumulation[8];
    snprintf(tp, sizeof tp, "%d", m->tp);
    snprintf(ep, sizeof ep, "%d", m->ep);
    snprintf(batch, sizeof batch, "%d", m->batch);
    snprintf(accumulation, sizeof accumulation, "%d", ROWS / m->batch / (m->world / m->tp));
    char *options[MAX_OPTIONS] = {
        "--model_name_or_path", MODEL, "--dataset_name", DATA, "--output_dir", (char *)j->folder, "--max_steps", "5", "--threads",
        "1", "--logging_steps", "2", "--save_steps", "1", "--lr_scheduler_type", "cosine", "--warmup_steps", "1",
        "--router_aux_loss_coef", "0", "--weight_decay", "0.1", "--tp_size", tp, "--ep_size", ep, "--expert_dispatch",
        (char *)m->dispatch, "--per_device_train_batch_size", batch, "--gradient_accumulation_steps", accumulation};
    int num = 0;
    while (options[num]) num++;
    for (int i = 0; j->options && j->options[i]; i++) options[num++] = (char *)j->options[i];
    if (j->apart && rank == 1) options[num - 1] = (char *)j->apart;
    TT_TRY(tt_config_init(c));
    TT_TRY(tt_config_options(c, num, options));
    return tt_config_resolve(c);
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_config c;
    tt_sft_report report = {0};
    asked a = {.at = j->stop_after > 0 ? 3 + j->stop_after - 1 : -1};
    tt_sft_hooks hooks = {.stop = stop, .user = &a};
    tt_status status = configure(j, tt_comm_rank(comm), &c);
    if (status == TT_OK) status = tt_sft(comm, &c, &hooks, &report);
    if (tt_comm_rank(comm) == 0) j->report = report;
    tt_config_free(&c);
    return status;
}

static tt_status train(job *j)
{
    return tt_comm_run_threads(j->mesh.world, rank_main, j);
}

/* --- comparing ------------------------------------------------------------------------------------------------------- */

/* Records without what the clock says. */
static json_t *records_of(const char *folder)
{
    static const char *const times[] = {"tokens_per_second", "tflops", "train_runtime", "train_samples_per_second", "train_steps_per_second"};
    char path[600];
    tt_jsonl *reader;
    const tt_jsonl_row *rows;
    int64_t count;
    json_t *list = json_array();
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    assert_ok(tt_jsonl_open(path, 0, &reader));
    assert_ok(tt_jsonl_next(reader, &rows, &count));
    for (int64_t i = 0; i < count; i++) {
        json_t *o;
        assert_ok(tt_jsonl_parse(&rows[i], path, &o));
        for (size_t k = 0; k < sizeof times / sizeof *times; k++) json_object_del(o, times[k]);
        json_array_append_new(list, o);
    }
    tt_jsonl_close(&reader);
    return list;
}

static void same_records(const char *a, const char *b)
{
    json_t *x = records_of(a), *y = records_of(b);
    assert_int_equal(json_array_size(x), STEPS / 2 + 1);
    if (!json_equal(x, y)) fail_msg("records differ\n%s\n%s", json_dumps(x, 0), json_dumps(y, 0));
    json_decref(x);
    json_decref(y);
}

/* What the layout does not change: the rest are means over micro-steps, or bytes. */
static void near_records(const char *a, const char *b, double tolerance)
{
    static const char *const keys[] = {"loss", "grad_norm", "learning_rate", "num_tokens", "train_loss", "step"};
    json_t *x = records_of(a), *y = records_of(b);
    assert_int_equal(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const json_t *p = json_object_get(json_array_get(x, i), keys[k]), *q = json_object_get(json_array_get(y, i), keys[k]);
            assert_true(!p == !q);
            if (p) assert_close(json_number_value(p), json_number_value(q), tolerance * fabs(json_number_value(q)) + 1e-12);
        }
    json_decref(x);
    json_decref(y);
}

static void near_tensors(const char *a, const char *b, const char *stem, double tolerance)
{
    tt_st_folder f, g;
    assert_ok(tt_st_open_stem(a, stem, &f));
    assert_ok(tt_st_open_stem(b, stem, &g));
    assert_int_equal(f.num_tensors, g.num_tensors);
    for (int64_t i = 0; i < f.num_tensors; i++) {
        const tt_st_tensor *s = &f.tensors[i], *t = tt_st_find(&g, s->name);
        int64_t n = 1;
        assert_non_null(t);
        for (int d = 0; d < s->ndim; d++) n *= s->shape[d];
        float *x = malloc((size_t)n * 8), *y = x + n;
        assert_ok(tt_st_read(&f, s, 0, n, TT_F32, x));
        assert_ok(tt_st_read(&g, t, 0, n, TT_F32, y));
        double difference = 0, norm = 0;
        for (int64_t e = 0; e < n; e++) difference += pow((double)x[e] - y[e], 2), norm += pow(y[e], 2);
        if (!(sqrt(difference) <= tolerance * sqrt(norm))) fail_msg("'%s': relative %g", s->name, sqrt(difference / norm));
        free(x);
    }
    tt_st_close(&f);
    tt_st_close(&g);
}

static void same_file(const char *a, const char *b, const char *name)
{
    char path[600], *x, *y;
    size_t n, m;
    snprintf(path, sizeof path, "%s/%s", a, name);
    assert_ok(tt_file_read_all(path, 1 << 24, &x, &n));
    snprintf(path, sizeof path, "%s/%s", b, name);
    assert_ok(tt_file_read_all(path, 1 << 24, &y, &m));
    if (n != m || memcmp(x, y, n) != 0) fail_msg("%s of %s and %s differ", name, a, b);
    free(x);
    free(y);
}

/* --- the same mesh --------------------------------------------------------------------------------------------------- */

static const mesh one = {1, 1, 1, 3, "alltoall"};

static const struct {
    const char *name, *options[12];
} kinds[] = {
    {"fp32-adamw", {"--bf16", "false"}},
    {"fp32-adamw-beside", {"--bf16", "false", "--async_save", "true"}},
    {"fp32-sgd", {"--bf16", "false", "--optim", "sgd", "--learning_rate", "0.05"}},
    {"bf16-products-saved-as-bf16", {"--bf16", "true", "--save_dtype", "bfloat16"}},
    {"bf16-adamw-beside", {"--bf16", "true", "--dtype", "bfloat16", "--async_save", "true", "--learning_rate", "1e-3"}},
    {"bf16-sgd", {"--bf16", "true", "--dtype", "bfloat16", "--optim", "sgd", "--learning_rate", "0.05"}},
    {"bf16-all", {"--bf16", "true", "--dtype", "bfloat16", "--optim_state_dtype", "bfloat16", "--learning_rate", "1e-3"}},
    {"bf16-moments-beside", {"--bf16", "false", "--optim_state_dtype", "bfloat16", "--async_save", "true"}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The options of a kind, and where to go on from. */
static const char *const *with_resume(int kind, const char *checkpoint, const char **out)
{
    int n = 0;
    for (; kinds[kind].options[n]; n++) out[n] = kinds[kind].options[n];
    out[n++] = "--resume_from_checkpoint";
    out[n++] = checkpoint;
    out[n] = NULL;
    return out;
}

static void same_bits(const mesh *m, int kind, const char *parent)
{
    char whole[300], folder[300], from[330], a[330], b[330];
    const char *options[16];
    snprintf(whole, sizeof whole, "%s/whole", parent);
    job w = {.mesh = *m, .folder = whole, .options = kinds[kind].options};
    assert_ok(train(&w));
    assert_int_equal(w.report.checkpoints, STEPS);
    for (int step = 1; step <= STEPS; step++) {
        snprintf(folder, sizeof folder, "%s/from-%d", parent, step);
        snprintf(from, sizeof from, "%s/checkpoint-%d", whole, step);
        job r = {.mesh = *m, .folder = folder, .options = with_resume(kind, from, options)};
        assert_ok(train(&r));
        assert_int_equal(r.report.resumed, step);
        same_file(whole, folder, "model.safetensors");
        json_t *x = records_of(whole), *y = records_of(folder);
        /* What the layers did is not in the history that the new folder begins with. */
        for (size_t i = 0; i < json_array_size(x); i++)
            if (2 * ((int)i + 1) <= step)
                json_object_del(json_array_get(x, i), "experts"), json_object_del(json_array_get(x, i), "bytes_sent");
        if (!json_equal(x, y)) fail_msg("records differ\n%s\n%s", json_dumps(x, 0), json_dumps(y, 0));
        json_decref(x);
        json_decref(y);
        if (step == STEPS) continue;
        snprintf(a, sizeof a, "%s/checkpoint-%d", whole, STEPS);
        snprintf(b, sizeof b, "%s/checkpoint-%d", folder, STEPS);
        same_file(a, b, "optimizer.safetensors");
    }
}

static void bit_for_bit(void **state)
{
    static const mesh meshes[] = {{1, 1, 1, 3, "alltoall"}, {2, 1, 2, 3, "alltoall"}, {4, 2, 2, 3, "allreduce"}, {3, 1, 1, 2, "alltoall"}};
    (void)state;
    for (int k = 0; k < KINDS; k++)
        for (int m = 0; m < 4; m++) {
            char name[100], parent[256];
            if (!test_full() && m != k % 3) continue;
            snprintf(name, sizeof name, "resume-%s-%d", kinds[k].name, m);
            snprintf(parent, sizeof parent, "%s", test_folder(name));
            same_bits(&meshes[m], k, parent);
        }
}

/* --- from mesh to mesh ------------------------------------------------------------------------------------------------ */

/* fp32: sums over ranks are rounded in other places, at 6e-8 each, through two steps; AdamW divides by the root of small second
 * moments, which magnifies that (tests/fixtures/README.md). bf16 weights: rounding may fall to the other side, 2^-8 of an
 * element, in few of them. */
static const struct {
    mesh from, to;
    int kind;
    double tolerance;
} moves[] = {
    {{1, 1, 1, 3, "alltoall"}, {4, 1, 1, 3, "alltoall"}, 2, 1e-5},   {{4, 1, 1, 3, "alltoall"}, {3, 1, 1, 4, "alltoall"}, 0, 1e-4},
    {{2, 1, 2, 6, "alltoall"}, {4, 1, 4, 3, "allgather"}, 1, 1e-4},  {{4, 1, 4, 3, "alltoall"}, {2, 1, 2, 2, "alltoall"}, 2, 1e-5},
    {{2, 2, 2, 3, "allreduce"}, {1, 1, 1, 12, "alltoall"}, 2, 1e-5}, {{1, 1, 1, 3, "alltoall"}, {4, 2, 4, 3, "alltoall"}, 1, 1e-4},
    {{4, 2, 2, 3, "allreduce"}, {2, 1, 1, 6, "alltoall"}, 3, 2e-3},  {{3, 1, 1, 4, "alltoall"}, {4, 1, 2, 3, "allgather"}, 4, 4e-3},
    {{4, 1, 2, 3, "alltoall"}, {1, 1, 1, 6, "alltoall"}, 5, 4e-3},   {{2, 1, 2, 3, "alltoall"}, {4, 1, 1, 3, "alltoall"}, 6, 4e-3},
    {{4, 2, 2, 3, "allreduce"}, {3, 1, 1, 4, "alltoall"}, 7, 1e-3},
};

static void any_mesh(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        char name[32], parent[256], whole[300], folder[300], from[330], a[330], b[330];
        const char *options[16];
        int kind = moves[i].kind;
        double tolerance = moves[i].tolerance;
        snprintf(name, sizeof name, "resume-move-%d", (int)i);
        snprintf(parent, sizeof parent, "%s", test_folder(name));
        snprintf(whole, sizeof whole, "%s/whole", parent);
        snprintf(folder, sizeof folder, "%s/moved", parent);
        snprintf(from, sizeof from, "%s/checkpoint-3", whole);
        job w = {.mesh = moves[i].from, .folder = whole, .options = kinds[kind].options};
        job r = {.mesh = moves[i].to, .folder = folder, .options = with_resume(kind, from, options)};
        assert_ok(train(&w));
        assert_ok(train(&r));
        near_tensors(folder, whole, "model", tolerance);
        near_records(folder, whole, fmax(tolerance, 1e-5));
        snprintf(a, sizeof a, "%s/checkpoint-%d", folder, STEPS);
        snprintf(b, sizeof b, "%s/checkpoint-%d", whole, STEPS);
        near_tensors(a, b, "optimizer", fmax(1e-4, 10 * tolerance));
    }
}

/* Moments in another type than the checkpoint's: converted, told, and training goes on. bf16 is 2^-8 of a moment off, which two
 * steps of at most the rate, 2e-5, carry into weights of some hundredths: 2e-7 against 0.02, 1e-5. */
static void moments_take_another_type(void **state)
{
    (void)state;
    static const char *const types[] = {"float32", "bfloat16"};
    char parent[256], whole[300], folder[300], from[330], at[330];
    snprintf(parent, sizeof parent, "%s", test_folder("resume-types"));
    for (int i = 0; i < 2; i++) {
        tt_st_folder f;
        snprintf(whole, sizeof whole, "%s/%s", parent, types[i]);
        snprintf(folder, sizeof folder, "%s/from-%s", parent, types[i]);
        snprintf(from, sizeof from, "%s/checkpoint-3", whole);
        snprintf(at, sizeof at, "%s/checkpoint-%d", folder, STEPS);
        const char *options[] = {"--bf16", "false", "--optim_state_dtype", types[i], NULL};
        const char *other[] = {"--bf16", "false", "--optim_state_dtype", types[!i], "--resume_from_checkpoint", from, NULL};
        job w = {.mesh = one, .folder = whole, .options = options}, r = {.mesh = one, .folder = folder, .options = other};
        assert_ok(train(&w));
        assert_ok(train(&r));
        assert_int_equal(r.report.resumed, 3);
        near_tensors(folder, whole, "model", 1e-5);
        assert_ok(tt_st_open_stem(at, "optimizer", &f));
        for (int64_t t = 0; t < f.num_tensors; t++) {
            bool exact = strstr(f.tensors[t].name, "norm") || strstr(f.tensors[t].name, "mlp.gate.");
            assert_int_equal(f.tensors[t].dtype, i == 0 && !exact ? TT_BF16 : TT_F32);
        }
        tt_st_close(&f);
    }
}

/* --- one folder ------------------------------------------------------------------------------------------------------- */

static void stopped_and_gone_on_with(void **state)
{
    (void)state;
    char parent[256], whole[300], folder[300], path[330];
    snprintf(parent, sizeof parent, "%s", test_folder("resume-stop"));
    snprintf(whole, sizeof whole, "%s/whole", parent);
    snprintf(folder, sizeof folder, "%s/stopped", parent);
    for (int beside = 0; beside < 2; beside++) {
        const char *options[] = {"--bf16", "false", "--overwrite_output_dir", "--save_strategy", "epoch", "--async_save", beside ? "true" : "false", NULL};
        const char *resume[] = {"--bf16", "false", "--save_strategy", "epoch", "--async_save", beside ? "true" : "false",
                                "--resume_from_checkpoint", "true", NULL};
        job w = {.mesh = {2, 1, 2, 3, "alltoall"}, .folder = whole, .options = options}, s = w;
        assert_ok(train(&w));
        s.folder = folder;
        s.stop_after = 3;
        assert_ok(train(&s));
        assert_int_equal(s.report.stopped, 10);
        assert_int_equal(s.report.checkpoint, 3); /* of the stop; 2 was the end of an epoch */
        assert_int_equal(s.report.checkpoints, 2);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        assert_true(beside || !tt_file_exists(path));
        s.options = resume;
        s.stop_after = 0;
        assert_ok(train(&s));
        assert_int_equal(s.report.resumed, 3);
        same_file(whole, folder, "model.safetensors");
        same_records(whole, folder); /* lines of before the stop are kept as they were */
    }
}

static void flip_a_byte(const char *path)
{
    char *text;
    size_t bytes;
    assert_ok(tt_file_read_all(path, 1 << 24, &text, &bytes));
    text[bytes - 5] ^= 4;
    assert_ok(tt_file_write_all(path, text, bytes));
    free(text);
}

static void cut(const char *path)
{
    char *text;
    size_t bytes;
    assert_ok(tt_file_read_all(path, 1 << 24, &text, &bytes));
    assert_ok(tt_file_write_all(path, text, bytes - 1));
    free(text);
}

static void limits_and_damage(void **state)
{
    (void)state;
    char folder[300], path[400];
    snprintf(folder, sizeof folder, "%s/run", test_folder("resume-damage"));
    const char *options[] = {"--bf16", "false", "--save_total_limit", "2", NULL};
    const char *resume[] = {"--bf16", "false", "--save_total_limit", "2", "--resume_from_checkpoint", "true", NULL};
    job j = {.mesh = one, .folder = folder, .options = resume};
    assert_error(train(&j), TT_ECONFIG, "holds no whole checkpoint");
    j.options = options;
    assert_ok(train(&j));
    for (int step = 1; step <= STEPS; step++) {
        snprintf(path, sizeof path, "%s/checkpoint-%d", folder, step);
        assert_int_equal(tt_dir_exists(path), step >= STEPS - 1);
    }
    assert_error(train(&j), TT_ECONFIG, "holds checkpoints; set resume_from_checkpoint: true");
    /* What is cut is passed over, and so is what has other bytes; where it was asked for by name, it is refused. */
    snprintf(path, sizeof path, "%s/checkpoint-5/optimizer.safetensors", folder);
    cut(path);
    j.options = resume;
    assert_ok(train(&j));
    assert_int_equal(j.report.resumed, 4);
    flip_a_byte(path);
    assert_ok(train(&j));
    assert_int_equal(j.report.resumed, 4);
    flip_a_byte(path);
    snprintf(path, sizeof path, "%s/checkpoint-5", folder);
    const char *named[] = {"--bf16", "false", "--resume_from_checkpoint", path, NULL};
    j.options = named;
    assert_error(train(&j), TT_EFORMAT, "checkpoint-5/optimizer.safetensors' is damaged");
}

/* --- what may not change ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *options[8];
    tt_status status;
    const char *part;
} changes[] = {
    {{"--seed", "7", "--data_seed", "42"}, TT_ECONFIG, "seed of"},
    {{"--data_seed", "7"}, TT_ECONFIG, "is 42, that of this run 7; make it the same, or set resume_override: data_seed"},
    {{"--dataset_name", "tests/fixtures/sft/runs/aux_loss/data.jsonl"}, TT_ECONFIG, "dataset of"},
    {{"--shuffle_dataset", "true"}, TT_ECONFIG, "order of"},
    {{"--optim", "sgd"}, TT_ECONFIG, "optimizer of"},
    {{"--model_name_or_path", "tests/fixtures/sft/runs/model-olmoe"}, TT_ECONFIG, "model of"},
    {{"--per_device_train_batch_size", "2"}, TT_ECONFIG,
     "has 12 rows, one of this run 8: per_device_train_batch_size 2 x fsdp_size 1 x gradient_accumulation_steps 4; set "
     "per_device_train_batch_size: 2 and gradient_accumulation_steps: 6"},
    {{"--max_steps", "2"}, TT_ECONFIG, "is behind step 3, this run ends behind step 2"},
    {{"--ignore_data_skip", "true"}, TT_ECONFIG, "not supported yet"},
    {{"--resume_override", "model"}, TT_ECONFIG, "what may differ is dataset, order, seed and data_seed"},
    {{"--data_seed", "7", "--resume_override", "data_seed"}, TT_OK, NULL},
    {{"--seed", "7", "--resume_override", "[\"seed\", \"data_seed\"]"}, TT_OK, NULL},
    {{"--dataset_name", "tests/fixtures/sft/runs/completion_eval/data.jsonl", "--resume_override", "dataset"}, TT_OK, NULL},
    {{"--learning_rate", "1e-3", "--max_steps", "6"}, TT_OK, NULL},
};

static void refusals(void **state)
{
    (void)state;
    char parent[256], whole[300], folder[300], from[330], other[330];
    snprintf(parent, sizeof parent, "%s", test_folder("resume-refusals"));
    snprintf(whole, sizeof whole, "%s/whole", parent);
    snprintf(from, sizeof from, "%s/checkpoint-3", whole);
    const char *options[] = {"--bf16", "false", NULL};
    job w = {.mesh = one, .folder = whole, .options = options};
    assert_ok(train(&w));
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *all[16] = {"--bf16", "false", "--resume_from_checkpoint", from};
        for (int k = 0; changes[i].options[k]; k++) all[4 + k] = changes[i].options[k];
        snprintf(folder, sizeof folder, "%s/changed-%d", parent, (int)i);
        job j = {.mesh = one, .folder = folder, .options = all};
        if (changes[i].status == TT_OK)
            assert_ok(train(&j));
        else
            assert_error(train(&j), changes[i].status, changes[i].part);
        assert_int_equal(tt_dir_exists(folder), changes[i].status == TT_OK);
    }
    const char *from_there[] = {"--bf16", "false", "--resume_from_checkpoint", from, NULL};
    job two = {.mesh = {2, 1, 1, 3, "alltoall"}, .folder = folder, .options = from_there, .apart = other};
    snprintf(folder, sizeof folder, "%s/apart", parent);
    snprintf(other, sizeof other, "%s/checkpoint-4", whole);
    assert_error(train(&two), TT_EMISMATCH, "rank 1: resume_from_checkpoint: '");
    const char *alone[] = {"--bf16", "false", "--save_only_model", "true", "--overwrite_output_dir", NULL};
    const char *resume[] = {"--bf16", "false", "--resume_from_checkpoint", from, NULL};
    w.options = alone;
    assert_ok(train(&w));
    /* A model alone cannot be gone on from, by name or as the newest. */
    w.options = resume;
    w.folder = folder;
    snprintf(folder, sizeof folder, "%s/stateless", parent);
    assert_error(train(&w), TT_ECONFIG, "holds a model without optimizer state");
    const char *newest[] = {"--bf16", "false", "--resume_from_checkpoint", "true", NULL};
    w.folder = whole;
    w.options = newest;
    assert_error(train(&w), TT_ECONFIG, "holds no whole checkpoint");
}

/* --- going back, going on ------------------------------------------------------------------------------------------------ */

static void make_file(const char *folder, const char *name)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(tt_dir_create(folder));
    assert_ok(tt_file_write_all(path, "mine", 4));
}

static void folders_that_are_kept(void **state)
{
    (void)state;
    char folder[300], path[400], other[400];
    snprintf(folder, sizeof folder, "%s/run", test_folder("resume-kept"));
    snprintf(path, sizeof path, "%s/checkpoint-3", folder);
    const char *options[] = {"--bf16", "false", "--save_total_limit", "3", NULL};
    job j = {.mesh = one, .folder = folder, .options = options};
    assert_ok(train(&j));
    /* Later ones would be taken for those of the run that goes back. */
    const char *back[] = {"--bf16", "false", "--resume_from_checkpoint", path, NULL};
    j.options = back;
    assert_error(train(&j), TT_ECONFIG, "holds checkpoint-5, later than");
    /* With leave they go, and so does, by its limit, the one that the run goes on from; the model is replaced all the same. */
    const char *over[] = {"--bf16", "false", "--resume_from_checkpoint", path, "--overwrite_output_dir", "--save_total_limit", "1", NULL};
    j.options = over;
    assert_ok(train(&j));
    assert_int_equal(j.report.resumed, 3);
    assert_false(tt_dir_exists(path));
    snprintf(path, sizeof path, "%s/checkpoint-%d", folder, STEPS);
    const char *on[] = {"--bf16", "false", "--resume_from_checkpoint", path, "--max_steps", "7", "--save_total_limit", "1", NULL};
    j.options = on;
    assert_ok(train(&j));
    assert_false(tt_dir_exists(path));
    /* The model that is trained from is not written over, wherever below output_dir it lies. */
    snprintf(path, sizeof path, "%s/checkpoint-7", folder);
    const char *from_there[] = {"--bf16", "false", "--model_name_or_path", path, "--overwrite_output_dir", NULL};
    j.options = from_there;
    assert_error(train(&j), TT_ECONFIG, "is never written over");
    assert_true(tt_dir_exists(path));
    /* What others made stays. */
    snprintf(other, sizeof other, "%s/checkpoint-9", folder);
    make_file(other, "thesis.txt");
    const char *further[] = {"--bf16", "false", "--resume_from_checkpoint", "true", "--max_steps", "9", NULL};
    j.options = further;
    assert_error(train(&j), TT_ECONFIG, "checkpoint-9' is no checkpoint of tartan's");
    snprintf(path, sizeof path, "%s/thesis.txt", other);
    assert_true(tt_file_exists(path));
}

/* --- what training does not know --------------------------------------------------------------------------------------- */

/* The fixture with a rotary buffer, which is kept byte by byte: from the source into checkpoints, from there on. */
static void model_with_a_buffer(const char *folder)
{
    static const char *const files[] = {"config.json", "tokenizer.json", "tokenizer_config.json"};
    char from[300], to[400], *text, *out;
    size_t bytes;
    int64_t header;
    assert_ok(tt_dir_create(folder));
    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof from, MODEL "/%s", files[i]);
        snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        assert_ok(tt_file_copy(from, to));
    }
    assert_ok(tt_file_read_all(MODEL "/model.safetensors", 1 << 24, &text, &bytes));
    memcpy(&header, text, 8);
    int64_t data = (int64_t)bytes - 8 - header, room = header + 200;
    assert_non_null(out = calloc(1, bytes + 300));
    char *end = memrchr(text + 8, '}', (size_t)header);
    int n = snprintf(out + 8, (size_t)room, "%.*s,\"model.rotary_emb.inv_freq\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[%lld,%lld]}}",
                     (int)(end - text - 8), text + 8, (long long)data, (long long)data + 8);
    int64_t padded = (n + 7) / 8 * 8;
    memset(out + 8 + n, ' ', (size_t)(padded - n));
    memcpy(out, &padded, 8);
    memcpy(out + 8 + padded, text + 8 + header, (size_t)data);
    memcpy(out + 8 + padded + data, "carried!", 8);
    snprintf(to, sizeof to, "%s/model.safetensors", folder);
    assert_ok(tt_file_write_all(to, out, (size_t)(8 + padded + data + 8)));
    free(out);
    free(text);
}

static void what_is_carried_stays(void **state)
{
    (void)state;
    char parent[256], model[300], folder[300], kept[9] = "";
    tt_st_folder f;
    snprintf(parent, sizeof parent, "%s", test_folder("resume-carried"));
    snprintf(model, sizeof model, "%s/model", parent);
    snprintf(folder, sizeof folder, "%s/run", parent);
    model_with_a_buffer(model);
    const char *options[] = {"--bf16", "false", "--model_name_or_path", model, "--save_total_limit", "1", NULL};
    const char *resume[] = {"--bf16", "false", "--model_name_or_path", model, "--save_total_limit", "1", "--resume_from_checkpoint", "true", NULL};
    job j = {.mesh = {2, 1, 2, 3, "alltoall"}, .folder = folder, .options = options, .stop_after = 2};
    assert_ok(train(&j));
    j.options = resume;
    j.stop_after = 0;
    assert_ok(train(&j)); /* checkpoint-2 is what checkpoints 3, 4, 5 and the model take it from */
    assert_ok(tt_st_open_folder(folder, &f));
    const tt_st_tensor *t = tt_st_find(&f, "model.rotary_emb.inv_freq");
    assert_non_null(t);
    assert_ok(tt_st_read(&f, t, 0, 2, TT_F32, kept));
    assert_string_equal(kept, "carried!");
    tt_st_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bit_for_bit),       cmocka_unit_test(any_mesh), cmocka_unit_test(stopped_and_gone_on_with),
        cmocka_unit_test(limits_and_damage), cmocka_unit_test(refusals), cmocka_unit_test(folders_that_are_kept),
        cmocka_unit_test(what_is_carried_stays), cmocka_unit_test(moments_take_another_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
