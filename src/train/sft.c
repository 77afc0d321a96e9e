#include "train/sft.h"
#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "data/sampler.h"
#include "train/checkpoints.h"
#include "train/flops.h"
#include "train/hosts.h"
#include "train/metrics.h"
#include "train/resume.h"
#include "train/schedule.h"
#include "train/state.h"
#include "train/statistics.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct job {
    tt_comm *comm;
    const tt_config *config;
    const tt_sft_hooks *hooks;
    int threads;
    tt_mesh_sizes mesh;
    tt_model_config model; /* read early, for checks */
    tt_host_view view;
    tt_sft_data data;
    tt_steps steps;
    tt_schedule schedule;
    tt_engine engine;
    double balance_coef;
    int64_t *order;        /* [rows] of the current epoch */
    int64_t order_epoch;
    int64_t *positions;    /* [batch] */
    tt_batch *micros;      /* [num_micros] of the longest step */
    int64_t num_micros;
    tt_checkpoint resumed; /* path NULL: the run begins anew */
    int64_t first_step;    /* done before */
    bool may_replace;      /* what stands in output_dir; known from the start, since pruning may take its reason away */
    int64_t last_step;     /* the run ends behind it: steps.total, unless it is stopped */
    tt_metrics metrics;
    tt_statistics statistics;
    tt_checkpoints checkpoints;
    tt_profiler profiler;
    tt_sft_report *report;
    int64_t shared_before; /* resident bytes of memory that processes share, before the model was opened */
} job;

/* --- stopping early ------------------------------------------------------------------------------------------------ */

/* One rank that was told to stop stops all, behind the same step; and a checkpoint that is written beside training gets its
 * name behind the step at which all have written. The exchange is its own and not part of the step's sums: a step knows
 * nothing of the run that it belongs to, the question comes before training too, and 16 bytes to each rank are nothing beside
 * the dozens of exchanges of a step. */
static tt_status look_around(job *j, int64_t done)
{
    int64_t found[] = {j->hooks && j->hooks->stop ? j->hooks->stop(j->hooks->user) : 0, tt_checkpoints_pending(&j->checkpoints)};
    TT_TRY(tt_allreduce_max_i64(tt_comm_world(j->comm), "stop", found, 2));
    if (found[0]) {
        j->report->stopped = (int)found[0];
        j->last_step = done;
    }
    return tt_checkpoints_poll(&j->checkpoints, found[1]);
}

/* The end of a phase before training. */
static tt_status end_phase(job *j, const char *name, tt_status status)
{
    TT_TRY(tt_agree(tt_comm_world(j->comm), name, status));
    return look_around(j, 0);
}

/* --- check: before anything is read at length -------------------------------------------------------------------- */

static tt_dtype compute_type(const tt_config *c)
{
    return c->bf16 == TT_FLAG_TRUE ? TT_BF16 : TT_F32;
}

static tt_dtype resident_type(const tt_config *c)
{
    return c->dtype == TT_PARAM_DTYPE_BFLOAT16 ? TT_BF16 : TT_F32;
}

static tt_dtype moments_type(const tt_config *c)
{
    return c->optim_state_dtype == TT_STATE_DTYPE_BFLOAT16 ? TT_BF16 : TT_F32;
}

/* The coefficient that was set, else the model's own; 0 is off. */
static tt_status find_balance(job *j)
{
    bool set = !isnan(j->config->router_aux_loss_coef);
    j->balance_coef = set ? j->config->router_aux_loss_coef : j->model.has_balance_loss ? j->model.balance_coef : 0;
    if (j->model.num_experts == 0) j->balance_coef = 0;
    TT_CHECK(j->balance_coef == 0 || j->model.has_balance_loss, TT_ECONFIG,
             "router_aux_loss_coef is %g, but models of family %s have no balance loss; leave it unset",
             j->balance_coef, j->model.family);
    return TT_OK;
}

/* A run that goes on in the folder of its checkpoint replaces what it left there itself. */
static bool may_replace(const tt_config *c)
{
    return c->overwrite_output_dir || tt_resume_here(c);
}

/* Whether the result will find its place, before a model is trained for it. Nothing is created yet. */
static tt_status check_output(const tt_config *c)
{
    struct stat st;
    const char *out = c->output_dir;
    TT_TRY(tt_config_require(c, TT_KEY_output_dir));
    if (stat(out, &st) != 0) {
        TT_CHECK(errno == ENOENT, TT_ECONFIG, "output_dir: '%.200s' cannot be a folder: %s", out, strerror(errno));
        return TT_OK;
    }
    TT_CHECK(S_ISDIR(st.st_mode), TT_ECONFIG, "output_dir: '%s' is a file; name a folder", out);
    TT_CHECK(access(out, W_OK | X_OK) == 0, TT_ECONFIG, "output_dir: cannot write into '%s': %s", out,
             strerror(errno));
    TT_CHECK(
        !tt_path_inside(c->model_name_or_path, out), TT_ECONFIG,
        "output_dir: model_name_or_path '%s' is or lies in '%s', and the model that is read is never written over; name "
        "another folder",
        c->model_name_or_path, out);
    TT_TRY(tt_resume_check_output(c));
    return tt_save_check(out, may_replace(c));
}

static tt_status check(job *j)
{
    const tt_config *c = j->config;
    j->may_replace = may_replace(c);
    tt_mesh_sizes sizes = tt_config_mesh_sizes(c);
    TT_TRY(tt_sft_load_model_config(c, &j->model));
    TT_TRY(tt_config_require(c, TT_KEY_dataset_name));
    TT_TRY(tt_engine_check_mesh(&sizes, tt_comm_size(j->comm), &j->model));
    TT_CHECK(resident_type(c) == TT_F32 || compute_type(c) == TT_BF16, TT_ECONFIG,
             "dtype: bfloat16 holds weights in bfloat16; fp32 products of them need dtype: float32, or set bf16: true");
    j->mesh = sizes;
    TT_TRY(find_balance(j));
    return check_output(c);
}

/* --- prepare ----------------------------------------------------------------------------------------------------- */

static tt_status prepare(job *j)
{
    const tt_config *c = j->config;
    TT_TRY(tt_sft_load_data(c, j->model.vocab_size, j->threads, &j->data));
    TT_CHECK(tt_dataset_rows(j->data.rows) <= INT32_MAX, TT_EDATA, "'%s' has %lld rows; at most %d can be numbered",
             c->dataset_name, (long long)tt_dataset_rows(j->data.rows), INT32_MAX);
    j->steps = (tt_steps){
        .rows = tt_dataset_rows(j->data.rows),
        .batch = c->per_device_train_batch_size,
        .ranks = j->mesh.fsdp_size,
        .accumulation = c->gradient_accumulation_steps,
        .epochs = c->num_train_epochs,
        .max_steps = c->max_steps,
        .drop_last = c->dataloader_drop_last,
        .even_batches = c->even_batches,
    };
    TT_TRY(tt_steps_init(&j->steps));
    int64_t warmup = tt_schedule_warmup(c->warmup_steps, j->steps.total);
    TT_TRY(tt_schedule_init(&j->schedule, c->lr_scheduler_type, c->lr_scheduler_kwargs, c->learning_rate, j->steps.total,
                            warmup));
    j->last_step = j->report->total = j->steps.total;
    j->order_epoch = -1;
    j->order = malloc((size_t)j->steps.rows * sizeof *j->order);
    j->positions = malloc((size_t)j->steps.batch * sizeof *j->positions);
    j->num_micros = tt_min_i64(j->steps.accumulation, j->steps.micro_batches);
    j->micros = calloc((size_t)j->num_micros, sizeof *j->micros);
    TT_CHECK(j->order && j->positions && j->micros, TT_ENOMEM, "out of memory for the order of %lld rows",
             (long long)j->steps.rows);
    return TT_OK;
}

/* For micro-steps of so many tokens. */
static tt_memory_shape memory_shape(const job *j, int64_t tokens, int64_t targets)
{
    const tt_config *c = j->config;
    return (tt_memory_shape){
        .mesh = j->mesh,
        .world_size = tt_comm_size(j->comm),
        .precision = {resident_type(c), compute_type(c), TT_F32, moments_type(c)},
        .train = true,
        .moments = c->optim != TT_OPTIMIZER_SGD,
        .recompute = c->gradient_checkpointing,
        .kept_layers = TT_KEPT_LAYERS,
        .tokens = tokens,
        .targets = targets,
        .loss_chunk = TT_LOSS_CHUNK,
        .copy = c->async_save && c->save_strategy != TT_SAVING_NO,
        .copy_moments = !c->save_only_model,
    };
}

/* Before weights are read: what does not fit is refused before they are. */
static tt_status choose_memory(job *j)
{
    const tt_config *c = j->config;
    int64_t tokens = 0, targets = 0, limit = c->max_memory == TT_CONFIG_UNSET ? 0 : c->max_memory;
    TT_TRY(tt_agree(tt_comm_world(j->comm), "prepare", tt_planner_largest(j->data.rows, j->steps.batch, &tokens, &targets)));
    tt_memory_shape shape = memory_shape(j, tokens, targets);
    return tt_planner_choose(j->comm, limit, &j->model, &shape, &j->report->choice);
}

/* As planned, and a quarter and SPARE more for what the plan leaves out. */
static void expect_memory(job *j)
{
    enum { SPARE = 32 << 20 };
    const tt_model *m = &j->engine.model;
    const int64_t *planned = j->report->choice.plan.bytes;
    tt_arena *arenas[] = {m->keep, m->work, m->kernel->scratch};
    tt_memory_term terms[] = {TT_MEMORY_KEPT, TT_MEMORY_BLOCK, TT_MEMORY_SCRATCH};
    for (int i = 0; i < 3; i++) tt_arena_expect(arenas[i], planned[terms[i]] + planned[terms[i]] / 4 + SPARE);
}

/* Every rank has prepared the data for itself: the same on every host? */
static tt_status check_data(job *j)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};
    enum { NAMES = sizeof names / sizeof *names };
    char files[NAMES][4096];
    const char *paths[NAMES + 2] = {tt_dataset_path(j->data.rows), j->config->chat_template_path};
    for (int i = 0; i < NAMES; i++) {
        TT_TRY(tt_path_join(files[i], sizeof files[i], j->config->model_name_or_path, names[i]));
        paths[i + 2] = files[i];
    }
    return tt_hosts_check_data(j->comm, &j->view, tt_dataset_fingerprint(j->data.rows), paths, NAMES + 2);
}

static tt_run run_of(const job *j, const tt_params *params)
{
    return (tt_run){j->config, params, &j->steps, tt_dataset_fingerprint(j->data.rows)};
}

/* Whether the checkpoint is one that this run may go on from, before its weights are read. */
static tt_status check_resumed(job *j)
{
    tt_model_table table;
    if (!j->resumed.path) return TT_OK;
    TT_TRY(tt_model_table_build(&j->model, &table));
    tt_run run = run_of(j, &table.params);
    tt_status status = tt_state_check(&run, &j->resumed);
    tt_model_table_free(&table);
    j->first_step = j->report->resumed = j->resumed.step;
    return status;
}

static tt_status open_metrics(job *j, const char *path)
{
    json_t *history;
    bool balance = j->balance_coef != 0;
    if (!j->resumed.path) return tt_metrics_open(&j->metrics, path, balance);
    TT_TRY(tt_state_history(&j->resumed, &history));
    tt_status status = tt_metrics_continue(&j->metrics, path, history, balance);
    json_decref(history);
    return status;
}

/* The final model is about as large as what is read; better to know now that it has no room. */
static tt_status check_room(const job *j)
{
    int64_t bytes = 0;
    const tt_st_folder *f = &j->engine.source.folder;
    for (int i = 0; i < f->num_files; i++) bytes += f->files[i].size;
    return tt_dir_room(j->config->output_dir, j->config->save_dtype ? 0 : bytes);
}

/* output_dir with the resolved configuration and the records so far. */
static tt_status create_output(job *j)
{
    char path[4096];
    const tt_config *c = j->config;
    if (tt_comm_rank(j->comm) > 0) return tt_metrics_open(&j->metrics, NULL, j->balance_coef != 0);
    TT_TRY(tt_dir_create(c->output_dir));
    TT_TRY(check_room(j));
    TT_TRY(tt_resume_clear(c));
    TT_TRY(tt_path_join(path, sizeof path, c->output_dir, "tartan_config.yaml"));
    TT_TRY(tt_config_write(path, c));
    TT_TRY(tt_path_join(path, sizeof path, c->output_dir, "metrics.jsonl"));
    return open_metrics(j, path);
}

static tt_save_options save_options(const job *j)
{
    return (tt_save_options){
        .source = &j->engine.source,
        .save_dtype = j->config->save_dtype,
        .config = j->engine.config.source,
        .aux_folder = j->config->model_name_or_path,
        .overwrite = j->may_replace,
    };
}

/* With the output folder there: what records and checkpoints go on from. */
static tt_status begin_output(job *j)
{
    TT_TRY(create_output(j));
    j->checkpoints = (tt_checkpoints){
        .config = j->config,
        .shards = j->engine.shards,
        .model = save_options(j),
        .total = j->steps.total,
        /* What training does not know is copied from there into every checkpoint, and into the final model. */
        .spare = j->resumed.path && j->engine.source.carried_bytes > 0 ? j->resumed.path : NULL,
    };
    return j->resumed.path ? tt_state_restore(&j->resumed, &j->metrics, &j->statistics) : TT_OK;
}

/* What speed is held against, and told by. A model that is smaller than this takes no longer to train a little than to measure
 * the machine, and could not use it anyway. */
static tt_status begin_measuring(job *j)
{
    enum { SMALL = 1 << 24 };
    if (tt_params_total(&j->engine.table.params) >= SMALL)
        TT_TRY(tt_flops_rate(j->engine.mesh->world, j->engine.kernel, &j->metrics.rate));
    if (j->config->profile) return tt_profiler_open(&j->profiler, j->comm, j->engine.kernel);
    char path[4096]; /* an earlier run's would be taken for this one's */
    TT_TRY(tt_path_join(path, sizeof path, j->config->output_dir, "trace.json"));
    if (tt_comm_rank(j->comm) == 0) unlink(path);
    return TT_OK;
}

static tt_status open_model(job *j)
{
    const tt_config *c = j->config;
    tt_read_watch watch = {0};
    if (j->hooks && tt_comm_rank(j->comm) == 0) watch = (tt_read_watch){.progress = j->hooks->loading, .user = j->hooks->user};
    tt_engine_options o = {
        .watch = &watch,
        .folder = j->resumed.path ? j->resumed.path : c->model_name_or_path,
        .checkpoint = j->resumed.path ? &j->resumed : NULL,
        .mesh = tt_config_mesh_sizes(c),
        .resident = resident_type(c),
        .compute = compute_type(c),
        .moments = moments_type(c),
        .threads = j->threads,
        .train = true,
        .with_moments = c->optim != TT_OPTIMIZER_SGD,
    };
    TT_TRY(tt_engine_open(j->comm, &o, &j->engine));
    j->engine.model.recompute = c->gradient_checkpointing;
    j->engine.model.kept_layers = j->report->choice.kept_layers;
    expect_memory(j);
    return tt_statistics_begin(&j->statistics, &j->engine.model);
}

/* --- train ------------------------------------------------------------------------------------------------------- */

static tt_status set_epoch(job *j, int64_t epoch)
{
    const tt_config *c = j->config;
    if (epoch == j->order_epoch) return TT_OK;
    j->order_epoch = epoch;
    if (c->train_sampling_strategy == TT_SAMPLING_SEQUENTIAL) {
        tt_order_sequential(j->steps.rows, j->order);
        return TT_OK;
    }
    uint64_t seed = (uint64_t)(c->data_seed == TT_CONFIG_UNSET ? c->seed : c->data_seed);
    return tt_order_random(seed, epoch, j->steps.rows, j->order);
}

/* This rank's rows of micro-batch `micro` of the current epoch. */
static tt_status fill_micro(job *j, int64_t micro, tt_batch *b)
{
    int64_t n = tt_steps_rows(&j->steps, micro, j->engine.mesh->fsdp_rank, j->positions);
    tt_batch_clear(b);
    for (int64_t i = 0; i < n; i++) {
        int64_t place = j->order[j->positions[i]], row = j->data.shuffled ? j->data.shuffled[place] : place;
        tt_batch_row r = {0};
        tt_dataset_row(j->data.rows, row, &r.ids, &r.labels, &r.length);
        /* Numbered by its place in the data set, which is the same everywhere and leads back to the file. */
        TT_TRY(tt_batch_add(b, &r, (int32_t)row, j->model.vocab_size));
    }
    return TT_OK;
}

static void row_name(void *user, int32_t row, char *out, size_t size)
{
    const job *j = user;
    int64_t index, line;
    tt_dataset_source(j->data.rows, row, &index, &line);
    snprintf(out, size, "row %lld (line %lld)", (long long)index, (long long)line);
}

static tt_step_options step_options(job *j, int64_t step, int64_t micro_steps)
{
    const tt_config *c = j->config;
    return (tt_step_options){
        .optimizer = c->optim == TT_OPTIMIZER_SGD ? TT_OPTIM_SGD : TT_OPTIM_ADAMW,
        .lr = tt_schedule_rate(&j->schedule, step),
        .beta1 = c->adam_beta1,
        .beta2 = c->adam_beta2,
        .eps = c->adam_epsilon,
        .weight_decay = c->weight_decay,
        .max_grad_norm = c->max_grad_norm,
        .step = step + 1,
        .balance = j->balance_coef / (double)micro_steps,
        .balance_scope = c->router_aux_loss_scope,
        .seed = (uint64_t)c->seed,
        .nonfinite = c->nonfinite,
        .row_name = row_name,
        .row_user = j,
    };
}

static bool logs_after(const job *j, int64_t done, const tt_step_span *span)
{
    const tt_config *c = j->config;
    if (c->logging_strategy == TT_INTERVAL_NO) return false;
    if (c->logging_first_step && done == 1) return true;
    if (c->logging_strategy == TT_INTERVAL_EPOCH)
        return span->first + span->count == j->steps.micro_batches || done == j->last_step;
    return done % tt_steps_interval(c->logging_steps, j->steps.total) == 0;
}

/* Checkpoint behind `done` steps, when it is time. */
static tt_status save_checkpoint(job *j, int64_t done, const tt_step_span *span)
{
    json_t *train, *state = NULL;
    bool last = done == j->last_step, epoch_ends = span->first + span->count == j->steps.micro_batches;
    if (!tt_checkpoints_due(&j->checkpoints, done, epoch_ends, last)) return TT_OK;
    tt_run run = run_of(j, &j->engine.table.params);
    TT_TRY(tt_state_train(&run, done, &j->metrics, &j->statistics, &train));
    if (j->engine.mesh->rank == 0) state = tt_state_trainer(&run, done, &j->metrics);
    tt_status status = tt_checkpoints_save(&j->checkpoints, done, last, train, state);
    json_decref(train);
    json_decref(state);
    return status;
}

static void tell(job *j, int64_t done, const tt_step_options *o, const tt_step_result *r, double began, double start)
{
    double now = tt_seconds();
    if (!j->hooks || !j->hooks->progress || tt_comm_rank(j->comm) > 0) return;
    tt_progress p = {
        .step = done,
        .total = j->steps.total,
        .epoch = tt_steps_epoch(&j->steps, done),
        .loss = r->loss,
        .grad_norm = r->grad_norm,
        .learning_rate = o->lr,
        .tokens_per_second = (double)r->tokens / fmax(now - began, 1e-9),
        .seconds_left = (now - start) / (double)(done - j->first_step) * (double)(j->steps.total - done),
    };
    j->hooks->progress(j->hooks->user, &p);
}

static tt_status record(job *j, int64_t done, double rate, double norm)
{
    json_t *extra = json_object();
    tt_status status = tt_statistics_record(&j->statistics, extra);
    if (status == TT_OK) status = tt_profiler_record(&j->profiler, extra);
    if (status == TT_OK) status = tt_metrics_record(&j->metrics, done, tt_steps_epoch(&j->steps, done), rate, norm, extra);
    json_decref(extra);
    return status;
}

/* This rank's rows of a step. */
static tt_status fill_step(job *j, const tt_step_span *span, int64_t *samples)
{
    TT_PHASE(j->profiler.profile, DATA);
    TT_TRY(set_epoch(j, span->epoch));
    for (int64_t i = 0; i < span->count; i++) {
        TT_TRY(fill_micro(j, span->first + i, &j->micros[i]));
        if (j->engine.mesh->tp_rank == 0) *samples += j->micros[i].docs.num; /* ranks that share a batch count once */
    }
    return TT_OK;
}

static tt_status one_step(job *j, int64_t step, double start, int64_t *samples)
{
    double began = tt_seconds();
    tt_step_span span = tt_steps_span(&j->steps, step);
    tt_profiler_step_begin(&j->profiler, step + 1);
    TT_TRY(fill_step(j, &span, samples));
    tt_step_options o = step_options(j, step, span.count);
    tt_step_result r;
    TT_TRY(tt_train_step(&j->engine.model, j->micros, (int)span.count, &o, &r));
    tt_metrics_add(&j->metrics, &r, (int)span.count);
    tell(j, step + 1, &o, &r, began, start);
    if (step + 1 < j->steps.total) TT_TRY(look_around(j, step + 1));
    tt_profiler_step_end(&j->profiler);
    if (logs_after(j, step + 1, &span)) TT_TRY(record(j, step + 1, o.lr, r.grad_norm));
    return save_checkpoint(j, step + 1, &span);
}

static tt_status train(job *j)
{
    double start = tt_seconds();
    int64_t samples = 0, tokens = j->metrics.total_tokens;
    for (int64_t step = j->first_step; step < j->last_step; step++) TT_TRY(one_step(j, step, start, &samples));
    double seconds = tt_seconds() - start;
    TT_TRY(tt_allreduce_i64(j->engine.mesh->world, "samples", &samples, 1));
    j->report->steps = j->last_step;
    j->report->tokens = j->metrics.total_tokens - tokens;
    j->report->seconds = seconds;
    j->report->train_loss = j->metrics.total_loss / (double)j->metrics.total_steps;
    TT_TRY(tt_profiler_report(&j->profiler, &j->report->profile));
    return tt_metrics_final(&j->metrics, j->last_step, tt_steps_epoch(&j->steps, j->last_step), seconds,
                            j->last_step - j->first_step, samples);
}

/* --- save -------------------------------------------------------------------------------------------------------- */

static tt_status save(job *j)
{
    tt_save_report saved;
    tt_save_options o = save_options(j);
    return tt_save_model(j->config->output_dir, j->engine.shards, &o, &saved);
}

/* Where the time went, when that was asked for. Behind all that is saved, and never a reason for the run to fail. */
static void write_trace(job *j)
{
    char path[4096];
    tt_status status = tt_path_join(path, sizeof path, j->config->output_dir, "trace.json");
    if (status == TT_OK) status = tt_profiler_trace(&j->profiler, path);
    if (status != TT_OK && tt_comm_rank(j->comm) == 0) tt_warn("no trace: %s", tt_error_text());
}

/* Behind the last step: the save that may be under way, and the model, unless a run that was stopped left a checkpoint. */
static tt_status finish(job *j, tt_status status)
{
    status = tt_checkpoints_end(&j->checkpoints, status);
    if (status != TT_OK || j->last_step == 0) return status;
    j->report->checkpoint = j->checkpoints.newest;
    j->report->checkpoints = j->checkpoints.num;
    j->report->save_seconds = j->checkpoints.seconds;
    if (!j->report->stopped || j->config->save_strategy == TT_SAVING_NO) status = save(j);
    if (status == TT_OK) write_trace(j);
    return status;
}

/* --- together ---------------------------------------------------------------------------------------------------- */

static int64_t resident_bytes(void)
{
    long long pages = 0, size;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%lld %lld", &size, &pages) != 2) pages = 0;
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/* RssShmem: what is resident in memory that processes share. VmHWM: most that was resident, of this program alone; what getrusage
 * says begins with the process that started it. */
static int64_t status_bytes(const char *name)
{
    char line[256];
    long long kilobytes = 0;
    size_t n = strlen(name);
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, ": %lld", &kilobytes) == 1) break;
    fclose(f);
    return kilobytes * 1024;
}

/* Most that was resident. What ranks share is resident in each that has touched it: each counts the part that it provides. */
static int64_t peak_bytes(const job *j)
{
    int64_t provided = j->engine.shards ? tt_shards_bytes(j->engine.shards).shared : 0;
    int64_t of_others = status_bytes("RssShmem") - j->shared_before - provided;
    return status_bytes("VmHWM") - (provided > 0 ? tt_max_i64(of_others, 0) : 0);
}

static void announce_memory(const job *j)
{
    const tt_memory_choice *c = &j->report->choice;
    char limit[80] = "";
    if (j->config->max_memory != TT_CONFIG_UNSET)
        snprintf(limit, sizeof limit, ", of %.1f MiB (max_memory)", (double)j->config->max_memory / 1048576);
    tt_info("memory: %lld of %lld layers keep their activations; at most %.1f MiB planned for the %d rank%s of a host, 5 %% of it in "
            "reserve%s",
            (long long)c->kept_layers, (long long)j->model.num_layers, (double)c->bytes / 1048576, c->ranks, c->ranks > 1 ? "s" : "",
            limit);
}

static void announce(const job *j)
{
    const tt_mesh *m = j->engine.mesh;
    const tt_params *p = &j->engine.table.params;
    char loaded[200];
    tt_load_summary_text(&j->engine.loaded, loaded, sizeof loaded);
    tt_info("model: %s, %lld parameters (%lld active per token) in %lld tensors", j->engine.config.family,
            (long long)tt_params_total(p), (long long)tt_params_active(p, j->engine.config.experts_per_token),
            (long long)j->engine.source.folder.num_tensors);
    tt_info("loaded: %s", loaded);
    tt_info("mesh: %d rank%s x %d thread%s, fsdp_size %d, ep_size %d; %s", m->world_size, m->world_size > 1 ? "s" : "",
            j->threads, j->threads > 1 ? "s" : "", m->fsdp_size, m->ep_size,
            compute_type(j->config) == TT_BF16 ? "bf16 products" : "fp32");
    const tt_data_report *d = tt_dataset_report(j->data.rows);
    tt_info("data: %lld rows, %lld tokens, %lld of them trained; %lld steps", (long long)d->rows_kept,
            (long long)d->tokens, (long long)d->targets, (long long)j->steps.total);
    if (j->resumed.path)
        tt_info("resumed: '%s', step %lld of %lld, epoch %.2f", j->resumed.path, (long long)j->first_step, (long long)j->steps.total,
                tt_steps_epoch(&j->steps, j->first_step));
}

static void close_job(job *j)
{
    for (int64_t i = 0; j->micros && i < j->num_micros; i++) tt_batch_free(&j->micros[i]);
    free(j->micros);
    free(j->order);
    free(j->positions);
    tt_metrics_close(&j->metrics);
    tt_statistics_end(&j->statistics);
    tt_profiler_close(&j->profiler);
    tt_engine_close(&j->engine);
    tt_checkpoint_close(&j->resumed);
    tt_sft_data_free(&j->data);
    tt_model_config_free(&j->model);
}

/* Up to the first step; stopped on the way, it leaves nothing in output_dir. */
static tt_status set_up(job *j)
{
    const tt_config *c = j->config;
    tt_comm_set_phase(j->comm, "check");
    j->view = (tt_host_view){.model = c->model_name_or_path, .data = c->dataset_name, .output = c->output_dir};
    TT_TRY(tt_hosts_check(j->comm, &j->view));
    TT_TRY(end_phase(j, "check", check(j)));
    if (j->report->stopped) return TT_OK;
    if (c->resume_from_checkpoint) TT_TRY(tt_resume_open(j->comm, c, j->threads, &j->resumed));
    tt_comm_set_phase(j->comm, "prepare");
    TT_TRY(end_phase(j, "prepare", prepare(j)));
    TT_TRY(check_data(j));
    TT_TRY(tt_agree(tt_comm_world(j->comm), "resume", check_resumed(j)));
    TT_TRY(choose_memory(j));
    if (j->report->stopped) return TT_OK;
    announce_memory(j);
    j->report->resident_before = resident_bytes();
    j->shared_before = status_bytes("RssShmem");
    TT_TRY(end_phase(j, "statistics", open_model(j)));
    if (j->report->stopped) return TT_OK;
    TT_TRY(tt_agree(tt_comm_world(j->comm), "output", begin_output(j)));
    TT_TRY(begin_measuring(j));
    announce(j);
    return TT_OK;
}

tt_status tt_sft(tt_comm *comm, const tt_config *config, const tt_sft_hooks *hooks, tt_sft_report *report)
{
    *report = (tt_sft_report){0};
    job j = {.comm = comm, .config = config, .hooks = hooks, .report = report};
    tt_comm_set_timeout(comm, (double)config->ddp_timeout);
    j.threads = tt_comm_threads_per_rank(comm, (int)config->threads);
    tt_status status = set_up(&j);
    if (status == TT_OK && j.last_step > 0) status = train(&j);
    status = finish(&j, status);
    report->measured = peak_bytes(&j);
    close_job(&j);
    return status;
}
