/* The resolved configuration as YAML, and the help text.
 *
 * Each key takes one line, "key: value", and the value is written as JSON, which YAML reads too, with three
 * differences that YAML 1.1 needs: reals always have a dot and, with an exponent, its sign (else they are
 * texts); and the characters that YAML does not print, or folds into a space, are escaped.
 */
#include "train/config_key.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* --- values --------------------------------------------------------------------------------------------- */

/* The shortest spelling that reads back as d, with a dot. */
static void put_real(FILE *f, double d)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, d);
        if (strtod(text, NULL) == d) break;
    }
    size_t mantissa = strcspn(text, "e");
    bool dotted = memchr(text, '.', mantissa);
    fprintf(f, "%.*s%s%s", (int)mantissa, text, dotted ? "" : ".0", text + mantissa);
}

static bool printable(utf8proc_int32_t ch)
{
    return !(ch < 0x20 || (ch >= 0x7f && ch <= 0x9f) || ch == 0x2028 || ch == 0x2029 || ch == 0xfeff ||
             ch == 0xfffe || ch == 0xffff);
}

static void put_text(FILE *f, const char *text, size_t n)
{
    fputc('"', f);
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t ch;
        utf8proc_ssize_t bytes =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &ch);
        if (bytes < 1) break; /* jansson's texts are valid UTF-8 */
        if (ch == '"' || ch == '\\')
            fprintf(f, "\\%c", ch);
        else if (printable(ch))
            fwrite(text + i, 1, (size_t)bytes, f);
        else
            fprintf(f, "\\u%04x", (unsigned)ch);
        i += (size_t)bytes;
    }
    fputc('"', f);
}

/* As deep as the value, which the reader bounded. */
static void put_value(FILE *f, const json_t *v)
{
    size_t i;
    const char *name;
    json_t *item;
    switch (json_typeof(v)) {
    case JSON_NULL:
        fputs("null", f);
        break;
    case JSON_TRUE:
        fputs("true", f);
        break;
    case JSON_FALSE:
        fputs("false", f);
        break;
    case JSON_INTEGER:
        fprintf(f, "%lld", (long long)json_integer_value(v));
        break;
    case JSON_REAL:
        put_real(f, json_real_value(v));
        break;
    case JSON_STRING:
        put_text(f, json_string_value(v), json_string_length(v));
        break;
    case JSON_ARRAY:
        fputc('[', f);
        json_array_foreach(v, i, item)
        {
            if (i) fputs(", ", f);
            put_value(f, item);
        }
        fputc(']', f);
        break;
    case JSON_OBJECT:
        i = 0;
        fputc('{', f);
        json_object_foreach((json_t *)v, name, item)
        {
            if (i++) fputs(", ", f);
            put_text(f, name, strlen(name));
            fputs(": ", f);
            put_value(f, item);
        }
        fputc('}', f);
        break;
    }
}

/* --- the configuration ---------------------------------------------------------------------------------- */

static tt_status put_key(FILE *f, const tt_config *c, tt_config_id id)
{
    const tt_config_key *k = tt_config_key_of(id);
    json_t *v = tt_config_get(c, k);
    TT_CHECK(v, TT_ENOMEM, "key '%s': out of memory", k->name);
    /* Read again, a key of a feature that is not built would look like a wish for it. */
    bool comment = !tt_feature_built(k->feature) && !tt_config_is_set(c, id);
    fprintf(f, "%s%s: ", comment ? "# " : "", k->name);
    put_value(f, v);
    fputc('\n', f);
    json_decref(v);
    return TT_OK;
}

/* Close the stream of a text under construction; on failure the text is freed. */
static tt_status finish(FILE *f, char **text, tt_status status)
{
    if (fclose(f) != 0 && status == TT_OK)
        status = tt_error_set(TT_ENOMEM, "out of memory while writing a text");
    if (status != TT_OK) {
        free(*text);
        *text = NULL;
    }
    return status;
}

tt_status tt_config_yaml(const tt_config *c, char **out)
{
    size_t bytes;
    FILE *f = open_memstream(out, &bytes);
    TT_CHECK(f, TT_ENOMEM, "out of memory while writing the configuration");
    fputs("# The configuration of a run of tartan, with every default filled in.\n"
          "# `tartan sft` with this file does the same run again.\n",
          f);
    tt_status status = TT_OK;
    for (int i = 0; i < TT_CONFIG_NUM_KEYS && status == TT_OK; i++) {
        const char *title = tt_config_group((tt_config_id)i);
        if (title) fprintf(f, "\n# %s\n", title);
        status = put_key(f, c, (tt_config_id)i);
    }
    return finish(f, out, status);
}

tt_status tt_config_write(const char *path, const tt_config *c)
{
    char *text;
    TT_TRY(tt_config_yaml(c, &text));
    tt_status status = tt_file_write_all(path, text, strlen(text));
    free(text);
    return status;
}

/* --- help ----------------------------------------------------------------------------------------------- */

static void help_key(FILE *f, const tt_config_key *k)
{
    char expected[400];
    tt_config_expected(k, expected, sizeof expected);
    fprintf(f, "  --%s", k->name);
    if (k->alias) fprintf(f, ", --%s", k->alias);
    fprintf(f, "  (default %s)\n      %s\n      %s", k->fallback, k->help, expected);
    if (k->feature == TT_FEATURE_ACCEPTED) fputs("; accepted, has no effect", f);
    if (!tt_feature_built(k->feature)) fputs("; not supported yet", f);
    const char *separator = "; not supported yet: ";
    for (const tt_config_word *w = k->words; w && w->text; w++)
        if (!w->built) fprintf(f, "%s%s", separator, w->text), separator = ", ";
    fputc('\n', f);
}

tt_status tt_config_help(char **out)
{
    size_t bytes;
    FILE *f = open_memstream(out, &bytes);
    TT_CHECK(f, TT_ENOMEM, "out of memory while writing the help text");
    for (int i = 0; i < TT_CONFIG_NUM_KEYS; i++) {
        const char *title = tt_config_group((tt_config_id)i);
        if (title) fprintf(f, "%s%s\n", i ? "\n" : "", title);
        help_key(f, tt_config_key_of((tt_config_id)i));
    }
    return finish(f, out, TT_OK);
}
