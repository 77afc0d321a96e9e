/* bf16: gradients with bf16 compute against float, on every kind of mesh and way to run; models whose weights are kept in
 * bf16 learn, and are rounded by a rule that does not know the mesh. */
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"
#include "tensor/dtype.h"
#include "train/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every stored operand is off by up to u = 2^-9 of itself. On its way from the loss a gradient passes some 10 stored
 * operands a block - norm, projections, their norms, attention, gate, up, h, and as many gradients - in up to 3 blocks,
 * forward and backward, beside weights that are rounded as well: n = 3 * 20 * 2 = 120 roundings. They are independent, so
 * what adds up is sqrt(n) u / sqrt(3) = 1.2 %, times what softmax, norms and cancelling sums amplify: 4 is allowed. Where
 * a tensor's gradient is a small difference of large terms, the error is one of the terms: u of the largest tensor. */
#define NOISE 0.05

typedef struct gradient_job {
    const trial_shape *shape;
    const trial_batch *batch;
    double balance;
    const trial_choices *replay;
    trial_result out;
} gradient_job;

static tt_status gradients(tt_engine *e, void *arg)
{
    gradient_job *j = arg;
    return trial_gradients(e, j->shape, j->batch, false, j->balance, j->replay, &j->out);
}

static void run_gradients(const trial_run *run, gradient_job *j)
{
    assert_ok(trial_result_open(j->shape, &j->out));
    assert_ok(trial_on_mesh(run, gradients, j));
}

/* As trial_compare, with room for bf16. */
static void compare_noisy(const trial_shape *s, const char *what, const float *got, const float *expected)
{
    const tt_params *params = &s->table.params;
    double largest = 0, *sums = calloc((size_t)params->num * 2, sizeof *sums);
    for (int64_t i = 0; i < params->num; i++)
        for (int64_t k = s->begin[i]; k < s->begin[i + 1] && params->at[i].trained; k++) {
            sums[2 * i] += pow((double)got[k] - expected[k], 2);
            sums[2 * i + 1] += pow(expected[k], 2);
        }
    for (int64_t i = 0; i < params->num; i++) largest = fmax(largest, sqrt(sums[2 * i + 1]));
    for (int64_t i = 0; i < params->num; i++) {
        double difference = sqrt(sums[2 * i]), norm = sqrt(sums[2 * i + 1]);
        if (!(difference <= NOISE * norm + ldexp(largest, -9)))
            fail_msg("%s: '%s': difference %g of norm %g (relative %g)", what, params->at[i].name, difference, norm,
                     difference / norm);
    }
    free(sums);
}

/* Choices are replayed from float: one that falls the other way is not noise. */
static void gradients_are_float_and_noise(void **state)
{
    (void)state;
    static const trial_mesh meshes[] = {TRIAL_MESH(1, 1), TRIAL_MESH(2, 2), TRIAL_MESH(3, 3), TRIAL_MESH(4, 2),
                                        TRIAL_MESH(5, 5), TRIAL_MESH(6, 3), TRIAL_MESH(8, 4)};
    for (int m = 0; m < trial_num_models; m++) {
        trial_shape s;
        trial_batch b;
        trial_result want;
        assert_ok(trial_shape_open(&trial_models[m], &s));
        trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
        double balance = s.config.has_balance_loss && s.config.num_experts > 0 ? 0.05 : 0;
        trial_reference(&s, &b, false, balance, &want);
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            char what[200];
            gradient_job j = {.shape = &s, .batch = &b, .balance = balance, .replay = &want.choices}, again = j;
            trial_run run = {.model = s.model,
                             .mesh = trial_turn(&s, meshes[i], m),
                             .ops = i % 3 == 2 ? &tt_ops_ref : &tt_ops_cpu,
                             .bf16_compute = true,
                             .keep_all = i % 2,
                             .booked = i % 4 == 1 ? 2 : 0,
                             .loss_chunk = i % 2 ? 7 : 0,
                             .bf16_weights = i == 3};
            if (!trial_mesh_fits(&s, run.mesh)) continue;
            snprintf(what, sizeof what, "%s, %s", s.model->name, trial_mesh_name(run.mesh));
            run_gradients(&run, &j);
            compare_noisy(&s, what, j.out.gradients, want.gradients);
            assert_close(j.out.nll, want.nll, 0.01 * want.nll);
            if (i % 2) {
                run_gradients(&run, &again);
                trial_same_bits(&s, what, again.out.gradients, j.out.gradients);
                trial_result_close(&again.out);
            }
            trial_result_close(&j.out);
        }
        trial_result_close(&want);
        trial_shape_close(&s);
    }
}

/* bf16 is in use: the gradients differ from float by more than float's own rounding. */
static void bf16_compute_is_bf16(void **state)
{
    (void)state;
    trial_shape s;
    trial_batch b;
    trial_result want;
    assert_ok(trial_shape_open(trial_find_model("olmoe"), &s));
    trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
    trial_reference(&s, &b, true, 0, &want);
    gradient_job j = {.shape = &s, .batch = &b, .replay = &want.choices};
    trial_run run = {.model = s.model, .mesh = TRIAL_MESH(1, 1), .bf16_compute = true};
    run_gradients(&run, &j);
    for (int64_t i = 0; i < s.table.params.num; i++) {
        double difference = 0, norm = 0;
        for (int64_t k = s.begin[i]; k < s.begin[i + 1]; k++) {
            difference += pow((double)j.out.gradients[k] - want.gradients[k], 2);
            norm += pow(want.gradients[k], 2);
        }
        if (norm > 0) assert_true(sqrt(difference) > 1e-4 * sqrt(norm));
    }
    trial_result_close(&j.out);
    trial_result_close(&want);
    trial_shape_close(&s);
}

/* --- bf16 weights ---------------------------------------------------------------------------------------------- */

typedef struct train_job {
    const trial_shape *shape;
    const trial_batch *batch;
    double first, last;
} train_job;

static tt_status train(tt_engine *e, void *arg)
{
    train_job *j = arg;
    tt_batch micros[TRIAL_MAX_MICROS];
    int num;
    TT_TRY(trial_micros(e, j->batch, false, micros, &num));
    tt_status status = TT_OK;
    for (int step = 1; step <= 30 && status == TT_OK; step++) {
        tt_step_options o = {
            .lr = 3e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .max_grad_norm = 1, .step = step, .seed = 3};
        tt_step_result r;
        status = tt_train_step(&e->model, micros, num, &o, &r);
        if (e->mesh->rank == 0 && step == 1) j->first = r.loss;
        if (e->mesh->rank == 0) j->last = r.loss;
    }
    for (int i = 0; i < num; i++) tt_batch_free(&micros[i]);
    return status;
}

/* One batch over and over: 30 steps learn much of it by heart, in bf16 about as much as in float. */
static void models_in_bf16_learn(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe", "qwen3, a dense layer between", "glm4, groups, shared, tied"};
    static const trial_mesh meshes[] = {TRIAL_MESH(1, 1), TRIAL_MESH(2, 2), TRIAL_MESH(4, 2)};
    for (int m = 0; m < 3; m++) {
        trial_shape s;
        trial_batch b;
        assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
        trial_batch_make(&trial_plans[0], s.config.vocab_size, 0, &b);
        train_job exact = {&s, &b, 0, 0};
        trial_run run = {.model = s.model, .mesh = TRIAL_MESH(1, 1), .ops = &tt_ops_cpu};
        assert_ok(trial_on_mesh(&run, train, &exact));
        for (int i = 0; i < 3; i++) {
            train_job j = {&s, &b, 0, 0};
            trial_run bf16 = {.model = s.model,
                              .mesh = meshes[i],
                              .ops = &tt_ops_cpu,
                              .bf16_compute = true,
                              .bf16_weights = true,
                              .bf16_moments = i == 2};
            assert_ok(trial_on_mesh(&bf16, train, &j));
            double learned = (j.first - j.last) / (exact.first - exact.last);
            if (!(exact.last < exact.first - 0.5 && learned > 0.8 && learned < 1.2))
                fail_msg("%s, world %d: loss from %g to %g, in float from %g to %g", s.model->name, meshes[i].world,
                         j.first, j.last, exact.first, exact.last);
        }
        trial_shape_close(&s);
    }
}

/* Equal gradients, set by hand as a function of the element. */
typedef struct round_job {
    const trial_shape *shape;
    tt_step_options options;
    int steps;
    double size; /* of gradients */
    float *before, *after;
    float *m, *v; /* moments behind the steps, or NULL */
} round_job;

static tt_status update_by_hand(tt_engine *e, void *arg)
{
    round_job *j = arg;
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    trial_collect(e, j->shape, TT_PART_WEIGHT, j->before);
    for (int64_t i = 0; i < num; i++) {
        if (!e->table.params.at[pieces[i].param].trained) continue;
        float *g = tt_shards_view(e->shards, &pieces[i], TT_PART_GRADIENT).data;
        for (int64_t k = 0; k < pieces[i].count; k++)
            g[k] = (float)(j->size * (1 + 0.5 * sin((double)(pieces[i].param + pieces[i].first + k))));
    }
    for (int step = 1; step <= j->steps; step++) {
        tt_step_options o = j->options;
        o.step = step;
        tt_update(&e->model, &o, 1);
    }
    trial_collect(e, j->shape, TT_PART_WEIGHT, j->after);
    if (j->m) trial_collect(e, j->shape, TT_PART_MOMENT1, j->m);
    if (j->v) trial_collect(e, j->shape, TT_PART_MOMENT2, j->v);
    return TT_OK;
}

/* The random bits of an element depend on its parameter and number, not on who owns it: the same gradients give the same
 * weights and moments on every mesh. */
static void rounding_does_not_know_the_mesh(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe, 10 experts, tied, clamped", "qwen3, smaller than the world, tied",
                                        "glm4, groups, shared, tied"};
    for (int m = 0; m < 3; m++) {
        trial_shape s;
        assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
        float *all = calloc((size_t)s.total * 7, sizeof *all);
        assert_non_null(all);
        for (int kind = 0; kind < 4; kind++)
            for (int i = 0; i < trial_num_meshes; i++) {
                round_job j = {&s,
                               {.optimizer = kind % 2 ? TT_OPTIM_SGD : TT_OPTIM_ADAMW,
                                .lr = 1e-3,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .eps = 1e-8,
                                .weight_decay = 0.1,
                                .seed = 11},
                               3,
                               1,
                               all,
                               all + (i ? 1 : 2) * s.total,
                               all + (i ? 3 : 4) * s.total,
                               all + (i ? 5 : 6) * s.total};
                trial_run run = {.model = s.model,
                                 .mesh = trial_meshes[i],
                                 .ops = kind / 2 ? &tt_ops_cpu : &tt_ops_ref,
                                 .bf16_compute = true,
                                 .bf16_weights = true,
                                 .bf16_moments = true};
                if (!trial_mesh_fits(&s, run.mesh)) continue;
                assert_ok(trial_on_mesh(&run, update_by_hand, &j));
                for (int part = 1; part < 7 && i; part += 2)
                    trial_same_bits(&s, s.model->name, all + part * s.total, all + (part + 1) * s.total);
            }
        free(all);
        trial_shape_close(&s);
    }
}

static float near_one(const tt_param *p, int64_t element, float value)
{
    (void)p, (void)element, (void)value;
    return 1 + 0x1p-7f;
}

/* Weights near 1, where bf16 has steps of 2^-7, and 1000 steps of 1e-6: together an eighth of such a step, which rounding
 * to nearest would lose. In the mean they arrive. */
static void tiny_steps_arrive_on_every_mesh(void **state)
{
    (void)state;
    trial_model model = *trial_find_model("glm4, groups, shared, tied");
    model.edit = near_one;
    trial_shape s;
    assert_ok(trial_shape_open(&model, &s));
    float *all = calloc((size_t)s.total * 2, sizeof *all);
    for (int world = 1; world <= 4; world *= 2) {
        round_job j = {&s, {.optimizer = TT_OPTIM_SGD, .lr = 1e-6, .seed = 5}, 1000, 1, all, all + s.total, NULL, NULL};
        trial_run run = {
            .model = &model, .mesh = TRIAL_MESH(world, world), .bf16_compute = true, .bf16_weights = true};
        double moved = 0, want = 0, n = 0;
        assert_ok(trial_on_mesh(&run, update_by_hand, &j));
        for (int64_t i = 0; i < s.table.params.num; i++) {
            const tt_param *p = &s.table.params.at[i];
            for (int64_t k = 0; k < p->count && p->trained && !p->exact; k++, n++) {
                moved += j.before[s.begin[i] + k] - j.after[s.begin[i] + k];
                want += 1e-3 * (1 + 0.5 * sin((double)(i + k)));
            }
        }
        /* Each of n elements has moved by 2^-7 with probability 0.128: the mean's deviation is 2^-7 sqrt(0.11 / n), and four
         * of these are 1 % when n is above a million, 6 % here. */
        double deviation = ldexp(1, -7) * sqrt(0.128 * 0.872 / n);
        assert_true(n > 10000);
        assert_close(moved / n, want / n, 4 * deviation);
    }
    free(all);
    trial_shape_close(&s);
}

/* --- what it takes ------------------------------------------------------------------------------------------------ */

static tt_status compare_with_plan(tt_engine *e, void *arg)
{
    const trial_run *run = arg;
    tt_memory_shape shape = {.mesh = {.ep_size = run->mesh.ep, .tp_size = run->mesh.tp, .dispatch = run->mesh.dispatch},
                             .world_size = run->mesh.world,
                             .precision = tt_shards_precision(e->shards),
                             .train = true,
                             .moments = true};
    tt_memory plan;
    tt_shard_bytes held = tt_shards_bytes(e->shards);
    TT_TRY(tt_memory_plan(&e->config, &e->table, &shape, &plan));
    if (e->mesh->rank > 0) return TT_OK; /* the plan is for the rank that owns most */
    TT_CHECK(plan.bytes[TT_MEMORY_WEIGHTS] == held.weights && plan.bytes[TT_MEMORY_GRADIENTS] == held.gradients &&
                 plan.bytes[TT_MEMORY_MOMENTS] == held.moments,
             TT_EVERDICT, "planned %lld + %lld + %lld, held %lld + %lld + %lld", (long long)plan.bytes[TT_MEMORY_WEIGHTS],
             (long long)plan.bytes[TT_MEMORY_GRADIENTS], (long long)plan.bytes[TT_MEMORY_MOMENTS], (long long)held.weights,
             (long long)held.gradients, (long long)held.moments);
    TT_CHECK(!run->bf16_moments || held.moments < 1.5 * (double)held.gradients, TT_EVERDICT, "moments are not in bf16");
    return TT_OK;
}

static void state_takes_what_is_planned(void **state)
{
    (void)state;
    for (int m = 0; m < trial_num_models; m++)
        for (int i = 0; i < trial_num_meshes; i++)
            for (int kind = 0; kind < 4; kind++) {
                trial_shape s;
                assert_ok(trial_shape_open(&trial_models[m], &s));
                trial_run run = {.model = s.model,
                                 .mesh = trial_turn(&s, trial_meshes[i], m),
                                 .bf16_compute = kind > 0,
                                 .bf16_weights = kind % 2,
                                 .bf16_moments = kind / 2};
                if ((i + kind) % 4 == m % 4 && trial_mesh_fits(&s, run.mesh))
                    assert_ok(trial_on_mesh(&run, compare_with_plan, &run));
                trial_shape_close(&s);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_float_and_noise),
        cmocka_unit_test(bf16_compute_is_bf16),
        cmocka_unit_test(models_in_bf16_learn),
        cmocka_unit_test(rounding_does_not_know_the_mesh),
        cmocka_unit_test(tiny_steps_arrive_on_every_mesh),
        cmocka_unit_test(state_takes_what_is_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
