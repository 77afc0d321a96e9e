#include "train/steps.h"

#include "base/checked.h"

#include <math.h>

typedef long long ll;

/* Batches per rank and epoch, once the sizes are known to be positive. */
static int64_t count_micro_batches(const tt_steps *s)
{
    if (s->drop_last) return s->rows / s->batch / s->ranks;
    /* Not tt_div_up: rows + batch - 1 might overflow. */
    int64_t batches = s->rows / s->batch + (s->rows % s->batch != 0);
    return batches / s->ranks + (batches % s->ranks != 0);
}

static tt_status check_sizes(const tt_steps *s)
{
    TT_CHECK(s->batch >= 1 && s->ranks >= 1 && s->accumulation >= 1, TT_ECONFIG,
             "per_device_train_batch_size %lld, fsdp_size %lld and gradient_accumulation_steps %lld must be "
             "at least 1",
             (ll)s->batch, (ll)s->ranks, (ll)s->accumulation);
    int64_t round, step;
    TT_CHECK(tt_mul_i64(s->batch, s->ranks, &round) && tt_mul_i64(round, s->accumulation, &step), TT_ECONFIG,
             "per_device_train_batch_size %lld x fsdp_size %lld x gradient_accumulation_steps %lld is beyond "
             "what can "
             "be counted; set smaller ones",
             (ll)s->batch, (ll)s->ranks, (ll)s->accumulation);
    TT_CHECK(s->rows >= 1, TT_EDATA,
             "the training data has no rows after preparation; nothing can be trained");
    TT_CHECK(s->max_steps > 0 || s->epochs > 0, TT_ECONFIG,
             "num_train_epochs is %g; set it above 0, or max_steps", s->epochs);
    return TT_OK;
}

tt_status tt_steps_init(tt_steps *s)
{
    TT_TRY(check_sizes(s));
    s->micro_batches = count_micro_batches(s);
    TT_CHECK(s->micro_batches > 0, TT_EDATA,
             "%lld rows do not fill one round of %lld rows on each of %lld ranks, and dataloader_drop_last "
             "leaves out "
             "what is not full; set dataloader_drop_last: false or a smaller per_device_train_batch_size",
             (ll)s->rows, (ll)s->batch, (ll)s->ranks);
    /* A round never has more slots than rows + one round: positions stay within 64 bits. */
    int64_t slots;
    TT_CHECK(tt_add_i64(s->rows, s->batch * s->ranks, &slots), TT_ECONFIG, "too many rows: %lld",
             (ll)s->rows);
    s->steps_per_epoch = s->micro_batches / s->accumulation + (s->micro_batches % s->accumulation != 0);
    if (s->max_steps > 0) {
        s->total = s->max_steps;
        s->train_epochs = s->total / s->steps_per_epoch + (s->total % s->steps_per_epoch != 0);
        return TT_OK;
    }
    double total = ceil(s->epochs * (double)s->steps_per_epoch);
    TT_CHECK(total <= 0x1p53, TT_ECONFIG, "num_train_epochs %g gives %g steps; set a smaller number",
             s->epochs, total);
    s->total = (int64_t)total;
    s->train_epochs = (int64_t)ceil(s->epochs);
    return TT_OK;
}

tt_step_span tt_steps_span(const tt_steps *s, int64_t step)
{
    int64_t first = step % s->steps_per_epoch * s->accumulation;
    return (tt_step_span){.epoch = step / s->steps_per_epoch,
                          .first = first,
                          .count = tt_min_i64(s->accumulation, s->micro_batches - first)};
}

int64_t tt_steps_rows(const tt_steps *s, int64_t micro, int64_t rank, int64_t *positions)
{
    int64_t begin = (micro * s->ranks + rank) * s->batch;
    /* One rank alone repeats nothing: its last batch is short. */
    bool fill = s->even_batches && s->ranks > 1;
    int64_t left = tt_max_i64(s->rows - begin, 0), count = fill ? s->batch : tt_min_i64(s->batch, left);
    for (int64_t i = 0; i < count; i++) positions[i] = (begin + i) % s->rows;
    return count;
}

double tt_steps_epoch(const tt_steps *s, int64_t done)
{
    if (done == 0) return 0;
    tt_step_span last = tt_steps_span(s, done - 1);
    return (double)last.epoch + (double)(last.first + last.count) / (double)s->micro_batches;
}

int64_t tt_steps_interval(double value, int64_t total)
{
    return tt_max_i64((int64_t)(value >= 1 ? value : ceil((double)total * value)), 1);
}
