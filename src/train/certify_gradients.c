/* certify_gradients.c - every gradient of the mesh against the reference, one parameter at a time at rank 0. */
#include "base/checked.h"
#include "train/certify_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RELATIVE_TOLERANCE 1e-5
#define TINY               1e-6 /* of the largest norm: below it a tensor is compared by element */

typedef struct distance {
    double difference, norm, worst; /* norm of a - b, norm of b, largest |a - b| */
} distance;

static distance measure(const float *a, const float *b, int64_t n)
{
    distance d = {0};
    for (int64_t i = 0; i < n; i++) {
        double x = (double)a[i] - b[i];
        d.difference += x * x;
        d.norm += (double)b[i] * b[i];
        if (!(fabs(x) <= d.worst)) d.worst = fabs(x); /* NaN becomes the worst and stays it */
    }
    return (distance){sqrt(d.difference), sqrt(d.norm), d.worst};
}

/* In a world of one every parameter is one piece. */
static const float *whole_gradient(const tt_certify_run *r, int64_t param)
{
    int64_t num;
    const tt_piece *pieces = tt_shards_pieces(r->engine.shards, &num);
    return tt_shards_view(r->engine.shards, &pieces[param], TT_PART_GRADIENT).data;
}

/* The mesh's gradients on their way to rank 0. Every rank goes through the table in the same order, and through its own
 * pieces beside it; rank 0 knows the pieces of all. */
typedef struct collector {
    const tt_certify_run *run;
    int64_t next;      /* this rank's next piece */
    int64_t *begin, *end, *bytes; /* [size] next and last piece of each rank in `all`; what each sends */
    tt_piece *all;
    float *pieces, *whole; /* room for the largest parameter */
} collector;

static void close_collector(collector *c)
{
    free(c->begin);
    free(c->all);
    free(c->pieces);
}

static tt_status open_collector(const tt_certify_run *run, collector *c)
{
    const tt_mesh *mesh = run->engine.mesh;
    const tt_params *params = &run->engine.table.params;
    int64_t num, total = 0, most = 1, size = mesh->world_size;
    const tt_piece *mine = tt_shards_pieces(run->engine.shards, &num);
    *c = (collector){.run = run, .begin = calloc((size_t)size * 3, sizeof(int64_t))};
    TT_CHECK(c->begin, TT_ENOMEM, "certify: out of memory");
    c->end = c->begin + size;
    c->bytes = c->end + size;
    c->end[mesh->rank] = num;
    TT_TRY(tt_allgather(mesh->world, "certify-pieces", &c->end[mesh->rank], c->end, sizeof num));
    for (int64_t r = 0; r < size; r++) {
        c->bytes[r] = c->end[r] * (int64_t)sizeof *mine;
        c->begin[r] = total;
        c->end[r] = total += c->end[r];
    }
    for (int64_t i = 0; i < params->num; i++) most = tt_max_i64(most, params->at[i].count);
    c->all = malloc((size_t)total * sizeof *c->all + 1);
    c->pieces = malloc((size_t)most * 2 * sizeof *c->pieces);
    TT_CHECK(c->all && c->pieces, TT_ENOMEM, "certify: out of memory");
    c->whole = c->pieces + most;
    return tt_gatherv(mesh->world, "certify-pieces", 0, mine, num * (int64_t)sizeof *mine, c->all, c->bytes);
}

/* c->whole = the gradient of `param`, at rank 0. */
static tt_status collect(collector *c, int64_t param)
{
    const tt_mesh *mesh = c->run->engine.mesh;
    const tt_param *p = &c->run->engine.table.params.at[param];
    int64_t num, sent = 0;
    const tt_piece *mine = tt_shards_pieces(c->run->engine.shards, &num);
    const void *data = NULL;
    if (c->next < num && mine[c->next].param == param) {
        if (p->trained) data = tt_shards_view(c->run->engine.shards, &mine[c->next], TT_PART_GRADIENT).data;
        sent = mine[c->next++].count * (int64_t)sizeof *c->whole;
    }
    memset(c->bytes, 0, (size_t)mesh->world_size * sizeof *c->bytes);
    for (int r = 0; r < mesh->world_size; r++)
        if (mesh->rank == 0 && c->begin[r] < c->end[r] && c->all[c->begin[r]].param == param)
            c->bytes[r] = c->all[c->begin[r]++].count * (int64_t)sizeof *c->whole;
    if (!p->trained) return TT_OK;
    TT_TRY(tt_gatherv(mesh->world, "certify-gradient", 0, data, sent, c->pieces, c->bytes));
    const float *from = c->pieces;
    for (int64_t j = 0; j < p->count && mesh->rank == 0; j++) c->whole[j] = NAN; /* what nobody sends must not pass */
    for (int r = 0; r < mesh->world_size && mesh->rank == 0; r++) {
        if (c->bytes[r] == 0) continue;
        const tt_piece *piece = &c->all[c->begin[r] - 1];
        memcpy(c->whole + piece->first, from, (size_t)c->bytes[r]);
        from += piece->count;
    }
    return TT_OK;
}

static tt_status add_row(tt_certify_report *report, const tt_param *p, distance d, double yardstick)
{
    tt_certify_row *row = &report->rows[report->num_rows];
    row->name = report->names[report->num_rows] = strdup(p->name);
    TT_CHECK(row->name, TT_ENOMEM, "certify: out of memory");
    row->norm = d.norm;
    row->difference = d.difference;
    row->worst = d.worst;
    row->tolerance = d.norm > 0 ? fmax(RELATIVE_TOLERANCE, 10 * yardstick / d.norm) : RELATIVE_TOLERANCE;
    report->num_rows++;
    return TT_OK;
}

static void judge(tt_certify_report *r)
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

tt_status tt_certify_compare_gradients(const tt_certify_run *mesh_run, const tt_certify_run *reference,
                                       const tt_certify_run *alternative, tt_certify_report *report)
{
    const tt_params *params = &mesh_run->engine.table.params;
    const tt_mesh *mesh = mesh_run->engine.mesh;
    collector c;
    tt_status status = TT_OK;
    if (mesh->rank == 0) {
        report->rows = calloc((size_t)params->num, sizeof *report->rows);
        report->names = calloc((size_t)params->num, sizeof *report->names);
        if (!report->rows || !report->names) status = tt_error_set(TT_ENOMEM, "certify: out of memory");
    }
    TT_TRY(tt_agree(mesh->world, "certify-compare", status));
    /* A failure between the operations of open_collector is this rank's alone: not to be agreed on, or the others, which
     * are still in one of them, and this rank would be in different operations. */
    status = open_collector(mesh_run, &c);
    for (int64_t i = 0; i < params->num && status == TT_OK; i++) {
        status = collect(&c, i);
        if (status != TT_OK || mesh->rank != 0 || !params->at[i].trained) continue;
        const float *expected = whole_gradient(reference, i);
        distance d = measure(c.whole, expected, params->at[i].count);
        distance yard = measure(whole_gradient(alternative, i), expected, params->at[i].count);
        status = add_row(report, &params->at[i], d, yard.difference);
    }
    if (status == TT_OK) judge(report);
    close_collector(&c);
    return status;
}
