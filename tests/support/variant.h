/* variant.h - a model folder taken apart and written anew in another form. All in memory: the models of tests are tiny.
 * Functions fail the test, so call them on its main thread. */
#ifndef TT_TESTS_SUPPORT_VARIANT_H
#define TT_TESTS_SUPPORT_VARIANT_H

#include "checkpoint/safetensors.h"

enum { VARIANT_MAX = 512 };

typedef struct variant {
    int num;
    tt_st_item items[VARIANT_MAX]; /* names are owned */
    void *data[VARIANT_MAX];       /* owned */
    json_t *config;
} variant;

/* Tensors in the order of the folder's files, and config.json. */
void variant_read(const char *folder, variant *v);
/* Copies name and data; data NULL: zeros. */
void variant_add(variant *v, const char *name, tt_dtype type, int ndim, const int64_t *shape, const void *data);
int variant_find(const variant *v, const char *name); /* must be there */
void variant_remove(variant *v, const char *name);
/* One file and config.json in a folder, which is created. */
void variant_write(variant *v, const char *folder);
void variant_free(variant *v);

/* Experts of every layer into "mlp.experts.gate_up_proj" and "mlp.experts.down_proj", where the first of them was. */
void variant_stack(variant *v);

/* Every matrix but embedding, head and routers into F8_E4M3 in blocks of 128 x 128, its factors in `scales` (F32 or BF16)
 * behind it, and quantization_config; plain gets the same model with the F32 values that those blocks mean. v is F32. */
void variant_quantise(variant *v, tt_dtype scales, variant *plain);

#endif
