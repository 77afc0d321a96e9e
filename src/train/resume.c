#include "train/resume.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PATH_BYTES = 4096 };

static bool newest_is_meant(const tt_config *c)
{
    return c->resume_from_checkpoint && strcmp(c->resume_from_checkpoint, "true") == 0;
}

bool tt_resume_here(const tt_config *c)
{
    char parent[PATH_BYTES];
    if (!c->resume_from_checkpoint) return false;
    if (newest_is_meant(c)) return true;
    return tt_path_join(parent, sizeof parent, c->resume_from_checkpoint, "..") == TT_OK && tt_same_file(parent, c->output_dir);
}

/* --- the output folder ------------------------------------------------------------------------------------------ */

/* Behind which step the checkpoints of output_dir are not of the run that begins; -1: none is. */
static int64_t own_until(const tt_config *c)
{
    int64_t step = -1;
    if (newest_is_meant(c)) return INT64_MAX;
    if (tt_resume_here(c)) tt_checkpoint_number(c->resume_from_checkpoint, &step);
    return step;
}

tt_status tt_resume_check_output(const tt_config *c)
{
    char *path, *passed;
    int64_t step = own_until(c), newest = -1;
    if (!tt_dir_exists(c->output_dir)) return TT_OK;
    if (c->save_strategy != TT_SAVING_NO) {
        TT_TRY(tt_checkpoint_foreign(c->output_dir, newest_is_meant(c) ? -1 : step, &path));
        tt_status status = !path ? TT_OK
                                 : tt_error_set(TT_ECONFIG, "output_dir: '%s' is no checkpoint of tartan's and stands where one "
                                                            "may be written; move it away, or choose another folder", path);
        free(path);
        TT_TRY(status);
    }
    if (c->overwrite_output_dir || step == INT64_MAX) return TT_OK;
    TT_TRY(tt_checkpoint_newest(c->output_dir, INT64_MAX, &path, &passed));
    if (path) tt_checkpoint_number(path, &newest);
    bool any = path || passed;
    free(path);
    free(passed);
    TT_CHECK(step >= 0 || !any, TT_ECONFIG,
             "output_dir: '%s' holds checkpoints; set resume_from_checkpoint: true to go on from the newest, choose another "
             "folder, or set overwrite_output_dir, which removes them",
             c->output_dir);
    TT_CHECK(step < 0 || newest <= step, TT_ECONFIG,
             "output_dir: '%s' holds checkpoint-%lld, later than '%s': it would be taken for one of this run. Choose another "
             "folder, move it away, or set overwrite_output_dir, which removes what is later",
             c->output_dir, (long long)newest, c->resume_from_checkpoint);
    return TT_OK;
}

tt_status tt_resume_clear(const tt_config *c)
{
    TT_TRY(tt_checkpoint_sweep(c->output_dir));
    /* Or a later resume would take another run's checkpoint for the newest. */
    for (;;) {
        char *path, *passed;
        int64_t number = -1;
        TT_TRY(tt_checkpoint_newest(c->output_dir, INT64_MAX, &path, &passed));
        free(passed);
        if (path) tt_checkpoint_number(path, &number);
        if (number <= own_until(c)) {
            free(path);
            return TT_OK;
        }
        tt_info("%s: removed, as overwrite_output_dir says", path);
        tt_status status = tt_dir_remove(path);
        free(path);
        TT_TRY(status);
    }
}

/* --- the checkpoint --------------------------------------------------------------------------------------------- */

/* Each as a line of its own. */
static void tell_passed(char *passed)
{
    char *rest;
    for (char *line = strtok_r(passed, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) tt_warn("passed over %s", line);
}

/* Rank 0: folders may look different to others for a while. */
static tt_status find_newest(const tt_config *c, int64_t below, char *out)
{
    char *path, *passed;
    TT_TRY(tt_checkpoint_newest(c->output_dir, below, &path, &passed));
    if (path) {
        if (passed) tell_passed(passed);
        snprintf(out, PATH_BYTES, "%s", path);
    }
    tt_status status = path ? TT_OK
                            : tt_error_set(TT_ECONFIG,
                                           "resume_from_checkpoint: '%s' holds no whole checkpoint%s%s; leave it out to start "
                                           "anew, or name a checkpoint's folder",
                                           c->output_dir, passed ? ": " : "", passed ? passed : "");
    free(path);
    free(passed);
    return status;
}

/* Hosts may have copies of their own. The manifest, with its checksums, stands for all that it covers. Collective. */
static tt_status check_same(tt_group *world, const tt_checkpoint *c, const char *path)
{
    char *text = json_dumps(c->manifest, JSON_COMPACT);
    bool known = text;
    uint64_t mine = known ? XXH64(text, strlen(text), 0) : 0, first = mine;
    free(text);
    TT_TRY(tt_broadcast(world, "open-checkpoint", 0, &first, sizeof first));
    TT_CHECK(known && first == mine, TT_EMISMATCH,
             "resume_from_checkpoint: '%s' is another checkpoint here than on rank 0; name a shared folder, or copy it anew", path);
    return TT_OK;
}

/* Collective. */
static tt_status open_one(tt_comm *comm, const char *path, int threads, tt_checkpoint *out)
{
    tt_group *world = tt_comm_world(comm);
    tt_status status = tt_checkpoint_open(path, out);
    if (status != TT_OK) tt_error_context(status, "resume_from_checkpoint");
    TT_TRY(tt_agree(world, "open-checkpoint", status));
    TT_TRY(tt_agree(world, "open-checkpoint", check_same(world, out, path)));
    tt_comm_transfer_begin(comm, 0);
    status = tt_checkpoint_check(out, tt_comm_rank(comm), tt_comm_size(comm), threads, tt_comm_moved(comm));
    tt_comm_transfer_end(comm);
    return tt_agree(world, "check-checkpoint", status);
}

static tt_status open_newest(tt_comm *comm, const tt_config *c, int threads, tt_checkpoint *out)
{
    char path[PATH_BYTES] = "";
    tt_group *world = tt_comm_world(comm);
    for (int64_t below = INT64_MAX;;) {
        TT_TRY(tt_agree(world, "find-checkpoint", tt_comm_rank(comm) == 0 ? find_newest(c, below, path) : TT_OK));
        TT_TRY(tt_broadcast(world, "find-checkpoint", 0, path, sizeof path));
        tt_status status = open_one(comm, path, threads, out);
        if (status == TT_OK && out->with_state) return TT_OK;
        if (status == TT_OK) tt_error_set(TT_EFORMAT, "'%s': a model without optimizer state", path);
        else if (status != TT_EFORMAT || !tt_comm_agreed(comm)) return status;
        tt_warn("passed over %s", tt_error_text());
        below = atoll(strrchr(path, '-') + 1); /* of the name, whatever the manifest says */
        tt_checkpoint_close(out);
    }
}

tt_status tt_resume_open(tt_comm *comm, const tt_config *c, int threads, tt_checkpoint *out)
{
    *out = (tt_checkpoint){0};
    return newest_is_meant(c) ? open_newest(comm, c, threads, out)
                              : open_one(comm, c->resume_from_checkpoint, threads, out);
}
