#include "base/checked.h"
#include "shard/shard.h"

tt_status tt_unit_layout(const tt_params *params, int unit, int group_size, int ep_size, int ep_rank,
                         int64_t *offset, tt_flat_layout flats[2])
{
    const tt_unit *u = &params->units[unit];
    int64_t begin = 0, end = 0;
    if (u->kind == TT_UNIT_EXPERTS) tt_mesh_experts(params->num_experts, ep_size, ep_rank, &begin, &end);
    flats[0].total = flats[1].total = 0;
    for (int64_t i = 0; i < u->count; i++) {
        const tt_param *p = &params->at[u->first + i];
        if (p->expert >= 0 && (p->expert < begin || p->expert >= end)) {
            offset[i] = -1;
            continue;
        }
        int64_t *total = &flats[p->exact].total;
        offset[i] = *total;
        TT_CHECK(tt_add_i64(*total, p->count + TT_FLAT_ALIGN, total) && *total < INT64_MAX / 16, TT_ENOMEM,
                 "'%s': its unit has more elements than can be addressed", p->name);
        *total = tt_round_up(*total - TT_FLAT_ALIGN, TT_FLAT_ALIGN);
    }
    for (int f = 0; f < 2; f++)
        flats[f].shard = tt_round_up(tt_div_up(flats[f].total, group_size), TT_FLAT_ALIGN);
    return TT_OK;
}
