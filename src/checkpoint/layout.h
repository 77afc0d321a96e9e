/* layout.h - which tensor goes where: the files of a model, and those of the state beside it. For the files of this folder.
 *
 * A layout is a pure function of the table, the source and the options, so that all ranks compute it alone. What a rank
 * writes into it are its shards' pieces (tt_save_range), and its part of what is carried.
 */
#ifndef TT_CHECKPOINT_LAYOUT_H
#define TT_CHECKPOINT_LAYOUT_H

#include "checkpoint/save.h"

#define TT_STATE_STEM "optimizer"

typedef struct tt_layout {
    int64_t num;
    tt_st_item *items;
    char **names;            /* [num] owned names of items, or NULL when they are borrowed */
    int64_t *item_of;        /* model: [params] */
    const tt_source *source; /* model: NULL when there is none */
    int64_t *tensor_of;      /* model with a source: [num] which of its tensors an item is */
    tt_st_plan files;
} tt_layout;

void tt_layout_free(tt_layout *l);

/* tt_layout_model - the source's tensors in its files and order, or the table's in files of at most max_file_bytes. */
tt_status tt_layout_model(const tt_params *params, const tt_save_options *o, tt_layout *l);

/* tt_layout_state - exp_avg.NAME and exp_avg_sq.NAME of what is trained, when there are moments, and master.NAME of what the
 * model's files do not hold exactly; in the order of the table. precision: of the shards. */
tt_status tt_layout_state(const tt_params *params, const tt_layout *model, tt_precision precision, bool moments,
                          int64_t max_file_bytes, tt_layout *l);

/* Whether the model's files cannot hold a parameter as training keeps it. */
bool tt_layout_has_master(const tt_params *params, const tt_layout *model, tt_precision precision, int64_t param);

/* Names of the state of a parameter. */
typedef enum tt_state_kind { TT_STATE_MOMENT1, TT_STATE_MOMENT2, TT_STATE_MASTER, TT_NUM_STATE_KINDS } tt_state_kind;
const char *tt_state_prefix(tt_state_kind kind);
/* Type in which training keeps it. */
tt_dtype tt_state_type(tt_precision precision, const tt_param *param, tt_state_kind kind);

#endif
