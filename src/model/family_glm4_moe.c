/* glm4_moe - GLM-4.5, 4.6, 4.7: the first layers are dense, sigmoid router whose correction bias chooses but does not
 * weigh, shared experts beside the routed ones, rotation of a part of each head. docs/model.md section "glm4_moe". */
#include "base/checked.h"
#include "model/config.h"

static void read(tt_config_reader *r, tt_model_config *c)
{
    double partial;
    c->num_kv_heads = tt_read_kv_heads(r, c->num_heads, 8);
    c->head_dim = tt_read_int(r, "head_dim", c->num_heads > 0 ? c->hidden_size / c->num_heads : 0);
    tt_read_rope(r, 10000, 0.5, &c->rope_theta, &partial);
    c->rotary_dim = (int64_t)((double)c->head_dim * partial);
    c->norm_eps = tt_read_number(r, "rms_norm_eps", 1e-5);
    c->qkv_bias = tt_read_bool(r, "attention_bias", false);
    c->qk_norm = tt_read_bool(r, "use_qk_norm", false) ? TT_QK_NORM_HEAD : TT_QK_NORM_NONE;
    c->router = TT_ROUTER_SIGMOID;
    c->num_experts = tt_read_int_alias(r, "n_routed_experts", "num_local_experts", 128);
    c->experts_per_token = tt_read_int(r, "num_experts_per_tok", 8);
    c->normalise_gates = tt_read_bool(r, "norm_topk_prob", true);
    c->expert_groups = tt_read_int(r, "n_group", 1);
    c->kept_groups = tt_read_int(r, "topk_group", 1);
    c->gate_scale = tt_read_number(r, "routed_scaling_factor", 1);
    c->expert_width = tt_read_int(r, "moe_intermediate_size", 1408);
    if (!tt_mul_i64(tt_read_int(r, "n_shared_experts", 1), c->expert_width, &c->shared_width)) c->shared_width = INT64_MAX;
    c->dense_width = tt_read_int(r, "intermediate_size", 10944);
    int64_t dense = tt_read_int(r, "first_k_dense_replace", 1);
    for (int64_t i = 0; i < c->num_layers; i++) c->is_moe[i] = i >= dense;
    tt_read_only(r, "scoring_func", "\"sigmoid\"", "only \"sigmoid\" is supported");
    tt_read_only(r, "topk_method", "\"noaux_tc\"", "only \"noaux_tc\" is supported");
    /* Multi-token prediction layers take no part in fine-tuning; router_aux_loss_coef has no effect in this family. */
    tt_read_ignored(r, (const char *const[]){"num_nextn_predict_layers", "router_aux_loss_coef", "ep_size",
                                             "moe_layer_freq", NULL});
}

const tt_family tt_family_glm4_moe = {"glm4_moe", "n_routed_experts", "moe_intermediate_size", read};
