/* tartan/chat_template.h - chat templates: the subset of Jinja that model folders use.
 *
 * Behaviour is that of Jinja2 in the environment of the common library (trim_blocks, lstrip_blocks, lenient
 * undefined, loop controls, the generation block, its own tojson). docs/data.md, section "Chat templates", lists
 * the language. A template comes from a downloaded model and is untrusted: nesting, loop iterations and output
 * are bounded, and nothing outside the variables can be reached.
 * Values are jansson's json_t.
 */
#ifndef TARTAN_CHAT_TEMPLATE_H
#define TARTAN_CHAT_TEMPLATE_H

#include "tartan/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tt_template tt_template;

/* Text, and the byte ranges of it that generation blocks produced:
 * in order, disjoint, possibly empty. A block inside another adds nothing. */
typedef struct tt_rendering {
    char *text; /* NUL-terminated beyond bytes */
    size_t bytes;
    int64_t num_spans;
    struct {
        int64_t begin, end;
    } *spans;
} tt_rendering;

/* tt_template_compile - parse `source`; `name` stands in messages (a path). *out is owned by the caller.
 * Errors: TT_EFORMAT with name, line and construct. Local. */
tt_status tt_template_compile(const char *source, const char *name, tt_template **out);
void tt_template_destroy(tt_template **t);

/* Whether the template marks trainable text ({% generation %}) and all its marks can be found in the output.
 * A block inside a macro, a call, a set or filter block or a recursive loop renders, but leaves no span. */
bool tt_template_has_generation(const tt_template *t);

/* tt_template_check_generation - TT_OK when the above holds; else TT_EFORMAT with name, line and remedy. Local. */
tt_status tt_template_check_generation(const tt_template *t);

/* tt_template_render - with the members of the object `variables` as top-level names.
 * strftime_now shows local time, or the date in the variable `template_date` ("2024-07-26", "2024-07-26T13:45:00").
 * Errors: TT_EDATA, "name:line: reason"; for raise_exception the reason is the template's own message, unchanged.
 * out is overwritten; free with tt_rendering_free. Local; several threads may render one template. */
tt_status tt_template_render(const tt_template *t, const json_t *variables, tt_rendering *out);
void tt_rendering_free(tt_rendering *r);

#ifdef __cplusplus
}
#endif
#endif
