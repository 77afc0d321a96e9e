#include "support/variant.h"
#include "support/test.h"

#include "base/checked.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_place(const void *a, const void *b)
{
    const tt_st_tensor *x = *(const tt_st_tensor *const *)a, *y = *(const tt_st_tensor *const *)b;
    if (x->file != y->file) return x->file - y->file;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* those without elements first */
}

static size_t bytes_of(const tt_st_item *item)
{
    int64_t bytes;
    assert_true(tt_st_size(item->dtype, item->ndim, item->shape, NULL, &bytes));
    return (size_t)bytes;
}

void variant_add(variant *v, const char *name, tt_dtype type, int ndim, const int64_t *shape, const void *data)
{
    assert_true(v->num < VARIANT_MAX);
    tt_st_item *item = &v->items[v->num];
    *item = (tt_st_item){.name = strdup(name), .dtype = type, .ndim = ndim};
    for (int i = 0; i < ndim; i++) item->shape[i] = shape[i];
    v->data[v->num] = calloc(1, bytes_of(item) + 1);
    if (data) memcpy(v->data[v->num], data, bytes_of(item));
    v->num++;
}

void variant_read(const char *folder, variant *v)
{
    tt_st_folder f;
    char path[2048];
    memset(v, 0, sizeof *v);
    assert_ok(tt_path_join(path, sizeof path, folder, "config.json"));
    assert_ok(tt_json_load(path, 1 << 20, &v->config));
    assert_ok(tt_st_open_folder(folder, &f));
    const tt_st_tensor **order = calloc((size_t)f.num_tensors + 1, sizeof *order);
    for (int64_t i = 0; i < f.num_tensors; i++) order[i] = &f.tensors[i];
    qsort(order, (size_t)f.num_tensors, sizeof *order, by_place);
    for (int64_t i = 0; i < f.num_tensors; i++) {
        const tt_st_tensor *t = order[i];
        variant_add(v, t->name, t->dtype, t->ndim, t->shape, NULL);
        assert_ok(tt_file_read_at(&f.files[t->file], t->begin, v->data[v->num - 1], (size_t)(t->end - t->begin)));
    }
    free(order);
    tt_st_close(&f);
}

int variant_find(const variant *v, const char *name)
{
    for (int i = 0; i < v->num; i++)
        if (strcmp(v->items[i].name, name) == 0) return i;
    fail_msg("there is no tensor '%s'", name);
    return -1;
}

void variant_remove(variant *v, const char *name)
{
    int at = variant_find(v, name);
    free((char *)v->items[at].name);
    free(v->data[at]);
    v->num--;
    memmove(&v->items[at], &v->items[at + 1], (size_t)(v->num - at) * sizeof *v->items);
    memmove(&v->data[at], &v->data[at + 1], (size_t)(v->num - at) * sizeof *v->data);
}

void variant_write(variant *v, const char *folder)
{
    tt_st_plan plan;
    tt_file f;
    char path[2048];
    assert_ok(tt_dir_create(folder));
    assert_ok(tt_path_join(path, sizeof path, folder, "config.json"));
    assert_ok(tt_json_save(path, v->config, false));
    for (int i = 0; i < v->num; i++) v->items[i].file = 0;
    assert_ok(tt_st_layout(v->items, v->num, 1, "model", NULL, &plan));
    assert_ok(tt_path_join(path, sizeof path, folder, plan.file_names[0]));
    assert_ok(tt_file_create(&f, path, plan.file_bytes[0]));
    assert_ok(tt_file_write_at(&f, 0, plan.headers[0], (size_t)plan.header_bytes[0]));
    for (int i = 0; i < v->num; i++)
        assert_ok(tt_file_write_at(&f, v->items[i].begin, v->data[i], bytes_of(&v->items[i])));
    tt_file_close(&f);
    tt_st_plan_free(&plan);
}

void variant_free(variant *v)
{
    for (int i = 0; i < v->num; i++) {
        free((char *)v->items[i].name);
        free(v->data[i]);
    }
    json_decref(v->config);
    v->num = 0;
    v->config = NULL;
}

/* --- stacks ------------------------------------------------------------------------------------------------------ */

/* "PREFIX.experts.<e>.PART.weight": PREFIX.experts. as text, e and PART; false for any other name. */
static bool parse_expert(const char *name, char *prefix, size_t size, int *e, char part[32])
{
    const char *at = strstr(name, ".experts.");
    if (!at || sscanf(at, ".experts.%d.%31[a-z_].weight", e, part) != 2) return false;
    snprintf(prefix, size, "%.*s", (int)(at - name) + 9, name);
    return true;
}

void variant_stack(variant *v)
{
    variant *out = calloc(1, sizeof *out);
    char prefix[200], other[200], part[32], name[256];
    int e, count;
    out->config = json_incref(v->config);
    for (int i = 0; i < v->num; i++) {
        const tt_st_item *item = &v->items[i];
        if (!parse_expert(item->name, prefix, sizeof prefix, &e, part)) {
            variant_add(out, item->name, item->dtype, item->ndim, item->shape, v->data[i]);
            continue;
        }
        bool down = strcmp(part, "down_proj") == 0;
        snprintf(name, sizeof name, "%s%s", prefix, down ? "down_proj" : "gate_up_proj");
        bool seen = false;
        for (int k = 0; k < out->num; k++) seen |= strcmp(out->items[k].name, name) == 0;
        if (seen) continue;
        count = 0;
        for (int k = 0; k < v->num; k++) {
            bool same = parse_expert(v->items[k].name, other, sizeof other, &e, part) && !strcmp(other, prefix);
            count += same && !strcmp(part, "down_proj");
        }
        const int64_t shape[] = {count, item->shape[0] * (down ? 1 : 2), item->shape[1]};
        variant_add(out, name, item->dtype, 3, shape, NULL);
        size_t bytes = bytes_of(item);
        char *to = out->data[out->num - 1];
        for (int k = 0; k < v->num; k++) {
            if (!parse_expert(v->items[k].name, other, sizeof other, &e, part) || strcmp(other, prefix) != 0) continue;
            if (down && !strcmp(part, "down_proj")) memcpy(to + (size_t)e * bytes, v->data[k], bytes);
            if (!down && strcmp(part, "down_proj") != 0)
                memcpy(to + (2 * (size_t)e + !strcmp(part, "up_proj")) * bytes, v->data[k], bytes);
        }
    }
    variant_free(v);
    *v = *out;
    free(out);
}

/* --- FP8 blocks -------------------------------------------------------------------------------------------------- */

static float scale_of(const float *w, int64_t columns, int64_t r0, int64_t r1, int64_t c0, int64_t c1)
{
    float most = 0;
    for (int64_t r = r0; r < r1; r++)
        for (int64_t c = c0; c < c1; c++) most = fmaxf(most, fabsf(w[r * columns + c]));
    return most > 0 ? most / 448 : 1;
}

static void quantise(variant *v, variant *plain, tt_dtype type, const tt_st_item *item, const float *w)
{
    int64_t rows = item->shape[0], columns = item->shape[1], B = 128;
    const int64_t blocks[] = {tt_div_up(rows, B), tt_div_up(columns, B)};
    uint8_t *q = malloc((size_t)(rows * columns));
    float *values = malloc((size_t)(rows * columns) * sizeof *values), *scales = calloc((size_t)(blocks[0] * blocks[1]), sizeof *scales);
    uint16_t *narrow = calloc((size_t)(blocks[0] * blocks[1]), sizeof *narrow);
    char name[256];
    for (int64_t i = 0; i < blocks[0] * blocks[1]; i++) {
        int64_t r0 = i / blocks[1] * B, c0 = i % blocks[1] * B;
        scales[i] = scale_of(w, columns, r0, tt_min_i64(r0 + B, rows), c0, tt_min_i64(c0 + B, columns));
        narrow[i] = tt_f32_to_bf16(scales[i]);
        if (type == TT_BF16) scales[i] = tt_bf16_to_f32(narrow[i]);
    }
    for (int64_t i = 0; i < rows * columns; i++) {
        float scale = scales[i / columns / B * blocks[1] + i % columns / B];
        q[i] = tt_f32_to_e4m3(w[i] / scale);
        values[i] = tt_e4m3_to_f32(q[i]) * scale;
    }
    snprintf(name, sizeof name, "%s_scale_inv", item->name);
    variant_add(v, item->name, TT_F8_E4M3, 2, item->shape, q);
    variant_add(v, name, type, 2, blocks, type == TT_BF16 ? (void *)narrow : (void *)scales);
    variant_add(plain, item->name, TT_F32, 2, item->shape, values);
    free(q);
    free(values);
    free(scales);
    free(narrow);
}

void variant_quantise(variant *v, tt_dtype scales, variant *plain)
{
    variant *out = calloc(1, sizeof *out);
    memset(plain, 0, sizeof *plain);
    out->config = json_deep_copy(v->config);
    plain->config = json_incref(v->config);
    json_object_set_new(out->config, "quantization_config",
                        json_pack("{s:s, s:s, s:s, s:[i,i]}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme",
                                  "dynamic", "weight_block_size", 128, 128));
    for (int i = 0; i < v->num; i++) {
        const tt_st_item *item = &v->items[i];
        bool kept = item->ndim != 2 || strstr(item->name, "embed") || strstr(item->name, "lm_head") ||
                    strstr(item->name, ".gate.");
        assert_int_equal(item->dtype, TT_F32);
        if (!kept) {
            quantise(out, plain, scales, item, v->data[i]);
            continue;
        }
        variant_add(out, item->name, item->dtype, item->ndim, item->shape, v->data[i]);
        variant_add(plain, item->name, item->dtype, item->ndim, item->shape, v->data[i]);
    }
    variant_free(v);
    *v = *out;
    free(out);
}
