/* The profile of whole runs: times that add up to the steps, waiting told from work, a trace that is valid, and a run that is
 * the same with and without. */
#include "support/fixture.h"
#include "support/test.h"

#include "base/file.h"
#include "base/json.h"
#include "data/jsonl.h"
#include "train/sft.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 5, MAX_WORLD = 2 };

/* --- runs of tartan sft -------------------------------------------------------------------------------------- */

typedef struct job {
    int world, ep, threads;
    bool profile, recompute;
    char folder[600];
    tt_sft_report reports[MAX_WORLD];
} job;

static tt_status configure(const job *j, tt_config *c)
{
    char ep[16], threads[16];
    snprintf(ep, sizeof ep, "%d", j->ep);
    snprintf(threads, sizeof threads, "%d", j->threads);
    char *options[] = {"--model_name_or_path", "tests/fixtures/sft/runs/model-qwen3_moe",
                       "--dataset_name", "tests/fixtures/sft/runs/conversation/data.jsonl",
                       "--output_dir", (char *)j->folder, "--max_steps", "5", "--bf16", "false", "--threads", threads,
                       "--ep_size", ep, "--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2",
                       "--logging_steps", "2", "--report_to", "none", "--save_strategy", "no",
                       j->recompute ? "--gradient_checkpointing" : "--no_gradient_checkpointing",
                       j->profile ? "--profile" : "--no_profile"};
    TT_TRY(tt_config_init(c));
    TT_TRY(tt_config_options(c, sizeof options / sizeof *options, options));
    return tt_config_resolve(c);
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_config c;
    tt_status status = configure(j, &c);
    if (status == TT_OK) status = tt_sft(comm, &c, NULL, &j->reports[tt_comm_rank(comm)]);
    tt_config_free(&c);
    return status;
}

static void run(job *j, const char *name)
{
    snprintf(j->folder, sizeof j->folder, "%s", test_folder(name));
    assert_ok(tt_comm_run_threads(j->world, rank_main, j));
}

/* The records of a run as an array. */
static json_t *records(const job *j)
{
    char path[700];
    tt_jsonl *reader;
    const tt_jsonl_row *rows;
    int64_t count;
    json_t *all = json_array(), *record;
    snprintf(path, sizeof path, "%s/metrics.jsonl", j->folder);
    assert_ok(tt_jsonl_open(path, 0, &reader));
    assert_ok(tt_jsonl_next(reader, &rows, &count));
    for (int64_t i = 0; i < count; i++) {
        assert_ok(tt_jsonl_parse(&rows[i], path, &record));
        json_array_append_new(all, record);
    }
    tt_jsonl_close(&reader);
    return all;
}

static double sum_of(const json_t *object, int members)
{
    const char *key;
    json_t *value;
    double sum = 0;
    assert_int_equal(json_object_size(object), members);
    json_object_foreach((json_t *)object, key, value)
    {
        assert_true(json_is_real(value) && json_real_value(value) >= 0);
        sum += json_real_value(value);
    }
    return sum;
}

static double member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("no number '%s'", key);
    return json_number_value(value);
}

/* Sums of doubles of one step: some dozen roundings. */
static void check_rank(const json_t *rank, bool recompute)
{
    const json_t *stages = json_object_get(rank, "stages"), *phases = json_object_get(rank, "phases");
    double step = member(rank, "step");
    assert_true(step > 0);
    assert_close(sum_of(stages, TT_NUM_STAGES), step, 1e-12);
    assert_close(sum_of(phases, TT_NUM_PHASES), step, 1e-12);
    static const char *const always[] = {"router", "dispatch", "experts", "attention", "head", "optimizer", "data", "other"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!(member(phases, always[i]) > 0)) fail_msg("no time in %s", always[i]);
    assert_true(member(stages, "forward") > 0 && member(stages, "backward") > 0 && member(stages, "optimizer") > 0);
    assert_true((member(stages, "recompute") > 0) == recompute);
}

static void records_have_a_profile(void **state)
{
    (void)state;
    static const int64_t steps[] = {2, 2};
    for (int world = 1; world <= 2; world++) {
        job j = {.world = world, .ep = world, .threads = 1, .profile = true, .recompute = world == 2};
        run(&j, "profile-records");
        json_t *all = records(&j);
        assert_int_equal(json_array_size(all), 3); /* after steps 2 and 4, and the last line */
        for (size_t i = 0; i < 2; i++) {
            const json_t *record = json_array_get(all, i), *profile = json_object_get(record, "profile");
            const json_t *ranks = json_object_get(profile, "ranks");
            assert_int_equal(json_integer_value(json_object_get(profile, "steps")), steps[i]);
            assert_int_equal(json_array_size(ranks), world);
            for (int r = 0; r < world; r++) check_rank(json_array_get(ranks, (size_t)r), j.recompute);
            assert_true((member(json_object_get(json_array_get(ranks, 0), "phases"), "waiting") > 0) == (world > 1));
        }
        assert_null(json_object_get(json_array_get(all, 2), "profile"));
        json_decref(all);
    }
}

static void the_table_has_all_phases(void **state)
{
    (void)state;
    char text[4096];
    job j = {.world = 2, .ep = 2, .threads = 1, .profile = true, .recompute = true};
    run(&j, "profile-table");
    const tt_profile_report *r = &j.reports[0].profile;
    assert_int_equal(r->steps, STEPS - 1);
    assert_int_equal(r->ranks, 2);
    assert_int_equal(r->left_out, 0);
    assert_memory_equal(r, &j.reports[1].profile, sizeof *r); /* all ranks have the same */
    for (int p = 0; p < TT_NUM_PHASES; p++)
        assert_true(r->most[p] >= tt_times_phase(&r->mean, (tt_phase)p) * (1 - 1e-12));
    tt_profile_report_text(r, text, sizeof text);
    static const char *const parts[] = {"mean of 4 steps and 2 ranks", "router", "dispatch", "experts", "attention", "head",
                                        "reduce", "optimizer", "waiting", "other", "100.0 %", "of which recompute", "(rank "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) fail_msg("no '%s' in\n%s", parts[i], text);
    assert_null(strstr(text, "mlp")); /* the model has none */
    char little[20];
    tt_profile_report_text(r, little, sizeof little);
    assert_int_equal(strlen(little), sizeof little - 1);
}

static void check_record(const json_t *with, const json_t *without)
{
    static const char *const times[] = {"tokens_per_second", "tflops", "train_runtime", "train_samples_per_second",
                                        "train_steps_per_second", "profile"};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        json_object_del((json_t *)with, times[i]);
        json_object_del((json_t *)without, times[i]);
    }
    if (!json_equal(with, without))
        fail_msg("%s\nand without a profile\n%s", json_dumps(with, JSON_COMPACT), json_dumps(without, JSON_COMPACT));
}

static void a_profile_changes_nothing(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        char path[700], *text[2];
        size_t bytes[2];
        json_t *all[2];
        for (int on = 0; on < 2; on++) {
            job j = {.world = world, .ep = world, .threads = 2, .profile = on, .recompute = true};
            run(&j, on ? "profile-on" : "profile-off");
            snprintf(path, sizeof path, "%s/model.safetensors", j.folder);
            assert_ok(tt_file_read_all(path, 1 << 24, &text[on], &bytes[on]));
            all[on] = records(&j);
            snprintf(path, sizeof path, "%s/trace.json", j.folder);
            assert_int_equal(tt_file_exists(path), on);
            assert_int_equal(json_object_get(json_array_get(all[on], 0), "profile") != NULL, on);
            assert_int_equal(j.reports[0].profile.steps, on ? STEPS - 1 : 0);
        }
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(text[0], text[1], bytes[0]);
        assert_int_equal(json_array_size(all[0]), json_array_size(all[1]));
        for (size_t i = 0; i < json_array_size(all[0]); i++)
            check_record(json_array_get(all[1], i), json_array_get(all[0], i));
        for (int on = 0; on < 2; on++) free(text[on]), json_decref(all[on]);
    }
}

/* --- the trace ------------------------------------------------------------------------------------------------- */

typedef struct interval {
    double begin, end;
    char name[64];
} interval;

/* Outer before inner. */
static int by_begin(const void *a, const void *b)
{
    const interval *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end > y->end ? -1 : x->end < y->end;
}

/* The spans of one track, sorted. Free. */
static interval *track(const json_t *events, int rank, int thread, int *num)
{
    size_t i;
    json_t *e;
    interval *all = calloc(json_array_size(events), sizeof *all);
    *num = 0;
    json_array_foreach((json_t *)events, i, e)
    {
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X") != 0) continue;
        if (member(e, "pid") != rank || member(e, "tid") != thread) continue;
        interval *s = &all[(*num)++];
        s->begin = member(e, "ts");
        s->end = s->begin + member(e, "dur");
        snprintf(s->name, sizeof s->name, "%s", json_string_value(json_object_get(e, "name")));
    }
    qsort(all, (size_t)*num, sizeof *all, by_begin);
    return all;
}

/* A span either lies within an open one or begins behind it; times are written with three digits, so a begin and an end are each
 * off by up to 0.001. */
static void check_nesting(const interval *spans, int num)
{
    double open[32];
    int depth = 0;
    for (int i = 0; i < num; i++) {
        assert_true(spans[i].end >= spans[i].begin);
        while (depth > 0 && open[depth - 1] <= spans[i].begin + 0.0025) depth--;
        if (depth > 0 && spans[i].end > open[depth - 1] + 0.0025)
            fail_msg("%s, %.3f to %.3f, is half in a span that ends at %.3f", spans[i].name, spans[i].begin, spans[i].end,
                     open[depth - 1]);
        assert_true(depth < 32);
        open[depth++] = spans[i].end;
    }
}

static int count(const interval *spans, int num, const char *name)
{
    int n = 0;
    for (int i = 0; i < num; i++) n += !strcmp(spans[i].name, name);
    return n;
}

static void check_names(const json_t *events, int world, int threads)
{
    size_t i;
    json_t *e;
    int ranks = 0, tracks = 0;
    json_array_foreach((json_t *)events, i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        assert_true(member(e, "pid") < world && member(e, "tid") < threads);
        ranks += !strcmp(name, "process_name");
        tracks += !strcmp(name, "thread_name");
    }
    assert_int_equal(ranks, world);
    assert_int_equal(tracks, world * threads);
}

static void check_thread_0(const interval *spans, int num)
{
    char name[32];
    for (int s = 1; s <= STEPS; s++) {
        snprintf(name, sizeof name, "step %d", s);
        assert_int_equal(count(spans, num, name), 1);
    }
    /* Two micro-batches a step, two layers, of which the first is recomputed in backward: its experts apart, before their own. */
    assert_int_equal(count(spans, num, "forward"), 2 * STEPS);
    assert_int_equal(count(spans, num, "recompute"), 2 * 2 * STEPS);
    static const char *const names[] = {"data", "backward", "router", "dispatch", "experts", "attention", "head", "optimizer",
                                        "linear", "grouped_linear", "grouped_dw", "attention_back", "adamw"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (count(spans, num, names[i]) == 0) fail_msg("no span '%s' on thread 0", names[i]);
}

static void the_trace_is_valid(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        char path[700];
        json_t *trace;
        int num;
        job j = {.world = world, .ep = 1, .threads = 2, .profile = true, .recompute = true};
        run(&j, "profile-trace");
        snprintf(path, sizeof path, "%s/trace.json", j.folder);
        assert_ok(tt_json_load(path, 1 << 26, &trace));
        const json_t *events = json_object_get(trace, "traceEvents");
        check_names(events, world, 2);
        int64_t spans = 0;
        for (int r = 0; r < world; r++)
            for (int t = 0; t < 2; t++) {
                interval *all = track(events, r, t, &num);
                check_nesting(all, num);
                if (t == 0) check_thread_0(all, num);
                else assert_true(count(all, num, "cross_entropy") > 0); /* large enough for two threads */
                spans += num;
                free(all);
            }
        assert_true(j.reports[0].profile.events <= spans && j.reports[0].profile.events > 0);
        json_decref(trace);
    }
}

/* --- steps of a model -------------------------------------------------------------------------------------------- */

typedef struct lab {
    double wall[MAX_WORLD], least_rest[MAX_WORLD]; /* share of a step that no phase has, the least of all steps */
    double sleep;                                 /* of rank 1, in each block */
    tt_times times[MAX_WORLD];                    /* of the last step */
    const char *trace;
    int64_t capacity;
} lab;

static void sleepy(void *user, const char *what, int layer, tt_mat m)
{
    const lab *l = user;
    (void)layer, (void)m;
    if (!strcmp(what, "block")) nanosleep(&(struct timespec){0, (long)(1e9 * l->sleep)}, NULL);
}

static tt_status steps(fixture *f, lab *l, const json_t *train, tt_profiler *p)
{
    int rank = tt_comm_rank(f->comm);
    tt_step_options o = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .max_grad_norm = 1};
    if (rank == 1 && l->sleep > 0) f->engine.model.tap = sleepy, f->engine.model.tap_user = l;
    l->least_rest[rank] = INFINITY;
    for (int i = 0; i < 8; i++) {
        tt_step_result r;
        double start = tt_seconds();
        tt_profile_step_begin(p->profile, i + 1);
        TT_TRY(fixture_step(f, train, 0, o, &r));
        l->times[rank] = tt_profile_step_end(p->profile);
        double wall = tt_seconds() - start, sum = tt_times_sum(&l->times[rank]);
        TT_CHECK(sum <= wall, TT_EVERDICT, "phases of %g s in a step of %g s", sum, wall);
        l->least_rest[rank] = fmin(l->least_rest[rank], (wall - sum) / wall);
    }
    return l->trace ? tt_profiler_trace(p, l->trace) : TT_OK;
}

static tt_status lab_body(fixture *f, void *arg)
{
    lab *l = arg;
    json_t *train;
    tt_profiler p;
    TT_TRY(fixture_json(f, "train.json", &train));
    tt_status status = tt_profiler_open(&p, f->comm, f->engine.kernel);
    if (status == TT_OK && l->capacity) p.profile->capacity = l->capacity;
    if (status == TT_OK) status = steps(f, l, train, &p);
    tt_profiler_close(&p);
    json_decref(train);
    return status;
}

/* Between the looks at the clock that surround a step and those of its profile there is nothing but an interruption, which not
 * every one of the steps has. */
static void phases_add_up_to_the_wall_time(void **state)
{
    (void)state;
    for (int world = 1; world <= 2; world++) {
        lab l = {0};
        fixture_run r = {.id = "O1", .ops = &tt_ops_cpu, .world = world, .ep = world, .recompute = true};
        assert_ok(fixture_on_mesh(&r, lab_body, &l));
        for (int i = 0; i < world; i++)
            if (!(l.least_rest[i] <= 0.02)) fail_msg("rank %d: %g of each step has no phase", i, l.least_rest[i]);
    }
}

/* Rank 1 sleeps after each block; rank 0 has nothing to do meanwhile, and says so. */
static void who_waits_for_a_slow_rank_says_so(void **state)
{
    (void)state;
    lab l = {.sleep = 0.05};
    fixture_run r = {.id = "O1", .ops = &tt_ops_cpu, .world = 2, .ep = 2};
    assert_ok(fixture_on_mesh(&r, lab_body, &l));
    double slept = tt_times_phase(&l.times[1], TT_PHASE_OTHER), waited = tt_times_phase(&l.times[0], TT_PHASE_WAITING);
    double worked = tt_times_sum(&l.times[0]) - waited;
    assert_true(slept >= 2 * 0.05); /* two layers at least */
    if (!(waited >= 0.9 * slept)) fail_msg("rank 1 slept %g s, rank 0 waited %g s", slept, waited);
    if (!(worked <= 0.5 * waited)) fail_msg("rank 0 waited %g s and seems to work for %g s", waited, worked);
}

static void a_full_trace_says_so(void **state)
{
    (void)state;
    char path[1100];
    json_t *trace, *e;
    size_t i;
    int spans = 0, ends = 0;
    snprintf(path, sizeof path, "%s/trace.json", test_folder("profile-full"));
    lab l = {.trace = path, .capacity = 10};
    fixture_run r = {.id = "O1", .ops = &tt_ops_cpu, .world = 2, .ep = 2};
    assert_ok(fixture_on_mesh(&r, lab_body, &l));
    assert_ok(tt_json_load(path, 1 << 20, &trace));
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
    {
        const char *name = json_string_value(json_object_get(e, "name"));
        spans += !strcmp(json_string_value(json_object_get(e, "ph")), "X");
        ends += strstr(name, "full: ") && strstr(name, "later events are left out");
    }
    assert_int_equal(spans, 2 * 10);
    assert_int_equal(ends, 2);
    json_decref(trace);
}

static void a_trace_without_a_place_is_an_error_of_all(void **state)
{
    (void)state;
    lab l = {.trace = "tests/no-such-folder/trace.json"};
    fixture_run r = {.id = "O1", .ops = &tt_ops_cpu, .world = 2, .ep = 2};
    assert_error(fixture_on_mesh(&r, lab_body, &l), TT_EIO, "no-such-folder");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_have_a_profile),
        cmocka_unit_test(the_table_has_all_phases),
        cmocka_unit_test(a_profile_changes_nothing),
        cmocka_unit_test(the_trace_is_valid),
        cmocka_unit_test(phases_add_up_to_the_wall_time),
        cmocka_unit_test(who_waits_for_a_slow_rank_says_so),
        cmocka_unit_test(a_full_trace_says_so),
        cmocka_unit_test(a_trace_without_a_place_is_an_error_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
