/* 01-train.c - fine-tuning from a program of one's own: eight steps on rows of random tokens, then a save.
 *
 *   build/examples/01-train MODEL OUT [EP_SIZE [TP_SIZE]]
 *   mpirun -n 4 build/examples/01-train MODEL OUT 2 2       tp_size 2: pairs of ranks share a batch
 */
#include "tartan/tartan.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 2, LENGTH = 64, STEPS = 8, SMALLEST_VOCABULARY = 96 };

/* The same numbers on every run; different rows for every batch. */
static void random_rows(int32_t ids[ROWS][LENGTH], int batch)
{
    uint32_t x = 2463534242u + (uint32_t)batch * 7919u;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < LENGTH; i++) {
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            ids[r][i] = (int32_t)(x % SMALLEST_VOCABULARY);
        }
}

static tt_status train(tt_comm *comm, const tt_trainer_options *options, const char *out)
{
    tt_trainer *trainer;
    TT_TRY(tt_trainer_open(comm, options, &trainer));
    tt_status status = TT_OK;
    for (int step = 0; step < STEPS && status == TT_OK; step++) {
        int32_t ids[ROWS][LENGTH];
        tt_trainer_row rows[ROWS];
        tt_trainer_result result;
        random_rows(ids, tt_trainer_mesh(trainer)->fsdp_rank);
        for (int r = 0; r < ROWS; r++) rows[r] = (tt_trainer_row){LENGTH, ids[r], NULL};
        tt_trainer_micro micro = {ROWS, rows};
        status = tt_trainer_step(trainer, &micro, 1, 1e-2, &result);
        if (status == TT_OK && tt_comm_rank(comm) == 0)
            printf("step %d: loss %.4f, gradient norm %.4f, %lld tokens\n", step + 1, result.loss, result.grad_norm,
                   (long long)result.tokens);
    }
    if (status == TT_OK) status = tt_trainer_save(trainer, out, true);
    tt_trainer_close(&trainer);
    return status;
}

int main(int argc, char **argv)
{
    tt_comm *comm;
    if (argc < 3) {
        fprintf(stderr, "usage: 01-train MODEL OUT [EP_SIZE [TP_SIZE]]\n");
        return 2;
    }
    tt_trainer_options options = TT_TRAINER_OPTIONS;
    options.model = argv[1];
    options.bf16 = false;
    options.mesh.ep_size = argc > 3 ? atoi(argv[3]) : 1;
    options.mesh.tp_size = argc > 4 ? atoi(argv[4]) : 1;
    tt_status status = tt_comm_create(&comm);
    if (status != TT_OK) {
        fprintf(stderr, "01-train: %s\n", tt_error_text());
        return tt_status_exit(status);
    }
    status = train(comm, &options, argv[2]);
    if (status != TT_OK) {
        /* A failure that the others do not know of must take them down too. */
        if (!tt_comm_agreed(comm)) tt_comm_abort(comm, tt_status_exit(status), tt_error_text());
        if (tt_comm_rank(comm) == 0) fprintf(stderr, "01-train: %s\n", tt_error_text());
    }
    tt_comm_destroy(&comm);
    return tt_status_exit(status);
}
