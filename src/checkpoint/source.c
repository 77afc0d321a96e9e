#include "checkpoint/source.h"
#include "base/checked.h"
#include "base/log.h"
#include "checkpoint/reader.h"

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

/* With the tensor whose name is nearest among those that belong to no parameter: probably what was meant. */
static tt_status refuse_missing(const tt_source *s, const char *name)
{
    const char *best = NULL;
    int least = INT32_MAX;
    for (int64_t i = 0; i < s->folder.num_tensors; i++) {
        if (s->role[i] != TT_SOURCE_UNKNOWN) continue;
        int d = tt_name_distance(name, s->folder.tensors[i].name, least);
        if (d < least) least = d, best = s->folder.tensors[i].name;
    }
    return tt_error_set(TT_EMISMATCH, "%s: tensor '%s' is missing; config.json describes a model that has it%s%s%s",
                        s->folder.path, name, best ? ". Of the tensors that belong to no parameter, '" : "",
                        best ? best : "", best ? "' has the nearest name" : "");
}

static tt_status check_shape(const tt_source *s, const tt_st_tensor *t, int ndim, const int64_t *shape)
{
    char found[256], wanted[96];
    if (t->ndim == ndim && memcmp(t->shape, shape, (size_t)ndim * sizeof *shape) == 0) return TT_OK;
    shape_text(found, sizeof found, t->ndim, t->shape);
    shape_text(wanted, sizeof wanted, ndim, shape);
    return tt_error_set(TT_EMISMATCH, "%s: tensor '%s' has shape %s; config.json asks for %s", s->folder.path, t->name, found,
                        wanted);
}

/* The factors of the blocks of an FP8 matrix. */
static tt_status match_scales(tt_source *s, const tt_st_tensor *t, int64_t param)
{
    char name[512];
    int n = snprintf(name, sizeof name, "%s_scale_inv", t->name);
    const tt_st_tensor *scales = n < (int)sizeof name ? tt_st_find(&s->folder, name) : NULL;
    TT_CHECK(scales && t->ndim == 2, TT_EMISMATCH,
             "%s: tensor '%s' has type F8_E4M3, but is not a matrix with a tensor '%s' beside it", s->folder.path, t->name, name);
    TT_CHECK(t->shape[1] <= TT_READ_MAX_FP8_COLUMNS, TT_EMISMATCH, "%s: tensor '%s' has %lld columns; FP8 matrices have at most %d",
             s->folder.path, t->name, (long long)t->shape[1], TT_READ_MAX_FP8_COLUMNS);
    const int64_t shape[] = {tt_div_up(t->shape[0], TT_READ_FP8_BLOCK), tt_div_up(t->shape[1], TT_READ_FP8_BLOCK)};
    TT_TRY(check_shape(s, scales, 2, shape));
    TT_CHECK(scales->dtype == TT_F32 || scales->dtype == TT_BF16, TT_EMISMATCH,
             "%s: tensor '%s' has type %s; factors of FP8 blocks are F32 or BF16", s->folder.path, name,
             tt_dtype_name(scales->dtype));
    s->scales[param] = scales - s->folder.tensors;
    s->role[s->scales[param]] = TT_SOURCE_SCALES;
    return TT_OK;
}

/* tensor[i] is -1 when there is none. */
static tt_status match(tt_source *s, tt_params *params, int64_t i)
{
    tt_param *p = &params->at[i];
    const tt_stack *stack = p->stack < 0 ? NULL : &params->stacks[p->stack];
    const tt_st_tensor *t = stack ? tt_st_find(&s->folder, stack->name) : NULL;
    if (!t) stack = NULL, t = tt_st_find(&s->folder, p->name);
    s->tensor[i] = -1;
    if (!t) return TT_OK;
    TT_TRY(stack ? check_shape(s, t, 3, stack->shape) : check_shape(s, t, p->ndim, p->shape));
    bool fp8 = t->dtype == TT_F8_E4M3 && !stack;
    TT_CHECK(fp8 || t->dtype == TT_F32 || t->dtype == TT_BF16 || t->dtype == TT_F16, TT_EMISMATCH,
             "%s: tensor '%s' has type %s; supported are F32, BF16, F16, and F8_E4M3 for matrices of their own",
             s->folder.path, t->name, tt_dtype_name(t->dtype));
    s->tensor[i] = t - s->folder.tensors;
    s->first[i] = stack ? p->stack_first : 0;
    s->scales[i] = -1;
    s->role[s->tensor[i]] = TT_SOURCE_WEIGHT;
    if (fp8) return match_scales(s, t, i);
    p->stored = t->dtype;
    return TT_OK;
}

static tt_status match_all(tt_source *s, tt_params *params)
{
    for (int64_t i = 0; i < params->num; i++) TT_TRY(match(s, params, i));
    for (int64_t i = 0; i < params->num; i++)
        if (s->tensor[i] < 0) return refuse_missing(s, params->at[i].name);
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

/* "model.layers.<i>." with i >= num_layers in front of a name, and a tensor that only layers for further prediction have:
 * the number, else -1. */
static int64_t further_layer(const tt_source *s, const char *name, int64_t num_layers)
{
    static const char prefix[] = "model.layers.";
    const size_t n = sizeof prefix - 1;
    char *end, mark[64];
    if (strncmp(name, prefix, n) != 0 || name[n] < '1' || name[n] > '9') return -1;
    long i = strtol(name + n, &end, 10);
    if (*end != '.' || i < num_layers || i > INT32_MAX) return -1;
    snprintf(mark, sizeof mark, "%s%ld.eh_proj.weight", prefix, i);
    return tt_st_find(&s->folder, mark) ? i : -1;
}

static tt_status refuse(const tt_source *s, const tt_params *params, const char *name)
{
    for (int64_t i = 0; i < params->num; i++)
        TT_CHECK(params->at[i].stack < 0 || strcmp(params->at[i].name, name) != 0, TT_EMISMATCH,
                 "%s: tensor '%s' is there twice: by itself and within '%s'; remove one", s->folder.path, name,
                 params->stacks[params->at[i].stack].name);
    const char *nearest = tt_params_nearest(params, name);
    return tt_error_set(TT_EMISMATCH, "%s: tensor '%s' belongs to no parameter of the model that config.json describes; "
                        "nearest is '%s'", s->folder.path, name, nearest ? nearest : "?");
}

/* Tensors without a parameter, by reason. */
typedef struct leftovers {
    int64_t rotary, further, copies;
    int64_t first_layer, last_layer; /* of those for further prediction */
} leftovers;

static tt_status judge_extra(tt_source *s, const tt_params *params, bool tied, int64_t num_layers, int64_t i, leftovers *out)
{
    const tt_st_tensor *t = &s->folder.tensors[i];
    int64_t layer = further_layer(s, t->name, num_layers);
    if (tied && strcmp(t->name, "lm_head.weight") == 0) {
        TT_TRY(compare_tied(s, t));
        s->role[i] = TT_SOURCE_COPY;
        out->copies++;
        return TT_OK;
    }
    if (layer >= 0) {
        out->first_layer = out->further++ ? tt_min_i64(out->first_layer, layer) : layer;
        out->last_layer = tt_max_i64(out->last_layer, layer);
    } else if (ends_with(t->name, "rotary_emb.inv_freq")) {
        out->rotary++;
    } else {
        return refuse(s, params, t->name);
    }
    s->role[i] = TT_SOURCE_CARRIED;
    TT_CHECK(tt_add_i64(s->carried_bytes, t->end - t->begin, &s->carried_bytes), TT_EMISMATCH,
             "%s: tensors that take no part in training are larger than 63 bits can count", s->folder.path);
    return TT_OK;
}

static tt_status check_extra(tt_source *s, const tt_params *params, bool tied)
{
    leftovers n = {0};
    int64_t num_layers = 0;
    for (int u = 0; u < params->num_units; u++) num_layers = tt_max_i64(num_layers, params->units[u].layer + 1);
    for (int64_t i = 0; i < s->folder.num_tensors; i++)
        if (s->role[i] == TT_SOURCE_UNKNOWN) TT_TRY(judge_extra(s, params, tied, num_layers, i, &n));
    s->num_ignored = n.rotary + n.further + n.copies;
    const char *path = s->folder.path;
    if (n.further)
        tt_info("%s: %lld tensors under model.layers.%lld.%s are for the prediction of further tokens: not trained, saved as "
                "they are", path, (long long)n.further, (long long)n.first_layer, n.last_layer > n.first_layer ? " and above" : "");
    if (n.rotary) tt_info("%s: %lld rotary buffers (*.rotary_emb.inv_freq): not used, saved as they are", path, (long long)n.rotary);
    if (n.copies) tt_info("%s: lm_head.weight is a copy of the embedding that the head is tied to: not saved", path);
    return TT_OK;
}

tt_status tt_source_open(const char *folder, tt_params *params, bool tied, tt_source *s)
{
    *s = (tt_source){.num_params = params->num};
    TT_TRY(tt_st_open_folder(folder, &s->folder));
    tt_status status = TT_OK;
    size_t n = (size_t)params->num + 1;
    s->tensor = calloc(n, sizeof *s->tensor);
    s->first = calloc(n, sizeof *s->first);
    s->scales = calloc(n, sizeof *s->scales);
    s->role = calloc((size_t)s->folder.num_tensors + 1, sizeof *s->role);
    if (!s->tensor || !s->first || !s->scales || !s->role) status = tt_error_set(TT_ENOMEM, "%s: out of memory", folder);
    if (status == TT_OK) status = match_all(s, params);
    if (status == TT_OK) status = check_extra(s, params, tied);
    if (status != TT_OK) tt_source_close(s);
    return status;
}

void tt_source_close(tt_source *s)
{
    tt_st_close(&s->folder);
    free(s->tensor);
    free(s->first);
    free(s->scales);
    free(s->role);
    *s = (tt_source){0};
}
