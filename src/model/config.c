#include "model/config.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const tt_family *const families[] = {&tt_family_olmoe, &tt_family_qwen3_moe, &tt_family_glm4_moe};

#define NUM_FAMILIES (sizeof families / sizeof *families)

/* --- the reader ---------------------------------------------------------------------------------------------- */

static bool absent(const json_t *v)
{
    return !v || json_is_null(v);
}

/* Value of a key, NULL when absent or null or after a failure; notes that the key is known. */
static const json_t *ask(tt_config_reader *r, const char *key)
{
    json_object_set_new(r->known, key, json_true());
    const json_t *v = json_object_get(r->object, key);
    return r->status != TT_OK || absent(v) ? NULL : v;
}

void tt_read_fail(tt_config_reader *r, const char *format, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (r->status == TT_OK) r->status = tt_error_set(TT_EFORMAT, "%s: %s", r->where, text);
}

int64_t tt_read_int(tt_config_reader *r, const char *key, int64_t fallback)
{
    int64_t value = fallback;
    if (!ask(r, key)) {
        if (fallback == TT_REQUIRED) tt_read_fail(r, "key '%s' is missing", key);
        return fallback;
    }
    r->status = tt_json_get_int(r->object, r->where, key, fallback, &value);
    return value;
}

int64_t tt_read_int_alias(tt_config_reader *r, const char *key, const char *alias, int64_t fallback)
{
    const json_t *first = ask(r, key), *second = ask(r, alias);
    if (first && second && !json_equal(first, second)) {
        tt_read_fail(r, "keys '%s' and '%s' name the same thing but differ; remove one", key, alias);
        return fallback;
    }
    return tt_read_int(r, first || !second ? key : alias, fallback);
}

int64_t tt_read_kv_heads(tt_config_reader *r, int64_t heads, int64_t when_absent)
{
    bool null = json_is_null(json_object_get(r->object, "num_key_value_heads"));
    return tt_read_int(r, "num_key_value_heads", null ? heads : when_absent);
}

static double read_nullable(tt_config_reader *r, const char *key, double fallback)
{
    double value = fallback;
    if (ask(r, key)) r->status = tt_json_get_number(r->object, r->where, key, fallback, &value);
    return value;
}

double tt_read_number(tt_config_reader *r, const char *key, double fallback)
{
    if (isfinite(fallback) && json_is_null(json_object_get(r->object, key)))
        tt_read_fail(r, "key '%s' is null; expected a number", key);
    return read_nullable(r, key, fallback);
}

bool tt_read_bool(tt_config_reader *r, const char *key, bool fallback)
{
    bool value = fallback;
    if (ask(r, key)) r->status = tt_json_get_bool(r->object, r->where, key, fallback, &value);
    return value;
}

void tt_read_only(tt_config_reader *r, const char *key, const char *allowed, const char *why)
{
    const json_t *v = ask(r, key);
    if (!v || json_is_false(v)) return;
    json_t *value = json_loads(allowed, JSON_DECODE_ANY, NULL);
    bool same = json_equal(v, value) || (json_is_number(v) && json_is_number(value) &&
                                         json_number_value(v) == json_number_value(value));
    json_decref(value);
    if (same) return;
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    tt_read_fail(r, "key '%s' is %.200s; %s", key, text ? text : "?", why);
    free(text);
}

void tt_read_ignored(tt_config_reader *r, const char *const *keys)
{
    for (; *keys; keys++) json_object_set_new(r->known, *keys, json_true());
}

/* The members of rope_parameters or rope_scaling (d may be NULL), which win over the keys beside it. */
static void read_rope_object(tt_config_reader *r, const json_t *d, double *theta, double *partial)
{
    if (!d) return;
    tt_config_reader inner = {d, r->where, json_object(), r->status};
    *theta = read_nullable(&inner, "rope_theta", *theta);
    *partial = read_nullable(&inner, "partial_rotary_factor", *partial);
    tt_read_only(&inner, "rope_type", "\"default\"", "only plain rotary positions (\"default\") are supported");
    tt_read_only(&inner, "type", "\"default\"", "only plain rotary positions (\"default\") are supported");
    /* A scaling key that nobody reads would change every position in silence. */
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)d, name, value) if (!json_object_get(inner.known, name) && !absent(value))
        tt_read_fail(&inner, "unknown rotary parameter '%s'", name);
    r->status = inner.status;
    json_decref(inner.known);
}

void tt_read_rope(tt_config_reader *r, double default_theta, double default_partial, double *theta, double *partial)
{
    const json_t *scaling = ask(r, "rope_scaling"), *parameters = ask(r, "rope_parameters");
    *theta = read_nullable(r, "rope_theta", default_theta); /* null where the objects have it */
    *partial = read_nullable(r, "partial_rotary_factor", default_partial);
    if (scaling && !json_is_object(scaling))
        tt_read_fail(r, "key 'rope_scaling' is %s; expected an object", tt_json_kind(scaling));
    if (parameters && !json_is_object(parameters))
        tt_read_fail(r, "key 'rope_parameters' is %s; expected an object", tt_json_kind(parameters));
    if (r->status == TT_OK) read_rope_object(r, json_object_size(scaling) > 0 ? scaling : parameters, theta, partial);
    if (*partial >= 0 && *partial <= 1) return;
    tt_read_fail(r, "partial_rotary_factor is %g; expected 0 to 1", *partial);
    *partial = 0; /* families turn it into a number of dims */
}

/* --- keys that all families share ---------------------------------------------------------------------------- */

static void read_token_ids(tt_config_reader *r, tt_model_config *c)
{
    c->pad_token = tt_max_i64(tt_read_int(r, "pad_token_id", -1), -1);
    c->bos_token = tt_read_int(r, "bos_token_id", -1);
    const json_t *eos = ask(r, "eos_token_id");
    if (eos && !json_is_array(eos)) {
        c->eos_tokens[0] = tt_read_int(r, "eos_token_id", -1);
        c->num_eos = 1;
    } else if (eos) {
        if (json_array_size(eos) > TT_MAX_EOS) tt_read_fail(r, "key 'eos_token_id' lists more than %d tokens", TT_MAX_EOS);
        for (size_t i = 0; i < json_array_size(eos) && r->status == TT_OK; i++) {
            const json_t *v = json_array_get(eos, i);
            if (!json_is_integer(v)) tt_read_fail(r, "key 'eos_token_id' lists %s; expected integers", tt_json_kind(v));
            c->eos_tokens[c->num_eos++] = json_integer_value(v);
        }
    }
    if (c->pad_token >= c->vocab_size)
        tt_read_fail(r, "pad_token_id %lld is not below vocab_size %lld", (long long)c->pad_token,
                     (long long)c->vocab_size);
}

static void read_dtype(tt_config_reader *r, tt_model_config *c)
{
    const json_t *v = ask(r, "dtype");
    const json_t *old = ask(r, "torch_dtype");
    if (!v) v = old;
    c->dtype = TT_F32;
    bool known = !v || (json_is_string(v) && tt_dtype_from_config_name(json_string_value(v), &c->dtype));
    if (!known || (c->dtype != TT_F32 && c->dtype != TT_BF16 && c->dtype != TT_F16))
        tt_read_fail(r, "dtype %s is not supported; use float32, bfloat16 or float16",
                     json_is_string(v) ? json_string_value(v) : tt_json_kind(v));
}

/* Files of blocks of FP8 are read as what they mean (checkpoint/source.h): types there decide which tensors are such. Activations
 * are not quantised whatever activation_scheme says, and saved models are not quantised. */
static void read_quantisation(tt_config_reader *r)
{
    const json_t *q = ask(r, "quantization_config");
    if (!q) return;
    const char *method = json_string_value(json_object_get(q, "quant_method")), *format = json_string_value(json_object_get(q, "fmt"));
    const json_t *block = json_object_get(q, "weight_block_size");
    if (!method || strcmp(method, "fp8") != 0)
        tt_read_fail(r, "quantization_config has quant_method '%.40s'; supported is 'fp8' in blocks of 128 x 128, other "
                     "files must be converted first", method ? method : "?");
    else if (format && strcmp(format, "e4m3") != 0)
        tt_read_fail(r, "quantization_config has fmt '%.40s'; supported is 'e4m3'", format);
    else if (json_array_size(block) != 2 || json_integer_value(json_array_get(block, 0)) != 128 ||
             json_integer_value(json_array_get(block, 1)) != 128)
        tt_read_fail(r, "quantization_config has another weight_block_size than [128, 128]");
}

static void read_common(tt_config_reader *r, tt_model_config *c)
{
    static const char *const ignored[] = {
        "model_type", "architectures", "transformers_version", "use_cache", "auto_map", "_name_or_path", "name_or_path",
        "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "is_encoder_decoder",
        "is_decoder", "problem_type", "id2label", "label2id", "num_return_sequences", "_attn_implementation",
        "attn_implementation", "tokenizer_class", "sep_token_id", "torchscript", NULL,
    };
    tt_read_ignored(r, ignored);
    c->vocab_size = tt_read_int(r, "vocab_size", TT_REQUIRED);
    c->hidden_size = tt_read_int(r, "hidden_size", TT_REQUIRED);
    c->num_layers = tt_read_int(r, "num_hidden_layers", TT_REQUIRED);
    c->num_heads = tt_read_int(r, "num_attention_heads", TT_REQUIRED);
    c->init_std = tt_read_number(r, "initializer_range", 0.02);
    c->max_positions = tt_read_int(r, "max_position_embeddings", 0);
    c->tied = tt_read_bool(r, "tie_word_embeddings", false);
    c->output_router_logits = tt_read_bool(r, "output_router_logits", false);
    tt_read_only(r, "hidden_act", "\"silu\"", "only \"silu\" is supported");
    tt_read_only(r, "attention_dropout", "0", "only 0 is supported");
    tt_read_only(r, "mlp_bias", "false", "MLP biases are not supported");
    read_quantisation(r);
    read_token_ids(r, c);
    read_dtype(r, c);
}

/* --- checks -------------------------------------------------------------------------------------------------- */

static void positive(tt_config_reader *r, const char *key, int64_t value, int64_t most)
{
    if (value < 1 || value > most)
        tt_read_fail(r, "key '%s' is %lld; expected 1 to %lld", key, (long long)value, (long long)most);
}

/* Experts of all layers and layers: bounds on the table of parameters, which is built before any file is looked at. */
#define MOST_EXPERTS (1 << 20)
#define MOST_LAYERS  (1 << 16)

static void check(tt_config_reader *r, const tt_family *family, tt_model_config *c)
{
    const int64_t most = (int64_t)1 << 31; /* beyond any model; tt_params_add refuses products that do not fit */
    positive(r, "vocab_size", c->vocab_size, most - 1);
    positive(r, "hidden_size", c->hidden_size, most);
    positive(r, "num_attention_heads", c->num_heads, 1 << 20);
    positive(r, "num_key_value_heads", c->num_kv_heads, c->num_heads);
    positive(r, "head_dim", c->head_dim, 1 << 20);
    if (r->status != TT_OK) return;
    if (c->num_heads % c->num_kv_heads)
        tt_read_fail(r, "num_attention_heads %lld is not a multiple of num_key_value_heads %lld", (long long)c->num_heads,
                     (long long)c->num_kv_heads);
    if (c->rotary_dim % 2 || c->rotary_dim < 0 || c->rotary_dim > c->head_dim)
        tt_read_fail(r, "%lld rotary dimensions of a head of %lld: expected an even number within it",
                     (long long)c->rotary_dim, (long long)c->head_dim);
    if (!(c->rope_theta > 0)) tt_read_fail(r, "rope_theta is %g; expected a positive number", c->rope_theta);
    if (!(c->norm_eps >= 0)) tt_read_fail(r, "rms_norm_eps is %g; expected a number >= 0", c->norm_eps);
    bool any_moe = false, any_dense = false;
    for (int64_t i = 0; i < c->num_layers; i++) *(c->is_moe[i] ? &any_moe : &any_dense) = true;
    if (any_dense) positive(r, "intermediate_size", c->dense_width, most);
    if (!any_moe) {
        c->num_experts = 0;
        return;
    }
    positive(r, family->experts_key, c->num_experts, 1 << 20);
    if (r->status == TT_OK && c->num_layers * c->num_experts > MOST_EXPERTS)
        tt_read_fail(r, "%lld layers of %lld experts are more than %d matrices can describe", (long long)c->num_layers,
                     (long long)c->num_experts, 3 * MOST_EXPERTS);
    positive(r, "num_experts_per_tok", c->experts_per_token, c->num_experts);
    positive(r, family->expert_width_key, c->expert_width, most);
    if (c->shared_width < 0 || c->shared_width > most) tt_read_fail(r, "n_shared_experts is negative or too large");
    if (r->status != TT_OK || c->router != TT_ROUTER_SIGMOID) return;
    if (c->expert_groups < 1 || c->num_experts % c->expert_groups || c->kept_groups < 1 ||
        c->kept_groups > c->expert_groups)
        tt_read_fail(r, "n_group %lld and topk_group %lld do not fit %lld experts", (long long)c->expert_groups,
                     (long long)c->kept_groups, (long long)c->num_experts);
    else if (c->expert_groups > 1 && c->num_experts / c->expert_groups < 2)
        tt_read_fail(r, "n_group %lld leaves groups of fewer than two experts", (long long)c->expert_groups);
    else if (c->experts_per_token > c->num_experts / c->expert_groups * c->kept_groups)
        tt_read_fail(r, "num_experts_per_tok %lld is more than the %lld experts of the kept groups",
                     (long long)c->experts_per_token, (long long)(c->num_experts / c->expert_groups * c->kept_groups));
}

static tt_status name_unknown(const tt_config_reader *r, char **out)
{
    char names[512] = "", line[1024];
    size_t used = 0;
    int count = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->object, key, value)
    {
        if (json_object_get(r->known, key) || absent(value)) continue;
        count++;
        int n = snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", key);
        if (n > 0 && used + (size_t)n < sizeof names) used += (size_t)n;
    }
    if (count == 0) return TT_OK;
    snprintf(line, sizeof line, "%s: %d unknown key%s without effect here: %s", r->where, count, count > 1 ? "s" : "", names);
    *out = strdup(line);
    return *out ? TT_OK : tt_error_set(TT_ENOMEM, "%s: out of memory", r->where);
}

/* Names are compared as C strings, which end at a NUL; no legitimate value has one. */
static bool holds_nul(const json_t *v)
{
    size_t i;
    const char *key;
    json_t *inner;
    if (json_is_string(v)) return strlen(json_string_value(v)) != json_string_length(v);
    json_array_foreach((json_t *)v, i, inner) if (holds_nul(inner)) return true;
    json_object_foreach((json_t *)v, key, inner) if (holds_nul(inner)) return true;
    return false;
}

static tt_status check_strings(const json_t *object, const char *where)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
        TT_CHECK(!holds_nul(value), TT_EFORMAT, "%s: key '%s' holds a NUL character", where, key);
    return TT_OK;
}

static const tt_family *find_family(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "model_type"));
    for (size_t i = 0; type && i < NUM_FAMILIES; i++)
        if (strcmp(type, families[i]->model_type) == 0) return families[i];
    return NULL;
}

tt_status tt_model_config_read(json_t *object, const char *where, tt_model_config *c)
{
    *c = (tt_model_config){0};
    TT_CHECK(json_is_object(object), TT_EFORMAT, "%s: expected an object, found %s", where, tt_json_kind(object));
    TT_TRY(check_strings(object, where));
    const tt_family *family = find_family(object);
    const json_t *type = json_object_get(object, "model_type");
    TT_CHECK(family, TT_EFORMAT, "%s: model_type %s is not supported; known: olmoe, qwen3_moe, glm4_moe", where,
             json_is_string(type) ? json_string_value(type) : tt_json_kind(type));
    tt_config_reader r = {object, where, json_object(), TT_OK};
    c->family = family->model_type;
    c->source = json_incref(object);
    c->expert_groups = c->kept_groups = 1;
    c->gate_scale = 1;
    read_common(&r, c);
    if (r.status == TT_OK) positive(&r, "num_hidden_layers", c->num_layers, MOST_LAYERS);
    if (r.status == TT_OK) {
        c->is_moe = calloc((size_t)c->num_layers, sizeof *c->is_moe);
        if (!c->is_moe) r.status = tt_error_set(TT_ENOMEM, "%s: out of memory", where);
    }
    if (r.status == TT_OK) family->read(&r, c);
    if (r.status == TT_OK) check(&r, family, c);
    if (r.status == TT_OK) r.status = name_unknown(&r, &c->unknown);
    json_decref(r.known);
    if (r.status != TT_OK) tt_model_config_free(c);
    return r.status;
}

tt_status tt_model_config_load(const char *folder, tt_model_config *out)
{
    char path[4096];
    json_t *object;
    *out = (tt_model_config){0};
    TT_TRY(tt_path_join(path, sizeof path, folder, "config.json"));
    TT_TRY(tt_json_load(path, 16 << 20, &object));
    tt_status status = tt_model_config_read(object, path, out);
    json_decref(object);
    return status;
}

void tt_model_config_warn(const tt_model_config *c)
{
    if (c->unknown) tt_warn("%s", c->unknown);
}

void tt_model_config_free(tt_model_config *c)
{
    json_decref(c->source);
    free(c->unknown);
    free(c->is_moe);
    *c = (tt_model_config){0};
}
