#include "model/table.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>

/* Adds parameters of one layer; the first failure is kept, as in a list of entries nobody wants an if after each. */
typedef struct builder {
    tt_params *params;
    tt_status status;
    char prefix[64];
} builder;

static int64_t add(builder *b, bool present, const char *name, int64_t rows, int64_t cols)
{
    char full[160];
    if (!present || b->status != TT_OK) return -1;
    snprintf(full, sizeof full, "%s%s", b->prefix, name);
    b->status = tt_params_add(b->params, full, rows, cols, NULL);
    return b->params->num - 1;
}

static int64_t add_bias(builder *b, bool present, const char *name, int64_t rows)
{
    int64_t i = add(b, present, name, rows, 0);
    if (i >= 0 && b->status == TT_OK) b->params->at[i].init = TT_INIT_ZERO;
    return i;
}

static int add_unit(builder *b, tt_unit_kind kind, int layer)
{
    int unit = -1;
    if (b->status == TT_OK) b->status = tt_params_add_unit(b->params, kind, layer, &unit);
    return unit;
}

static void add_attention(builder *b, const tt_model_config *c, tt_layer_params *l)
{
    int64_t D = c->hidden_size, q = c->num_heads * c->head_dim, kv = c->num_kv_heads * c->head_dim;
    bool wide = c->qk_norm == TT_QK_NORM_WIDE, normed = c->qk_norm != TT_QK_NORM_NONE;
    l->norm_attention = add(b, true, "input_layernorm.weight", D, 0);
    l->q = add(b, true, "self_attn.q_proj.weight", q, D);
    l->k = add(b, true, "self_attn.k_proj.weight", kv, D);
    l->v = add(b, true, "self_attn.v_proj.weight", kv, D);
    l->o = add(b, true, "self_attn.o_proj.weight", D, q);
    l->q_bias = add_bias(b, c->qkv_bias, "self_attn.q_proj.bias", q);
    l->k_bias = add_bias(b, c->qkv_bias, "self_attn.k_proj.bias", kv);
    l->v_bias = add_bias(b, c->qkv_bias, "self_attn.v_proj.bias", kv);
    l->o_bias = add_bias(b, c->o_bias, "self_attn.o_proj.bias", D);
    l->q_norm = add(b, normed, "self_attn.q_norm.weight", wide ? q : c->head_dim, 0);
    l->k_norm = add(b, normed, "self_attn.k_norm.weight", wide ? kv : c->head_dim, 0);
    l->norm_mlp = add(b, true, "post_attention_layernorm.weight", D, 0);
}

static void add_mlp(builder *b, const tt_model_config *c, bool moe, tt_layer_params *l)
{
    int64_t D = c->hidden_size, F = c->dense_width, S = moe ? c->shared_width : 0;
    bool sigmoid = moe && c->router == TT_ROUTER_SIGMOID;
    l->gate = add(b, !moe, "mlp.gate_proj.weight", F, D);
    l->up = add(b, !moe, "mlp.up_proj.weight", F, D);
    l->down = add(b, !moe, "mlp.down_proj.weight", D, F);
    l->router = add(b, moe, "mlp.gate.weight", c->num_experts, D);
    if (l->router >= 0 && b->status == TT_OK) b->params->at[l->router].exact = true;
    l->router_bias = add_bias(b, sigmoid, "mlp.gate.e_score_correction_bias", c->num_experts);
    /* A buffer of the common library: it chooses experts, gets no gradient, and stays F32 on disk. */
    if (l->router_bias >= 0 && b->status == TT_OK) b->params->at[l->router_bias].trained = false;
    l->shared_gate = add(b, S > 0, "mlp.shared_experts.gate_proj.weight", S, D);
    l->shared_up = add(b, S > 0, "mlp.shared_experts.up_proj.weight", S, D);
    l->shared_down = add(b, S > 0, "mlp.shared_experts.down_proj.weight", D, S);
}

/* The stacked form: gate above up in one tensor, down in another. */
static int64_t add_stack(builder *b, const tt_model_config *c, const char *name, int64_t rows, int64_t cols)
{
    char full[160];
    int64_t index = -1;
    snprintf(full, sizeof full, "%smlp.experts.%s", b->prefix, name);
    if (b->status == TT_OK)
        b->status = tt_params_add_stack(b->params, full, (const int64_t[]){c->num_experts, rows, cols}, &index);
    return index;
}

static void add_experts(builder *b, const tt_model_config *c, int layer, tt_layer_params *l)
{
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    int64_t D = c->hidden_size, F = c->expert_width;
    l->expert_unit = add_unit(b, TT_UNIT_EXPERTS, layer);
    l->experts = b->params->num;
    int64_t gate_up = add_stack(b, c, "gate_up_proj", 2 * F, D), down = add_stack(b, c, "down_proj", D, F);
    for (int64_t e = 0; e < c->num_experts; e++)
        for (int j = 0; j < 3; j++) {
            char name[64];
            snprintf(name, sizeof name, "mlp.experts.%lld.%s.weight", (long long)e, parts[j]);
            int64_t i = add(b, true, name, j < 2 ? F : D, j < 2 ? D : F);
            if (b->status != TT_OK) return;
            tt_param *p = &b->params->at[i];
            p->expert = e;
            p->stack = j < 2 ? gate_up : down;
            p->stack_first = j < 2 ? (2 * e + j) * F * D : e * D * F;
        }
}

static void add_layer(builder *b, const tt_model_config *c, int layer, tt_layer_params *l)
{
    snprintf(b->prefix, sizeof b->prefix, "model.layers.%d.", layer);
    l->unit = add_unit(b, TT_UNIT_DENSE, layer);
    l->expert_unit = -1;
    l->experts = -1;
    add_attention(b, c, l);
    add_mlp(b, c, c->is_moe[layer], l);
    if (c->is_moe[layer]) add_experts(b, c, layer, l);
}

tt_status tt_model_table_build(const tt_model_config *c, tt_model_table *t)
{
    *t = (tt_model_table){0};
    builder b = {&t->params, TT_OK, ""};
    int64_t total = 0;
    t->layers = calloc((size_t)c->num_layers, sizeof *t->layers);
    TT_CHECK(t->layers, TT_ENOMEM, "out of memory for %lld layers", (long long)c->num_layers);
    t->params.num_experts = c->num_experts;
    t->params.init_std = c->init_std;
    t->embedding_unit = add_unit(&b, TT_UNIT_EMBEDDING, -1);
    t->embedding = add(&b, true, "model.embed_tokens.weight", c->vocab_size, c->hidden_size);
    if (b.status == TT_OK) t->params.at[t->embedding].zero_row = c->pad_token;
    for (int i = 0; i < c->num_layers && b.status == TT_OK; i++) add_layer(&b, c, i, &t->layers[i]);
    b.prefix[0] = '\0';
    t->head_unit = add_unit(&b, TT_UNIT_HEAD, -1);
    t->norm = add(&b, true, "model.norm.weight", c->hidden_size, 0);
    t->head = c->tied ? t->embedding : add(&b, true, "lm_head.weight", c->vocab_size, c->hidden_size);
    for (int64_t i = 0; i < t->params.num; i++) {
        tt_param *p = &t->params.at[i];
        p->stored = p->trained ? c->dtype : TT_F32;
        /* Bytes per parameter and padding fit above. */
        if (b.status == TT_OK && (!tt_add_i64(total, p->count, &total) || total > INT64_MAX / 64))
            b.status = tt_error_set(TT_ECONFIG, "the model would have more parameters than can be counted; see the sizes in "
                                                "config.json");
    }
    if (b.status != TT_OK) tt_model_table_free(t);
    return b.status;
}

void tt_model_table_free(tt_model_table *t)
{
    tt_params_free(&t->params);
    free(t->layers);
    *t = (tt_model_table){0};
}
