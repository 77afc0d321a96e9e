/* profile.h - where the time of a rank goes: seconds by phase, and what each of its threads did when.
 *
 * A phase is a scope, and scopes nest. Time belongs to the innermost one, so phases exclude each other and add up to the time
 * that has passed. Beside its phase every moment has a stage: the part of a step that it belongs to.
 *
 *   TT_PHASE(k->profile, ROUTER);                     from here to the end of the block
 *   TT_STAGE(k->profile, RECOMPUTE);                  likewise
 *   TT_SPAN(k->profile, __func__) STATEMENT           in a parallel region, on each of its threads: an event, no phase
 *
 * Without a profile (NULL) each of them is one test. With one, a scope costs two looks at the clock.
 *
 * Events - scopes of phases and stages, steps, spans of threads - are kept in memory that is booked at the start, the same
 * number for each thread; those that do not fit are counted and left out. One thread enters phases: the rank's own, which is
 * thread 0 of its teams. Threads of a team write to their own events alone.
 */
#ifndef TT_BASE_PROFILE_H
#define TT_BASE_PROFILE_H

#include "base/clock.h"
#include "tartan/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* name, text, what it is: the order of reports */
#define TT_PHASE_MAP(X)                                                                                      \
    X(DATA, "data", "rows of the step into batches")                                                         \
    X(GATHER, "gather", "weights of a unit converted and put together")                                      \
    X(ROUTER, "router", "scores and choices of experts, and their gradients")                                \
    X(DISPATCH, "dispatch", "tokens to their experts and back: plan, permutation, exchange")                 \
    X(EXPERTS, "experts", "products and activation of routed experts")                                       \
    X(MLP, "mlp", "the same of dense layers and shared experts")                                             \
    X(ATTENTION, "attention", "attention with its projections")                                              \
    X(HEAD, "head", "final norm, output matrix and loss")                                                    \
    X(REDUCE, "reduce", "gradients of a unit summed over ranks")                                             \
    X(OPTIMIZER, "optimizer", "gradients zeroed, their norm, the update")                                    \
    X(WAITING, "waiting", "blocked in communication, of whatever phase")                                     \
    X(OTHER, "other", "embedding, norms, rotation, residuals, all else")

typedef enum tt_phase {
#define X(name, text, what) TT_PHASE_##name,
    TT_PHASE_MAP(X)
#undef X
    TT_NUM_PHASES
} tt_phase;

typedef enum tt_stage {
    TT_STAGE_BETWEEN, /* data, counts and sums of a step */
    TT_STAGE_FORWARD,
    TT_STAGE_BACKWARD,
    TT_STAGE_RECOMPUTE, /* forward once more, inside backward */
    TT_STAGE_OPTIMIZER, /* whatever is in that phase */
    TT_NUM_STAGES
} tt_stage;

const char *tt_phase_name(tt_phase p); /* "data" */
const char *tt_stage_name(tt_stage s); /* "forward" */

/* Seconds of one rank. */
typedef struct tt_times {
    double seconds[TT_NUM_STAGES][TT_NUM_PHASES];
} tt_times;
double tt_times_phase(const tt_times *t, tt_phase p);
double tt_times_stage(const tt_times *t, tt_stage s);
double tt_times_sum(const tt_times *t);
/* a += b. */
void tt_times_add(tt_times *a, const tt_times *b);

typedef struct tt_event {
    const char *name; /* static */
    int64_t number;   /* of a step; 0: none */
    double begin, end; /* tt_seconds */
} tt_event;

/* Those of one thread, in the order in which they ended. */
typedef struct tt_events {
    tt_event *at;
    int64_t num, left_out;
} __attribute__((aligned(64))) tt_events;

#define TT_PROFILE_EVENTS 65536 /* 2 MiB for each thread, touched as they come */

typedef struct tt_profile {
    tt_phase phase;
    tt_stage stage;
    double at;         /* the time until then has been given away */
    double step_begin;
    int64_t step;      /* its number; 0: between steps */
    tt_times times;    /* since the step began */
    int num_threads;
    int64_t capacity;  /* events of a thread */
    tt_events *threads;
} tt_profile;

/* tt_profile_create - for a rank whose teams have up to `threads` threads, each with room for `events`. Local. */
tt_status tt_profile_create(int threads, int64_t events, tt_profile **out);
/* Accepts NULL inside. */
void tt_profile_destroy(tt_profile **p);

/* tt_profile_step - a step begins; its end gives its times. Outside of scopes, and p may not be NULL. */
void tt_profile_step_begin(tt_profile *p, int64_t number);
tt_times tt_profile_step_end(tt_profile *p);

/* --- scopes --------------------------------------------------------------------------------------------------- */

typedef struct tt_scope {
    tt_profile *profile; /* NULL: nothing to leave */
    const char *name;
    double begin;
    tt_phase phase; /* those of the scope around it */
    tt_stage stage;
} tt_scope;

tt_scope tt_profile_enter(tt_profile *p, tt_phase phase, tt_stage stage, const char *name);
void tt_profile_leave(tt_scope *s);
void tt_profile_add_event(tt_profile *p, int thread, tt_event e);

/* A phase inside itself is no scope of its own, nor is a stage. */
static inline tt_scope tt_phase_enter(tt_profile *p, tt_phase phase)
{
    if (!p || p->phase == phase) return (tt_scope){0};
    return tt_profile_enter(p, phase, phase == TT_PHASE_OPTIMIZER ? TT_STAGE_OPTIMIZER : p->stage, tt_phase_name(phase));
}

static inline tt_scope tt_stage_enter(tt_profile *p, tt_stage stage)
{
    if (!p || p->stage == stage) return (tt_scope){0};
    return tt_profile_enter(p, p->phase, stage, tt_stage_name(stage));
}

static inline void tt_scope_leave(tt_scope *s)
{
    if (s->profile) tt_profile_leave(s);
}

#define TT_SCOPE_NAME_(line) tt_scope_##line
#define TT_SCOPE_NAME(line)  TT_SCOPE_NAME_(line)
#define TT_SCOPE             tt_scope TT_SCOPE_NAME(__LINE__) __attribute__((cleanup(tt_scope_leave), unused))

#define TT_PHASE(profile, phase) TT_SCOPE = tt_phase_enter((profile), TT_PHASE_##phase)
#define TT_STAGE(profile, stage) TT_SCOPE = tt_stage_enter((profile), TT_STAGE_##stage)

/* --- threads of a team ---------------------------------------------------------------------------------------- */

typedef struct tt_span {
    tt_profile *profile;
    const char *name;
    double begin;
    bool open;
} tt_span;

static inline tt_span tt_span_begin(tt_profile *p, const char *name)
{
    return (tt_span){p, name, p ? tt_seconds() : 0, true};
}

/* As the calling thread of the innermost parallel region. */
void tt_profile_add_span(const tt_span *s);

static inline bool tt_span_end(const tt_span *s)
{
    if (s->profile) tt_profile_add_span(s);
    return false;
}

/* Runs the statement behind it once. `name` is static. */
#define TT_SPAN(profile, name)                                                                               \
    for (tt_span span_ = tt_span_begin((profile), (name)); span_.open; span_.open = tt_span_end(&span_))

#endif
