/* ref_alt.c - the same formulas a second time, as different as correct float32 may be: sums in float, each
 * from its last term to its first. How far its results lie from those of tt_ops_ref is what rounding alone
 * can do. */
#include "tensor/dtype.h"

#define TABLE     tt_ops_alt
#define NAME      "alt"
#define REAL      TT_F32
#define ACC       TT_F32
#define BACKWARDS 1
typedef float real;
typedef float acc;

#include "kernels/ref/ref.inc"
