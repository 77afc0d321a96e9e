/* cmd_generate.c - tartan generate: let a model answer, greedily. */
#include "cli/options.h"
#include "data/jsonl.h"
#include "train/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *model, *prompt, *text, *system, *chat;
    int64_t max_new, limit, threads;
    bool quiet;
} request;

static json_t *message(const char *role, const char *content)
{
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    json_object_set_new(m, "content", json_string(content));
    return m;
}

static tt_status answer(tt_generator *g, const request *q, const char *prompt)
{
    json_t *messages = json_array();
    char *reply;
    if (q->system) json_array_append_new(messages, message("system", q->system));
    json_array_append_new(messages, message("user", prompt));
    tt_status status = tt_generate_reply(g, messages, q->max_new, &reply);
    json_decref(messages);
    if (status != TT_OK) return status;
    puts(reply);
    fflush(stdout);
    free(reply);
    return TT_OK;
}

/* One question per line. */
static tt_status answer_lines(tt_generator *g, const request *q)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    tt_status status = TT_OK;
    while (status == TT_OK && (n = getline(&line, &size, stdin)) >= 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = '\0';
        if (n > 0) status = answer(g, q, line);
    }
    free(line);
    return status;
}

static const char *text_of(const json_t *message, const char *key)
{
    const char *s = json_string_value(json_object_get(message, key));
    return s ? s : "";
}

/* A conversation whose last turn is the assistant's: that turn is asked for again and compared to the letter. */
static tt_status answer_row(tt_generator *g, const request *q, const tt_jsonl_row *row, int64_t *asked, int64_t *right)
{
    json_t *object;
    char *reply;
    TT_TRY(tt_jsonl_parse(row, q->chat, &object));
    json_t *messages = json_object_get(object, "messages");
    size_t n = json_array_size(messages);
    if (n < 2 || strcmp(text_of(json_array_get(messages, n - 1), "role"), "assistant") != 0) {
        json_decref(object);
        return tt_error_set(TT_EDATA, "%s:%lld: expected 'messages' that end with the assistant's", q->chat,
                            (long long)row->line);
    }
    json_t *expected = json_incref(json_array_get(messages, n - 1));
    json_array_remove(messages, n - 1);
    tt_status status = tt_generate_reply(g, messages, q->max_new, &reply);
    if (status == TT_OK) {
        bool same = strcmp(reply, text_of(expected, "content")) == 0;
        if (!q->quiet) printf("%s  %s\n    -> %s\n", same ? "right" : "wrong", text_of(json_array_get(messages, n - 2), "content"), reply);
        if (!same && !q->quiet) printf("    expected: %s\n", text_of(expected, "content"));
        *asked += 1;
        *right += same;
        free(reply);
    }
    json_decref(expected);
    json_decref(object);
    return status;
}

static tt_status answer_file(tt_generator *g, const request *q)
{
    tt_jsonl *reader;
    const tt_jsonl_row *rows;
    int64_t count, asked = 0, right = 0;
    TT_TRY(tt_jsonl_open(q->chat, 0, &reader));
    tt_status status;
    do {
        status = tt_jsonl_next(reader, &rows, &count);
        for (int64_t i = 0; i < count && status == TT_OK && (q->limit == 0 || asked < q->limit); i++)
            status = answer_row(g, q, &rows[i], &asked, &right);
    } while (status == TT_OK && count > 0 && (q->limit == 0 || asked < q->limit));
    tt_jsonl_close(&reader);
    if (status == TT_OK) printf("%lld of %lld answers right to the letter\n", (long long)right, (long long)asked);
    return status;
}

static tt_status generate(tt_comm *comm, const request *q)
{
    tt_generator g;
    char *text;
    TT_TRY(tt_generator_open(comm, q->model, tt_comm_threads_per_rank(comm, (int)q->threads), &g));
    tt_status status = TT_OK;
    if (q->text) {
        status = tt_generate_text(&g, q->text, q->max_new, &text);
        if (status == TT_OK) puts(text), free(text);
    }
    if (status == TT_OK && q->prompt) status = answer(&g, q, q->prompt);
    if (status == TT_OK && q->chat) status = answer_file(&g, q);
    if (status == TT_OK && !q->text && !q->prompt && !q->chat) status = answer_lines(&g, q);
    tt_generator_close(&g);
    return status;
}

static tt_status run(tt_comm *comm, const tt_command *self, int argc, char **argv)
{
    request q = {.max_new = 128};
    bool help;
    const tt_option options[] = {
        {"prompt", TT_OPTION_TEXT, &q.prompt, "a user's message to answer (default: one per line of stdin)"},
        {"system", TT_OPTION_TEXT, &q.system, "system message in front of it"},
        {"text", TT_OPTION_TEXT, &q.text, "plain text to continue, without a chat template"},
        {"chat", TT_OPTION_TEXT, &q.chat, "JSONL of conversations: answer each last turn again and count"},
        {"limit", TT_OPTION_INT, &q.limit, "at most so many rows of --chat (0: all)"},
        {"quiet", TT_OPTION_FLAG, &q.quiet, "only the count of --chat"},
        {"max_new_tokens", TT_OPTION_INT, &q.max_new, "tokens of an answer at most (default 128)"},
        {"threads", TT_OPTION_INT, &q.threads, "threads (default: all cpus)"},
    };
    TT_TRY(tt_options_parse(comm, self, options, sizeof options / sizeof *options, argc, argv, &q.model, &help));
    return help ? TT_OK : generate(comm, &q);
}

const tt_command tt_cmd_generate = {
    .name = "generate",
    .arguments = "MODEL",
    .summary = "greedy answers from a model",
    .help = "Without --prompt, --text or --chat every line of standard input is a question.",
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
