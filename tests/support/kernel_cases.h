/* kernel_cases.h - one description per op and shape, for every backend: build inputs, run forward, run backward.
 *
 * The same descriptions serve finite differences, the comparison of backends, and the search for writes
 * outside of the output: every matrix lies in a buffer of NaN, its rows are longer than its columns where the
 * op allows it, and outputs hold NaN until the op writes them, so whatever reads what nobody wrote, or leaves
 * something unwritten, shows.
 */
#ifndef TT_TESTS_SUPPORT_KERNEL_CASES_H
#define TT_TESTS_SUPPORT_KERNEL_CASES_H

#include "kernels/ops.h"

typedef struct kernel_case kernel_case;

enum { CASE_MATS = 5 };

typedef struct kernel_rig {
    const kernel_case *c;
    tt_kernel *k;
    tt_dtype real, compute;
    tt_mat in[CASE_MATS], din[CASE_MATS]; /* inputs and their gradients; din.data NULL: the op gives none */
    double base[CASE_MATS];               /* what din holds before backward, for ops that add; 0: NaN */
    int num_in;
    tt_mat out[CASE_MATS], dout[CASE_MATS]; /* outputs and the gradients given; dout.data NULL: not differentiated */
    int num_out;
    tt_mat extra[2]; /* tables */
    void *rstd;
    int32_t *ids; /* look-ups, choices or targets */
    int64_t *offset;
    tt_docs docs;
    tt_mat *weights, *views;
    double *factors;
    bool replay; /* routers: keep the choice of the run before */
    uint64_t seed;
    struct rig_buffer *buffers;
    int num_buffers;
} kernel_rig;

enum case_flags {
    CASE_BIAS = 1,
    CASE_ACCUMULATE = 2,
    CASE_ALIAS = 4,
    CASE_INTERLEAVED = 8,
    CASE_GATED = 16,
    CASE_NORMALISE = 32,
    CASE_BF16 = 64, /* parameters or moments in bf16, whatever the compute type */
    CASE_NARROW = 128, /* results in the compute type, as far as models ask for that */
};

struct kernel_case {
    const char *name;
    void (*build)(kernel_rig *r);
    void (*forward)(kernel_rig *r);
    void (*backward)(kernel_rig *r); /* may be NULL */
    int64_t size[8];                 /* as the op's build names them */
    int flags;
    int64_t terms; /* length of the longest sum, or more: what rounding grows with */
};

extern const kernel_case kernel_cases[];
extern const int num_kernel_cases;

/* A case of the list in another size. */
typedef struct kernel_resized {
    const char *like;
    int64_t size[8], terms;
} kernel_resized;
/* Number i of the list, and behind the list of those of `more`. */
kernel_case kernel_case_of(const kernel_resized *more, int i);

/* A rig whose inputs depend on the case alone (up to rounding to the types). compute: BF16, F32 or F64. */
kernel_rig *kernel_rig_create(const kernel_case *c, const tt_ops *ops, tt_dtype compute, int threads);
void kernel_rig_destroy(kernel_rig **r);

void kernel_rig_forward(kernel_rig *r);
void kernel_rig_backward(kernel_rig *r);
/* sum of dout * out; *magnitude = sum of |dout * out|. */
double kernel_rig_objective(const kernel_rig *r, double *magnitude);
/* Fails the test when anything outside of a matrix was written. */
void kernel_rig_check_guards(const kernel_rig *r);

/* All outputs and gradients of a case against the reference's, within rounding; `what` says who computed. */
void kernel_rig_compare(const kernel_rig *got, const kernel_rig *expected, const char *what);
void kernel_same_bits(tt_mat a, tt_mat b, const kernel_case *c, const char *what);

/* Elements and matrices for tests of their own; matrices belong to the rig. */
double kernel_get(tt_mat m, int64_t row, int64_t col);
void kernel_set(tt_mat m, int64_t row, int64_t col, double x);
void kernel_set_all(tt_mat m, double x);
/* rows * cols, each row 3 elements apart from the next when `spaced`; NaN. */
tt_mat kernel_rig_mat(kernel_rig *r, tt_dtype type, int64_t rows, int64_t cols, bool spaced);
/* Normal numbers * spread + centre; the same for every type. Returns m. */
tt_mat kernel_rig_fill(kernel_rig *r, tt_mat m, double centre, double spread);

#endif
