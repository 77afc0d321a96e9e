/* ref_f64.c - the definition in double throughout, for finite differences: an error of 1e-16 in an op leaves
 * a derivative by central differences with 8 good digits or more. */
#include "tensor/dtype.h"

#define TABLE     tt_ops_ref_f64
#define NAME      "ref_f64"
#define REAL      TT_F64
#define ACC       TT_F64
#define BACKWARDS 0
typedef double real;
typedef double acc;

#include "kernels/ref/ref.inc"
