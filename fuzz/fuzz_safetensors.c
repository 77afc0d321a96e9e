/* fuzz_safetensors.c - bytes from anywhere as the weights of a model folder.
 *
 * The input is a safetensors file, or, when it begins with '{', the index of a folder whose two files are good. It is opened
 * alone and as a folder, matched against the table of a tiny model, and what was accepted is read: with ranges at both ends
 * of every tensor, and, when the model matches, whole into the places of its parameters. Nothing may crash, hang, or take
 * more memory than the header warrants; every refusal must have a message.
 *
 * Built in two ways: `make fuzz` with clang's libFuzzer, and into tests/checkpoint/test_fuzz.c, which runs it over
 * fuzz/corpus/safetensors: there accept-* are inputs that must be taken, refuse-* must not, and what fuzzing found is kept.
 */
#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/load.h"
#include "model/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tiny_config[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 3, \"hidden_size\": 4, \"num_hidden_layers\": 1,"
    "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 2, \"num_experts\": 2,"
    "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": 2, \"tie_word_embeddings\": true, \"dtype\": \"bfloat16\"}";

enum { MOST_READ = 1 << 16 };

static char folder[64]; /* one for the process, made at the first input */

static void remove_folder(void)
{
    static const char *const names[] = {TT_ST_MODEL_FILE, TT_ST_INDEX_FILE, "a.safetensors", "b.safetensors"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void put(const char *name, const void *data, size_t size)
{
    char path[128];
    tt_file f;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    tt_status status = tt_file_create(&f, path, 0);
    if (status == TT_OK) status = tt_file_write_at(&f, 0, data, size);
    TT_ASSERT(status == TT_OK);
    tt_file_close(&f);
}

/* The files that an index may list: one tensor of two bytes each. */
static void put_small_file(const char *file, const char *tensor)
{
    char text[200] = "........";
    int n = snprintf(text + 8, sizeof text - 8, "{\"%s\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}", tensor);
    memcpy(text, &(uint64_t){(uint64_t)n}, 8);
    put(file, text, 8 + (size_t)n + 2);
}

static void make_folder(void)
{
    tt_log_set_level(TT_LOG_SILENT);
    if (*folder) return;
    snprintf(folder, sizeof folder, "%s/tartan-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    TT_ASSERT(mkdtemp(folder));
    atexit(remove_folder);
    put_small_file("a.safetensors", "a");
    put_small_file("b.safetensors", "b");
}

/* Both ends of every tensor, as it lies and as F32. */
static void read_ends(const tt_st_folder *f)
{
    static char data[MOST_READ * 8];
    for (int64_t i = 0; i < f->num_tensors; i++) {
        const tt_st_tensor *t = &f->tensors[i];
        int64_t count, n;
        TT_ASSERT(tt_st_size(t->dtype, t->ndim, t->shape, &count, NULL));
        TT_ASSERT(tt_st_find(f, t->name) == t);
        n = tt_min_i64(count, 100);
        TT_ASSERT(tt_st_read(f, t, 0, n, t->dtype, data) == TT_OK);
        TT_ASSERT(tt_st_read(f, t, count - n, n, t->dtype, data) == TT_OK);
        TT_ASSERT(tt_st_read(f, t, 0, n, TT_F32, data) == (n == 0 || tt_dtype_is_weight(t->dtype) ? TT_OK : TT_EFORMAT));
    }
}

/* Every parameter of a model that matched, as one rank would load it. */
static void read_parameters(const tt_source *s, const tt_params *params)
{
    static float data[256];
    static tt_read_span spans[64];
    int64_t at = 0;
    tt_read_result r;
    TT_ASSERT(params->num <= 64 && tt_params_total(params) <= 256);
    for (int64_t i = 0; i < params->num; i++) {
        const tt_st_tensor *tensors = s->folder.tensors;
        spans[i] = (tt_read_span){&tensors[s->tensor[i]], s->scales[i] < 0 ? NULL : &tensors[s->scales[i]], s->first[i],
                                  params->at[i].count, TT_F32, data + at};
        at += params->at[i].count;
    }
    TT_ASSERT(tt_read_spans(&s->folder, spans, params->num, 1, NULL, &r) == TT_OK && r.elements == at);
}

static tt_status match(void)
{
    tt_model_config c;
    tt_model_table t;
    tt_source source;
    json_t *object = json_loads(tiny_config, 0, NULL);
    tt_status status = tt_model_config_read(object, "tiny", &c);
    json_decref(object);
    TT_ASSERT(status == TT_OK && tt_model_table_build(&c, &t) == TT_OK);
    status = tt_source_open(folder, &t.params, c.tied, &source);
    if (status == TT_OK) {
        read_parameters(&source, &t.params);
        tt_source_close(&source);
    }
    tt_model_table_free(&t);
    tt_model_config_free(&c);
    return status;
}

/* Whether the input is what it should be: an index that fits the two files, or a file. */
static tt_status try_input(const uint8_t *data, size_t size)
{
    bool index = size > 0 && data[0] == '{';
    char path[128];
    tt_st_folder f;
    make_folder();
    snprintf(path, sizeof path, "%s/%s", folder, index ? TT_ST_MODEL_FILE : TT_ST_INDEX_FILE);
    unlink(path); /* of the input before */
    put(index ? TT_ST_INDEX_FILE : TT_ST_MODEL_FILE, data, size);
    snprintf(path, sizeof path, "%s/" TT_ST_MODEL_FILE, folder);
    tt_status status = index ? tt_st_open_folder(folder, &f) : tt_st_open_file(path, &f);
    if (status == TT_OK) {
        read_ends(&f);
        tt_st_close(&f);
    }
    TT_ASSERT(status == TT_OK || *tt_error_text());
    tt_status matched = match();
    TT_ASSERT(matched == TT_OK || (status != TT_OK ? matched == status : matched == TT_EMISMATCH));
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_input(data, size);
    return 0;
}
