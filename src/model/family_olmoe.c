/* olmoe - OLMoE-1B-7B: every layer is MoE, softmax router, query and key norms over the whole projection, optional
 * clamping of q, k and v. docs/model.md section "olmoe". */
#include "model/config.h"

#include <math.h>

static void read(tt_config_reader *r, tt_model_config *c)
{
    double partial;
    c->num_kv_heads = tt_read_kv_heads(r, c->num_heads, c->num_heads);
    int64_t head_dim = c->num_heads > 0 ? c->hidden_size / c->num_heads : 0;
    c->head_dim = tt_read_int(r, "head_dim", head_dim);
    /* The common library sizes the wide norms by hidden_size, the projections by head_dim: both or neither. */
    if (c->head_dim != head_dim || head_dim * c->num_heads != c->hidden_size)
        tt_read_fail(r, "head_dim must be hidden_size / num_attention_heads (%lld / %lld)", (long long)c->hidden_size,
                     (long long)c->num_heads);
    /* The family's default, which masks the gradient of an embedding row, holds unless the key is there (null: none). */
    if (!json_object_get(r->object, "pad_token_id") && c->vocab_size > 1) c->pad_token = 1;
    tt_read_rope(r, 10000, 1, &c->rope_theta, &partial);
    if (partial != 1) /* the common library knows the key for other families and ignores it here */
        tt_read_fail(r, "partial_rotary_factor is %g; models of this family rotate whole heads", partial);
    c->rotary_dim = (int64_t)((double)c->head_dim * partial);
    c->norm_eps = tt_read_number(r, "rms_norm_eps", 1e-5);
    c->qkv_bias = c->o_bias = tt_read_bool(r, "attention_bias", false);
    c->qk_norm = TT_QK_NORM_WIDE;
    c->clip_qkv = tt_read_number(r, "clip_qkv", INFINITY);
    if (!(c->clip_qkv > 0)) tt_read_fail(r, "clip_qkv is %g; expected null or a positive number", c->clip_qkv);
    if (isinf(c->clip_qkv)) c->clip_qkv = 0;
    c->router = TT_ROUTER_SOFTMAX;
    c->num_experts = tt_read_int_alias(r, "num_experts", "num_local_experts", 64);
    c->experts_per_token = tt_read_int(r, "num_experts_per_tok", 8);
    c->normalise_gates = tt_read_bool(r, "norm_topk_prob", false);
    c->expert_width = tt_read_int(r, "intermediate_size", 2048);
    c->has_balance_loss = true;
    c->balance_coef = tt_read_number(r, "router_aux_loss_coef", 0.01);
    for (int64_t i = 0; i < c->num_layers; i++) c->is_moe[i] = true;
}

const tt_family tt_family_olmoe = {"olmoe", "num_experts", "intermediate_size", read};
