/* generate.h - greedy text from a model: the answer to a conversation.
 *
 * One forward pass over the whole text for each new token (there is no key/value cache): meant for a look at a
 * fine-tuned model, not for serving. */
#ifndef TT_TRAIN_GENERATE_H
#define TT_TRAIN_GENERATE_H

#include "tartan/chat_template.h"
#include "tartan/tokenizer.h"
#include "train/engine.h"

#define TT_MAX_STOPS 32

typedef struct tt_generator {
    tt_engine engine;
    tt_tokenizer *tokenizer;
    tt_template *chat; /* NULL: the tokenizer has no template */
    int64_t stops[TT_MAX_STOPS];
    int num_stops;
    tt_batch batch;
} tt_generator;

/* tt_generator_open - model and tokenizer of a folder, fp32, one process. Collective over comm's world, which must have
 * one rank (TT_ECONFIG). On failure *g is empty. */
tt_status tt_generator_open(tt_comm *comm, const char *folder, int threads, tt_generator *g);
void tt_generator_close(tt_generator *g);

/* tt_generate_reply - render the messages (a JSON list) with a generation prompt, and continue greedily until a stop token
 * (the model's or the tokenizer's EOS) or max_new tokens. *text is owned (free). TT_ECONFIG without a chat template. */
tt_status tt_generate_reply(tt_generator *g, const json_t *messages, int64_t max_new, char **text);

/* tt_generate_text - continue plain text. */
tt_status tt_generate_text(tt_generator *g, const char *prompt, int64_t max_new, char **text);

#endif
