/* certify can fail: faults that trainers of this kind have had are planted one at a time in the mesh run (src/base/fault.h),
 * and certify must name what each one spoils: gradients, choices, loss, or norm, and layer by layer also where. Each is sought
 * in both ways. */
#include "support/test.h"

#include "base/checked.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "train/certify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    const char *model;
    tt_mesh_sizes mesh;
    bool by_layer;
    tt_certify_report report; /* of rank 0 */
} job;

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    tt_batch_file rows;
    tt_certify_report report;
    tt_comm_set_timeout(comm, 60);
    TT_TRY(tt_certify_default_rows(j->model, tt_comm_size(comm), &rows));
    tt_certify_options o = {.model = j->model, .rows = &rows, .mesh = j->mesh, .threads = 1, .by_layer = j->by_layer};
    tt_status status = tt_certify(comm, &o, &report);
    tt_batch_file_free(&rows);
    if (status != TT_OK) return status;
    if (tt_comm_rank(comm) == 0) j->report = report;
    else tt_certify_report_free(&report);
    return TT_OK;
}

/* Whether a gradient is wrong whose name contains `part`. */
static bool names_gradient(const tt_certify_report *r, const char *part)
{
    for (int64_t i = 0; i < r->num_rows; i++)
        if (!r->rows[i].good && strstr(r->rows[i].name, part)) return true;
    return false;
}

static bool spares_gradient(const tt_certify_report *r, const char *part)
{
    for (int64_t i = 0; i < r->num_rows; i++)
        if (!r->rows[i].good && strstr(r->rows[i].name, part)) return false;
    return true;
}

/* Whether it goes by layer and this row between layers is wrong. */
static bool names_stream(const tt_certify_report *r, const char *name)
{
    for (int64_t i = 0; i < r->num_streams; i++)
        if (!strcmp(r->streams[i].name, name)) return !r->streams[i].good;
    return false;
}

static const bool whole = false, by_layer = true;

/* The same command with and without the fault; the mode is the test's state. */
static tt_certify_report with_fault(void **state, tt_fault_switch fault, const char *model, int world, tt_mesh_sizes mesh)
{
    job j = {.model = model, .mesh = mesh, .by_layer = *(const bool *)*state};
    tt_fault_plant(TT_FAULT_NONE);
    assert_ok(tt_comm_run_threads(world, rank_main, &j));
    assert_true(j.report.passed);
    tt_certify_report_free(&j.report);
    tt_fault_plant(fault);
    assert_ok(tt_comm_run_threads(world, rank_main, &j));
    tt_fault_plant(TT_FAULT_NONE);
    assert_false(j.report.passed);
    assert_int_equal(j.report.by_layer, j.by_layer);
    return j.report;
}

#define Q1 "tests/fixtures/Q1/model"
#define O2 "tests/fixtures/O2/model"

static void expert_gradient_times_ep(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_EXPERT_TIMES_EP, Q1, 4, (tt_mesh_sizes){.ep_size = 2});
    assert_true(names_gradient(&r, "mlp.experts."));
    assert_true(spares_gradient(&r, "self_attn"));
    assert_false(r.norm_good);
    assert_true(r.loss_good);
    assert_int_equal(r.bad_streams, 0);
    tt_certify_report_free(&r);
}

static void dense_gradient_times_tp(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_DENSE_TIMES_TP, Q1, 4, (tt_mesh_sizes){.tp_size = 2, .ep_size = 2});
    assert_true(names_gradient(&r, "self_attn"));
    assert_true(spares_gradient(&r, "mlp.experts."));
    assert_int_equal(r.bad_streams, 0);
    tt_certify_report_free(&r);
}

static void router_gradient_missing(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_ROUTER_MISSING, Q1, 2, (tt_mesh_sizes){.ep_size = 2});
    assert_true(names_gradient(&r, "mlp.gate.weight"));
    assert_true(r.loss_good);
    if (r.by_layer) { /* what stands behind no router is right: layer 1 is dense */
        assert_true(names_stream(&r, "model.layers.0: input gradient"));
        assert_true(names_stream(&r, "model.layers.2: input gradient"));
        assert_int_equal(r.bad_streams, 2);
        assert_true(spares_gradient(&r, "layers.1."));
    }
    tt_certify_report_free(&r);
}

static void row_that_no_kernel_wrote(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_UNWRITTEN_ROW, Q1, 2, (tt_mesh_sizes){.ep_size = 2});
    assert_false(r.loss_good); /* NaN, or whatever lay there */
    assert_true(r.bad_rows > 0);
    if (r.by_layer) assert_true(names_stream(&r, "model.layers.0: output"));
    tt_certify_report_free(&r);
}

static void swapped_experts(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_SWAPPED_EXPERTS, Q1, 2, (tt_mesh_sizes){.ep_size = 2});
    assert_true(names_gradient(&r, "mlp.experts.0."));
    if (r.by_layer) { /* the head gives the right loss for what it was given, and layer 1 is dense */
        assert_true(r.loss_good);
        assert_true(names_stream(&r, "model.layers.0: output") && names_stream(&r, "model.layers.2: output"));
        assert_false(names_stream(&r, "model.layers.1: output") || names_stream(&r, "model.layers.1: input gradient"));
        assert_true(spares_gradient(&r, "layers.1."));
    } else {
        assert_false(r.loss_good);
    }
    tt_certify_report_free(&r);
}

static void recomputation_that_routes_again(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_ROUTED_AGAIN, Q1, 2, (tt_mesh_sizes){.ep_size = 2});
    assert_true(r.wrong_choices > 0 || names_gradient(&r, "mlp.experts."));
    tt_certify_report_free(&r);
}

static void norm_over_one_axis(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_NORM_OF_ONE_AXIS, Q1, 4, (tt_mesh_sizes){.ep_size = 2});
    assert_false(r.norm_good);
    assert_int_equal(r.bad_rows + r.bad_streams, 0);
    tt_certify_report_free(&r);
}

static void balance_statistics_per_rank(void **state)
{
    tt_certify_report r = with_fault(state, TT_FAULT_BALANCE_PER_RANK, O2, 2, (tt_mesh_sizes){.ep_size = 2});
    assert_false(r.loss_good);
    assert_true(names_gradient(&r, "mlp.gate.weight"));
    tt_certify_report_free(&r);
}

/* G1 with biases near 7 that differ by 0.002: bfloat16 has steps of 0.03 there, and cannot tell them apart. */
static const char *model_with_close_biases(void)
{
    static char folder[1200];
    char path[1300], *text;
    size_t bytes;
    tt_st_folder f;
    snprintf(folder, sizeof folder, "%s", test_folder("biases"));
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_ok(tt_file_copy("tests/fixtures/G1/model/config.json", path));
    assert_ok(tt_file_read_all("tests/fixtures/G1/model/model.safetensors", 1 << 22, &text, &bytes));
    assert_ok(tt_st_open_folder("tests/fixtures/G1/model", &f));
    for (int64_t i = 0; i < f.num_tensors; i++) {
        if (!strstr(f.tensors[i].name, "e_score_correction_bias")) continue;
        for (int e = 0; e < 8; e++) { /* the later expert is the better one by far less than a step */
            float bias = 7.0f + 0.002f * (float)e;
            memcpy(text + f.tensors[i].begin + 4 * e, &bias, 4);
        }
    }
    /* Routers whose scores hardly differ, so that the biases decide. */
    for (int64_t i = 0; i < f.num_tensors; i++) {
        if (!strstr(f.tensors[i].name, "mlp.gate.weight")) continue;
        for (int64_t at = f.tensors[i].begin; at < f.tensors[i].end; at += 4) {
            float w;
            memcpy(&w, text + at, 4);
            w *= 1e-4f;
            memcpy(text + at, &w, 4);
        }
    }
    tt_st_close(&f);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(tt_file_write_all(path, text, bytes));
    free(text);
    return folder;
}

static void bias_through_bf16(void **state)
{
    const char *model = model_with_close_biases();
    tt_certify_report r = with_fault(state, TT_FAULT_BIAS_IN_BF16, model, 2, (tt_mesh_sizes){.ep_size = 2});
    assert_true(r.wrong_choices > 0);
    assert_true(strstr(r.first_wrong, "layer 1") != NULL);
    tt_certify_report_free(&r);
}

#define IN_BOTH_WAYS(test)                                                                                             \
    cmocka_unit_test_prestate(test, (void *)&whole), cmocka_unit_test_prestate(test, (void *)&by_layer)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH_WAYS(expert_gradient_times_ep),
        IN_BOTH_WAYS(dense_gradient_times_tp),
        IN_BOTH_WAYS(router_gradient_missing),
        IN_BOTH_WAYS(row_that_no_kernel_wrote),
        IN_BOTH_WAYS(swapped_experts),
        IN_BOTH_WAYS(recomputation_that_routes_again),
        IN_BOTH_WAYS(norm_over_one_axis),
        IN_BOTH_WAYS(balance_statistics_per_rank),
        IN_BOTH_WAYS(bias_through_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
