/* schedule.h - the course of the learning rate.
 *
 * Optimizer step k, the first being 1, uses tt_schedule_rate(s, k - 1). With T steps in all, w of warm-up and the
 * learning rate h, the factor is s / max(1, w) for s < w, and for s >= w, with p = (s - w) / max(1, T - w):
 *
 *   linear                      max(0, (T - s) / max(1, T - w))
 *   cosine                      max(0, (1 + cos(2 pi c p)) / 2)                num_cycles c = 0.5
 *   cosine_with_restarts        0 if p >= 1, else (1 + cos(pi frac(c p))) / 2  num_cycles c = 1
 *   polynomial                  ((h - e)(1 - p)^a + e) / h; e / h for s > T    lr_end e = 1e-7, below h; power a = 1
 *   constant                    1, without warm-up
 *   constant_with_warmup        1
 *   inverse_sqrt                1 / sqrt((s + t - w) / t)                      timescale t = w, or 10000
 *   cosine_with_min_lr          cosine * (1 - r) + r                           min_lr_rate r, or min_lr = r h;
 *                                                                              num_cycles c = 0.5
 *   cosine_warmup_with_min_lr   the same with p = (s - w + 1) / max(1, T - w); warm-up (s + 1) / max(1, w),
 *                               or with warmup_lr_rate u: u + (1 - u) s / max(1, w - 1)
 *   warmup_stable_decay         1 for num_stable_steps b (T - w - d), then a decay over num_decay_steps d (required),
 *                               then min_lr_ratio m = 0; warm-up and decay are y (1 - m) + m with y of warmup_type
 *                               (linear) and decay_type (cosine, with num_cycles): linear, cosine, 1-sqrt
 *
 * Pure functions of numbers, the same on every rank.
 */
#ifndef TT_TRAIN_SCHEDULE_H
#define TT_TRAIN_SCHEDULE_H

#include "tartan/status.h"

#include <jansson.h>
#include <stdint.h>

/* X(name, word, built) */
#define TT_SCHEDULE_MAP(X)                                                                                   \
    X(LINEAR, "linear", 1)                                                                                   \
    X(COSINE, "cosine", 1)                                                                                   \
    X(COSINE_WITH_RESTARTS, "cosine_with_restarts", 1)                                                       \
    X(POLYNOMIAL, "polynomial", 1)                                                                           \
    X(CONSTANT, "constant", 1)                                                                               \
    X(CONSTANT_WITH_WARMUP, "constant_with_warmup", 1)                                                       \
    X(INVERSE_SQRT, "inverse_sqrt", 1)                                                                       \
    X(COSINE_WITH_MIN_LR, "cosine_with_min_lr", 1)                                                           \
    X(COSINE_WARMUP_WITH_MIN_LR, "cosine_warmup_with_min_lr", 1)                                             \
    X(WARMUP_STABLE_DECAY, "warmup_stable_decay", 1)                                                         \
    X(REDUCE_LR_ON_PLATEAU, "reduce_lr_on_plateau", 0)                                                       \
    X(GREEDY, "greedy", 0)

typedef enum tt_schedule_kind {
#define X(name, word, built) TT_SCHEDULE_##name,
    TT_SCHEDULE_MAP(X)
#undef X
} tt_schedule_kind;

typedef enum tt_schedule_shape {
    TT_SHAPE_LINEAR,
    TT_SHAPE_COSINE,
    TT_SHAPE_ONE_MINUS_SQRT
} tt_schedule_shape;

typedef struct tt_schedule {
    tt_schedule_kind kind;
    double learning_rate;
    int64_t total, warmup; /* T, w */
    double num_cycles, power, lr_end, timescale;
    double floor;          /* r of the cosines, m of warmup_stable_decay */
    double warmup_lr_rate; /* NaN: not given */
    int64_t num_stable_steps, num_decay_steps;
    tt_schedule_shape warmup_shape, decay_shape;
} tt_schedule;

/* tt_schedule_init
 *   kwargs         parameters by name (lr_scheduler_kwargs), NULL or an empty object for none; null is not given
 *   total, warmup  T >= 1 and w >= 0
 * TT_ECONFIG names the parameter for one that the kind does not have, a wrong type, a missing or an impossible value,
 * and for a kind that is not built. Copies what it needs. Local. */
tt_status tt_schedule_init(tt_schedule *s, tt_schedule_kind kind, const json_t *kwargs, double learning_rate,
                           int64_t total, int64_t warmup);

/* tt_schedule_warmup - w of the key warmup_steps: the number itself from 1 on, below 1 a share of T, rounded up. */
int64_t tt_schedule_warmup(double warmup_steps, int64_t total);

/* The factor and the rate at s = step >= 0; also defined past the end. */
double tt_schedule_factor(const tt_schedule *s, int64_t step);
double tt_schedule_rate(const tt_schedule *s, int64_t step);

#endif
