#include "train/metrics.h"
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double tt_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

tt_status tt_metrics_open(tt_metrics *m, const char *path, bool with_balance)
{
    *m = (tt_metrics){.since = tt_seconds(), .with_balance = with_balance};
    if (!path) return TT_OK;
    m->file = fopen(path, "w");
    TT_CHECK(m->file, TT_EIO, "cannot create '%s': %s", path, strerror(errno));
    return TT_OK;
}

void tt_metrics_add(tt_metrics *m, const tt_step_result *r, int micro_steps)
{
    m->tokens += r->tokens;
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

static tt_status write_line(tt_metrics *m, json_t *record)
{
    tt_status status = TT_OK;
    char *text = m->file ? json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (m->file && (!text || fprintf(m->file, "%s\n", text) < 0 || fflush(m->file) != 0))
        status = tt_error_set(TT_EIO, "cannot write metrics.jsonl: %s", strerror(errno));
    free(text);
    json_decref(record);
    return status;
}

tt_status tt_metrics_record(tt_metrics *m, int64_t step, double epoch, double learning_rate, double grad_norm,
                            json_t *extra)
{
    double now = tt_seconds(), steps = (double)m->steps, micro = (double)m->micro_steps;
    json_t *o = json_object();
    set(o, "loss", m->loss / steps);
    set(o, "grad_norm", grad_norm);
    set(o, "learning_rate", learning_rate);
    set(o, "entropy", m->entropy / micro);
    json_object_set_new(o, "num_tokens", json_integer(m->total_tokens));
    set(o, "mean_token_accuracy", m->accuracy / micro);
    if (m->with_balance) set(o, "aux_loss", m->balance / micro);
    set(o, "tokens_per_second", (double)m->tokens / fmax(now - m->since, 1e-9));
    set(o, "epoch", epoch);
    json_object_set_new(o, "step", json_integer(step));
    if (extra) json_object_update(o, extra);
    m->steps = m->micro_steps = m->tokens = 0;
    m->loss = m->accuracy = m->entropy = m->balance = 0;
    m->since = now;
    return write_line(m, o);
}

tt_status tt_metrics_final(tt_metrics *m, int64_t step, double epoch, double seconds, int64_t samples)
{
    json_t *o = json_object();
    set(o, "train_runtime", seconds);
    set(o, "train_samples_per_second", (double)samples / fmax(seconds, 1e-9));
    set(o, "train_steps_per_second", (double)step / fmax(seconds, 1e-9));
    set(o, "train_loss", m->total_loss / (double)m->total_steps);
    json_object_set_new(o, "num_tokens", json_integer(m->total_tokens));
    set(o, "epoch", epoch);
    json_object_set_new(o, "step", json_integer(step));
    return write_line(m, o);
}

void tt_metrics_close(tt_metrics *m)
{
    if (m->file) fclose(m->file);
    m->file = NULL;
}
