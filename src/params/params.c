#include "params/params.h"
#include "base/checked.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

tt_status tt_params_add_unit(tt_params *p, tt_unit_kind kind, int layer, int *unit)
{
    tt_unit *grown = realloc(p->units, (size_t)(p->num_units + 1) * sizeof *grown);
    TT_CHECK(grown, TT_ENOMEM, "out of memory for the parameter table");
    p->units = grown;
    p->units[p->num_units] = (tt_unit){kind, layer, p->num, 0};
    *unit = p->num_units++;
    return TT_OK;
}

bool tt_params_decays(const char *name)
{
    char lower[512];
    size_t n = strnlen(name, sizeof lower - 1);
    for (size_t i = 0; i < n; i++) lower[i] = (char)tolower((unsigned char)name[i]);
    lower[n] = '\0';
    if (strstr(lower, "bias") || strstr(lower, "layernorm") || strstr(lower, "rmsnorm")) return false;
    for (char *part = lower; part;) {
        char *dot = strchr(part, '.');
        size_t length = dot ? (size_t)(dot - part) : strlen(part);
        if (length == 4 && memcmp(part, "norm", 4) == 0) return false;
        if (length >= 5 && memcmp(part + length - 5, "_norm", 5) == 0) return false;
        part = dot ? dot + 1 : NULL;
    }
    return true;
}

tt_status tt_params_add(tt_params *p, const char *name, int64_t rows, int64_t cols, tt_param **out)
{
    TT_ASSERT(p->num_units > 0);
    if (p->num == p->capacity) {
        int64_t capacity = p->capacity ? 2 * p->capacity : 256;
        tt_param *grown = realloc(p->at, (size_t)capacity * sizeof *grown);
        TT_CHECK(grown, TT_ENOMEM, "out of memory for a table of %lld parameters", (long long)capacity);
        p->at = grown;
        p->capacity = capacity;
    }
    tt_param *e = &p->at[p->num];
    *e = (tt_param){
        .name = strdup(name),
        .ndim = cols ? 2 : 1,
        .shape = {rows, cols ? cols : 1},
        .unit = p->num_units - 1,
        .expert = -1,
        .stack = -1,
        .exact = cols == 0,
        .trained = true,
        .decay = tt_params_decays(name),
        .init = cols ? TT_INIT_NORMAL : TT_INIT_ONE,
        .zero_row = -1,
        .stored = TT_F32,
    };
    TT_CHECK(e->name, TT_ENOMEM, "out of memory for the parameter table");
    if (rows < 1 || cols < 0 || !tt_mul_i64(rows, e->shape[1], &e->count) || e->count > INT64_MAX / 16) {
        free(e->name);
        return tt_error_set(TT_ECONFIG, "parameter '%s' would have the impossible shape [%lld, %lld]", name,
                            (long long)rows, (long long)cols);
    }
    p->num++;
    p->units[p->num_units - 1].count++;
    if (out) *out = e;
    return TT_OK;
}

tt_status tt_params_add_stack(tt_params *p, const char *name, const int64_t shape[3], int64_t *index)
{
    int64_t count;
    TT_CHECK(tt_mul_i64(shape[0], shape[1], &count) && tt_mul_i64(count, shape[2], &count) && count <= INT64_MAX / 16,
             TT_ECONFIG, "the experts '%s' would have more parameters than can be counted", name);
    tt_stack *grown = realloc(p->stacks, (size_t)(p->num_stacks + 1) * sizeof *grown);
    TT_CHECK(grown, TT_ENOMEM, "out of memory for the parameter table");
    p->stacks = grown;
    tt_stack *s = &p->stacks[p->num_stacks];
    *s = (tt_stack){strdup(name), {shape[0], shape[1], shape[2]}};
    TT_CHECK(s->name, TT_ENOMEM, "out of memory for the parameter table");
    *index = p->num_stacks++;
    return TT_OK;
}

void tt_params_free(tt_params *p)
{
    for (int64_t i = 0; i < p->num; i++) free(p->at[i].name);
    for (int64_t i = 0; i < p->num_stacks; i++) free(p->stacks[i].name);
    free(p->at);
    free(p->stacks);
    free(p->units);
    *p = (tt_params){0};
}

#define NAME_BYTES 255

/* Levenshtein distance with one row of memory. Names of one table share long beginnings, which cost nothing. */
int tt_name_distance(const char *a, const char *b, int most)
{
    int row[NAME_BYTES + 1];
    size_t m = strnlen(a, NAME_BYTES), n = strnlen(b, NAME_BYTES), same = 0;
    if (most <= (m < n ? (int)(n - m) : (int)(m - n))) return most;
    while (same < m && same < n && a[same] == b[same]) same++;
    a += same, b += same, m -= same, n -= same;
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 0; i < m; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < n; j++) {
            int substitute = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            int best = row[j] < row[j + 1] ? row[j] + 1 : row[j + 1] + 1;
            row[j + 1] = substitute < best ? substitute : best;
        }
    }
    return row[n];
}

const char *tt_params_nearest(const tt_params *p, const char *name)
{
    const char *best = NULL;
    int least = INT32_MAX;
    for (int64_t i = 0; i < p->num + p->num_stacks; i++) {
        const char *known = i < p->num ? p->at[i].name : p->stacks[i - p->num].name;
        int d = tt_name_distance(name, known, least);
        if (d < least) least = d, best = known;
    }
    return best;
}

int64_t tt_params_total(const tt_params *p)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < p->num; i++) sum += p->at[i].count;
    return sum;
}

int64_t tt_params_active(const tt_params *p, int64_t chosen)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < p->num; i++)
        if (p->at[i].expert < chosen) sum += p->at[i].count; /* all experts of a layer have one shape */
    return sum;
}
