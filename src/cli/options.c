#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_help(const tt_command *c, const tt_option *options, int num)
{
    printf("usage: tartan %s %s%s\n\n%s.\n", c->name, c->arguments, num ? " [--option value ...]" : "", c->summary);
    if (c->help) printf("\n%s\n", c->help);
    if (num) printf("\noptions:\n");
    for (int i = 0; i < num; i++) {
        static const char *const kinds[] = {"TEXT", "N", "N", "", "NAME"};
        char left[64];
        snprintf(left, sizeof left, "--%s %s", options[i].name, kinds[options[i].type]);
        printf("  %-32s %s\n", left, options[i].help);
    }
}

/* Names are equal up to '-' and '_'; `length` characters of name count. */
static bool same_name(const char *name, size_t length, const char *option)
{
    if (strlen(option) != length) return false;
    for (size_t i = 0; i < length; i++)
        if (name[i] != option[i] && !(name[i] == '-' && option[i] == '_')) return false;
    return true;
}

/* Common characters in order: enough to find the option that a slip of the finger meant. */
static int likeness(const char *a, size_t length, const char *b)
{
    int same = 0;
    for (size_t i = 0; i < length && *b; i++) {
        const char *at = strchr(b, a[i] == '-' ? '_' : a[i]);
        if (!at) continue;
        same++;
        b = at + 1;
    }
    return same;
}

static tt_status unknown(const tt_command *c, const tt_option *options, int num, const char *name, size_t length)
{
    const char *nearest = NULL;
    int best = -1;
    for (int i = 0; i < num; i++) {
        int like = 2 * likeness(name, length, options[i].name) - (int)strlen(options[i].name);
        if (like > best || !nearest) best = like, nearest = options[i].name;
    }
    if (!nearest) return tt_error_set(TT_ECONFIG, "tartan %s has no options; '--%.*s' was given", c->name, (int)length, name);
    return tt_error_set(TT_ECONFIG, "tartan %s: unknown option '--%.*s'; nearest is '--%s' (see tartan %s --help)", c->name,
                        (int)length, name, nearest, c->name);
}

static tt_status parse_dispatch(const char *text, tt_dispatch_kind *out)
{
    static const char *const names[] = {"alltoall", "allgather", "allreduce"};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (tt_dispatch_kind)i;
            return TT_OK;
        }
    return tt_error_set(TT_ECONFIG, "expert_dispatch is '%s'; expected alltoall, allgather or allreduce", text);
}

static tt_status set_value(const tt_option *o, const char *text)
{
    if (o->type == TT_OPTION_TEXT) {
        *(const char **)o->value = text;
        return TT_OK;
    }
    if (o->type == TT_OPTION_DISPATCH) return parse_dispatch(text, o->value);
    if (o->type == TT_OPTION_FLAG) {
        bool yes = !strcmp(text, "true"), no = !strcmp(text, "false");
        TT_CHECK(yes || no, TT_ECONFIG, "--%s is '%s'; expected true or false", o->name, text);
        *(bool *)o->value = yes;
        return TT_OK;
    }
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10), least = o->type == TT_OPTION_SIZE;
    TT_CHECK(*text && !*end && !errno && n >= least && n <= INT32_MAX, TT_ECONFIG,
             "--%s is '%s'; expected a whole number from %lld to %d", o->name, text, least, INT32_MAX);
    *(int64_t *)o->value = n;
    return TT_OK;
}

/* One option at argv[*i]; *i moves on by what it takes. */
static tt_status parse_option(const tt_command *c, const tt_option *options, int num, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const tt_option *o = NULL;
    for (int j = 0; j < num; j++)
        if (same_name(name, length, options[j].name)) o = &options[j];
    if (!o) return unknown(c, options, num, name, length);
    if (equals) return set_value(o, equals + 1);
    bool has_value = *i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0;
    if (o->type == TT_OPTION_FLAG && (!has_value || (strcmp(argv[*i + 1], "true") && strcmp(argv[*i + 1], "false")))) {
        *(bool *)o->value = true;
        return TT_OK;
    }
    TT_CHECK(*i + 1 < argc, TT_ECONFIG, "tartan %s: option '--%s' needs a value", c->name, o->name);
    return set_value(o, argv[++*i]);
}

static tt_status parse(const tt_command *c, const tt_option *options, int num, int argc, char **argv,
                       const char **positional)
{
    int count = 0;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            TT_TRY(parse_option(c, options, num, argc, argv, &i));
            continue;
        }
        TT_CHECK(count < c->max_positional, TT_ECONFIG, "tartan %s takes %s; '%s' is one argument too many", c->name,
                 c->arguments, argv[i]);
        positional[count++] = argv[i];
    }
    TT_CHECK(count >= c->min_positional, TT_ECONFIG, "usage: tartan %s %s (see tartan %s --help)", c->name, c->arguments,
             c->name);
    return TT_OK;
}

tt_status tt_options_parse(tt_comm *comm, const tt_command *command, const tt_option *options, int num_options, int argc,
                           char **argv, const char **positional, bool *help_wanted)
{
    *help_wanted = false;
    for (int i = 0; i < command->max_positional; i++) positional[i] = NULL;
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) *help_wanted = true;
    if (*help_wanted) {
        if (tt_comm_rank(comm) == 0) print_help(command, options, num_options);
        return TT_OK;
    }
    return tt_agree(tt_comm_world(comm), "arguments", parse(command, options, num_options, argc, argv, positional));
}
