/* shard.h - who owns which elements of which parameter, and how whole units come and go.
 *
 * A unit's parameters are laid end to end in up to two flat buffers: flat 0 in the compute type (matrices), flat 1 in
 * real (norms, biases, router). Each parameter starts at a multiple of 64 elements, whatever the type, so the layout is
 * the same for every precision. A flat is padded and cut into equal contiguous ranges, one for each rank of the
 * unit's group: all W ranks for dense units, the efsdp ranks that own the same experts for expert units.
 *
 *   W = 4, a dense unit of three parameters:
 *     |aaaaaaaaaa··|bbbbbbbbbbbbbbbbbbbbbb···|cccccc··|········|     · padding, zero, never leaves the rank
 *     |  rank 0      |  rank 1      |  rank 2      |  rank 3   |
 *
 * A rank's range of a flat is its shard: resident weights, gradient and optimizer state live there for good, and because
 * it is a contiguous range of row-major tensors it maps to contiguous byte ranges of the model's files (tt_piece).
 *
 * Per micro-step a unit is gathered (all-gather of the compute copy), used, and released; its gradient is produced in
 * full, reduce-scattered in rank order into the fp32 gradient shard, and released; in messages that goes on while the next
 * units are at work, at most TT_REDUCING of them at a time. In a group of one whose resident and
 * compute types agree, gather gives a view of the shard and the gradient is accumulated in place: one process holds no
 * second copy.
 *
 * Ranks of a group that is on one host share memory (commons.h): there is one gathered copy for all, none where the types
 * agree, and gradients are added up where they lie. Other groups send messages. The results have the same bits.
 * Weights (TT_PART_WEIGHT) are written before a gather is begun, and behind an operation of the group that all begin after
 * their last release: others may still read them.
 */
#ifndef TT_SHARD_SHARD_H
#define TT_SHARD_SHARD_H

#include "kernels/ops.h"
#include "params/params.h"
#include "tartan/mesh.h"

#define TT_FLAT_ALIGN 64
#define TT_REDUCING   2 /* units: a layer and its experts */

typedef struct tt_precision {
    tt_dtype resident; /* weights as they are kept and updated: F32, BF16, or F64 with tt_ops_ref_f64 */
    tt_dtype compute;  /* operands of products: F32, BF16, F64 */
    tt_dtype real;     /* the backend's: F32, F64 */
    tt_dtype moments;  /* optimizer state: F32, BF16, F64 */
} tt_precision;

/* Elements [first, first + count) of a parameter, at element `at` of this rank's shard of flat `flat` of its unit. */
typedef struct tt_piece {
    int64_t param;
    int flat;
    int64_t first, count;
    int64_t at;
} tt_piece;

/* Layout of one flat buffer of one unit. Pure arithmetic, the same on every rank. */
typedef struct tt_flat_layout {
    int64_t total; /* elements with alignment, without the padding at the end */
    int64_t shard; /* elements per rank, a multiple of 64 */
} tt_flat_layout;

/* tt_unit_layout - offsets of the parameters of `unit` in their flats for the experts of ep_rank.
 *   offset  [count of the unit] element offset in the parameter's flat, -1 for experts of other ep ranks
 * Pure. TT_ENOMEM when the unit has more elements than 63 bits can count. */
tt_status tt_unit_layout(const tt_params *params, int unit, int group_size, int ep_size, int ep_rank,
                         int64_t *offset, tt_flat_layout flats[2]);

typedef struct tt_shards tt_shards;

/* tt_shards_create - shards of this rank, weights zero. params and mesh are borrowed for the shards' life. Collective over the
 * mesh's world, which agrees on failures up to those of memory that a rank or an efsdp group takes for itself. */
tt_status tt_shards_create(const tt_params *params, const tt_mesh *mesh, tt_precision precision, tt_shards **out);
/* tt_shards_create_units - of units[num] alone: the others have no elements, and gathering one of them does nothing. For
 * work on a part of a model (certify). */
tt_status tt_shards_create_units(const tt_params *params, const tt_mesh *mesh, tt_precision precision, const int *units,
                                 int num, tt_shards **out);
/* tt_shards_train - allocate gradients, and moments when asked for. Local. */
tt_status tt_shards_train(tt_shards *s, bool moments);
void tt_shards_destroy(tt_shards **s);

const tt_params *tt_shards_params(const tt_shards *s);
const tt_mesh *tt_shards_mesh(const tt_shards *s);
tt_precision tt_shards_precision(const tt_shards *s);
/* Whether the ranks of the world share memory: then so do those of efsdp. */
bool tt_shards_are_shared(const tt_shards *s);

/* This rank's pieces in the order of the table. Borrowed. */
const tt_piece *tt_shards_pieces(const tt_shards *s, int64_t *num);

/* One row vector: the piece's elements of the weights, of the gradient, of the first or second moment. */
typedef enum tt_shard_part { TT_PART_WEIGHT, TT_PART_GRADIENT, TT_PART_MOMENT1, TT_PART_MOMENT2 } tt_shard_part;
tt_mat tt_shards_view(const tt_shards *s, const tt_piece *piece, tt_shard_part part);

/* Gradients to zero. In a group of one nothing is written: what comes first overwrites them, or a look at them finds zeros.
 * Local. */
void tt_shards_zero_gradients(tt_shards *s, tt_kernel *k);

/* --- units in use -------------------------------------------------------------------------------------------- */

/* tt_unit_prefetch - start gathering; tt_unit_gather - the same and wait. Prefetching what is gathered or in flight
 * does nothing. Collective over the unit's group: all ranks prefetch, gather and release the same units in the same
 * order. Gathers nest (a count); each is matched by a release. */
tt_status tt_unit_prefetch(tt_shards *s, tt_kernel *k, int unit);
tt_status tt_unit_gather(tt_shards *s, tt_kernel *k, int unit);
void tt_unit_release(tt_shards *s, int unit);

/* Views into a gathered unit: a weight as products want it ([1,n] for vectors). Borrowed until the release. */
tt_mat tt_unit_weight(const tt_shards *s, int64_t param);

/* tt_unit_gradient_begin - a full gradient for the unit, or the shard itself in a group of one. Collective over the unit's
 *                          group, as is the end.
 * tt_unit_gradient - view of one parameter's part of it, real, to be added to.
 * tt_unit_gradient_out - the same for who can overwrite as well as add: it must write all of it where *accumulate is false,
 *                        which spares memory the zeros. Local.
 * tt_unit_gradient_end - reduce-scatter into the shard and release. What nobody asked for is 0. In messages the sum is only
 *                        begun here: it is formed while later units are at work, and is there after
 *                        tt_shards_finish_gradients.
 * tt_shards_finish_gradients - wait for all of these. Collective over all groups. */
tt_status tt_unit_gradient_begin(tt_shards *s, tt_kernel *k, int unit);
tt_mat tt_unit_gradient(tt_shards *s, tt_kernel *k, int64_t param);
tt_mat tt_unit_gradient_out(tt_shards *s, int64_t param, bool *accumulate);
tt_status tt_unit_gradient_end(tt_shards *s, tt_kernel *k, int unit);
tt_status tt_shards_finish_gradients(tt_shards *s, tt_kernel *k);

/* Bytes this rank holds for good, by part, and the most it has held at one time for units in use. Of what ranks share each
 * counts its part; `shared` is how much of it all that is, an equal share of what stands behind the commons. */
typedef struct tt_shard_bytes {
    int64_t weights, gradients, moments, units_peak, shared;
} tt_shard_bytes;
tt_shard_bytes tt_shards_bytes(const tt_shards *s);

#endif
