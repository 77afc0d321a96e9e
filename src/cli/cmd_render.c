/* cmd_render.c - tartan render: rows as they will be trained: text, ids, and which of them are trained. One rank. */
#include "cli/options.h"
#include "train/sft.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys of render itself; everything else belongs to the configuration. */
typedef struct request {
    int64_t rows;
    bool ids;
} request;

static void print_pieces(const tt_tokenizer *t, const int32_t *ids, const int32_t *labels, int64_t n)
{
    printf("trained: ");
    for (int64_t i = 0; i < n;) {
        int64_t j = i;
        bool trained = labels[i] != TT_IGNORE;
        while (j < n && (labels[j] != TT_IGNORE) == trained) j++;
        char *text;
        size_t bytes;
        if (tt_tokenizer_decode(t, ids + i, j - i, false, &text, &bytes) == TT_OK) {
            if (trained) printf("[[");
            fwrite(text, 1, bytes, stdout);
            if (trained) printf("]]");
            free(text);
        }
        i = j;
    }
    printf("\n");
}

static tt_status print_row(const tt_sft_data *d, int64_t i, const request *q)
{
    const int32_t *ids, *labels;
    int64_t n, index, line, targets = 0, row = d->shuffled ? d->shuffled[i] : i;
    char *text;
    size_t bytes;
    tt_dataset_row(d->rows, row, &ids, &labels, &n);
    tt_dataset_source(d->rows, row, &index, &line);
    TT_TRY(tt_dataset_render(d->rows, row, &text, &bytes));
    for (int64_t j = 1; j < n; j++) targets += labels[j] != TT_IGNORE;
    printf("--- row %lld (line %lld): %lld tokens, %lld trained\n", (long long)i, (long long)line, (long long)n,
           (long long)targets);
    printf("text: ");
    fwrite(text, 1, bytes, stdout);
    printf("\n");
    free(text);
    print_pieces(d->tokenizer, ids, labels, n);
    if (!q->ids) return TT_OK;
    printf("ids:");
    for (int64_t j = 0; j < n; j++) printf(" %d", ids[j]);
    printf("\nlabels:");
    for (int64_t j = 0; j < n; j++) printf(" %d", labels[j]);
    printf("\n");
    return TT_OK;
}

static tt_status read_rows(const char *text, int64_t *rows)
{
    char *end = NULL;
    errno = 0;
    if (text) *rows = strtoll(text, &end, 10);
    TT_CHECK(text && *text && !*end && !errno && *rows > 0, TT_ECONFIG,
             "--rows is '%s'; expected a whole number above 0", text ? text : "");
    return TT_OK;
}

/* --rows N and --ids are taken out; what is left is sft's command line. */
static tt_status take_own(int *argc, char **argv, request *q)
{
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        if (!strcmp(argv[i], "--ids")) {
            q->ids = true;
        } else if (!strcmp(argv[i], "--rows")) {
            TT_TRY(read_rows(i + 1 < *argc ? argv[++i] : NULL, &q->rows));
        } else if (!strncmp(argv[i], "--rows=", 7)) {
            TT_TRY(read_rows(argv[i] + 7, &q->rows));
        } else {
            argv[kept++] = argv[i];
        }
    }
    *argc = kept;
    return TT_OK;
}

static tt_status render(int argc, char **argv, tt_config *c, request *q)
{
    tt_model_config model;
    tt_sft_data data;
    TT_TRY(tt_config_init(c));
    TT_TRY(take_own(&argc, argv, q));
    bool has_file = argc > 0 && strncmp(argv[0], "--", 2) != 0;
    if (has_file) TT_TRY(tt_config_load(argv[0], c));
    TT_TRY(tt_config_options(c, argc - has_file, argv + has_file));
    TT_TRY(tt_config_resolve(c));
    TT_TRY(tt_sft_load_model_config(c, &model));
    int64_t vocab_size = model.vocab_size;
    tt_model_config_free(&model);
    TT_TRY(tt_sft_load_data(c, vocab_size, (int)c->threads, &data));
    int64_t num = tt_dataset_rows(data.rows);
    tt_status status = TT_OK;
    for (int64_t i = 0; i < num && i < q->rows && status == TT_OK; i++) status = print_row(&data, i, q);
    const tt_data_report *r = tt_dataset_report(data.rows);
    if (status == TT_OK)
        printf("--- %lld rows, %lld tokens, %lld trained\n", (long long)r->rows_kept, (long long)r->tokens,
               (long long)r->targets);
    tt_sft_data_free(&data);
    return status;
}

static tt_status run(tt_comm *comm, const tt_command *self, int argc, char **argv)
{
    request q = {.rows = 4};
    tt_config config = {0};
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") && strcmp(argv[i], "-h")) continue;
        if (tt_comm_rank(comm) == 0)
            printf("usage: tartan render %s [--rows N] [--ids] [--key value ...]\n\n%s.\n\n"
                   "Takes sft's configuration. Trained text stands between [[ and ]]. --rows: how many (default 4); --ids: also\n"
                   "ids and labels.\n",
                   self->arguments, self->summary);
        return TT_OK;
    }
    tt_status status = tt_comm_rank(comm) == 0 ? render(argc, argv, &config, &q) : TT_OK;
    tt_config_free(&config);
    return tt_agree(tt_comm_world(comm), "render", status);
}

const tt_command tt_cmd_render = {
    .name = "render",
    .arguments = "CONFIG.yaml",
    .summary = "rows as they will be trained: text, ids, mask",
    .run = run,
};
