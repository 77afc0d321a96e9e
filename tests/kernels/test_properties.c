/* What must hold for the reference operations whatever the numbers are: invariances, ties, independence of
 * what does not belong, extreme and non-finite values. Each backend that promises the same can be put in the
 * list. */
#include "support/test.h"
#include "support/kernel_cases.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const tt_ops *const backends[] = {&tt_ops_ref, &tt_ops_ref_f64, &tt_ops_alt};
enum { NUM_BACKENDS = sizeof backends / sizeof *backends };

static kernel_rig *rig(const tt_ops *ops)
{
    static const kernel_case none = {.name = "property"};
    return kernel_rig_create(&none, ops, ops->real, 1);
}

static double eps_of(const tt_ops *ops)
{
    return ops->real == TT_F64 ? DBL_EPSILON : FLT_EPSILON;
}

static tt_mat random_mat(kernel_rig *r, int64_t rows, int64_t cols, double spread)
{
    return kernel_rig_fill(r, kernel_rig_mat(r, r->real, rows, cols, true), 0, spread);
}

static tt_mat empty_mat(kernel_rig *r, int64_t rows, int64_t cols)
{
    return kernel_rig_mat(r, r->real, rows, cols, true);
}

static void copy_rows(tt_mat from, int64_t row, tt_mat to, int64_t to_row, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < from.cols; j++) kernel_set(to, to_row + i, j, kernel_get(from, row + i, j));
}

static void expect_same_bits(tt_mat a, tt_mat b, const char *what)
{
    for (int64_t i = 0; i < a.rows; i++)
        if (memcmp(tt_mat_row(a, i), tt_mat_row(b, i), (size_t)a.cols * tt_dtype_size(a.dtype)) != 0)
            fail_msg("%s: row %lld differs", what, (long long)i);
}

/* --- rope ------------------------------------------------------------------------------------------------------- */

static void turn(kernel_rig *r, tt_mat x, const int32_t *positions, int64_t rotary, bool interleaved)
{
    tt_mat c = empty_mat(r, x.rows, rotary / 2), s = empty_mat(r, x.rows, rotary / 2);
    r->k->ops->rope_table(r->k, positions, x.rows, rotary, 1e4, c, s);
    r->k->ops->rope(r->k, x, 1, c, s, interleaved, false);
}

static double dot(tt_mat a, int64_t i, tt_mat b, int64_t j)
{
    double sum = 0;
    for (int64_t n = 0; n < a.cols; n++) sum += kernel_get(a, i, n) * kernel_get(b, j, n);
    return sum;
}

static void rope_keeps_lengths_and_sees_differences(void **state)
{
    (void)state;
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        kernel_rig *r = rig(&tt_ops_ref_f64);
        tt_mat x = random_mat(r, 2, 16, 1), here = empty_mat(r, 2, 16), there = empty_mat(r, 2, 16);
        copy_rows(x, 0, here, 0, 2);
        copy_rows(x, 0, there, 0, 2);
        turn(r, here, (int32_t[]){11, 4}, 12, interleaved);
        turn(r, there, (int32_t[]){1011, 1004}, 12, interleaved);
        for (int i = 0; i < 2; i++) assert_close(dot(here, i, here, i), dot(x, i, x, i), 1e-14 * 32);
        /* Angles up to 1011 radians are known to 1011 eps / 2, so products of 16 terms around 1 to some 1e-12. */
        assert_close(dot(here, 0, here, 1), dot(there, 0, there, 1), 2e-12);
        assert_true(fabs(dot(here, 0, here, 1) - dot(x, 0, x, 1)) > 1e-3);
        kernel_rig_destroy(&r);
    }
}

static void interleaved_rope_is_half_split_rope_permuted(void **state)
{
    (void)state;
    kernel_rig *r = rig(&tt_ops_ref);
    tt_mat x = random_mat(r, 3, 10, 1), split = empty_mat(r, 3, 10);
    const int32_t positions[] = {0, 5, 77};
    copy_rows(x, 0, split, 0, 3);
    for (int t = 0; t < 3; t++)
        for (int j = 0; j < 4; j++) {
            kernel_set(split, t, j, kernel_get(x, t, 2 * j));
            kernel_set(split, t, j + 4, kernel_get(x, t, 2 * j + 1));
        }
    turn(r, split, positions, 8, false);
    turn(r, x, positions, 8, true);
    for (int t = 0; t < 3; t++)
        for (int j = 0; j < 4; j++) {
            assert_close(kernel_get(split, t, j), kernel_get(x, t, 2 * j), 0);
            assert_close(kernel_get(split, t, j + 4), kernel_get(x, t, 2 * j + 1), 0);
        }
    kernel_rig_destroy(&r);
}

/* --- router ----------------------------------------------------------------------------------------------------- */

/* Equal rows of the router's weight at the edges of tiles, and equal tokens at other places, tie to the last bit. */
static void equal_rows_tie_exactly(void **state)
{
    (void)state;
    static const int64_t twins[] = {7, 15, 16, 63, 64, 69};
    for (int b = 0; b < NUM_BACKENDS; b++) {
        kernel_rig *r = rig(backends[b]);
        tt_mat w = random_mat(r, 70, 131, 0.1), x = random_mat(r, 35, 131, 1), z = empty_mat(r, 35, 70);
        for (int i = 1; i < 6; i++) copy_rows(w, twins[0], w, twins[i], 1);
        copy_rows(x, 3, x, 34, 1);
        copy_rows(x, 3, x, 16, 1);
        for (int j = 0; j < 131; j++)
            kernel_set(x, 5, j, 20 * kernel_get(w, 7, j)); /* a token that wants the twins */
        r->k->ops->router_logits(r->k, x, w, z);
        for (int64_t t = 0; t < 35; t++)
            for (int i = 1; i < 6; i++)
                assert_close(kernel_get(z, t, twins[i]), kernel_get(z, t, twins[0]), 0);
        for (int64_t e = 0; e < 70; e++) {
            assert_close(kernel_get(z, 34, e), kernel_get(z, 3, e), 0);
            assert_close(kernel_get(z, 16, e), kernel_get(z, 3, e), 0);
        }
        /* One row alone gives the bits that it gives among others. */
        tt_mat alone = empty_mat(r, 1, 70);
        r->k->ops->router_logits(r->k, tt_mat_rows(x, 34, 35), w, alone);
        for (int64_t e = 0; e < 70; e++) assert_close(kernel_get(alone, 0, e), kernel_get(z, 34, e), 0);

        tt_route_shape s = {70, 4, true, 1, 1, 1};
        tt_mat g = empty_mat(r, 35, 4), p = empty_mat(r, 35, 70);
        int32_t ids[35 * 4];
        r->k->ops->route_softmax(r->k, &s, z, false, ids, g, p);
        for (int i = 0; i < 4; i++) assert_int_equal(ids[5 * 4 + i], twins[i]);
        r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, false, ids, g, p);
        for (int i = 0; i < 4; i++) assert_int_equal(ids[5 * 4 + i], twins[i]);
        kernel_rig_check_guards(r);
        kernel_rig_destroy(&r);
    }
}

static void groups_tie_to_the_lower_index(void **state)
{
    (void)state;
    kernel_rig *r = rig(&tt_ops_ref);
    tt_route_shape s = {8, 4, true, 4, 2, 1};
    tt_mat z = empty_mat(r, 1, 8), g = empty_mat(r, 1, 4), p = empty_mat(r, 1, 8);
    int32_t ids[4];
    kernel_set_all(z, 0.25);
    r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, false, ids, g, p);
    for (int i = 0; i < 4; i++) assert_int_equal(ids[i], i);
    kernel_set(z, 0, 7, 1);
    r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, false, ids, g, p);
    const int32_t expected[] = {7, 0, 1, 6};
    assert_memory_equal(ids, expected, sizeof expected);
    kernel_rig_destroy(&r);
}

static void shifts_change_nothing(void **state)
{
    (void)state;
    for (int b = 0; b < NUM_BACKENDS; b++) {
        kernel_rig *r = rig(backends[b]);
        tt_mat z = random_mat(r, 9, 12, 1), p = empty_mat(r, 9, 12), g = empty_mat(r, 9, 3),
               g2 = empty_mat(r, 9, 3);
        tt_mat bias = random_mat(r, 1, 12, 0.3);
        int32_t ids[27], again[27];
        tt_route_shape s = {12, 3, true, 3, 2, 2};
        /* All logits of a row + 8: rounding moves each by up to 8 eps, and its probability by as much. */
        r->k->ops->route_softmax(r->k, &s, z, false, ids, g, p);
        for (int t = 0; t < 9; t++)
            for (int e = 0; e < 12; e++) kernel_set(z, t, e, kernel_get(z, t, e) + 8);
        r->k->ops->route_softmax(r->k, &s, z, false, again, g2, p);
        assert_memory_equal(ids, again, sizeof ids);
        for (int t = 0; t < 9; t++)
            for (int i = 0; i < 3; i++)
                assert_close(kernel_get(g, t, i), kernel_get(g2, t, i), 20 * eps_of(backends[b]));
        /* All biases + 2: same choice (no near ties in these numbers), same weights to the bit. */
        for (int t = 0; t < 9; t++)
            for (int e = 0; e < 12; e++) kernel_set(z, t, e, kernel_get(z, t, e) - 8);
        r->k->ops->route_sigmoid(r->k, &s, z, bias, false, ids, g, p);
        for (int e = 0; e < 12; e++) kernel_set(bias, 0, e, kernel_get(bias, 0, e) + 2);
        r->k->ops->route_sigmoid(r->k, &s, z, bias, false, again, g2, p);
        assert_memory_equal(ids, again, sizeof ids);
        expect_same_bits(g, g2, "gates under shifted biases");
        kernel_rig_destroy(&r);
    }
}

static void all_experts_may_be_chosen(void **state)
{
    (void)state;
    for (int b = 0; b < NUM_BACKENDS; b++)
        for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
            kernel_rig *r = rig(backends[b]);
            tt_mat z = random_mat(r, 4, 6, 1), p = empty_mat(r, 4, 6), g = empty_mat(r, 4, 6);
            tt_mat dg = empty_mat(r, 4, 6), dz = empty_mat(r, 4, 6);
            int32_t ids[24];
            tt_route_shape s = {6, 6, true, 1, 1, 1};
            if (sigmoid)
                r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, false, ids, g, p);
            else
                r->k->ops->route_softmax(r->k, &s, z, false, ids, g, p);
            kernel_set_all(dg, 3); /* every expert is worth the same: the router has nothing to learn */
            if (sigmoid)
                r->k->ops->route_sigmoid_back(r->k, &s, dg, ids, g, p, dz);
            else
                r->k->ops->route_softmax_back(r->k, &s, dg, ids, g, p, dz);
            for (int t = 0; t < 4; t++) {
                double sum = 0;
                int seen = 0;
                for (int i = 0; i < 6; i++) {
                    sum += kernel_get(g, t, i);
                    seen |= 1 << ids[t * 6 + i];
                    assert_true(i == 0 || kernel_get(g, t, i - 1) >= kernel_get(g, t, i));
                    assert_close(kernel_get(dz, t, i), 0, 20 * eps_of(backends[b]));
                }
                assert_int_equal(seen, 63);
                assert_close(sum, 1, 6 * eps_of(backends[b]));
            }
            kernel_rig_destroy(&r);
        }
}

static void replay_keeps_the_choice(void **state)
{
    (void)state;
    kernel_rig *r = rig(&tt_ops_ref);
    tt_mat z = random_mat(r, 5, 7, 1), p = empty_mat(r, 5, 7), g = empty_mat(r, 5, 2);
    int32_t ids[10], given[10];
    for (int i = 0; i < 10; i++) ids[i] = given[i] = (int32_t)((3 * i + i / 2) % 7);
    tt_route_shape s = {7, 2, false, 1, 1, 1};
    r->k->ops->route_softmax(r->k, &s, z, true, ids, g, p);
    assert_memory_equal(ids, given, sizeof ids);
    for (int i = 0; i < 10; i++) assert_close(kernel_get(g, i / 2, i % 2), kernel_get(p, i / 2, ids[i]), 0);
    r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, true, ids, g, p);
    assert_memory_equal(ids, given, sizeof ids);
    for (int i = 0; i < 10; i++) assert_close(kernel_get(g, i / 2, i % 2), kernel_get(p, i / 2, ids[i]), 0);
    kernel_rig_destroy(&r);
}

static void expect_distinct_ids(const int32_t *ids, int64_t T, int64_t K, int64_t E)
{
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < K; i++) {
            assert_true(ids[t * K + i] >= 0 && ids[t * K + i] < E);
            for (int64_t j = 0; j < i; j++) assert_int_not_equal(ids[t * K + i], ids[t * K + j]);
        }
}

/* NaN anywhere: the ids stay in range and distinct, so the fault surfaces as a NaN loss, not as a wild read. */
static void nan_logits_give_ids_in_range(void **state)
{
    (void)state;
    kernel_rig *r = rig(&tt_ops_ref);
    tt_mat z = random_mat(r, 256, 8, 1), p = empty_mat(r, 256, 8), g = empty_mat(r, 256, 4);
    int32_t ids[256 * 4];
    for (int t = 0; t < 256; t++)
        for (int e = 0; e < 8; e++)
            if (t >> e & 1) kernel_set(z, t, e, e % 3 == 2 ? INFINITY : NAN);
    for (int groups = 1; groups <= 4; groups *= 2) {
        tt_route_shape s = {8, 4, true, groups, groups > 1 ? groups / 2 : 1, 1};
        memset(ids, 0x7F, sizeof ids);
        r->k->ops->route_softmax(r->k, &s, z, false, ids, g, p);
        expect_distinct_ids(ids, 256, 4, 8);
        memset(ids, 0x7F, sizeof ids);
        r->k->ops->route_sigmoid(r->k, &s, z, (tt_mat){0}, false, ids, g, p);
        expect_distinct_ids(ids, 256, 4, 8);
    }
    kernel_rig_check_guards(r);
    kernel_rig_destroy(&r);
}

static void huge_logits_do_not_overflow(void **state)
{
    (void)state;
    for (int b = 0; b < NUM_BACKENDS; b++) {
        kernel_rig *r = rig(backends[b]);
        tt_mat z = empty_mat(r, 1, 4), p = empty_mat(r, 1, 4), g = empty_mat(r, 1, 2),
               dz = empty_mat(r, 1, 4);
        int32_t ids[2];
        tt_route_shape s = {4, 2, true, 1, 1, 1};
        const double huge[] = {-1e30, 1e30, 1e30, -INFINITY};
        for (int e = 0; e < 4; e++) kernel_set(z, 0, e, huge[e]);
        r->k->ops->route_softmax(r->k, &s, z, false, ids, g, p);
        assert_int_equal(ids[0], 1);
        assert_int_equal(ids[1], 2);
        assert_close(kernel_get(g, 0, 0), 0.5, 0);
        assert_close(kernel_get(p, 0, 3), 0, 0);
        tt_loss_sums sums = {0};
        r->k->ops->cross_entropy(r->k, z, (int32_t[]){2}, 1, dz, &sums);
        assert_close(sums.nll, log(2), 1e-6);
        assert_close(sums.entropy, log(2), 1e-6);
        assert_int_equal(sums.correct, 0); /* 1 ties and is lower */
        assert_close(kernel_get(dz, 0, 1), 0.5, 0);
        assert_close(kernel_get(dz, 0, 2), -0.5, 0);
        assert_close(kernel_get(dz, 0, 3), 0, 0);
        /* What is not finite shows. */
        kernel_set(z, 0, 0, NAN);
        r->k->ops->cross_entropy(r->k, z, (int32_t[]){2}, 1, (tt_mat){0}, &sums);
        assert_true(isnan(sums.nll));
        kernel_rig_destroy(&r);
    }
}

/* --- loss ------------------------------------------------------------------------------------------------------- */

static void uniform_logits_lose_log_v(void **state)
{
    (void)state;
    for (int b = 0; b < NUM_BACKENDS; b++) {
        kernel_rig *r = rig(backends[b]);
        enum { V = 777 };
        tt_mat z = empty_mat(r, 3, V), dz = empty_mat(r, 3, V);
        kernel_set_all(z, 1.5);
        tt_loss_sums sums = {.nll = 1, .entropy = 2, .targets = 10, .correct = 20};
        r->k->ops->cross_entropy(r->k, z, (int32_t[]){0, -100, V - 1}, 0.5, dz, &sums);
        double tolerance = V * eps_of(backends[b]);
        assert_close(sums.nll, 1 + 2 * log(V), 2 * tolerance);
        assert_close(sums.entropy, 2 + 2 * log(V), 2 * tolerance);
        assert_int_equal(sums.targets, 12);
        assert_int_equal(sums.correct, 21); /* the lowest index among equals */
        double sum = 0;
        for (int64_t v = 0; v < V; v++) {
            sum += kernel_get(dz, 0, v);
            assert_close(kernel_get(dz, 1, v), 0, 0);
        }
        assert_close(sum, 0, tolerance);
        kernel_rig_destroy(&r);
    }
}

static void rows_without_target_add_nothing(void **state)
{
    (void)state;
    kernel_rig *r = rig(&tt_ops_ref);
    tt_mat z = empty_mat(r, 2, 5), dz = empty_mat(r, 2, 5);
    kernel_set_all(z, NAN); /* not even by their values */
    tt_loss_sums sums = {0}, none = {0};
    r->k->ops->cross_entropy(r->k, z, (int32_t[]){-100, -1}, 1, dz, &sums);
    assert_memory_equal(&sums, &none, sizeof sums);
    for (int i = 0; i < 10; i++) assert_close(kernel_get(dz, i / 5, i % 5), 0, 0);
    kernel_rig_destroy(&r);
}

/* --- attention -------------------------------------------------------------------------------------------------- */

enum { TOKENS = 23, HEADS = 4, KV = 2, QK = 6, VD = 5 };

typedef struct attention_run {
    tt_mat q, k, v, d_o, o, lse, dq, dk, dv;
} attention_run;

static attention_run attention_mats(kernel_rig *r, int64_t T)
{
    return (attention_run){
        .q = random_mat(r, T, HEADS * QK, 1),
        .k = random_mat(r, T, KV * QK, 1),
        .v = random_mat(r, T, KV * VD, 1),
        .d_o = random_mat(r, T, HEADS * VD, 1),
        .o = empty_mat(r, T, HEADS * VD),
        .lse = empty_mat(r, T, HEADS),
        .dq = empty_mat(r, T, HEADS * QK),
        .dk = empty_mat(r, T, KV * QK),
        .dv = empty_mat(r, T, KV * VD),
    };
}

static void run_attention(kernel_rig *r, const tt_attention_shape *s, const tt_docs *docs, attention_run *a)
{
    assert_ok(r->k->ops->attention(r->k, s, docs, a->q, a->k, a->v, a->o, a->lse));
    assert_ok(r->k->ops->attention_back(r->k, s, docs, a->d_o, a->q, a->k, a->v, a->o, a->lse, a->dq, a->dk,
                                        a->dv));
}

static void a_document_does_not_see_its_neighbours(void **state)
{
    (void)state;
    for (int b = 0; b < NUM_BACKENDS; b++)
        for (int64_t window = 0; window < 8; window += 7) {
            kernel_rig *r = rig(backends[b]);
            tt_attention_shape s = {HEADS, KV, QK, VD, 0.4, window};
            const int64_t offset[] = {0, 5, 5, 16, TOKENS};
            int32_t column[TOKENS];
            for (int t = 0; t < TOKENS; t++) column[t] = t + t / 4;
            attention_run whole = attention_mats(r, TOKENS), one = attention_mats(r, 11);
            copy_rows(whole.q, 5, one.q, 0, 11);
            copy_rows(whole.k, 5, one.k, 0, 11);
            copy_rows(whole.v, 5, one.v, 0, 11);
            copy_rows(whole.d_o, 5, one.d_o, 0, 11);
            /* The neighbours are as bad as can be. */
            for (int j = 0; j < KV * VD; j++)
                kernel_set(whole.v, 4, j, INFINITY), kernel_set(whole.v, 16, j, NAN);
            for (int j = 0; j < KV * QK; j++) kernel_set(whole.k, 3, j, NAN);
            run_attention(r, &s, &(tt_docs){4, offset, column}, &whole);
            run_attention(r, &s, &(tt_docs){1, (int64_t[]){0, 11}, column + 5}, &one);
            expect_same_bits(tt_mat_rows(whole.o, 5, 16), one.o, "o");
            expect_same_bits(tt_mat_rows(whole.lse, 5, 16), one.lse, "lse");
            expect_same_bits(tt_mat_rows(whole.dq, 5, 16), one.dq, "dq");
            expect_same_bits(tt_mat_rows(whole.dk, 5, 16), one.dk, "dk");
            expect_same_bits(tt_mat_rows(whole.dv, 5, 16), one.dv, "dv");
            kernel_rig_check_guards(r);
            kernel_rig_destroy(&r);
        }
}

/* A token neither sees later ones nor what has left its window, also when that is not finite. */
static void tokens_out_of_sight_do_not_count(void **state)
{
    (void)state;
    kernel_rig *r = rig(&tt_ops_ref);
    tt_attention_shape s = {HEADS, KV, QK, VD, 0.4, 4};
    const int64_t offset[] = {0, TOKENS};
    int32_t column[TOKENS];
    for (int t = 0; t < TOKENS; t++) column[t] = t;
    attention_run a = attention_mats(r, TOKENS);
    tt_mat clean = empty_mat(r, TOKENS, HEADS * VD);
    run_attention(r, &s, &(tt_docs){1, offset, column}, &a);
    copy_rows(a.o, 0, clean, 0, TOKENS);
    for (int j = 0; j < KV * VD; j++) kernel_set(a.v, 10, j, NAN);
    run_attention(r, &s, &(tt_docs){1, offset, column}, &a);
    expect_same_bits(tt_mat_rows(a.o, 0, 10), tt_mat_rows(clean, 0, 10), "before the token");
    expect_same_bits(tt_mat_rows(a.o, 14, TOKENS), tt_mat_rows(clean, 14, TOKENS), "after its window");
    for (int t = 10; t < 14; t++) assert_true(isnan(kernel_get(a.o, t, 0)));
    kernel_rig_destroy(&r);
}

static void huge_scores_choose_one_key(void **state)
{
    (void)state;
    for (int b = 0; b < NUM_BACKENDS; b++) {
        kernel_rig *r = rig(backends[b]);
        tt_attention_shape s = {1, 1, 1, 1, 1, 0};
        tt_mat q = empty_mat(r, 2, 1), k = empty_mat(r, 2, 1), v = empty_mat(r, 2, 1), o = empty_mat(r, 2, 1);
        tt_mat lse = empty_mat(r, 2, 1);
        kernel_set_all(q, 1e4);
        kernel_set(k, 0, 0, 1e4), kernel_set(k, 1, 0, -1e4);
        kernel_set(v, 0, 0, 3), kernel_set(v, 1, 0, 4);
        assert_ok(r->k->ops->attention(r->k, &s, &(tt_docs){1, (int64_t[]){0, 2}, NULL}, q, k, v, o, lse));
        assert_close(kernel_get(o, 1, 0), 3, 0);
        assert_close(kernel_get(lse, 1, 0), 1e8, 0);
        kernel_rig_destroy(&r);
    }
}

/* Scratch grows with the longest document, not with its square, and all of it comes back. */
static void attention_memory_is_linear(void **state)
{
    (void)state;
    int64_t peak[2];
    for (int i = 0; i < 2; i++) {
        kernel_rig *r = rig(&tt_ops_ref);
        int64_t T = 150 << i;
        tt_attention_shape s = {HEADS, KV, QK, VD, 0.4, 0};
        attention_run a = attention_mats(r, T);
        tt_arena_mark before = tt_arena_save(r->k->scratch);
        run_attention(r, &s, &(tt_docs){1, (int64_t[]){0, T}, NULL}, &a);
        tt_arena_mark after = tt_arena_save(r->k->scratch);
        assert_int_equal(before.used, after.used);
        peak[i] = tt_arena_peak(r->k->scratch);
        kernel_rig_destroy(&r);
    }
    assert_true(peak[1] <= 2 * peak[0]);
}

/* --- repetition ------------------------------------------------------------------------------------------------- */

static void the_same_call_gives_the_same_bits(void **state)
{
    (void)state;
    for (int c = 0; c < num_kernel_cases; c++) {
        kernel_rig *a = kernel_rig_create(&kernel_cases[c], &tt_ops_ref, TT_BF16, 1);
        kernel_rig *b = kernel_rig_create(&kernel_cases[c], &tt_ops_ref, TT_BF16, 4);
        kernel_rig *both[] = {a, b};
        for (int i = 0; i < 2; i++) {
            kernel_rig_forward(both[i]);
            if (a->c->backward) kernel_rig_backward(both[i]);
        }
        for (int i = 0; i < a->num_out; i++) expect_same_bits(a->out[i], b->out[i], a->c->name);
        for (int i = 0; i < a->num_in; i++)
            if (a->din[i].data) expect_same_bits(a->din[i], b->din[i], a->c->name);
        kernel_rig_destroy(&a);
        kernel_rig_destroy(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_keeps_lengths_and_sees_differences),
        cmocka_unit_test(interleaved_rope_is_half_split_rope_permuted),
        cmocka_unit_test(equal_rows_tie_exactly),
        cmocka_unit_test(groups_tie_to_the_lower_index),
        cmocka_unit_test(shifts_change_nothing),
        cmocka_unit_test(all_experts_may_be_chosen),
        cmocka_unit_test(replay_keeps_the_choice),
        cmocka_unit_test(nan_logits_give_ids_in_range),
        cmocka_unit_test(huge_logits_do_not_overflow),
        cmocka_unit_test(uniform_logits_lose_log_v),
        cmocka_unit_test(rows_without_target_add_nothing),
        cmocka_unit_test(a_document_does_not_see_its_neighbours),
        cmocka_unit_test(tokens_out_of_sight_do_not_count),
        cmocka_unit_test(huge_scores_choose_one_key),
        cmocka_unit_test(attention_memory_is_linear),
        cmocka_unit_test(the_same_call_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
