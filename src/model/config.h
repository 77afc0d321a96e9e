/* config.h - config.json of a model folder, read into one description that all families share.
 *
 * A family is one file (src/model/family_*.c): it reads its own keys, with its own defaults, in the dialects of old and
 * new checkpoints. A value that tartan cannot honour is an error that names key and value; keys that no reader knows are
 * counted and named in one warning (tt_model_config_warn), and survive in the saved config.json.
 */
#ifndef TT_MODEL_CONFIG_H
#define TT_MODEL_CONFIG_H

#include "base/json.h"
#include "tensor/dtype.h"

typedef enum tt_qk_norm {
    TT_QK_NORM_NONE,
    TT_QK_NORM_HEAD, /* per head, one weight [head_dim] for all heads */
    TT_QK_NORM_WIDE  /* over the whole projection, before it is split into heads */
} tt_qk_norm;

typedef enum tt_router_kind { TT_ROUTER_SOFTMAX, TT_ROUTER_SIGMOID } tt_router_kind;

#define TT_MAX_EOS 16

typedef struct tt_model_config {
    const char *family; /* "olmoe", ...: static */
    json_t *source;     /* the object as read, to be saved again; owned */
    char *unknown;      /* a line that names the keys that no reader knows; NULL: none; owned */

    int64_t vocab_size, hidden_size, num_layers;
    int64_t num_heads, num_kv_heads, head_dim, rotary_dim;
    double rope_theta, norm_eps, init_std;
    bool qkv_bias, o_bias;
    tt_qk_norm qk_norm;
    double clip_qkv;  /* 0: none */
    int64_t window;   /* sliding window, 0: none */
    int64_t dense_width;
    bool *is_moe;     /* [num_layers]; owned */

    int64_t num_experts, experts_per_token, expert_width, shared_width; /* num_experts 0: a dense model */
    tt_router_kind router;
    bool normalise_gates;
    int64_t expert_groups, kept_groups;
    double gate_scale;

    bool tied;
    bool has_balance_loss; /* the family defines one */
    bool output_router_logits;
    double balance_coef;
    int64_t pad_token, bos_token; /* -1: none */
    int64_t eos_tokens[TT_MAX_EOS];
    int num_eos;
    int64_t max_positions;
    tt_dtype dtype; /* "dtype" or "torch_dtype"; F32 when neither is there */
} tt_model_config;

/* tt_model_config_load - FOLDER/config.json. Errors: TT_EIO, TT_EFORMAT with file, key, value. Local. */
tt_status tt_model_config_load(const char *folder, tt_model_config *out);
/* tt_model_config_read - the same from an object; `where` names it in messages; the object is kept (increfed). */
tt_status tt_model_config_read(json_t *object, const char *where, tt_model_config *out);
/* tt_model_config_warn - of keys without effect. Reading does not: a command may read the file more than once. */
void tt_model_config_warn(const tt_model_config *c);
void tt_model_config_free(tt_model_config *c);

/* --- for family files ---------------------------------------------------------------------------------------- */

/* Reads keys and remembers which were asked for. The first failure is kept in `status`; later reads do nothing, so
 * that a family file reads like a list. */
typedef struct tt_config_reader {
    const json_t *object;
    const char *where;
    json_t *known; /* keys asked for, as members */
    tt_status status;
} tt_config_reader;

int64_t tt_read_int(tt_config_reader *r, const char *key, int64_t fallback); /* INT64_MIN as fallback: required */
/* num_key_value_heads: null means as many as query heads, absent the family's default. */
int64_t tt_read_kv_heads(tt_config_reader *r, int64_t heads, int64_t when_absent);
/* null is refused, but where the fallback is infinite: there it means no limit. */
double tt_read_number(tt_config_reader *r, const char *key, double fallback);
bool tt_read_bool(tt_config_reader *r, const char *key, bool fallback);
/* An alias is read when the first key is absent or null. */
int64_t tt_read_int_alias(tt_config_reader *r, const char *key, const char *alias, int64_t fallback);
/* Refuse every value but null, false and the given ones (a JSON text such as "\"silu\"" or "0"). */
void tt_read_only(tt_config_reader *r, const char *key, const char *allowed, const char *why);
/* Keys that carry information tartan does not need. */
void tt_read_ignored(tt_config_reader *r, const char *const *keys);
/* rope_parameters / rope_scaling / rope_theta / partial_rotary_factor in both dialects. */
void tt_read_rope(tt_config_reader *r, double default_theta, double default_partial, double *theta, double *partial);
void tt_read_fail(tt_config_reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define TT_REQUIRED INT64_MIN

/* One entry per family; src/model/config.c lists them. */
typedef struct tt_family {
    const char *model_type;
    const char *experts_key, *expert_width_key; /* for messages */
    void (*read)(tt_config_reader *r, tt_model_config *c);
} tt_family;
extern const tt_family tt_family_olmoe, tt_family_qwen3_moe, tt_family_glm4_moe;

#endif
