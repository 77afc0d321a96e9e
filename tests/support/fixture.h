/* fixture.h - the model fixtures (tests/fixtures/README.md): what the Python library computes for tiny models, and the
 * comparison of what a mesh computes with it.
 *
 * Functions here run on the threads of ranks, where a failed assertion could not unwind: they return a status whose message
 * says what differs, and the test asserts that it is TT_OK. */
#ifndef TT_TESTS_SUPPORT_FIXTURE_H
#define TT_TESTS_SUPPORT_FIXTURE_H

#include "train/engine.h"

/* One way to run a fixture. */
typedef struct fixture_run {
    const char *id;      /* "O1" */
    const char *model;   /* folder to load from when not id's own, e.g. "O1-sharded/model" */
    const tt_ops *ops;
    int world, ep;
    int tp;              /* 0: 1 */
    tt_dispatch_kind dispatch;
    bool recompute;
    int64_t loss_chunk;  /* 0: default */
    int64_t booked;      /* received pairs per exchange round, 0: default */
    bool row_micros;     /* each rank's rows one by one, as micro-steps of their own */
    const char *as_saved; /* other configuration file to use */
} fixture_run;

/* What a rank works with inside a run. */
typedef struct fixture {
    const fixture_run *run;
    tt_comm *comm;
    tt_engine engine;
    char folder[512]; /* tests/fixtures/ID */
} fixture;

/* Runs body on every rank of run->world ranks that are threads, with the model loaded and gradients allocated. */
tt_status fixture_on_mesh(const fixture_run *run, tt_status (*body)(fixture *f, void *arg), void *arg);

/* Reads FOLDER/NAME as JSON. */
tt_status fixture_json(const fixture *f, const char *name, json_t **out);

/* This rank's rows of a batch object, as one micro-step or as one per row (the same number on all ranks).
 * micros [*num]; free with fixture_free_micros. */
tt_status fixture_micros(const fixture *f, const json_t *batch, const char *where, tt_batch **micros, int *num);
void fixture_free_micros(tt_batch **micros, int num);

/* Forward and backward of the micros with scale 1/N; sums over all ranks, micros' balance losses added up. */
typedef struct fixture_sums {
    int64_t targets;
    double nll, balance;
} fixture_sums;
tt_status fixture_gradients(fixture *f, tt_batch *micros, int num, double balance, fixture_sums *out);

/* Step k (from 0) of train.json: its micro-batches, each of which row_micros cuts into rows, and the update that *o asks
 * for as step k + 1. */
tt_status fixture_step(fixture *f, const json_t *train, int k, tt_step_options o, tt_step_result *out);

/* Gradient shards against tensors "grad.<name>" of `expected`: relative `tolerance` in norm per tensor; tensors below
 * 1e-6 of the largest norm absolute 1e-6 per element. Collective. */
tt_status fixture_compare_gradients(fixture *f, const tt_st_folder *expected, double tolerance);

/* Weight shards against tensors "<name>" of `expected`, absolute per element, leaving out the flat indices that `skip`
 * lists by tensor name (may be NULL). Local. */
tt_status fixture_compare_weights(fixture *f, const tt_st_folder *expected, double tolerance, const json_t *skip);

/* max |a - b| over n <= tolerance, naming `what` and the place; NaN fails. */
tt_status fixture_compare(const char *what, const float *got, const float *expected, int64_t n, double tolerance);

#endif
