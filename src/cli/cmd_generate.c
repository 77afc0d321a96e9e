/* cmd_generate.c - tartan generate: let a model answer, greedily. */
#include "cli/options.h"
#include "data/jsonl.h"
#include "train/generate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct request {
    const char *model, *prompt, *text, *system, *chat;
    int64_t max_new, limit, threads;
    bool quiet;
} request;

#define MAX_QUESTION (1 << 20)

/* content is `bytes` long and any bytes: what is not UTF-8 is refused here. */
static tt_status add_message(json_t *messages, const char *role, const char *content, size_t bytes)
{
    json_t *text = json_stringn(content, bytes);
    TT_CHECK(text, TT_EDATA, "generate: the %s message is not valid UTF-8", role);
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    json_object_set_new(m, "content", text);
    json_array_append_new(messages, m);
    return TT_OK;
}

static tt_status answer(tt_generator *g, const request *q, const char *prompt, size_t bytes)
{
    json_t *messages = json_array();
    char *reply;
    tt_status status = q->system ? add_message(messages, "system", q->system, strlen(q->system)) : TT_OK;
    if (status == TT_OK) status = add_message(messages, "user", prompt, bytes);
    if (status == TT_OK) status = tt_generate_reply(g, messages, q->max_new, &reply);
    json_decref(messages);
    if (status != TT_OK) return status;
    puts(reply);
    fflush(stdout);
    free(reply);
    return TT_OK;
}

/* The next line of standard input without its end, at most MAX_QUESTION bytes. *more: there was one. */
static tt_status read_line(char *line, size_t *bytes, bool *more)
{
    size_t n = 0;
    int c;
    while ((c = getc(stdin)) != EOF && c != '\n') {
        TT_CHECK(n < MAX_QUESTION, TT_EDATA, "generate: a line of standard input is longer than %d bytes",
                 MAX_QUESTION);
        line[n++] = (char)c;
    }
    TT_CHECK(!ferror(stdin), TT_EIO, "generate: cannot read standard input: %s", strerror(errno));
    *more = n > 0 || c != EOF;
    if (n > 0 && line[n - 1] == '\r') n--;
    *bytes = n;
    return TT_OK;
}

/* One question per line. */
static tt_status answer_lines(tt_generator *g, const request *q)
{
    char *line = malloc(MAX_QUESTION);
    size_t bytes;
    bool more = true;
    TT_CHECK(line, TT_ENOMEM, "generate: out of memory");
    tt_status status = read_line(line, &bytes, &more);
    while (status == TT_OK && more) {
        if (bytes > 0) status = answer(g, q, line, bytes);
        if (status == TT_OK) status = read_line(line, &bytes, &more);
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
    if (status == TT_OK && asked == 0) status = tt_error_set(TT_EDATA, "'%s' has no rows", q->chat);
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
    if (status == TT_OK && q->prompt) status = answer(&g, q, q->prompt, strlen(q->prompt));
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
    return help ? TT_OK : tt_agree(tt_comm_world(comm), "generate", generate(comm, &q));
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
