#include "checkpoint/source.h"
#include "base/checked.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static void shape_text(char *out, size_t size, int ndim, const int64_t *shape)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size) snprintf(out + used, size - used, "]");
}

static tt_status match(tt_source *s, tt_params *params, int64_t i, bool *used)
{
    tt_param *p = &params->at[i];
    const tt_st_tensor *t = tt_st_find(&s->folder, p->name);
    TT_CHECK(t, TT_EMISMATCH, "%s: tensor '%s' is missing; config.json describes a model that has it", s->folder.path,
             p->name);
    if (t->ndim != p->ndim || memcmp(t->shape, p->shape, (size_t)p->ndim * sizeof *p->shape) != 0) {
        char found[128], wanted[64];
        shape_text(found, sizeof found, t->ndim, t->shape);
        shape_text(wanted, sizeof wanted, p->ndim, p->shape);
        return tt_error_set(TT_EMISMATCH, "%s: tensor '%s' has shape %s; config.json asks for %s", s->folder.path, p->name,
                            found, wanted);
    }
    TT_CHECK(t->dtype == TT_F32 || t->dtype == TT_BF16 || t->dtype == TT_F16, TT_EMISMATCH,
             "%s: tensor '%s' has type %s; supported are F32, BF16 and F16", s->folder.path, p->name,
             tt_dtype_name(t->dtype));
    s->tensor[i] = t - s->folder.tensors;
    used[s->tensor[i]] = true;
    p->stored = t->dtype;
    return TT_OK;
}

/* The file holds a head although the configuration ties it to the embedding: fine only when they are equal. */
static tt_status compare_tied(const tt_source *s, const tt_st_tensor *head)
{
    const tt_st_tensor *embedding = tt_st_find(&s->folder, "model.embed_tokens.weight");
    bool same = embedding && embedding->ndim == head->ndim && embedding->dtype == head->dtype &&
                memcmp(embedding->shape, head->shape, (size_t)head->ndim * sizeof *head->shape) == 0;
    enum { PIECE = 1 << 20 };
    size_t size = tt_dtype_size(head->dtype);
    char *a = malloc(2 * PIECE * size);
    TT_CHECK(a, TT_ENOMEM, "out of memory");
    int64_t count = (head->end - head->begin) / (int64_t)size;
    tt_status status = TT_OK;
    for (int64_t i = 0; i < count && same && status == TT_OK; i += PIECE) {
        int64_t n = tt_min_i64(PIECE, count - i);
        status = tt_st_read(&s->folder, embedding, i, n, head->dtype, a);
        if (status == TT_OK) status = tt_st_read(&s->folder, head, i, n, head->dtype, a + PIECE * size);
        same = status == TT_OK && memcmp(a, a + PIECE * size, (size_t)n * size) == 0;
    }
    free(a);
    if (status != TT_OK) return status;
    TT_CHECK(same, TT_EMISMATCH,
             "%s: tie_word_embeddings is true, but 'lm_head.weight' differs from 'model.embed_tokens.weight'; set it to "
             "false in config.json to train both",
             s->folder.path);
    return TT_OK;
}

static tt_status check_extra(tt_source *s, const tt_params *params, bool tied, const bool *used)
{
    for (int64_t i = 0; i < s->folder.num_tensors; i++) {
        const tt_st_tensor *t = &s->folder.tensors[i];
        if (used[i]) continue;
        if (ends_with(t->name, "rotary_emb.inv_freq")) {
            s->num_ignored++;
            continue;
        }
        if (tied && strcmp(t->name, "lm_head.weight") == 0) {
            TT_TRY(compare_tied(s, t));
            s->num_ignored++;
            continue;
        }
        const char *nearest = tt_params_nearest(params, t->name);
        return tt_error_set(TT_EMISMATCH, "%s: tensor '%s' belongs to no parameter of the model that config.json describes; "
                            "nearest is '%s'", s->folder.path, t->name, nearest ? nearest : "?");
    }
    if (s->num_ignored)
        tt_info("%s: %lld tensors are not part of the model and were left out (rotary buffers, copies of a tied head)",
                s->folder.path, (long long)s->num_ignored);
    return TT_OK;
}

tt_status tt_source_open(const char *folder, tt_params *params, bool tied, tt_source *s)
{
    *s = (tt_source){.num_params = params->num};
    TT_TRY(tt_st_open_folder(folder, &s->folder));
    tt_status status = TT_OK;
    bool *used = calloc((size_t)s->folder.num_tensors + 1, sizeof *used);
    s->tensor = calloc((size_t)params->num + 1, sizeof *s->tensor);
    if (!used || !s->tensor) status = tt_error_set(TT_ENOMEM, "%s: out of memory", folder);
    for (int64_t i = 0; i < params->num && status == TT_OK; i++) status = match(s, params, i, used);
    if (status == TT_OK) status = check_extra(s, params, tied, used);
    free(used);
    if (status != TT_OK) tt_source_close(s);
    return status;
}

void tt_source_close(tt_source *s)
{
    tt_st_close(&s->folder);
    free(s->tensor);
    *s = (tt_source){0};
}
