/* trial.h - small random models on meshes of ranks that are threads, and one process to hold them against.
 *
 * The fixtures (fixture.h) say whether the models are right; trials say whether every mesh, placement of rows and way to
 * run computes the same. So their models need no files, and may have any shape.
 *
 * Functions that run on the threads of ranks return a status, since a failed assertion could not unwind there; those that
 * compare run on the main thread and fail the test. */
#ifndef TT_TESTS_SUPPORT_TRIAL_H
#define TT_TESTS_SUPPORT_TRIAL_H

#include "support/test.h"
#include "train/engine.h"

/* --- models -------------------------------------------------------------------------------------------------- */

/* The value to give an element of a parameter in place of `value`. Depends on its arguments alone, so that the weights
 * are the same on every mesh. */
typedef float (*trial_edit)(const tt_param *p, int64_t element, float value);

typedef struct trial_model {
    const char *name;
    const char *config; /* config.json */
    trial_edit edit;    /* NULL: trial_liven */
    bool ties;          /* scores may tie or nearly tie: choices are not checked for being clear */
} trial_model;

/* Norms about 1 and biases about 0 instead of exactly, matrices as they are. */
float trial_liven(const tt_param *p, int64_t element, float value);
/* Livened; the router's weights are 0, so all scores tie. */
float trial_all_tie(const tt_param *p, int64_t element, float value);
/* Livened; every token chooses the last expert first. For untied softmax models with a wide embedding. */
float trial_all_last(const tt_param *p, int64_t element, float value);
/* Livened; experts e and e + 3 have equal router rows. */
float trial_triples(const tt_param *p, int64_t element, float value);
/* As initialised. */
float trial_plain(const tt_param *p, int64_t element, float value);

/* Odd shapes of every family: experts that do not divide, K = E, K = 1, a vocabulary and vectors smaller than the
 * world, one layer, dense layers between MoE layers, shared experts, tied and untied. */
extern const trial_model trial_models[];
extern const int trial_num_models;
const trial_model *trial_find_model(const char *name);

/* A model's configuration and table, where its parameters stand when they are laid end to end, and one such array. */
typedef struct trial_shape {
    const trial_model *model;
    tt_model_config config;
    tt_model_table table;
    int64_t *begin; /* [parameters + 1] */
    int64_t total;
} trial_shape;
tt_status trial_shape_open(const trial_model *model, trial_shape *s);
void trial_shape_close(trial_shape *s);

/* --- meshes -------------------------------------------------------------------------------------------------- */

typedef struct trial_mesh {
    int world, ep, tp;
    tt_dispatch_kind dispatch;
} trial_mesh;
/* An initialiser with the defaults. */
#define TRIAL_MESH(world, ep)                                                                                        \
    {                                                                                                                \
        world, ep, 1, TT_DISPATCH_ALLTOALL                                                                           \
    }
/* Worlds of 1, 2, 3, 4, 5, 6 and 8 ranks with every ep_size that divides them. */
extern const trial_mesh trial_meshes[];
extern const int trial_num_meshes;
bool trial_mesh_fits(const trial_shape *s, trial_mesh mesh);

/* A mesh's world and ep_size with every tp_size and dispatcher that tt_mesh_resolve allows: out [TRIAL_MAX_VARIANTS],
 * returns how many; 0 when the model has too few experts. Over trial_meshes these are all meshes there are. */
enum { TRIAL_MAX_VARIANTS = 16 };
int trial_variants(trial_mesh mesh, int64_t num_experts, trial_mesh *out);
/* The variants take turns; `mesh` itself when there is none. */
trial_mesh trial_turn(const trial_shape *s, trial_mesh mesh, int turn);
/* "world 4, tp 2, ep 2, allreduce". Buffer of this thread. */
const char *trial_mesh_name(trial_mesh mesh);

/* How to run. Zeros are defaults. */
typedef struct trial_run {
    const trial_model *model;
    trial_mesh mesh;
    const tt_ops *ops; /* NULL: tt_ops_ref */
    bool bf16_weights; /* resident BF16 */
    bool bf16_compute;
    bool bf16_moments;
    bool keep_all; /* no recomputation */
    int64_t loss_chunk;
    int64_t booked;
    int threads;
    bool otherwise;     /* see trial_on_mesh */
    const char *folder; /* load from there instead of initialising; no edits */
} trial_run;

/* Tests of every model on every mesh, named after both: with TT_FULL on each variant of it; else on one, by turns, and of
 * models and meshes one of `thin`. The state of a test is its trial_entry. Returns how many. Call it once. */
typedef struct trial_entry {
    int model, turn; /* turns what must not matter; neighbours differ */
    trial_mesh mesh;
} trial_entry;
enum { TRIAL_MAX_TESTS = 4096 };
size_t trial_tests(CMUnitTestFunction test, int thin, struct CMUnitTest *tests);

/* Runs body on every rank, with the model, gradients and moments. By turns of meshes and models the ranks share memory or send
 * messages (tt_shared_possible), and `otherwise` the other way; the results have the same bits. TARTAN_SHARED in the
 * environment decides for all. */
tt_status trial_on_mesh(const trial_run *run, tt_status (*body)(tt_engine *e, void *arg), void *arg);

/* --- batches ------------------------------------------------------------------------------------------------- */

enum { TRIAL_MAX_ROWS = 16, TRIAL_MAX_LENGTH = 16, TRIAL_MAX_MICROS = 16 };

typedef enum trial_row_kind {
    TRIAL_PLAIN,    /* 7 tokens */
    TRIAL_LEFT_PAD, /* 3 masked, 6 kept */
    TRIAL_HOLES,    /* masked tokens in between */
    TRIAL_SOME,     /* 13 tokens of which few are targets */
    TRIAL_NO_LABEL,
    TRIAL_ONE, /* one token: never a target */
    TRIAL_TWO,
    TRIAL_PACKED, /* three documents in a row of 12 */
    TRIAL_MASKED, /* nothing kept */
    TRIAL_REPEAT  /* one token eight times */
} trial_row_kind;

/* Rows, and the rank and micro-step that each belongs to. Ranks that share a batch count as one here. */
typedef void (*trial_place)(int row, trial_mesh mesh, int *rank, int *micro);

typedef struct trial_plan {
    const char *name;
    const trial_row_kind *kinds;
    int num_rows, num_micros;
    trial_place place; /* rank is taken modulo fsdp_size */
} trial_plan;

typedef struct trial_batch {
    const trial_plan *plan;
    int num_rows, num_micros;
    tt_batch_row rows[TRIAL_MAX_ROWS];
    int32_t numbers[TRIAL_MAX_ROWS][4][TRIAL_MAX_LENGTH];
} trial_batch;

extern const trial_plan trial_plans[];
extern const int trial_num_plans;
const trial_plan *trial_find_plan(const char *name);
void trial_spread(int row, trial_mesh mesh, int *rank, int *micro);

/* Rows of a plan; the same for the same seed. */
void trial_batch_make(const trial_plan *plan, int64_t vocab_size, uint64_t seed, trial_batch *b);

/* Expert choices by place in the batch: [MoE layer][row][column][K]. */
typedef struct trial_choices {
    int K, layers;
    int32_t *at;
} trial_choices;
tt_status trial_choices_open(const trial_shape *s, trial_choices *c);
int32_t *trial_choice(const trial_choices *c, int layer, int row, int column);

/* This rank's micro-steps of a batch; joint: all rows in one. Free each with tt_batch_free. */
tt_status trial_micros(const tt_engine *e, const trial_batch *b, bool joint, tt_batch *micros, int *num);

/* --- one step ------------------------------------------------------------------------------------------------ */

/* What all ranks together computed; ranks write disjoint parts. Start from trial_result_open. */
typedef struct trial_result {
    double nll, balance, norm;
    int64_t targets;
    float *gradients; /* [total of the shape] */
    trial_choices choices;
} trial_result;
tt_status trial_result_open(const trial_shape *s, trial_result *r);
void trial_result_close(trial_result *r);

/* Zero gradients, then forward and backward of a batch with scale 1/N; everything collected in *out. balance: weight in
 * each micro-step. replay: choices to use, or NULL. Collective. */
tt_status trial_gradients(tt_engine *e, const trial_shape *s, const trial_batch *b, bool joint, double balance,
                          const trial_choices *replay, trial_result *out);

/* Every element that this rank owns into its place of `out`. Local. */
void trial_collect(const tt_engine *e, const trial_shape *s, tt_shard_part part, float *out);
/* The other way: weights from their places in `weights`, and moments zero. Local. */
void trial_restart(tt_engine *e, const trial_shape *s, const float *weights);

#define TRIAL_CLEAR 1e-5 /* rounding moves scores of about 1 by some 1e-6 */

/* A tap (user: a trial_watch of a world of one, in float) that finds the least distance by which an expert or a group was
 * chosen. Start with gap INFINITY. */
typedef struct trial_watch {
    const tt_engine *engine;
    double gap;
} trial_watch;
void trial_watch_gap(void *user, const char *what, int layer, tt_mat m);

/* One process on the reference kernels. joint: all rows in one micro-step. Checks that choices of experts are clear,
 * unless the model has ties. */
void trial_reference(const trial_shape *s, const trial_batch *b, bool joint, double balance, trial_result *out);

/* --- comparison, on the main thread -------------------------------------------------------------------------- */

/* Per tensor: difference at most `tolerance` times its norm and 1e-6 times that of the largest tensor; an expert that is all
 * zeros in `expected`, since it had no token: all zeros. The second part is for gradients that are small differences of
 * large terms, such as those of queries in rows of two tokens, or of equal tokens, which are 0 in theory: the terms are of
 * the size of other gradients, and each of dozens is rounded at 2^-24. Frozen parameters are left out. */
void trial_compare(const trial_shape *s, const char *what, const float *got, const float *expected, double tolerance);
/* Every bit. */
void trial_same_bits(const trial_shape *s, const char *what, const float *got, const float *expected);
/* The same sets of experts. */
void trial_compare_choices(const char *what, const trial_choices *got, const trial_choices *expected);

#endif
