/* Safetensors files: round trips, the reference's model folders, layouts, and headers that lie. */
#include "support/test.h"

#include "base/json.h"
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- helpers ----------------------------------------------------------------------------------------- */

/* FOLDER/NAME in a ring of buffers, so that two may be in use. */
static const char *in_folder(const char *folder, const char *name)
{
    static char paths[4][2048];
    static int next;
    char *path = paths[next++ % 4];
    assert_ok(tt_path_join(path, sizeof *paths, folder, name));
    return path;
}

/* A file of this header (as it is, without padding) and data_bytes bytes 1, 2, 3, ... of data. */
static void write_file(const char *path, const char *header, size_t header_bytes, size_t data_bytes)
{
    tt_file f;
    uint64_t n = header_bytes;
    char *data = malloc(data_bytes + 1);
    assert_non_null(data);
    for (size_t i = 0; i < data_bytes; i++) data[i] = (char)(i + 1);
    assert_ok(tt_file_create(&f, path, (int64_t)(8 + header_bytes + data_bytes)));
    assert_ok(tt_file_write_at(&f, 0, &n, sizeof n));
    assert_ok(tt_file_write_at(&f, 8, header, header_bytes));
    assert_ok(tt_file_write_at(&f, 8 + (int64_t)header_bytes, data, data_bytes));
    tt_file_close(&f);
    free(data);
}

static void write_text(const char *path, const char *text)
{
    assert_ok(tt_file_write_all(path, text, strlen(text)));
}

/* The files of a plan with their headers; data stays zero. */
static void create_files(const char *folder, const tt_st_plan *plan)
{
    for (int i = 0; i < plan->num_files; i++) {
        tt_file f;
        assert_ok(tt_file_create(&f, in_folder(folder, plan->file_names[i]), plan->file_bytes[i]));
        assert_ok(tt_file_write_at(&f, 0, plan->headers[i], (size_t)plan->header_bytes[i]));
        tt_file_close(&f);
    }
}

static int64_t count_of(const tt_st_tensor *t)
{
    int64_t n;
    assert_true(tt_st_size(t->dtype, t->ndim, t->shape, &n, NULL));
    return n;
}

static float *read_f32(const tt_st_folder *f, const tt_st_tensor *t)
{
    int64_t n = count_of(t);
    float *x = malloc((size_t)n * sizeof *x + 1);
    assert_non_null(x);
    assert_ok(tt_st_read(f, t, 0, n, TT_F32, x));
    return x;
}

/* --- writing and reading back ------------------------------------------------------------------------ */

static void every_type_and_shape_comes_back(void **state)
{
    (void)state;
    static const struct {
        int ndim;
        int64_t shape[TT_ST_MAX_DIMS];
    } shapes[] = {{0, {0}}, {1, {0}}, {1, {5}}, {2, {3, 4}}, {3, {2, 0, 3}}, {8, {1, 2, 1, 2, 1, 1, 2, 1}}};
    enum { SHAPES = sizeof shapes / sizeof *shapes, N = SHAPES * TT_NUM_DTYPES };
    char names[N][32];
    tt_st_item items[N];
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%s.%d", tt_dtype_name((tt_dtype)(i % TT_NUM_DTYPES)), i);
        items[i] = (tt_st_item){
            .name = names[i], .dtype = (tt_dtype)(i % TT_NUM_DTYPES), .ndim = shapes[i / TT_NUM_DTYPES].ndim};
        memcpy(items[i].shape, shapes[i / TT_NUM_DTYPES].shape, sizeof items[i].shape);
    }
    tt_st_plan plan;
    const char *folder = test_folder("st-types");
    json_t *metadata = json_pack("{s:s, s:s}", "z", "last \"\xC3\xA9\"", "a", "");
    assert_ok(tt_st_layout(items, N, 1, "model", metadata, &plan));
    json_decref(metadata);
    assert_int_equal(plan.num_files, 1);
    assert_string_equal(plan.file_names[0], "model.safetensors");
    assert_int_equal(plan.header_bytes[0] % 8, 0);
    create_files(folder, &plan);
    tt_file file;
    assert_ok(tt_file_open_write(&file, in_folder(folder, plan.file_names[0])));
    for (int64_t at = plan.header_bytes[0]; at < plan.file_bytes[0]; at++) {
        uint8_t b = (uint8_t)(at * 7);
        assert_ok(tt_file_write_at(&file, at, &b, 1));
    }
    tt_file_close(&file);

    tt_st_folder f;
    assert_ok(tt_st_open_folder(folder, &f));
    assert_string_equal(f.path, folder);
    assert_false(f.sharded);
    assert_int_equal(f.num_tensors, N);
    assert_string_equal(json_string_value(json_object_get(f.metadata[0], "format")), "pt");
    assert_string_equal(json_string_value(json_object_get(f.metadata[0], "z")), "last \"\xC3\xA9\"");
    int64_t total = 0;
    for (int i = 0; i < N; i++) {
        const tt_st_tensor *t = tt_st_find(&f, names[i]);
        assert_non_null(t);
        assert_int_equal(t->dtype, items[i].dtype);
        assert_int_equal(t->ndim, items[i].ndim);
        assert_memory_equal(t->shape, items[i].shape, (size_t)t->ndim * sizeof *t->shape);
        assert_int_equal(t->begin, items[i].begin);
        assert_int_equal(t->end, items[i].end);
        uint8_t data[256];
        assert_ok(tt_st_read(&f, t, 0, count_of(t), t->dtype, data));
        for (int64_t k = t->begin; k < t->end; k++) assert_int_equal(data[k - t->begin], (uint8_t)(k * 7));
        total += t->end - t->begin;
    }
    assert_int_equal(total, plan.total_bytes);
    assert_int_equal(plan.header_bytes[0] + total, plan.file_bytes[0]);
    assert_null(tt_st_find(&f, "F32"));
    assert_null(tt_st_find(&f, ""));
    tt_st_close(&f);
    tt_st_close(&f);
    tt_st_plan_free(&plan);
    tt_st_plan_free(&plan);
}

/* Ranges longer and shorter than the reader's buffer, against converting the whole array at once. */
static void ranges_are_converted_while_reading(void **state)
{
    (void)state;
    enum { N = TT_ST_PIECE / 4 * 2 + 77 };
    tt_st_item item = {.name = "x", .dtype = TT_F32, .ndim = 2, .shape = {1, N}};
    tt_st_plan plan;
    const char *folder = test_folder("st-ranges");
    float *x = malloc(N * sizeof *x);
    void *got = malloc(N * 8), *expected = malloc(N * 8);
    assert_true(x && got && expected);
    for (int i = 0; i < N; i++) x[i] = (float)i * 0.37f - 9000;
    assert_ok(tt_st_layout(&item, 1, 1, "model", NULL, &plan));
    create_files(folder, &plan);
    tt_file file;
    assert_ok(tt_file_open_write(&file, in_folder(folder, "model.safetensors")));
    assert_ok(tt_file_write_at(&file, item.begin, x, N * sizeof *x));
    tt_file_close(&file);
    tt_st_folder f;
    assert_ok(tt_st_open_file(in_folder(folder, "model.safetensors"), &f));
    assert_string_equal(f.file_names[0], "model.safetensors");
    const int64_t ranges[][2] = {
        {0, N}, {0, 0}, {N, 0}, {N - 1, 1}, {1, N - 1}, {13, 100}, {TT_ST_PIECE / 4, 1}};
    const tt_dtype types[] = {TT_F32, TT_BF16, TT_F16, TT_F64, TT_F8_E4M3};
    for (size_t r = 0; r < sizeof ranges / sizeof *ranges; r++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
            size_t bytes = (size_t)ranges[r][1] * tt_dtype_size(types[k]);
            tt_convert(expected, types[k], x + ranges[r][0], TT_F32, ranges[r][1]);
            assert_ok(tt_st_read(&f, f.tensors, ranges[r][0], ranges[r][1], types[k], got));
            assert_memory_equal(got, expected, bytes);
        }
    assert_error(tt_st_read(&f, f.tensors, 1, N, TT_F32, got), TT_EINTERNAL, "from 1 on");
    assert_error(tt_st_read(&f, f.tensors, N + 1, 0, TT_F32, got), TT_EINTERNAL, "'x'");
    assert_error(tt_st_read(&f, f.tensors, -1, 1, TT_F32, got), TT_EINTERNAL, "-1");
    assert_error(tt_st_read(&f, f.tensors, 0, 1, TT_I32, got), TT_EFORMAT, "F32, which cannot become I32");
    tt_st_close(&f);
    tt_st_plan_free(&plan);
    free(x);
    free(got);
    free(expected);
}

/* Beyond 2^31 elements and 4 GiB: files with holes, a few written elements. */
static void large_tensors_use_64_bits(void **state)
{
    (void)state;
    const int64_t n = 3000000000;
    tt_st_item items[] = {{.name = "a", .dtype = TT_F32, .ndim = 3, .shape = {3, 1000000, 1000}},
                          {.name = "b", .dtype = TT_BF16, .ndim = 1, .shape = {2}}};
    tt_st_plan plan;
    const char *folder = test_folder("st-large");
    assert_ok(tt_st_layout(items, 2, 1, "model", NULL, &plan));
    assert_int_equal(plan.total_bytes, 4 * n + 4);
    assert_int_equal(items[1].begin - items[0].begin, 4 * n);
    create_files(folder, &plan);
    const float x[3] = {1, -2.5f, 3};
    const uint16_t b[2] = {0x3F80, 0xC000};
    tt_file file;
    assert_ok(tt_file_open_write(&file, in_folder(folder, "model.safetensors")));
    assert_ok(tt_file_write_at(&file, items[0].begin + 4 * (n - 3), x, sizeof x));
    assert_ok(tt_file_write_at(&file, items[1].begin, b, sizeof b));
    tt_file_close(&file);
    tt_st_folder f;
    assert_ok(tt_st_open_folder(folder, &f));
    float got[4];
    double wide[4];
    assert_ok(tt_st_read(&f, tt_st_find(&f, "a"), n - 4, 4, TT_F32, got));
    assert_ok(tt_st_read(&f, tt_st_find(&f, "a"), n - 4, 4, TT_F64, wide));
    assert_true(got[0] == 0 && got[1] == 1 && got[2] == -2.5f && got[3] == 3);
    assert_true(wide[0] == 0 && wide[1] == 1 && wide[2] == -2.5 && wide[3] == 3);
    assert_ok(tt_st_read(&f, tt_st_find(&f, "b"), 0, 2, TT_F32, got));
    assert_true(got[0] == 1 && got[1] == -2);
    tt_st_close(&f);
    tt_st_plan_free(&plan);
    assert_int_equal(remove(in_folder(folder, "model.safetensors")), 0);
}

/* --- the reference's folders ------------------------------------------------------------------------- */

static void open_fixture(const char *id, tt_st_folder *f)
{
    char name[64];
    snprintf(name, sizeof name, "%s/model", id);
    assert_ok(tt_st_open_folder(test_fixture(name), f));
}

static void shards_equal_the_single_file(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"O1", "O1-sharded"}, {"G2", "G2-sharded"}};
    for (int p = 0; p < 2; p++) {
        tt_st_folder whole, cut;
        open_fixture(pairs[p][0], &whole);
        open_fixture(pairs[p][1], &cut);
        assert_true(cut.sharded);
        assert_int_equal(cut.num_files, 3);
        assert_string_equal(cut.file_names[1], "model-00002-of-00003.safetensors");
        assert_int_equal(cut.num_tensors, whole.num_tensors);
        int64_t bytes = 0;
        for (int64_t i = 0; i < whole.num_tensors; i++) {
            const tt_st_tensor *a = &whole.tensors[i], *b = &cut.tensors[i];
            assert_string_equal(a->name, b->name);
            assert_int_equal(a->dtype, b->dtype);
            float *x = read_f32(&whole, a), *y = read_f32(&cut, b);
            assert_int_equal(count_of(a), count_of(b));
            assert_memory_equal(x, y, (size_t)count_of(a) * sizeof *x);
            bytes += b->end - b->begin;
            free(x);
            free(y);
        }
        assert_int_equal(json_integer_value(json_object_get(cut.index_metadata, "total_size")), bytes);
        tt_st_close(&whole);
        tt_st_close(&cut);
    }
}

/* Number of tensors and parameters of the fixtures' table. */
static void counts_are_those_of_the_table(void **state)
{
    (void)state;
    static const struct {
        const char *id;
        int64_t tensors, parameters;
    } rows[] = {{"O1", 69, 52000},   {"O1-sharded", 69, 52000},  {"O2", 113, 80400},
                {"Q1", 80, 70464},   {"Q2", 106, 84016},         {"G1", 91, 74352},
                {"G2", 110, 118720}, {"G2-sharded", 110, 118720}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        tt_st_folder f;
        open_fixture(rows[r].id, &f);
        int64_t parameters = 0;
        for (int64_t i = 0; i < f.num_tensors; i++) parameters += count_of(&f.tensors[i]);
        assert_int_equal(f.num_tensors, rows[r].tensors);
        assert_int_equal(parameters, rows[r].parameters);
        tt_st_close(&f);
    }
}

/* A narrow variant holds the parent rounded to its type:
 * reading it as that type gives the parent read as that type. */
static void narrow_variants_are_the_parent_rounded(void **state)
{
    (void)state;
    static const char *const variants[] = {"Q1-bf16", "Q1-f16", "Q1-mixed"};
    tt_st_folder parent;
    open_fixture("Q1", &parent);
    for (int v = 0; v < 3; v++) {
        tt_st_folder f;
        open_fixture(variants[v], &f);
        assert_int_equal(f.num_tensors, parent.num_tensors);
        int seen[TT_NUM_DTYPES] = {0};
        for (int64_t i = 0; i < f.num_tensors; i++) {
            const tt_st_tensor *t = &f.tensors[i], *p = tt_st_find(&parent, t->name);
            assert_non_null(p);
            assert_memory_equal(t->shape, p->shape, sizeof t->shape);
            size_t bytes = (size_t)(t->end - t->begin);
            int64_t n = count_of(t);
            void *stored = malloc(bytes), *rounded = malloc(bytes);
            assert_true(stored && rounded);
            assert_ok(tt_st_read(&f, t, 0, n, t->dtype, stored));
            assert_ok(tt_st_read(&parent, p, 0, n, t->dtype, rounded));
            assert_memory_equal(stored, rounded, bytes);
            /* And what is read as f32 is exactly the stored number. */
            float *x = read_f32(&f, t);
            tt_convert(rounded, t->dtype, x, TT_F32, n);
            assert_memory_equal(stored, rounded, bytes);
            seen[t->dtype]++;
            free(x);
            free(stored);
            free(rounded);
        }
        assert_int_equal(seen[TT_BF16] > 0, v != 1);
        assert_int_equal(seen[TT_F16] > 0, v != 0);
        assert_int_equal(seen[TT_F32] > 0, v == 2);
        tt_st_close(&f);
    }
    tt_st_close(&parent);
}

/* dequantised = e4m3(q) * scale of the 128 x 128 block, bit for bit (one product in f32). */
static void fp8_matrix_is_dequantised(void **state)
{
    (void)state;
    enum { ROWS = 130, COLUMNS = 260 };
    tt_st_folder f;
    assert_ok(tt_st_open_file(test_fixture("fp8-matrix/matrix.safetensors"), &f));
    const tt_st_tensor *q = tt_st_find(&f, "weight");
    assert_int_equal(q->dtype, TT_F8_E4M3);
    float *w = read_f32(&f, q), *scale = read_f32(&f, tt_st_find(&f, "weight_scale_inv"));
    float *expected = read_f32(&f, tt_st_find(&f, "dequantised"));
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        float got = w[i] * scale[i / COLUMNS / 128 * 3 + i % COLUMNS / 128];
        assert_memory_equal(&got, &expected[i], sizeof got);
    }
    free(w);
    free(scale);
    free(expected);
    tt_st_close(&f);
}

static int by_begin(const void *a, const void *b)
{
    const tt_st_tensor *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* A layout of a file's tensors in the file's order gives the file's header, byte by byte. */
static void layout_repeats_the_official_header(void **state)
{
    (void)state;
    static const char *const files[] = {"O1/model/model.safetensors",
                                        "O1/expected.safetensors",
                                        "O2/after.safetensors",
                                        "O1-sharded/model/model-00002-of-00003.safetensors",
                                        "Q1-bf16/model/model.safetensors",
                                        "Q1-mixed/model/model.safetensors",
                                        "G1/expected.safetensors",
                                        "fp8-matrix/matrix.safetensors"};
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        tt_st_folder f;
        assert_ok(tt_st_open_file(test_fixture(files[k]), &f));
        int64_t n = f.num_tensors;
        tt_st_tensor *t = malloc((size_t)n * sizeof *t);
        tt_st_item *items = calloc((size_t)n, sizeof *items);
        assert_true(t && items);
        memcpy(t, f.tensors, (size_t)n * sizeof *t);
        qsort(t, (size_t)n, sizeof *t, by_begin);
        for (int64_t i = 0; i < n; i++) {
            items[i] = (tt_st_item){.name = t[i].name, .dtype = t[i].dtype, .ndim = t[i].ndim};
            memcpy(items[i].shape, t[i].shape, sizeof t[i].shape);
        }
        tt_st_plan plan;
        assert_ok(tt_st_layout(items, n, 1, "model", f.metadata[0], &plan));
        assert_int_equal(plan.file_bytes[0], f.files[0].size);
        char *header = malloc((size_t)plan.header_bytes[0]);
        assert_non_null(header);
        assert_ok(tt_file_read_at(&f.files[0], 0, header, (size_t)plan.header_bytes[0]));
        assert_memory_equal(header, plan.headers[0], (size_t)plan.header_bytes[0]);
        for (int64_t i = 0; i < n; i++) assert_int_equal(items[i].begin, t[i].begin);
        free(header);
        free(items);
        free(t);
        tt_st_plan_free(&plan);
        tt_st_close(&f);
    }
}

/* --- layouts of several files ------------------------------------------------------------------------ */

static void items_are_split_and_indexed(void **state)
{
    (void)state;
    /* bytes: 40, 60, 0, 1, 1000, 8; with 100 a file: {40 60 0} {1} {1000} {8} */
    tt_st_item items[] = {{.name = "a", .dtype = TT_F32, .ndim = 1, .shape = {10}},
                          {.name = "b", .dtype = TT_F16, .ndim = 2, .shape = {3, 10}},
                          {.name = "c", .dtype = TT_F32, .ndim = 1, .shape = {0}},
                          {.name = "d \"\\\n\xC3\xA9", .dtype = TT_U8, .ndim = 0},
                          {.name = "e", .dtype = TT_F64, .ndim = 1, .shape = {125}},
                          {.name = "f", .dtype = TT_I64, .ndim = 1, .shape = {1}}};
    const int expected[] = {0, 0, 0, 1, 2, 3};
    assert_int_equal(tt_st_split(items, 6, 100), 4);
    for (int i = 0; i < 6; i++) assert_int_equal(items[i].file, expected[i]);
    tt_st_plan plan, again;
    const char *folder = test_folder("st-split");
    assert_ok(tt_st_layout(items, 6, 4, "model", NULL, &plan));
    assert_ok(tt_st_layout(items, 6, 4, "model", NULL, &again));
    assert_int_equal(plan.total_bytes, 1109);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(plan.header_bytes[i], again.header_bytes[i]);
        assert_memory_equal(plan.headers[i], again.headers[i], (size_t)plan.header_bytes[i]);
    }
    tt_st_plan_free(&again);
    assert_string_equal(plan.file_names[3], "model-00004-of-00004.safetensors");
    create_files(folder, &plan);
    json_t *extra = json_pack("{s:i, s:i}", "total_parameters", 178, "total_size", 1);
    char index_path[1200];
    assert_ok(tt_path_join(index_path, sizeof index_path, folder, TT_ST_INDEX_FILE));
    assert_ok(tt_st_write_index(index_path, &plan, items, 6, extra));
    json_decref(extra);
    tt_st_folder f;
    assert_ok(tt_st_open_folder(folder, &f));
    assert_int_equal(f.num_files, 4);
    assert_int_equal(f.num_tensors, 6);
    assert_int_equal(json_integer_value(json_object_get(f.index_metadata, "total_size")), 1109);
    assert_int_equal(json_integer_value(json_object_get(f.index_metadata, "total_parameters")), 178);
    for (int i = 0; i < 6; i++) {
        const tt_st_tensor *t = tt_st_find(&f, items[i].name);
        assert_non_null(t);
        assert_int_equal(t->file, items[i].file);
        assert_int_equal(t->begin, items[i].begin);
        assert_int_equal(t->end, items[i].end);
    }
    tt_st_close(&f);
    tt_st_plan_free(&plan);

    assert_int_equal(tt_st_split(items, 6, INT64_MAX), 1);
    assert_int_equal(tt_st_split(items, 0, 100), 1);
    assert_int_equal(tt_st_split(items, 6, 0), 6);
    items[1].shape[0] = INT64_MAX;
    assert_int_equal(tt_st_split(items, 3, 100), 3);
}

static void empty_layouts_are_files_too(void **state)
{
    (void)state;
    tt_st_plan plan;
    tt_st_folder f;
    const char *folder = test_folder("st-empty");
    assert_ok(tt_st_layout(NULL, 0, 1, "adapter_model", NULL, &plan));
    create_files(folder, &plan);
    assert_ok(tt_st_open_file(in_folder(folder, "adapter_model.safetensors"), &f));
    assert_int_equal(f.num_tensors, 0);
    tt_st_close(&f);
    tt_st_plan_free(&plan);
}

static void impossible_layouts_are_refused(void **state)
{
    (void)state;
    tt_st_plan plan;
    tt_st_item two[] = {{.name = "a", .dtype = TT_F32, .ndim = 1, .shape = {1}, .file = 0},
                        {.name = "a", .dtype = TT_F32, .ndim = 1, .shape = {1}, .file = 1}};
    assert_error(tt_st_layout(two, 2, 2, "model", NULL, &plan), TT_EMISMATCH, "'a' would be written twice");
    assert_null(plan.headers);
    two[1].name = "";
    assert_error(tt_st_layout(two, 2, 2, "model", NULL, &plan), TT_EMISMATCH, "under the name ''");
    two[1].name = "__metadata__";
    assert_error(tt_st_layout(two, 2, 2, "model", NULL, &plan), TT_EMISMATCH, "__metadata__");
    two[1].name = "b\xFF";
    assert_error(tt_st_layout(two, 2, 2, "model", NULL, &plan), TT_EMISMATCH, "not valid UTF-8");
    two[1] = (tt_st_item){.name = "b", .dtype = TT_F32, .ndim = 2, .shape = {1ll << 40, 1ll << 22}};
    assert_error(tt_st_layout(two, 2, 1, "model", NULL, &plan), TT_EMISMATCH, "'b' cannot be written");
    two[1] = (tt_st_item){.name = "b", .dtype = TT_U8, .ndim = 1, .shape = {INT64_MAX - 1}};
    assert_error(tt_st_layout(two, 2, 1, "model", NULL, &plan), TT_EMISMATCH, "beyond 63 bits");
    assert_error(tt_st_layout(two + 1, 1, 1, "model", NULL, &plan), TT_EMISMATCH, "larger than 63 bits");
    two[1] = (tt_st_item){.name = "b", .dtype = TT_U8, .ndim = 1, .shape = {-1}};
    assert_error(tt_st_layout(two, 2, 1, "model", NULL, &plan), TT_EMISMATCH, "'b'");
    two[1] = (tt_st_item){.name = "b", .dtype = TT_U8, .ndim = TT_ST_MAX_DIMS + 1};
    assert_error(tt_st_layout(two, 2, 1, "model", NULL, &plan), TT_EMISMATCH, "9 dims");
    json_t *metadata = json_pack("{s:i}", "n", 1);
    assert_error(tt_st_layout(two, 1, 1, "model", metadata, &plan), TT_EINTERNAL,
                 "'n' of a safetensors file");
    json_decref(metadata);
}

/* --- headers that lie -------------------------------------------------------------------------------- */

#define F32_2(begin, end) "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[" begin "," end "]}"

static void malformed_headers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        int data_bytes;
        const char *message; /* NULL: fine */
    } cases[] = {
        {"{\"a\":" F32_2("0", "8") "}", 8, NULL},
        {"{\"a\":" F32_2("0", "8") "}  \n\t ", 8, NULL},
        {"{ \"a\" : { \"shape\" : [ 2 ] , \"data_offsets\" : [ 0 , 8 ] , \"dtype\" : \"F32\" } }", 8, NULL},
        {"{}", 0, NULL},
        {"{\"__metadata__\":{}}", 0, NULL},
        {"{\"b\":" F32_2("8", "16") ",\"a\":" F32_2("0", "8") "}", 16, NULL},
        {"{\"\\u0061\\n\":" F32_2("0", "8") "}", 8, NULL},
        /* without elements, on each border */
        {"{\"a\":" F32_2("0", "8") ",\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 8,
         NULL},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]},\"a\":" F32_2("0", "8") "}", 8,
         NULL},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]},\"a\":" F32_2(
             "0", "8") ",\"b\":" F32_2("8", "16") "}",
         16, NULL},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},\"a\":" F32_2("0", "8") "}", 8,
         "tensor 'x' begins at byte 4 of the data, inside 'a', which ends at 8"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[9,9]},\"a\":" F32_2("0", "8") "}", 8,
         "'x' ends at byte 9"},
        /* the tiling */
        {"{\"a\":" F32_2("0", "8") "}", 9, "1 bytes at the end of the file belong to no tensor"},
        {"{\"a\":" F32_2("0", "8") "}", 7, "'a' ends at byte 8 of the data, but the file holds 7"},
        {"{}", 1, "1 bytes at the end"},
        {"{\"a\":" F32_2("1", "9") "}", 9,
         "bytes 0 to 1 of the data, before tensor 'a', belong to no tensor"},
        {"{\"a\":" F32_2("0", "8") ",\"b\":" F32_2("12", "20") "}", 20, "bytes 8 to 12"},
        {"{\"a\":" F32_2("0", "8") ",\"b\":" F32_2("4", "12") "}", 12,
         "'b' begins at byte 4 of the data, inside 'a'"},
        {"{\"a\":" F32_2("0", "8") ",\"b\":" F32_2("0", "8") "}", 8, "inside"},
        /* ranges and shapes */
        {"{\"a\":" F32_2("0", "4") "}", 4, "'a' has a shape of 8 bytes, but data_offsets of 4"},
        {"{\"a\":" F32_2("8", "0") "}", 8, "'a' ends at byte 0, before it begins at 8"},
        {"{\"a\":" F32_2("-8", "0") "}", 8, "element 0 of 'data_offsets' is not a non-negative integer"},
        {"{\"a\":" F32_2("0", "8.0") "}", 8, "element 1 of 'data_offsets'"},
        {"{\"a\":" F32_2("0", "9223372036854775808") "}", 8, "not valid JSON"},
        {"{\"a\":" F32_2("9223372036854775799", "9223372036854775807") "}", 8,
         "ends at byte 9223372036854775807"},
        {"{\"a\":" F32_2("0", "8,8") "}", 8, "'data_offsets' has 3 numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8,
         "'data_offsets' has 1 numbers; expected 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":8}}", 8, "'data_offsets' is integer"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "'data_offsets' is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "'shape' is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":\"2\",\"data_offsets\":[0,8]}}", 8, "'shape' is string"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, "element 0 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,null],\"data_offsets\":[0,8]}}", 8, "element 1 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,1.0],\"data_offsets\":[0,8]}}", 8, "element 1 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,true],\"data_offsets\":[0,8]}}", 8, "element 1 of 'shape'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, "at most 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8,
         "beyond 63 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         "beyond 63 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2305843009213693951],\"data_offsets\":[0,9223372036854775804]}"
         "}",
         8, "'a' ends at byte 9223372036854775804"},
        /* types */
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1,
         "'a' has dtype 'F4', which is not known"},
        {"{\"a\":{\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype 'f32'"},
        {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'dtype' is integer"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "'dtype' is missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"strides\":[1]}}", 8,
         "has a member 'strides'"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         "duplicate"},
        {"{\"a\":[]}", 0, "'a' is described by array"},
        {"{\"a\":null}", 0, "'a' is described by null"},
        {"{\"a\":1}", 0, "'a' is described by integer"},
        /* names */
        {"{\"\":" F32_2("0", "8") "}", 8, "empty name"},
        {"{\"a\\u0000b\":" F32_2("0", "8") "}", 8, "NUL"},
        {"{\"a\\ud800\":" F32_2("0", "8") "}", 8, "not valid JSON"},
        {"{\"a\xFF\":" F32_2("0", "8") "}", 8, "not valid JSON"},
        {"{\"a\xC0\x80\":" F32_2("0", "8") "}", 8, "not valid JSON"},
        {"{\"a\n\":" F32_2("0", "8") "}", 8, "not valid JSON"},
        {"{\"a\":" F32_2("0", "8") ",\"a\":" F32_2("8", "16") "}", 16, "tensor 'a' appears twice"},
        {"{\"a\":" F32_2("0", "8") ",\"\\u0061\":" F32_2("8", "16") "}", 16, "tensor 'a' appears twice"},
        {"{\"a\":" F32_2("0", "8") ",\"a\":" F32_2("0", "8") "}", 8, "tensor 'a' appears twice"},
        {"{\"a\":" F32_2("0", "8") ",\"a\":" F32_2("4", "12") "}", 12, "tensor 'a' appears twice"},
        {"{\"a\":" F32_2("0", "8") ",\"b\":" F32_2("2", "10") ",\"a\":" F32_2("4", "12") "}", 12, "tensor 'a' appears twice"},
        /* metadata */
        {"{\"__metadata__\":{\"a\":1}}", 0, "'a' is not a string"},
        {"{\"__metadata__\":{\"a\":null}}", 0, "'a' is not a string"},
        {"{\"__metadata__\":{\"a\":[]}}", 0, "'a' is not a string"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "'a' is not a string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
        {"{\"__metadata__\":\"x\"}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "'a' appears twice"},
        {"{\"__metadata__\":{\"a\":\"1\"},\"__metadata__\":{}}", 0, "'__metadata__' appears twice"},
        {"{\"__metadata__\":{\"a\":\"1\"", 0, "not valid JSON"},
        /* JSON */
        {"", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {"\xEF\xBB\xBF{}", 0, "does not begin with '{'"},
        {"{", 0, "not valid JSON"},
        {"{}x", 0, "nothing after the object"},
        {"{}{}", 0, "nothing after the object"},
        {"{\"a\":" F32_2("0", "8") ",}", 8, "a key in double quotes"},
        {"{,}", 0, "a key in double quotes"},
        {"{a:1}", 0, "a key in double quotes"},
        {"{\"a", 0, "the end of a key"},
        {"{\"a\\", 0, "the end of a key"},
        {"{\"a\"}", 0, "':'"},
        {"{\"a\":", 0, "the end of a value"},
        {"{\"a\":}", 0, "not valid JSON"},
        {"{\"a\":,\"b\":1}", 0, "not valid JSON"},
        {"{\"a\":{]}", 0, "not valid JSON"},
        {"{\"a\":\"x", 0, "the end of a value"},
        {"{\"a\":" F32_2("0", "8") " \"b\":" F32_2("8", "16") "}", 16, "',' or '}'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]]}", 8, "not valid JSON"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,08]}}", 8, "not valid JSON"},
        {"{\"a\":nul}", 0, "not valid JSON"},
    };
    const char *path = in_folder(test_folder("st-malformed"), "m.safetensors");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tt_st_folder f;
        write_file(path, cases[i].header, strlen(cases[i].header), (size_t)cases[i].data_bytes);
        tt_status got = tt_st_open_file(path, &f);
        tt_status expected = cases[i].message ? TT_EFORMAT : TT_OK;
        const char *message = cases[i].message ? cases[i].message : "";
        if (got != expected ||
            (got != TT_OK && (!strstr(tt_error_text(), message) || !strstr(tt_error_text(), path))))
            fail_msg("%s\n  gave %s: %s\n  expected %s", cases[i].header, tt_status_name(got),
                     tt_error_text(), message);
        tt_st_close(&f);
    }
}

static void damaged_lengths_are_refused(void **state)
{
    (void)state;
    tt_st_folder f;
    const char *path = in_folder(test_folder("st-lengths"), "m.safetensors");
    assert_error(tt_st_open_file(path, &f), TT_EIO, path);
    static const struct {
        uint64_t n;
        const char *message;
    } cases[] = {{3, "after the length"},
                 {TT_ST_MAX_HEADER, "after the length"},
                 {TT_ST_MAX_HEADER + 1, "claims a header of 100000001 bytes"},
                 {UINT64_MAX, "claims a header of 18446744073709551615 bytes"},
                 {(uint64_t)INT64_MAX + 1, "claims a header"},
                 {0, "does not begin"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(path, "{}", 2, 0);
        tt_file file;
        assert_ok(tt_file_open_write(&file, path));
        assert_ok(tt_file_write_at(&file, 0, &cases[i].n, 8));
        tt_file_close(&file);
        assert_error(tt_st_open_file(path, &f), TT_EFORMAT, cases[i].message);
    }
    for (size_t n = 0; n < 8; n++) {
        assert_ok(tt_file_write_all(path, "\2\0\0\0\0\0\0\0", n));
        assert_error(tt_st_open_file(path, &f), TT_EFORMAT, "has at least 8");
    }
}

/* Deep, long and numerous: each is refused or read in time and memory that grow with its size only. */
static void hostile_headers_cost_little(void **state)
{
    (void)state;
    enum { N = 4000000 };
    const char *path = in_folder(test_folder("st-hostile"), "m.safetensors");
    char *text = malloc(N + 1);
    assert_non_null(text);
    tt_st_folder f;
    static const struct {
        const char *begin, *unit, *message;
    } cases[] = {{"{\"a\":", "[", "the end of a value"},
                 {"{\"a\":[", "[],", "the end of a value"},
                 {"{\"a\":", "{\"a\":", "the end of a value"},
                 {"{\"__metadata__\":{\"a\":", "[", "the end of a value"},
                 {"{", "{", "a key in double quotes"},
                 {"{\"", "a", "the end of a key"},
                 {"{\"", "\\\"", "the end of a key"},
                 {"{}", " ", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t begin = strlen(cases[i].begin), unit = strlen(cases[i].unit);
        memcpy(text, cases[i].begin, begin);
        for (size_t k = begin; k < N; k++) text[k] = cases[i].unit[(k - begin) % unit];
        write_file(path, text, N, 0);
        if (cases[i].message)
            assert_error(tt_st_open_file(path, &f), TT_EFORMAT, cases[i].message);
        else
            assert_ok(tt_st_open_file(path, &f));
        tt_st_close(&f);
    }
    /* A description with a million brackets, closed properly. */
    static const char begin[] = "{\"a\":";
    size_t n = sizeof begin - 1;
    memcpy(text, begin, n);
    memset(text + n, '[', 1000000);
    memset(text + n + 1000000, ']', 1000000);
    text[n + 2000000] = '}';
    write_file(path, text, n + 2000001, 0);
    assert_error(tt_st_open_file(path, &f), TT_EFORMAT, "at most 4096 are accepted");
    assert_non_null(strstr(tt_error_text(), "tensor 'a'"));
    /* More metadata than anyone has. */
    n = 0;
    for (int i = 0; i <= 100000; i++)
        n += (size_t)sprintf(text + n, "%s\"%x\":\"\"", i ? "," : "{\"__metadata__\":{", i);
    n += (size_t)sprintf(text + n, "}}");
    write_file(path, text, n, 0);
    assert_error(tt_st_open_file(path, &f), TT_EFORMAT, "more than 100000 members");
    /* Fifty thousand tensors. */
    n = 0;
    text[n++] = '{';
    for (int i = 0; i < 50000; i++)
        n += (size_t)sprintf(text + n, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}",
                             i ? "," : "", i, i, i + 1);
    text[n++] = '}';
    write_file(path, text, n, 50000);
    assert_ok(tt_st_open_file(path, &f));
    assert_int_equal(f.num_tensors, 50000);
    uint8_t byte;
    assert_ok(tt_st_read(&f, tt_st_find(&f, "t777"), 0, 1, TT_U8, &byte));
    assert_int_equal(byte, (uint8_t)778);
    tt_st_close(&f);
    free(text);
}

/* --- indices that lie -------------------------------------------------------------------------------- */

static void wrong_indices_are_refused(void **state)
{
    (void)state;
    /* 1.safetensors holds a and b, 2.safetensors holds c, 3.safetensors holds a. */
    static const struct {
        const char *index, *message;
        tt_status status;
    } cases[] = {
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"1\",\"c\":\"2\"}}", NULL, TT_OK},
        {"{\"metadata\":{\"x\":[1]},\"more\":[{}],\"weight_map\":{\"c\":\"2\",\"b\":\"1\",\"a\":\"1\"}}\n",
         NULL, TT_OK},
        {"{\"metadata\":null,\"weight_map\":{\"c\":\"2\"}}", NULL, TT_OK},
        {"{\"weight_map\":{\"a\":\"1\",\"c\":\"2\"}}", "tensor 'b' of '1' is not listed", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"1\",\"z\":\"1\"}}", "tensor 'z' is listed, but not in '1'",
         TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"2\",\"c\":\"2\"}}", "'b' is said to be in '2', but is in '1'",
         TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"3\",\"b\":\"1\"}}", "tensor 'a' is in '1' and in '3'", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"1\",\"a\":\"1\"}}", "tensor 'a' is listed twice", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"1\",\"b\":\"1\",\"c\":\"9\"}}", "puts tensor 'c' into '9': cannot open",
         TT_EIO},
        {"{\"weight_map\":{\"a\":\"../st-index/1\"}}", "expected the plain name of a file", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "expected the plain name", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\".hidden\"}}", "expected the plain name", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"..\"}}", "expected the plain name", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"\"}}", "expected the plain name", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":\"1\\u0000\"}}", "expected the plain name", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":1}}", "the file of tensor 'a' is integer", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":[\"1\"]}}", "the file of tensor 'a' is array", TT_EFORMAT},
        {"{\"weight_map\":{\"a\":}}", "not valid JSON", TT_EFORMAT},
        {"{\"weight_map\":{\"\":\"2\",\"c\":\"2\"}}", "tensor '' is listed", TT_EFORMAT},
        {"{\"weight_map\":{}}", "lists no tensor", TT_EFORMAT},
        {"{\"weight_map\":[]}", "expected '{'", TT_EFORMAT},
        {"{\"metadata\":{}}", "has no 'weight_map'", TT_EFORMAT},
        {"{\"metadata\":[],\"weight_map\":{\"c\":\"2\"}}", "'metadata' is not an object", TT_EFORMAT},
        {"{\"metadata\":{},\"metadata\":{},\"weight_map\":{\"c\":\"2\"}}", "'metadata' appears twice",
         TT_EFORMAT},
        {"{\"weight_map\":{\"c\":\"2\"},\"weight_map\":{\"c\":\"2\"}}", "'weight_map' appears twice",
         TT_EFORMAT},
        {"{\"x\":nul,\"weight_map\":{\"c\":\"2\"}}", "not valid JSON", TT_EFORMAT},
        {"[]", "expected '{'", TT_EFORMAT},
        {"", "expected '{'", TT_EFORMAT},
        {"{\"weight_map\":{\"c\":\"2\"}", "not valid JSON", TT_EFORMAT},
        {"{\"weight_map\":{\"c\":\"text\"}}", "text: ", TT_EFORMAT},
    };
    const char *folder = test_folder("st-index");
    const char *ab = "{\"a\":" F32_2("0", "8") ",\"b\":" F32_2("8", "16") "}",
               *c = "{\"c\":" F32_2("0", "8") "}";
    const char *a = "{\"a\":" F32_2("0", "8") "}";
    tt_st_folder f;
    assert_error(tt_st_open_folder(in_folder(folder, "none"), &f), TT_EIO, "is not a folder");
    assert_error(tt_st_open_folder(folder, &f), TT_EIO, "neither model.safetensors nor");
    write_file(in_folder(folder, "1"), ab, strlen(ab), 16);
    write_file(in_folder(folder, "2"), c, strlen(c), 8);
    write_file(in_folder(folder, "3"), a, strlen(a), 8);
    write_text(in_folder(folder, "text"), "not a safetensors file at all");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *message = cases[i].message ? cases[i].message : "";
        write_text(in_folder(folder, TT_ST_INDEX_FILE), cases[i].index);
        tt_status got = tt_st_open_folder(folder, &f);
        if (got != cases[i].status || (got != TT_OK && !strstr(tt_error_text(), message)))
            fail_msg("%s\n  gave %s: %s\n  expected %s", cases[i].index, tt_status_name(got), tt_error_text(),
                     message);
        if (got == TT_OK) assert_true(f.sharded);
        tt_st_close(&f);
    }
    /* Beside a model.safetensors one of the two is stale, unless the index speaks of it. */
    write_text(in_folder(folder, TT_ST_INDEX_FILE), "{\"weight_map\":{\"c\":\"2\"}}");
    write_file(in_folder(folder, TT_ST_MODEL_FILE), a, strlen(a), 8);
    assert_error(tt_st_open_folder(folder, &f), TT_EFORMAT, "there is also a model.safetensors");
    write_text(in_folder(folder, TT_ST_INDEX_FILE),
               "{\"weight_map\":{\"c\":\"2\",\"a\":\"model.safetensors\"}}");
    assert_ok(tt_st_open_folder(folder, &f));
    assert_int_equal(f.num_files, 2);
    tt_st_close(&f);
}

/* --- mutations --------------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return *x >> 33;
}

/* A few random edits: bytes that matter to JSON, digits, copies of one part over another. */
static void mutate(char *text, size_t n, uint64_t *x)
{
    static const char interesting[] = "{}[]\",:\\0123456789-eE. \0\xFF"
                                      "anull";
    for (uint64_t edits = 1 + next_random(x) % 3; edits > 0; edits--) {
        size_t at = next_random(x) % n, from = next_random(x) % n, length = next_random(x) % 24;
        switch (next_random(x) % 3) {
        case 0:
            text[at] = interesting[next_random(x) % (sizeof interesting - 1)];
            break;
        case 1:
            text[at] = (char)(text[at] ^ (1 << next_random(x) % 8));
            break;
        default:
            if (length > n - at) length = n - at;
            if (length > n - from) length = n - from;
            memmove(text + at, text + from, length);
        }
    }
}

/* Whatever opens must be whole: each tensor can be read to its last byte. Returns 1 if it opened. */
static int open_and_read(tt_status status, tt_st_folder *f, const char *path)
{
    if (status != TT_OK) {
        assert_non_null(strstr(tt_error_text(), path));
        assert_int_equal(f->num_tensors, 0);
        return 0;
    }
    for (int64_t i = 0; i < f->num_tensors; i++) {
        const tt_st_tensor *t = &f->tensors[i];
        char *data = malloc((size_t)(t->end - t->begin) + 1);
        assert_non_null(data);
        assert_ok(tt_st_read(f, t, 0, count_of(t), t->dtype, data));
        free(data);
    }
    tt_st_close(f);
    return 1;
}

static void mutated_files_do_no_harm(void **state)
{
    (void)state;
    enum { ROUNDS = 5000 };
    const uint64_t seed = 1234567;
    print_message("seed %" PRIu64 "\n", seed);
    uint64_t x = seed;
    tt_st_item items[] = {{.name = "a", .dtype = TT_F32, .ndim = 2, .shape = {2, 3}},
                          {.name = "\xC3\xA9", .dtype = TT_BF16, .ndim = 0},
                          {.name = "none", .dtype = TT_U8, .ndim = 1, .shape = {0}},
                          {.name = "b\"", .dtype = TT_I8, .ndim = 1, .shape = {6}}};
    tt_st_plan plan;
    assert_ok(tt_st_layout(items, 4, 1, "model", NULL, &plan));
    size_t header = (size_t)plan.header_bytes[0], whole = (size_t)plan.file_bytes[0];
    char *valid = calloc(whole, 1), *text = malloc(whole);
    assert_true(valid && text);
    memcpy(valid, plan.headers[0], header);
    const char *path = in_folder(test_folder("st-mutated"), "m.safetensors");
    int opened = 0;
    for (int round = 0; round < ROUNDS; round++) {
        tt_file file;
        tt_st_folder f;
        size_t n = whole;
        memcpy(text, valid, whole);
        if (round % 8 == 0)
            n = next_random(&x) % whole; /* cut short */
        else if (round % 8 == 1)
            mutate(text, 8, &x); /* the length */
        else
            mutate(text + 8, header - 8, &x);
        assert_ok(tt_file_create(&file, path, 0));
        assert_ok(tt_file_write_at(&file, 0, text, n));
        tt_file_close(&file);
        tt_error_set(TT_OK, "%s", "");
        opened += open_and_read(tt_st_open_file(path, &f), &f, path);
    }
    /* Some edits hit padding or a digit of nothing: both outcomes must occur, or nothing was tested. */
    assert_in_range(opened, 1, ROUNDS / 2);
    free(valid);
    free(text);
    tt_st_plan_free(&plan);
}

static void mutated_indices_do_no_harm(void **state)
{
    (void)state;
    enum { ROUNDS = 2000 };
    static const char valid[] = "{\n  \"metadata\": {\"total_size\": 16},\n  \"weight_map\": {\n"
                                "    \"a\": \"a.safetensors\",\n    \"b\": \"b.safetensors\"\n  }\n}\n";
    const uint64_t seed = 7654321;
    print_message("seed %" PRIu64 "\n", seed);
    uint64_t x = seed;
    const char *folder = test_folder("st-mutated-index"), *a = "{\"a\":" F32_2("0", "8") "}",
               *b = "{\"b\":" F32_2("0", "8") "}";
    write_file(in_folder(folder, "a.safetensors"), a, strlen(a), 8);
    write_file(in_folder(folder, "b.safetensors"), b, strlen(b), 8);
    int opened = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char text[sizeof valid];
        tt_st_folder f;
        tt_file file;
        memcpy(text, valid, sizeof valid);
        if (round) mutate(text, sizeof valid - 1, &x);
        size_t n = round % 8 == 1 ? next_random(&x) % sizeof valid : sizeof valid - 1;
        assert_ok(tt_file_create(&file, in_folder(folder, TT_ST_INDEX_FILE), 0));
        assert_ok(tt_file_write_at(&file, 0, text, n));
        tt_file_close(&file);
        tt_error_set(TT_OK, "%s", "");
        opened += open_and_read(tt_st_open_folder(folder, &f), &f, folder);
    }
    assert_in_range(opened, 1, ROUNDS / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_shape_comes_back),
        cmocka_unit_test(ranges_are_converted_while_reading),
        cmocka_unit_test(large_tensors_use_64_bits),
        cmocka_unit_test(shards_equal_the_single_file),
        cmocka_unit_test(counts_are_those_of_the_table),
        cmocka_unit_test(narrow_variants_are_the_parent_rounded),
        cmocka_unit_test(fp8_matrix_is_dequantised),
        cmocka_unit_test(layout_repeats_the_official_header),
        cmocka_unit_test(items_are_split_and_indexed),
        cmocka_unit_test(empty_layouts_are_files_too),
        cmocka_unit_test(impossible_layouts_are_refused),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(damaged_lengths_are_refused),
        cmocka_unit_test(hostile_headers_cost_little),
        cmocka_unit_test(wrong_indices_are_refused),
        cmocka_unit_test(mutated_files_do_no_harm),
        cmocka_unit_test(mutated_indices_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
