/* The table of keys as an array, the predicates that say whether a value asks for something, and looking
 * names up. Everything here is constant. */
#include "train/config_key.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- what asks for a feature ---------------------------------------------------------------------------- */

static const void *member(const tt_config *c, const tt_config_key *k)
{
    return (const char *)c + k->offset;
}

static bool asks_true(const tt_config *c, const tt_config_key *k)
{
    return *(const bool *)member(c, k);
}

static bool asks_false(const tt_config *c, const tt_config_key *k)
{
    return !asks_true(c, k);
}

/* A number that is set and not 0. */
static bool asks_nonzero(const tt_config *c, const tt_config_key *k)
{
    double v = *(const double *)member(c, k);
    return !isnan(v) && v != 0;
}

/* Anything but unset, "", an empty list or an empty mapping. */
static bool asks_value(const tt_config *c, const tt_config_key *k)
{
    json_t *v = tt_config_get(c, k);
    bool empty = !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0) ||
                 (json_is_array(v) && json_array_size(v) == 0) ||
                 (json_is_object(v) && json_object_size(v) == 0);
    json_decref(v);
    return !empty;
}

/* A tracker other than "none". */
static bool asks_reports(const tt_config *c, const tt_config_key *k)
{
    const json_t *v = *(json_t *const *)member(c, k);
    if (json_is_array(v) && json_array_size(v) == 1) v = json_array_get(v, 0);
    if (json_is_string(v)) return strcmp(json_string_value(v), "none") != 0;
    return json_array_size(v) > 0;
}

static bool asks_data_restart(const tt_config *c, const tt_config_key *k)
{
    return asks_true(c, k) && c->resume_from_checkpoint;
}

/* --- the table ------------------------------------------------------------------------------------------ */

#define X(name, word, built) {word, built},
static const tt_config_word words_DTYPE[] = {TT_PARAM_DTYPE_MAP(X){NULL, 0}};
static const tt_config_word words_STATE_DTYPE[] = {TT_STATE_DTYPE_MAP(X){NULL, 0}};
static const tt_config_word words_TRUNCATION[] = {TT_TRUNCATION_MAP(X){NULL, 0}};
static const tt_config_word words_PACKING[] = {TT_PACKING_MAP(X){NULL, 0}};
static const tt_config_word words_LOSS[] = {TT_LOSS_MAP(X){NULL, 0}};
static const tt_config_word words_SAMPLING[] = {TT_SAMPLING_MAP(X){NULL, 0}};
static const tt_config_word words_OPTIM[] = {TT_OPTIMIZER_MAP(X){NULL, 0}};
static const tt_config_word words_SCHEDULE[] = {TT_SCHEDULE_MAP(X){NULL, 0}};
static const tt_config_word words_INTERVAL[] = {TT_INTERVAL_MAP(X){NULL, 0}};
static const tt_config_word words_EVALUATION[] = {TT_EVALUATION_MAP(X){NULL, 0}};
static const tt_config_word words_SAVING[] = {TT_SAVING_MAP(X){NULL, 0}};
static const tt_config_word words_TOKENS_SEEN[] = {TT_TOKENS_SEEN_MAP(X){NULL, 0}};
#undef X
/* Enums of other headers have no list of their own: place each word by its constant. */
#define X(name, word, built) [TT_DISPATCH_##name] = {word, built},
static const tt_config_word words_DISPATCH[] = {TT_DISPATCH_MAP(X){NULL, 0}};
#undef X
#define X(name, word, built) [TT_NONFINITE_##name] = {word, built},
static const tt_config_word words_NONFINITE[] = {TT_NONFINITE_MAP(X){NULL, 0}};
#undef X
#define X(name, word, built) [TT_BALANCE_##name] = {word, built},
static const tt_config_word words_BALANCE_SCOPE[] = {TT_BALANCE_SCOPE_MAP(X){NULL, 0}};
#undef X

/* Members are written as int, whichever enum they are. */
_Static_assert(sizeof(tt_flag) == sizeof(int) && sizeof(tt_dispatch_kind) == sizeof(int) &&
                   sizeof(tt_optimizer_name) == sizeof(int),
               "an enum is an int");

#define KIND_BOOL        .kind = TT_KIND_BOOL
#define KIND_FLAG        .kind = TT_KIND_FLAG
#define KIND_INT         .kind = TT_KIND_INT
#define KIND_BYTES       .kind = TT_KIND_BYTES
#define KIND_REAL        .kind = TT_KIND_REAL
#define KIND_STEPS       .kind = TT_KIND_STEPS
#define KIND_TEXT        .kind = TT_KIND_TEXT
#define KIND_NAMES       .kind = TT_KIND_NAMES
#define KIND_MAPPING     .kind = TT_KIND_MAPPING
#define KIND_LIST        .kind = TT_KIND_LIST
#define KIND_WORD(list)  .kind = TT_KIND_WORD, .words = list
#define KIND_DTYPE       KIND_WORD(words_DTYPE)
#define KIND_STATE_DTYPE KIND_WORD(words_STATE_DTYPE)
#define KIND_TRUNCATION  KIND_WORD(words_TRUNCATION)
#define KIND_PACKING     KIND_WORD(words_PACKING)
#define KIND_LOSS        KIND_WORD(words_LOSS)
#define KIND_SAMPLING    KIND_WORD(words_SAMPLING)
#define KIND_OPTIM       KIND_WORD(words_OPTIM)
#define KIND_SCHEDULE    KIND_WORD(words_SCHEDULE)
#define KIND_INTERVAL    KIND_WORD(words_INTERVAL)
#define KIND_EVALUATION  KIND_WORD(words_EVALUATION)
#define KIND_SAVING      KIND_WORD(words_SAVING)
#define KIND_TOKENS_SEEN KIND_WORD(words_TOKENS_SEEN)
#define KIND_DISPATCH    KIND_WORD(words_DISPATCH)
#define KIND_NONFINITE   KIND_WORD(words_NONFINITE)
#define KIND_BALANCE_SCOPE KIND_WORD(words_BALANCE_SCOPE)

#define AT_LEAST(x)     .lower = TT_BOUND_CLOSED, .min = (x),
#define ABOVE(x)        .lower = TT_BOUND_OPEN, .min = (x),
#define AT_MOST(x)      .upper = TT_BOUND_CLOSED, .max = (x),
#define BELOW(x)        .upper = TT_BOUND_OPEN, .max = (x),
#define NULLABLE        .nullable = true,
#define FALSE_IS_NULL   .false_is_null = true,
#define TRUE_IS_TEXT    .true_is_text = true,
#define UNSET_WORD(w)   .unset_word = (w),
#define ALIAS(other)    .alias = (other),
#define GATE(f, asking) .feature = TT_FEATURE_##f, .asks = (asking),
#define DETAIL(f)       .feature = TT_FEATURE_##f,
#define NO_EFFECT       .feature = TT_FEATURE_ACCEPTED,
#define OPEN(...)       __VA_ARGS__

static const tt_config_key keys[TT_CONFIG_NUM_KEYS] = {
#define X(type, member, standard, traits, text)                                                              \
    {.name = #member,                                                                                        \
     .fallback = standard,                                                                                   \
     .help = text,                                                                                           \
     .offset = offsetof(tt_config, member),                                                                  \
     OPEN traits KIND_##type},
    TT_CONFIG_KEYS(X)
#undef X
};

const tt_config_key *tt_config_key_of(tt_config_id id)
{
    return &keys[id];
}

const char *tt_config_group(tt_config_id id)
{
#define X(...)         +1
#define G(title, list) {title, 0 list(X)},
    static const struct {
        const char *title;
        int count;
    } groups[] = {TT_CONFIG_GROUPS(G)};
#undef G
#undef X
    int begin = 0;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; begin += groups[i++].count)
        if ((int)id == begin) return groups[i].title;
    return NULL;
}

static const struct {
    bool built;
    const char *text, *remedy;
} features[] = {
#define X(name, built, text, remedy) {built, text, remedy},
    TT_FEATURES(X)
#undef X
};

bool tt_feature_built(tt_feature f)
{
    return features[f].built;
}

const char *tt_feature_text(tt_feature f)
{
    return features[f].text;
}

const char *tt_feature_remedy(tt_feature f)
{
    return features[f].remedy;
}

/* --- names ---------------------------------------------------------------------------------------------- */

int tt_config_find(const char *name)
{
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++)
        if (strcmp(name, keys[i].name) == 0 || (keys[i].alias && strcmp(name, keys[i].alias) == 0)) return i;
    return -1;
}

/* Names that other versions know, where the nearest name would mislead. */
static const struct {
    const char *name, *hint;
} retired[] = {
    {"warmup_ratio", "write the share as warmup_steps: 0.1"},
    {"max_seq_length", "its name is now max_length"},
    {"torch_dtype", "its name is now dtype"},
    {"evaluation_strategy", "its name is now eval_strategy"},
    {"group_by_length", "write train_sampling_strategy: group_by_length"},
    {"no_cuda", "its name is now use_cpu"},
    {"num_epochs", "its name is num_train_epochs"},
    {"batch_size", "its name is per_device_train_batch_size"},
    {"router_aux_loss_scaling", "the auxiliary loss is always the mean of the micro-batches: leave it out"},
    {"hub_token", "nothing is uploaded: leave it out"},
};

enum { LONGEST_NAME = 64 };

/* Levenshtein distance of the first LONGEST_NAME bytes. */
static int distance(const char *a, const char *b)
{
    int n = (int)strnlen(b, LONGEST_NAME), row[LONGEST_NAME + 1];
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 0; i < LONGEST_NAME && a[i]; i++) {
        int corner = row[0];
        row[0] = i + 1;
        for (int j = 0; j < n; j++) {
            int change = corner + (a[i] != b[j]), above = row[j + 1];
            int best = above < row[j] ? above + 1 : row[j] + 1;
            row[j + 1] = change < best ? change : best;
            corner = above;
        }
    }
    return row[n];
}

void tt_config_hint(const char *name, char *out, size_t size)
{
    for (size_t i = 0; i < sizeof retired / sizeof *retired; i++)
        if (strcmp(name, retired[i].name) == 0) {
            snprintf(out, size, "%s", retired[i].hint);
            return;
        }
    const char *best = keys[0].name;
    int least = LONGEST_NAME + 1;
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++) {
        const char *names[] = {keys[i].name, keys[i].alias};
        for (int j = 0; j < 2 && names[j]; j++) {
            int d = distance(name, names[j]);
            if (d < least) least = d, best = names[j];
        }
    }
    snprintf(out, size, "the nearest key is %s", best);
}
