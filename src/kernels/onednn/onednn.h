/* onednn.h - what a context of tt_ops_onednn keeps. */
#ifndef TT_KERNELS_ONEDNN_ONEDNN_H
#define TT_KERNELS_ONEDNN_ONEDNN_H

#include "kernels/cpu/cpu.h"

#include <dnnl.h>

/* A product C = A B reads row-major views: FORWARD y = x w^T, INPUT dx = dy w, WEIGHT dw = dy^T x. */
typedef enum tt_onednn_form { TT_ONEDNN_FORWARD, TT_ONEDNN_INPUT, TT_ONEDNN_WEIGHT, TT_ONEDNN_FORMS } tt_onednn_form;

typedef struct tt_onednn {
    tt_cpu cpu; /* first: the ops of tt_ops_cpu find their own state here */
    tt_ops ops; /* cpu.ops, with the products of this backend over them */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t product[2][TT_ONEDNN_FORMS][2]; /* operands are BF16, form, adds to C; NULL where not used */
    /* The machine has instructions for products of BF16, the library uses them; else operands are widened to F32. */
    bool has_bf16, bf16;
    /* Products of fewer multiply-adds, and gradients of weights from fewer rows, are tt_ops_cpu's. */
    int64_t smallest, shallowest;
    int64_t block; /* elements of B that are widened at a time */
} tt_onednn;

#endif
