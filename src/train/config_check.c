/* What a configuration means as a whole: defaults that depend on other keys, contradictions, and the gate for
 * what is not built yet. */
#include "train/config_key.h"

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/save.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLACE = 320 };

/* Refuse with the key's place in front; the text goes on "... is ...". */
static tt_status contradiction(const tt_config *c, tt_config_id id, const char *text)
{
    char place[PLACE], value[80];
    json_t *v = tt_config_get(c, tt_config_key_of(id));
    tt_config_place(c, id, place, sizeof place);
    tt_config_spell(v, value, sizeof value);
    json_decref(v);
    return tt_error_set(TT_ECONFIG, "%s is %s, but %s", place, value, text);
}

/* --- defaults that depend on others --------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static tt_status best_model_defaults(tt_config *c)
{
    if (!c->load_best_model_at_end && c->save_strategy != TT_SAVING_BEST) return TT_OK;
    if (!c->metric_for_best_model) {
        c->metric_for_best_model = strdup("loss");
        TT_CHECK(c->metric_for_best_model, TT_ENOMEM, "metric_for_best_model: out of memory");
    }
    if (c->greater_is_better == TT_FLAG_UNSET)
        c->greater_is_better = ends_with(c->metric_for_best_model, "loss") ? TT_FLAG_FALSE : TT_FLAG_TRUE;
    return TT_OK;
}

/* Other spellings of the same thing become the one that the rest of the program knows. */
static void modern_spelling(tt_config *c)
{
    if (c->loss_type == TT_LOSS_CHUNKED_NLL) {
        tt_warn("loss_type: chunked_nll is a deprecated name of nll");
        c->loss_type = TT_LOSS_NLL;
    }
    if (c->packing_strategy == TT_PACKING_BFD_REQUEUE) {
        tt_warn("packing_strategy: bfd-requeue is a deprecated name of bfd_split");
        c->packing_strategy = TT_PACKING_BFD_SPLIT;
    }
}

static void without_effect(const tt_config *c)
{
    if (c->optim == TT_OPTIMIZER_SGD && c->optim_state_dtype == TT_STATE_DTYPE_BFLOAT16)
        tt_warn("optim_state_dtype: bfloat16 has no effect: optim: sgd keeps no state");
}

static tt_status fill_defaults(tt_config *c)
{
    modern_spelling(c);
    without_effect(c);
    if (c->bf16 == TT_FLAG_UNSET) c->bf16 = c->fp16 ? TT_FLAG_FALSE : TT_FLAG_TRUE;
    if (c->data_seed == TT_CONFIG_UNSET) c->data_seed = c->seed;
    if (c->eval_packing == TT_FLAG_UNSET) c->eval_packing = c->packing ? TT_FLAG_TRUE : TT_FLAG_FALSE;
    if (c->packing && c->packing_strategy != TT_PACKING_WRAPPED) c->padding_free = true;
    if (isnan(c->max_grad_norm)) c->max_grad_norm = 0; /* both say: no clipping */
    if (isnan(c->eval_steps)) c->eval_steps = c->logging_steps;
    return best_model_defaults(c);
}

/* --- contradictions ------------------------------------------------------------------------------------- */

static tt_status check_lengths(const tt_config *c)
{
    bool unlimited = c->max_length == TT_CONFIG_UNSET;
    if (c->packing && unlimited)
        return contradiction(c, TT_KEY_packing,
                             "max_length is null: packing needs a length; set max_length, or "
                             "packing: false");
    if (c->padding_free && !c->packing && !unlimited)
        return contradiction(c, TT_KEY_padding_free,
                             "max_length is set and padding-free batches are not cut to "
                             "it; set packing: true, max_length: null, or padding_free: "
                             "false");
    return TT_OK;
}

static tt_status check_precision(const tt_config *c)
{
    if (c->fp16 && c->bf16 == TT_FLAG_TRUE)
        return contradiction(c, TT_KEY_fp16, "bf16 is true too; keep one of them");
    return TT_OK;
}

static tt_status check_steps(const tt_config *c)
{
    if (c->max_steps == 0)
        return contradiction(c, TT_KEY_max_steps,
                             "a run of no steps trains nothing; set a number of steps, or -1 "
                             "for num_train_epochs");
    return TT_OK;
}

/* save_steps must fall on evaluations. Shares are compared with a millionth to spare for their rounding. */
static bool divides(double eval_steps, double save_steps)
{
    if ((eval_steps < 1) != (save_steps < 1)) return false;
    double ratio = save_steps / eval_steps;
    return fabs(ratio - round(ratio)) < 1e-6 && round(ratio) >= 1;
}

static tt_status check_best_model(const tt_config *c)
{
    if (!c->load_best_model_at_end) return TT_OK;
    if (c->eval_strategy == TT_EVALUATION_NO)
        return contradiction(c, TT_KEY_load_best_model_at_end,
                             "eval_strategy is no: nothing says which model is "
                             "best; set eval_strategy: steps or epoch");
    bool same = c->save_strategy == TT_SAVING_BEST ||
                (c->save_strategy == TT_SAVING_STEPS && c->eval_strategy == TT_EVALUATION_STEPS) ||
                (c->save_strategy == TT_SAVING_EPOCH && c->eval_strategy == TT_EVALUATION_EPOCH);
    if (!same)
        return contradiction(c, TT_KEY_load_best_model_at_end,
                             "models are not saved when they are evaluated; set "
                             "save_strategy to the value of eval_strategy");
    if (c->save_strategy == TT_SAVING_STEPS && !divides(c->eval_steps, c->save_steps))
        return contradiction(c, TT_KEY_load_best_model_at_end,
                             "save_steps is no multiple of eval_steps; set "
                             "save_steps to one");
    return TT_OK;
}

static tt_status check_dataset_kwargs(const tt_config *c)
{
    char place[PLACE];
    const char *name;
    json_t *v;
    tt_config_place(c, TT_KEY_dataset_kwargs, place, sizeof place);
    json_object_foreach(c->dataset_kwargs, name, v)
    {
        TT_CHECK(strcmp(name, "skip_prepare_dataset") == 0, TT_ECONFIG,
                 "%s: '%.60s' is unknown; only skip_prepare_dataset is known", place, name);
        TT_CHECK(json_is_boolean(v), TT_ECONFIG, "%s: skip_prepare_dataset is %s; expected true or false",
                 place, tt_json_kind(v));
    }
    return TT_OK;
}

static tt_status check_saving(const tt_config *c)
{
    tt_dtype type;
    char place[PLACE];
    if (!c->save_dtype || tt_save_dtype(c->save_dtype, &type) == TT_OK) return TT_OK;
    tt_config_place(c, TT_KEY_save_dtype, place, sizeof place);
    return tt_error_context(TT_ECONFIG, "%s", place);
}

const char *tt_override_name(tt_override o)
{
    static const char *const names[TT_NUM_OVERRIDES] = {"dataset", "order", "seed", "data_seed"};
    return names[o];
}

/* Number i of the words of resume_override, NULL behind the last. */
static const char *override_word(const tt_config *c, size_t i)
{
    const json_t *list = c->resume_override;
    return json_string_value(json_is_array(list) ? json_array_get(list, i) : i == 0 ? list : NULL);
}

bool tt_config_overrides(const tt_config *c, tt_override o)
{
    const char *word;
    for (size_t i = 0; (word = override_word(c, i)); i++)
        if (strcmp(word, tt_override_name(o)) == 0) return true;
    return false;
}

static tt_status check_overrides(const tt_config *c)
{
    const char *word;
    for (size_t i = 0; (word = override_word(c, i)); i++) {
        int o = 0;
        while (o < TT_NUM_OVERRIDES && strcmp(word, tt_override_name((tt_override)o)) != 0) o++;
        if (o == TT_NUM_OVERRIDES)
            return contradiction(c, TT_KEY_resume_override, "what may differ is dataset, order, seed and data_seed; name some of them");
    }
    return TT_OK;
}

/* The parameters of the schedule, so far as they do not depend on the length of the run. */
static tt_status check_schedule(const tt_config *c)
{
    tt_schedule s;
    char place[PLACE];
    tt_status status =
        tt_schedule_init(&s, c->lr_scheduler_type, c->lr_scheduler_kwargs, c->learning_rate, 1, 0);
    if (status == TT_OK) return TT_OK;
    bool given = tt_config_is_set(c, TT_KEY_lr_scheduler_kwargs);
    tt_config_place(c, given ? TT_KEY_lr_scheduler_kwargs : TT_KEY_lr_scheduler_type, place, sizeof place);
    return tt_error_context(status, "%s", place);
}

/* --- what is not built yet ------------------------------------------------------------------------------ */

static tt_status gate_word(const tt_config *c, tt_config_id id)
{
    const tt_config_key *k = tt_config_key_of(id);
    const tt_config_word *word = &k->words[*(const int *)((const char *)c + k->offset)];
    if (word->built) return TT_OK;
    char place[PLACE], built[400] = "";
    size_t n = 0;
    for (const tt_config_word *w = k->words; w->text; w++)
        if (w->built && n < sizeof built)
            n += (size_t)snprintf(built + n, sizeof built - n, "%s%s", n ? ", " : "", w->text);
    tt_config_place(c, id, place, sizeof place);
    return tt_error_set(TT_ECONFIG, "%s: %s is not supported yet; set %s to one of: %s", place, word->text,
                        k->name, built);
}

static tt_status gate_feature(const tt_config *c, tt_config_id id)
{
    const tt_config_key *k = tt_config_key_of(id);
    if (tt_feature_built(k->feature) || !k->asks || !k->asks(c, k)) return TT_OK;
    char place[PLACE], value[80], own[160];
    json_t *v = tt_config_get(c, k);
    tt_config_place(c, id, place, sizeof place);
    tt_config_spell(v, value, sizeof value);
    json_decref(v);
    const char *remedy = tt_feature_remedy(k->feature);
    bool unset = strcmp(k->fallback, "null") == 0;
    if (unset)
        snprintf(own, sizeof own, "leave it out");
    else
        snprintf(own, sizeof own, "set %s: %s", k->name, k->fallback);
    return tt_error_set(TT_ECONFIG, "%s is %s: %s is not supported yet; %s", place, value,
                        tt_feature_text(k->feature), remedy ? remedy : own);
}

static tt_status check_gates(const tt_config *c)
{
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++) {
        tt_config_id id = (tt_config_id)i;
        if (tt_config_key_of(id)->words) TT_TRY(gate_word(c, id));
        TT_TRY(gate_feature(c, id));
    }
    return TT_OK;
}

tt_status tt_config_resolve(tt_config *c)
{
    TT_TRY(fill_defaults(c));
    TT_TRY(check_lengths(c));
    TT_TRY(check_precision(c));
    TT_TRY(check_steps(c));
    TT_TRY(check_best_model(c));
    TT_TRY(check_dataset_kwargs(c));
    TT_TRY(check_saving(c));
    TT_TRY(check_overrides(c));
    TT_TRY(check_gates(c));
    return check_schedule(c);
}
