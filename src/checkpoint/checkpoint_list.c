/* checkpoint_list.c - the checkpoints of a folder: which is the newest that is whole, which may go. */
#include "base/checked.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layout.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "checkpoint-"

typedef struct list {
    int64_t *steps;
    int64_t num, capacity;
} list;

/* "checkpoint-N", N as it would be written, and nothing behind it but `end`. */
static bool parse_name(const char *name, const char *end, int64_t *step)
{
    const size_t n = sizeof PREFIX - 1;
    int64_t value = 0;
    if (strncmp(name, PREFIX, n) != 0 || name[n] < '0' || name[n] > '9' || (name[n] == '0' && name[n + 1] >= '0' && name[n + 1] <= '9'))
        return false;
    const char *at = name + n;
    for (; *at >= '0' && *at <= '9'; at++)
        if (!tt_mul_i64(value, 10, &value) || !tt_add_i64(value, *at - '0', &value)) return false;
    *step = value;
    return strcmp(at, end) == 0;
}

bool tt_checkpoint_number(const char *path, int64_t *step)
{
    char name[64];
    size_t n = strlen(path);
    while (n > 0 && path[n - 1] == '/') n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    if (n - begin >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)(n - begin), path + begin);
    return parse_name(name, "", step);
}

static int largest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* Names "checkpoint-N" + end of a folder, largest N first; none when there is no such folder. */
static tt_status list_steps(const char *folder, const char *end, list *l)
{
    *l = (list){0};
    DIR *d = opendir(folder);
    if (!d && errno == ENOENT) return TT_OK;
    TT_CHECK(d, TT_EIO, "cannot list '%s': %s", folder, strerror(errno));
    tt_status status = TT_OK;
    for (struct dirent *e; status == TT_OK && (e = readdir(d));) {
        int64_t step;
        if (!parse_name(e->d_name, end, &step)) continue;
        if (l->num == l->capacity) {
            int64_t more = l->capacity ? 2 * l->capacity : 16;
            int64_t *grown = realloc(l->steps, (size_t)more * sizeof *grown);
            if (!grown) {
                status = tt_error_set(TT_ENOMEM, "out of memory for the checkpoints of '%s'", folder);
                break;
            }
            l->steps = grown;
            l->capacity = more;
        }
        l->steps[l->num++] = step;
    }
    closedir(d);
    if (l->num > 1) qsort(l->steps, (size_t)l->num, sizeof *l->steps, largest_first);
    if (status != TT_OK) free(l->steps);
    return status;
}

static tt_status path_of(const char *folder, int64_t step, const char *end, char *out, size_t size)
{
    char name[64];
    snprintf(name, sizeof name, PREFIX "%lld%s", (long long)step, end);
    return tt_path_join(out, size, folder, name);
}

/* One more line of *text, which may be NULL. */
static tt_status add_line(char **text, int64_t step, const char *why)
{
    char *grown;
    if (asprintf(&grown, "%s%s" PREFIX "%lld: %s", *text ? *text : "", *text ? "\n" : "", (long long)step, why) < 0)
        return tt_error_set(TT_ENOMEM, "out of memory for a message");
    free(*text);
    *text = grown;
    return TT_OK;
}

static tt_status find_newest(const char *folder, const list *l, int64_t below, char **path, char **passed)
{
    char at[4096];
    for (int64_t i = 0; i < l->num; i++) {
        tt_checkpoint c;
        if (l->steps[i] >= below) continue;
        TT_TRY(path_of(folder, l->steps[i], "", at, sizeof at));
        tt_status status = tt_checkpoint_open(at, &c);
        if (status == TT_ENOMEM) return status;
        if (status != TT_OK) {
            TT_TRY(add_line(passed, l->steps[i], tt_error_text()));
            continue;
        }
        tt_checkpoint_close(&c);
        *path = strdup(at);
        TT_CHECK(*path, TT_ENOMEM, "out of memory");
        return TT_OK;
    }
    return TT_OK;
}

tt_status tt_checkpoint_newest(const char *folder, int64_t below, char **path, char **passed)
{
    list l;
    *path = *passed = NULL;
    TT_TRY(list_steps(folder, "", &l));
    tt_status status = find_newest(folder, &l, below, path, passed);
    free(l.steps);
    if (status != TT_OK) {
        free(*passed);
        *passed = NULL;
    }
    return status;
}

/* Under another name first, so that what a kill leaves is taken for no checkpoint. */
static tt_status delete_one(const char *folder, int64_t step, const char *path)
{
    char temporary[4096];
    TT_TRY(path_of(folder, step, TT_ST_TEMPORARY, temporary, sizeof temporary));
    TT_TRY(tt_dir_remove(temporary));
    TT_TRY(tt_file_rename(path, temporary));
    return tt_dir_remove(temporary);
}

static bool holds(const char *folder, const char *name)
{
    char path[4096];
    return tt_path_join(path, sizeof path, folder, name) == TT_OK && tt_file_exists(path);
}

bool tt_checkpoint_is_ours(const char *path)
{
    if (holds(path, TT_CHECKPOINT_MANIFEST)) return true;
    return holds(path, "trainer_state.json") && (holds(path, TT_STATE_STEM ".safetensors") || holds(path, TT_STATE_STEM ".safetensors.index.json"));
}

static tt_status prune(const char *folder, const list *l, int keep, const char *spare, const char *newest)
{
    char path[4096];
    int64_t there = 0;
    for (int64_t i = 0; i < l->num; i++) {
        TT_TRY(path_of(folder, l->steps[i], "", path, sizeof path));
        there += tt_checkpoint_is_ours(path);
    }
    for (int64_t i = l->num - 1; i >= 0 && there > keep; i--) {
        TT_TRY(path_of(folder, l->steps[i], "", path, sizeof path));
        if (!newest || strcmp(path, newest) == 0) break;
        if (!tt_checkpoint_is_ours(path) || (spare && tt_same_file(path, spare))) continue;
        TT_TRY(delete_one(folder, l->steps[i], path));
        there--;
    }
    return TT_OK;
}

tt_status tt_checkpoint_prune(const char *folder, int keep, const char *spare)
{
    char *newest, *passed;
    list l;
    if (keep <= 0) return TT_OK;
    TT_TRY(tt_checkpoint_newest(folder, INT64_MAX, &newest, &passed));
    tt_status status = list_steps(folder, "", &l);
    if (status == TT_OK) {
        status = prune(folder, &l, keep, spare, newest);
        free(l.steps);
    }
    free(newest);
    free(passed);
    return status;
}

tt_status tt_checkpoint_foreign(const char *folder, int64_t above, char **path)
{
    char at[4096];
    list l;
    *path = NULL;
    TT_TRY(list_steps(folder, "", &l));
    tt_status status = TT_OK;
    for (int64_t i = 0; i < l.num && l.steps[i] > above && status == TT_OK && !*path; i++) {
        status = path_of(folder, l.steps[i], "", at, sizeof at);
        if (status != TT_OK || tt_checkpoint_is_ours(at)) continue;
        *path = strdup(at);
        if (!*path) status = tt_error_set(TT_ENOMEM, "out of memory");
    }
    free(l.steps);
    return status;
}

/* What stepped aside for a checkpoint that did not come is the only one of its number, and gets its name back. */
static tt_status put_back(const char *folder)
{
    char aside[4096], whole[4096];
    list l;
    TT_TRY(list_steps(folder, TT_ST_REPLACED, &l));
    tt_status status = TT_OK;
    for (int64_t i = 0; i < l.num && status == TT_OK; i++) {
        status = path_of(folder, l.steps[i], TT_ST_REPLACED, aside, sizeof aside);
        if (status == TT_OK) status = path_of(folder, l.steps[i], "", whole, sizeof whole);
        if (status != TT_OK || tt_file_exists(whole) || tt_dir_exists(whole)) continue;
        tt_info("%s: renamed to %s, a save was interrupted", aside, whole);
        status = tt_file_rename(aside, whole);
    }
    free(l.steps);
    return status;
}

tt_status tt_checkpoint_sweep(const char *folder)
{
    static const char *const ends[] = {TT_ST_TEMPORARY, TT_ST_REPLACED};
    char path[4096];
    TT_TRY(put_back(folder));
    for (int k = 0; k < 2; k++) {
        list l;
        TT_TRY(list_steps(folder, ends[k], &l));
        tt_status status = TT_OK;
        for (int64_t i = 0; i < l.num && status == TT_OK; i++) {
            status = path_of(folder, l.steps[i], ends[k], path, sizeof path);
            if (status != TT_OK) continue;
            tt_info("%s: removed, a save was interrupted", path);
            status = tt_dir_remove(path);
        }
        free(l.steps);
        TT_TRY(status);
    }
    return TT_OK;
}
