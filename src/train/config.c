/* A configuration from its sources: defaults, a mapping, the command line. */
#include "train/config_key.h"

#include "base/json.h"
#include "base/yaml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLACE = 320,          /* bytes of a place in messages; longer paths are cut */
    FILE_BYTES = 1 << 20, /* a configuration is a page or two */
};

/* --- life ----------------------------------------------------------------------------------------------- */

static tt_status set_default(tt_config *c, tt_config_id id)
{
    const tt_config_key *k = tt_config_key_of(id);
    tt_config_reset(c, k);
    if (strcmp(k->fallback, "null") == 0) return TT_OK;
    json_t *v = json_string(k->fallback);
    TT_CHECK(v, TT_ENOMEM, "default of key '%s': out of memory", k->name);
    tt_status status = tt_config_set(c, k, v, k->name);
    json_decref(v);
    /* The table disagrees with itself; the tests see every default. */
    return status == TT_ECONFIG ? tt_error_context(TT_EINTERNAL, "default") : status;
}

tt_status tt_config_init(tt_config *c)
{
    memset(c, 0, sizeof *c);
    for (int id = 0; id < TT_CONFIG_NUM_KEYS; id++) TT_TRY(set_default(c, (tt_config_id)id));
    return TT_OK;
}

void tt_config_free(tt_config *c)
{
    for (int id = 0; id < TT_CONFIG_NUM_KEYS; id++) tt_config_reset(c, tt_config_key_of((tt_config_id)id));
    free(c->file);
    c->file = NULL;
}

bool tt_config_is_set(const tt_config *c, tt_config_id id)
{
    return c->origin[id].source != TT_FROM_DEFAULT;
}

tt_mesh_sizes tt_config_mesh_sizes(const tt_config *c)
{
    return (tt_mesh_sizes){.fsdp_size = c->fsdp_size == TT_CONFIG_UNSET ? 0 : c->fsdp_size,
                           .tp_size = c->tp_size,
                           .ep_size = c->ep_size,
                           .dispatch = c->expert_dispatch};
}

/* --- places --------------------------------------------------------------------------------------------- */

static void file_place(const char *file, int64_t line, const char *key, char *out, size_t size)
{
    if (line > 0)
        snprintf(out, size, "%.200s:%lld: key '%.60s'", file, (long long)line, key);
    else
        snprintf(out, size, "%.200s: key '%.60s'", file, key);
}

void tt_config_place(const tt_config *c, tt_config_id id, char *out, size_t size)
{
    const char *name = tt_config_key_of(id)->name;
    if (c->origin[id].source == TT_FROM_FILE)
        file_place(c->file, c->origin[id].line, name, out, size);
    else if (c->origin[id].source == TT_FROM_COMMAND_LINE)
        snprintf(out, size, "--%s", name);
    else
        snprintf(out, size, "key '%s' (default)", name);
}

tt_status tt_config_require(const tt_config *c, tt_config_id id)
{
    const tt_config_key *k = tt_config_key_of(id);
    json_t *v = tt_config_get(c, k);
    bool missing = !v || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0);
    json_decref(v);
    TT_CHECK(!missing, TT_ECONFIG, "%s%skey '%s' is missing; set it (%s)", c->file ? c->file : "",
             c->file ? ": " : "", k->name, k->help);
    return TT_OK;
}

/* --- the environment ------------------------------------------------------------------------------------ */

/* The text that Python's str() makes of a scalar; false when there is none. */
static bool scalar_text(const json_t *v, char *buffer, size_t size, const char **out)
{
    *out = buffer;
    if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v))
        *out = json_string_value(v);
    else if (json_is_boolean(v))
        *out = json_is_true(v) ? "True" : "False";
    else if (json_is_number(v))
        tt_config_spell(v, buffer, size);
    else
        return false;
    return true;
}

tt_status tt_config_apply_env(const json_t *values, const char *where)
{
    json_t *env = json_object_get(values, "env"), *v;
    if (!env || json_is_null(env)) return TT_OK;
    TT_CHECK(json_is_object(env), TT_ECONFIG, "%s: key 'env' is %s; expected a mapping of variables to texts",
             where, tt_json_kind(env));
    const char *name, *text;
    char buffer[64];
    json_object_foreach(env, name, v)
    {
        bool good = name[0] && !strchr(name, '=') && scalar_text(v, buffer, sizeof buffer, &text);
        TT_CHECK(good, TT_ECONFIG,
                 "%s: key 'env': variable '%.60s' is %s; expected a name without '=' and a text or a number",
                 where, name, tt_json_kind(v));
        TT_CHECK(setenv(name, text, 1) == 0, TT_ENOMEM, "%s: key 'env': cannot set %.60s", where, name);
    }
    return TT_OK;
}

/* --- a mapping ------------------------------------------------------------------------------------------ */

typedef struct reading {
    const json_t *lines;
    const char *where;
    bool seen[TT_CONFIG_NUM_KEYS]; /* in this mapping, to find a key given under two names */
} reading;

static tt_status take_key(tt_config *c, reading *r, const char *name, const json_t *v)
{
    int64_t line = json_integer_value(json_object_get(r->lines, name));
    char place[PLACE];
    file_place(r->where, line, name, place, sizeof place);
    int id = tt_config_find(name);
    if (id < 0) {
        char hint[160];
        tt_config_hint(name, hint, sizeof hint);
        return tt_error_set(TT_ECONFIG, "%s is unknown; %s", place, hint);
    }
    const tt_config_key *k = tt_config_key_of((tt_config_id)id);
    TT_CHECK(!r->seen[id], TT_ECONFIG, "%s is given twice, as %s and as %s; leave one out", place, k->name,
             k->alias);
    r->seen[id] = true;
    TT_TRY(tt_config_set(c, k, v, place));
    c->origin[id].source = TT_FROM_FILE;
    c->origin[id].line = line;
    return TT_OK;
}

tt_status tt_config_from_json(const json_t *values, const json_t *lines, const char *where, tt_config *c)
{
    /* An empty file is a mapping without keys. */
    TT_CHECK(json_is_object(values) || json_is_null(values), TT_ECONFIG,
             "%s: the configuration is %s; expected a mapping of keys to values", where,
             tt_json_kind(values));
    char *file = strdup(where);
    TT_CHECK(file, TT_ENOMEM, "%s: out of memory", where);
    free(c->file);
    c->file = file;
    reading r = {.lines = lines, .where = where};
    const char *name;
    json_t *v;
    json_object_foreach((json_t *)values, name, v) if (strcmp(name, "env") != 0)
        TT_TRY(take_key(c, &r, name, v));
    return TT_OK;
}

tt_status tt_config_load(const char *path, tt_config *c)
{
    json_t *values, *lines;
    tt_status status = tt_yaml_load(path, FILE_BYTES, &values, &lines);
    if (status != TT_OK) return status == TT_ENOMEM ? status : TT_ECONFIG; /* a wrong name, or not a configuration */
    status = tt_config_apply_env(values, path);
    if (status == TT_OK) status = tt_config_from_json(values, lines, path, c);
    json_decref(values);
    json_decref(lines);
    return status;
}

/* --- the command line ----------------------------------------------------------------------------------- */

typedef struct option {
    char name[96];    /* '-' turned to '_' */
    const char *text; /* behind '=', or NULL */
    tt_config_id id;
    bool negated; /* --no_key */
} option;

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] == '-';
}

static bool is_boolean(tt_config_id id)
{
    tt_config_kind kind = tt_config_key_of(id)->kind;
    return kind == TT_KIND_BOOL || kind == TT_KIND_FLAG;
}

static tt_status parse_option(const char *word, option *o)
{
    TT_CHECK(is_option(word) && word[2], TT_ECONFIG,
             "unexpected argument '%.60s'; options are written --key value or --key=value", word);
    size_t n = strcspn(word + 2, "=");
    *o = (option){.text = word[2 + n] ? word + 3 + n : NULL};
    if (n >= sizeof o->name) n = sizeof o->name - 1;
    for (size_t i = 0; i < n; i++) o->name[i] = word[2 + i] == '-' ? '_' : word[2 + i];
    int id = tt_config_find(o->name);
    if (id < 0 && strncmp(o->name, "no_", 3) == 0) {
        id = tt_config_find(o->name + 3);
        if (id >= 0 && is_boolean((tt_config_id)id))
            o->negated = true;
        else
            id = -1;
    }
    if (id < 0) {
        char hint[160];
        tt_config_hint(o->name, hint, sizeof hint);
        return tt_error_set(TT_ECONFIG, "--%.60s is unknown; %s", o->name, hint);
    }
    o->id = (tt_config_id)id;
    TT_CHECK(!o->negated || !o->text, TT_ECONFIG, "--%.60s takes no value; write --%s=false", o->name,
             tt_config_key_of(o->id)->name);
    return TT_OK;
}

static json_t *value_of(const char *text)
{
    return strcmp(text, "null") == 0 ? json_null() : json_string(text);
}

/* Several words for a key that holds names. One word that is JSON, or null, is left as it is. */
static json_t *words_value(char *const *words, int n)
{
    if (n == 1 &&
        (words[0][0] == '[' || strcmp(words[0], "null") == 0 || strcmp(words[0], "all-linear") == 0))
        return value_of(words[0]);
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        if (json_array_append_new(list, json_string(words[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* The value of o; *used counts the words behind the option that belong to it. */
static tt_status option_value(const option *o, int argc, char *const *argv, int *used, json_t **out)
{
    const tt_config_key *k = tt_config_key_of(o->id);
    int words = 0;
    while (words < argc && !is_option(argv[words])) words++;
    *used = 0;
    if (o->negated) {
        *out = json_false();
    } else if (o->text) {
        *out =
            k->kind == TT_KIND_NAMES ? words_value((char *const[]){(char *)o->text}, 1) : value_of(o->text);
    } else if (is_boolean(o->id)) {
        *used = words > 0;
        *out = *used ? value_of(argv[0]) : json_true();
    } else {
        TT_CHECK(words > 0, TT_ECONFIG,
                 "--%s needs a value; write --%s VALUE (a value that begins with -- as "
                 "--%s=VALUE)",
                 k->name, k->name, k->name);
        *used = k->kind == TT_KIND_NAMES ? words : 1;
        *out = k->kind == TT_KIND_NAMES ? words_value(argv, words) : value_of(argv[0]);
    }
    TT_CHECK(*out, TT_ECONFIG, "--%s: the value is not valid UTF-8", k->name);
    return TT_OK;
}

tt_status tt_config_options(tt_config *c, int argc, char *const *argv)
{
    for (int i = 0, used; i < argc; i += 1 + used) {
        option o;
        json_t *v = NULL;
        TT_TRY(parse_option(argv[i], &o));
        TT_TRY(option_value(&o, argc - i - 1, argv + i + 1, &used, &v));
        char place[PLACE];
        snprintf(place, sizeof place, "--%s", o.name);
        tt_status status = tt_config_set(c, tt_config_key_of(o.id), v, place);
        json_decref(v);
        if (status != TT_OK) return status;
        c->origin[o.id].source = TT_FROM_COMMAND_LINE;
    }
    return TT_OK;
}
