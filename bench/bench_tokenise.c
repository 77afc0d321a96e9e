/* bench_tokenise.c - rows of chat data through template and tokenizer, as `tartan sft` prepares them: one line of JSON.
 * bench/baseline_tokenise.py is its counterpart.
 *
 *   build/bench/bench_tokenise TOKENIZER_FOLDER DATA.jsonl [threads [runs]]     1 thread, 5 runs by default
 *
 * A run reads the file, parses its lines, renders the tokenizer's own chat template, and encodes. Loading the tokenizer
 * is timed apart.
 */
#include "base/clock.h"
#include "data/dataset.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static tt_status bench(const char *folder, const char *data, int threads, int runs)
{
    tt_tokenizer *tokenizer;
    double start = tt_seconds();
    TT_TRY(tt_tokenizer_load(folder, &tokenizer));
    double load = tt_seconds() - start;
    tt_prepare options = TT_PREPARE_DEFAULT;
    options.tokenizer = tokenizer;
    options.threads = threads;
    tt_status status = TT_OK;
    printf("{\"program\": \"tartan\", \"threads\": %d, \"load_seconds\": %.4f, \"seconds\": [", threads, load);
    tt_data_report report = {0};
    for (int i = 0; i < runs && status == TT_OK; i++) {
        tt_dataset *rows = NULL;
        start = tt_seconds();
        status = tt_dataset_load(data, &options, &rows);
        if (status != TT_OK) break;
        printf("%s%.6f", i ? ", " : "", tt_seconds() - start);
        report = *tt_dataset_report(rows);
        tt_dataset_destroy(&rows);
    }
    printf("], \"rows\": %" PRId64 ", \"tokens\": %" PRId64 "}\n", report.rows_kept, report.tokens);
    tt_tokenizer_destroy(&tokenizer);
    return status;
}

int main(int argc, char **argv)
{
    int threads = argc > 3 ? atoi(argv[3]) : 1, runs = argc > 4 ? atoi(argv[4]) : 5;
    if (argc < 3 || argc > 5 || threads < 1 || runs < 1)
        return fprintf(stderr, "usage: bench_tokenise TOKENIZER_FOLDER DATA.jsonl [threads [runs]]\n"), 2;
    tt_status status = bench(argv[1], argv[2], threads, runs);
    if (status != TT_OK) fprintf(stderr, "bench_tokenise: %s\n", tt_error_text());
    return tt_status_exit(status);
}
