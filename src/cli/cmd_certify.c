/* cmd_certify.c - tartan certify: proof that this mesh computes what one process does. */
#include "base/file.h"
#include "base/json.h"
#include "cli/options.h"
#include "train/certify.h"

#include <stdio.h>
#include <string.h>

static void print_report(const tt_certify_report *r)
{
    const tt_certify_row *worst = NULL;
    printf("%-64s %12s %12s  %s\n", "parameter", "error", "tolerance", "verdict");
    for (int64_t i = 0; i < r->num_rows; i++) {
        const tt_certify_row *row = &r->rows[i];
        printf("%-64s %12.3e %12.3e  %s%s\n", row->name, row->error, row->tolerance, row->good ? "ok" : "WRONG",
               row->tiny ? " (tiny: absolute)" : "");
        if (!worst || row->error / row->tolerance > worst->error / worst->tolerance || !(row->error == row->error)) worst = row;
    }
    if (worst)
        printf("\nworst          %s: %.3e, %.2f of its tolerance\n", worst->name, worst->error,
               worst->error / worst->tolerance);
    printf("batch          %lld tokens, %lld targets\n", (long long)r->tokens, (long long)r->targets);
    printf("loss           %.9g on the mesh, %.9g on one process  %s\n", r->loss[0], r->loss[1], r->loss_good ? "ok" : "WRONG");
    printf("gradient norm  %.9g on the mesh, %.9g on one process  %s\n", r->norm[0], r->norm[1], r->norm_good ? "ok" : "WRONG");
    printf("choices        %lld, of which %lld near ties fell the other way, %lld wrong", (long long)r->choices,
           (long long)r->near_ties, (long long)r->wrong_choices);
    printf(r->wrong_choices ? " (first: %s)  WRONG\n" : "%s  ok\n", r->first_wrong);
}

/* Bytes that the exchange of the MoE layers sent between ranks, both directions of both passes. */
static tt_status print_traffic(tt_comm *comm, int64_t tokens)
{
    static const char *const names[] = {"dispatch-tokens", "return-outputs", "dispatch-gradients", "return-gradients"};
    int64_t sent[4];
    for (int i = 0; i < 4; i++) sent[i] = tt_comm_bytes_sent(comm, names[i]);
    TT_TRY(tt_allreduce_i64(tt_comm_world(comm), "certify-traffic", sent, 4));
    if (tt_comm_rank(comm) > 0) return TT_OK;
    printf("bytes sent    ");
    for (int i = 0; i < 4; i++) printf("%s %s %lld", i ? "," : "", names[i], (long long)sent[i]);
    printf(" (%lld tokens)\n", (long long)tokens);
    return TT_OK;
}

/* Before anything is computed: a file that can be written, and that is not one of the model's. */
static tt_status check_output(const char *path, const char *model)
{
    char folder[4096];
    if (!path) return TT_OK;
    size_t n = strlen(path);
    TT_CHECK(n < sizeof folder, TT_ECONFIG, "--save_outputs: the path is too long: %.200s", path);
    TT_CHECK(n > 12 && strcmp(path + n - 12, ".safetensors") == 0 && path[n - 13] != '/', TT_ECONFIG,
             "--save_outputs is '%s'; expected a name that ends in .safetensors", path);
    memcpy(folder, path, n + 1);
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = '\0';
    TT_CHECK(!tt_same_file(slash ? folder : ".", model), TT_ECONFIG,
             "--save_outputs is '%s', a file in the model's folder; name one elsewhere", path);
    return TT_OK;
}

static tt_status read_rows(const char *path, const char *model, int fsdp_size, tt_batch_file *out)
{
    json_t *object;
    if (!path) return tt_certify_default_rows(model, fsdp_size, out);
    TT_TRY(tt_json_load(path, 64 << 20, &object));
    tt_status status = tt_batch_file_read(object, path, out);
    json_decref(object);
    return status;
}

static tt_status certify(tt_comm *comm, tt_certify_options *o, const char *batch)
{
    tt_batch_file rows = {0};
    tt_certify_report report;
    int world = tt_comm_size(comm), tp = o->mesh.tp_size > 0 && o->mesh.tp_size < world ? (int)o->mesh.tp_size : 1;
    tt_status status = check_output(o->save_outputs, o->model);
    if (status == TT_OK) status = read_rows(batch, o->model, world / tp, &rows);
    status = tt_agree(tt_comm_world(comm), "certify-batch", status);
    o->rows = &rows;
    if (status == TT_OK) status = tt_certify(comm, o, &report);
    tt_batch_file_free(&rows);
    TT_TRY(status);
    bool passed = report.passed;
    if (tt_comm_rank(comm) == 0) print_report(&report);
    status = world > 1 ? print_traffic(comm, report.tokens) : TT_OK;
    if (tt_comm_rank(comm) == 0) {
        printf("\n%s: %d rank%s, %lld parameters, %lld wrong\n", passed ? "CERTIFIED" : "NOT CERTIFIED", world,
               world > 1 ? "s" : "", (long long)report.num_rows, (long long)report.bad_rows);
    }
    tt_certify_report_free(&report);
    TT_TRY(status);
    status = passed ? TT_OK : tt_error_set(TT_EVERDICT, "certify: this mesh does not compute what one process computes");
    return tt_agree(tt_comm_world(comm), "certify-verdict", status);
}

static tt_status run(tt_comm *comm, const tt_command *self, int argc, char **argv)
{
    tt_certify_options o = {0};
    const char *batch = NULL;
    int64_t threads = 0;
    bool help;
    const tt_option options[] = {
        TT_MESH_OPTIONS(o.mesh),
        {"batch", TT_OPTION_TEXT, &batch, "JSON file with input_ids, attention_mask, labels, position_ids"},
        {"save_outputs", TT_OPTION_TEXT, &o.save_outputs, "write loss, logits and gradients to this .safetensors file"},
        {"overwrite", TT_OPTION_FLAG, &o.overwrite, "--save_outputs may replace a file"},
        {"threads", TT_OPTION_INT, &threads, "threads per rank (default: cpus of the host / ranks on it)"},
    };
    TT_TRY(tt_options_parse(comm, self, options, sizeof options / sizeof *options, argc, argv, &o.model, &help));
    if (help) return TT_OK;
    o.threads = tt_comm_threads_per_rank(comm, (int)threads);
    return certify(comm, &o, batch);
}

const tt_command tt_cmd_certify = {
    .name = "certify",
    .arguments = "MODEL",
    .summary = "loss and every gradient on this mesh against one process",
    .help = "Runs a few short rows (or --batch) through forward and backward on the mesh in fp32, then on one process with the\n"
            "reference kernels, and compares loss, gradient norm, expert choices and the gradient of every parameter.\n"
            "Exit status 0: certified; 1: not.",
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
