/* What becomes of files when the system fails or the process is killed, at any instant: what was published stays whole, what
 * was not is taken for nothing, damage is named, and a failure of one rank is known to all. */
#include "support/saved.h"
#include "support/test.h"

#include "base/checked.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define O1         "tests/fixtures/O1/model"
#define O1_SHARDED "tests/fixtures/O1-sharded/model"

static saved_run run_of(const char *from, const char *checkpoint, int step)
{
    return (saved_run){.from = from, .world = 2, .ep = 1, .resident = TT_F32, .moments = TT_F32, .seed = (uint64_t)step,
                       .checkpoint = checkpoint, .step = step, .bad_rank = -1};
}

/* --- damage ------------------------------------------------------------------------------------------------------ */

/* Opening or checking must fail, with a message that names the file. */
static void expect_damage(const char *folder, const char *name, const char *what, int64_t at)
{
    tt_checkpoint c;
    tt_status status = tt_checkpoint_open(folder, &c);
    if (status == TT_OK) {
        status = tt_checkpoint_check(&c, 0, 1, 1, NULL);
        tt_checkpoint_close(&c);
    }
    if (status == TT_OK) fail_msg("%s: %s at %lld was not noticed", name, what, (long long)at);
    if (status != TT_EFORMAT && status != TT_EIO) fail_msg("%s: %s: %s", name, what, tt_status_name(status));
    /* A header that lies is reported under the file that it leads to. */
    if (!strstr(tt_error_text(), name) && !strstr(tt_error_text(), "safetensors"))
        fail_msg("%s: %s at %lld: the message is '%s'", name, what, (long long)at, tt_error_text());
}

static void flip(const char *path, int64_t at, uint8_t bits)
{
    uint8_t byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

/* Bits flipped at `positions` places of a file, one at a time; its ends are always among them. */
static void flip_all(const char *folder, const char *name, int positions)
{
    char path[1500];
    struct stat st;
    assert_ok(tt_path_join(path, sizeof path, folder, name));
    assert_int_equal(stat(path, &st), 0);
    int64_t last = -1;
    for (int i = 0; i < positions; i++) {
        int64_t at = st.st_size > 1 ? (st.st_size - 1) * i / (positions - 1) : 0;
        if (at == last) continue;
        last = at;
        uint8_t bits = (uint8_t)(1 << i % 8);
        flip(path, at, bits);
        expect_damage(folder, name, "a flipped bit", at);
        flip(path, at, bits);
    }
}

static void truncate_all(const char *folder, const char *name)
{
    char path[1500], *text;
    size_t bytes;
    assert_ok(tt_path_join(path, sizeof path, folder, name));
    assert_ok(tt_file_read_all(path, 1 << 26, &text, &bytes));
    const size_t sizes[] = {0, 1, 7, 8, 9, bytes / 2, bytes - 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] >= bytes) continue;
        assert_int_equal(truncate(path, (off_t)sizes[i]), 0);
        expect_damage(folder, name, "truncation", (int64_t)sizes[i]);
        assert_ok(tt_file_write_all(path, text, bytes));
    }
    char *longer = malloc(bytes + 1);
    memcpy(longer, text, bytes);
    longer[bytes] = ' ';
    assert_ok(tt_file_write_all(path, longer, bytes + 1));
    expect_damage(folder, name, "a byte more", (int64_t)bytes);
    assert_ok(tt_file_remove(path));
    expect_damage(folder, name, "removal", 0);
    assert_ok(tt_dir_create(path));
    expect_damage(folder, name, "a folder in its place", 0);
    assert_int_equal(rmdir(path), 0);
    assert_ok(tt_file_write_all(path, text, bytes));
    free(longer);
    free(text);
}

static void every_file_is_proved(void **state)
{
    (void)state;
    char at[1200];
    tt_checkpoint c;
    snprintf(at, sizeof at, "%s/checkpoint-3", test_folder("damage"));
    saved_run w = run_of(O1_SHARDED, at, 3);
    w.max_file_bytes = 200000;
    assert_ok(saved_write(&w));
    assert_ok(tt_checkpoint_open(at, &c));
    const char *name;
    json_t *entry;
    int num = 0;
    json_object_foreach(json_object_get(c.manifest, "files"), name, entry)
    {
        flip_all(at, name, 24);
        truncate_all(at, name);
        num++;
    }
    assert_true(num > 8); /* three files, an index, state in several, config.json, tokenizer, progress */
    tt_checkpoint_close(&c);
    flip_all(at, TT_CHECKPOINT_MANIFEST, 1500);
    truncate_all(at, TT_CHECKPOINT_MANIFEST);
    /* All damage was undone. */
    assert_ok(saved_verify(at, 2, 1, TT_F32, TT_F32, 3));
}

static void what_was_added_later(void **state)
{
    (void)state;
    char at[1200], path[1300];
    tt_checkpoint c;
    snprintf(at, sizeof at, "%s/checkpoint-3", test_folder("added"));
    saved_run w = run_of(O1_SHARDED, at, 3);
    assert_ok(saved_write(&w));
    /* A note harms nobody. */
    snprintf(path, sizeof path, "%s/notes.txt", at);
    assert_ok(tt_file_write_all(path, "good run", 8));
    assert_ok(tt_checkpoint_open(at, &c));
    tt_checkpoint_close(&c);
    /* Weights that the manifest does not cover would be read. */
    snprintf(path, sizeof path, "%s/optimizer.safetensors.index.json", at);
    assert_ok(tt_file_write_all(path, "{\"weight_map\":{\"a\":\"optimizer.safetensors\"}}", 43));
    assert_error(tt_checkpoint_open(at, &c), TT_EFORMAT, "optimizer.safetensors");
    assert_ok(tt_file_remove(path));
    snprintf(path, sizeof path, "%s/model.safetensors", at);
    assert_ok(tt_file_copy(O1 "/model.safetensors", path));
    assert_error(tt_checkpoint_open(at, &c), TT_EFORMAT, "model.safetensors");
    assert_ok(tt_file_remove(path));
    assert_ok(tt_checkpoint_open(at, &c));
    tt_checkpoint_close(&c);
}

/* --- manifests from nowhere: a right checksum over wrong text --------------------------------------------------------- */

#define START "{\n  \"checksum\": \""

static tt_status read_text(const char *members)
{
    char path[1200], text[4096];
    json_t *m;
    snprintf(path, sizeof path, "%s/manifest", test_folder("manifest"));
    int n = snprintf(text, sizeof text, START "%016d\",\n%s}", 0, members);
    snprintf(text + strlen(START), 17, "%016llx", (unsigned long long)XXH64(text, (size_t)n, 0));
    text[strlen(START) + 16] = '"';
    assert_ok(tt_file_write_all(path, text, (size_t)n));
    tt_status status = tt_manifest_read(path, &m);
    if (status == TT_OK) json_decref(m);
    return status;
}

static void manifests_are_not_believed(void **state)
{
    (void)state;
#define HEAD "\"format\": \"tartan checkpoint\", \"version\": 1, \"step\": 3, \"with_state\": true"
#define HASH "\"0123456789abcdef\""
    assert_ok(read_text(HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [1, 3], \"xxh64\": [" HASH "," HASH "]}}"));
    assert_ok(read_text(HEAD ", \"files\": {\"a\": {\"bytes\": 0, \"ends\": [], \"xxh64\": []}}"));
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"\"format\": \"tartan checkpoint\", \"version\": 2, \"step\": 3, \"files\": {}", "version is 2"},
        {"\"format\": \"other\", \"version\": 1, \"step\": 3, \"files\": {}", "format is 'other'"},
        {"\"format\": 5, \"version\": 1, \"step\": 3, \"files\": {}", "'format' is integer"},
        {"\"format\": \"tartan checkpoint\", \"version\": 1, \"files\": {}", "step is missing or negative"},
        {"\"format\": \"tartan checkpoint\", \"version\": 1, \"step\": -3, \"files\": {}", "step is missing or negative"},
        {"\"format\": \"tartan checkpoint\", \"version\": 1, \"step\": 1e300, \"files\": {}", "step"},
        {HEAD, "'files' is missing"},
        {HEAD ", \"files\": []", "'files' is missing or not an object"},
        {HEAD ", \"files\": {}, \"step\": 3", "duplicate"},
        {HEAD ", \"files\": {\"../a\": {\"bytes\": 0, \"ends\": [], \"xxh64\": []}}", "'../a' is not the plain name"},
        {HEAD ", \"files\": {\"/etc/passwd\": {\"bytes\": 0, \"ends\": [], \"xxh64\": []}}", "is not the plain name"},
        {HEAD ", \"files\": {\"..\": {\"bytes\": 0, \"ends\": [], \"xxh64\": []}}", "'..' is not the plain name"},
        {HEAD ", \"files\": {\"\": {\"bytes\": 0, \"ends\": [], \"xxh64\": []}}", "is not the plain name"},
        {HEAD ", \"files\": {\"a\": 5}", "file 'a' needs"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [3], \"xxh64\": []}}", "equal lengths"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [3, 3], \"xxh64\": [" HASH "," HASH "]}}", "range 1 of file 'a'"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [-3], \"xxh64\": [" HASH "]}}", "range 0 of file 'a'"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [2.5], \"xxh64\": [" HASH "]}}", "range 0 of file 'a'"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 4, \"ends\": [3], \"xxh64\": [" HASH "]}}", "end at byte 3 of 4"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [3], \"xxh64\": [\"0123456789ABCDEF\"]}}", "range 0 of file 'a'"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [3], \"xxh64\": [\"\"]}}", "range 0 of file 'a'"},
        {HEAD ", \"files\": {\"a\": {\"bytes\": 3, \"ends\": [3], \"xxh64\": [7]}}", "range 0 of file 'a'"},
        {HEAD ", \"files\": {", "manifest"},
        {"\"x\": \"\xff\"", "manifest"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tt_status status = read_text(cases[i].text);
        if (status != TT_EFORMAT || !strstr(tt_error_text(), cases[i].message))
            fail_msg("%s\n  gave %s: %s", cases[i].text, tt_status_name(status), status ? tt_error_text() : "");
    }
    /* Nesting. */
    char deep[4000] = "\"train\": ";
    memset(deep + strlen(deep), '[', 3000);
    assert_error(read_text(deep), TT_EFORMAT, "manifest");
}

/* --- killed ------------------------------------------------------------------------------------------------------ */

typedef struct kill_job {
    saved_run *run;
    int64_t operation;  /* INT64_MAX: never */
    int64_t operations; /* how many there were; in the child's memory only, so through a file */
    const char *count_path;
} kill_job;

static tt_status write_and_die(void *arg)
{
    kill_job *j = arg;
    tt_file_fault_kill(j->operation);
    tt_status status = saved_write(j->run);
    char text[32];
    int n = snprintf(text, sizeof text, "%lld", (long long)tt_file_fault_operations());
    tt_file_fault_kill(-1);
    tt_status counted = tt_file_write_all(j->count_path, text, (size_t)n);
    return status == TT_OK ? counted : status;
}

/* Operations of the file layer that a write takes. */
static int64_t count_operations(saved_run *r)
{
    char path[1200], *text;
    size_t bytes;
    bool killed;
    snprintf(path, sizeof path, "%s/count", test_folder("operations"));
    kill_job j = {.run = r, .operation = INT64_MAX, .count_path = path};
    assert_ok(saved_in_child(write_and_die, &j, &killed));
    assert_ok(tt_file_read_all(path, 100, &text, &bytes));
    int64_t n = atoll(text);
    free(text);
    assert_true(n > 10);
    return n;
}

/* The instants to be killed at: all but the middle, where ranks write and one instant is like another. */
static int64_t next_instant(int64_t k, int64_t total)
{
    return k < 8 || k > total - 45 ? k + 1 : tt_min_i64(k + total / 6 + 1, total - 44);
}

static bool kill_at(saved_run *r, int64_t operation)
{
    bool killed;
    kill_job j = {.run = r, .operation = operation, .count_path = "build/tests/tmp/operations/count"};
    tt_status status = saved_in_child(write_and_die, &j, &killed);
    if (!killed && status != TT_OK) fail_msg("%s", tt_error_text());
    return killed;
}

/* Killed in the middle of a save: the checkpoint before is whole and is the newest, or the new one is; and the run that comes
 * next writes it. */
static void killed_while_a_checkpoint_is_written(void **state)
{
    (void)state;
    char root[1100], first[1200], second[1200], trial[1200];
    snprintf(root, sizeof root, "%s", test_folder("killed"));
    snprintf(first, sizeof first, "%s/checkpoint-3", root);
    snprintf(second, sizeof second, "%s/checkpoint-5", root);
    snprintf(trial, sizeof trial, "%s/trial", root);
    saved_run w = run_of(O1, first, 3), next = run_of(O1_SHARDED, second, 5), count = run_of(O1_SHARDED, trial, 5);
    assert_ok(saved_write(&w));
    int64_t total = count_operations(&count), published = 0;
    for (int64_t k = 0; k < total; k = next_instant(k, total)) {
        assert_ok(tt_dir_remove(second));
        assert_ok(tt_checkpoint_sweep(root)); /* or deleting what the last one left would come first */
        assert_true(kill_at(&next, k));
        char *path, *passed;
        assert_ok(tt_checkpoint_newest(root, INT64_MAX, &path, &passed));
        if (!path || passed) fail_msg("killed at operation %lld: newest is %s; %s", (long long)k, path, passed);
        bool is_new = strcmp(path, second) == 0;
        if (!is_new) assert_string_equal(path, first);
        tt_status status = saved_verify(path, 1, 1, TT_F32, TT_F32, is_new ? 5 : 3);
        if (status != TT_OK) fail_msg("killed at operation %lld of %lld: %s", (long long)k, (long long)total, tt_error_text());
        published += is_new;
        free(path);
    }
    assert_true(published > 0); /* between the rename and the flush of the folder */
    assert_ok(tt_dir_remove(second));
    assert_ok(saved_write(&next));
    assert_ok(saved_verify(second, 2, 2, TT_F32, TT_F32, 5));
}

/* Whether the checkpoint at FOLDER SUFFIX is whole and has the numbers of `seed`. */
static bool holds(const char *folder, const char *suffix, uint64_t seed)
{
    char path[1300];
    snprintf(path, sizeof path, "%s%s", folder, suffix);
    return saved_verify(path, 1, 1, TT_F32, TT_F32, seed) == TT_OK;
}

/* The same when a checkpoint of that number stands there already: one of the two is whole under its name. Where the file
 * system cannot let two folders trade names, there is one instant at which both are whole under other names. */
static void replace_and_die(bool trades)
{
    char root[1100], at[1200], copy[1200], trial[1200];
    snprintf(root, sizeof root, "%s", test_folder("killed-over"));
    snprintf(at, sizeof at, "%s/checkpoint-3", root);
    snprintf(copy, sizeof copy, "%s/copy", root);
    snprintf(trial, sizeof trial, "%s/trial", root);
    saved_run w = run_of(O1, at, 3), next = run_of(O1, at, 4);
    assert_ok(saved_write(&w));
    saved_copy(at, copy);
    next.overwrite = true;
    if (!trades) {
        /* The renames before are those of small files; that of the manifest is the last of them. */
        next.bad_rank = 0, next.bad_ops = TT_FILE_RENAME, next.bad_error = EINVAL, next.bad_once = true;
        next.bad_path = "/checkpoint-3";
        next.bad_after = 3;
    }
    saved_run count = next;
    saved_copy(at, trial);
    if (trades) count.checkpoint = trial;
    int64_t total = count_operations(&count);
    int aside = 0;
    for (int64_t k = total - 30; k < total; k++) {
        saved_copy(copy, at);
        assert_ok(tt_checkpoint_sweep(root));
        assert_true(kill_at(&next, k));
        if (holds(at, "", 3) || holds(at, "", 4)) continue;
        if (trades || tt_dir_exists(at) || !holds(at, TT_ST_REPLACED, 3) || !holds(at, TT_ST_TEMPORARY, 4))
            fail_msg("killed at operation %lld of %lld: %s", (long long)k, (long long)total, tt_error_text());
        aside++;
    }
    assert_int_equal(aside, !trades);
}

static void killed_while_a_checkpoint_is_replaced(void **state)
{
    (void)state;
    replace_and_die(true);
    replace_and_die(false);
}

static tt_status prune_and_die(void *arg)
{
    kill_job *j = arg;
    tt_file_fault_kill(j->operation);
    return tt_checkpoint_prune(j->count_path, 1, NULL);
}

static void killed_while_old_ones_are_deleted(void **state)
{
    (void)state;
    char root[1100], at[2][1200];
    snprintf(root, sizeof root, "%s", test_folder("killed-prune"));
    for (int64_t k = 0;; k++) {
        bool killed;
        for (int i = 0; i < 2; i++) {
            snprintf(at[i], sizeof at[i], "%s/checkpoint-%d", root, 3 + i);
            saved_run w = run_of(O1, at[i], 3 + i);
            if (!tt_dir_exists(at[i])) assert_ok(saved_write(&w));
        }
        kill_job j = {.operation = k, .count_path = root};
        assert_ok(saved_in_child(prune_and_die, &j, &killed));
        char *path, *passed;
        assert_ok(tt_checkpoint_newest(root, INT64_MAX, &path, &passed));
        assert_string_equal(path, at[1]);
        assert_null(passed);
        free(path);
        tt_checkpoint c; /* the older one is whole or not there */
        if (tt_dir_exists(at[0])) {
            assert_ok(tt_checkpoint_open(at[0], &c));
            tt_checkpoint_close(&c);
        }
        if (!killed) break;
    }
}

/* --- a model in place of another ------------------------------------------------------------------------------------ */

/* Tensors of two folders have the same bytes, in files of any names. */
static bool same_weights(const tt_st_folder *a, const char *folder)
{
    tt_st_folder b;
    assert_ok(tt_st_open_folder(folder, &b));
    bool same = a->num_tensors == b.num_tensors;
    for (int64_t i = 0; i < a->num_tensors && same; i++) {
        const tt_st_tensor *x = &a->tensors[i], *y = &b.tensors[i];
        size_t n = (size_t)(x->end - x->begin);
        char *p = malloc(2 * n + 1);
        assert_ok(tt_file_read_at(&a->files[x->file], x->begin, p, n));
        assert_ok(tt_file_read_at(&b.files[y->file], y->begin, p + n, n));
        same = strcmp(x->name, y->name) == 0 && memcmp(p, p + n, n) == 0;
        free(p);
    }
    tt_st_close(&b);
    return same;
}

/* By hand, as the message and docs/checkpoints.md say. */
static void finish_by_hand(const char *folder)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char from[1500], to[1500];
        size_t n = strlen(e->d_name), m = strlen(TT_ST_TEMPORARY);
        snprintf(from, sizeof from, "%s/%s", folder, e->d_name);
        if (n > m && strcmp(e->d_name + n - m, TT_ST_TEMPORARY) == 0) {
            snprintf(to, sizeof to, "%.*s", (int)(strlen(from) - m), from);
            assert_ok(tt_file_rename(from, to));
        } else if (strstr(e->d_name, TT_ST_REPLACED)) {
            assert_ok(tt_file_remove(from));
        }
    }
    closedir(d);
}

static void killed_while_a_model_is_replaced(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new;
        bool other_config; /* config.json of the old differs */
        bool always_loads;
    } cases[] = {
        {NULL, O1, false, false},        {NULL, O1_SHARDED, false, false}, {O1, O1, false, true},
        {O1, O1, true, false},           {O1, O1_SHARDED, false, false},   {O1_SHARDED, O1, false, false},
        {O1_SHARDED, O1_SHARDED, false, false},
    };
    char root[1100], at[1200], kept[1200], new[1200], trial[1200], path[1300];
    snprintf(root, sizeof root, "%s", test_folder("killed-model"));
    snprintf(at, sizeof at, "%s/at", root);
    snprintf(kept, sizeof kept, "%s/kept", root);
    snprintf(new, sizeof new, "%s/new", root);
    snprintf(trial, sizeof trial, "%s/trial", root);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        saved_run w = run_of(cases[i].new, NULL, 4);
        int refused = 0, old = 0, by_hand = 0;
        assert_ok(tt_dir_remove(kept));
        assert_ok(tt_dir_remove(new));
        assert_ok(tt_dir_create(kept));
        saved_run older = run_of(cases[i].old, NULL, 3);
        older.model = kept;
        if (cases[i].old) assert_ok(saved_write(&older));
        if (cases[i].other_config) {
            json_t *config;
            snprintf(path, sizeof path, "%s/config.json", kept);
            assert_ok(tt_json_load(path, 1 << 20, &config));
            json_object_set_new(config, "rope_theta", json_real(77777));
            assert_ok(tt_json_save(path, config, false));
            json_decref(config);
        }
        w.model = new;
        assert_ok(saved_write(&w));
        saved_copy(kept, trial);
        w.overwrite = true;
        w.model = trial;
        int64_t total = count_operations(&w);
        w.model = at;
        for (int64_t k = 0; k < total; k = next_instant(k, total)) {
            saved_copy(kept, at);
            assert_true(kill_at(&w, k));
            tt_st_folder f;
            tt_status status = tt_st_open_folder(at, &f);
            if (status != TT_OK) {
                bool told = strstr(tt_error_text(), "was interrupted") != NULL;
                refused++;
                if (cases[i].always_loads) fail_msg("case %zu, operation %lld: %s", i, (long long)k, tt_error_text());
                if (!told && !strstr(tt_error_text(), "holds neither") && !strstr(tt_error_text(), "out of date"))
                    fail_msg("case %zu, operation %lld: %s", i, (long long)k, tt_error_text());
                if (cases[i].old && !told) fail_msg("case %zu, operation %lld does not say what happened: %s", i, (long long)k, tt_error_text());
                if (told) {
                    finish_by_hand(at);
                    assert_ok(tt_st_open_folder(at, &f));
                    if (!same_weights(&f, new)) fail_msg("case %zu, operation %lld: finished by hand, another model", i, (long long)k);
                    tt_st_close(&f);
                    by_hand++;
                }
                continue;
            }
            /* config.json is that of the weights. */
            bool is_old = cases[i].old && same_weights(&f, kept);
            if (!is_old && !same_weights(&f, new)) fail_msg("case %zu, operation %lld of %lld: a mixture", i, (long long)k, (long long)total);
            saved_same_files(is_old ? kept : new, at, NULL);
            tt_st_close(&f);
            old += is_old;
        }
        if (cases[i].old && !old) fail_msg("case %zu: the old model was never whole", i);
        if (!cases[i].always_loads && !refused) fail_msg("case %zu: no instant without a model was met", i);
        if (cases[i].old && !cases[i].always_loads && !by_hand) fail_msg("case %zu: nothing was finished by hand", i);
        /* The run that comes next is not bothered by what was left. */
        assert_ok(saved_write(&w));
        saved_same_files(new, at, NULL);
        saved_same_files(at, new, NULL);
    }
}

/* --- failures of the system ------------------------------------------------------------------------------------------ */

/* Each kind of failure, on each rank, early and late. */
static void failures_of_the_system(void **state)
{
    (void)state;
    static const struct {
        unsigned ops;
        const char *path;
        int64_t after;
        int error;
        bool any_rank; /* ranks other than 0 do it too */
    } cases[] = {
        {TT_FILE_CREATE, "checkpoint-5", 0, EACCES, false},    {TT_FILE_CREATE, "model-00003", 0, ENOSPC, false},
        {TT_FILE_CREATE, "config.json", 0, EIO, false},        {TT_FILE_CREATE, "tartan_manifest", 0, EIO, false},
        {TT_FILE_WRITE, "model-00002", 1000, ENOSPC, true},    {TT_FILE_WRITE, "optimizer", 100000, EIO, true},
        {TT_FILE_WRITE, "optimizer", 0, EIO, true},            {TT_FILE_WRITE, "tartan_manifest", 0, ENOSPC, false},
        {TT_FILE_WRITE, "trainer_state", 0, EDQUOT, false},    {TT_FILE_SYNC, "model-00001", 0, EIO, true},
        {TT_FILE_SYNC, "optimizer", 1, EIO, false},            {TT_FILE_SYNC, "tartan_manifest", 0, EIO, false},
        {TT_FILE_SYNC, "checkpoint-5.tartan-tmp", 9, EIO, false}, {TT_FILE_RENAME, "tartan_manifest", 0, EIO, false},
        {TT_FILE_RENAME, "checkpoint-5", 3, EROFS, false},
    };
    char root[1100], first[1200], second[1200], temporary[1300];
    snprintf(root, sizeof root, "%s", test_folder("failing"));
    snprintf(first, sizeof first, "%s/checkpoint-3", root);
    snprintf(second, sizeof second, "%s/checkpoint-5", root);
    snprintf(temporary, sizeof temporary, "%s" TT_ST_TEMPORARY, second);
    saved_run before = run_of(O1, first, 3);
    assert_ok(saved_write(&before));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int rank = 0; rank < (cases[i].any_rank ? 2 : 1); rank++) {
            saved_run w = run_of(O1_SHARDED, second, 5);
            w.bad_rank = rank, w.bad_ops = cases[i].ops, w.bad_path = cases[i].path, w.bad_after = cases[i].after;
            w.bad_error = cases[i].error;
            char why[64];
            snprintf(why, sizeof why, "rank %d: ", rank);
            tt_status status = saved_write(&w);
            if (status != TT_EIO || !strstr(tt_error_text(), strerror(cases[i].error)) || !strstr(tt_error_text(), why) ||
                !strstr(tt_error_text(), "checkpoint-5"))
                fail_msg("case %zu, rank %d: %s: %s", i, rank, tt_status_name(status), status ? tt_error_text() : "");
            if (tt_dir_exists(temporary)) fail_msg("case %zu, rank %d: %s is there", i, rank, temporary);
            if (tt_dir_exists(second)) fail_msg("case %zu, rank %d: %s is there", i, rank, second);
        }
    assert_ok(saved_verify(first, 1, 1, TT_F32, TT_F32, 3));
}

/* What cannot be removed is named. */
static void what_is_left_is_named(void **state)
{
    (void)state;
    char at[1200];
    snprintf(at, sizeof at, "%s/checkpoint-5", test_folder("left"));
    saved_run w = run_of(O1, at, 5);
    w.bad_rank = 0, w.bad_ops = TT_FILE_WRITE | TT_FILE_REMOVE, w.bad_path = "optimizer", w.bad_after = 90000, w.bad_error = EIO;
    assert_error(saved_write(&w), TT_EIO, "checkpoint-5" TT_ST_TEMPORARY "'");
}

static void remove_folder(void *user)
{
    if (tt_dir_remove(user) != TT_OK) abort();
}

static void the_folder_goes_meanwhile(void **state)
{
    (void)state;
    char at[1200], temporary[1300];
    snprintf(at, sizeof at, "%s/checkpoint-5", test_folder("gone"));
    snprintf(temporary, sizeof temporary, "%s" TT_ST_TEMPORARY, at);
    saved_run w = run_of(O1, at, 5);
    w.meddle = remove_folder, w.user = temporary;
    assert_error(saved_write(&w), TT_EIO, "checkpoint-5" TT_ST_TEMPORARY);
    assert_false(tt_dir_exists(at));
    snprintf(at, sizeof at, "%s/no/such/checkpoint-5", test_folder("gone"));
    w.meddle = NULL;
    assert_error(saved_write(&w), TT_EIO, "no/such");
}

static void a_model_that_cannot_be_written(void **state)
{
    (void)state;
    static const struct {
        unsigned ops;
        const char *path;
        int64_t after;
        bool in_place; /* too late to take back: the message says where things are */
    } cases[] = {
        {TT_FILE_CREATE, "model-00002", 0, false}, {TT_FILE_WRITE, "model-00003", 5000, false}, {TT_FILE_SYNC, "model-", 2, false},
        {TT_FILE_WRITE, "index.json", 0, false},   {TT_FILE_CREATE, "config.json", 0, false},   {TT_FILE_RENAME, "model-00002-of-00003.safetensors", 0, true},
    };
    char root[1100], at[1200];
    snprintf(root, sizeof root, "%s", test_folder("failing-model"));
    snprintf(at, sizeof at, "%s/out", root);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        saved_copy(O1_SHARDED, at);
        saved_run w = run_of(O1_SHARDED, NULL, 5);
        w.model = at, w.overwrite = true, w.bad_rank = 0, w.bad_ops = cases[i].ops, w.bad_path = cases[i].path;
        w.bad_after = cases[i].after, w.bad_error = EIO;
        assert_error(saved_write(&w), TT_EIO, strerror(EIO));
        if (cases[i].in_place) {
            tt_st_folder f;
            if (!strstr(tt_error_text(), "the model is complete in")) fail_msg("%s", tt_error_text());
            assert_error(tt_st_open_folder(at, &f), TT_EIO, "was interrupted");
            finish_by_hand(at);
            assert_ok(tt_st_open_folder(at, &f));
            tt_st_close(&f);
        } else {
            saved_same_files(O1_SHARDED, at, NULL);
            saved_same_files(at, O1_SHARDED, NULL);
        }
    }
}

static void a_file_is_not_replaced_unasked(void **state)
{
    (void)state;
    char path[1200];
    snprintf(path, sizeof path, "%s/x.safetensors", test_folder("one-file"));
    assert_ok(tt_save_file_check(path, false));
    assert_ok(tt_file_write_all(path, "mine", 4));
    assert_error(tt_save_file_check(path, false), TT_ECONFIG, "x.safetensors' exists");
    assert_ok(tt_save_file_check(path, true));
    assert_error(tt_save_file_check("x.bin", true), TT_ECONFIG, ".safetensors");
}

/* --- file systems that are small, or not writable, for real -------------------------------------------------------- */

typedef struct mount_job {
    const char *folder, *options;
    bool read_only;
    saved_run run;
} mount_job;

static tt_status write_on_mount(void *arg)
{
    mount_job *j = arg;
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", j->folder, "tmpfs", 0, j->options) != 0)
        return tt_error_set(TT_ENONFINITE, "no mount");
    if (j->read_only && mount("none", j->folder, NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0)
        return tt_error_set(TT_ENONFINITE, "no mount");
    tt_status status = saved_write(&j->run);
    char temporary[1300], text[1000];
    snprintf(temporary, sizeof temporary, "%s" TT_ST_TEMPORARY, j->run.checkpoint);
    snprintf(text, sizeof text, "%s", tt_error_text());
    TT_CHECK(!tt_dir_exists(temporary), TT_EVERDICT, "%s is there; %s", temporary, text);
    return tt_error_set(status, "%s", text);
}

static void file_systems_that_refuse(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        bool read_only;
        const char *message;
    } cases[] = {{"size=200k", false, "bytes, but its file system has"}, {"size=4m", true, "Read-only file system"},
                 /* Enough room for the files as such, not for folders beside them. */
                 {"size=64m,nr_inodes=4", false, "No space left on device"}};
    char folder[1100], at[1200];
    snprintf(folder, sizeof folder, "%s", test_folder("small"));
    snprintf(at, sizeof at, "%s/checkpoint-5", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool killed;
        mount_job j = {folder, cases[i].options, cases[i].read_only, run_of(O1_SHARDED, at, 5)};
        tt_status status = saved_in_child(write_on_mount, &j, &killed);
        if (status == TT_ENONFINITE) {
            print_message("no right to mount: not tested\n");
            skip();
        }
        if (status != TT_EIO || !strstr(tt_error_text(), cases[i].message)) fail_msg("case %zu: %s: %s", i, tt_status_name(status), tt_error_text());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_is_proved),
        cmocka_unit_test(what_was_added_later),
        cmocka_unit_test(manifests_are_not_believed),
        cmocka_unit_test(killed_while_a_checkpoint_is_written),
        cmocka_unit_test(killed_while_a_checkpoint_is_replaced),
        cmocka_unit_test(killed_while_old_ones_are_deleted),
        cmocka_unit_test(killed_while_a_model_is_replaced),
        cmocka_unit_test(failures_of_the_system),
        cmocka_unit_test(what_is_left_is_named),
        cmocka_unit_test(the_folder_goes_meanwhile),
        cmocka_unit_test(a_model_that_cannot_be_written),
        cmocka_unit_test(a_file_is_not_replaced_unasked),
        cmocka_unit_test(file_systems_that_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
