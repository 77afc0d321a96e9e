/* cmd_sft.c - tartan sft CONFIG.yaml [--key value ...]: supervised fine-tuning. */
#include "base/log.h"
#include "cli/options.h"
#include "cli/stop.h"
#include "train/sft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define START_SECONDS 120

typedef struct bar {
    bool terminal;
    bool open; /* a line that is written over stands there */
    int64_t last_percent;
} bar;

static void duration(char *out, size_t size, double seconds)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600) snprintf(out, size, "%lldh%02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    else snprintf(out, size, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
}

/* On a terminal one line that is written over; elsewhere a line for each percent. */
static void show(void *user, const tt_progress *p)
{
    bar *b = user;
    char left[32];
    int64_t percent = 100 * p->step / p->total;
    bool last = p->step == p->total;
    if (!b->terminal && percent == b->last_percent && !last && p->step > 1) return;
    b->last_percent = percent;
    duration(left, sizeof left, p->seconds_left);
    b->open = b->terminal && !last;
    fprintf(stderr, "%sstep %lld/%lld  epoch %.2f  loss %.4f  norm %.3f  lr %.3g  %.0f tokens/s  %s left%s",
            b->terminal ? "\r\033[K" : "", (long long)p->step, (long long)p->total, p->epoch, p->loss, p->grad_norm,
            p->learning_rate, p->tokens_per_second, left, b->open ? "" : "\n");
    fflush(stderr);
}

static void show_loading(void *user, int64_t done, int64_t total, double seconds)
{
    bar *b = user;
    char left[32];
    duration(left, sizeof left, seconds * (double)(total - done) / (double)done);
    b->open = b->terminal && done < total;
    fprintf(stderr, "%sloading  %.2f of %.2f GB on rank 0  %.2f GB/s  %s left%s", b->terminal ? "\r\033[K" : "",
            1e-9 * (double)done, 1e-9 * (double)total, 1e-9 * (double)done / seconds, left,
            b->open ? "" : "\n");
    fflush(stderr);
}

/* How a run ended that was asked to, and how it is gone on with. */
static void print_stop(const tt_sft_report *r, const tt_config *c)
{
    const char *name = tt_stop_name(r->stopped), *more = "; go on with resume_from_checkpoint: true";
    if (r->steps == 0) {
        fprintf(stderr, "stopped by %s before the first step; nothing was saved\n", name);
        return;
    }
    fprintf(stderr, "stopped by %s after step %lld of %lld; saved in %s", name, (long long)r->steps, (long long)r->total,
            c->output_dir);
    if (r->checkpoint > 0)
        fprintf(stderr, "/checkpoint-%lld%s", (long long)r->checkpoint,
                c->save_only_model ? ", the model alone (save_only_model)" : more);
    fputc('\n', stderr);
}

static void print_profile(const tt_profile_report *r, const char *output)
{
    char table[4096];
    tt_profile_report_text(r, table, sizeof table);
    fprintf(stderr, "%s  trace of %lld events in %s/trace.json", table, (long long)r->events, output);
    if (r->left_out > 0) fprintf(stderr, "; %lld later ones did not fit", (long long)r->left_out);
    fputc('\n', stderr);
}

static void print_report(const tt_sft_report *r, const char *output)
{
    fprintf(stderr, "trained %lld steps, %lld tokens in %.1f s: %.0f tokens/s, mean loss %.4f\n",
            (long long)(r->steps - r->resumed), (long long)r->tokens, r->seconds, (double)r->tokens / r->seconds, r->train_loss);
    if (r->checkpoints > 0)
        fprintf(stderr, "%d checkpoint%s, for which training waited %.2f s\n", r->checkpoints, r->checkpoints > 1 ? "s" : "",
                r->save_seconds);
    fprintf(stderr, "memory of rank 0, MiB: planned at most");
    for (int t = 0; t < TT_MEMORY_NUM_TERMS; t++)
        fprintf(stderr, "%s %s %.1f", t ? "," : "", tt_memory_term_name((tt_memory_term)t),
                (double)r->choice.plan.bytes[t] / 1048576);
    fprintf(stderr, ", sum %.1f; measured %.1f above the %.1f before the model was opened\n",
            (double)r->choice.plan.total / 1048576, (double)(r->measured - r->resident_before) / 1048576,
            (double)r->resident_before / 1048576);
    if (r->profile.steps > 0) print_profile(&r->profile, output);
    if (!r->stopped) fprintf(stderr, "saved in %s\n", output);
}

static tt_status configure(int argc, char **argv, tt_config *c)
{
    TT_TRY(tt_config_init(c));
    int first = 0;
    if (argc > 0 && strncmp(argv[0], "--", 2) != 0) {
        TT_TRY(tt_config_load(argv[0], c));
        first = 1;
    }
    TT_TRY(tt_config_options(c, argc - first, argv + first));
    return tt_config_resolve(c);
}

static tt_status print_help(tt_comm *comm)
{
    char *keys;
    if (tt_comm_rank(comm) > 0) return TT_OK;
    TT_TRY(tt_config_help(&keys));
    printf("usage: [mpirun -n N] tartan sft [CONFIG.yaml] [--key value ...]\n\n"
           "Fine-tunes a model on chat data. Keys are those of TRL's SFT script, in the file or on the command line, where\n"
           "they win; mesh keys say how the model is spread over the ranks.\n\n%s",
           keys);
    free(keys);
    return TT_OK;
}

static tt_status run(tt_comm *comm, const tt_command *self, int argc, char **argv)
{
    tt_config config;
    tt_sft_report report;
    bar b = {.terminal = isatty(2), .last_percent = -1};
    (void)self;
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return print_help(comm);
    tt_stop_catch();
    /* Until ddp_timeout is known. */
    tt_comm_set_timeout(comm, START_SECONDS);
    tt_status status = tt_agree(tt_comm_world(comm), "configuration", configure(argc, argv, &config));
    if (status == TT_OK) status = tt_sft_same_config(comm, &config);
    tt_sft_hooks hooks = {.progress = show, .loading = show_loading, .stop = tt_stop_asked, .user = &b};
    if (status == TT_OK && config.disable_tqdm == TT_FLAG_TRUE) hooks.progress = NULL, hooks.loading = NULL;
    if (status == TT_OK) status = tt_sft(comm, &config, &hooks, &report);
    if (b.open) fputc('\n', stderr);
    if (status == TT_OK && tt_comm_rank(comm) == 0) {
        if (report.steps > 0) print_report(&report, config.output_dir);
        if (report.stopped) print_stop(&report, &config);
    }
    tt_config_free(&config);
    return status;
}

const tt_command tt_cmd_sft = {
    .name = "sft",
    .arguments = "CONFIG.yaml",
    .summary = "fine-tune a model on chat data",
    .run = run,
};
