#include "train/metrics.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static tt_status open_file(tt_metrics *m, const char *path, const char *mode)
{
    m->file = fopen(path, mode);
    TT_CHECK(m->file, TT_EIO, "cannot create '%s': %s", path, strerror(errno));
    return TT_OK;
}

tt_status tt_metrics_open(tt_metrics *m, const char *path, bool with_balance)
{
    *m = (tt_metrics){.since = tt_seconds(), .with_balance = with_balance};
    if (!path) return TT_OK;
    m->history = json_array();
    TT_CHECK(m->history, TT_ENOMEM, "%s: out of memory", path);
    return open_file(m, path, "w");
}

/* --- going on -------------------------------------------------------------------------------------------------- */

static char *text_of(const json_t *record)
{
    return json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(15));
}

/* Whether a line of a file is a record: it has all of its members, and perhaps more. */
static bool is_record(const char *line, ssize_t bytes, const json_t *record)
{
    const char *key;
    json_t *value, *all = bytes > 0 && line[bytes - 1] == '\n' ? json_loadb(line, (size_t)bytes, JSON_REJECT_DUPLICATES, NULL) : NULL;
    bool same = json_is_object(all);
    json_object_foreach((json_t *)record, key, value) same = same && json_equal(json_object_get(all, key), value);
    json_decref(all);
    return same;
}

/* old: NULL when there is none. */
static tt_status write_history(FILE *out, FILE *old, const json_t *history)
{
    size_t i, room = 0;
    json_t *record;
    char *line = NULL;
    bool good = true;
    json_array_foreach((json_t *)history, i, record)
    {
        ssize_t bytes = old ? getline(&line, &room, old) : 0;
        if (!is_record(line, bytes, record)) {
            char *text = text_of(record);
            good = good && text && fprintf(out, "%s\n", text) > 0;
            free(text);
            old = NULL; /* what follows is of another run */
        } else {
            good = good && fwrite(line, 1, (size_t)bytes, out) == (size_t)bytes;
        }
    }
    free(line);
    TT_CHECK(good, TT_EIO, "cannot write metrics.jsonl: %s", strerror(errno));
    return TT_OK;
}

tt_status tt_metrics_continue(tt_metrics *m, const char *path, const json_t *history, bool with_balance)
{
    char temporary[4096];
    *m = (tt_metrics){.since = tt_seconds(), .with_balance = with_balance, .history = json_deep_copy(history)};
    TT_CHECK(json_is_array(m->history), TT_EFORMAT, "%s: the checkpoint's log_history is not a list", path);
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", path);
    TT_CHECK(n > 0 && (size_t)n < sizeof temporary, TT_ECONFIG, "path is too long: %.200s", path);
    FILE *old = fopen(path, "r"), *out = fopen(temporary, "w");
    tt_status status = out ? write_history(out, old, history)
                           : tt_error_set(TT_EIO, "cannot create '%s': %s", temporary, strerror(errno));
    if (out && fclose(out) != 0 && status == TT_OK)
        status = tt_error_set(TT_EIO, "cannot write '%s': %s", temporary, strerror(errno));
    if (old) fclose(old);
    if (status == TT_OK) status = tt_file_rename(temporary, path);
    return status == TT_OK ? open_file(m, path, "a") : status;
}

json_t *tt_metrics_save(const tt_metrics *m)
{
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:f}", "steps", (json_int_t)m->steps, "micro_steps",
                     (json_int_t)m->micro_steps, "tokens", (json_int_t)m->tokens, "loss", m->loss, "accuracy", m->accuracy,
                     "entropy", m->entropy, "balance", m->balance, "flops", m->flops, "seconds", tt_seconds() - m->since, "total_tokens",
                     (json_int_t)m->total_tokens, "total_steps", (json_int_t)m->total_steps, "total_loss", m->total_loss);
}

tt_status tt_metrics_restore(tt_metrics *m, const json_t *saved, const char *where)
{
    double seconds;
    const struct {
        const char *key;
        int64_t *to;
    } counts[] = {{"steps", &m->steps}, {"micro_steps", &m->micro_steps}, {"tokens", &m->tokens},
                  {"total_tokens", &m->total_tokens}, {"total_steps", &m->total_steps}};
    const struct {
        const char *key;
        double *to;
    } sums[] = {{"loss", &m->loss}, {"accuracy", &m->accuracy}, {"entropy", &m->entropy}, {"balance", &m->balance},
                {"flops", &m->flops}, {"total_loss", &m->total_loss}, {"seconds", &seconds}};
    TT_CHECK(json_is_object(saved), TT_EFORMAT, "%s: \"metrics\" is not an object", where);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        TT_TRY(tt_json_get_int(saved, where, counts[i].key, -1, counts[i].to));
        TT_CHECK(*counts[i].to >= 0, TT_EFORMAT, "%s: \"metrics\" has no usable \"%s\"", where, counts[i].key);
    }
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) TT_TRY(tt_json_get_number(saved, where, sums[i].key, 0, sums[i].to));
    m->since = tt_seconds() - seconds;
    return TT_OK;
}

/* --- records --------------------------------------------------------------------------------------------------- */

void tt_metrics_add(tt_metrics *m, const tt_step_result *r, int micro_steps)
{
    m->tokens += r->tokens;
    m->flops += r->flops;
    m->total_tokens += r->tokens;
    if (r->skipped) return;
    m->steps++;
    m->micro_steps += micro_steps;
    m->loss += r->loss;
    m->accuracy += r->accuracy * micro_steps;
    m->entropy += r->entropy * micro_steps;
    m->balance += r->balance_loss * micro_steps;
    m->total_loss += r->loss;
    m->total_steps++;
}

/* JSON has no NaN: what is not finite becomes null. */
static void set(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, isfinite(value) ? json_real(value) : json_null());
}

/* Takes the record over. */
static tt_status write_line(tt_metrics *m, json_t *record)
{
    tt_status status = TT_OK;
    char *text = m->file ? text_of(record) : NULL;
    if (m->file && (!text || fprintf(m->file, "%s\n", text) < 0 || fflush(m->file) != 0))
        status = tt_error_set(TT_EIO, "cannot write metrics.jsonl: %s", strerror(errno));
    free(text);
    json_decref(record);
    return status;
}

/* The record as its line has it, so that the two can be compared. */
static tt_status remember(tt_metrics *m, const json_t *record)
{
    if (!m->file) return TT_OK;
    char *text = text_of(record);
    json_t *copy = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    TT_CHECK(copy && json_array_append_new(m->history, copy) == 0, TT_ENOMEM, "out of memory for the history of records");
    return TT_OK;
}

tt_status tt_metrics_record(tt_metrics *m, int64_t step, double epoch, double learning_rate, double grad_norm,
                            json_t *extra)
{
    double now = tt_seconds(), steps = (double)m->steps, micro = (double)m->micro_steps;
    double seconds = fmax(now - m->since, 1e-9);
    json_t *o = json_object();
    set(o, "loss", m->loss / steps);
    set(o, "grad_norm", grad_norm);
    set(o, "learning_rate", learning_rate);
    set(o, "entropy", m->entropy / micro);
    json_object_set_new(o, "num_tokens", json_integer(m->total_tokens));
    set(o, "mean_token_accuracy", m->accuracy / micro);
    if (m->with_balance) set(o, "aux_loss", m->balance / micro);
    set(o, "tokens_per_second", (double)m->tokens / seconds);
    set(o, "tflops", 1e-12 * m->flops / seconds);
    if (m->rate > 0) set(o, "mfu", m->flops / seconds / m->rate);
    set(o, "epoch", epoch);
    json_object_set_new(o, "step", json_integer(step));
    tt_status status = remember(m, o);
    if (extra) json_object_update(o, extra);
    m->steps = m->micro_steps = m->tokens = 0;
    m->loss = m->accuracy = m->entropy = m->balance = m->flops = 0;
    m->since = now;
    tt_status written = write_line(m, o);
    return status == TT_OK ? written : status;
}

tt_status tt_metrics_final(tt_metrics *m, int64_t step, double epoch, double seconds, int64_t steps, int64_t samples)
{
    json_t *o = json_object();
    set(o, "train_runtime", seconds);
    set(o, "train_samples_per_second", (double)samples / fmax(seconds, 1e-9));
    set(o, "train_steps_per_second", (double)steps / fmax(seconds, 1e-9));
    set(o, "train_loss", m->total_loss / (double)m->total_steps);
    json_object_set_new(o, "num_tokens", json_integer(m->total_tokens));
    set(o, "epoch", epoch);
    json_object_set_new(o, "step", json_integer(step));
    return write_line(m, o);
}

void tt_metrics_close(tt_metrics *m)
{
    if (m->file) fclose(m->file);
    json_decref(m->history);
    m->file = NULL;
    m->history = NULL;
}
