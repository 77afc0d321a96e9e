/* shared.h - memory that all ranks of a group see, when they are on one host.
 *
 * A region is a range of addresses, the same bytes on every rank (at addresses of each rank's own). Creating it takes
 * addresses only; tt_shared_grow puts memory behind the first of them, and says so when there is none: no rank meets a page
 * that cannot be had when it touches it. What one rank wrote is seen by another that has ended an operation of the group
 * which the writer began afterwards: regions know no order of their own.
 *
 * Nothing is left behind, whatever ends a rank: a region has no name in any file system.
 */
#ifndef TT_COMM_SHARED_H
#define TT_COMM_SHARED_H

#include "tartan/comm.h"

typedef struct tt_shared tt_shared;

/* tt_shared_possible - whether the ranks of the group see each other's memory: more than one rank, all on one host, no
 * TARTAN_SHARED=0 in the environment of any (TT_ECONFIG for anything but 0 and 1), and a region that was made to try. The same answer on all; when ranks of one
 * host cannot, one line of the log says why. Collective the first time, then known. */
tt_status tt_shared_possible(tt_group *group, bool *possible);

/* tt_shared_create - a region of at most `most` bytes, none of them backed by memory yet; *out NULL where it is not possible,
 * also where a rank has no addresses for so many: a line of the log says so, and the group shares nothing from then on.
 * The name is static, for messages. Collective, with equal arguments; all return the same status. */
tt_status tt_shared_create(tt_group *group, const char *name, int64_t most, tt_shared **out);
/* tt_shared_grow - memory for the first `bytes` bytes (at most `most`): zero where it is new, what was there stays. Each rank
 * provides a part. Collective, with equal arguments; TT_ENOMEM on all when one rank's part is refused, and what was there
 * before can still be used. */
tt_status tt_shared_grow(tt_shared *s, int64_t bytes);
/* Local: a rank that still uses the region keeps it. Accepts NULL inside. */
void tt_shared_destroy(tt_shared **s);

/* The region's first byte: at a multiple of a page, for regions of huge pages of one of those. */
void *tt_shared_base(const tt_shared *s);
/* Bytes of it that memory stands behind. */
int64_t tt_shared_bytes(const tt_shared *s);

/* tt_add_in_order_f32 - mine[i] += sum over the group's ranks r, in rank order, of full[r * stride + i], i < count: what
 * tt_reduce_scatter does, with the same bits, where every rank's part can be seen. By so many threads of this rank. Local. */
void tt_add_in_order_f32(tt_group *group, const float *full, int64_t stride, float *mine, int64_t count, int threads);
void tt_add_in_order_f64(tt_group *group, const double *full, int64_t stride, double *mine, int64_t count, int threads);

#endif
