/* Pretended hosts: ranks are threads with names of hosts and folders of their own, and must find out what these do not
 * share. Three ranks: "alpha" has rank 0, "beta" ranks 1 and 2. */
#include "support/test.h"

#include "base/file.h"
#include "base/log.h"
#include "train/hosts.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 3 };

typedef struct job {
    const char *hosts[RANKS];
    char folder[RANKS][600]; /* of each rank */
    bool model, data, output, fingerprints;
    uint64_t fingerprint[RANKS];
    int infos; /* of rank 0 */
    char info[1000];
} job;

static job two_hosts(const char *name)
{
    job j = {.hosts = {"alpha", "beta", "beta"}};
    const char *root = test_folder(name);
    for (int r = 0; r < RANKS; r++) snprintf(j.folder[r], sizeof j.folder[r], "%s/%s", root, j.hosts[r]);
    assert_ok(tt_dir_create(j.folder[0]));
    assert_ok(tt_dir_create(j.folder[1]));
    return j;
}

static void put(const job *j, int rank, const char *name, const char *text)
{
    char path[700];
    snprintf(path, sizeof path, "%s/%s", j->folder[rank], name);
    assert_ok(tt_file_write_all(path, text, strlen(text)));
}

static int files_in(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
    closedir(d);
    return n;
}

static void listen(void *user, tt_log_level level, const char *text)
{
    job *j = user;
    if (level != TT_LOG_INFO) return;
    j->infos++;
    snprintf(j->info, sizeof j->info, "%s", text);
}

static tt_status rank_main(tt_comm *comm, void *arg)
{
    job *j = arg;
    int rank = tt_comm_rank(comm);
    char output[700], data[700];
    snprintf(output, sizeof output, "%s/not/yet/there", j->folder[rank]);
    snprintf(data, sizeof data, "%s/data.jsonl", j->folder[rank]);
    tt_host_view v = {
        .host = j->hosts[rank],
        .model = j->model ? j->folder[rank] : NULL,
        .data = j->data ? data : NULL,
        .output = j->output ? output : NULL,
    };
    tt_comm_set_timeout(comm, 30);
    tt_log_set_level(TT_LOG_SILENT);
    if (rank == 0) tt_log_set_hook(listen, j);
    tt_status status = tt_hosts_check(comm, &v);
    const char *paths[] = {NULL, data};
    if (status == TT_OK && j->fingerprints) status = tt_hosts_check_data(comm, &v, j->fingerprint[rank], paths, 2);
    if (status != TT_OK && !tt_comm_agreed(comm)) status = tt_error_set(TT_EVERDICT, "not agreed: %s", tt_error_text());
    tt_log_set_hook(NULL, NULL);
    return status;
}

#define check(j)       tt_comm_run_threads(RANKS, rank_main, (j))
#define has_text(part) assert_non_null(strstr(tt_error_text(), (part)))

/* --- the model ------------------------------------------------------------------------------------------------ */

/* A header of 10 bytes and weights. */
static void put_weights(const job *j, int rank, const char *header, const char *weights)
{
    char path[700], file[64] = {10};
    memcpy(file + 8, header, 10);
    snprintf(file + 18, sizeof file - 18, "%s", weights);
    snprintf(path, sizeof path, "%s/model-1.safetensors", j->folder[rank]);
    assert_ok(tt_file_write_all(path, file, 18 + strlen(weights)));
}

static job two_models(const char *name)
{
    job j = two_hosts(name);
    j.model = true;
    for (int r = 0; r < 2; r++) {
        put(&j, r, "config.json", "{\"a\": 1}");
        put(&j, r, "model.safetensors.index.json", "{}");
        put_weights(&j, r, "{header:1}", "weights");
    }
    return j;
}

static void equal_copies_are_said(void **state)
{
    (void)state;
    job j = two_models("hosts-copies");
    put_weights(&j, 1, "{header:1}", "Weights"); /* only headers are compared */
    put(&j, 1, "notes.txt", "mine");
    assert_ok(check(&j));
    assert_int_equal(j.infos, 1);
    if (!strstr(j.info, "copies of their own")) fail_msg("%s", j.info);
}

static void shared_folders_are_not_read(void **state)
{
    (void)state;
    job j = two_models("hosts-shared");
    for (int r = 1; r < RANKS; r++) strcpy(j.folder[r], j.folder[0]);
    assert_ok(check(&j));
    assert_int_equal(j.infos, 0);
    /* One host looks at nothing. */
    j = two_models("hosts-one");
    for (int r = 0; r < RANKS; r++) j.hosts[r] = "alpha";
    put(&j, 1, "config.json", "{\"a\": 2}");
    assert_ok(check(&j));
    assert_int_equal(j.infos, 0);
}

static void copies_that_differ_are_refused(void **state)
{
    (void)state;
    char path[700];
    job j = two_models("hosts-config");
    put(&j, 1, "config.json", "{\"a\": 2}");
    assert_error(check(&j), TT_EMISMATCH, "'config.json' has other contents on host 'beta' (rank 1) than on host 'alpha' (rank 0)");
    has_text("file system that all hosts share");
    j = two_models("hosts-size");
    put_weights(&j, 1, "{header:1}", "weights and more");
    assert_error(check(&j), TT_EMISMATCH,
                 "'model-1.safetensors' has 25 bytes on host 'alpha' (rank 0) and 34 on host 'beta' (rank 1)");
    j = two_models("hosts-header");
    put_weights(&j, 1, "{header:2}", "weights");
    assert_error(check(&j), TT_EMISMATCH, "'model-1.safetensors' has another header on host 'beta' (rank 1)");
    j = two_models("hosts-more");
    put(&j, 0, "model-2.safetensors", "more");
    assert_error(check(&j), TT_EMISMATCH,
                 "host 'beta' (rank 1) has no 'model-2.safetensors', which host 'alpha' (rank 0) has");
    j = two_models("hosts-fewer");
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", j.folder[0]);
    unlink(path);
    assert_error(check(&j), TT_EMISMATCH,
                 "host 'alpha' (rank 0) has no 'model.safetensors.index.json', which host 'beta' (rank 1) has");
    /* One rank of a host may see another folder than the others. */
    j = two_models("hosts-third");
    strcpy(j.folder[1], j.folder[0]);
    put(&j, 2, "config.json", "{\"a\": 2}");
    assert_error(check(&j), TT_EMISMATCH, "other contents on host 'beta' (rank 2)");
}

static void a_host_without_the_model_is_named(void **state)
{
    (void)state;
    for (int without = 0; without < 2; without++) {
        char path[700], expected[100];
        job j = two_models(without ? "hosts-without-1" : "hosts-without-0");
        snprintf(path, sizeof path, "%s/config.json", j.folder[without]);
        unlink(path);
        snprintf(expected, sizeof expected, "model_name_or_path: host '%s' (rank %d) has no '", j.hosts[without], without);
        assert_error(check(&j), TT_ECONFIG, expected);
        has_text("copy it to each host");
    }
    /* Nobody has it: not for this check to say. */
    job j = two_hosts("hosts-nobody");
    j.model = j.data = true;
    assert_ok(check(&j));
}

/* --- the data ------------------------------------------------------------------------------------------------- */

static void data_must_be_the_same(void **state)
{
    (void)state;
    job j = two_hosts("hosts-data");
    j.data = j.fingerprints = true;
    put(&j, 0, "data.jsonl", "{}\n");
    assert_error(check(&j), TT_ECONFIG, "dataset_name: host 'beta' (rank 1) has no '");
    put(&j, 1, "data.jsonl", "{ }\n");
    assert_ok(check(&j)); /* what counts is what was made of it */
    j.fingerprint[2] = 1;
    assert_error(check(&j), TT_EDATA, "data.jsonl' has other contents on host 'beta'");
    put(&j, 1, "data.jsonl", "{}\n");
    assert_error(check(&j), TT_EDATA, "prepared in another way on host 'beta' (rank 2) than on host 'alpha' (rank 0)");
}

/* --- the output ----------------------------------------------------------------------------------------------- */

static void the_output_must_be_shared(void **state)
{
    (void)state;
    job j = two_hosts("hosts-output");
    j.output = true;
    assert_error(check(&j), TT_ECONFIG, "host 'beta' (rank 1) does not see the file that host 'alpha' (rank 0) has made in '");
    has_text("name a folder on a file system that all hosts share");
    assert_int_equal(files_in(j.folder[0]), 0); /* the probe is gone */
    assert_int_equal(files_in(j.folder[1]), 0);
    for (int r = 1; r < RANKS; r++) strcpy(j.folder[r], j.folder[0]);
    assert_ok(check(&j));
    assert_int_equal(files_in(j.folder[0]), 0);
    /* Folders on the way exist on one host only. */
    j = two_hosts("hosts-output-half");
    j.output = true;
    char path[700];
    snprintf(path, sizeof path, "%s/not/yet", j.folder[0]);
    assert_ok(tt_dir_create(path));
    assert_error(check(&j), TT_ECONFIG, "/beta/not/yet'");
    assert_int_equal(files_in(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_copies_are_said),
        cmocka_unit_test(shared_folders_are_not_read),
        cmocka_unit_test(copies_that_differ_are_refused),
        cmocka_unit_test(a_host_without_the_model_is_named),
        cmocka_unit_test(data_must_be_the_same),
        cmocka_unit_test(the_output_must_be_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
