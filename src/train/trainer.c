/* trainer.c - the public face of the engine (tartan/trainer.h). */
#include "tartan/trainer.h"
#include "train/engine.h"
#include "train/hosts.h"

#include <stdlib.h>

struct tt_trainer {
    tt_trainer_options options;
    tt_engine engine;
    tt_batch *micros;
    int num_micros; /* allocated */
    int64_t step;
};

tt_status tt_trainer_open(tt_comm *comm, const tt_trainer_options *options, tt_trainer **out)
{
    *out = NULL;
    TT_CHECK(options->model, TT_ECONFIG, "tt_trainer_options.model is NULL; it names the model's folder");
    TT_CHECK(options->kept_layers >= 0, TT_ECONFIG, "tt_trainer_options.kept_layers is %lld; it is 0 or more",
             (long long)options->kept_layers);
    TT_TRY(tt_hosts_check(comm, &(tt_host_view){.model = options->model}));
    tt_trainer *t = calloc(1, sizeof *t);
    TT_CHECK(t, TT_ENOMEM, "out of memory");
    t->options = *options;
    tt_engine_options e = {
        .folder = options->model,
        .mesh = options->mesh,
        .resident = TT_F32,
        .compute = options->bf16 ? TT_BF16 : TT_F32,
        .moments = TT_F32,
        .threads = tt_comm_threads_per_rank(comm, options->threads),
        .train = true,
        .with_moments = !options->sgd,
    };
    tt_status status = tt_ops_default(&e.ops);
    if (status == TT_OK) status = tt_engine_open(comm, &e, &t->engine);
    if (status == TT_OK && options->balance != 0 && !t->engine.config.has_balance_loss)
        status = tt_agree(tt_comm_world(comm), "options",
                          tt_error_set(TT_ECONFIG, "tt_trainer_options.balance is %g, but models of family %s have no "
                                       "balance loss; set 0", options->balance, t->engine.config.family));
    if (status != TT_OK) {
        tt_engine_close(&t->engine);
        free(t);
        return status;
    }
    if (tt_comm_rank(comm) == 0) tt_model_config_warn(&t->engine.config);
    t->engine.model.recompute = options->recompute;
    t->engine.model.kept_layers = options->kept_layers;
    *out = t;
    return TT_OK;
}

void tt_trainer_close(tt_trainer **trainer)
{
    tt_trainer *t = *trainer;
    *trainer = NULL;
    if (!t) return;
    for (int i = 0; i < t->num_micros; i++) tt_batch_free(&t->micros[i]);
    free(t->micros);
    tt_engine_close(&t->engine);
    free(t);
}

const tt_mesh *tt_trainer_mesh(const tt_trainer *t)
{
    return t->engine.mesh;
}

static tt_status fill(tt_trainer *t, const tt_trainer_micro *micros, int num)
{
    if (num > t->num_micros) {
        tt_batch *grown = realloc(t->micros, (size_t)num * sizeof *grown);
        TT_CHECK(grown, TT_ENOMEM, "out of memory for %d micro-steps", num);
        for (int i = t->num_micros; i < num; i++) grown[i] = (tt_batch){0};
        t->micros = grown;
        t->num_micros = num;
    }
    for (int i = 0; i < num; i++) {
        tt_batch_clear(&t->micros[i]);
        for (int64_t r = 0; r < micros[i].num; r++) {
            const tt_trainer_row *row = &micros[i].rows[r];
            tt_batch_row b = {.length = row->length, .ids = row->ids, .labels = row->labels};
            TT_TRY(tt_batch_add(&t->micros[i], &b, (int32_t)r, t->engine.config.vocab_size));
        }
    }
    return TT_OK;
}

tt_status tt_trainer_step(tt_trainer *t, const tt_trainer_micro *micros, int num, double lr, tt_trainer_result *result)
{
    const tt_trainer_options *o = &t->options;
    tt_step_result r;
    TT_TRY(tt_agree(t->engine.mesh->world, "trainer-rows", fill(t, micros, num)));
    tt_step_options s = {
        .optimizer = o->sgd ? TT_OPTIM_SGD : TT_OPTIM_ADAMW,
        .lr = lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->epsilon,
        .weight_decay = o->weight_decay,
        .max_grad_norm = o->max_grad_norm,
        .step = t->step + 1,
        .balance = num > 0 ? o->balance / num : 0,
        .balance_scope = o->balance_by_rank ? TT_BALANCE_RANK : TT_BALANCE_GLOBAL,
    };
    TT_TRY(tt_train_step(&t->engine.model, t->micros, num, &s, &r));
    t->step++;
    *result = (tt_trainer_result){r.loss, r.grad_norm, r.accuracy, r.tokens, r.targets};
    return TT_OK;
}

tt_status tt_trainer_save(tt_trainer *t, const char *folder, bool overwrite)
{
    tt_save_report report;
    tt_save_options o = {
        .source = &t->engine.source,
        .config = t->engine.config.source,
        .aux_folder = t->engine.source.folder.path,
        .overwrite = overwrite,
    };
    return tt_save_model(folder, t->engine.shards, &o, &report);
}
