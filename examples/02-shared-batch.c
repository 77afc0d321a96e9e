/* 02-shared-batch.c - ranks that share a batch: eight steps on rows of 512 random tokens, with the same losses on any mesh.
 *
 *   build/examples/02-shared-batch MODEL                   one rank
 *   mpirun -n 4 build/examples/02-shared-batch MODEL       fsdp_size 2, tp_size 2, ep_size 2
 *   build/tartan init examples/chat/config.json MODEL      makes a small model of random weights
 *
 *   on four ranks        rank 0      rank 1        rank 2      rank 3
 *     rows               0, 2        0, 2          1, 3        1, 3          ranks of a pair pass the same rows
 *     experts of 8       0-3         4-7           0-3         4-7
 *
 * Each rank of a pair runs its experts on all of the pair's tokens, and the partial results are summed (expert_dispatch
 * allreduce): no token travels. Everything but the experts is computed by both and counts once. Four rows make a step
 * however many ranks there are, so the losses are the same up to rounding.
 */
#include "tartan/tartan.h"

#include <stdio.h>

enum { ROWS = 4, LENGTH = 512, STEPS = 8, SMALLEST_VOCABULARY = 96 };

/* The same numbers on every rank and run; another row for every index. */
static void random_row(int32_t ids[LENGTH], int row)
{
    uint32_t x = 2463534242u + (uint32_t)row * 7919u;
    for (int i = 0; i < LENGTH; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        ids[i] = (int32_t)(x % SMALLEST_VOCABULARY);
    }
}

static tt_status train(tt_comm *comm, const tt_trainer_options *options)
{
    tt_trainer *trainer;
    static int32_t ids[ROWS][LENGTH];
    tt_trainer_row rows[ROWS];
    tt_trainer_micro micro = {0, rows};
    TT_TRY(tt_trainer_open(comm, options, &trainer));
    const tt_mesh *mesh = tt_trainer_mesh(trainer);
    for (int r = mesh->fsdp_rank; r < ROWS; r += mesh->fsdp_size) { /* ranks that share a batch have one fsdp_rank */
        random_row(ids[r], r);
        rows[micro.num++] = (tt_trainer_row){LENGTH, ids[r], NULL};
    }
    if (mesh->rank == 0)
        printf("ranks %d: fsdp_size %d, tp_size %d, ep_size %d\n", mesh->world_size, mesh->fsdp_size, mesh->tp_size,
               mesh->ep_size);
    tt_status status = TT_OK;
    for (int step = 0; step < STEPS && status == TT_OK; step++) {
        tt_trainer_result result;
        status = tt_trainer_step(trainer, &micro, 1, 1e-3, &result);
        if (status == TT_OK && mesh->rank == 0)
            printf("step %d: loss %.6f, gradient norm %.6f, %lld tokens\n", step + 1, result.loss, result.grad_norm,
                   (long long)result.tokens);
    }
    tt_trainer_close(&trainer);
    return status;
}

int main(int argc, char **argv)
{
    tt_comm *comm;
    if (argc != 2) {
        fprintf(stderr, "usage: 02-shared-batch MODEL\n");
        return 2;
    }
    tt_status status = tt_comm_create(&comm);
    if (status != TT_OK) {
        fprintf(stderr, "02-shared-batch: %s\n", tt_error_text());
        return tt_status_exit(status);
    }
    int pair = tt_comm_size(comm) > 1 ? 2 : 1; /* an odd number of ranks is refused */
    tt_trainer_options options = TT_TRAINER_OPTIONS;
    options.model = argv[1];
    options.bf16 = false;
    options.mesh = (tt_mesh_sizes){.tp_size = pair, .ep_size = pair, .dispatch = TT_DISPATCH_ALLREDUCE};
    status = train(comm, &options);
    if (status != TT_OK) {
        /* A failure that the others do not know of must take them down too. */
        if (!tt_comm_agreed(comm)) tt_comm_abort(comm, tt_status_exit(status), tt_error_text());
        if (tt_comm_rank(comm) == 0) fprintf(stderr, "02-shared-batch: %s\n", tt_error_text());
    }
    tt_comm_destroy(&comm);
    return tt_status_exit(status);
}
