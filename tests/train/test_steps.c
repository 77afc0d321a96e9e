/* Step arithmetic and the rows of micro-batches, against the running libraries, and what must hold for any sizes. */
#include "support/test.h"

#include "base/json.h"
#include "train/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 8 };

static int64_t integer(const json_t *row, const char *key)
{
    int64_t n;
    assert_ok(tt_json_get_int(row, "row", key, INT64_MIN, &n));
    return n;
}

static tt_steps steps_of(const json_t *row)
{
    tt_steps s = {.rows = integer(row, "rows"),
                  .batch = integer(row, "batch"),
                  .ranks = json_object_get(row, "world") ? integer(row, "world") : 1,
                  .accumulation = integer(row, "accumulation"),
                  .max_steps = integer(row, "max_steps")};
    assert_ok(tt_json_get_number(row, "row", "epochs", 0, &s.epochs));
    assert_ok(tt_json_get_bool(row, "row", "drop_last", false, &s.drop_last));
    return s;
}

/* Rows of one micro-batch with even_batches. The fixture's sampler also fills the last batch of a single
 * rank, which the trainer does not use for one process: there only the first rows count, those that do not
 * repeat. */
static void check_even_rows(const tt_steps *s, int64_t micro, int64_t rank, const json_t *expected,
                            const char *line)
{
    int64_t got[MAX_BATCH], count = tt_steps_rows(s, micro, rank, got);
    size_t rows = json_array_size(expected);
    if (s->ranks == 1 && (int64_t)rows > s->rows - micro * s->batch)
        rows = (size_t)(s->rows - micro * s->batch);
    if (count != (int64_t)rows)
        fail_msg("micro %lld rank %lld: %lld rows\n  %s", (long long)micro, (long long)rank, (long long)count,
                 line);
    for (int64_t i = 0; i < count; i++)
        if (got[i] != json_integer_value(json_array_get(expected, (size_t)i)))
            fail_msg("micro %lld rank %lld: row %lld is %lld\n  %s", (long long)micro, (long long)rank,
                     (long long)i, (long long)got[i], line);
}

static void check_rows(tt_steps s, const json_t *ranks, const char *line)
{
    s.even_batches = true;
    for (size_t r = 0; r < json_array_size(ranks); r++) {
        const json_t *batches = json_array_get(ranks, r);
        assert_int_equal(json_array_size(batches), s.micro_batches);
        for (size_t m = 0; m < json_array_size(batches); m++)
            check_even_rows(&s, (int64_t)m, (int64_t)r, json_array_get(batches, m), line);
    }
}

static void arithmetic_is_the_library_s(void **state)
{
    (void)state;
    static char line[8192];
    int counted = 0, degenerate = 0, with_rows = 0;
    FILE *f = fopen(test_fixture("sft/schedule/steps.jsonl"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *row;
        assert_ok(tt_json_parse(line, strlen(line), "steps.jsonl", &row));
        tt_steps s = steps_of(row);
        if (json_is_true(json_object_get(row, "degenerate"))) {
            assert_error(tt_steps_init(&s), TT_EDATA, "dataloader_drop_last: false");
            degenerate++;
        } else {
            assert_ok(tt_steps_init(&s));
            assert_int_equal(s.micro_batches, integer(row, "micro_batches"));
            assert_int_equal(s.steps_per_epoch, integer(row, "steps_per_epoch"));
            assert_int_equal(s.total, integer(row, "total_steps"));
            assert_int_equal(s.train_epochs, integer(row, "train_epochs"));
            json_t *ranks = json_object_get(row, "ranks");
            if (ranks) check_rows(s, ranks, line), with_rows++;
            counted++;
        }
        json_decref(row);
    }
    fclose(f);
    assert_int_equal(counted + degenerate, 1080);
    assert_int_equal(degenerate, 180);
    assert_true(with_rows > 50);
}

static void check_log(const tt_steps *s, const json_t *log)
{
    for (size_t i = 0; i < json_array_size(log); i++) {
        const json_t *record = json_array_get(log, i);
        double epoch;
        assert_ok(tt_json_get_number(record, "record", "epoch", -1, &epoch));
        assert_close(tt_steps_epoch(s, integer(record, "step")), epoch, 0); /* the same two operations */
    }
}

static void logged_epochs_are_the_library_s(void **state)
{
    (void)state;
    static char line[8192];
    int count = 0;
    FILE *f = fopen(test_fixture("sft/schedule/runs.jsonl"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *row;
        double logging, final;
        assert_ok(tt_json_parse(line, strlen(line), "runs.jsonl", &row));
        tt_steps s = steps_of(row);
        assert_ok(tt_steps_init(&s));
        assert_int_equal(s.total, integer(row, "global_step"));
        assert_int_equal(s.total, integer(row, "state_max_steps"));
        assert_ok(tt_json_get_number(row, line, "logging_steps", 0, &logging));
        assert_ok(tt_json_get_number(row, line, "final_epoch", 0, &final));
        assert_int_equal(tt_steps_interval(logging, s.total), integer(row, "resolved_logging_steps"));
        assert_close(tt_steps_epoch(&s, s.total), final, 0);
        check_log(&s, json_object_get(row, "log"));
        json_decref(row);
        count++;
    }
    fclose(f);
    assert_int_equal(count, 10);
    tt_steps s = {.rows = 10, .batch = 2, .ranks = 1, .accumulation = 2, .epochs = 1};
    assert_ok(tt_steps_init(&s));
    assert_close(tt_steps_epoch(&s, 0), 0, 0);
}

/* Over an epoch: without even_batches every row once (or, with drop_last, at most once); spans tile the epoch. */
static void check_epoch(const tt_steps *s)
{
    int times[40] = {0};
    int64_t next = 0, rows[MAX_BATCH];
    for (int64_t step = 0; step < s->steps_per_epoch; step++) {
        tt_step_span span = tt_steps_span(s, step + 3 * s->steps_per_epoch);
        assert_int_equal(span.epoch, 3);
        assert_int_equal(span.first, next);
        assert_in_range(span.count, 1, s->accumulation);
        next += span.count;
        for (int64_t m = span.first; m < next; m++)
            for (int64_t r = 0; r < s->ranks; r++) {
                int64_t n = tt_steps_rows(s, m, r, rows);
                assert_in_range(n, 0, s->batch);
                for (int64_t i = 0; i < n; i++) times[rows[i]]++;
            }
    }
    assert_int_equal(next, s->micro_batches);
    int64_t round = s->batch * s->ranks, full = s->rows / round * round;
    bool repeats = s->even_batches && s->ranks > 1 && !s->drop_last;
    int64_t trained = 0;
    for (int64_t i = 0; i < s->rows; i++) {
        if (repeats ? times[i] < 1 : times[i] != (s->drop_last && i >= full ? 0 : 1))
            fail_msg("row %lld of %lld is trained %d times (batch %lld, ranks %lld)", (long long)i,
                     (long long)s->rows, times[i], (long long)s->batch, (long long)s->ranks);
        trained += times[i];
    }
    if (repeats) assert_int_equal(trained, (s->rows + round - 1) / round * round);
}

static void every_row_is_trained_once(void **state)
{
    (void)state;
    int checked = 0;
    for (int flags = 0; flags < 4; flags++)
        for (int64_t n = 1; n < 40; n++)
            for (int64_t ranks = 1; ranks < 7; ranks++)
                for (int64_t batch = 1; batch < 5; batch++) {
                    tt_steps s = {
                        .rows = n, .batch = batch, .ranks = ranks, .accumulation = 1 + n % 3, .epochs = 2.5};
                    s.drop_last = flags & 1;
                    s.even_batches = flags & 2;
                    if (s.drop_last && n < batch * ranks) continue;
                    assert_ok(tt_steps_init(&s));
                    check_epoch(&s);
                    checked++;
                }
    assert_true(checked > 3000);
}

static void ranks_without_rows_take_part(void **state)
{
    (void)state;
    tt_steps s = {.rows = 7, .batch = 2, .ranks = 2, .accumulation = 1, .epochs = 1};
    int64_t rows[2];
    assert_ok(tt_steps_init(&s));
    assert_int_equal(s.total, 2);
    assert_int_equal(tt_steps_rows(&s, 1, 1, rows), 1);
    assert_int_equal(rows[0], 6);
    s.even_batches = true;
    assert_int_equal(tt_steps_rows(&s, 1, 1, rows), 2);
    assert_int_equal(rows[1], 0);
    tt_steps lone = {.rows = 1, .batch = 4, .ranks = 8, .accumulation = 1, .epochs = 1};
    assert_ok(tt_steps_init(&lone));
    assert_int_equal(tt_steps_rows(&lone, 0, 7, rows), 0);
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    const tt_steps good = {.rows = 5, .batch = 2, .ranks = 2, .accumulation = 2, .epochs = 1};
    tt_steps s = good;
    assert_ok(tt_steps_init(&s));
    s = good, s.rows = 0;
    assert_error(tt_steps_init(&s), TT_EDATA, "no rows");
    s = good, s.batch = 0;
    assert_error(tt_steps_init(&s), TT_ECONFIG, "per_device_train_batch_size 0");
    s = good, s.batch = INT64_MAX / 2, s.ranks = 3;
    assert_error(tt_steps_init(&s), TT_ECONFIG, "beyond what can be counted");
    s = good, s.batch = INT64_MAX / 4, s.accumulation = 1, s.rows = INT64_MAX - 5;
    assert_error(tt_steps_init(&s), TT_ECONFIG, "too many rows");
    s = good, s.epochs = 1e300;
    assert_error(tt_steps_init(&s), TT_ECONFIG, "num_train_epochs 1e+300");
    s = good, s.epochs = 0;
    assert_error(tt_steps_init(&s), TT_ECONFIG, "num_train_epochs is 0");
    s = good, s.max_steps = INT64_MAX, s.epochs = 0;
    assert_ok(tt_steps_init(&s));
    assert_int_equal(s.total, INT64_MAX);
}

static void intervals(void **state)
{
    (void)state;
    assert_int_equal(tt_steps_interval(10, 3), 10);
    assert_int_equal(tt_steps_interval(0.3, 6), 2);
    assert_int_equal(tt_steps_interval(0.5, 4), 2);
    assert_int_equal(tt_steps_interval(1e-9, 5), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_is_the_library_s),  cmocka_unit_test(logged_epochs_are_the_library_s),
        cmocka_unit_test(every_row_is_trained_once),    cmocka_unit_test(ranks_without_rows_take_part),
        cmocka_unit_test(impossible_sizes_are_refused), cmocka_unit_test(intervals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
