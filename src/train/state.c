#include "train/state.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "train/config_key.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAX_STATE_BYTES ((int64_t)1 << 30)

/* Keys that may change from one run to the next; a change is told. */
static const tt_config_id settings[] = {
    TT_KEY_learning_rate,   TT_KEY_lr_scheduler_type, TT_KEY_lr_scheduler_kwargs,    TT_KEY_warmup_steps,
    TT_KEY_num_train_epochs, TT_KEY_max_steps,        TT_KEY_weight_decay,           TT_KEY_adam_beta1,
    TT_KEY_adam_beta2,      TT_KEY_adam_epsilon,      TT_KEY_max_grad_norm,          TT_KEY_bf16,
    TT_KEY_dtype,           TT_KEY_optim_state_dtype, TT_KEY_router_aux_loss_coef,   TT_KEY_router_aux_loss_scope,
    TT_KEY_save_dtype,      TT_KEY_logging_strategy,  TT_KEY_logging_steps,          TT_KEY_save_strategy,
    TT_KEY_save_steps,
};

/* What makes the order of an epoch, beside the seeds. */
static const tt_config_id order[] = {
    TT_KEY_train_sampling_strategy,
    TT_KEY_shuffle_dataset,
    TT_KEY_dataloader_drop_last,
    TT_KEY_even_batches,
};

#define COUNT(list) (sizeof(list) / sizeof *(list))

static json_t *keys_of(const tt_config *c, const tt_config_id *ids, size_t num)
{
    json_t *o = json_object();
    for (size_t i = 0; i < num; i++) {
        const tt_config_key *k = tt_config_key_of(ids[i]);
        json_object_set_new(o, k->name, tt_config_get(c, k));
    }
    return o;
}

/* --- what the run is ------------------------------------------------------------------------------------------------ */

/* 64 bits as text: JSON's integers have a sign. */
static json_t *hash_text(uint64_t hash)
{
    return json_sprintf("%016llx", (unsigned long long)hash);
}

static json_t *model_of(const tt_params *p)
{
    XXH64_state_t *state = XXH64_createState();
    if (!state) return NULL;
    XXH64_reset(state, 0);
    for (int64_t i = 0; i < p->num; i++) {
        XXH64_update(state, p->at[i].name, strlen(p->at[i].name) + 1);
        XXH64_update(state, p->at[i].shape, sizeof p->at[i].shape);
    }
    json_t *o = json_pack("{s:I, s:I, s:o}", "tensors", (json_int_t)p->num, "parameters", (json_int_t)tt_params_total(p),
                          "names_and_shapes", hash_text(XXH64_digest(state)));
    XXH64_freeState(state);
    return o;
}

static int64_t rows_per_step(const tt_steps *s)
{
    return s->batch * s->ranks * s->accumulation;
}

/* Rows of the epoch's order that are behind a run that has done `step` steps. */
static int64_t rows_behind(const tt_steps *s, int64_t step)
{
    return tt_steps_span(s, step).first * s->batch * s->ranks;
}

/* Without where it is. */
static json_t *describe(const tt_run *r)
{
    const tt_config *c = r->config;
    const tt_steps *s = r->steps;
    return json_pack("{s:o, s:s, s:{s:I, s:o}, s:o, s:I, s:I, s:I, s:I, s:I, s:o}", "model", model_of(r->params), "optimizer",
                     c->optim == TT_OPTIMIZER_SGD ? "sgd" : "adamw", "dataset", "rows", (json_int_t)s->rows, "ids_and_labels",
                     hash_text(r->dataset), "order", keys_of(c, order, COUNT(order)), "seed", (json_int_t)c->seed, "data_seed",
                     (json_int_t)c->data_seed, "rows_per_step", (json_int_t)rows_per_step(s), "steps_per_epoch",
                     (json_int_t)s->steps_per_epoch, "total_steps", (json_int_t)s->total, "settings",
                     keys_of(c, settings, COUNT(settings)));
}

tt_status tt_state_train(const tt_run *run, int64_t step, const tt_metrics *metrics, const tt_statistics *statistics,
                         json_t **out)
{
    json_t *counted;
    *out = NULL;
    TT_TRY(tt_statistics_save(statistics, &counted));
    json_t *o = describe(run);
    json_object_set_new(o, "position", json_pack("{s:I, s:I}", "epoch", (json_int_t)tt_steps_span(run->steps, step).epoch,
                                                 "rows", (json_int_t)rows_behind(run->steps, step)));
    json_object_set_new(o, "metrics", tt_metrics_save(metrics));
    json_object_set_new(o, "statistics", counted);
    if (json_object_size(o) == 13) {
        *out = o;
        return TT_OK;
    }
    json_decref(o);
    return tt_error_set(TT_ENOMEM, "out of memory for the state of training");
}

/* --- the common trainer's file -------------------------------------------------------------------------------------- */

json_t *tt_state_trainer(const tt_run *run, int64_t step, const tt_metrics *metrics)
{
    const tt_config *c = run->config;
    const tt_steps *s = run->steps;
    json_t *control = json_pack("{s:{s:b, s:b, s:b, s:b, s:b}, s:{}}", "args", "should_epoch_stop", 0, "should_evaluate", 0,
                                "should_log", 0, "should_save", 1, "should_training_stop", step >= s->total, "attributes");
    json_t *o = json_pack("{s:n, s:n, s:n, s:n, s:n}", "best_global_step", "best_metric", "best_model_checkpoint", "trial_name",
                          "trial_params");
    json_t *more = json_pack("{s:f, s:I, s:I, s:b, s:b, s:b, s:O}", "epoch", tt_steps_epoch(s, step), "global_step",
                             (json_int_t)step, "eval_steps", (json_int_t)tt_steps_interval(c->eval_steps, s->total),
                             "is_hyper_param_search", 0, "is_local_process_zero", 1, "is_world_process_zero", 1, "log_history",
                             metrics->history);
    json_t *rest = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I}", "logging_steps",
                             (json_int_t)tt_steps_interval(c->logging_steps, s->total), "max_steps", (json_int_t)s->total,
                             "num_input_tokens_seen", (json_int_t)metrics->total_tokens, "num_train_epochs",
                             (json_int_t)s->train_epochs, "save_steps", (json_int_t)tt_steps_interval(c->save_steps, s->total),
                             "train_batch_size", (json_int_t)c->per_device_train_batch_size, "stateful_callbacks",
                             json_pack("{s:o}", "TrainerControl", control), "total_flos", (json_int_t)0);
    if (json_object_update(o, more) != 0 || json_object_update(o, rest) != 0) {
        json_decref(o);
        o = NULL;
    }
    json_decref(more);
    json_decref(rest);
    return o;
}

tt_status tt_state_history(const tt_checkpoint *c, json_t **out)
{
    char path[4096];
    json_t *state;
    TT_TRY(tt_path_join(path, sizeof path, c->path, "trainer_state.json"));
    TT_TRY(tt_json_load(path, MAX_STATE_BYTES, &state));
    *out = json_incref(json_object_get(state, "log_history"));
    json_decref(state);
    TT_CHECK(json_is_array(*out), TT_EFORMAT, "%s: \"log_history\" is not a list", path);
    return TT_OK;
}

/* --- may this run go on from that? ---------------------------------------------------------------------------------- */

static void spell(const json_t *v, char *out, size_t size)
{
    if (v) tt_config_spell(v, out, size);
    else snprintf(out, size, "not known");
}

/* The values that would give `rows` on this mesh; the micro-batch stays as near as it can. */
static void advise_rows(const tt_steps *s, int64_t rows, char *out, size_t size)
{
    int64_t of_rank = rows / s->ranks, batch = s->batch < of_rank ? s->batch : of_rank;
    if (rows % s->ranks != 0) {
        snprintf(out, size, "fsdp_size must divide %lld", (long long)rows);
        return;
    }
    while (of_rank % batch != 0) batch--;
    snprintf(out, size, "set per_device_train_batch_size: %lld and gradient_accumulation_steps: %lld", (long long)batch,
             (long long)(of_rank / batch));
}

static tt_status check_rows(const tt_run *run, const tt_checkpoint *c, const json_t *was)
{
    char advice[200];
    const tt_steps *s = run->steps;
    int64_t rows, steps;
    TT_TRY(tt_json_get_int(was, c->path, "rows_per_step", 0, &rows));
    TT_TRY(tt_json_get_int(was, c->path, "steps_per_epoch", 0, &steps));
    TT_CHECK(rows >= 1, TT_EFORMAT, "%s: the manifest's \"rows_per_step\" is %lld", c->path, (long long)rows);
    if (rows != rows_per_step(s)) {
        advise_rows(s, rows, advice, sizeof advice);
        return tt_error_set(TT_ECONFIG,
                            "resume_from_checkpoint: a step of '%s' has %lld rows, one of this run %lld: "
                            "per_device_train_batch_size %lld x fsdp_size %lld x gradient_accumulation_steps %lld; %s",
                            c->path, (long long)rows, (long long)rows_per_step(s), (long long)s->batch, (long long)s->ranks,
                            (long long)s->accumulation, advice);
    }
    TT_CHECK(steps == s->steps_per_epoch || tt_config_overrides(run->config, TT_OVERRIDE_DATASET), TT_ECONFIG,
             "resume_from_checkpoint: an epoch of '%s' has %lld steps, one of this run %lld: with dataloader_drop_last that "
             "depends on per_device_train_batch_size and fsdp_size; take those of the checkpoint's run",
             c->path, (long long)steps, (long long)s->steps_per_epoch);
    return TT_OK;
}

/* A manifest whose parts contradict each other is no place to go on from. */
static tt_status check_position(const tt_run *run, const tt_checkpoint *c, const json_t *was)
{
    const json_t *at = json_object_get(was, "position");
    int64_t epoch, rows;
    TT_CHECK(json_is_object(at), TT_EFORMAT, "%s: the manifest's \"position\" is not an object", c->path);
    TT_TRY(tt_json_get_int(at, c->path, "epoch", -1, &epoch));
    TT_TRY(tt_json_get_int(at, c->path, "rows", -1, &rows));
    if (tt_config_overrides(run->config, TT_OVERRIDE_DATASET)) return TT_OK;
    int64_t here = tt_steps_span(run->steps, c->step).epoch, behind = rows_behind(run->steps, c->step);
    TT_CHECK(epoch == here && rows == behind, TT_EFORMAT,
             "%s: step %lld is %lld rows into epoch %lld, but the manifest says %lld rows into epoch %lld", c->path,
             (long long)c->step, (long long)behind, (long long)here, (long long)rows, (long long)epoch);
    return TT_OK;
}

static tt_status check_same(const tt_run *run, const tt_checkpoint *c, const json_t *was, const json_t *is)
{
    enum { NEVER = TT_NUM_OVERRIDES };
    static const struct {
        const char *name;
        int override;
    } parts[] = {{"model", NEVER}, {"optimizer", NEVER}, {"dataset", TT_OVERRIDE_DATASET}, {"order", TT_OVERRIDE_ORDER},
                 {"seed", TT_OVERRIDE_SEED}, {"data_seed", TT_OVERRIDE_DATA_SEED}};
    char old[300], new[300], remedy[100] = "";
    for (size_t i = 0; i < COUNT(parts); i++) {
        const json_t *a = json_object_get(was, parts[i].name), *b = json_object_get(is, parts[i].name);
        if (json_equal(a, b)) continue;
        bool may = parts[i].override != NEVER;
        spell(a, old, sizeof old);
        spell(b, new, sizeof new);
        /* data_seed follows seed unless it is set. */
        bool follows = parts[i].override == TT_OVERRIDE_DATA_SEED && !tt_config_is_set(run->config, TT_KEY_data_seed) &&
                       tt_config_overrides(run->config, TT_OVERRIDE_SEED);
        if (may && (follows || tt_config_overrides(run->config, (tt_override)parts[i].override))) {
            tt_warn("resume_override: %s of '%s' was %s and is now %s", parts[i].name, c->path, old, new);
            continue;
        }
        if (may) snprintf(remedy, sizeof remedy, ", or set resume_override: %s to go on all the same", parts[i].name);
        return tt_error_set(TT_ECONFIG, "resume_from_checkpoint: %s of '%s' is %s, that of this run %s; make it the same%s",
                            parts[i].name, c->path, old, new, remedy);
    }
    return TT_OK;
}

static void tell_changes(const tt_checkpoint *c, const json_t *was, const json_t *is)
{
    const char *name;
    json_t *now;
    char old[100], new[100];
    json_object_foreach(json_object_get(is, "settings"), name, now)
    {
        const json_t *before = json_object_get(json_object_get(was, "settings"), name);
        if (json_equal(before, now)) continue;
        spell(before, old, sizeof old);
        spell(now, new, sizeof new);
        tt_warn("%s was %s in the run of '%s' and is now %s", name, old, c->path, new);
    }
}

tt_status tt_state_check(const tt_run *run, const tt_checkpoint *c)
{
    const json_t *was = json_object_get(c->manifest, "train");
    TT_CHECK(c->with_state, TT_ECONFIG,
             "resume_from_checkpoint: '%s' holds a model without optimizer state (save_only_model); name another checkpoint, or "
             "train it anew as model_name_or_path",
             c->path);
    TT_CHECK(json_is_object(was) && json_object_get(was, "position"), TT_EFORMAT,
             "resume_from_checkpoint: the manifest of '%s' tells nothing of training", c->path);
    json_t *is = describe(run);
    TT_CHECK(is, TT_ENOMEM, "out of memory for the state of training");
    tt_status status = check_same(run, c, was, is);
    if (status == TT_OK) status = check_rows(run, c, was);
    if (status == TT_OK) status = check_position(run, c, was);
    if (status == TT_OK && c->step > run->steps->total)
        status = tt_error_set(TT_ECONFIG,
                              "resume_from_checkpoint: '%s' is behind step %lld, this run ends behind step %lld; set max_steps or "
                              "num_train_epochs to more, or name an earlier checkpoint",
                              c->path, (long long)c->step, (long long)run->steps->total);
    if (status == TT_OK) tell_changes(c, was, is);
    json_decref(is);
    return status;
}

tt_status tt_state_restore(const tt_checkpoint *c, tt_metrics *metrics, tt_statistics *statistics)
{
    const json_t *was = json_object_get(c->manifest, "train");
    TT_TRY(tt_metrics_restore(metrics, json_object_get(was, "metrics"), c->path));
    return tt_statistics_restore(statistics, json_object_get(was, "statistics"), c->path);
}
