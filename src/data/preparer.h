/* preparer.h - the inside of tt_preparer, shared by prepare.c (creation), row.c and row_ids.c (use). */
#ifndef TT_DATA_PREPARER_H
#define TT_DATA_PREPARER_H

#include "data/prepare.h"

/* Optional columns of token-id rows: all rows have the same ones. */
enum { TT_HAS_LABELS = 1, TT_HAS_COMPLETION_MASK = 2, TT_HAS_ASSISTANT_MASK = 4 };

struct tt_preparer {
    tt_prepare options; /* its strings are not used after creation */
    tt_row_shape shape;
    bool completion_only;
    int id_columns;
    int64_t vocab_size;
    char *text_field;
    char *eos;      /* NULL: the tokenizer has none */
    int32_t eos_id; /* -1: none */
    /* Conversations only: */
    tt_template *template, *tool_template; /* the second may be the first */
    json_t *variables;                     /* the same for all rows */
    tt_specials *specials;
    char open_end[64];
};

bool tt_row_shape_is_chat(tt_row_shape shape);

/* Render messages with the row's tools and keyword arguments. `out` needs tt_rendering_free on success. */
tt_status tt_preparer_render_messages(const tt_preparer *p, json_t *messages, const json_t *row,
                                      bool generation_prompt, const char *where, tt_rendering *out);

/* Bits of the optional columns that a row has. */
int tt_row_id_columns(const json_t *row);

/* Append a token-id row to `out`. */
tt_status tt_row_ids(const tt_preparer *p, const json_t *row, const char *where, tt_tokens *out,
                     tt_findings *findings);

#endif
