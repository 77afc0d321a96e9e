/* The mesh arithmetic for every world up to 12 ranks: what is refused, where ranks and experts stand. */
#include "support/test.h"

#include "tartan/mesh.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORLD = 12, MAX_EXPERTS = 14 };

/* --- sizes -------------------------------------------------------------------------------------------- */

/* The rule of the design, written once more in the plainest way; sizes are given, none 0. */
static bool is_legal(int world, int64_t fsdp, int64_t tp, int64_t ep, tt_dispatch_kind dispatch,
                     int64_t experts)
{
    if (fsdp < 1 || tp < 1 || ep < 1) return false;
    if (fsdp * tp != world) return false;
    if (world % ep != 0) return false;
    if (experts == 0 && ep > 1) return false;
    if (experts != 0 && experts < ep) return false;
    if (dispatch == TT_DISPATCH_ALLREDUCE && (ep != tp || experts % ep != 0)) return false;
    return true;
}

static void check_one(int world, tt_mesh_sizes asked, int64_t experts)
{
    tt_mesh_sizes s = asked;
    int64_t tp = asked.tp_size ? asked.tp_size : 1, ep = asked.ep_size ? asked.ep_size : 1;
    int64_t fsdp = asked.fsdp_size ? asked.fsdp_size : tp > 0 ? world / tp : 0;
    bool legal = is_legal(world, fsdp, tp, ep, asked.dispatch, experts);
    tt_status status = tt_mesh_resolve(&s, world, experts);
    if ((status == TT_OK) != legal || (status != TT_OK && status != TT_ECONFIG))
        fail_msg("W %d, fsdp %lld, tp %lld, ep %lld, dispatch %d, experts %lld: %s, expected %s (%s)", world,
                 (long long)asked.fsdp_size, (long long)asked.tp_size, (long long)asked.ep_size,
                 (int)asked.dispatch, (long long)experts, tt_status_name(status), legal ? "OK" : "ECONFIG",
                 status == TT_OK ? "" : tt_error_text());
    /* Resolved when legal, untouched when not. */
    assert_int_equal(s.fsdp_size, legal ? fsdp : asked.fsdp_size);
    assert_int_equal(s.tp_size, legal ? tp : asked.tp_size);
    assert_int_equal(s.ep_size, legal ? ep : asked.ep_size);
}

static void every_combination_up_to_12_ranks(void **state)
{
    (void)state;
    static const int64_t expert_counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13};
    for (int world = 1; world <= MAX_WORLD; world++)
        for (int64_t fsdp = -1; fsdp <= world + 1; fsdp++)
            for (int64_t tp = -1; tp <= world + 1; tp++)
                for (int64_t ep = -1; ep <= world + 1; ep++)
                    for (int d = 0; d < 3; d++)
                        for (size_t e = 0; e < sizeof expert_counts / sizeof *expert_counts; e++)
                            check_one(world, (tt_mesh_sizes){fsdp, tp, ep, (tt_dispatch_kind)d},
                                      expert_counts[e]);
}

static void refusals_name_both_numbers_and_the_remedy(void **state)
{
    (void)state;
    static const struct {
        int world;
        tt_mesh_sizes sizes;
        int64_t experts;
        const char *part;
    } cases[] = {
        {4, {-2, 0, 0, 0}, 8, "fsdp_size: -2 is below 1: give a size of at least 1"},
        {4, {0, -1, 0, 0}, 8, "tp_size: -1 is below 1"},
        {4, {0, 0, -7, 0}, 8, "ep_size: -7 is below 1"},
        {4, {0, 3, 0, 0}, 8, "tp_size 3 does not divide the 4 ranks: start a multiple of 3 ranks"},
        {4, {3, 2, 0, 0}, 8, "fsdp_size 3 * tp_size 2 = 6, but there are 4 ranks: start 6 ranks"},
        {4, {INT64_MAX, 2, 0, 0}, 8, "fsdp_size 9223372036854775807 * tp_size 2 is beyond 64 bits"},
        {4, {0, INT64_MAX, 0, 0}, 8, "tp_size 9223372036854775807 does not divide the 4 ranks"},
        {4, {0, 0, 3, 0}, 8, "ep_size 3 does not divide the 4 ranks: choose an ep_size that divides 4"},
        {4, {0, 0, INT64_MAX, 0}, 8, "ep_size 9223372036854775807 does not divide the 4 ranks"},
        {4, {0, 0, 2, 0}, 0, "ep_size is 2, but the model has 0 routed experts: leave ep_size out"},
        {8, {0, 0, 8, 0}, 6, "ep_size 8 is more than the model's 6 experts: choose an ep_size of at most 6"},
        {4,
         {0, 2, 4, TT_DISPATCH_ALLREDUCE},
         8,
         "ep_size 4 must equal tp_size 2; make them equal, or use alltoall"},
        {4, {0, 4, 4, TT_DISPATCH_ALLREDUCE}, 6, "6 experts do not divide over ep_size 4; use alltoall"},
        {4, {0, 0, 0, (tt_dispatch_kind)3}, 8, "expert_dispatch: 3 is none of"},
        {0, {0, 0, 0, 0}, 8, "a world of 0 ranks"},
        {1, {0, 0, 0, 0}, -1, "a model with -1 experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tt_mesh_sizes s = cases[i].sizes;
        assert_error(tt_mesh_resolve(&s, cases[i].world, cases[i].experts), TT_ECONFIG, cases[i].part);
    }
}

/* --- experts ------------------------------------------------------------------------------------------ */

static void blocks_and_owners_agree(void **state)
{
    (void)state;
    for (int ep = 1; ep <= MAX_WORLD; ep++)
        for (int64_t experts = 0; experts <= MAX_EXPERTS; experts++) {
            int64_t next = 0;
            for (int r = 0; r < ep; r++) {
                int64_t begin, end;
                tt_mesh_experts(experts, ep, r, &begin, &end);
                assert_int_equal(begin, next);
                assert_int_equal(end - begin, experts / ep + (r < experts % ep));
                for (int64_t e = begin; e < end; e++)
                    assert_int_equal(tt_mesh_expert_owner(experts, ep, e), r);
                next = end;
            }
            assert_int_equal(next, experts);
        }
}

/* --- groups ------------------------------------------------------------------------------------------- */

/* That the members of a group are these world ranks, in this order: each says who it is. */
static tt_status check_group(tt_group *group, int me, int first, int step, int size)
{
    int members[MAX_WORLD];
    TT_CHECK(tt_group_size(group) == size, TT_EVERDICT, "%d ranks, expected %d", tt_group_size(group), size);
    TT_TRY(tt_allgather(group, "members", &me, members, sizeof me));
    for (int i = 0; i < size; i++)
        TT_CHECK(members[i] == first + i * step, TT_EVERDICT, "rank %d: member %d is %d, expected %d", me, i,
                 members[i], first + i * step);
    TT_CHECK(members[tt_group_rank(group)] == me, TT_EVERDICT, "rank %d is not in its place", me);
    return TT_OK;
}

static tt_status check_mesh(const tt_mesh *m, const tt_mesh_sizes *s)
{
    int me = m->rank, tp = (int)s->tp_size, ep = (int)s->ep_size, world = m->world_size;
    TT_CHECK(m->fsdp_size == world / tp && m->tp_size == tp && m->ep_size == ep &&
                 m->efsdp_size == world / ep,
             TT_EVERDICT, "sizes");
    TT_CHECK(m->tp_rank == me % tp && m->fsdp_rank == me / tp, TT_EVERDICT, "tp_rank %d, fsdp_rank %d",
             m->tp_rank, m->fsdp_rank);
    TT_CHECK(m->ep_rank == me % ep && m->efsdp_rank == me / ep, TT_EVERDICT, "ep_rank %d, efsdp_rank %d",
             m->ep_rank, m->efsdp_rank);
    TT_TRY(check_group(m->world, me, 0, 1, world));
    TT_TRY(check_group(m->tp, me, me / tp * tp, 1, tp));
    TT_TRY(check_group(m->ep, me, me / ep * ep, 1, ep));
    TT_TRY(check_group(m->efsdp, me, me % ep, ep, world / ep));
    TT_CHECK(tt_group_rank(m->tp) == m->tp_rank && tt_group_rank(m->ep) == m->ep_rank &&
                 tt_group_rank(m->efsdp) == m->efsdp_rank,
             TT_EVERDICT, "rank %d: a rank in a group differs from the mesh's", me);
    return TT_OK;
}

/* All meshes of one world, one after the other on the same ranks. */
static tt_status every_mesh(tt_comm *comm, void *arg)
{
    (void)arg;
    int world = tt_comm_size(comm);
    tt_comm_set_timeout(comm, 30);
    for (int64_t tp = 1; tp <= world; tp++)
        for (int64_t ep = 1; ep <= world; ep++) {
            if (world % tp || world % ep) continue;
            tt_mesh_sizes s = {0, tp, ep, TT_DISPATCH_ALLTOALL};
            tt_mesh *m;
            TT_TRY(tt_mesh_create(comm, s, MAX_EXPERTS, &m));
            tt_status status = check_mesh(m, &s);
            tt_mesh_destroy(&m);
            if (status != TT_OK)
                return tt_error_context(status, "W %d, tp %lld, ep %lld", world, (long long)tp,
                                        (long long)ep);
        }
    return TT_OK;
}

static void ranks_and_groups_stand_where_the_design_says(void **state)
{
    (void)state;
    for (int world = 1; world <= MAX_WORLD; world++) assert_ok(tt_comm_run_threads(world, every_mesh, NULL));
}

static tt_status impossible_mesh(tt_comm *comm, void *arg)
{
    (void)arg;
    tt_mesh *m;
    tt_status status = tt_mesh_create(comm, (tt_mesh_sizes){.ep_size = 3}, 8, &m);
    TT_CHECK(!m, TT_EVERDICT, "a mesh was made");
    tt_mesh_destroy(&m);
    return status;
}

static void create_refuses_what_resolve_refuses(void **state)
{
    (void)state;
    assert_error(tt_comm_run_threads(2, impossible_mesh, NULL), TT_ECONFIG,
                 "ep_size 3 does not divide the 2 ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_up_to_12_ranks),
        cmocka_unit_test(refusals_name_both_numbers_and_the_remedy),
        cmocka_unit_test(blocks_and_owners_agree),
        cmocka_unit_test(ranks_and_groups_stand_where_the_design_says),
        cmocka_unit_test(create_refuses_what_resolve_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
