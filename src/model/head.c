/* head.c - final norm, output matrix, cross-entropy and their gradients, in chunks of rows: there is never a T x V matrix.
 *
 * Rows without a target are dropped before the product. Because the divisor of the loss is known before the first
 * micro-step, the gradient of a chunk's logits is formed while they are alive, and forward and backward are one pass.
 * docs/model.md section "Loss". */
#include "model/block.h"
#include "base/checked.h"

typedef struct supervised {
    int64_t n;
    int32_t *token;   /* [n] rows with a target */
    int32_t *target;  /* [n] */
    int64_t *begin;   /* [T+1] inverse, for the way back */
    int32_t *item;    /* [n] */
} supervised;

static tt_status list_supervised(tt_pass *p, supervised *s)
{
    const tt_batch *b = p->micro->batch;
    tt_arena *work = p->m->work;
    TT_TRY(tt_arena_grant(work, b->num_targets, sizeof *s->token, (void **)&s->token));
    TT_TRY(tt_arena_grant(work, b->num_targets, sizeof *s->target, (void **)&s->target));
    TT_TRY(tt_arena_grant(work, b->num_targets, sizeof *s->item, (void **)&s->item));
    TT_TRY(tt_arena_grant(work, p->T + 1, sizeof *s->begin, (void **)&s->begin));
    s->n = 0;
    for (int64_t t = 0; t < p->T; t++) {
        s->begin[t] = s->n;
        if (b->targets[t] == TT_NO_TARGET) continue;
        s->token[s->n] = (int32_t)t;
        s->target[s->n] = b->targets[t];
        s->item[s->n] = (int32_t)s->n;
        s->n++;
    }
    s->begin[p->T] = s->n;
    TT_ASSERT(s->n == b->num_targets);
    return TT_OK;
}

/* Rows [lo, hi) of the supervised ones: loss, and with dh their gradient. */
static tt_status loss_chunk(tt_pass *p, const supervised *s, int64_t lo, int64_t hi, tt_mat normed, tt_mat dh,
                            tt_loss_sums *sums)
{
    tt_kernel *k = p->m->kernel;
    tt_arena *work = p->m->work;
    int64_t head = p->m->table->head, V = p->m->config->vocab_size;
    tt_arena_mark mark = tt_arena_save(work);
    tt_mat h, logits, dlogits = {0};
    TT_TRY(tt_grant_mat(work, tt_compute(p), hi - lo, normed.cols, &h));
    TT_TRY(tt_grant_mat(work, tt_real(p), hi - lo, V, &logits));
    if (p->micro->backward) {
        dlogits = logits;
        if (tt_compute(p) != tt_real(p)) TT_TRY(tt_grant_mat(work, tt_compute(p), hi - lo, V, &dlogits));
    }
    k->ops->gather_rows(k, normed, s->token + lo, h);
    TT_TRY(tt_project(p, h, head, -1, false, logits));
    k->ops->cross_entropy(k, logits, s->target + lo, p->micro->scale, dlogits, sums);
    if (p->micro->backward) {
        TT_STAGE(k->profile, BACKWARD);
        TT_TRY(tt_project_back(p, dlogits, h, head, -1, false, tt_mat_rows(dh, lo, hi)));
    }
    tt_arena_restore(work, mark);
    return TT_OK;
}

/* Logits of every token from first_logit on, for those who asked for them. */
static tt_status show_logits(tt_pass *p, tt_mat normed)
{
    const tt_micro *micro = p->micro;
    for (int64_t lo = micro->first_logit; lo < p->T; lo += p->m->loss_chunk) {
        int64_t hi = tt_min_i64(lo + p->m->loss_chunk, p->T);
        tt_arena_mark mark = tt_arena_save(p->m->work);
        tt_mat logits;
        TT_TRY(tt_grant_mat(p->m->work, tt_real(p), hi - lo, p->m->config->vocab_size, &logits));
        TT_TRY(tt_project(p, tt_mat_rows(normed, lo, hi), p->m->table->head, -1, false, logits));
        TT_TRY(micro->logits(micro->logits_user, lo, logits));
        tt_arena_restore(p->m->work, mark);
    }
    return TT_OK;
}

static tt_status head_in_units(tt_pass *p, tt_mat x_TD, tt_mat dx_TD, tt_loss_sums *sums)
{
    const tt_model *m = p->m;
    tt_kernel *k = m->kernel;
    int64_t D = x_TD.cols;
    supervised s;
    tt_mat normed, rstd, dh = {0}, dnormed;
    TT_TRY(tt_grant_mat(m->work, tt_compute(p), p->T, D, &normed));
    TT_TRY(tt_grant_mat(m->work, tt_real(p), p->T, 1, &rstd));
    TT_TRY(list_supervised(p, &s));
    if (p->micro->backward) TT_TRY(tt_grant_mat(m->work, tt_real(p), s.n, D, &dh));
    k->ops->rmsnorm(k, x_TD, tt_weight_mat(p, m->table->norm), m->config->norm_eps, normed, rstd.data);
    for (int64_t lo = 0; lo < s.n; lo += m->loss_chunk)
        TT_TRY(loss_chunk(p, &s, lo, tt_min_i64(lo + m->loss_chunk, s.n), normed, dh, sums));
    if (p->micro->logits) TT_TRY(show_logits(p, normed));
    if (!p->micro->backward) return TT_OK;
    TT_STAGE(k->profile, BACKWARD);
    TT_TRY(tt_grant_mat(m->work, tt_real(p), p->T, D, &dnormed));
    k->ops->sum_rows(k, dh, s.begin, s.item, NULL, false, dnormed);
    k->ops->rmsnorm_back(k, dnormed, x_TD, tt_weight_mat(p, m->table->norm), rstd.data, false, dx_TD,
                         tt_unit_gradient(m->shards, k, m->table->norm));
    return TT_OK;
}

tt_status tt_head(tt_pass *p, tt_mat x_TD, tt_mat dx_TD, tt_loss_sums *sums)
{
    tt_model *m = p->m;
    /* A tied matrix lives in the embedding unit: gathered again here, and reduced once for this use. */
    int units[2] = {m->table->head_unit, m->table->embedding_unit}, num = m->config->tied ? 2 : 1;
    tt_arena_mark mark = tt_arena_save(m->work);
    TT_PHASE(m->kernel->profile, HEAD);
    for (int i = 0; i < num; i++) {
        TT_TRY(tt_unit_gather(m->shards, m->kernel, units[i]));
        if (p->micro->backward) TT_TRY(tt_unit_gradient_begin(m->shards, m->kernel, units[i]));
    }
    TT_TRY(head_in_units(p, x_TD, dx_TD, sums));
    TT_STAGE(m->kernel->profile, BACKWARD);
    for (int i = 0; i < num; i++) {
        if (p->micro->backward) TT_TRY(tt_unit_gradient_end(m->shards, m->kernel, units[i]));
        tt_unit_release(m->shards, units[i]);
    }
    tt_arena_restore(m->work, mark);
    return TT_OK;
}
