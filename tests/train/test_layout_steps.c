/* Whole steps on every mesh: the first loss, updates that would show a gradient of the wrong size (plain descent, with and
 * without clipping, since AdamW hides factors), norms of gradients set by hand, counts of tokens, idle experts, the same
 * bits again, and memory that does not grow. */
#include "support/test.h"
#include "support/trial.h"

#include "base/checked.h"
#include "tensor/dtype.h"
#include "train/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STEPS = 4 };

/* Steps on batches, and what became of the weights. */
typedef struct steps_job {
    const trial_shape *shape;
    trial_batch batches[MAX_STEPS];
    int num;
    bool joint;
    tt_step_options options;
    tt_step_result results[MAX_STEPS];
    float *before, *after; /* [total] */
} steps_job;

static tt_status run_step(tt_engine *e, const trial_batch *b, bool joint, const tt_step_options *o, tt_step_result *r)
{
    tt_batch micros[TRIAL_MAX_MICROS];
    int num;
    tt_status status = trial_micros(e, b, joint, micros, &num);
    if (status == TT_OK) status = tt_train_step(&e->model, micros, num, o, r);
    for (int i = 0; i < num; i++) tt_batch_free(&micros[i]);
    return status;
}

static tt_status run_steps(tt_engine *e, void *arg)
{
    steps_job *j = arg;
    tt_step_options o = j->options;
    trial_collect(e, j->shape, TT_PART_WEIGHT, j->before);
    for (int i = 0; i < j->num; i++) {
        tt_step_result r;
        o.step = i + 1;
        TT_TRY(run_step(e, &j->batches[i], j->joint, &o, &r));
        if (e->mesh->rank == 0) j->results[i] = r;
    }
    trial_collect(e, j->shape, TT_PART_WEIGHT, j->after);
    return TT_OK;
}

static void open_job(steps_job *j, const trial_shape *s, const trial_plan *plan, int num, tt_step_options o)
{
    *j = (steps_job){.shape = s, .num = num, .options = o};
    for (int i = 0; i < num; i++) trial_batch_make(plan, s->config.vocab_size, (uint64_t)i, &j->batches[i]);
    j->before = calloc((size_t)s->total * 2, sizeof *j->before);
    j->after = j->before + s->total;
}

static void close_job(steps_job *j)
{
    free(j->before);
}

static void run_job(steps_job *j, const trial_run *run)
{
    assert_ok(trial_on_mesh(run, run_steps, j));
}

/* --- the first loss -------------------------------------------------------------------------------------------- */

static const trial_model new_models[] = {
    {.name = "new olmoe",
     .edit = trial_plain,
     .config =
         "{\"model_type\": \"olmoe\", \"vocab_size\": 500, \"hidden_size\": 32, \"num_hidden_layers\": 2,"
         "\"num_attention_heads\": 4, \"num_experts\": 8, \"num_experts_per_tok\": 2, \"intermediate_size\": 16}"},
    {.name = "new qwen3, tied",
     .edit = trial_plain,
     .config = "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 500, \"hidden_size\": 24, \"num_hidden_layers\": 2,"
               "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 8, \"num_experts\": 10,"
               "\"num_experts_per_tok\": 3, \"moe_intermediate_size\": 8, \"intermediate_size\": 16,"
               "\"mlp_only_layers\": [1], \"tie_word_embeddings\": true}"},
    {.name = "new glm4",
     .edit = trial_plain,
     .config = "{\"model_type\": \"glm4_moe\", \"vocab_size\": 500, \"hidden_size\": 32, \"num_hidden_layers\": 2,"
               "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"n_routed_experts\": 9, "
               "\"num_experts_per_tok\": 2,"
               "\"moe_intermediate_size\": 8, \"intermediate_size\": 16, \"routed_scaling_factor\": 2.5}"},
};

/* Logits of a new model have a deviation of about 0.02 sqrt(D), so the mean of some 40 losses lies well within 1 % of
 * ln V. Every token is counted once. */
static void a_new_model_knows_nothing(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof new_models / sizeof *new_models; m++) {
        trial_shape s;
        assert_ok(trial_shape_open(&new_models[m], &s));
        double first = 0;
        for (int i = 0; i < trial_num_meshes; i++) {
            steps_job j;
            trial_run run = {.model = &new_models[m],
                             .mesh = trial_turn(&s, trial_meshes[i], i),
                             .bf16_compute = i % 3 == 1,
                             .ops = &tt_ops_cpu};
            open_job(&j, &s, &trial_plans[0], 1, (tt_step_options){.optimizer = TT_OPTIM_SGD});
            run_job(&j, &run);
            const tt_step_result *r = &j.results[0];
            assert_close(r->loss, log(500), 0.01 * log(500));
            assert_close(r->entropy, log(500), 0.01 * log(500));
            if (i == 0) first = r->loss;
            assert_close(r->loss, first, run.bf16_compute ? 1e-3 : 2e-6);
            /* 7 + 6 + 7 + 13 + 6 + 1 + 2 + 12 + 0 + 8 + 7 kept tokens; targets by kind of row. */
            assert_int_equal(r->tokens, 69);
            assert_int_equal(r->targets, 6 + 5 + 3 + 3 + 0 + 0 + 1 + 9 + 0 + 7 + 6);
            close_job(&j);
        }
        trial_shape_close(&s);
    }
}

/* --- plain descent --------------------------------------------------------------------------------------------- */

/* Updates, not weights, are compared: a weight hides the size of a step behind its own. */
static void compare_updates(const trial_shape *s, const char *what, const steps_job *got, const steps_job *want)
{
    float *a = malloc((size_t)s->total * 2 * sizeof *a), *b = a + s->total;
    for (int64_t i = 0; i < s->total; i++) {
        a[i] = got->after[i] - got->before[i];
        b[i] = want->after[i] - want->before[i];
        assert_true(memcmp(&got->before[i], &want->before[i], sizeof *a) == 0);
    }
    /* The first step moves weights by about their own size (a rate of 1); each is rounded at 2^-24 of itself. */
    trial_compare(s, what, a, b, 1e-5);
    free(a);
}

static void descend_on_every_mesh(int model, double max_norm, int steps)
{
    trial_shape s;
    steps_job want;
    tt_step_options o = {
        .optimizer = TT_OPTIM_SGD, .lr = steps > 1 ? 0.1 : 1, .weight_decay = 0.05, .max_grad_norm = max_norm};
    trial_run one = {.model = &trial_models[model], .mesh = TRIAL_MESH(1, 1)};
    assert_ok(trial_shape_open(&trial_models[model], &s));
    open_job(&want, &s, trial_find_plan("reversed, in micro-steps of which one is empty"), steps, o);
    want.joint = true;
    run_job(&want, &one);
    double kept = want.results[0].grad_norm;
    if (max_norm > 0 && !(kept > 2 * max_norm)) fail_msg("%s: a norm of %g is hardly clipped", s.model->name, kept);
    for (int i = 0; i < trial_num_meshes; i++) {
        char what[200];
        steps_job got;
        trial_run run = {.model = &trial_models[model],
                         .mesh = trial_turn(&s, trial_meshes[i], i + model),
                         .ops = i % 2 ? &tt_ops_cpu : &tt_ops_ref};
        if (!trial_mesh_fits(&s, run.mesh)) continue;
        snprintf(what, sizeof what, "%s, %s", s.model->name, trial_mesh_name(run.mesh));
        open_job(&got, &s, want.batches[0].plan, steps, o);
        run_job(&got, &run);
        for (int k = 0; k < steps; k++) {
            assert_close(got.results[k].loss, want.results[k].loss, k ? 2e-5 : 5e-6);
            assert_close(got.results[k].grad_norm, want.results[k].grad_norm,
                         (k ? 1e-4 : 1e-5) * want.results[k].grad_norm);
            assert_int_equal(got.results[k].tokens, want.results[k].tokens);
            assert_int_equal(got.results[k].targets, want.results[k].targets);
        }
        if (steps == 1)
            compare_updates(&s, what, &got, &want);
        else
            trial_compare(&s, what, got.after, want.after, 1e-5);
        close_job(&got);
    }
    close_job(&want);
    trial_shape_close(&s);
}

static const char *const descent_models[] = {"olmoe, 10 experts, tied, clamped",
                                             "qwen3, smaller than the world, tied", "glm4, groups, shared, tied"};

static int model_index(const char *name)
{
    return (int)(trial_find_model(name) - trial_models);
}

static void one_step_of_descent(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) descend_on_every_mesh(model_index(descent_models[i]), 0, 1);
}

static void one_clipped_step(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) descend_on_every_mesh(model_index(descent_models[i]), 0.1, 1);
}

/* Later steps start from weights that differ by rounding, which near a tie may choose otherwise: models and seeds here
 * have none. */
static void three_steps_of_descent(void **state)
{
    (void)state;
    descend_on_every_mesh(model_index("glm4, 10 experts"), 1, 3);
}

/* --- norm and clipping, by hand -------------------------------------------------------------------------------- */

/* Four experts get gradients of 2, 4, 6 and 8 at a place that the placement says: 4 + 16 and 36 + 64. */
static void set_gradients(tt_engine *e, int placement)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    tt_shards_zero_gradients(e->shards, e->kernel);
    for (int64_t i = 0; i < num; i++) {
        const tt_param *p = &e->table.params.at[pieces[i].param];
        if (p->expert < 0 || !strstr(p->name, "layers.1.") || !strstr(p->name, "up_proj")) continue;
        int64_t which = (p->expert * 3 + placement) % e->config.num_experts;
        int64_t at = 37 * placement % p->count - pieces[i].first;
        if (which >= 4 || at < 0 || at >= pieces[i].count) continue;
        ((float *)tt_shards_view(e->shards, &pieces[i], TT_PART_GRADIENT).data)[at] = 2 * (float)(which + 1);
    }
}

/* How far a step of rate 1 with the gradients' factor `clip` moves the weights, from zero. */
static tt_status move_weights(tt_engine *e, double clip, double *moved)
{
    int64_t num;
    double sum = 0;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    tt_step_options o = {.optimizer = TT_OPTIM_SGD, .lr = 1, .step = 1};
    for (int64_t i = 0; i < num; i++)
        e->kernel->ops->zero(e->kernel, tt_shards_view(e->shards, &pieces[i], TT_PART_WEIGHT));
    tt_update(&e->model, &o, clip);
    for (int64_t i = 0; i < num; i++)
        sum += e->kernel->ops->sum_squares(e->kernel, tt_shards_view(e->shards, &pieces[i], TT_PART_WEIGHT));
    TT_TRY(tt_allreduce_f64(e->mesh->world, "test-moved", &sum, 1));
    *moved = sqrt(sum);
    return TT_OK;
}

static tt_status norm_by_hand(tt_engine *e, void *arg)
{
    (void)arg;
    for (int placement = 0; placement < 4; placement++) {
        double norm, moved, clip;
        set_gradients(e, placement);
        TT_TRY(tt_gradient_norm(&e->model, &norm));
        clip = tt_clip_factor(0.1, norm);
        TT_TRY(move_weights(e, clip, &moved));
        /* The squares are exact; the clipped gradients are floats, and 1e-6 stands beside a norm of 11. */
        TT_CHECK(fabs(norm - sqrt(120)) <= 1e-14 && fabs(clip * norm - 0.1) <= 2e-8 && fabs(moved - 0.1) <= 3e-8,
                 TT_EVERDICT, "placement %d: norm %.9g, clipped %.9g, moved %.9g", placement, norm, clip * norm,
                 moved);
    }
    return TT_OK;
}

static void norms_add_up_over_experts(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe", "olmoe, 10 experts, tied, clamped", "glm4, groups, shared, tied"};
    for (int m = 0; m < 3; m++) {
        trial_shape s;
        assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
        for (int i = 0; i < trial_num_meshes; i++) {
            trial_run run = {.model = s.model, .mesh = trial_turn(&s, trial_meshes[i], m + i)};
            assert_ok(trial_on_mesh(&run, norm_by_hand, NULL));
        }
        trial_shape_close(&s);
    }
    assert_close(tt_clip_factor(0.1, 0.05), 1, 0);
    assert_close(tt_clip_factor(0, 5), 1, 0);
}

/* --- balance loss ---------------------------------------------------------------------------------------------- */

/* Leaves a batch's rows of one micro-step. */
static void keep_micro(trial_batch *b, int micro)
{
    int n = 0;
    for (int r = 0; r < b->num_rows; r++) {
        int rank, at;
        b->plan->place(r, (trial_mesh)TRIAL_MESH(1, 1), &rank, &at);
        if (at == micro) b->rows[n++] = b->rows[r];
    }
    b->num_rows = n;
}

/* The mean over micro-steps, wherever their rows are: with padding, and with one micro-step that has no row. */
static void balance_loss_is_the_mean_of_micro_steps(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe", "qwen3, a dense layer between"};
    for (int m = 0; m < 2; m++) {
        trial_shape s;
        const trial_plan *plan = trial_find_plan("reversed, in micro-steps of which one is empty");
        double alone = 0, coef = 0.3;
        assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
        /* Each micro-step as a step of its own, on one process. */
        for (int micro = 0; micro < plan->num_micros; micro++) {
            steps_job j;
            trial_run run = {.model = s.model, .mesh = TRIAL_MESH(1, 1)};
            open_job(&j, &s, plan, 1, (tt_step_options){.optimizer = TT_OPTIM_SGD, .balance = coef});
            j.joint = true;
            keep_micro(&j.batches[0], micro);
            run_job(&j, &run);
            alone += j.results[0].balance_loss;
            close_job(&j);
        }
        for (int i = 0; i < trial_num_meshes; i++) {
            steps_job j;
            trial_run run = {.model = s.model, .mesh = trial_turn(&s, trial_meshes[i], m + i)};
            if (!trial_mesh_fits(&s, run.mesh)) continue;
            open_job(&j, &s, plan, 1,
                     (tt_step_options){.optimizer = TT_OPTIM_SGD, .balance = coef / plan->num_micros});
            run_job(&j, &run);
            const tt_step_result *r = &j.results[0];
            assert_close(r->balance_loss, alone / plan->num_micros, 2e-6);
            assert_close(r->loss, r->nll / (double)r->targets + coef * r->balance_loss, 1e-12);
            close_job(&j);
        }
        trial_shape_close(&s);
    }
}

/* --- idle experts ---------------------------------------------------------------------------------------------- */

/* One token, so most experts are idle: their gradient is zero, they have moments, and only weight decay moves them. */
static void idle_experts_only_decay(void **state)
{
    (void)state;
    static const trial_row_kind kinds[] = {TRIAL_TWO};
    static const trial_plan plan = {"one row", kinds, 1, 1, trial_spread};
    const trial_model *model = trial_find_model("olmoe");
    trial_shape s;
    assert_ok(trial_shape_open(model, &s));
    for (int i = 0; i < trial_num_meshes; i++) {
        steps_job j;
        int idle = 0, busy = 0;
        trial_run run = {.model = model, .mesh = trial_turn(&s, trial_meshes[i], i)};
        open_job(&j, &s, &plan, 1,
                 (tt_step_options){.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.5});
        run_job(&j, &run);
        for (int64_t p = 0; p < s.table.params.num; p++) {
            if (s.table.params.at[p].expert < 0) continue;
            bool decayed = true;
            for (int64_t k = s.begin[p]; k < s.begin[p + 1]; k++) {
                if (!isfinite(j.after[k])) fail_msg("'%s' is not finite", s.table.params.at[p].name);
                /* One product and one rounding. */
                decayed &= fabs(j.after[k] - (1 - 0.005) * j.before[k]) <= 1e-7 * fabs(j.before[k]);
            }
            idle += decayed, busy += !decayed;
        }
        /* Two tokens choose two experts of eight in each of two layers: three matrices each. */
        assert_in_range(busy, 2 * 2 * 3, 4 * 2 * 3);
        assert_int_equal(idle + busy, 8 * 2 * 3);
        close_job(&j);
    }
    trial_shape_close(&s);
}

/* --- the same again -------------------------------------------------------------------------------------------- */

static void the_same_run_gives_the_same_bits(void **state)
{
    (void)state;
    static const char *const names[] = {"olmoe, 10 experts, tied, clamped", "glm4, groups, shared, tied"};
    static const trial_mesh meshes[] = {TRIAL_MESH(1, 1), TRIAL_MESH(2, 1), TRIAL_MESH(2, 2), TRIAL_MESH(4, 2),
                                        TRIAL_MESH(4, 4)};
    for (int m = 0; m < 2; m++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
            for (int kind = 0; kind < 3; kind++) {
                trial_shape s;
                steps_job j[2];
                assert_ok(trial_shape_open(trial_find_model(names[m]), &s));
                trial_run run = {.model = s.model,
                                 .mesh = trial_turn(&s, meshes[i], kind + m),
                                 .ops = &tt_ops_cpu,
                                 .bf16_compute = kind > 0,
                                 .bf16_weights = kind > 1,
                                 .bf16_moments = kind > 1,
                                 .threads = i == 0 ? 2 : 1};
                tt_step_options o = {.lr = 0.01,
                                     .beta1 = 0.9,
                                     .beta2 = 0.999,
                                     .eps = 1e-8,
                                     .weight_decay = 0.1,
                                     .max_grad_norm = 1,
                                     .seed = 7,
                                     .balance = s.config.has_balance_loss ? 0.01 : 0};
                for (int k = 0; k < 2; k++) {
                    run.otherwise = k; /* whether weights are shared or sent changes no bit */
                    open_job(&j[k], &s, &trial_plans[0], 3, o);
                    run_job(&j[k], &run);
                }
                trial_same_bits(&s, run.model->name, j[1].after, j[0].after);
                for (int k = 0; k < 3; k++)
                    assert_memory_equal(&j[0].results[k].loss, &j[1].results[k].loss, sizeof(double));
                for (int k = 0; k < 2; k++) close_job(&j[k]);
                trial_shape_close(&s);
            }
}

/* --- memory ---------------------------------------------------------------------------------------------------- */

typedef struct memory_job {
    steps_job steps;
    int64_t units_peak;
} memory_job;

/* Where ranks share memory units take what they need and no more: the plan to 5 %. Buffers of a rank's own may be larger than
 * what is put into them. */
static tt_status compare_units(const tt_engine *e, int64_t measured)
{
    tt_memory plan;
    tt_memory_shape shape = {
        .mesh = {e->mesh->fsdp_size, e->mesh->tp_size, e->mesh->ep_size, e->mesh->dispatch}, .world_size = e->mesh->world_size,
        .precision = tt_shards_precision(e->shards), .train = true, .shared = tt_shards_are_shared(e->shards)};
    TT_TRY(tt_memory_plan(&e->config, &e->table, &shape, &plan));
    double ratio = (double)measured / (double)tt_max_i64(plan.bytes[TT_MEMORY_UNITS], 1);
    TT_CHECK(!shape.shared || (ratio >= 0.95 && ratio <= 1.05), TT_EVERDICT, "units take %lld bytes, planned are %lld",
             (long long)measured, (long long)plan.bytes[TT_MEMORY_UNITS]);
    return TT_OK;
}

static tt_status watch_memory(tt_engine *e, void *arg)
{
    memory_job *j = arg;
    int64_t peaks[3] = {0};
    int64_t units = 0;
    for (int i = 0; i < 4; i++) {
        tt_step_options o = j->steps.options;
        tt_step_result r;
        o.step = i + 1;
        TT_TRY(run_step(e, &j->steps.batches[0], false, &o, &r));
        int64_t now[] = {tt_arena_peak(e->model.keep), tt_arena_peak(e->model.work),
                         tt_arena_peak(e->kernel->scratch)};
        int64_t held = tt_shards_bytes(e->shards).units_peak;
        for (int k = 0; k < 3; k++)
            TT_CHECK(i == 0 || now[k] <= peaks[k], TT_EVERDICT, "rank %d: arena %d grew from %lld to %lld in step %d",
                     e->mesh->rank, k, (long long)peaks[k], (long long)now[k], i + 1);
        TT_CHECK(i < 2 || held <= units, TT_EVERDICT, "units grew from %lld to %lld", (long long)units,
                 (long long)held);
        memcpy(peaks, now, sizeof peaks);
        units = held;
    }
    if (e->mesh->rank != 0) return TT_OK;
    j->units_peak = units;
    return compare_units(e, units);
}

/* Arenas have their size after the first step. Buffers of units are handed to whoever they are large enough for, and the
 * second step begins with other buffers at hand than the first, so they have theirs after the second. */
static void steps_do_not_grow_memory(void **state)
{
    (void)state;
    for (int m = 0; m < trial_num_models; m++)
        for (int i = m % 2; i < 8; i += 2) {
            trial_shape s;
            memory_job j;
            assert_ok(trial_shape_open(&trial_models[m], &s));
            trial_run run = {.model = &trial_models[m],
                             .mesh = trial_turn(&s, trial_meshes[i], m),
                             .keep_all = i / 2 % 2,
                             .bf16_compute = i % 3 == 2,
                             .ops = &tt_ops_cpu};
            if (trial_mesh_fits(&s, run.mesh)) {
                /* A rate of 0 keeps the routing, and with it the rows that a rank receives. */
                open_job(&j.steps, &s, &trial_plans[0], 1, (tt_step_options){.optimizer = TT_OPTIM_SGD});
                assert_ok(trial_on_mesh(&run, watch_memory, &j));
                if (run.mesh.world == 1 && !run.bf16_compute) assert_int_equal(j.units_peak, 0);
                close_job(&j.steps);
            }
            trial_shape_close(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_model_knows_nothing), cmocka_unit_test(one_step_of_descent),
        cmocka_unit_test(one_clipped_step),          cmocka_unit_test(three_steps_of_descent),
        cmocka_unit_test(norms_add_up_over_experts), cmocka_unit_test(balance_loss_is_the_mean_of_micro_steps),
        cmocka_unit_test(idle_experts_only_decay),   cmocka_unit_test(the_same_run_gives_the_same_bits),
        cmocka_unit_test(steps_do_not_grow_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
