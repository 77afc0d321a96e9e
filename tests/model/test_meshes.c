/* The layout does not matter: a fixture on every mesh that there is, against one process of tartan itself on the reference
 * kernels. test_fixtures.c holds that process against the Python library; here the tolerances are those of rounding alone.
 *
 * The table is complete by construction: worlds of 1, 2, 3, 4, 5, 6 and 8 ranks, every tp_size, ep_size and dispatcher that
 * tt_mesh_resolve allows for the model, each with the micro-batches of the fixture as they are, with each row as a micro-step
 * of its own (where the balance loss, which the split defines, is off), and with exchanges in many rounds. All of it is done
 * with TT_FULL; else one fixture on every mesh, and the ways to run take turns.
 *
 * What is compared: loss and the gradient of every parameter of a batch that gives eight ranks something to do; losses,
 * norms and weights of three steps of plain descent, which shows the scale of every gradient; and of three steps of clipped
 * AdamW, which hides scales, but has moments, weight decay and the global norm. All ways of a mesh run on one engine, one
 * behind the other, so each finds memory that others have used. Kernels and recomputation take turns. */
#include "support/fixture.h"
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Both sides round in other places: a sum of n float products is off by about sqrt(n) 2^-24 of its terms, and through the
 * depth of these models 1e-6 of a tensor's norm is seen (tests/fixtures/README.md, section 7). */
#define GRADIENT_TOLERANCE 1e-5
#define LOSS_TOLERANCE     5e-6
#define BALANCE_TOLERANCE  2e-6
/* Updates of plain descent are sums of three gradients. The second and third start from weights that differ by what the
 * first left, in proportion; besides, each step rounds a weight of about 0.2 at 2^-24, 1e-8, beside updates of about 1e-2. */
#define UPDATE_TOLERANCE 1e-5
/* A weight after three steps of AdamW, where the gradients of its element are not small beside those of its tensor; others
 * have the bound that allow_adamw() computes. The steps together move it by about 3e-2. */
#define WEIGHT_TOLERANCE 2e-5

enum { STEPS = 3 };
enum { DESCENT, ADAMW, NUM_KINDS };

static const tt_step_options kinds[NUM_KINDS] = {
    [DESCENT] = {.optimizer = TT_OPTIM_SGD, .lr = 0.5},
    [ADAMW] = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .max_grad_norm = 1},
};

static const struct way {
    const char *name;
    bool rows;
    int64_t booked;
} ways[] = {{"joint", false, 0}, {"rows as micro-steps", true, 0}, {"rounds", false, 3}};
enum { NUM_WAYS = sizeof ways / sizeof *ways };

/* --- what is computed ------------------------------------------------------------------------------------------ */

/* What all ranks together computed; they write disjoint parts. */
typedef struct outcome {
    fixture_sums sums;
    double norm;
    tt_step_result steps[NUM_KINDS][STEPS];
    float *gradients, *after[NUM_KINDS]; /* [total of the shape] */
} outcome;

typedef struct subject {
    const char *id;
    trial_model model;
    trial_shape shape;
    json_t *train, *rows; /* train.json; all rows of the fixture as one batch */
    double balance;
    float *before;      /* [total] the model's weights */
    float *v;           /* [total] second moments, for a moment */
    float *path[STEPS]; /* [total] weights after each step of AdamW in one process */
    double *allowed;    /* [total] how far a weight may be off after AdamW; INFINITY: shaky */
    outcome want;
} subject;

static void open_outcome(const subject *s, outcome *o)
{
    size_t n = (size_t)s->shape.total;
    *o = (outcome){.gradients = malloc(3 * n * sizeof *o->gradients)};
    assert_non_null(o->gradients);
    memset(o->gradients, 0xFF, 3 * n * sizeof *o->gradients); /* NaN, so that what nobody owns is seen */
    for (int kind = 0; kind < NUM_KINDS; kind++) o->after[kind] = o->gradients + (size_t)(kind + 1) * n;
}

/* Where a step of AdamW went in the one process, and what it adds to what a weight may be off.
 *
 * Step k moves an element by rate * u, u = m / sqrt(v), where m = sum of a_j g_j and v = sum of b_j g_j^2 are means over the
 * steps so far of its gradients and of their squares: a and b are positive and add up to 1, b is nearly even, and
 * c = sqrt(sum of a_j^2 / b_j) is below 1.01. Let the gradients be off by d_j. By Cauchy's inequality m is off by at most
 * c * D with D = sqrt(sum of b_j d_j^2), and |m| <= c sqrt(v); by the triangle inequality sqrt(v) is off by at most D. So u
 * is off by at most 2.1 D / sqrt(v), which is a lot where an element's gradients are small beside their error.
 *
 * The error of an element is not of its own size but of its terms', which are those of other elements of the tensor: where a
 * tensor is off by GRADIENT_TOLERANCE of its norm, d_j is that part of the root of the mean square of the tensor's elements,
 * and D that part of the root of the tensor's mean of v. */
static void follow_adamw(const tt_engine *e, const subject *s, int step)
{
    const tt_params *params = &s->shape.table.params;
    trial_collect(e, &s->shape, TT_PART_WEIGHT, s->path[step]);
    trial_collect(e, &s->shape, TT_PART_MOMENT2, s->v);
    for (int64_t i = 0; i < params->num; i++) {
        double mean = 0;
        if (!params->at[i].trained) continue;
        for (int64_t at = s->shape.begin[i]; at < s->shape.begin[i + 1]; at++)
            mean += s->v[at] / (double)params->at[i].count;
        for (int64_t at = s->shape.begin[i]; at < s->shape.begin[i + 1]; at++)
            if (s->v[at] > 0) s->allowed[at] += kinds[ADAMW].lr * 2.1 * GRADIENT_TOLERANCE * sqrt(mean / s->v[at]);
    }
}

/* Elements whose tolerance is wide go on from where they went in the one process. Else they would be other weights in the
 * next step, by much more than rounding, and change the gradients of all others. */
static void put_back(tt_engine *e, const subject *s, int step)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    for (int64_t i = 0; i < num; i++) {
        int64_t begin = s->shape.begin[pieces[i].param] + pieces[i].first;
        float *weights = tt_shards_view(e->shards, &pieces[i], TT_PART_WEIGHT).data;
        for (int64_t k = 0; k < pieces[i].count; k++)
            if (s->allowed[begin + k] > WEIGHT_TOLERANCE) weights[k] = s->path[step][begin + k];
    }
}

static tt_status gradients(fixture *f, const subject *s, outcome *out)
{
    tt_batch *micros;
    int num;
    fixture_sums sums;
    double norm;
    trial_restart(&f->engine, &s->shape, s->before);
    TT_TRY(fixture_micros(f, s->rows, "batch.json", &micros, &num));
    tt_status status = fixture_gradients(f, micros, num, s->balance, &sums);
    fixture_free_micros(&micros, num);
    TT_TRY(status);
    TT_TRY(tt_gradient_norm(&f->engine.model, &norm));
    trial_collect(&f->engine, &s->shape, TT_PART_GRADIENT, out->gradients);
    if (f->engine.mesh->rank == 0) out->sums = sums, out->norm = norm;
    return TT_OK;
}

static tt_status three_steps(fixture *f, const subject *s, int kind, outcome *out)
{
    tt_step_options o = kinds[kind];
    o.balance = s->balance;
    trial_restart(&f->engine, &s->shape, s->before);
    for (int k = 0; k < STEPS; k++) {
        tt_step_result r;
        TT_TRY(fixture_step(f, s->train, k, o, &r));
        if (f->engine.mesh->rank == 0) out->steps[kind][k] = r;
        if (kind != ADAMW) continue;
        if (out == &s->want)
            follow_adamw(&f->engine, s, k);
        else if (k + 1 < STEPS)
            put_back(&f->engine, s, k);
    }
    trial_collect(&f->engine, &s->shape, TT_PART_WEIGHT, out->after[kind]);
    return TT_OK;
}

static tt_status go(fixture *f, const subject *s, outcome *out)
{
    for (int kind = 0; kind < NUM_KINDS; kind++) TT_TRY(three_steps(f, s, kind, out));
    return gradients(f, s, out);
}

/* --- one process ----------------------------------------------------------------------------------------------- */

static tt_status reference_main(fixture *f, void *arg)
{
    subject *s = arg;
    trial_watch watch = {&f->engine, INFINITY};
    f->engine.model.tap = trial_watch_gap;
    f->engine.model.tap_user = &watch;
    trial_collect(&f->engine, &s->shape, TT_PART_WEIGHT, s->before);
    TT_TRY(go(f, s, &s->want));
    TT_CHECK(watch.gap >= TRIAL_CLEAR, TT_EVERDICT, "an expert is chosen by %g only: rounding may choose another",
             watch.gap);
    return TT_OK;
}

static json_t *load(const char *id, const char *name)
{
    char path[200];
    json_t *object;
    snprintf(path, sizeof path, "tests/fixtures/%s/%s", id, name);
    assert_ok(tt_json_load(path, 64 << 20, &object));
    return object;
}

static void add_rows(json_t *rows, const json_t *batch)
{
    static const char *const keys[] = {"input_ids", "attention_mask", "labels"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *list = json_object_get(rows, keys[i]);
        if (!list) json_object_set_new(rows, keys[i], list = json_array());
        assert_int_equal(json_array_extend(list, json_object_get(batch, keys[i])), 0);
    }
}

/* The rows of batch.json and of all steps: nine. */
static json_t *all_rows(const char *id, const json_t *train)
{
    json_t *rows = json_object(), *batch = load(id, "batch.json");
    add_rows(rows, batch);
    json_decref(batch);
    const json_t *steps = json_object_get(train, "steps");
    for (size_t k = 0; k < json_array_size(steps); k++) {
        const json_t *list = json_object_get(json_array_get(steps, k), "micro_batches");
        for (size_t i = 0; i < json_array_size(list); i++) add_rows(rows, json_array_get(list, i));
    }
    return rows;
}

/* Elements whose sqrt(v) is near eps, or whose gradient is 0 in theory: rounding decides which way they move. */
static void mark_shaky(subject *s)
{
    const json_t *shaky = json_object_get(s->train, "shaky_elements");
    for (int64_t i = 0; i < s->shape.table.params.num; i++) {
        const json_t *list = json_object_get(shaky, s->shape.table.params.at[i].name);
        for (size_t k = 0; k < json_array_size(list); k++)
            s->allowed[s->shape.begin[i] + json_integer_value(json_array_get(list, k))] = INFINITY;
    }
}

/* The first is the one that covers most: groups of experts, shared and dense parts, biases, a tied head. */
static subject subjects[] = {{.id = "G2"}, {.id = "G1"}, {.id = "O1"}, {.id = "O2"}, {.id = "Q1"}, {.id = "Q2"}};
enum { NUM_SUBJECTS = sizeof subjects / sizeof *subjects };

static void open_subject(subject *s)
{
    json_t *config = load(s->id, "model/config.json"), *expected = load(s->id, "expected.json");
    s->model = (trial_model){.name = s->id, .config = json_dumps(config, 0)};
    s->balance = json_number_value(json_object_get(expected, "aux_coefficient"));
    s->train = load(s->id, "train.json");
    s->rows = all_rows(s->id, s->train);
    json_decref(config);
    json_decref(expected);
    assert_ok(trial_shape_open(&s->model, &s->shape));
    s->before = calloc((size_t)s->shape.total * (2 + STEPS), sizeof *s->before);
    s->v = s->before + s->shape.total;
    for (int k = 0; k < STEPS; k++) s->path[k] = s->v + (k + 1) * s->shape.total;
    s->allowed = calloc((size_t)s->shape.total, sizeof *s->allowed);
    mark_shaky(s);
}

static void close_subject(subject *s)
{
    trial_shape_close(&s->shape);
    json_decref(s->train);
    json_decref(s->rows);
    free((char *)s->model.config);
    free(s->allowed);
    free(s->before);
    free(s->want.gradients);
}

static int close_subjects(void **state)
{
    (void)state;
    for (int i = 0; i < NUM_SUBJECTS; i++) close_subject(&subjects[i]);
    return 0;
}

/* When it is first asked for. */
static void compute_reference(subject *s)
{
    fixture_run one = {.id = s->id, .ops = &tt_ops_ref, .world = 1, .ep = 1, .recompute = true};
    int64_t loose = 0;
    if (s->want.gradients) return;
    open_outcome(s, &s->want);
    assert_ok(fixture_on_mesh(&one, reference_main, s));
    for (int64_t i = 0; i < s->shape.total; i++) loose += s->allowed[i] > WEIGHT_TOLERANCE;
    if (loose > s->shape.total / 10)
        fail_msg("%s: %lld of %lld elements have a wide tolerance", s->id, (long long)loose,
                 (long long)s->shape.total);
}

/* --- comparison ------------------------------------------------------------------------------------------------ */

static void near(const char *what, const char *quantity, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s: %s is %.9g, expected %.9g (tolerance %g)", what, quantity, got, want, tolerance);
}

/* Later steps start from weights that differ by rounding. */
static void compare_steps(const char *what, const tt_step_result *got, const tt_step_result *want)
{
    for (int k = 0; k < STEPS; k++) {
        near(what, "loss", got[k].loss, want[k].loss, k ? 2e-5 : LOSS_TOLERANCE);
        near(what, "gradient norm", got[k].grad_norm, want[k].grad_norm, (k ? 1e-4 : 1e-5) * want[k].grad_norm);
        near(what, "number of targets", (double)got[k].targets, (double)want[k].targets, 0);
        near(what, "number of tokens", (double)got[k].tokens, (double)want[k].tokens, 0);
    }
}

/* Updates, not weights: a weight hides the size of a step behind its own. */
static void compare_updates(const subject *s, const char *what, const float *got, const float *want)
{
    int64_t n = s->shape.total;
    float *a = malloc((size_t)n * 2 * sizeof *a), *b = a + n;
    assert_non_null(a);
    for (int64_t i = 0; i < n; i++) a[i] = got[i] - s->before[i], b[i] = want[i] - s->before[i];
    trial_compare(&s->shape, what, a, b, UPDATE_TOLERANCE);
    free(a);
}

static void compare_elements(const subject *s, const char *what, const float *got, const float *want)
{
    for (int64_t i = 0; i < s->shape.table.params.num; i++) {
        const tt_param *p = &s->shape.table.params.at[i];
        for (int64_t at = s->shape.begin[i]; at < s->shape.begin[i + 1]; at++) {
            double tolerance = p->trained ? fmax(WEIGHT_TOLERANCE, s->allowed[at]) : 0;
            if (!(fabs((double)got[at] - want[at]) <= tolerance))
                fail_msg("%s: '%s'[%lld] is %.9g, expected %.9g (tolerance %g)", what, p->name,
                         (long long)(at - s->shape.begin[i]), got[at], want[at], tolerance);
        }
    }
}

static void compare(const subject *s, const char *way, const outcome *got)
{
    const outcome *want = &s->want;
    char what[NUM_KINDS + 1][100];
    snprintf(what[DESCENT], sizeof *what, "%s, descent", way);
    snprintf(what[ADAMW], sizeof *what, "%s, AdamW", way);
    snprintf(what[NUM_KINDS], sizeof *what, "%s, gradients", way);
    const char *gradient = what[NUM_KINDS];
    near(gradient, "number of targets", (double)got->sums.targets, (double)want->sums.targets, 0);
    near(gradient, "nll", got->sums.nll, want->sums.nll, LOSS_TOLERANCE * (double)want->sums.targets);
    near(gradient, "balance loss", got->sums.balance, want->sums.balance, BALANCE_TOLERANCE);
    near(gradient, "norm", got->norm, want->norm, GRADIENT_TOLERANCE * want->norm);
    trial_compare(&s->shape, gradient, got->gradients, want->gradients, GRADIENT_TOLERANCE);
    for (int kind = 0; kind < NUM_KINDS; kind++) compare_steps(what[kind], got->steps[kind], want->steps[kind]);
    compare_updates(s, what[DESCENT], got->after[DESCENT], want->after[DESCENT]);
    compare_elements(s, what[ADAMW], got->after[ADAMW], want->after[ADAMW]);
}

/* --- the table ------------------------------------------------------------------------------------------------- */

typedef struct entry {
    subject *s;
    trial_mesh mesh;
    int turn;
    outcome got[NUM_WAYS];
} entry;

/* The balance loss is defined per micro-step: another split is another loss. */
static bool skipped(const entry *e, int way)
{
    if (ways[way].rows && e->s->balance != 0) return true;
    return !test_full() && way != e->turn % NUM_WAYS;
}

static tt_status every_way(fixture *f, void *arg)
{
    entry *e = arg;
    fixture_run run = *f->run;
    tt_status status = TT_OK;
    f->run = &run;
    for (int i = 0; i < NUM_WAYS && status == TT_OK; i++) {
        if (skipped(e, i)) continue;
        run.row_micros = ways[i].rows;
        f->engine.model.booked_pairs = ways[i].booked;
        f->engine.model.recompute = (e->turn + i) % 2;
        status = go(f, e->s, &e->got[i]);
        if (status != TT_OK) tt_error_context(status, "%s", ways[i].name);
    }
    return status;
}

static void the_mesh_does_not_matter(void **state)
{
    entry *e = *state;
    compute_reference(e->s);
    fixture_run run = {.id = e->s->id,
                       .ops = e->turn % 2 ? &tt_ops_ref : &tt_ops_cpu,
                       .world = e->mesh.world,
                       .ep = e->mesh.ep,
                       .tp = e->mesh.tp,
                       .dispatch = e->mesh.dispatch};
    for (int i = 0; i < NUM_WAYS; i++) open_outcome(e->s, &e->got[i]);
    assert_ok(fixture_on_mesh(&run, every_way, e));
    for (int i = 0; i < NUM_WAYS; i++) {
        if (!skipped(e, i)) compare(e->s, ways[i].name, &e->got[i]);
        free(e->got[i].gradients);
    }
}

enum { MAX_ENTRIES = 1024 };
static entry entries[MAX_ENTRIES];
static struct CMUnitTest tests[MAX_ENTRIES];
static int num_entries;

static void add_meshes(subject *s)
{
    trial_mesh variants[TRIAL_MAX_VARIANTS];
    for (int i = 0; i < trial_num_meshes; i++) {
        int num = trial_variants(trial_meshes[i], s->shape.config.num_experts, variants);
        for (int k = 0; k < num; k++) {
            char name[120];
            TT_ASSERT(num_entries < MAX_ENTRIES);
            snprintf(name, sizeof name, "%s, %s", s->id, trial_mesh_name(variants[k]));
            entries[num_entries] = (entry){.s = s, .mesh = variants[k], .turn = num_entries};
            tests[num_entries] =
                (struct CMUnitTest){strdup(name), the_mesh_does_not_matter, NULL, NULL, &entries[num_entries]};
            num_entries++;
        }
    }
}

int main(void)
{
    for (int i = 0; i < NUM_SUBJECTS; i++) {
        open_subject(&subjects[i]);
        if (i == 0 || test_full()) add_meshes(&subjects[i]);
    }
    return _cmocka_run_group_tests("meshes", tests, (size_t)num_entries, NULL, close_subjects);
}
