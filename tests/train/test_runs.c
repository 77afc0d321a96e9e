/* Whole training runs of TRL's SFTTrainer reproduced from their configuration files: every logged loss, gradient norm,
 * learning rate, accuracy, entropy, token count and epoch, and the final weights. Tolerances are those of
 * tests/fixtures/README.md: losses 1e-5 relative, norms 1e-4, weights 1e-4 relative norm per tensor.
 *
 * The same runs on two ranks with half the rows each: rank r takes rows r, r + 2, ... of every micro-batch, so the steps hold
 * the same rows and must give the same numbers.
 *
 * And the runs of two micro-batches a step on two ranks with one each: micro-batch m of the epoch is batch 2 m + r on rank r,
 * so a step holds the same two batches, and the balance loss by ranks is the mean that the trainer took over micro-batches. */
#include "support/test.h"

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "data/jsonl.h"
#include "train/sft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct job {
    const char *run;
    int world, ep;
    bool apart; /* ranks hold the trainer's micro-batches */
    char folder[1200]; /* output_dir */
} job;

/* Paths in the fixtures' files are relative to their folder, tartan's to the working directory. */
static tt_status configure(const job *j, tt_config *c)
{
    char path[512], model[512], data[512], batch[32];
    snprintf(path, sizeof path, "tests/fixtures/sft/runs/%s/config.yaml", j->run);
    bool olmoe = !strcmp(j->run, "aux_loss");
    snprintf(model, sizeof model, "tests/fixtures/sft/runs/model-%s", olmoe ? "olmoe" : "qwen3_moe");
    snprintf(data, sizeof data, "tests/fixtures/sft/runs/%s/data.jsonl", j->run);
    TT_TRY(tt_config_init(c));
    TT_TRY(tt_config_load(path, c));
    int64_t rows = c->per_device_train_batch_size, micros = c->gradient_accumulation_steps;
    snprintf(batch, sizeof batch, "%lld", (long long)(j->apart ? rows : rows / j->world));
    char ep[16], accumulation[32];
    snprintf(ep, sizeof ep, "%d", j->ep);
    snprintf(accumulation, sizeof accumulation, "%lld", (long long)(j->apart ? micros / j->world : micros));
    char *options[] = {"--model_name_or_path", model, "--dataset_name", data, "--output_dir", (char *)j->folder,
                       "--eval_strategy", "no", "--per_device_train_batch_size", batch, "--ep_size", ep, "--threads", "1",
                       "--gradient_accumulation_steps", accumulation, "--router_aux_loss_scope",
                       j->apart ? "rank" : "global"};
    TT_TRY(tt_config_options(c, sizeof options / sizeof *options, options));
    return tt_config_resolve(c);
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    const job *j = arg;
    tt_config c;
    tt_sft_report report;
    tt_status status = configure(j, &c);
    if (status == TT_OK) status = tt_sft(comm, &c, NULL, &report);
    tt_config_free(&c);
    return status;
}

static void close_to(const json_t *ours, const json_t *theirs, const char *key, double relative, long long step)
{
    const json_t *a = json_object_get(ours, key), *b = json_object_get(theirs, key);
    if (!json_is_number(a) || !json_is_number(b)) fail_msg("step %lld: no '%s'", step, key);
    double x = json_number_value(a), y = json_number_value(b);
    if (!(fabs(x - y) <= relative * fabs(y) + 1e-12)) fail_msg("step %lld: %s is %.9g, expected %.9g", step, key, x, y);
}

static void compare_log(const job *j)
{
    char path[1400];
    json_t *log;
    tt_jsonl *reader;
    const tt_jsonl_row *rows;
    int64_t count, next = 0;
    snprintf(path, sizeof path, "tests/fixtures/sft/runs/%s/log_history.json", j->run);
    assert_ok(tt_json_load(path, 1 << 20, &log));
    snprintf(path, sizeof path, "%s/metrics.jsonl", j->folder);
    assert_ok(tt_jsonl_open(path, 0, &reader));
    assert_ok(tt_jsonl_next(reader, &rows, &count));
    for (size_t i = 0; i < json_array_size(log); i++) {
        const json_t *theirs = json_array_get(log, i);
        json_t *ours;
        long long step = json_integer_value(json_object_get(theirs, "step"));
        if (json_object_get(theirs, "eval_loss")) continue;
        assert_true(next < count);
        assert_ok(tt_jsonl_parse(&rows[next++], path, &ours));
        close_to(ours, theirs, "step", 0, step);
        /* Counted in micro-steps, or means over them: other ones when ranks hold the micro-batches. */
        if (!j->apart) close_to(ours, theirs, "epoch", 1e-12, step);
        if (json_object_get(theirs, "train_loss")) {
            close_to(ours, theirs, "train_loss", 1e-5, step);
        } else {
            close_to(ours, theirs, "loss", 1e-5, step);
            close_to(ours, theirs, "grad_norm", 1e-4, step);
            close_to(ours, theirs, "learning_rate", 1e-12, step);
            if (!j->apart) close_to(ours, theirs, "mean_token_accuracy", 1e-6, step);
            if (!j->apart) close_to(ours, theirs, "entropy", 1e-5, step);
            close_to(ours, theirs, "num_tokens", 0, step);
            if (json_object_get(theirs, "aux_loss")) close_to(ours, theirs, "aux_loss", 1e-5, step);
        }
        json_decref(ours);
    }
    assert_int_equal(next, count);
    tt_jsonl_close(&reader);
    json_decref(log);
}

static void compare_weights(const job *j)
{
    char path[512];
    tt_st_folder ours, theirs;
    snprintf(path, sizeof path, "tests/fixtures/sft/runs/%s/final", j->run);
    assert_ok(tt_st_open_folder(path, &theirs));
    assert_ok(tt_st_open_folder(j->folder, &ours));
    assert_int_equal(ours.num_tensors, theirs.num_tensors);
    for (int64_t i = 0; i < ours.num_tensors; i++) {
        const tt_st_tensor *a = &ours.tensors[i], *b = tt_st_find(&theirs, a->name);
        assert_non_null(b);
        int64_t n = (a->end - a->begin) / 4;
        float *x = malloc((size_t)n * 8), *y = x + n;
        assert_ok(tt_st_read(&ours, a, 0, n, TT_F32, x));
        assert_ok(tt_st_read(&theirs, b, 0, n, TT_F32, y));
        double difference = 0, norm = 0;
        for (int64_t e = 0; e < n; e++) difference += pow((double)x[e] - y[e], 2), norm += pow(y[e], 2);
        if (!(sqrt(difference) <= 1e-4 * sqrt(norm))) fail_msg("'%s': relative %g", a->name, sqrt(difference / norm));
        free(x);
    }
    tt_st_close(&ours);
    tt_st_close(&theirs);
}

static void reproduce(void **state)
{
    job *j = *state;
    char name[200];
    snprintf(name, sizeof name, "run-%s", j->run);
    snprintf(j->folder, sizeof j->folder, "%s", test_folder(name));
    assert_ok(tt_comm_run_threads(j->world, rank_main, j));
    compare_log(j);
    compare_weights(j);
    /* What else a model folder needs came along. */
    char path[1400];
    snprintf(path, sizeof path, "%s/tokenizer.json", j->folder);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(path, sizeof path, "%s/tartan_config.yaml", j->folder);
    assert_int_equal(access(path, R_OK), 0);
}

int main(void)
{
    static job jobs[] = {
        {.run = "conversation", .world = 1, .ep = 1},    {.run = "conversation", .world = 2, .ep = 1},
        {.run = "conversation", .world = 2, .ep = 2},    {.run = "completion_eval", .world = 1, .ep = 1},
        {.run = "completion_eval", .world = 2, .ep = 2}, {.run = "aux_loss", .world = 1, .ep = 1},
        {.run = "aux_loss", .world = 2, .ep = 1},        {.run = "aux_loss", .world = 2, .ep = 2},
        {.run = "aux_loss", .world = 2, .ep = 1, .apart = true},
        {.run = "aux_loss", .world = 2, .ep = 2, .apart = true},
    };
    static char names[sizeof jobs / sizeof *jobs][100];
    struct CMUnitTest tests[sizeof jobs / sizeof *jobs];
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        char *name = names[i];
        snprintf(name, sizeof names[i], "%s on %d ranks, ep_size %d%s", jobs[i].run, jobs[i].world, jobs[i].ep,
                 jobs[i].apart ? ", a micro-batch each" : "");
        tests[i] = (struct CMUnitTest){name, reproduce, NULL, NULL, &jobs[i]};
    }
    return _cmocka_run_group_tests("runs", tests, sizeof jobs / sizeof *jobs, NULL, NULL);
}
