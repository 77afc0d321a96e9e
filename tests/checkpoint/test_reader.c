/* The reader of spans: what is merged, how large requests are, conversion while copying, sizes beyond 32 bits, memory. */
#include "support/test.h"

#include "base/checked.h"
#include "base/file.h"
#include "base/rng.h"
#include "checkpoint/load.h"
#include "model/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* --- files ------------------------------------------------------------------------------------------------------- */

/* FOLDER/model.safetensors with the items, sparse. */
static void create(const char *folder, tt_st_item *items, int64_t num, tt_file *f)
{
    tt_st_plan plan;
    char path[1300];
    assert_ok(tt_st_layout(items, num, 1, "model", NULL, &plan));
    assert_ok(tt_path_join(path, sizeof path, folder, "model.safetensors"));
    assert_ok(tt_file_create(f, path, plan.file_bytes[0]));
    assert_ok(tt_file_write_at(f, 0, plan.headers[0], (size_t)plan.header_bytes[0]));
    tt_st_plan_free(&plan);
}

/* Bytes that depend on their place. */
static void fill(const tt_file *f, int64_t begin, int64_t end)
{
    enum { PIECE = 1 << 16 };
    static uint8_t piece[PIECE];
    for (int64_t at = begin; at < end; at += PIECE) {
        int64_t n = tt_min_i64(PIECE, end - at);
        for (int64_t i = 0; i < n; i++) piece[i] = (uint8_t)(((at + i) * 2654435761u) >> 13);
        assert_ok(tt_file_write_at(f, at, piece, (size_t)n));
    }
}

static tt_read_span span_of(const tt_st_folder *f, const char *name, int64_t first, int64_t count, tt_dtype type, void *data)
{
    return (tt_read_span){.tensor = tt_st_find(f, name), .first = first, .count = count, .type = type, .data = data};
}

/* --- merging ----------------------------------------------------------------------------------------------------- */

enum { SMALL = 1000, SMALL_COUNT = 999, LARGE_COUNT = 5000001 };

/* A thousand tensors that touch are one request, in whatever order they are asked for; a hole makes two; a large tensor is
 * cut; and every element is where it should be. */
static void what_touches_is_read_at_once(void **state)
{
    (void)state;
    static tt_st_item items[SMALL + 1];
    static char names[SMALL + 1][16];
    tt_file file;
    tt_st_folder f;
    char folder[1100];
    snprintf(folder, sizeof folder, "%s", test_folder("reader"));
    for (int i = 0; i <= SMALL; i++) {
        snprintf(names[i], sizeof names[i], "t%04d", i);
        items[i] = (tt_st_item){.name = names[i], .dtype = i < SMALL ? TT_F32 : TT_BF16, .ndim = 1,
                                .shape = {i < SMALL ? SMALL_COUNT : LARGE_COUNT}};
    }
    create(folder, items, SMALL + 1, &file);
    fill(&file, items[0].begin, items[SMALL].end);
    tt_file_close(&file);
    assert_ok(tt_st_open_folder(folder, &f));

    float *small = malloc(sizeof(float) * SMALL * SMALL_COUNT), *want = malloc(sizeof(float) * LARGE_COUNT);
    float *large = malloc(sizeof(float) * LARGE_COUNT);
    static tt_read_span spans[SMALL + 1];
    for (int hole = 0; hole < 2; hole++) {
        tt_read_result r;
        int64_t num = 0, bytes = 0;
        memset(small, 0xFF, sizeof(float) * SMALL * SMALL_COUNT);
        for (int i = 0; i < SMALL; i++) {
            int k = i * 7 % SMALL;
            if (hole && k == 500) continue;
            spans[num++] = span_of(&f, names[k], 0, SMALL_COUNT, TT_F32, small + k * SMALL_COUNT);
            bytes += 4 * SMALL_COUNT;
        }
        assert_ok(tt_read_spans(&f, spans, num, 3, NULL, &r));
        assert_int_equal(r.requests, 1 + hole);
        assert_int_equal(r.bytes, bytes);
        assert_int_equal(r.elements, bytes / 4);
        for (int k = 0; k < SMALL; k++) {
            if (hole && k == 500) continue;
            assert_ok(tt_st_read(&f, tt_st_find(&f, names[k]), 0, SMALL_COUNT, TT_F32, want));
            assert_memory_equal(small + k * SMALL_COUNT, want, sizeof(float) * SMALL_COUNT);
        }
    }
    /* The large one, in its own type and converted; and in three parts that touch, with elements at odd places. */
    for (int convert = 0; convert < 2; convert++) {
        tt_read_result r;
        tt_dtype type = convert ? TT_F32 : TT_BF16;
        size_t size = tt_dtype_size(type);
        const int64_t cuts[] = {3, 777777, 4000000, LARGE_COUNT};
        memset(large, 0xFF, size * LARGE_COUNT);
        for (int i = 0; i < 3; i++)
            spans[i] = span_of(&f, names[SMALL], cuts[i], cuts[i + 1] - cuts[i], type, (char *)large + size * (size_t)cuts[i]);
        assert_ok(tt_read_spans(&f, spans, 3, 1, NULL, &r));
        assert_int_equal(r.bytes, 2 * (LARGE_COUNT - 3));
        assert_int_equal(r.requests, tt_div_up(2 * (LARGE_COUNT - 3), TT_READ_REQUEST));
        assert_true(r.memory <= TT_READ_MEMORY);
        assert_ok(tt_st_read(&f, tt_st_find(&f, names[SMALL]), 3, LARGE_COUNT - 3, type, want));
        assert_memory_equal((char *)large + 3 * size, want, size * (LARGE_COUNT - 3));
    }
    free(small);
    free(want);
    free(large);
    tt_st_close(&f);
}

/* Random ranges of tensors of all types, some odd in size, so that what follows is aligned to nothing. */
static void any_ranges_of_any_types(void **state)
{
    (void)state;
    static const tt_dtype types[] = {TT_F8_E4M3, TT_F32, TT_BF16, TT_F16, TT_F64, TT_F8_E4M3, TT_F32};
    enum { NUM = 60, TYPES = sizeof types / sizeof *types };
    tt_st_item items[NUM];
    char names[NUM][16], folder[1100];
    tt_file file;
    tt_st_folder f;
    snprintf(folder, sizeof folder, "%s", test_folder("reader-types"));
    for (int i = 0; i < NUM; i++) {
        snprintf(names[i], sizeof names[i], "t%02d", i);
        items[i] = (tt_st_item){.name = names[i], .dtype = types[i % TYPES], .ndim = 2, .shape = {i % 5 * 13, 37 + i}};
    }
    create(folder, items, NUM, &file);
    fill(&file, items[0].begin, items[NUM - 1].end);
    tt_file_close(&file);
    assert_ok(tt_st_open_folder(folder, &f));
    for (uint64_t round = 0; round < 200; round++) {
        tt_read_span spans[NUM], kept[NUM];
        tt_read_result r;
        int64_t num = 0, bytes = 0;
        for (int i = 0; i < NUM; i++) {
            uint64_t x = tt_rng_key(round * NUM + (uint64_t)i, "ranges");
            int64_t total = items[i].shape[0] * items[i].shape[1];
            int64_t first = x % 3 ? 0 : (int64_t)(x >> 8) % (total + 1), count = x % 4 ? total - first : (total - first) / 2;
            tt_dtype to = x % 5 ? TT_F32 : x % 2 ? TT_BF16 : types[i % TYPES];
            if (x % 7 == 0) continue;
            void *data = malloc((size_t)(count * 8) + 1);
            memset(data, 0xEE, (size_t)(count * 8) + 1);
            spans[num] = kept[num] = span_of(&f, names[i], first, count, to, data);
            bytes += count * (int64_t)tt_dtype_size(types[i % TYPES]);
            num++;
        }
        assert_ok(tt_read_spans(&f, spans, num, 2, NULL, &r));
        assert_int_equal(r.bytes, bytes);
        for (int64_t i = 0; i < num; i++) {
            const tt_read_span *s = &kept[i];
            size_t size = (size_t)s->count * tt_dtype_size(s->type);
            uint8_t *want = malloc(size + 1);
            assert_ok(tt_st_read(&f, s->tensor, s->first, s->count, s->type, want));
            assert_memory_equal(s->data, want, size);
            assert_int_equal(((uint8_t *)s->data)[size], 0xEE);
            free(want);
            free(s->data);
        }
    }
    tt_st_close(&f);
}

/* --- FP8 --------------------------------------------------------------------------------------------------------- */

/* What the independent implementation made of the matrix, for every row and for ranges that begin and end anywhere. */
static void fp8_ranges_are_dequantised(void **state)
{
    (void)state;
    enum { ROWS = 130, COLUMNS = 260, TOTAL = ROWS * COLUMNS };
    tt_st_folder f;
    assert_ok(tt_st_open_file(test_fixture("fp8-matrix/matrix.safetensors"), &f));
    float *want = malloc(sizeof(float) * TOTAL), *got = malloc(sizeof(float) * TOTAL);
    uint16_t *narrow = malloc(sizeof *narrow * TOTAL);
    assert_ok(tt_st_read(&f, tt_st_find(&f, "dequantised"), 0, TOTAL, TT_F32, want));
    const tt_st_tensor *scales = tt_st_find(&f, "weight_scale_inv");
    for (int64_t i = 0; i < 400; i++) {
        tt_read_result r;
        int64_t a = i == 0 ? 0 : i * 7919 % TOTAL, b = i == 0 ? TOTAL : tt_min_i64(TOTAL, a + 1 + i * i * 3 % 40000);
        int64_t middle = a + (b - a) / 3;
        tt_read_span spans[] = {span_of(&f, "weight", middle, b - middle, TT_F32, got + middle),
                                span_of(&f, "weight", a, middle - a, TT_F32, got + a)};
        tt_read_span wide = span_of(&f, "weight", a, b - a, TT_BF16, narrow);
        spans[0].scales = spans[1].scales = wide.scales = scales;
        memset(got, 0xFF, sizeof(float) * TOTAL);
        assert_ok(tt_read_spans(&f, spans, 2, 1, NULL, &r));
        assert_int_equal(r.bytes, b - a);
        assert_int_equal(r.requests, 1);
        assert_memory_equal(got + a, want + a, sizeof(float) * (size_t)(b - a));
        assert_ok(tt_read_spans(&f, &wide, 1, 1, NULL, &r));
        for (int64_t k = a; k < b; k++) assert_int_equal(narrow[k - a], tt_f32_to_bf16(want[k]));
    }
    free(want);
    free(got);
    free(narrow);
    tt_st_close(&f);
}

/* --- failures ---------------------------------------------------------------------------------------------------- */

static void a_file_that_shrinks_is_named(void **state)
{
    (void)state;
    tt_st_item items[] = {{.name = "a", .dtype = TT_F32, .ndim = 1, .shape = {20 << 20}}, {.name = "b", .dtype = TT_I32, .ndim = 1, .shape = {4}}};
    tt_file file;
    tt_st_folder f;
    tt_read_result r;
    float *data = malloc((size_t)80 << 20);
    char folder[1100];
    snprintf(folder, sizeof folder, "%s", test_folder("reader-short"));
    create(folder, items, 2, &file);
    assert_ok(tt_st_open_folder(folder, &f));
    tt_read_span span = span_of(&f, "a", 0, 20 << 20, TT_F32, data), beyond = span_of(&f, "a", 1, 20 << 20, TT_F32, data);
    tt_read_span number = span_of(&f, "b", 0, 4, TT_F32, data);
    assert_ok(tt_read_spans(&f, &span, 1, 1, NULL, &r));
    assert_error(tt_read_spans(&f, &beyond, 1, 1, NULL, &r), TT_EINTERNAL, "20971520 from 1 on were asked for");
    assert_error(tt_read_spans(&f, &number, 1, 1, NULL, &r), TT_EFORMAT, "'b' has dtype I32, which cannot become F32");
    assert_ok(tt_read_spans(&f, NULL, 0, 1, NULL, &r));
    assert_int_equal(r.bytes, 0);
    assert_int_equal(ftruncate(file.fd, 50 << 20), 0);
    assert_error(tt_read_spans(&f, &span, 1, 1, NULL, &r), TT_EFORMAT, "model.safetensors' ends at byte");
    tt_file_close(&file);
    tt_st_close(&f);
    free(data);
}

/* --- who watches ------------------------------------------------------------------------------------------------- */

typedef struct watcher {
    int calls;
    int64_t last, total;
    bool falls;
} watcher;

static void watch(void *user, int64_t done, int64_t total, double seconds)
{
    watcher *w = user;
    w->calls++;
    w->falls |= done < w->last || seconds <= 0;
    w->last = done;
    w->total = total;
}

static void progress_can_be_watched(void **state)
{
    (void)state;
    const int64_t n = 100 << 20;
    tt_st_item item = {.name = "a", .dtype = TT_BF16, .ndim = 1, .shape = {n / 2}};
    tt_file file;
    tt_st_folder f;
    tt_read_result r;
    _Atomic int64_t done = 5;
    watcher w = {0};
    tt_read_watch eager = {&done, watch, &w, 1e-9}, calm = {&done, watch, &w, 0};
    char folder[1100];
    snprintf(folder, sizeof folder, "%s", test_folder("reader-watch"));
    create(folder, &item, 1, &file);
    tt_file_close(&file);
    assert_ok(tt_st_open_folder(folder, &f));
    void *data = malloc((size_t)n);
    tt_read_span span = span_of(&f, "a", 0, n / 2, TT_BF16, data);
    assert_ok(tt_read_spans(&f, &span, 1, 1, &eager, &r));
    assert_int_equal(done, 5 + n);
    assert_true(w.calls > 0 && !w.falls);
    assert_int_equal(w.last, n);
    assert_int_equal(w.total, n);
    /* Nobody is told of what takes less than two seconds, as this does by far. */
    int calls = w.calls;
    assert_ok(tt_read_spans(&f, &span, 1, 1, &calm, &r));
    assert_int_equal(done, 5 + 2 * n);
    if (w.calls != calls) print_message("a read of %lld bytes took more than two seconds\n", (long long)n);
    free(data);
    tt_st_close(&f);
}

/* --- sizes ------------------------------------------------------------------------------------------------------- */

static const char big_config[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 8, \"hidden_size\": 4096, \"num_hidden_layers\": 1,"
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"num_experts\": 128,"
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 4096, \"dtype\": \"bfloat16\"}";

/* One item for each tensor of the model, its experts stacked. */
static int64_t stacked_items(const tt_params *p, tt_st_item *items)
{
    int64_t num = 0;
    for (int64_t i = 0; i < p->num; i++) {
        const tt_param *e = &p->at[i];
        if (e->stack < 0)
            items[num++] = (tt_st_item){.name = e->name, .dtype = e->stored, .ndim = e->ndim, .shape = {e->shape[0], e->shape[1]}};
    }
    for (int64_t i = 0; i < p->num_stacks; i++) {
        const tt_stack *s = &p->stacks[i];
        items[num++] = (tt_st_item){.name = s->name, .dtype = TT_BF16, .ndim = 3, .shape = {s->shape[0], s->shape[1], s->shape[2]}};
    }
    return num;
}

/* 2^32 elements in one tensor and 12 GiB in one file: the last elements of chosen experts, through matching and reading. */
static void experts_beyond_32_bits(void **state)
{
    (void)state;
    tt_model_config c;
    tt_model_table t;
    tt_st_item items[64];
    tt_file file;
    tt_source source;
    char folder[1100], path[1300];
    snprintf(folder, sizeof folder, "%s", test_folder("reader-big"));
    json_t *object = json_loads(big_config, 0, NULL);
    assert_ok(tt_model_config_read(object, "big", &c));
    assert_ok(tt_model_table_build(&c, &t));
    int64_t num = stacked_items(&t.params, items), I = 4096, D = 4096;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    tt_st_plan plan;
    assert_ok(tt_st_layout(items, num, 1, "model", NULL, &plan));
    tt_status created = tt_file_create(&file, path, plan.file_bytes[0]);
    if (created != TT_OK) { /* a file system with smaller files */
        print_message("skipped: %s\n", tt_error_text());
        tt_st_plan_free(&plan);
        tt_model_table_free(&t);
        tt_model_config_free(&c);
        json_decref(object);
        skip();
    }
    assert_ok(tt_file_write_at(&file, 0, plan.headers[0], (size_t)plan.header_bytes[0]));
    tt_st_plan_free(&plan);
    int64_t of_expert = 3 * I * D, gate_up = items[num - 2].begin, down = items[num - 1].begin;
    assert_true(items[num - 2].shape[0] * items[num - 2].shape[1] * items[num - 2].shape[2] > (int64_t)1 << 31);
    assert_ok(tt_source_open(folder, &t.params, false, &source));
    int num_spans = 0;
    tt_read_span spans[12];
    uint16_t got[12][3];
    for (int k = 0; k < 4; k++) {
        const int64_t experts[] = {0, 63, 64, 127}, e = experts[k];
        for (int j = 0; j < 3; j++) {
            /* gate, up: [E, 2I, D]; down: [E, D, I] */
            int64_t end = j < 2 ? gate_up + 2 * ((2 * e + j + 1) * I * D) : down + 2 * ((e + 1) * D * I);
            uint16_t bits = tt_f32_to_bf16((float)(3 * e + j + 1));
            assert_ok(tt_file_write_at(&file, end - 2, &bits, 2));
            int64_t param = t.layers[0].experts + 3 * e + j;
            spans[num_spans] = (tt_read_span){.tensor = &source.folder.tensors[source.tensor[param]],
                                              .first = source.first[param] + I * D - 3, .count = 3, .type = TT_BF16,
                                              .data = got[num_spans]};
            num_spans++;
        }
    }
    tt_read_result r;
    tt_read_span sorted[12];
    memcpy(sorted, spans, sizeof spans);
    assert_ok(tt_read_spans(&source.folder, sorted, 12, 1, NULL, &r));
    assert_int_equal(r.bytes, 12 * 3 * 2);
    for (int k = 0; k < 12; k++) {
        const int64_t experts[] = {0, 63, 64, 127};
        assert_int_equal(got[k][2], tt_f32_to_bf16((float)(3 * experts[k / 3] + k % 3 + 1)));
        assert_int_equal(got[k][0], 0);
    }
    /* Where the last experts lie in the buffers of a rank that has half of them. */
    int64_t *offset = calloc((size_t)t.params.num, sizeof *offset);
    int unit = t.layers[0].expert_unit;
    tt_flat_layout flats[2];
    assert_ok(tt_unit_layout(&t.params, unit, 3, 2, 1, offset, flats));
    assert_int_equal(flats[0].total, 64 * of_expert);
    assert_int_equal(offset[3 * 127 + 2], 64 * of_expert - I * D);
    assert_true(offset[3 * 127 + 2] > (int64_t)1 << 31);
    assert_int_equal(offset[3 * 63], -1);
    free(offset);
    tt_file_close(&file);
    tt_source_close(&source);
    tt_model_table_free(&t);
    tt_model_config_free(&c);
    json_decref(object);
    assert_int_equal(remove(path), 0);
}

/* --- memory ------------------------------------------------------------------------------------------------------ */

static int64_t peak_bytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (int64_t)u.ru_maxrss * 1024;
}

/* 320 MiB of F32 become 160 MiB of BF16. A second copy of what is owned, in either type, would show. Pages of the sanitizers'
 * own books and of the C library are allowed an eighth. */
static void memory_is_what_is_owned_and_a_buffer(void **state)
{
    (void)state;
    const int64_t n = 80 << 20;
    tt_st_item items[] = {{.name = "a", .dtype = TT_F32, .ndim = 2, .shape = {n / 1024, 768}},
                          {.name = "b", .dtype = TT_F32, .ndim = 2, .shape = {n / 1024, 256}}};
    tt_file file;
    tt_st_folder f;
    tt_read_result r;
    char folder[1100];
    snprintf(folder, sizeof folder, "%s", test_folder("reader-memory"));
    create(folder, items, 2, &file);
    tt_file_close(&file);
    assert_ok(tt_st_open_folder(folder, &f));
    int64_t before = peak_bytes();
    char *data = malloc((size_t)(2 * n));
    tt_read_span spans[] = {span_of(&f, "a", 0, n / 4 * 3, TT_BF16, data), span_of(&f, "b", 0, n / 4, TT_BF16, data + n / 4 * 6)};
    assert_ok(tt_read_spans(&f, spans, 2, 1, NULL, &r));
    int64_t grown = peak_bytes() - before;
    assert_int_equal(r.bytes, 4 * n);
    assert_true(r.memory <= TT_READ_MIN_THREADS * (TT_READ_REQUEST + ((int64_t)1 << 20)));
    if (grown > 2 * n + r.memory + n / 4)
        fail_msg("reading into %lld bytes with buffers of %lld took %lld bytes", (long long)(2 * n), (long long)r.memory,
                 (long long)grown);
    free(data);
    tt_st_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* first, since it looks at the most that the process has held */
        cmocka_unit_test(memory_is_what_is_owned_and_a_buffer),
        cmocka_unit_test(what_touches_is_read_at_once),
        cmocka_unit_test(any_ranges_of_any_types),
        cmocka_unit_test(fp8_ranges_are_dequantised),
        cmocka_unit_test(a_file_that_shrinks_is_named),
        cmocka_unit_test(progress_can_be_watched),
        cmocka_unit_test(experts_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
