/* config.h - the configuration of a run: TRL's keys, read from YAML and from the command line.
 *
 *   tt_config_init      defaults
 *   tt_config_load      a YAML file                      later wins, key by key
 *   tt_config_options   --key value ...
 *   tt_config_resolve   defaults that depend on others; refuses contradictions and what is not built yet
 *
 * All keys stand in one list, config_table.h, with default and help; the members of tt_config are made from
 * it. Nothing is repaired in silence: an unknown key, a wrong type, a number out of range is TT_ECONFIG, and
 * the message names the place, the key, the value and the remedy. A key whose feature is not built yet is
 * accepted while its value asks for nothing.
 *
 * Kinds of keys and the values they accept. A text is always accepted for what it spells, so that YAML 1.1's
 * 1e-5 (a text to its readers) and the command line need no rules of their own.
 *   BOOL, FLAG  true, false ("yes", "on", "1", ...); a FLAG can be unset
 *   INT         whole number; unset = TT_CONFIG_UNSET
 *   BYTES       whole number of bytes, or a size with a unit: 20GiB, 1.5GB; unset likewise
 *   REAL        finite number; unset = NaN
 *   STEPS       a whole number of steps, or a share of all steps below 1 (tt_steps_interval, tt_schedule_warmup)
 *   TEXT        text; unset = NULL
 *   NAMES       one text or a list of texts, kept as given; unset = NULL
 *   MAPPING     a mapping (or its JSON as text); unset = NULL
 *   LIST        a list (or its JSON as text); unset = NULL
 *   the others  one word of a list; the word "no" also as false, which is what YAML makes of it
 */
#ifndef TT_TRAIN_CONFIG_H
#define TT_TRAIN_CONFIG_H

#include "tartan/mesh.h"
#include "tartan/status.h"
#include "train/config_table.h"
#include "train/schedule.h"
#include "train/step.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- words ---------------------------------------------------------------------------------------------- */

/* X(name, word, built). A word that is not built is refused as "not supported yet": to build it, flip the 1.
 * What decides about the type of resident weights is TT_PARAM_DTYPE_MAP alone. */

#define TT_PARAM_DTYPE_MAP(X)                                                                                \
    X(FLOAT32, "float32", 1)                                                                                 \
    X(BFLOAT16, "bfloat16", 1)                                                                               \
    X(FLOAT16, "float16", 0)                                                                                 \
    X(AUTO, "auto", 0)

#define TT_STATE_DTYPE_MAP(X)                                                                                \
    X(FLOAT32, "float32", 1)                                                                                 \
    X(BFLOAT16, "bfloat16", 1)

#define TT_TRUNCATION_MAP(X)                                                                                 \
    X(KEEP_START, "keep_start", 1)                                                                           \
    X(KEEP_END, "keep_end", 1)

#define TT_PACKING_MAP(X)                                                                                    \
    X(BFD, "bfd", 1)                                                                                         \
    X(BFD_SPLIT, "bfd_split", 1)                                                                             \
    X(WRAPPED, "wrapped", 1)                                                                                 \
    X(BFD_REQUEUE, "bfd-requeue", 1)

#define TT_LOSS_MAP(X)                                                                                       \
    X(NLL, "nll", 1)                                                                                         \
    X(CHUNKED_NLL, "chunked_nll", 1)                                                                         \
    X(DFT, "dft", 0)

#define TT_SAMPLING_MAP(X)                                                                                   \
    X(RANDOM, "random", 1)                                                                                   \
    X(SEQUENTIAL, "sequential", 1)                                                                           \
    X(GROUP_BY_LENGTH, "group_by_length", 0)                                                                 \
    X(BATCH_REBALANCE, "batch_rebalance", 0)

#define TT_OPTIMIZER_MAP(X)                                                                                  \
    X(ADAMW_TORCH, "adamw_torch", 1)                                                                         \
    X(ADAMW_TORCH_FUSED, "adamw_torch_fused", 1)                                                             \
    X(SGD, "sgd", 1)                                                                                         \
    X(ADAFACTOR, "adafactor", 0)                                                                             \
    X(ADAMW_8BIT, "adamw_8bit", 0)                                                                           \
    X(ADAMW_BNB_8BIT, "adamw_bnb_8bit", 0)                                                                   \
    X(PAGED_ADAMW, "paged_adamw_32bit", 0)                                                                   \
    X(PAGED_ADAMW_8BIT, "paged_adamw_8bit", 0)                                                               \
    X(LION, "lion_32bit", 0)                                                                                 \
    X(ADAGRAD, "adagrad", 0)                                                                                 \
    X(RMSPROP, "rmsprop", 0)

#define TT_INTERVAL_MAP(X)                                                                                   \
    X(NO, "no", 1)                                                                                           \
    X(STEPS, "steps", 1)                                                                                     \
    X(EPOCH, "epoch", 1)

#define TT_EVALUATION_MAP(X)                                                                                 \
    X(NO, "no", 1)                                                                                           \
    X(STEPS, "steps", 0)                                                                                     \
    X(EPOCH, "epoch", 0)

#define TT_SAVING_MAP(X)                                                                                     \
    X(NO, "no", 1)                                                                                           \
    X(STEPS, "steps", 1)                                                                                     \
    X(EPOCH, "epoch", 1)                                                                                     \
    X(BEST, "best", 0)

#define TT_TOKENS_SEEN_MAP(X)                                                                                \
    X(NO, "no", 1)                                                                                           \
    X(ALL, "all", 0)                                                                                         \
    X(NON_PADDING, "non_padding", 0)

#define TT_DISPATCH_MAP(X)                                                                                   \
    X(ALLTOALL, "alltoall", 1)                                                                               \
    X(ALLGATHER, "allgather", 1)                                                                             \
    X(ALLREDUCE, "allreduce", 1)

#define TT_BALANCE_SCOPE_MAP(X)                                                                              \
    X(GLOBAL, "global", 1)                                                                                   \
    X(RANK, "rank", 1)

#define TT_NONFINITE_MAP(X)                                                                                  \
    X(STOP, "stop", 1)                                                                                       \
    X(SKIP, "skip", 1)

/* clang-format off */
#define X(name, word, built) TT_PARAM_DTYPE_##name,
typedef enum tt_param_dtype { TT_PARAM_DTYPE_MAP(X) } tt_param_dtype;
#undef X
#define X(name, word, built) TT_STATE_DTYPE_##name,
typedef enum tt_state_dtype { TT_STATE_DTYPE_MAP(X) } tt_state_dtype;
#undef X
#define X(name, word, built) TT_TRUNCATION_##name,
typedef enum tt_truncation { TT_TRUNCATION_MAP(X) } tt_truncation;
#undef X
#define X(name, word, built) TT_PACKING_##name,
typedef enum tt_packing { TT_PACKING_MAP(X) } tt_packing;
#undef X
#define X(name, word, built) TT_LOSS_##name,
typedef enum tt_loss { TT_LOSS_MAP(X) } tt_loss;
#undef X
#define X(name, word, built) TT_SAMPLING_##name,
typedef enum tt_sampling { TT_SAMPLING_MAP(X) } tt_sampling;
#undef X
#define X(name, word, built) TT_OPTIMIZER_##name,
typedef enum tt_optimizer_name { TT_OPTIMIZER_MAP(X) } tt_optimizer_name;
#undef X
#define X(name, word, built) TT_INTERVAL_##name,
typedef enum tt_interval { TT_INTERVAL_MAP(X) } tt_interval;
#undef X
#define X(name, word, built) TT_EVALUATION_##name,
typedef enum tt_evaluation { TT_EVALUATION_MAP(X) } tt_evaluation;
#undef X
#define X(name, word, built) TT_SAVING_##name,
typedef enum tt_saving { TT_SAVING_MAP(X) } tt_saving;
#undef X
#define X(name, word, built) TT_TOKENS_SEEN_##name,
typedef enum tt_tokens_seen { TT_TOKENS_SEEN_MAP(X) } tt_tokens_seen;
#undef X
/* clang-format on */

/* --- the configuration ---------------------------------------------------------------------------------- */

typedef enum tt_flag { TT_FLAG_UNSET = -1, TT_FLAG_FALSE, TT_FLAG_TRUE } tt_flag;

#define TT_CONFIG_UNSET INT64_MIN

/* What resume_override may name: in these a run may differ from the one that wrote the checkpoint. */
typedef enum tt_override { TT_OVERRIDE_DATASET, TT_OVERRIDE_ORDER, TT_OVERRIDE_SEED, TT_OVERRIDE_DATA_SEED, TT_NUM_OVERRIDES } tt_override;
const char *tt_override_name(tt_override o);

/* C type of each kind. */
#define TT_CONFIG_TYPE_BOOL        bool
#define TT_CONFIG_TYPE_FLAG        tt_flag
#define TT_CONFIG_TYPE_INT         int64_t
#define TT_CONFIG_TYPE_BYTES       int64_t
#define TT_CONFIG_TYPE_REAL        double
#define TT_CONFIG_TYPE_STEPS       double
#define TT_CONFIG_TYPE_TEXT        char *
#define TT_CONFIG_TYPE_NAMES       json_t *
#define TT_CONFIG_TYPE_MAPPING     json_t *
#define TT_CONFIG_TYPE_LIST        json_t *
#define TT_CONFIG_TYPE_DTYPE       tt_param_dtype
#define TT_CONFIG_TYPE_STATE_DTYPE tt_state_dtype
#define TT_CONFIG_TYPE_TRUNCATION  tt_truncation
#define TT_CONFIG_TYPE_PACKING     tt_packing
#define TT_CONFIG_TYPE_LOSS        tt_loss
#define TT_CONFIG_TYPE_SAMPLING    tt_sampling
#define TT_CONFIG_TYPE_OPTIM       tt_optimizer_name
#define TT_CONFIG_TYPE_SCHEDULE    tt_schedule_kind
#define TT_CONFIG_TYPE_INTERVAL    tt_interval
#define TT_CONFIG_TYPE_EVALUATION  tt_evaluation
#define TT_CONFIG_TYPE_SAVING      tt_saving
#define TT_CONFIG_TYPE_TOKENS_SEEN tt_tokens_seen
#define TT_CONFIG_TYPE_DISPATCH    tt_dispatch_kind
#define TT_CONFIG_TYPE_NONFINITE   tt_nonfinite
#define TT_CONFIG_TYPE_BALANCE_SCOPE tt_balance_scope

/* TT_KEY_packing, ...: a key as a number. */
typedef enum tt_config_id {
#define X(kind, name, fallback, traits, help) TT_KEY_##name,
    TT_CONFIG_KEYS(X)
#undef X
        TT_CONFIG_NUM_KEYS
} tt_config_id;

typedef enum tt_config_source { TT_FROM_DEFAULT, TT_FROM_FILE, TT_FROM_COMMAND_LINE } tt_config_source;

/* One member for each key of config_table.h: c->learning_rate, c->packing, ...
 * Texts and JSON values are owned by the struct. */
typedef struct tt_config {
#define X(kind, name, fallback, traits, help) TT_CONFIG_TYPE_##kind name;
    TT_CONFIG_KEYS(X)
#undef X
    struct {
        tt_config_source source;
        int64_t line; /* in the file; 0 = not known */
    } origin[TT_CONFIG_NUM_KEYS];
    char *file; /* `where` of the last tt_config_from_json, for messages */
} tt_config;

/* tt_config_init - every key at its default. The struct may hold anything before. Free with tt_config_free,
 * also after a failure. Local, as all here. */
tt_status tt_config_init(tt_config *c);
/* Accepts a zeroed or freed struct. */
void tt_config_free(tt_config *c);

/* tt_config_apply_env - put the mapping under the key "env" into this process's environment, as TRL does;
 * meant to come before everything else, threads included. Values are texts, numbers or booleans ("True", "False").
 *   values  the file's mapping; without "env": nothing happens */
tt_status tt_config_apply_env(const json_t *values, const char *where);

/* tt_config_from_json - take over the keys of a mapping.
 *   values  the mapping; its key "env" is skipped: see above
 *   lines   the same keys -> line numbers (integers), for messages; may be NULL
 *   where   names the file in messages; copied
 * On failure c is still valid and may hold some of the keys. */
tt_status tt_config_from_json(const json_t *values, const json_t *lines, const char *where, tt_config *c);

/* tt_config_load - the same from a YAML file, after tt_config_apply_env. A file that cannot be read is TT_ECONFIG too. */
tt_status tt_config_load(const char *path, tt_config *c);

/* tt_config_options - the command line behind the file's name: "--key value", "--key=value", "--key" and
 * "--no_key" for booleans ('-' and '_' are the same in a name); mappings and lists as JSON, lists of texts
 * also as several words. "null" is unset. On failure as above. */
tt_status tt_config_options(tt_config *c, int argc, char *const *argv);

/* tt_config_resolve - fill in what depends on other keys, then refuse contradictions and what is not built
 * yet. Calling it again changes nothing. Says with a warning what is deprecated. */
tt_status tt_config_resolve(tt_config *c);

/* tt_config_require - TT_ECONFIG that names the key and what it holds, when it is unset. */
tt_status tt_config_require(const tt_config *c, tt_config_id id);

/* Whether resume_override names it. */
bool tt_config_overrides(const tt_config *c, tt_override o);

/* Whether the user gave the key (even with its default). */
bool tt_config_is_set(const tt_config *c, tt_config_id id);

/* The sizes asked for, for tt_mesh_resolve. */
tt_mesh_sizes tt_config_mesh_sizes(const tt_config *c);

/* tt_config_write - the configuration as a YAML file that tartan reads again, by groups, every key with its
 * value. Keys of features that are not built and that the user did not give stand there as comments. */
tt_status tt_config_write(const char *path, const tt_config *c);
/* The same as text; *out is owned (free). */
tt_status tt_config_yaml(const tt_config *c, char **out);

/* tt_config_help - all keys by groups: name, default, accepted values, meaning. *out is owned (free). */
tt_status tt_config_help(char **out);

#endif
