/* row_ids.c - rows that bring token ids, and labels or masks for them: see prepare.h.
 *
 * They are used as they are: nothing is appended. Labels of the file win over masks; assistant_masks apply
 * always, completion_mask only when completion_only_loss asks for it (as the common trainer does). */
#include "base/json.h"
#include "data/preparer.h"

static const struct {
    const char *key;
    int bit;
} id_columns[] = {{"labels", TT_HAS_LABELS},
                  {"completion_mask", TT_HAS_COMPLETION_MASK},
                  {"assistant_masks", TT_HAS_ASSISTANT_MASK}};

enum { NUM_ID_COLUMNS = sizeof id_columns / sizeof *id_columns };

int tt_row_id_columns(const json_t *row)
{
    int found = 0;
    for (int i = 0; i < NUM_ID_COLUMNS; i++) {
        const json_t *value = json_object_get(row, id_columns[i].key);
        if (value && !json_is_null(value)) found |= id_columns[i].bit;
    }
    return found;
}

static tt_status same_id_columns(const tt_preparer *p, const json_t *row, const char *where)
{
    int differ = tt_row_id_columns(row) ^ p->id_columns;
    for (int i = 0; i < NUM_ID_COLUMNS; i++)
        TT_CHECK(!(differ & id_columns[i].bit), TT_EDATA,
                 "%s: the first row has %s column '%s' and this row has %s; all rows need the same columns", where,
                 p->id_columns & id_columns[i].bit ? "a" : "no", id_columns[i].key,
                 p->id_columns & id_columns[i].bit ? "none" : "one");
    return TT_OK;
}

/* Element i of a column's list as a whole number in [low, high); true and false are 1 and 0. */
static tt_status element(const json_t *list, const char *key, size_t i, int64_t low, int64_t high, const char *where,
                         int32_t *out)
{
    const json_t *value = json_array_get(list, i);
    TT_CHECK(json_is_integer(value) || json_is_boolean(value), TT_EDATA, "%s: %s[%zu] is %s; expected an integer",
             where, key, i, tt_json_kind(value));
    int64_t number = json_is_boolean(value) ? json_is_true(value) : json_integer_value(value);
    TT_CHECK(number >= low && number < high, TT_EDATA,
             "%s: %s[%zu] is %lld, outside of %lld to %lld; the data was made for another vocabulary, or is "
             "damaged",
             where, key, i, (long long)number, (long long)low, (long long)high - 1);
    *out = (int32_t)number;
    return TT_OK;
}

/* A column that must be a list of n numbers. */
static tt_status list_of(const json_t *row, const char *key, size_t n, const char *where, const json_t **out)
{
    *out = json_object_get(row, key);
    TT_CHECK(json_is_array(*out), TT_EDATA, "%s: column '%s' is %s; expected a list of integers", where, key,
             tt_json_kind(*out));
    TT_CHECK(json_array_size(*out) == n, TT_EDATA, "%s: '%s' has %zu numbers, 'input_ids' has %zu; expected as many",
             where, key, json_array_size(*out), n);
    return TT_OK;
}

static tt_status read_labels(const tt_preparer *p, const json_t *row, size_t n, const char *where, int32_t *labels)
{
    const json_t *list;
    TT_TRY(list_of(row, "labels", n, where, &list));
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        labels[i] = TT_IGNORE;
        if (json_is_integer(value) && json_integer_value(value) == TT_IGNORE) continue;
        TT_TRY(element(list, "labels", i, 0, p->vocab_size, where, &labels[i]));
    }
    return TT_OK;
}

static tt_status apply_mask(const json_t *row, const char *key, size_t n, const char *where, int32_t *labels)
{
    const json_t *list;
    TT_TRY(list_of(row, key, n, where, &list));
    for (size_t i = 0; i < n; i++) {
        int32_t bit;
        TT_TRY(element(list, key, i, 0, 2, where, &bit));
        if (!bit) labels[i] = TT_IGNORE;
    }
    return TT_OK;
}

tt_status tt_row_ids(const tt_preparer *p, const json_t *row, const char *where, tt_tokens *out,
                     tt_findings *findings)
{
    const json_t *list = json_object_get(row, "input_ids");
    size_t n = json_array_size(list);
    TT_TRY(list_of(row, "input_ids", n, where, &list));
    TT_TRY(same_id_columns(p, row, where));
    TT_TRY(tt_tokens_reserve(out, (int64_t)n));
    int32_t *ids = out->ids + out->count, *labels = out->labels + out->count;
    for (size_t i = 0; i < n; i++) {
        TT_TRY(element(list, "input_ids", i, 0, p->vocab_size, where, &ids[i]));
        labels[i] = ids[i];
    }
    if (p->id_columns & TT_HAS_LABELS) {
        TT_TRY(read_labels(p, row, n, where, labels));
    } else {
        if (p->id_columns & TT_HAS_ASSISTANT_MASK) TT_TRY(apply_mask(row, "assistant_masks", n, where, labels));
        if ((p->id_columns & TT_HAS_COMPLETION_MASK) && p->completion_only)
            TT_TRY(apply_mask(row, "completion_mask", n, where, labels));
    }
    if (n > 0 && p->eos_id >= 0 && ids[n - 1] != p->eos_id) tt_findings_add(findings, TT_WARN_NO_FINAL_EOS, -1);
    out->count += (int64_t)n;
    return TT_OK;
}
