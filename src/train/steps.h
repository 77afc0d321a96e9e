/* steps.h - how many steps a run has, and which rows make up each micro-batch.
 *
 * An epoch's order (data/sampler.h) is cut into batches of `batch` rows; rank r of R = fsdp_size takes
 * batches r, r + R, r + 2R, ... Micro-batch m of the epoch is batch m R + r on rank r, and G micro-batches
 * make a step; the last step of an epoch may have fewer, it never goes on into the next epoch.
 *
 *   7 rows, batch 2, R = 2, G = 1:      micro 0              micro 1
 *                             rank 0    0 1                  4 5
 *                             rank 1    2 3                  6 and, only with even_batches, 0
 *
 * A last round that is not full: with drop_last it is left out. Otherwise ranks have fewer rows or none, so
 * that no row is trained twice; with even_batches and R > 1 it is filled from the start of the epoch's order,
 * around and around, as the common sampler does.
 *
 * Pure functions of numbers, the same on every rank; nothing is stored per row or per step.
 */
#ifndef TT_TRAIN_STEPS_H
#define TT_TRAIN_STEPS_H

#include "tartan/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tt_steps {
    /* given */
    int64_t rows;         /* after preparation; a packed row is one */
    int64_t batch;        /* rows of a micro-batch on a rank */
    int64_t ranks;        /* fsdp_size */
    int64_t accumulation; /* micro-batches of a full step */
    double epochs;        /* num_train_epochs, may be a fraction */
    int64_t max_steps;    /* > 0: used instead of epochs */
    bool drop_last, even_batches;
    /* filled in by tt_steps_init */
    int64_t micro_batches; /* of an epoch, the same on every rank */
    int64_t steps_per_epoch;
    int64_t total;        /* steps of the run */
    int64_t train_epochs; /* epochs that the run begins */
} tt_steps;

/* tt_steps_init - fill in the rest. TT_EDATA when there is no micro-batch at all, with the numbers and the
 * remedy; TT_ECONFIG for sizes below 1 or beyond what can be counted. Local. */
tt_status tt_steps_init(tt_steps *s);

/* The micro-batches of optimizer step `step`, 0 <= step < total: first .. first + count - 1 of epoch `epoch`. */
typedef struct tt_step_span {
    int64_t epoch, first, count;
} tt_step_span;
tt_step_span tt_steps_span(const tt_steps *s, int64_t step);

/* tt_steps_rows - the rows of micro-batch `micro` of an epoch on fsdp rank `rank`, as positions in the
 * epoch's order: positions[batch] is filled from the start, the count (0 .. batch) returned. */
int64_t tt_steps_rows(const tt_steps *s, int64_t micro, int64_t rank, int64_t *positions);

/* tt_steps_epoch - the epoch of log records after `done` steps:
 * epochs finished plus the finished share of this one. */
double tt_steps_epoch(const tt_steps *s, int64_t done);

/* tt_steps_interval - what logging_steps, eval_steps, save_steps mean: the number itself from 1 on, below 1 a
 * share of all steps, rounded up. At least 1. */
int64_t tt_steps_interval(double value, int64_t total);

#endif
