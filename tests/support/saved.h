/* saved.h - runs that hold known numbers, for tests of what is written: weights and moments of every element are a function
 * of its name, its number and a seed, so that whoever reads them elsewhere knows what must come. */
#ifndef TT_TESTS_SUPPORT_SAVED_H
#define TT_TESTS_SUPPORT_SAVED_H

#include "checkpoint/checkpoint.h"
#include "train/engine.h"

typedef struct saved_run {
    const char *from; /* model folder */
    int world, ep;
    tt_dtype resident, moments;
    uint64_t seed;          /* of the numbers; 0: weights as loaded, moments 0 */
    const char *checkpoint; /* write one there, or NULL */
    const char *model;      /* save a model there, or NULL */
    bool overwrite, snapshot, without_state;
    const char *save_dtype;
    int64_t step;
    int64_t max_file_bytes;
    /* Failing on purpose: planted on this rank for the writing; -1: none. */
    int bad_rank;
    unsigned bad_ops;
    const char *bad_path;
    int64_t bad_after;
    int bad_error;
    bool bad_once;
    /* Called on rank 0 between begin and write; may be NULL. */
    void (*meddle)(void *user);
    void *user;
    int64_t bytes_written; /* of tensors, by all ranks */
} saved_run;

/* Opens the model on threads as ranks, gives it its numbers, and writes. */
tt_status saved_write(saved_run *r);

/* Opens a checkpoint on a mesh and compares every element with the numbers of `seed`. */
tt_status saved_verify(const char *checkpoint, int world, int ep, tt_dtype resident, tt_dtype moments, uint64_t seed);

/* Files of two folders are the same, byte by byte: those of `a` but for the ones named in `skip` (NULL: none). */
void saved_same_files(const char *a, const char *b, const char *skip);

/* Copies all files. */
void saved_copy(const char *from, const char *to);

/* Runs the body in a process of its own. The status and message that it returned, or *killed when it was killed by plan. */
tt_status saved_in_child(tt_status (*body)(void *), void *arg, bool *killed);

#endif
