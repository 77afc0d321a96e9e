/* chat_template.c - the public side of the template engine: compile, render, and the rules about generation
 * blocks. */
#include "tartan/chat_template.h"

#include "data/template_impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static tt_status check_utf8(const char *source, size_t bytes, const char *name)
{
    int line = 1;
    for (size_t at = 0; at < bytes;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)source + at, (utf8proc_ssize_t)(bytes - at), &c);
        if (n <= 0) return tt_error_set(TT_EFORMAT, "%s:%d: the template is not valid UTF-8", name, line);
        line += c == '\n';
        at += (size_t)n;
    }
    return TT_OK;
}

static tt_status compile(tt_template *t, const char *source, const char *name)
{
    void *copy;
    size_t bytes = strlen(source), name_bytes = strlen(name) + 1;
    TT_CHECK(bytes <= TPL_MAX_SOURCE, TT_EFORMAT, "%s: the template has %zu bytes; at most %d are read", name,
             bytes, TPL_MAX_SOURCE);
    TT_TRY(check_utf8(source, bytes, name));
    TT_TRY(tt_tpl_take(&t->pool, name_bytes, 1, &copy));
    t->name = memcpy(copy, name, name_bytes);
    tpl_parser *p = calloc(1, sizeof *p);
    TT_CHECK(p, TT_ENOMEM, "%s: out of memory", name);
    p->template = t;
    tt_status status = tt_tpl_lex_begin(&p->lexer, &t->pool, t->name, source, bytes);
    if (status == TT_OK) status = tt_tpl_parse(p);
    free(p);
    return status;
}

tt_status tt_template_compile(const char *source, const char *name, tt_template **out)
{
    *out = NULL;
    tt_template *t = calloc(1, sizeof *t);
    TT_CHECK(t, TT_ENOMEM, "%s: out of memory", name);
    tt_status status = compile(t, source, name);
    if (status == TT_OK)
        *out = t;
    else
        tt_template_destroy(&t);
    /* The pool does not know whether a template or its data is too large. */
    return status == TT_EDATA ? tt_error_context(TT_EFORMAT, "%s", name) : status;
}

void tt_template_destroy(tt_template **t)
{
    if (!*t) return;
    tt_tpl_pool_free(&(*t)->pool);
    free(*t);
    *t = NULL;
}

bool tt_template_has_generation(const tt_template *t)
{
    return t->num_generations > 0 && t->lost_line == 0;
}

tt_status tt_template_check_generation(const tt_template *t)
{
    TT_CHECK(t->num_generations, TT_EFORMAT,
             "%s: the template does not mark what the assistant says; put {%% generation %%} ... {%% "
             "endgeneration %%} "
             "around it, or train on all text",
             t->name);
    TT_CHECK(!t->lost_line, TT_EFORMAT,
             "%s:%d: a {%% generation %%} block inside a macro, a call, a set or filter block or a recursive "
             "loop: its "
             "place in the text cannot be told; move it out",
             t->name, t->lost_line);
    return TT_OK;
}

static tt_status render(tpl_render *r)
{
    void *globals;
    TT_TRY(tt_tpl_take(&r->pool, (size_t)r->template->num_atoms, sizeof(tpl_value), &globals));
    r->globals = globals;
    TT_TRY(tt_tpl_run_body(r, &r->root, &r->template->body));
    if (!r->text) r->text = malloc(1);
    TT_CHECK(r->text, TT_ENOMEM, "chat template: out of memory");
    r->text[r->length] = '\0';
    return TT_OK;
}

tt_status tt_template_render(const tt_template *t, const json_t *variables, tt_rendering *out)
{
    tpl_render r = {.template = t, .variables = variables, .result = out, .line = 1};
    *out = (tt_rendering){0};
    tt_status status = render(&r);
    tt_tpl_pool_free(&r.pool);
    out->text = r.text;
    out->bytes = r.length;
    if (status == TT_OK) return TT_OK;
    tt_rendering_free(out);
    return tt_error_context(status, "%s:%d", t->name, r.line);
}

void tt_rendering_free(tt_rendering *r)
{
    free(r->text);
    free(r->spans);
    *r = (tt_rendering){0};
}
