/* Learning rates against those of the running library, and what is refused. */
#include "support/test.h"

#include "base/json.h"
#include "train/schedule.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tt_schedule_kind kind_of(const char *word)
{
    static const char *const words[] = {
#define X(name, word, built) word,
        TT_SCHEDULE_MAP(X)
#undef X
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0) return (tt_schedule_kind)i;
    fail_msg("no schedule %s", word);
    return TT_SCHEDULE_LINEAR;
}

/* The same formula in the same order: a handful of roundings of numbers up to 1, the cosine of the two
 * libraries apart by one unit in the last place. */
static double tolerance(double rate)
{
    return rate * 8 * DBL_EPSILON;
}

static bool is_error_of(const json_t *row, const char *type)
{
    const json_t *error = json_object_get(row, "error");
    return error && strcmp(json_string_value(json_object_get(error, "type")), type) == 0;
}

static void check_row(const json_t *row, const char *line, int counts[3])
{
    tt_schedule s;
    double rate, warmup_key;
    int64_t total, warmup;
    tt_schedule_kind kind = kind_of(json_string_value(json_object_get(row, "lr_scheduler_type")));
    const json_t *kwargs = json_object_get(row, "lr_scheduler_kwargs"),
                 *rates = json_object_get(row, "rates");
    assert_ok(tt_json_get_number(row, line, "learning_rate", 0, &rate));
    assert_ok(tt_json_get_number(row, line, "warmup", 0, &warmup_key));
    assert_ok(tt_json_get_int(row, line, "total", 0, &total));
    assert_ok(tt_json_get_int(row, line, "warmup_steps", -1, &warmup));
    assert_int_equal(tt_schedule_warmup(warmup_key, total), warmup);
    tt_status status = tt_schedule_init(&s, kind, kwargs, rate, total, warmup);
    /* The library divides by zero when a polynomial is all warm-up; here the rate at the end is the full one. */
    if (is_error_of(row, "ZeroDivisionError")) {
        assert_int_equal(status, TT_OK);
        assert_close(tt_schedule_rate(&s, total), rate, tolerance(rate));
        counts[1]++;
        return;
    }
    if (!rates) {
        if (status != TT_ECONFIG) fail_msg("accepted: %s", line);
        counts[2]++;
        return;
    }
    if (status != TT_OK) fail_msg("%s\n  refused: %s", tt_error_text(), line);
    for (size_t k = 0; k < json_array_size(rates); k++) {
        double expected = json_number_value(json_array_get(rates, k)), got = tt_schedule_rate(&s, (int64_t)k);
        if (!(fabs(got - expected) <= tolerance(rate)))
            fail_msg("step %zu: %.17g, expected %.17g\n  %.200s", k + 1, got, expected, line);
    }
    counts[0]++;
}

static void rates_are_the_library_s(void **state)
{
    (void)state;
    static char line[16384];
    int counts[3] = {0};
    FILE *f = fopen(test_fixture("sft/schedule/schedules.jsonl"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *row;
        assert_ok(tt_json_parse(line, strlen(line), "schedules.jsonl", &row));
        check_row(row, line, counts);
        json_decref(row);
    }
    fclose(f);
    /* 528 rows: compared, divided by zero in the library, refused by both. */
    assert_int_equal(counts[0], 448);
    assert_int_equal(counts[1], 8);
    assert_int_equal(counts[2], 72);
}

static tt_status init(tt_schedule *s, tt_schedule_kind kind, const char *kwargs, double rate)
{
    json_t *v;
    assert_ok(tt_json_parse(kwargs, strlen(kwargs), "kwargs", &v));
    tt_status status = tt_schedule_init(s, kind, v, rate, 10, 2);
    json_decref(v);
    return status;
}

static void vectors_by_hand(void **state)
{
    (void)state;
    static const struct {
        tt_schedule_kind kind;
        const char *kwargs;
        int64_t step;
        double factor, within;
    } rows[] = {
        {TT_SCHEDULE_LINEAR, "{}", 0, 0, 0},
        {TT_SCHEDULE_LINEAR, "{}", 1, 0.5, 0},
        {TT_SCHEDULE_LINEAR, "{}", 2, 1, 0},
        {TT_SCHEDULE_LINEAR, "{}", 6, 0.5, 0},
        {TT_SCHEDULE_LINEAR, "{}", 9, 0.125, 0},
        {TT_SCHEDULE_COSINE, "{}", 6, 0.5, 1e-15},
        {TT_SCHEDULE_COSINE, "{}", 9, 0.03806, 5e-6}, /* given to five places */
        {TT_SCHEDULE_COSINE_WITH_MIN_LR, "{\"min_lr_rate\": 0.1}", 6, 0.55, 1e-15},
        {TT_SCHEDULE_COSINE_WITH_MIN_LR, "{\"min_lr_rate\": \"1e-1\"}", 6, 0.55, 1e-15},
        {TT_SCHEDULE_INVERSE_SQRT, "{}", 2, 1, 0},
        {TT_SCHEDULE_INVERSE_SQRT, "{}", 8, 0.5, 1e-15},
        {TT_SCHEDULE_INVERSE_SQRT, "{\"timescale\": null}", 8, 0.5, 1e-15},
        {TT_SCHEDULE_CONSTANT, "{}", 0, 1, 0},
        {TT_SCHEDULE_CONSTANT_WITH_WARMUP, "{}", 1, 0.5, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        tt_schedule s;
        assert_ok(init(&s, rows[i].kind, rows[i].kwargs, 1));
        assert_close(tt_schedule_factor(&s, rows[i].step), rows[i].factor, rows[i].within);
    }
    tt_schedule s;
    assert_ok(tt_schedule_init(&s, TT_SCHEDULE_COSINE, NULL, 1, 10, 2));
    assert_close(tt_schedule_factor(&s, 2), 1, 0);
}

static void impossible_parameters_are_refused(void **state)
{
    (void)state;
    static const struct {
        tt_schedule_kind kind;
        const char *kwargs, *part;
    } rows[] = {
        {TT_SCHEDULE_LINEAR, "{\"num_cycles\": 1}", "linear has no parameter 'num_cycles'; it has: none"},
        {TT_SCHEDULE_COSINE, "{\"num_cycle\": 1}", "cosine has no parameter 'num_cycle'; it has: num_cycles"},
        {TT_SCHEDULE_COSINE, "{\"num_cycles\": \"nan\"}", "num_cycles is string"},
        {TT_SCHEDULE_COSINE, "{\"num_cycles\": \"1e999\"}", "num_cycles is string"},
        {TT_SCHEDULE_COSINE, "{\"num_cycles\": -1}", "expected a number from 0"},
        {TT_SCHEDULE_COSINE, "{\"num_cycles\": true}", "num_cycles is boolean"},
        {TT_SCHEDULE_COSINE_WITH_MIN_LR, "{}", "needs min_lr or min_lr_rate"},
        {TT_SCHEDULE_COSINE_WITH_MIN_LR, "{\"min_lr\": 0.1, \"min_lr_rate\": 0.1}", "both set"},
        {TT_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR, "{\"min_lr_rate\": 1.5}", "min_lr_rate is real 1.5"},
        {TT_SCHEDULE_POLYNOMIAL, "{\"lr_end\": 1.0}", "lr_end 1 is not below learning_rate 1"},
        {TT_SCHEDULE_WARMUP_STABLE_DECAY, "{}", "needs num_decay_steps"},
        {TT_SCHEDULE_WARMUP_STABLE_DECAY, "{\"num_decay_steps\": 1.5}", "expected a whole number"},
        {TT_SCHEDULE_WARMUP_STABLE_DECAY, "{\"num_decay_steps\": 2, \"decay_type\": \"flat\"}",
         "decay_type is 'flat'"},
        {TT_SCHEDULE_WARMUP_STABLE_DECAY, "{\"num_decay_steps\": 2, \"warmup_type\": 1}",
         "warmup_type is integer"},
        {TT_SCHEDULE_INVERSE_SQRT, "{\"timescale\": 0}", "timescale"},
        {TT_SCHEDULE_REDUCE_LR_ON_PLATEAU, "{}", "not supported yet"},
        {TT_SCHEDULE_GREEDY, "{}", "not supported yet"},
    };
    tt_schedule s;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_error(init(&s, rows[i].kind, rows[i].kwargs, 1), TT_ECONFIG, rows[i].part);
    assert_error(init(&s, TT_SCHEDULE_COSINE_WITH_MIN_LR, "{\"min_lr\": 0.1}", 0), TT_ECONFIG,
                 "learning_rate, which is 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_the_library_s),
        cmocka_unit_test(vectors_by_hand),
        cmocka_unit_test(impossible_parameters_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
