/* resume.h - which checkpoint a run goes on from, and whether its output folder takes it. */
#ifndef TT_TRAIN_RESUME_H
#define TT_TRAIN_RESUME_H

#include "checkpoint/checkpoint.h"
#include "train/config.h"

/* tt_resume_here - whether the run goes on in the folder that holds its checkpoint: what is there is its own. Local. */
bool tt_resume_here(const tt_config *config);

/* tt_resume_check_output - TT_ECONFIG for an output_dir that holds checkpoints which the run neither goes on from nor may
 * replace. Local. */
tt_status tt_resume_check_output(const tt_config *config);

/* tt_resume_open - the checkpoint that resume_from_checkpoint names: a folder, or with "true" the newest whole one of
 * output_dir, as rank 0 finds it. Every byte is held against the manifest, ranks sharing the work: nothing is trained further
 * that is not what was written. With "true" a damaged one is passed over like others that are not whole, and told; a named one
 * is refused. TT_ECONFIG when there is none. Collective. */
tt_status tt_resume_open(tt_comm *comm, const tt_config *config, int threads, tt_checkpoint *out);

/* tt_resume_clear - at the start of training: remove what killed runs have left in output_dir, and the checkpoints of another
 * run that overwrite_output_dir gives up. Rank 0. */
tt_status tt_resume_clear(const tt_config *config);

#endif
