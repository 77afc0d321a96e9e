/* nonfinite.h - where a loss or a gradient that is not finite came from, said the same on every rank.
 *
 * Rows. A micro-batch whose sum of losses is not finite is run forward again, each of its rows alone; rows whose own loss is
 * not finite are named. When none is, the rows of such micro-batches are; and when every loss is finite and only gradients
 * are not, the rows of the step. At most 16 are named.
 * Weights. The first parameter in the table that has weights that are not finite, which are then the cause.
 * Parameter. The first in the table with a gradient that is not finite, and the rank that owns the place.
 *
 * Costs nothing until it happens; then a forward pass for each suspected row of the rank that has most of them.
 */
#ifndef TT_TRAIN_NONFINITE_H
#define TT_TRAIN_NONFINITE_H

#include "train/step.h"

/* tt_nonfinite_report - nll[num]: sums of losses of this rank's micros. Weights, gradients and counts of experts are left as
 * they are. Returns TT_ENONFINITE with the message, or another failure. Collective over the mesh; all ranks have the same
 * message, and agree (tt_comm_agreed). With TT_NONFINITE_SKIP the message is a warning instead, and TT_OK returned. */
tt_status tt_nonfinite_report(tt_model *m, const tt_batch *micros, const double *nll, int num, const tt_step_options *o,
                              const tt_step_result *r);

#endif
