/* config_key.h - one row of the table of keys, and reading and writing the value of a row.
 * Private to train/config*. */
#ifndef TT_TRAIN_CONFIG_KEY_H
#define TT_TRAIN_CONFIG_KEY_H

#include "train/config.h"

/* name, built, what it is (in "... is not supported yet"), the remedy when it is not the key's own default */
#define TT_FEATURES(X)                                                                                       \
    X(CORE, 1, "training", NULL)                                                                             \
    X(ACCEPTED, 1, "accepted without effect", NULL)                                                          \
    X(SUBSETS, 0, "a named subset of a data set", NULL)                                                      \
    X(STREAMING, 0, "streaming of data", NULL)                                                               \
    X(MIXTURES, 0, "a mixture of data sets", "name one data set with dataset_name and leave it out")         \
    X(PACKING, 0, "packing", NULL)                                                                           \
    X(PADDING_FREE, 0, "padding-free batches", NULL)                                                         \
    X(PEFT, 0, "training of LoRA adapters", NULL)                                                            \
    X(QUANTIZATION, 0, "a quantised base model", NULL)                                                       \
    X(INIT_ARGUMENTS, 0, "passing arguments to a model loader", "set dtype itself and leave it out")         \
    X(LABEL_SMOOTHING, 0, "label smoothing", NULL)                                                           \
    X(NEFTUNE, 0, "embedding noise", NULL)                                                                   \
    X(LOCAL_MEAN, 0, "a mean of each rank's own mean, which depends on the number of ranks,", NULL)          \
    X(OFFLOADING, 0, "offloading of activations", NULL)                                                      \
    X(FP16, 0, "float16 with loss scaling", "set fp16: false; bf16: true has its speed without the scaling") \
    X(SAMPLING, 0, "sampling by length", NULL)                                                               \
    X(OPTIM_ARGUMENTS, 0, "passing arguments to an optimizer", NULL)                                         \
    X(LIGER, 0, "a library of GPU kernels", NULL)                                                            \
    X(COMPILATION, 0, "compilation of the model", NULL)                                                      \
    X(BATCH_SEARCH, 0, "a search for the batch size", NULL)                                                  \
    X(DATA_RESTART, 0, "starting the epoch's data anew when resuming", NULL)                                 \
    X(REPORTING, 0, "a metric tracker", NULL)                                                                \
    X(EVALUATION, 0, "evaluation during training", NULL)                                                     \
    X(HUB, 0, "uploading", NULL)                                                                             \
    X(ACCELERATOR, 0, "the common stack's accelerator", "leave it out; even_batches is a key of its own")    \
    X(OTHER_SHARDING, 0, "another stack's sharding", "leave it out and set fsdp_size, tp_size and ep_size")

typedef enum tt_feature {
#define X(name, built, text, remedy) TT_FEATURE_##name,
    TT_FEATURES(X)
#undef X
} tt_feature;

typedef enum tt_config_kind {
    TT_KIND_BOOL,
    TT_KIND_FLAG,
    TT_KIND_INT,
    TT_KIND_BYTES,
    TT_KIND_REAL,
    TT_KIND_STEPS,
    TT_KIND_TEXT,
    TT_KIND_NAMES,
    TT_KIND_MAPPING,
    TT_KIND_LIST,
    TT_KIND_WORD, /* an enum: all choices */
} tt_config_kind;

typedef struct tt_config_word {
    const char *text;
    bool built;
} tt_config_word;

typedef enum tt_bound { TT_BOUND_NONE, TT_BOUND_CLOSED, TT_BOUND_OPEN } tt_bound;

typedef struct tt_config_key {
    const char *name, *fallback, *help;
    const char *alias;      /* or NULL */
    const char *unset_word; /* or NULL */
    tt_config_kind kind;
    size_t offset;               /* of the member */
    const tt_config_word *words; /* of a WORD, by value; ends with a NULL text */
    bool nullable;               /* besides keys whose default is null */
    bool false_is_null;
    bool true_is_text;
    tt_bound lower, upper;
    double min, max;
    tt_feature feature;
    bool (*asks)(const tt_config *c, const struct tt_config_key *k); /* NULL: never */
} tt_config_key;

/* The row of a key. Static. */
const tt_config_key *tt_config_key_of(tt_config_id id);
/* Id of a name or alias, or -1. */
int tt_config_find(const char *name);
/* tt_config_hint - text for an unknown key: where a retired name went, else the nearest name by edit distance. */
void tt_config_hint(const char *name, char *out, size_t size);

/* Title of the group that begins at id, or NULL. */
const char *tt_config_group(tt_config_id id);
bool tt_feature_built(tt_feature f);
const char *tt_feature_text(tt_feature f);
const char *tt_feature_remedy(tt_feature f);

/* tt_config_set - read v into the member of k; `place` begins every message ("sft.yaml:3: key 'packing'").
 * TT_ECONFIG for a wrong type or a number out of range; the member is then unchanged. */
tt_status tt_config_set(tt_config *c, const tt_config_key *k, const json_t *v, const char *place);
/* tt_config_get - the value as JSON, a new reference (JSON null when unset); NULL when out of memory. */
json_t *tt_config_get(const tt_config *c, const tt_config_key *k);
/* tt_config_reset - free what the member owns and make it unset (numbers, flags) or zero. */
void tt_config_reset(tt_config *c, const tt_config_key *k);
/* tt_config_expected - what the key accepts: "a whole number, at least 1, or null". */
void tt_config_expected(const tt_config_key *k, char *out, size_t size);
bool tt_config_nullable(const tt_config_key *k);

/* tt_config_place - where the key was given:
 * "sft.yaml:3: key 'packing'", "--packing", "key 'packing' (default)". */
void tt_config_place(const tt_config *c, tt_config_id id, char *out, size_t size);

/* tt_config_spell - a value for a message: compact JSON, cut to `size`. */
void tt_config_spell(const json_t *v, char *out, size_t size);

#endif
