/* params.h - the spine: one table of all parameters of a model, built from config.json alone (src/model/table.c).
 *
 * Load, save, sharding, optimizer, norm, certify, inspect and the memory plan walk this table; none of them knows a
 * model family. It holds no weights. Order: embedding; per layer the dense part, then the experts by number; final norm
 * and head. Parameters of one unit stand next to each other.
 */
#ifndef TT_PARAMS_PARAMS_H
#define TT_PARAMS_PARAMS_H

#include "tensor/dtype.h"

typedef enum tt_param_init { TT_INIT_NORMAL, TT_INIT_ONE, TT_INIT_ZERO } tt_param_init;

typedef struct tt_param {
    char *name;         /* on disk, e.g. "model.layers.0.mlp.experts.3.up_proj.weight"; owned by the table */
    int ndim;           /* 1 or 2 */
    int64_t shape[2];   /* shape[1] = 1 when ndim is 1 */
    int64_t count;      /* elements */
    int unit;           /* index into units */
    int64_t expert;     /* number of the routed expert it belongs to, -1 for dense parameters */
    int64_t stack;      /* index into stacks: the tensor that may hold it on disk instead, -1 for none */
    int64_t stack_first; /* its first element there */
    bool exact;         /* held and gathered in real, never in the compute type: norms, biases, router */
    bool trained;       /* false: a buffer, loaded and saved but never updated */
    bool decay;         /* weight decay applies */
    tt_param_init init;
    int64_t zero_row;   /* row that random initialisation leaves at zero, -1 for none */
    tt_dtype stored;    /* type on disk: the source's once it is known, else the configuration's */
} tt_param;

/* The other form in which files may hold a layer's experts: matrices of all of them in one tensor, end to end. */
typedef struct tt_stack {
    char *name;       /* e.g. "model.layers.0.mlp.experts.gate_up_proj"; owned by the table */
    int64_t shape[3]; /* experts, rows, columns */
} tt_stack;

/* What is gathered, used and released together. */
typedef enum tt_unit_kind { TT_UNIT_EMBEDDING, TT_UNIT_DENSE, TT_UNIT_EXPERTS, TT_UNIT_HEAD } tt_unit_kind;

typedef struct tt_unit {
    tt_unit_kind kind;
    int layer;             /* of a dense or expert unit, else -1 */
    int64_t first, count;  /* its parameters: table entries [first, first + count) */
} tt_unit;

typedef struct tt_params {
    int64_t num, capacity;
    tt_param *at;
    int num_units;
    tt_unit *units;
    int64_t num_stacks;
    tt_stack *stacks;
    int64_t num_experts; /* routed experts per MoE layer, 0 for none */
    double init_std;
} tt_params;

/* Building: tt_params_add_unit, then tt_params_add for each of its parameters. name is copied. The entry may be edited
 * through *out (optional) until the next add. */
tt_status tt_params_add_unit(tt_params *p, tt_unit_kind kind, int layer, int *unit);
tt_status tt_params_add(tt_params *p, const char *name, int64_t rows, int64_t cols /* 0: one-dimensional */,
                        tt_param **out);
/* tt_params_add_stack - a tensor that parameters may name in `stack`. TT_ECONFIG when its size does not fit. */
tt_status tt_params_add_stack(tt_params *p, const char *name, const int64_t shape[3], int64_t *index);
/* Frees what the struct owns and zeroes it. */
void tt_params_free(tt_params *p);

/* The parameter or stack whose name is closest by edit distance, for messages; NULL when the table is empty. */
const char *tt_params_nearest(const tt_params *p, const char *name);
/* Edit distance of two names, of which only the first 255 bytes count; `most` or more when it is not below `most`. */
int tt_name_distance(const char *a, const char *b, int most);

/* Sums over the table: all parameters, and those one token uses when `chosen` experts per token run. */
int64_t tt_params_total(const tt_params *p);
int64_t tt_params_active(const tt_params *p, int64_t chosen);

/* Weight decay by the common trainer's rule: none for names that contain "bias", "layernorm" or "rmsnorm", whose path
 * has a component "norm", or one that ends in "_norm". */
bool tt_params_decays(const char *name);

#endif
