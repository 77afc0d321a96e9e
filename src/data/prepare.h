/* prepare.h - one row of chat data to token ids and labels.
 *
 *   shape                 columns                                   ids
 *   token ids             input_ids, optional labels or masks       as they are
 *   text                  text (or text_field)                      encode(text + EOS)
 *   prompt/completion     prompt, completion: text                  encode(prompt + completion + EOS)
 *   conversation          messages                                  encode(render(messages))
 *   chat completion       prompt, completion: messages              encode(render(prompt + completion))
 *   ShareGPT              conversations: from, value                becomes a conversation
 *
 * The first row decides the shape; every other row must have the same. Other columns are ignored, null
 * columns count as absent. EOS is appended as text, and only where the text does not end with it; chat text
 * is all the template's.
 *
 * labels[i] is ids[i] where every applicable mask is 1, else TT_IGNORE (not shifted here):
 *   completion mask   1 from the end of the common prefix of encode(prompt) and encode(prompt + completion)
 *   assistant mask    1 where a token overlaps a range that a generation block of the template produced
 *
 * Semantics: docs/data.md, section "Rows".
 */
#ifndef TT_DATA_PREPARE_H
#define TT_DATA_PREPARE_H

#include "data/messages.h"
#include "tartan/chat_template.h"
#include "tartan/status.h"
#include "tartan/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* The label of a position that is not trained. */
enum { TT_IGNORE = -100 };

/* What the user asked for. All strings are borrowed until tt_preparer_create returns; the tokenizer until the
 * preparer is destroyed. Zeroed except completion_only_loss, it is the default: start from TT_PREPARE_DEFAULT. */
typedef struct tt_prepare {
    const tt_tokenizer *tokenizer;
    const char *template_source; /* replaces the tokenizer's chat template; NULL: the tokenizer's own */
    const char *template_name;   /* for messages: the path it came from */
    const char *template_date;   /* the template variable of this name, which fixes the templates' clock; or NULL */
    const char *text_field;      /* NULL: "text" */
    const char *eos_token;       /* replaces the tokenizer's EOS, also in templates; NULL: the tokenizer's own */
    bool assistant_only_loss;    /* conversations: train what the template marks */
    int completion_only_loss;    /* 1, 0, or -1: on exactly when the rows have prompt and completion */
    bool skip_without_assistant; /* drop rows in which assistant_only_loss finds nothing, instead of failing */
    bool keep_roles;             /* ShareGPT: leave the role names as they are */
    bool strict;                 /* every tt_data_warning of a row is an error */
    int64_t max_length;          /* tokens of a row; 0: unlimited */
    bool keep_end;               /* truncation keeps the last tokens instead of the first */
    bool for_packing;            /* rows are packed later: neither truncated nor removed here */
    int64_t vocab_size;          /* ids must be below; 0: the tokenizer's size */
    int threads;                 /* 0: OpenMP's choice. The result does not depend on it */
} tt_prepare;

#define TT_PREPARE_DEFAULT ((tt_prepare){.completion_only_loss = -1})

typedef enum tt_row_shape {
    TT_SHAPE_IDS,
    TT_SHAPE_TEXT,
    TT_SHAPE_COMPLETION,
    TT_SHAPE_CHAT,
    TT_SHAPE_CHAT_COMPLETION,
    TT_SHAPE_SHAREGPT,
} tt_row_shape;

/* "conversation (messages)", for messages. */
const char *tt_row_shape_name(tt_row_shape shape);

/* tt_row_shape_find - the shape of a row. TT_EDATA for a row that has none, with what to do about the usual
 * ones (instruction/output, chosen/rejected, images, prompt alone). Pure. */
tt_status tt_row_shape_find(const json_t *row, const char *text_field, const char *where, tt_row_shape *out);

/* Ids and labels of rows end to end. Start from {0}; free with tt_tokens_free. */
typedef struct tt_tokens {
    int64_t count, capacity;
    int32_t *ids, *labels;
} tt_tokens;

/* tt_tokens_reserve - room for `more` elements behind count. TT_ENOMEM. */
tt_status tt_tokens_reserve(tt_tokens *t, int64_t more);
void tt_tokens_free(tt_tokens *t);

/* Memory that one thread uses again for every row. Start from {0}; free with tt_prepare_scratch_free. */
typedef struct tt_prepare_scratch {
    tt_encoding whole, prompt;
    char *text;
    size_t text_capacity;
} tt_prepare_scratch;

void tt_prepare_scratch_free(tt_prepare_scratch *s);

/* Options checked against the first row, template compiled. Not changed by use: threads share one. */
typedef struct tt_preparer tt_preparer;

/* tt_preparer_create - `first_row` (parsed, unchanged) decides shape and automatic settings.
 * TT_ECONFIG for options that do not fit data or tokenizer, each with the remedy; TT_EDATA for a row without
 * shape; TT_EFORMAT for a template that does not compile. Local. */
tt_status tt_preparer_create(const tt_prepare *options, const json_t *first_row, const char *where,
                             tt_preparer **out);
void tt_preparer_destroy(tt_preparer **p);

tt_row_shape tt_preparer_shape(const tt_preparer *p);

/* tt_preparer_open_end - with assistant_only_loss: the last trained text of an assistant's turn when it is
 * not a special or added token, so that the model would not learn to stop; NULL when it is, or when the
 * template does not render the probe. Borrowed. */
const char *tt_preparer_open_end(const tt_preparer *p);

/* tt_preparer_row - append the row's ids and labels to `out`, whole: truncation and removal are the caller's.
 *   row       is changed (cleaned)
 *   findings  what is suspicious; with `strict` that is TT_EDATA instead
 *   skipped   true: skip_without_assistant applies and nothing was appended
 * Local; several threads may work with one preparer, each with its own row, scratch and out. */
tt_status tt_preparer_row(const tt_preparer *p, json_t *row, const char *where, tt_prepare_scratch *scratch,
                          tt_tokens *out, tt_findings *findings, bool *skipped);

/* tt_preparer_render - the row as text, the way it is encoded (token ids are decoded). *text is owned (free),
 * with a NUL beyond *bytes. The row is changed. Local. */
tt_status tt_preparer_render(const tt_preparer *p, json_t *row, const char *where, char **text, size_t *bytes);

/* tt_label_spans - labels[i] = ids[i] where token i overlaps a span, else TT_IGNORE. A span of no bytes
 * overlaps the token that it stands strictly inside of. Returns the number of labels set. Pure. */
int64_t tt_label_spans(const tt_encoding *e, const tt_rendering *r, int32_t *labels);

#endif
