/* load.h - weights into shards: each rank reads exactly the byte ranges that it owns. */
#ifndef TT_CHECKPOINT_LOAD_H
#define TT_CHECKPOINT_LOAD_H

#include "checkpoint/reader.h"
#include "checkpoint/source.h"
#include "shard/shard.h"

/* Of one rank. Alignment takes nothing: bytes_read = bytes_owned. */
typedef struct tt_load_report {
    int64_t elements;    /* filled = owned: checked */
    int64_t pieces;      /* of parameters */
    int64_t bytes_owned; /* those elements in the types of the files */
    int64_t bytes_read;  /* without the factors of FP8 blocks */
    int64_t scale_bytes; /* read for factors */
    int64_t requests;
    int64_t memory;      /* buffers while loading: at most TT_READ_MEMORY (reader.h) */
    double seconds;
} tt_load_report;

/* tt_load_weights - every piece of this rank from its place in the files, converted while copying; reader.h has how. Besides
 * the shards it needs the buffers of the reader and some 120 bytes per piece. Fails with TT_EINTERNAL unless as many elements were
 * filled as are owned; pieces are disjoint by their layout. watch may be NULL. Local; callers agree on the outcome
 * (tt_agree). */
tt_status tt_load_weights(const tt_source *source, tt_shards *shards, int threads, const tt_read_watch *watch,
                          tt_load_report *report);

/* Of all ranks. */
typedef struct tt_load_summary {
    int64_t bytes_owned, bytes_read, scale_bytes, requests;
    double seconds; /* of the slowest rank */
    int slowest;
} tt_load_summary;

/* tt_load_summarise - reports of all ranks of the world, on every one. Collective. */
tt_status tt_load_summarise(const tt_mesh *mesh, const tt_load_report *mine, tt_load_summary *out);
/* One line: "12.3 GB in 4.5 s: 2.73 GB/s, slowest rank 3, read/owned 1.00". */
void tt_load_summary_text(const tt_load_summary *s, char *out, size_t size);

/* tt_init_weights - random weights: element i of a parameter is number i of the stream of (seed, name), times the
 * configuration's deviation; norms 1, biases 0. The same weights on every mesh. Local. */
void tt_init_weights(tt_shards *shards, uint64_t seed);

#endif
