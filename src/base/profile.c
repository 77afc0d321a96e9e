#include "base/profile.h"
#include "base/arena.h"
#include "base/checked.h"

#include <omp.h>
#include <stdlib.h>

const char *tt_phase_name(tt_phase p)
{
    static const char *const names[] = {
#define X(name, text, what) text,
        TT_PHASE_MAP(X)
#undef X
    };
    return names[p];
}

const char *tt_stage_name(tt_stage s)
{
    static const char *const names[] = {"between", "forward", "backward", "recompute", "optimizer"};
    return names[s];
}

/* --- sums ------------------------------------------------------------------------------------------------------ */

double tt_times_phase(const tt_times *t, tt_phase p)
{
    double sum = 0;
    for (int s = 0; s < TT_NUM_STAGES; s++) sum += t->seconds[s][p];
    return sum;
}

double tt_times_stage(const tt_times *t, tt_stage s)
{
    double sum = 0;
    for (int p = 0; p < TT_NUM_PHASES; p++) sum += t->seconds[s][p];
    return sum;
}

double tt_times_sum(const tt_times *t)
{
    double sum = 0;
    for (int s = 0; s < TT_NUM_STAGES; s++) sum += tt_times_stage(t, (tt_stage)s);
    return sum;
}

void tt_times_add(tt_times *a, const tt_times *b)
{
    for (int s = 0; s < TT_NUM_STAGES; s++)
        for (int p = 0; p < TT_NUM_PHASES; p++) a->seconds[s][p] += b->seconds[s][p];
}

/* --- life ------------------------------------------------------------------------------------------------------ */

tt_status tt_profile_create(int threads, int64_t events, tt_profile **out)
{
    void *memory;
    *out = NULL;
    TT_ASSERT(threads >= 1 && events >= 1);
    tt_profile *p = calloc(1, sizeof *p);
    TT_CHECK(p, TT_ENOMEM, "out of memory for the profile");
    *p = (tt_profile){.phase = TT_PHASE_OTHER, .at = tt_seconds(), .num_threads = threads, .capacity = events};
    tt_status status = tt_alloc("profile", threads, sizeof *p->threads, &memory);
    if (status == TT_OK) p->threads = memory;
    for (int t = 0; t < threads && status == TT_OK; t++) {
        status = tt_alloc("events of the profile", events, sizeof(tt_event), &memory);
        if (status == TT_OK) p->threads[t].at = memory;
    }
    if (status != TT_OK) tt_profile_destroy(&p);
    *out = p;
    return status;
}

void tt_profile_destroy(tt_profile **p)
{
    if (!*p) return;
    for (int t = 0; (*p)->threads && t < (*p)->num_threads; t++) tt_free((*p)->threads[t].at);
    tt_free((*p)->threads);
    free(*p);
    *p = NULL;
}

/* --- events ---------------------------------------------------------------------------------------------------- */

void tt_profile_add_event(tt_profile *p, int thread, tt_event e)
{
    if (thread >= p->num_threads) return;
    tt_events *own = &p->threads[thread];
    if (own->num < p->capacity)
        own->at[own->num++] = e;
    else
        own->left_out++;
}

void tt_profile_add_span(const tt_span *s)
{
    tt_profile_add_event(s->profile, omp_get_thread_num(), (tt_event){s->name, 0, s->begin, tt_seconds()});
}

/* --- phases ---------------------------------------------------------------------------------------------------- */

/* The time since the last change belongs to what was entered then. */
static double charge(tt_profile *p)
{
    double now = tt_seconds();
    p->times.seconds[p->stage][p->phase] += now - p->at;
    p->at = now;
    return now;
}

tt_scope tt_profile_enter(tt_profile *p, tt_phase phase, tt_stage stage, const char *name)
{
    tt_scope s = {p, name, charge(p), p->phase, p->stage};
    p->phase = phase;
    p->stage = stage;
    return s;
}

void tt_profile_leave(tt_scope *s)
{
    tt_profile *p = s->profile;
    double now = charge(p);
    p->phase = s->phase;
    p->stage = s->stage;
    tt_profile_add_event(p, 0, (tt_event){s->name, 0, s->begin, now});
}

void tt_profile_step_begin(tt_profile *p, int64_t number)
{
    p->step_begin = charge(p);
    p->step = number;
    p->times = (tt_times){0}; /* what was between steps is in the events alone */
}

tt_times tt_profile_step_end(tt_profile *p)
{
    double now = charge(p);
    tt_profile_add_event(p, 0, (tt_event){"step", p->step, p->step_begin, now});
    p->step = 0;
    return p->times;
}
