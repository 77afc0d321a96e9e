#include "checkpoint/manifest.h"
#include "base/checked.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define FORMAT "tartan checkpoint"
#define START  "{\n  \"checksum\": \""
enum { DIGITS = 16 };

static void hash_text(uint64_t hash, char out[DIGITS + 1])
{
    snprintf(out, DIGITS + 1, "%016" PRIx64, hash);
}

static bool read_hash(const char *text, uint64_t *out)
{
    uint64_t hash = 0;
    for (int i = 0; i < DIGITS; i++) {
        const char *digits = "0123456789abcdef", *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at) return false;
        hash = hash << 4 | (uint64_t)(at - digits);
    }
    *out = hash;
    return true;
}

/* --- writing ------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const tt_stretch *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* "NAME": {...} of one file, whose stretches are at[0..num). */
static tt_status put_file(FILE *text, const char *name, const tt_stretch *at, int64_t num)
{
    int64_t end = 0;
    fprintf(text, "    \"%s\": {\"bytes\": %" PRId64 ", \"ends\": [", name, num ? at[num - 1].end : 0);
    for (int64_t i = 0; i < num; i++) {
        TT_CHECK(at[i].begin == end && at[i].end > end, TT_EINTERNAL,
                 "%s: bytes %" PRId64 " to %" PRId64 " were written behind byte %" PRId64, name, at[i].begin, at[i].end, end);
        end = at[i].end;
        fprintf(text, "%s%" PRId64, i ? "," : "", end);
    }
    fprintf(text, "], \"xxh64\": [");
    for (int64_t i = 0; i < num; i++) fprintf(text, "%s\"%016" PRIx64 "\"", i ? "," : "", at[i].hash);
    fprintf(text, "]}");
    return TT_OK;
}

static tt_status put_files(FILE *text, const char *const *names, int num_names, tt_stretches *s)
{
    int64_t first = 0;
    if (s->num > 1) qsort(s->at, (size_t)s->num, sizeof *s->at, by_place);
    fprintf(text, "  \"files\": {\n");
    for (int f = 0; f < num_names; f++) {
        int64_t end = first;
        while (end < s->num && s->at[end].file == f) end++;
        TT_TRY(put_file(text, names[f], s->at + first, end - first));
        fprintf(text, f + 1 < num_names ? ",\n" : "\n");
        first = end;
    }
    fprintf(text, "  }\n}\n");
    return TT_OK;
}

/* All of the text, with zeros for its checksum. */
static tt_status put_manifest(FILE *text, const json_t *head, const char *const *names, int num_names, tt_stretches *s)
{
    char *members = json_dumps(head, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    TT_CHECK(members, TT_ENOMEM, "out of memory for a manifest");
    /* "{\n  ...\n}": what stands between the braces' lines. */
    fprintf(text, START "%016d\",\n%.*s,\n", 0, (int)strlen(members) - 4, members + 2);
    free(members);
    return put_files(text, names, num_names, s);
}

tt_status tt_manifest_write(const char *path, const json_t *head, const char *const *names, int num_names,
                            tt_stretches *stretches)
{
    char *text = NULL, digits[DIGITS + 1];
    size_t bytes;
    FILE *stream = open_memstream(&text, &bytes);
    TT_CHECK(stream, TT_ENOMEM, "%s: out of memory", path);
    tt_status status = put_manifest(stream, head, names, num_names, stretches);
    bool failed = ferror(stream);
    failed |= fclose(stream) != 0;
    if (status == TT_OK && failed) status = tt_error_set(TT_ENOMEM, "%s: out of memory", path);
    if (status == TT_OK && bytes > TT_MANIFEST_MAX)
        status = tt_error_set(TT_EINTERNAL, "%s: would have %zu bytes; readers accept %d", path, bytes, TT_MANIFEST_MAX);
    if (status == TT_OK) {
        hash_text(XXH64(text, bytes, 0), digits);
        memcpy(text + strlen(START), digits, DIGITS);
        status = tt_file_write_all(path, text, bytes);
    }
    free(text);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------- */

bool tt_manifest_range(const json_t *entry, size_t i, tt_stretch *out)
{
    const json_t *ends = json_object_get(entry, "ends"), *hashes = json_object_get(entry, "xxh64");
    if (i >= json_array_size(ends)) return false;
    out->begin = i ? json_integer_value(json_array_get(ends, i - 1)) : 0;
    out->end = json_integer_value(json_array_get(ends, i));
    return read_hash(json_string_value(json_array_get(hashes, i)), &out->hash);
}

static bool is_hash(const json_t *value)
{
    uint64_t hash;
    return json_string_length(value) == DIGITS && read_hash(json_string_value(value), &hash);
}

static tt_status check_file(const char *path, const char *name, const json_t *entry)
{
    const json_t *bytes = json_object_get(entry, "bytes"), *ends = json_object_get(entry, "ends");
    const json_t *hashes = json_object_get(entry, "xxh64");
    TT_CHECK(*name && *name != '.' && !strchr(name, '/') && strlen(name) < 256, TT_EFORMAT,
             "%s: '%.100s' is not the plain name of a file", path, name);
    TT_CHECK(json_is_integer(bytes) && json_is_array(ends) && json_is_array(hashes) &&
                 json_array_size(ends) == json_array_size(hashes),
             TT_EFORMAT, "%s: file '%s' needs 'bytes', and 'ends' and 'xxh64' of equal lengths", path, name);
    int64_t at = 0;
    for (size_t i = 0; i < json_array_size(ends); i++) {
        const json_t *end = json_array_get(ends, i);
        TT_CHECK(json_is_integer(end) && json_integer_value(end) > at && is_hash(json_array_get(hashes, i)), TT_EFORMAT,
                 "%s: range %zu of file '%s' has no end above %lld and a checksum of %d hexadecimal digits", path, i, name,
                 (long long)at, DIGITS);
        at = json_integer_value(end);
    }
    TT_CHECK(json_integer_value(bytes) == at, TT_EFORMAT, "%s: the ranges of file '%s' end at byte %lld of %lld", path, name,
             (long long)at, (long long)json_integer_value(bytes));
    return TT_OK;
}

static tt_status check_members(const char *path, const json_t *m)
{
    int64_t version, step;
    bool with_state;
    const char *format, *name;
    const json_t *files = json_object_get(m, "files");
    json_t *entry;
    TT_TRY(tt_json_get_string(m, path, "format", "", &format));
    TT_CHECK(strcmp(format, FORMAT) == 0, TT_EFORMAT, "%s: format is '%.40s'; expected '" FORMAT "'", path, format);
    TT_TRY(tt_json_get_int(m, path, "version", 0, &version));
    TT_CHECK(version == TT_CHECKPOINT_VERSION, TT_EFORMAT, "%s: version is %lld; this program reads %d", path, (long long)version,
             TT_CHECKPOINT_VERSION);
    TT_TRY(tt_json_get_int(m, path, "step", -1, &step));
    TT_CHECK(step >= 0, TT_EFORMAT, "%s: step is missing or negative", path);
    TT_TRY(tt_json_get_bool(m, path, "with_state", false, &with_state));
    TT_CHECK(json_is_object(files), TT_EFORMAT, "%s: 'files' is missing or not an object", path);
    json_object_foreach((json_t *)files, name, entry) TT_TRY(check_file(path, name, entry));
    return TT_OK;
}

/* The file's own checksum; the digits in the text become zeros. */
static tt_status check_text(const char *path, char *text, size_t bytes)
{
    const size_t at = strlen(START);
    uint64_t said;
    TT_CHECK(bytes > at + DIGITS && memcmp(text, START, at) == 0 && read_hash(text + at, &said), TT_EFORMAT,
             "%s: does not begin as a manifest does: cut short or damaged", path);
    memset(text + at, '0', DIGITS);
    TT_CHECK(XXH64(text, bytes, 0) == said, TT_EFORMAT, "%s: does not have the checksum that it names: cut short or damaged",
             path);
    return TT_OK;
}

tt_status tt_manifest_read(const char *path, json_t **out)
{
    char *text;
    size_t bytes;
    json_t *m = NULL;
    TT_TRY(tt_file_read_all(path, TT_MANIFEST_MAX, &text, &bytes));
    tt_status status = check_text(path, text, bytes);
    if (status == TT_OK) status = tt_json_parse(text, bytes, path, &m);
    if (status == TT_OK) status = check_members(path, m);
    free(text);
    if (status == TT_OK)
        *out = m;
    else
        json_decref(m);
    return status;
}
