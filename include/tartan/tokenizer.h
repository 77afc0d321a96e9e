/* tartan/tokenizer.h - byte-level BPE tokenizers as they lie in a model folder.
 *
 * tokenizer.json is the authority for the pipeline (added tokens, normalizer, pre-tokenizer, BPE, post-processor,
 * decoder); tokenizer_config.json gives the names of the special tokens and the chat template. A component or a
 * regular expression that is not supported is refused by name, never skipped. Both files are untrusted input.
 * Encoding takes time linear in the text (n log n within one piece) and a constant stack.
 * Semantics: docs/data.md, section "Tokenizers".
 */
#ifndef TARTAN_TOKENIZER_H
#define TARTAN_TOKENIZER_H

#include "tartan/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_tokenizer tt_tokenizer;

/* Token ids with the range of the text that each came from. begin/end are byte offsets into the text, on
 * character borders: all pieces of a split character report the whole character, a letter that a normalizer composed
 * reports its base letter, and a post-processor with trim_offsets takes white space off, as the common library
 * reports them (there in code points). Tokens that a template added report [0, 0). */
typedef struct tt_encoding {
    int64_t count, capacity;
    int32_t *ids;
    int64_t *begin;
    int64_t *end;
} tt_encoding;

/* tt_tokenizer_load - from a folder with tokenizer.json and, if present, tokenizer_config.json and
 * chat_template.jinja (which wins over the templates in the configuration; its companion for tools is
 * additional_chat_templates/tool_use.jinja).
 * *out is owned by the caller. Local. Errors: TT_EIO, TT_EFORMAT with file, component and remedy. */
tt_status tt_tokenizer_load(const char *folder, tt_tokenizer **out);
void tt_tokenizer_destroy(tt_tokenizer **t);

/* tt_tokenizer_encode - text[0..bytes), valid UTF-8 (TT_EDATA otherwise, with the byte offset), any content.
 *   add_special  apply the post-processor's template (BOS and the like); chat text is encoded without it
 *   out          appended to; start from {0}. Free with tt_encoding_free.
 * Local; safe to call from several threads on one tokenizer. */
tt_status tt_tokenizer_encode(const tt_tokenizer *t, const char *text, size_t bytes, bool add_special,
                              tt_encoding *out);
void tt_encoding_free(tt_encoding *e);

/* tt_tokenizer_decode - ids to text; each maximal invalid UTF-8 part becomes one U+FFFD.
 * Added tokens give their content as the file spells it, whatever the normalizer would make of it.
 * Unknown ids are TT_EDATA. *text is owned (free), NUL-terminated beyond *bytes. Local. */
tt_status tt_tokenizer_decode(const tt_tokenizer *t, const int32_t *ids, int64_t count, bool skip_special,
                              char **text, size_t *bytes);

/* Largest id + 1. */
int64_t tt_tokenizer_size(const tt_tokenizer *t);
/* Id of a token by its exact content (added tokens first, then the vocabulary), or -1. */
int32_t tt_tokenizer_id(const tt_tokenizer *t, const char *content);
/* Whether id is an added token (special or not). */
bool tt_tokenizer_is_added(const tt_tokenizer *t, int32_t id);

/* tt_tokenizer_special - the string of "bos_token", "eos_token", "pad_token", "unk_token", "sep_token",
 * "cls_token" or "mask_token"; NULL when unset. Borrowed. */
const char *tt_tokenizer_special(const tt_tokenizer *t, const char *role);

/* tt_tokenizer_chat_template - source of the chat template; of several named ones "tool_use" when with_tools and it
 * exists, else "default". NULL when there is none. Borrowed. */
const char *tt_tokenizer_chat_template(const tt_tokenizer *t, bool with_tools);

/* The folder it came from. Borrowed. */
const char *tt_tokenizer_folder(const tt_tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
