/* ref_f32.c - the definition of every op: float elements, sums in double, in ascending order. */
#include "tensor/dtype.h"

#define TABLE     tt_ops_ref
#define NAME      "ref"
#define REAL      TT_F32
#define ACC       TT_F64
#define BACKWARDS 0
typedef float real;
typedef double acc;

#include "kernels/ref/ref.inc"
