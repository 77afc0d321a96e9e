/* Runs that are asked to end, at every question that a rank is asked: all ranks end behind the same step, and what they leave
 * is what a run of so many steps leaves, or nothing at all before the first. */
#include "support/test.h"

#include "base/file.h"
#include "train/sft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ranks are asked at the end of each phase before training, then behind each step but the last. */
enum { PHASES = 3, STEPS = 4, MAX_WORLD = 3 };

typedef struct job {
    int world;
    const char *folder;
    int question, rank; /* which rank says stop, and when; question < 0: never */
    int steps;
    tt_sft_report reports[MAX_WORLD];
} job;

typedef struct asked {
    const job *job;
    int rank, count;
} asked;

static int stop(void *user)
{
    asked *a = user;
    int now = a->count++;
    return a->rank == a->job->rank && now == a->job->question ? 10 + a->rank : 0;
}

static tt_status configure(const job *j, tt_config *c)
{
    char steps[16];
    snprintf(steps, sizeof steps, "%d", j->steps);
    char *options[] = {"--model_name_or_path", "tests/fixtures/sft/runs/model-qwen3_moe",
                       "--dataset_name", "tests/fixtures/sft/runs/conversation/data.jsonl",
                       "--output_dir", (char *)j->folder, "--max_steps", steps, "--bf16", "false", "--threads", "1",
                       "--per_device_train_batch_size", "1", "--lr_scheduler_type", "constant", "--logging_steps", "1",
                       "--report_to", "none", "--save_strategy", "no"};
    TT_TRY(tt_config_init(c));
    TT_TRY(tt_config_options(c, sizeof options / sizeof *options, options));
    return tt_config_resolve(c);
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_config c;
    asked a = {.job = j, .rank = tt_comm_rank(comm)};
    tt_sft_hooks hooks = {.stop = stop, .user = &a};
    tt_status status = configure(j, &c);
    if (status == TT_OK) status = tt_sft(comm, &c, &hooks, &j->reports[a.rank]);
    tt_config_free(&c);
    int expected = j->question < 0 ? PHASES + j->steps - 1 : j->question + 1;
    if (status == TT_OK && a.count != expected)
        status = tt_error_set(TT_EVERDICT, "rank %d was asked %d times, expected %d", a.rank, a.count, expected);
    return status;
}

static void read_all(const char *folder, const char *name, char **text, size_t *bytes)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(tt_file_read_all(path, 1 << 24, text, bytes));
}

static void same_weights(const char *a, const char *b)
{
    char *x, *y;
    size_t n, m;
    read_all(a, "model.safetensors", &x, &n);
    read_all(b, "model.safetensors", &y, &m);
    assert_int_equal(n, m);
    assert_true(memcmp(x, y, n) == 0);
    free(x);
    free(y);
}

/* One record for each step and the last line. */
static void check_records(const char *folder, int steps)
{
    char *text, last[32];
    size_t bytes;
    int lines = 0;
    read_all(folder, "metrics.jsonl", &text, &bytes);
    for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
    assert_int_equal(lines, steps + 1);
    snprintf(last, sizeof last, "\"step\":%d}\n", steps);
    assert_string_equal(text + bytes - strlen(last), last);
    assert_non_null(strstr(text, "\"train_loss\""));
    free(text);
}

static void check_stop(job *j)
{
    int steps = j->question < 0 ? j->steps : j->question < PHASES ? 0 : j->question - PHASES + 1;
    assert_ok(tt_comm_run_threads(j->world, rank_main, j));
    for (int r = 0; r < j->world; r++) {
        assert_int_equal(j->reports[r].steps, steps);
        assert_int_equal(j->reports[r].stopped, j->question < 0 ? 0 : 10 + j->rank);
    }
    if (steps == 0)
        assert_false(tt_dir_exists(j->folder));
    else
        check_records(j->folder, steps);
}

static void stop_at_every_question(void **state)
{
    job j = {.world = *(int *)*state, .steps = STEPS};
    char name[32], parent[256], folder[400], whole[400];
    snprintf(name, sizeof name, "stop-%d", j.world);
    snprintf(parent, sizeof parent, "%s", test_folder(name));
    for (j.question = -1; j.question < PHASES + STEPS - 1; j.question++) {
        j.rank = (j.question + 1) % j.world;
        snprintf(folder, sizeof folder, "%s/at-%d", parent, j.question);
        j.folder = folder;
        check_stop(&j);
        if (j.question < PHASES) continue;
        job w = {.world = j.world, .steps = j.question - PHASES + 1, .folder = whole, .question = -1};
        snprintf(whole, sizeof whole, "%s/whole-%d", parent, w.steps);
        check_stop(&w);
        same_weights(folder, whole);
    }
}

int main(void)
{
    static int worlds[] = {1, 2, 3};
    const struct CMUnitTest tests[] = {
        {"one process", stop_at_every_question, NULL, NULL, &worlds[0]},
        {"2 ranks", stop_at_every_question, NULL, NULL, &worlds[1]},
        {"3 ranks", stop_at_every_question, NULL, NULL, &worlds[2]},
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
