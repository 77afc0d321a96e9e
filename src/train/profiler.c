#include "train/profiler.h"
#include "base/text.h"
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* On one host all processes have one clock. On several each counts from the moment at which it has heard of rank 0's. */
static tt_status agree_on_origin(tt_profiler *p)
{
    double origin = tt_seconds();
    TT_TRY(tt_barrier(tt_comm_world(p->comm), "profile"));
    TT_TRY(tt_broadcast(tt_comm_world(p->comm), "profile", 0, &origin, sizeof origin));
    p->origin = tt_comm_host_size(p->comm) == tt_comm_size(p->comm) ? origin : tt_seconds();
    return TT_OK;
}

tt_status tt_profiler_open(tt_profiler *p, tt_comm *comm, tt_kernel *kernel)
{
    *p = (tt_profiler){.comm = comm, .kernel = kernel};
    tt_status status = tt_profile_create(kernel->threads, TT_PROFILE_EVENTS, &p->profile);
    status = tt_agree(tt_comm_world(comm), "profile", status);
    if (status == TT_OK) status = agree_on_origin(p);
    if (status != TT_OK) {
        tt_profile_destroy(&p->profile);
        return status;
    }
    tt_comm_set_profile(comm, p->profile);
    kernel->profile = p->profile;
    return TT_OK;
}

void tt_profiler_stop(tt_profiler *p)
{
    if (!p->profile) return;
    tt_comm_set_profile(p->comm, NULL);
    p->kernel->profile = NULL;
}

void tt_profiler_close(tt_profiler *p)
{
    tt_profiler_stop(p);
    tt_profile_destroy(&p->profile);
}

/* --- sums ------------------------------------------------------------------------------------------------------- */

void tt_profiler_step_begin(tt_profiler *p, int64_t step)
{
    if (p->profile) tt_profile_step_begin(p->profile, step);
}

static void add(tt_profile_sums *s, const tt_times *t)
{
    s->steps++;
    tt_times_add(&s->times, t);
}

void tt_profiler_step_end(tt_profiler *p)
{
    if (!p->profile) return;
    tt_times t = tt_profile_step_end(p->profile);
    add(&p->record, &t);
    add(p->first.steps == 0 ? &p->first : &p->later, &t);
}

/* Seconds per step of all ranks. *out is owned by the caller (free). */
static tt_status gather(const tt_profiler *p, const tt_profile_sums *s, tt_times **out)
{
    tt_group *world = tt_comm_world(p->comm);
    tt_times mine = s->times;
    for (int i = 0; i < TT_NUM_STAGES; i++)
        for (int j = 0; j < TT_NUM_PHASES && s->steps > 0; j++) mine.seconds[i][j] /= (double)s->steps;
    *out = malloc((size_t)tt_comm_size(p->comm) * sizeof **out);
    tt_status status = *out ? TT_OK : tt_error_set(TT_ENOMEM, "out of memory for the profiles of %d ranks", tt_comm_size(p->comm));
    status = tt_agree(world, "profile", status);
    if (status == TT_OK) status = tt_allgather(world, "profile", &mine, *out, sizeof mine);
    if (status != TT_OK) {
        free(*out);
        *out = NULL;
    }
    return status;
}

/* --- records ---------------------------------------------------------------------------------------------------- */

/* "optimizer" is a stage and a phase: the phase leaves out what the stage waited. */
static json_t *object_of(const tt_times *t)
{
    json_t *stages = json_object(), *phases = json_object();
    for (int s = 0; s < TT_NUM_STAGES; s++)
        json_object_set_new(stages, tt_stage_name((tt_stage)s), json_real(tt_times_stage(t, (tt_stage)s)));
    for (int i = 0; i < TT_NUM_PHASES; i++)
        json_object_set_new(phases, tt_phase_name((tt_phase)i), json_real(tt_times_phase(t, (tt_phase)i)));
    return json_pack("{s:f, s:o, s:o}", "step", tt_times_sum(t), "stages", stages, "phases", phases);
}

tt_status tt_profiler_record(tt_profiler *p, json_t *record)
{
    tt_times *all;
    if (!p->profile) return TT_OK;
    TT_TRY(gather(p, &p->record, &all));
    json_t *ranks = json_array();
    for (int r = 0; r < tt_comm_size(p->comm); r++) json_array_append_new(ranks, object_of(&all[r]));
    json_object_set_new(record, "profile", json_pack("{s:I, s:o}", "steps", (json_int_t)p->record.steps, "ranks", ranks));
    free(all);
    p->record = (tt_profile_sums){0};
    return TT_OK;
}

/* --- the table -------------------------------------------------------------------------------------------------- */

static void add_rank(tt_profile_report *r, const tt_times *t, int rank)
{
    for (int i = 0; i < TT_NUM_PHASES; i++) {
        for (int s = 0; s < TT_NUM_STAGES; s++) r->mean.seconds[s][i] += t->seconds[s][i] / r->ranks;
        double seconds = tt_times_phase(t, (tt_phase)i);
        if (rank == 0 || seconds > r->most[i]) r->most[i] = seconds, r->most_rank[i] = rank;
    }
}

tt_status tt_profiler_report(const tt_profiler *p, tt_profile_report *out)
{
    tt_times *all;
    int64_t events[2] = {0};
    *out = (tt_profile_report){0};
    if (!p->profile) return TT_OK;
    const tt_profile_sums *s = p->later.steps > 0 ? &p->later : &p->first;
    TT_TRY(gather(p, s, &all));
    out->steps = s->steps;
    out->ranks = tt_comm_size(p->comm);
    for (int r = 0; r < out->ranks; r++) add_rank(out, &all[r], r);
    free(all);
    for (int t = 0; t < p->profile->num_threads; t++) {
        events[0] += p->profile->threads[t].num;
        events[1] += p->profile->threads[t].left_out;
    }
    TT_TRY(tt_allreduce_i64(tt_comm_world(p->comm), "profile", events, 2));
    out->events = events[0], out->left_out = events[1];
    return TT_OK;
}

static void put_phase(tt_text *t, const tt_profile_report *r, tt_phase p)
{
    double seconds = tt_times_phase(&r->mean, p), again = r->mean.seconds[TT_STAGE_RECOMPUTE][p];
    if (r->most[p] == 0) return;
    tt_text_put(t, "  %-10s %10.4f %7.1f %% %10.4f", tt_phase_name(p), seconds, 100 * seconds / tt_times_sum(&r->mean), again);
    if (r->ranks > 1) tt_text_put(t, " %10.4f  (rank %d)", r->most[p], r->most_rank[p]);
    tt_text_put(t, "\n");
}

void tt_profile_report_text(const tt_profile_report *r, char *out, size_t size)
{
    tt_text t = {out, size, 0};
    const tt_times *m = &r->mean;
    double again = tt_times_stage(m, TT_STAGE_RECOMPUTE);
    tt_text_put(&t, "where the time goes: seconds per step, mean of %lld step%s", (long long)r->steps, r->steps > 1 ? "s" : "");
    tt_text_put(&t, r->ranks > 1 ? " and %d ranks\n" : "\n", r->ranks);
    tt_text_put(&t, "  %-10s %10s %9s %10s%s\n", "phase", "seconds", "share", "recompute", r->ranks > 1 ? "    slowest" : "");
    for (int p = 0; p < TT_NUM_PHASES; p++) put_phase(&t, r, (tt_phase)p);
    tt_text_put(&t, "  %-10s %10.4f %7.1f %% %10.4f\n", "step", tt_times_sum(m), 100.0, again);
    tt_text_put(&t, "  forward %.4f, backward %.4f (of which recompute %.4f), optimizer %.4f, between %.4f\n",
                tt_times_stage(m, TT_STAGE_FORWARD), tt_times_stage(m, TT_STAGE_BACKWARD) + again, again,
                tt_times_stage(m, TT_STAGE_OPTIMIZER), tt_times_stage(m, TT_STAGE_BETWEEN));
}
