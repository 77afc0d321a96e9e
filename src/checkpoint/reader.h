/* reader.h - many ranges of files into memory: sorted, merged where they touch, read in large requests by several threads,
 * converted while copying.
 *
 *   spans in the file     |a a a a|b b|        |c c c c c c c c c c c c c c c c c c|
 *   requests              |----------|         |----------------|------------------|   at most TT_READ_REQUEST bytes each
 *
 * Nothing is read that no span asks for, and no byte twice, but for the factors of FP8 blocks at the borders of requests.
 * Memory: one buffer per thread, no larger than a request, a line of factors, and 64 bytes per span; never a whole tensor
 * or file: TT_READ_MEMORY bounds the buffers. A request that is wanted as it lies goes straight to its place.
 * Left out: O_DIRECT and asynchronous interfaces; threads that wait in pread keep as many requests in flight on every
 * file system.
 */
#ifndef TT_CHECKPOINT_READER_H
#define TT_CHECKPOINT_READER_H

#include "checkpoint/safetensors.h"

#include <stdatomic.h>

#define TT_READ_REQUEST         ((int64_t)8 << 20)
#define TT_READ_MIN_THREADS     4 /* also on few cores: they mostly wait */
#define TT_READ_MAX_THREADS     16
#define TT_READ_FP8_BLOCK       128     /* rows and columns that share a factor */
#define TT_READ_MAX_FP8_COLUMNS 1048576 /* of a matrix, so that a line of factors fits a fixed buffer */
#define TT_READ_MEMORY          (TT_READ_MAX_THREADS * (TT_READ_REQUEST + TT_READ_MAX_FP8_COLUMNS / TT_READ_FP8_BLOCK * 8))

/* Elements [first, first + count) of a tensor, converted to `type`, into data. */
typedef struct tt_read_span {
    const tt_st_tensor *tensor; /* of the folder */
    const tt_st_tensor *scales; /* factors of its blocks, [rows/128, columns/128] rounded up; NULL: none */
    int64_t first, count;
    tt_dtype type;
    void *data;
} tt_read_span;

/* For those who watch a long read. */
typedef struct tt_read_watch {
    _Atomic int64_t *done; /* bytes read so far, added to by the reading threads after each request; may be NULL */
    /* Called by the calling thread once an interval, between its requests, and at the end; never in the first two intervals.
     * May be NULL. */
    void (*progress)(void *user, int64_t done, int64_t total, double seconds);
    void *user;
    double interval; /* seconds; 0: one */
} tt_read_watch;

typedef struct tt_read_result {
    int64_t elements; /* filled */
    int64_t bytes;    /* read, without factors */
    int64_t scale_bytes;
    int64_t requests;
    int64_t memory;   /* bytes of all buffers */
} tt_read_result;

/* tt_read_spans - spans are sorted in place; they must not overlap in the files nor in memory. threads: what the caller has;
 * TT_READ_MIN_THREADS to TT_READ_MAX_THREADS read. watch may be NULL. Local. Errors: TT_EIO, TT_EFORMAT (a file that was
 * cut meanwhile, a type that is no weight's), TT_ENOMEM. */
tt_status tt_read_spans(const tt_st_folder *folder, tt_read_span *spans, int64_t num_spans, int threads,
                        const tt_read_watch *watch, tt_read_result *result);

#endif
