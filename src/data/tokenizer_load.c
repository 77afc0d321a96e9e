/* tokenizer_load.c - tokenizer.json: every component by its type, an unknown one refused by name.
 *
 * Sequences are flattened into lists of steps. `truncation` and `padding` are ignored: the trainer does both.
 * Fields that a component does not know are ignored, as the common library does; values of a wrong type are not.
 */
#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_FILE  ((int64_t)1 << 30)
#define MAX_DEPTH 16 /* sequences inside sequences */

static tt_status refuse(const char *where, const char *part, const char *type, const char *supported)
{
    return tt_error_set(TT_EFORMAT, "%s: %s of type '%s' is not supported; supported are %s", where, part, type,
                        supported);
}

/* Which component a failure belongs to. */
static tt_status in_part(tt_status s, const char *part, const char *type)
{
    return s == TT_OK ? TT_OK : tt_error_context(s, "%s %s", part, type);
}

static tt_status copy_string(const char *s, size_t size, char **out)
{
    *out = malloc(size + 1);
    TT_CHECK(*out, TT_ENOMEM, "tokenizer: no memory for %zu bytes", size);
    memcpy(*out, s, size);
    (*out)[size] = 0;
    return TT_OK;
}

/* A string that must be there. */
static tt_status need_string(const json_t *object, const char *where, const char *key, const json_t **out)
{
    *out = json_object_get(object, key);
    TT_CHECK(json_is_string(*out), TT_EFORMAT, "%s: key '%s' is %s; expected a string", where, key,
             tt_json_kind(*out));
    return TT_OK;
}

static tt_status own_string(const json_t *object, const char *where, const char *key, char **out, size_t *size)
{
    const json_t *v;
    TT_TRY(need_string(object, where, key, &v));
    *size = json_string_length(v);
    return copy_string(json_string_value(v), *size, out);
}

static tt_status type_of(const json_t *v, const char *where, const char *part, const char **type)
{
    TT_CHECK(json_is_object(v), TT_EFORMAT, "%s: %s is %s; expected an object", where, part, tt_json_kind(v));
    const json_t *name;
    TT_TRY(in_part(need_string(v, where, "type", &name), part, "without a type"));
    *type = json_string_value(name);
    return TT_OK;
}

static tt_status list_of(const json_t *v, const char *where, const char *part, const char *key, int depth,
                         const json_t **list)
{
    *list = json_object_get(v, key);
    TT_CHECK(json_is_array(*list), TT_EFORMAT, "%s: %s: key '%s' is %s; expected an array", where, part, key,
             tt_json_kind(*list));
    TT_CHECK(depth < MAX_DEPTH, TT_EFORMAT, "%s: %s: sequences are nested more than %d deep", where, part, MAX_DEPTH);
    return TT_OK;
}

/* pattern: {"String": s} or {"Regex": s} */
static tt_status read_pattern(const json_t *object, const char *where, tt_pattern *out)
{
    const json_t *v = json_object_get(object, "pattern");
    const json_t *string = json_object_get(v, "String"), *regex = json_object_get(v, "Regex");
    const json_t *one = string ? string : regex;
    TT_CHECK(json_is_string(one) && json_object_size(v) == 1, TT_EFORMAT,
             "%s: key 'pattern' must be an object with one string, 'String' or 'Regex'", where);
    if (regex) return tt_regex_compile(json_string_value(regex), json_string_length(regex), where, &out->regex);
    out->literal_size = json_string_length(string);
    return copy_string(json_string_value(string), out->literal_size, &out->literal);
}

/* --- normalizer ------------------------------------------------------------------------------- */

static tt_status read_normal_fields(const json_t *v, const char *where, tt_normal_step *s)
{
    if (s->kind == TT_NORMAL_PREPEND) return own_string(v, where, "prepend", &s->content, &s->content_size);
    if (s->kind == TT_NORMAL_STRIP) {
        TT_TRY(tt_json_get_bool(v, where, "strip_left", true, &s->left));
        return tt_json_get_bool(v, where, "strip_right", true, &s->right);
    }
    if (s->kind != TT_NORMAL_REPLACE) return TT_OK;
    TT_TRY(read_pattern(v, where, &s->pattern));
    return own_string(v, where, "content", &s->content, &s->content_size);
}

static tt_status read_normalizer(tt_tokenizer *t, const json_t *v, int depth)
{
    static const struct {
        const char *name;
        tt_normal_kind kind;
    } kinds[] = {{"NFC", TT_NORMAL_NFC},
                 {"NFD", TT_NORMAL_NFD},
                 {"NFKC", TT_NORMAL_NFKC},
                 {"NFKD", TT_NORMAL_NFKD},
                 {"Prepend", TT_NORMAL_PREPEND},
                 {"Replace", TT_NORMAL_REPLACE},
                 {"Strip", TT_NORMAL_STRIP},
                 {"StripAccents", TT_NORMAL_STRIP_ACCENTS},
                 {"Lowercase", TT_NORMAL_LOWERCASE}};
    const char *type;
    if (!v || json_is_null(v)) return TT_OK;
    TT_TRY(type_of(v, t->where, "normalizer", &type));
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list;
        TT_TRY(list_of(v, t->where, "normalizer", "normalizers", depth, &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(read_normalizer(t, json_array_get(list, i), depth + 1));
        return TT_OK;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(type, kinds[i].name) != 0) continue;
        size_t capacity = t->normal_count;
        TT_TRY(tt_grow((void **)&t->normal, &capacity, t->normal_count + 1, sizeof *t->normal));
        tt_normal_step *s = &t->normal[t->normal_count++];
        *s = (tt_normal_step){.kind = kinds[i].kind};
        return in_part(read_normal_fields(v, t->where, s), "normalizer", type);
    }
    return refuse(t->where, "a normalizer", type,
                  "NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents and Sequence");
}

/* --- pre-tokenizer ---------------------------------------------------------------------------- */

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static tt_status new_split(tt_tokenizer *t, tt_split_kind kind, tt_behavior behavior, tt_split_step **out)
{
    TT_CHECK(!t->bpe.byte_level, TT_EFORMAT,
             "%s: a pre-tokenizer follows ByteLevel, which is supported only as the last one; move it before",
             t->where);
    size_t capacity = t->split_count;
    TT_TRY(tt_grow((void **)&t->split, &capacity, t->split_count + 1, sizeof *t->split));
    *out = &t->split[t->split_count++];
    **out = (tt_split_step){.kind = kind, .behavior = behavior};
    return TT_OK;
}

static tt_status read_behavior(const json_t *v, const char *where, const char *fallback, tt_behavior *out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name;
    TT_TRY(tt_json_get_string(v, where, "behavior", fallback, &name));
    for (int i = 0; name && i < 5; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (tt_behavior)i;
            return TT_OK;
        }
    return tt_error_set(
        TT_EFORMAT, "%s: behavior '%s' is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
        where, name ? name : "");
}

static tt_status read_split(tt_tokenizer *t, const json_t *v)
{
    tt_split_step *s;
    tt_behavior behavior;
    TT_TRY(read_behavior(v, t->where, NULL, &behavior));
    TT_TRY(new_split(t, TT_SPLIT_PATTERN, behavior, &s));
    TT_TRY(tt_json_get_bool(v, t->where, "invert", false, &s->invert));
    return read_pattern(v, t->where, &s->pattern);
}

static tt_status add_regex_split(tt_tokenizer *t, const char *pattern, tt_behavior behavior, bool invert)
{
    tt_split_step *s;
    TT_TRY(new_split(t, TT_SPLIT_PATTERN, behavior, &s));
    s->invert = invert;
    return tt_regex_compile(pattern, strlen(pattern), t->where, &s->pattern.regex);
}

static tt_status read_byte_level(tt_tokenizer *t, const json_t *v)
{
    bool prefix, use_regex;
    tt_split_step *s;
    TT_TRY(tt_json_get_bool(v, t->where, "add_prefix_space", true, &prefix));
    TT_TRY(tt_json_get_bool(v, t->where, "use_regex", true, &use_regex));
    if (prefix) TT_TRY(new_split(t, TT_SPLIT_PREFIX_SPACE, TT_ISOLATED, &s));
    if (use_regex) TT_TRY(add_regex_split(t, GPT2, TT_ISOLATED, false));
    TT_CHECK(!t->bpe.byte_level, TT_EFORMAT, "%s: pre-tokenizer ByteLevel occurs twice; keep one", t->where);
    t->bpe.byte_level = true;
    return TT_OK;
}

static tt_status read_prepend(const json_t *v, const char *where, tt_prepend *out)
{
    const char *scheme;
    bool legacy;
    TT_TRY(tt_json_get_bool(v, where, "add_prefix_space", true, &legacy));
    TT_TRY(tt_json_get_string(v, where, "prepend_scheme", legacy ? "always" : "never", &scheme));
    if (strcmp(scheme, "always") == 0)
        *out = TT_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        *out = TT_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        *out = TT_PREPEND_NEVER;
    else
        return tt_error_set(TT_EFORMAT, "%s: prepend_scheme '%s' is none of always, first, never", where, scheme);
    TT_CHECK(legacy || *out == TT_PREPEND_NEVER, TT_EFORMAT,
             "%s: add_prefix_space is false but prepend_scheme is '%s'; remove one of them", where, scheme);
    return TT_OK;
}

static tt_status need_one_character(const char *s, size_t size, const char *where, const char *key)
{
    uint32_t c;
    TT_CHECK(size > 0 && tt_u8_next(s, &c) == size, TT_EFORMAT, "%s: key '%s' is '%.80s'; expected one character",
             where, key, s);
    return TT_OK;
}

static tt_status read_metaspace(tt_tokenizer *t, const json_t *v)
{
    bool split;
    tt_split_step *s;
    TT_TRY(tt_json_get_bool(v, t->where, "split", true, &split));
    TT_TRY(new_split(t, TT_SPLIT_METASPACE, split ? TT_MERGED_WITH_NEXT : TT_ISOLATED, &s));
    TT_TRY(own_string(v, t->where, "replacement", &s->content, &s->content_size));
    TT_TRY(need_one_character(s->content, s->content_size, t->where, "replacement"));
    return read_prepend(v, t->where, &s->prepend);
}

static tt_status read_digits(tt_tokenizer *t, const json_t *v)
{
    bool individual;
    tt_split_step *s;
    TT_TRY(tt_json_get_bool(v, t->where, "individual_digits", false, &individual));
    return new_split(t, TT_SPLIT_DIGITS, individual ? TT_ISOLATED : TT_CONTIGUOUS, &s);
}

static tt_status read_punctuation(tt_tokenizer *t, const json_t *v)
{
    tt_behavior behavior;
    tt_split_step *s;
    TT_TRY(read_behavior(v, t->where, "Isolated", &behavior));
    return new_split(t, TT_SPLIT_PUNCTUATION, behavior, &s);
}

/* The word characters of this component are those of single_word, not those of \w in patterns. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"

static tt_status read_whitespace(tt_tokenizer *t, const json_t *v)
{
    (void)v;
    return add_regex_split(t, "[" WORD "]+|[^" WORD "\\s]+", TT_REMOVED, true);
}

static tt_status read_whitespace_split(tt_tokenizer *t, const json_t *v)
{
    tt_split_step *s;
    (void)v;
    return new_split(t, TT_SPLIT_SPACE, TT_REMOVED, &s);
}

static tt_status read_pre_tokenizer(tt_tokenizer *t, const json_t *v, int depth)
{
    static const struct {
        const char *name;
        tt_status (*read)(tt_tokenizer *t, const json_t *v);
    } kinds[] = {{"Split", read_split},           {"ByteLevel", read_byte_level},
                 {"Digits", read_digits},         {"Punctuation", read_punctuation},
                 {"Whitespace", read_whitespace}, {"WhitespaceSplit", read_whitespace_split},
                 {"Metaspace", read_metaspace}};
    const char *type;
    if (!v || json_is_null(v)) return TT_OK;
    TT_TRY(type_of(v, t->where, "pre_tokenizer", &type));
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list;
        TT_TRY(list_of(v, t->where, "pre_tokenizer", "pretokenizers", depth, &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(read_pre_tokenizer(t, json_array_get(list, i), depth + 1));
        return TT_OK;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i].name) == 0) return in_part(kinds[i].read(t, v), "pre_tokenizer", type);
    return refuse(t->where, "a pre_tokenizer", type,
                  "Split, ByteLevel, Digits, Punctuation, Whitespace, WhitespaceSplit, Metaspace and Sequence");
}

/* --- post-processor --------------------------------------------------------------------------- */

static tt_status read_special_ids(const tt_tokenizer *t, const json_t *v, const json_t *item, tt_template_item *out)
{
    const char *name;
    TT_TRY(tt_json_get_string(item, t->where, "id", "", &name));
    const json_t *ids = json_object_get(json_object_get(json_object_get(v, "special_tokens"), name), "ids");
    TT_CHECK(json_is_array(ids), TT_EFORMAT,
             "%s: post_processor TemplateProcessing names '%s', which special_tokens "
             "does not hold with a list of ids",
             t->where, name);
    out->ids = malloc((json_array_size(ids) + 1) * sizeof *out->ids);
    TT_CHECK(out->ids, TT_ENOMEM, "%s: no memory for a template", t->where);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        TT_CHECK(value >= 0 && value < TT_TOKEN_ID_LIMIT, TT_EFORMAT,
                 "%s: post_processor TemplateProcessing: an id of '%s' is no whole number below %d", t->where, name,
                 TT_TOKEN_ID_LIMIT);
        out->ids[out->count++] = (int32_t)value;
    }
    return TT_OK;
}

static tt_status read_template_item(tt_tokenizer *t, const json_t *v, const json_t *entry)
{
    tt_template_item *item = &t->items[t->item_count++];
    const json_t *sequence = json_object_get(entry, "Sequence"), *special = json_object_get(entry, "SpecialToken");
    *item = (tt_template_item){.sequence = sequence != NULL};
    TT_CHECK(json_object_size(entry) == 1 && json_is_object(sequence ? sequence : special), TT_EFORMAT,
             "%s: post_processor TemplateProcessing: an item of 'single' is neither SpecialToken nor Sequence",
             t->where);
    if (special) return read_special_ids(t, v, special, item);
    const char *name;
    TT_TRY(tt_json_get_string(sequence, t->where, "id", "", &name));
    TT_CHECK(strcmp(name, "A") == 0, TT_EFORMAT,
             "%s: post_processor TemplateProcessing: 'single' holds the sequence '%s'; expected A", t->where, name);
    return TT_OK;
}

static tt_status read_template(tt_tokenizer *t, const json_t *v)
{
    const json_t *single = json_object_get(v, "single");
    TT_CHECK(json_is_array(single), TT_EFORMAT,
             "%s: post_processor TemplateProcessing: key 'single' is %s; expected an "
             "array",
             t->where, tt_json_kind(single));
    TT_CHECK(!t->items, TT_EFORMAT, "%s: post_processor TemplateProcessing occurs twice; keep one", t->where);
    t->items = calloc(json_array_size(single) + 1, sizeof *t->items);
    TT_CHECK(t->items, TT_ENOMEM, "%s: no memory for a template", t->where);
    int sequences = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        TT_TRY(read_template_item(t, v, json_array_get(single, i)));
        sequences += t->items[i].sequence;
    }
    TT_CHECK(sequences == 1, TT_EFORMAT,
             "%s: post_processor TemplateProcessing: 'single' holds the text %d times; "
             "expected once",
             t->where, sequences);
    return TT_OK;
}

static tt_status read_post_processor(tt_tokenizer *t, const json_t *v, int depth)
{
    const char *type;
    if (!v || json_is_null(v)) return TT_OK;
    TT_TRY(type_of(v, t->where, "post_processor", &type));
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list;
        TT_TRY(list_of(v, t->where, "post_processor", "processors", depth, &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(read_post_processor(t, json_array_get(list, i), depth + 1));
        return TT_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(t, v);
    if (strcmp(type, "ByteLevel") != 0)
        return refuse(t->where, "a post_processor", type, "ByteLevel, TemplateProcessing and Sequence");
    TT_TRY(tt_json_get_bool(v, t->where, "trim_offsets", true, &t->trim));
    return tt_json_get_bool(v, t->where, "add_prefix_space", true, &t->trim_prefix);
}

/* --- decoder ---------------------------------------------------------------------------------- */

static tt_status read_decode_fields(const json_t *v, const char *where, tt_decode_step *s)
{
    if (s->kind == TT_DECODE_REPLACE) {
        TT_TRY(read_pattern(v, where, &s->pattern));
        return own_string(v, where, "content", &s->content, &s->content_size);
    }
    if (s->kind == TT_DECODE_STRIP) {
        TT_TRY(own_string(v, where, "content", &s->content, &s->content_size));
        TT_TRY(tt_json_get_int(v, where, "start", 0, &s->start));
        TT_TRY(tt_json_get_int(v, where, "stop", 0, &s->stop));
        return need_one_character(s->content, s->content_size, where, "content");
    }
    if (s->kind != TT_DECODE_METASPACE) return TT_OK;
    tt_prepend prepend;
    TT_TRY(read_prepend(v, where, &prepend));
    s->drop_first = prepend != TT_PREPEND_NEVER;
    TT_TRY(own_string(v, where, "replacement", &s->content, &s->content_size));
    return need_one_character(s->content, s->content_size, where, "replacement");
}

static tt_status read_decoder(tt_tokenizer *t, const json_t *v, int depth)
{
    static const char *const names[] = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"};
    const char *type;
    if (!v || json_is_null(v)) return TT_OK;
    TT_TRY(type_of(v, t->where, "decoder", &type));
    t->decode_joined = true;
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list;
        TT_TRY(list_of(v, t->where, "decoder", "decoders", depth, &list));
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(read_decoder(t, json_array_get(list, i), depth + 1));
        return TT_OK;
    }
    for (int i = 0; i < 6; i++) {
        if (strcmp(type, names[i]) != 0) continue;
        size_t capacity = t->decode_count;
        TT_TRY(tt_grow((void **)&t->decode, &capacity, t->decode_count + 1, sizeof *t->decode));
        tt_decode_step *s = &t->decode[t->decode_count++];
        *s = (tt_decode_step){.kind = (tt_decode_kind)i};
        return in_part(read_decode_fields(v, t->where, s), "decoder", type);
    }
    return refuse(t->where, "a decoder", type,
                  "ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace and Sequence");
}

/* --- model ------------------------------------------------------------------------------------ */

static tt_status check_model(const tt_tokenizer *t, const json_t *model, const tt_model_text *m)
{
    const char *type;
    double dropout;
    TT_TRY(tt_json_get_string(model, t->where, "type", "BPE", &type));
    if (strcmp(type, "BPE") != 0) return refuse(t->where, "a model", type, "BPE");
    TT_TRY(tt_json_get_number(model, t->where, "dropout", 0, &dropout));
    TT_CHECK(dropout == 0, TT_EFORMAT, "%s: model.dropout is %g; tokens must not depend on chance, set it to null",
             t->where, dropout);
    TT_CHECK(m->vocab, TT_EFORMAT, "%s: model.vocab is %s; expected an object from token to id", t->where,
             tt_json_kind(json_object_get(model, "vocab")));
    TT_CHECK(m->merges, TT_EFORMAT, "%s: model.merges is %s; expected an array", t->where,
             tt_json_kind(json_object_get(model, "merges")));
    return TT_OK;
}

static tt_status read_affix(const tt_tokenizer *t, const json_t *model, const char *key, char **out, size_t *size)
{
    const json_t *v = json_object_get(model, key);
    if (v && !json_is_null(v)) return own_string(model, t->where, key, out, size);
    *size = 0;
    return copy_string("", 0, out);
}

static tt_status read_model(tt_tokenizer *t, const json_t *model, const tt_model_text *m, const char *text)
{
    tt_bpe *b = &t->bpe;
    const char *unk;
    TT_CHECK(json_is_object(model), TT_EFORMAT, "%s: key 'model' is %s; expected an object", t->where,
             tt_json_kind(model));
    TT_TRY(check_model(t, model, m));
    TT_TRY(read_affix(t, model, "continuing_subword_prefix", &b->prefix, &b->prefix_size));
    TT_TRY(read_affix(t, model, "end_of_word_suffix", &b->suffix, &b->suffix_size));
    TT_TRY(tt_json_get_bool(model, t->where, "fuse_unk", false, &b->fuse_unk));
    TT_TRY(tt_json_get_bool(model, t->where, "byte_fallback", false, &b->byte_fallback));
    TT_TRY(tt_json_get_bool(model, t->where, "ignore_merges", false, &b->ignore_merges));
    TT_TRY(tt_json_get_string(model, t->where, "unk_token", NULL, &unk));
    TT_TRY(tt_model_read_vocab(m, text, t->where, &b->vocab));
    TT_TRY(tt_model_read_merges(m, text, t->where, b));
    b->unk = unk ? tt_vocab_find(&b->vocab, unk, strlen(unk)) : -1;
    TT_CHECK(!unk || b->unk >= 0, TT_EFORMAT, "%s: model.unk_token '%s' is not in the vocabulary", t->where, unk);
    return tt_bpe_finish(b, t->where);
}

/* --- added tokens ----------------------------------------------------------------------------- */

tt_status tt_tokenizer_add(tt_tokenizer *t, tt_added *a, const char *where)
{
    size_t size;
    tt_status status = TT_OK;
    const char *other = tt_vocab_string(&t->bpe.vocab, a->id, &size);
    int32_t known = tt_vocab_find(&t->bpe.vocab, a->content, a->size);
    if (other && (size != a->size || memcmp(other, a->content, size) != 0))
        TT_GO(tt_error_set(TT_EFORMAT, "%s: added token '%.80s' has id %d, which the vocabulary gives to '%.80s'",
                           where, a->content, a->id, other));
    if (known >= 0 && known != a->id)
        TT_GO(tt_error_set(TT_EFORMAT, "%s: added token '%.80s' has id %d, but id %d in the vocabulary", where,
                           a->content, a->id, known));
    TT_GO(tt_vocab_add(&t->added_names, a->content, a->size, a->id, where));
    TT_GO(tt_map_put(&t->added_by_id, (uint64_t)a->id, t->added_count));
    TT_GO(tt_grow((void **)&t->added, &t->added_capacity, t->added_count + 1, sizeof *t->added));
    t->added[t->added_count++] = *a;
    return TT_OK;
fail:
    free(a->content);
    return status;
}

static tt_status read_added(tt_tokenizer *t, const json_t *v)
{
    tt_added a = {0};
    int64_t id;
    TT_CHECK(json_is_object(v), TT_EFORMAT, "%s: an entry of added_tokens is %s; expected an object", t->where,
             tt_json_kind(v));
    TT_TRY(tt_json_get_int(v, t->where, "id", -1, &id));
    TT_CHECK(id >= 0 && id < TT_TOKEN_ID_LIMIT, TT_EFORMAT, "%s: an added token has id %lld; ids are 0 to %d",
             t->where, (long long)id, TT_TOKEN_ID_LIMIT - 1);
    TT_TRY(tt_json_get_bool(v, t->where, "special", false, &a.special));
    TT_TRY(tt_json_get_bool(v, t->where, "single_word", false, &a.single_word));
    TT_TRY(tt_json_get_bool(v, t->where, "lstrip", false, &a.lstrip));
    TT_TRY(tt_json_get_bool(v, t->where, "rstrip", false, &a.rstrip));
    TT_TRY(tt_json_get_bool(v, t->where, "normalized", !a.special, &a.normalized));
    a.id = (int32_t)id;
    TT_TRY(own_string(v, t->where, "content", &a.content, &a.size));
    if (a.size > 0) return tt_tokenizer_add(t, &a, t->where);
    free(a.content); /* an empty token matches nothing */
    return TT_OK;
}

static tt_status read_added_tokens(tt_tokenizer *t, const json_t *list)
{
    if (!list || json_is_null(list)) return TT_OK;
    TT_CHECK(json_is_array(list), TT_EFORMAT, "%s: key 'added_tokens' is %s; expected an array", t->where,
             tt_json_kind(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        tt_status status = read_added(t, json_array_get(list, i));
        if (status != TT_OK) return tt_error_context(status, "added_tokens[%zu]", i);
    }
    return TT_OK;
}

/* --- the file --------------------------------------------------------------------------------- */

static tt_status read_parts(tt_tokenizer *t, const json_t *root, const tt_model_text *m, const char *text)
{
    TT_CHECK(json_is_object(root), TT_EFORMAT, "%s: the file holds %s; expected an object", t->where,
             tt_json_kind(root));
    TT_TRY(read_normalizer(t, json_object_get(root, "normalizer"), 0));
    TT_TRY(read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), 0));
    TT_TRY(read_post_processor(t, json_object_get(root, "post_processor"), 0));
    TT_TRY(read_decoder(t, json_object_get(root, "decoder"), 0));
    TT_TRY(read_model(t, json_object_get(root, "model"), m, text));
    return read_added_tokens(t, json_object_get(root, "added_tokens"));
}

tt_status tt_tokenizer_load_file(tt_tokenizer *t)
{
    char *text = NULL;
    size_t bytes;
    tt_model_text m = {0};
    json_t *root = NULL;
    tt_status status;
    TT_GO(tt_file_read_all(t->where, MAX_FILE, &text, &bytes));
    size_t bom = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    TT_GO(tt_model_text_cut(text + bom, bytes - bom, t->where, &m));
    TT_GO(tt_json_parse(m.rest, m.rest_size, t->where, &root));
    TT_GO(read_parts(t, root, &m, text));
fail:
    json_decref(root);
    free(m.rest);
    free(text);
    return status;
}
