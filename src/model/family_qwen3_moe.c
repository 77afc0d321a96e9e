/* qwen3_moe - Qwen3-30B-A3B and its kin: some layers may be dense, softmax router, query and key norms per head, an
 * optional sliding window that applies to every layer. docs/model.md section "qwen3_moe". */
#include "model/config.h"

#include <string.h>

static void read_layers(tt_config_reader *r, tt_model_config *c)
{
    int64_t step = tt_read_int(r, "decoder_sparse_step", 1);
    if (step < 1) tt_read_fail(r, "key 'decoder_sparse_step' is %lld; expected at least 1", (long long)step);
    for (int64_t i = 0; i < c->num_layers && step > 0; i++) c->is_moe[i] = c->num_experts > 0 && (i + 1) % step == 0;
    tt_read_ignored(r, (const char *const[]){"mlp_only_layers", NULL});
    const json_t *dense = json_object_get(r->object, "mlp_only_layers");
    if (!dense || json_is_null(dense)) return;
    if (!json_is_array(dense)) tt_read_fail(r, "key 'mlp_only_layers' is %s; expected a list", tt_json_kind(dense));
    for (size_t j = 0; j < json_array_size(dense) && r->status == TT_OK; j++) {
        const json_t *layer = json_array_get(dense, j);
        if (!json_is_integer(layer)) tt_read_fail(r, "key 'mlp_only_layers' lists %s", tt_json_kind(layer));
        json_int_t i = json_integer_value(layer);
        if (i >= 0 && i < c->num_layers) c->is_moe[i] = false;
    }
}

/* The window counts only when use_sliding_window is true, and then in every layer;
 * layer_types may repeat that but not contradict it. */
static void read_window(tt_config_reader *r, tt_model_config *c)
{
    bool use = tt_read_bool(r, "use_sliding_window", false);
    bool null = json_is_null(json_object_get(r->object, "sliding_window"));
    int64_t window = tt_read_int(r, "sliding_window", null ? 0 : 4096);
    tt_read_ignored(r, (const char *const[]){"max_window_layers", "layer_types", NULL});
    if (use && window < 0) tt_read_fail(r, "key 'sliding_window' is %lld", (long long)window);
    c->window = use ? window : 0;
    const json_t *types = json_object_get(r->object, "layer_types");
    if (types && !json_is_null(types) && (int64_t)json_array_size(types) != c->num_layers)
        tt_read_fail(r, "key 'layer_types' is no list of %lld layers", (long long)c->num_layers);
    const char *expected = c->window ? "sliding_attention" : "full_attention";
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (!type || strcmp(type, expected) != 0)
            tt_read_fail(r, "key 'layer_types' has '%s' for layer %zu; only '%s' fits the other keys",
                         type ? type : "?", i, expected);
    }
}

static void read(tt_config_reader *r, tt_model_config *c)
{
    double partial;
    c->num_kv_heads = tt_read_kv_heads(r, c->num_heads, 4);
    c->head_dim = tt_read_int(r, "head_dim", c->num_heads > 0 ? c->hidden_size / c->num_heads : 0);
    tt_read_rope(r, 10000, 1, &c->rope_theta, &partial);
    if (partial != 1) /* the common library knows the key for other families and ignores it here */
        tt_read_fail(r, "partial_rotary_factor is %g; models of this family rotate whole heads", partial);
    c->rotary_dim = (int64_t)((double)c->head_dim * partial);
    c->norm_eps = tt_read_number(r, "rms_norm_eps", 1e-6);
    c->qkv_bias = c->o_bias = tt_read_bool(r, "attention_bias", false);
    c->qk_norm = TT_QK_NORM_HEAD;
    c->router = TT_ROUTER_SOFTMAX;
    c->num_experts = tt_read_int_alias(r, "num_experts", "num_local_experts", 128);
    c->experts_per_token = tt_read_int(r, "num_experts_per_tok", 8);
    c->normalise_gates = tt_read_bool(r, "norm_topk_prob", false);
    c->expert_width = tt_read_int(r, "moe_intermediate_size", 768);
    c->dense_width = tt_read_int(r, "intermediate_size", 6144);
    c->has_balance_loss = true;
    c->balance_coef = tt_read_number(r, "router_aux_loss_coef", 0.001);
    read_layers(r, c);
    read_window(r, c);
}

const tt_family tt_family_qwen3_moe = {"qwen3_moe", "num_experts", "moe_intermediate_size", read};
