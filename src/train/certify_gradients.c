/* certify_gradients.c - every gradient of the mesh against the reference, one parameter at a time at rank 0. */
#include "base/checked.h"
#include "train/certify_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TINY 1e-6 /* of the largest norm: below it a tensor is compared by element */

tt_distance tt_certify_measure(const float *a, const float *b, int64_t n)
{
    tt_distance d = {0};
    for (int64_t i = 0; i < n; i++) {
        double x = (double)a[i] - b[i];
        d.difference += x * x;
        d.norm += (double)b[i] * b[i];
        if (!(fabs(x) <= d.worst)) d.worst = fabs(x); /* NaN becomes the worst and stays it */
    }
    return (tt_distance){sqrt(d.difference), sqrt(d.norm), d.worst};
}

/* --- pieces --------------------------------------------------------------------------------------------------------- */

/* Pieces of one rank ascend by parameter, of which each has one at most. NULL: none. */
static const tt_piece *find_piece(const tt_piece *pieces, int64_t num, int64_t param)
{
    int64_t lo = 0, hi = num;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (pieces[mid].param < param) lo = mid + 1;
        else hi = mid;
    }
    return lo < num && pieces[lo].param == param ? &pieces[lo] : NULL;
}

/* In a world of one every parameter that is held is one piece. */
static const float *whole_gradient(const tt_certify_run *r, int64_t param)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(r->engine.shards, &num);
    return tt_shards_view(r->engine.shards, find_piece(pieces, num, param), TT_PART_GRADIENT).data;
}

/* The mesh's gradients on their way to rank 0, which knows the pieces of all ranks. */
struct tt_certify_comparison {
    const tt_certify_run *run;
    tt_certify_report *report;
    int64_t *begin, *num, *bytes; /* [size] first piece of each rank in `all`, how many; what each sends */
    tt_piece *all;
    float *pieces, *whole;        /* room for the largest parameter */
};

static tt_status exchange_pieces(tt_certify_comparison *c)
{
    const tt_mesh *mesh = c->run->engine.mesh;
    const tt_params *params = &c->run->engine.table.params;
    int64_t num, total = 0, most = 1, size = mesh->world_size;
    const tt_piece *mine = tt_shards_pieces(c->run->engine.shards, &num);
    c->begin = calloc((size_t)size * 3, sizeof *c->begin);
    TT_CHECK(c->begin, TT_ENOMEM, "certify: out of memory");
    c->num = c->begin + size;
    c->bytes = c->num + size;
    c->num[mesh->rank] = num;
    TT_TRY(tt_allgather(mesh->world, "certify-pieces", &c->num[mesh->rank], c->num, sizeof num));
    for (int64_t r = 0; r < size; r++) {
        c->bytes[r] = c->num[r] * (int64_t)sizeof *mine;
        c->begin[r] = total;
        total += c->num[r];
    }
    for (int64_t i = 0; i < params->num; i++) most = tt_max_i64(most, params->at[i].count);
    c->all = malloc((size_t)total * sizeof *c->all + 1);
    c->pieces = malloc((size_t)most * 2 * sizeof *c->pieces);
    TT_CHECK(c->all && c->pieces, TT_ENOMEM, "certify: out of memory");
    c->whole = c->pieces + most;
    return tt_gatherv(mesh->world, "certify-pieces", 0, mine, num * (int64_t)sizeof *mine, c->all, c->bytes);
}

/* c->whole = the gradient of `param`, at rank 0. */
static tt_status collect(tt_certify_comparison *c, int64_t param)
{
    const tt_mesh *mesh = c->run->engine.mesh;
    const tt_shards *shards = c->run->engine.shards;
    int64_t num, size = (int64_t)sizeof *c->whole;
    const tt_piece *pieces = tt_shards_pieces(shards, &num), *mine = find_piece(pieces, num, param), *theirs;
    const void *data = mine ? tt_shards_view(shards, mine, TT_PART_GRADIENT).data : NULL;
    for (int r = 0; r < mesh->world_size && mesh->rank == 0; r++) {
        theirs = find_piece(c->all + c->begin[r], c->num[r], param);
        c->bytes[r] = theirs ? theirs->count * size : 0;
    }
    TT_TRY(tt_gatherv(mesh->world, "certify-gradient", 0, data, mine ? mine->count * size : 0, c->pieces, c->bytes));
    if (mesh->rank > 0) return TT_OK;
    const float *from = c->pieces;
    for (int64_t j = 0; j < c->run->engine.table.params.at[param].count; j++)
        c->whole[j] = NAN; /* what nobody sends must not pass */
    for (int r = 0; r < mesh->world_size; r++) {
        theirs = find_piece(c->all + c->begin[r], c->num[r], param);
        if (!theirs) continue;
        memcpy(c->whole + theirs->first, from, (size_t)c->bytes[r]);
        from += theirs->count;
    }
    return TT_OK;
}

/* --- rows ----------------------------------------------------------------------------------------------------------- */

static int64_t trained_before(const tt_params *params, int64_t param)
{
    int64_t n = 0;
    for (int64_t i = 0; i < param; i++) n += params->at[i].trained;
    return n;
}

static tt_status allocate_rows(const tt_params *params, tt_certify_report *report)
{
    int64_t num = trained_before(params, params->num);
    report->rows = calloc((size_t)num + 1, sizeof *report->rows);
    report->names = calloc((size_t)num + 1, sizeof *report->names);
    TT_CHECK(report->rows && report->names, TT_ENOMEM, "certify: out of memory");
    for (int64_t i = 0; i < params->num; i++) {
        if (!params->at[i].trained) continue;
        char *name = strdup(params->at[i].name);
        TT_CHECK(name, TT_ENOMEM, "certify: out of memory");
        report->rows[report->num_rows].name = report->names[report->num_rows] = name;
        report->num_rows++;
    }
    return TT_OK;
}

tt_status tt_certify_comparison_open(const tt_certify_run *mesh_run, tt_certify_report *report, tt_certify_comparison **out)
{
    const tt_mesh *mesh = mesh_run->engine.mesh;
    tt_certify_comparison *c = *out = calloc(1, sizeof *c);
    tt_status status = c ? TT_OK : tt_error_set(TT_ENOMEM, "certify: out of memory");
    if (c) *c = (tt_certify_comparison){.run = mesh_run, .report = report};
    if (status == TT_OK && mesh->rank == 0) status = allocate_rows(&mesh_run->engine.table.params, report);
    TT_TRY(tt_agree(mesh->world, "certify-compare", status));
    /* A failure between the operations of exchange_pieces is this rank's alone: not to be agreed on, or the others, which
     * are still in one of them, and this rank would be in different operations. */
    return exchange_pieces(c);
}

void tt_certify_comparison_close(tt_certify_comparison **c)
{
    if (!*c) return;
    free((*c)->begin);
    free((*c)->all);
    free((*c)->pieces);
    free(*c);
    *c = NULL;
}

static void fill_row(tt_certify_row *row, tt_distance d, double yardstick)
{
    row->norm = d.norm;
    row->difference = d.difference;
    row->worst = d.worst;
    row->tolerance = d.norm > 0 ? fmax(TT_CERTIFY_TOLERANCE, 10 * yardstick / d.norm) : TT_CERTIFY_TOLERANCE;
}

tt_status tt_certify_compare_unit(tt_certify_comparison *c, int unit, const tt_certify_run *reference,
                                  const tt_certify_run *alternative)
{
    const tt_params *params = &c->run->engine.table.params;
    const tt_unit *u = &params->units[unit];
    int64_t next = trained_before(params, u->first);
    for (int64_t i = u->first; i < u->first + u->count; i++) {
        if (!params->at[i].trained) continue;
        TT_TRY(collect(c, i));
        if (c->run->engine.mesh->rank > 0) continue;
        const float *expected = whole_gradient(reference, i);
        tt_distance d = tt_certify_measure(c->whole, expected, params->at[i].count);
        tt_distance yard = tt_certify_measure(whole_gradient(alternative, i), expected, params->at[i].count);
        fill_row(&c->report->rows[next++], d, yard.difference);
    }
    return TT_OK;
}

void tt_certify_judge_rows(tt_certify_report *r)
{
    double largest = 0;
    for (int64_t i = 0; i < r->num_rows; i++) largest = fmax(largest, r->rows[i].norm);
    for (int64_t i = 0; i < r->num_rows; i++) {
        tt_certify_row *row = &r->rows[i];
        row->tiny = row->norm <= TINY * largest;
        /* Rounding in a tensor that vanishes in theory follows the largest gradients that pass through it. */
        if (row->tiny) row->tolerance = TINY * fmax(1, largest);
        row->error = row->tiny ? row->worst : row->difference / row->norm;
        row->good = row->error <= row->tolerance;
        r->bad_rows += !row->good;
    }
}
