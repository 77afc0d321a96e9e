/* mat.h - a view of a row-major matrix: it owns nothing and is passed by value.
 *
 * Shape letters used throughout:
 *   T tokens of a micro-step, D model width ("hidden_size"), V vocabulary, F width of an MLP or an expert,
 *   E experts, K experts chosen per token, R rows received by a rank, P pairs (received row, local expert),
 *   N query heads, G key/value heads. A gradient is named d + name: dx_TD is the gradient of x_TD.
 */
#ifndef TT_TENSOR_MAT_H
#define TT_TENSOR_MAT_H

#include "tensor/dtype.h"

typedef struct tt_mat {
    void *data;
    tt_dtype dtype;
    int64_t rows, cols;
    int64_t ld; /* elements from one row to the next, >= cols */
} tt_mat;

static inline tt_mat tt_mat_of(void *data, tt_dtype dtype, int64_t rows, int64_t cols)
{
    return (tt_mat){data, dtype, rows, cols, cols};
}

static inline void *tt_mat_row(tt_mat m, int64_t row)
{
    return (char *)m.data + (size_t)(row * m.ld) * tt_dtype_size(m.dtype);
}

/* Rows [begin, end). */
static inline tt_mat tt_mat_rows(tt_mat m, int64_t begin, int64_t end)
{
    return (tt_mat){tt_mat_row(m, begin), m.dtype, end - begin, m.cols, m.ld};
}

/* The same contiguous elements seen as rows of another width: [T, N*H] as [T*N, H]. */
static inline tt_mat tt_mat_reshape(tt_mat m, int64_t cols)
{
    return (tt_mat){m.data, m.dtype, m.rows * m.cols / cols, cols, cols};
}

#endif
