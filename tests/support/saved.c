#include "support/saved.h"
#include "support/test.h"

#include "base/checked.h"
#include "base/fault.h"
#include "base/rng.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- numbers ------------------------------------------------------------------------------------------------- */

enum { STEP = 1024 };

/* A part of a piece: set, or compared bit by bit. */
static tt_status visit(const tt_params *params, const tt_piece *p, int part, uint64_t seed, tt_mat m, bool compare)
{
    uint64_t key = tt_rng_key(seed * 4 + (uint64_t)part, params->at[p->param].name);
    float values[STEP];
    double converted[STEP];
    for (int64_t at = 0; at < p->count; at += STEP) {
        int64_t n = tt_min_i64(STEP, p->count - at);
        size_t size = tt_dtype_size(m.dtype);
        tt_rng_normal(key, p->first + at, n, values);
        tt_convert(converted, m.dtype, values, TT_F32, n);
        char *there = (char *)m.data + (size_t)at * size;
        if (!compare) memcpy(there, converted, (size_t)n * size);
        TT_CHECK(memcmp(there, converted, (size_t)n * size) == 0, TT_EVERDICT, "part %d of '%s' differs at elements %lld to %lld", part,
                 params->at[p->param].name, (long long)(p->first + at), (long long)(p->first + at + n));
    }
    return TT_OK;
}

static tt_status visit_all(tt_shards *shards, uint64_t seed, bool compare)
{
    static const tt_shard_part parts[] = {TT_PART_WEIGHT, TT_PART_MOMENT1, TT_PART_MOMENT2};
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(shards, &num);
    const tt_params *params = tt_shards_params(shards);
    for (int64_t i = 0; i < num; i++)
        for (int k = 0; k < 3; k++)
            if (params->at[pieces[i].param].trained)
                TT_TRY(visit(params, &pieces[i], k, seed, tt_shards_view(shards, &pieces[i], parts[k]), compare));
    return TT_OK;
}

/* --- writing ------------------------------------------------------------------------------------------------- */

static tt_status write_checkpoint(saved_run *r, tt_engine *e, const tt_save_options *o)
{
    tt_checkpoint_writer *w;
    tt_checkpoint_copy copy = {0};
    tt_save_report report = {0};
    int rank = e->mesh->rank;
    json_t *train = json_pack("{s:i, s:[i, i]}", "row", 12, "order", 3, 4);
    json_t *state = json_pack("{s:I, s:[]}", "global_step", (json_int_t)r->step, "log_history");
    tt_checkpoint_options c = {.model = o, .with_state = !r->without_state, .copy = r->snapshot ? &copy : NULL, .step = r->step,
                               .train = rank ? NULL : train, .trainer_state = rank ? NULL : state};
    _Atomic int64_t done = 0;
    tt_status status = tt_checkpoint_begin(r->checkpoint, e->shards, &c, &w);
    json_decref(train);
    json_decref(state);
    if (status != TT_OK) {
        tt_checkpoint_copy_free(&copy);
        return status;
    }
    /* Training goes on. */
    if (r->snapshot) TT_TRY(visit_all(e->shards, r->seed + 77, false));
    int64_t planned = tt_checkpoint_bytes(w);
    if (rank == 0 && r->meddle) r->meddle(r->user);
    tt_status mine = tt_checkpoint_write(w, &done);
    status = tt_checkpoint_publish(&w, mine, &report);
    tt_checkpoint_copy_free(&copy);
    int64_t sums[] = {report.bytes_written, done, planned};
    if (status == TT_OK) status = tt_allreduce_i64(e->mesh->world, "test", sums, 3);
    if (status == TT_OK && (sums[0] != sums[1] || sums[0] != sums[2])) status = tt_error_set(TT_EVERDICT, "bytes written and bytes counted differ");
    if (status == TT_OK && rank == 0) r->bytes_written = sums[0];
    return status;
}

static tt_status run_rank(tt_comm *comm, void *arg)
{
    saved_run *r = arg;
    tt_engine e;
    tt_save_report report = {0};
    tt_comm_set_timeout(comm, 60);
    tt_engine_options o = {.folder = r->from, .mesh = {.ep_size = r->ep}, .ops = &tt_ops_ref, .resident = r->resident,
                           .compute = r->resident, .moments = r->moments, .threads = 1, .train = true, .with_moments = true};
    TT_TRY(tt_engine_open(comm, &o, &e));
    tt_save_options s = {.source = &e.source, .config = e.config.source, .aux_folder = r->from, .overwrite = r->overwrite,
                         .save_dtype = r->save_dtype, .max_file_bytes = r->max_file_bytes};
    tt_status status = r->seed ? visit_all(e.shards, r->seed, false) : TT_OK;
    if (r->bad_ops && e.mesh->rank == r->bad_rank)
        tt_file_fault_plant((tt_file_fault_plan){r->bad_ops, r->bad_path, r->bad_after, r->bad_error, r->bad_once});
    if (status == TT_OK && r->checkpoint) status = write_checkpoint(r, &e, &s);
    if (status == TT_OK && r->model) status = tt_save_model(r->model, e.shards, &s, &report);
    tt_file_fault_plant((tt_file_fault_plan){0});
    tt_engine_close(&e);
    return status;
}

tt_status saved_write(saved_run *r)
{
    return tt_comm_run_threads(r->world, run_rank, r);
}

/* --- reading ------------------------------------------------------------------------------------------------- */

typedef struct verify_job {
    const char *checkpoint;
    int ep;
    tt_dtype resident, moments;
    uint64_t seed;
} verify_job;

static tt_status load_and_compare(const verify_job *j, const tt_checkpoint *c, tt_engine *e)
{
    tt_load_report report;
    int64_t num, owned = 0;
    const tt_piece *pieces = tt_shards_pieces(e->shards, &num);
    TT_TRY(visit_all(e->shards, 99, false)); /* what must not stay */
    TT_TRY(tt_checkpoint_load(c, &e->source, e->shards, 1, NULL, &report));
    for (int64_t i = 0; i < num; i++) owned += pieces[i].count * (e->table.params.at[pieces[i].param].trained ? 3 : 1);
    TT_CHECK(report.elements == owned && report.bytes_read == report.bytes_owned, TT_EVERDICT,
             "%lld elements and %lld bytes were read; %lld and %lld are owned", (long long)report.elements,
             (long long)report.bytes_read, (long long)owned, (long long)report.bytes_owned);
    return visit_all(e->shards, j->seed, true);
}

static tt_status verify_rank(tt_comm *comm, void *arg)
{
    const verify_job *j = arg;
    tt_checkpoint c;
    tt_engine e;
    tt_comm_set_timeout(comm, 60);
    tt_engine_options o = {.folder = j->checkpoint, .mesh = {.ep_size = j->ep}, .ops = &tt_ops_ref, .resident = j->resident,
                           .compute = j->resident, .moments = j->moments, .threads = 1, .train = true, .with_moments = true};
    TT_TRY(tt_engine_open(comm, &o, &e));
    tt_status status = tt_checkpoint_open(j->checkpoint, &c);
    if (status == TT_OK) status = tt_checkpoint_check(&c, e.mesh->rank, e.mesh->world_size, 2, NULL);
    if (status == TT_OK) status = load_and_compare(j, &c, &e);
    tt_checkpoint_close(&c);
    status = tt_agree(e.mesh->world, "test", status);
    tt_engine_close(&e);
    return status;
}

tt_status saved_verify(const char *checkpoint, int world, int ep, tt_dtype resident, tt_dtype moments, uint64_t seed)
{
    verify_job j = {checkpoint, ep, resident, moments, seed};
    return tt_comm_run_threads(world, verify_rank, &j);
}

/* --- files --------------------------------------------------------------------------------------------------- */

void saved_same_files(const char *a, const char *b, const char *skip)
{
    DIR *d = opendir(a);
    assert_non_null(d);
    int num = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[2][1500], *text[2];
        size_t bytes[2];
        if (e->d_name[0] == '.' || (skip && strstr(skip, e->d_name))) continue;
        for (int k = 0; k < 2; k++) {
            assert_ok(tt_path_join(path[k], sizeof path[k], k ? b : a, e->d_name));
            assert_ok(tt_file_read_all(path[k], 1 << 26, &text[k], &bytes[k]));
        }
        if (bytes[0] != bytes[1] || memcmp(text[0], text[1], bytes[0]) != 0) fail_msg("%s is not %s", path[1], path[0]);
        free(text[0]);
        free(text[1]);
        num++;
    }
    closedir(d);
    assert_true(num > 0);
}

void saved_copy(const char *from, const char *to)
{
    DIR *d = opendir(from);
    assert_non_null(d);
    assert_ok(tt_dir_remove(to));
    assert_ok(tt_dir_create(to));
    for (struct dirent *e; (e = readdir(d));) {
        char path[2][1500];
        if (e->d_name[0] == '.') continue;
        for (int k = 0; k < 2; k++) assert_ok(tt_path_join(path[k], sizeof path[k], k ? to : from, e->d_name));
        assert_ok(tt_file_copy(path[0], path[1]));
    }
    closedir(d);
}

typedef struct child_report {
    tt_status status;
    char text[1000];
} child_report;

tt_status saved_in_child(tt_status (*body)(void *), void *arg, bool *killed)
{
    int ends[2], how;
    child_report report = {0};
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        report.status = body(arg);
        snprintf(report.text, sizeof report.text, "%s", tt_error_text());
        _exit(write(ends[1], &report, sizeof report) != sizeof report);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], &report, sizeof report);
    close(ends[0]);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    *killed = WIFEXITED(how) && WEXITSTATUS(how) == TT_FAULT_EXIT;
    if (*killed) return TT_OK;
    if (n != sizeof report) fail_msg("a child ended with wait status %d", how);
    return report.status == TT_OK ? TT_OK : tt_error_set(report.status, "%s", report.text);
}
