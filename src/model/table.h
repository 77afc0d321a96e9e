/* table.h - the parameter table of a model, filled from its configuration, and where each block finds its weights. */
#ifndef TT_MODEL_TABLE_H
#define TT_MODEL_TABLE_H

#include "model/config.h"
#include "params/params.h"

/* Table entries of one decoder layer; -1 where the layer has no such parameter. */
typedef struct tt_layer_params {
    int unit, expert_unit; /* expert_unit -1 in a dense layer */
    int64_t norm_attention, norm_mlp;
    int64_t q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
    int64_t gate, up, down;                      /* dense MLP */
    int64_t router, router_bias;
    int64_t shared_gate, shared_up, shared_down; /* shared experts */
    int64_t experts; /* expert e: gate, up, down at experts + 3e, + 1, + 2 */
} tt_layer_params;

typedef struct tt_model_table {
    tt_params params;
    tt_layer_params *layers; /* [num_layers] */
    int embedding_unit, head_unit;
    int64_t embedding, norm, head; /* head = embedding when tied */
} tt_model_table;

/* tt_model_table_build - names, shapes, kinds and units from the configuration alone. Pure but for memory. */
tt_status tt_model_table_build(const tt_model_config *c, tt_model_table *out);
void tt_model_table_free(tt_model_table *t);

#endif
