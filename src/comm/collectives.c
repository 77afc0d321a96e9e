/* collectives.c - operations that move bytes and add nothing.
 *
 * All but the broadcast are flat: every pair of ranks that has something to say does so directly, all at
 * once. That moves the fewest bytes and lets a deadline name exactly the ranks that are missing. The
 * broadcast is a binomial tree, here from rank 0 to 6 (a line is one message, the left one is sent first):
 *
 *        0 -> 4   0 -> 2   0 -> 1
 *        4 -> 6   2 -> 3
 *        4 -> 5
 *
 * Each list is built in the comm's own arrays, which are free again as soon as an exchange has begun.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

tt_status tt_barrier(tt_group *group, const char *name)
{
    tt_comm *comm = group->comm;
    tt_op op = tt_op_start(group, name);
    unsigned char out = 1;
    /* A byte of its own for each: receives in flight may not share memory. */
    for (int r = 0; r < group->size; r++) {
        comm->sends[r] = (tt_part){r, &out, r == group->rank ? 0 : 1};
        comm->recvs[r] = (tt_part){r, &comm->codes[r], r == group->rank ? 0 : 1};
    }
    return tt_exchange(&op, comm->sends, group->size, comm->recvs, group->size);
}

tt_status tt_allgather_begin(tt_group *group, const char *name, const void *mine, void *all, size_t bytes,
                             tt_request **out)
{
    tt_comm *comm = group->comm;
    tt_op op = tt_op_start(group, name);
    for (int r = 0; r < group->size; r++) {
        comm->sends[r] = (tt_part){r, (void *)mine, bytes};
        comm->recvs[r] = (tt_part){r, (unsigned char *)all + (size_t)r * bytes, bytes};
    }
    return tt_exchange_begin(&op, comm->sends, group->size, comm->recvs, group->size, out);
}

tt_status tt_allgather(tt_group *group, const char *name, const void *mine, void *all, size_t bytes)
{
    tt_request *request;
    TT_TRY(tt_allgather_begin(group, name, mine, all, bytes, &request));
    return tt_request_end(&request);
}

/* Pieces that lie end to end in rank order. */
static tt_status list_pieces(const char *name, const void *data, const int64_t *bytes, int num, tt_part *out)
{
    size_t at = 0;
    for (int r = 0; r < num; r++) {
        TT_CHECK(bytes[r] >= 0, TT_EINTERNAL, "%s: %lld bytes for rank %d", name, (long long)bytes[r], r);
        /* NULL + 0 is not C; data may be NULL when all counts are 0. */
        out[r] = (tt_part){r, bytes[r] ? (unsigned char *)data + at : NULL, (size_t)bytes[r]};
        at += (size_t)bytes[r];
    }
    return TT_OK;
}

tt_status tt_alltoallv(tt_group *group, const char *name, const void *send, const int64_t *send_bytes,
                       void *recv, const int64_t *recv_bytes)
{
    tt_comm *comm = group->comm;
    TT_TRY(list_pieces(name, send, send_bytes, group->size, comm->sends));
    TT_TRY(list_pieces(name, recv, recv_bytes, group->size, comm->recvs));
    tt_op op = tt_op_start(group, name);
    return tt_exchange(&op, comm->sends, group->size, comm->recvs, group->size);
}

tt_status tt_alltoall_begin(tt_group *group, const char *name, const void *send, void *recv, size_t bytes,
                            tt_request **out)
{
    tt_comm *comm = group->comm;
    tt_op op = tt_op_start(group, name);
    for (int r = 0; r < group->size; r++) {
        comm->sends[r] = (tt_part){r, (unsigned char *)send + (size_t)r * bytes, bytes};
        comm->recvs[r] = (tt_part){r, (unsigned char *)recv + (size_t)r * bytes, bytes};
    }
    return tt_exchange_begin(&op, comm->sends, group->size, comm->recvs, group->size, out);
}

tt_status tt_alltoall(tt_group *group, const char *name, const void *send, void *recv, size_t bytes)
{
    tt_request *request;
    TT_TRY(tt_alltoall_begin(group, name, send, recv, bytes, &request));
    return tt_request_end(&request);
}

static tt_status check_root(const tt_group *group, const char *name, int root)
{
    TT_CHECK(root >= 0 && root < group->size, TT_EINTERNAL, "%s: root %d is not in group %s of %d ranks",
             name, root, group->name, group->size);
    return TT_OK;
}

tt_status tt_broadcast(tt_group *group, const char *name, int root, void *data, size_t bytes)
{
    tt_comm *comm = group->comm;
    TT_TRY(check_root(group, name, root));
    tt_op op = tt_op_start(group, name);
    int size = group->size;
    /* Seen from the root. A rank's lowest set bit leads to its parent, the bits below to its children. */
    int me = (group->rank - root + size) % size, bit = 1, num = 0;
    while (bit < size && !(me & bit)) bit <<= 1;
    if (me != 0) {
        comm->recvs[0] = (tt_part){(me - bit + root) % size, data, bytes};
        TT_TRY(tt_exchange(&op, NULL, 0, comm->recvs, 1));
    }
    for (bit >>= 1; bit; bit >>= 1)
        if (me + bit < size) comm->sends[num++] = (tt_part){(me + bit + root) % size, data, bytes};
    return tt_exchange(&op, comm->sends, num, NULL, 0);
}

tt_status tt_gatherv(tt_group *group, const char *name, int root, const void *send, int64_t send_bytes,
                     void *recv, const int64_t *recv_bytes)
{
    tt_comm *comm = group->comm;
    TT_TRY(check_root(group, name, root));
    TT_CHECK(send_bytes >= 0, TT_EINTERNAL, "%s: %lld bytes to send", name, (long long)send_bytes);
    bool is_root = group->rank == root;
    if (is_root) TT_TRY(list_pieces(name, recv, recv_bytes, group->size, comm->recvs));
    tt_op op = tt_op_start(group, name);
    comm->sends[0] = (tt_part){root, (void *)send, (size_t)send_bytes};
    return tt_exchange(&op, comm->sends, 1, comm->recvs, is_root ? group->size : 0);
}

/* --- agreement ---------------------------------------------------------------------------------------- */

/* As long as the longest message that a thread keeps. */
#define TEXT_BYTES 2048

static bool names_a_rank(const char *text)
{
    int rank, end = 0;
    return sscanf(text, "rank %d:%n", &rank, &end) == 1 && end > 0;
}

static tt_status agree(tt_group *group, const char *name, tt_status mine, const char *my_text)
{
    int32_t code = (int32_t)mine, *codes = group->comm->codes;
    char text[TEXT_BYTES] = "";
    TT_TRY(tt_allgather(group, name, &code, codes, sizeof code));
    int first = 0;
    while (first < group->size && codes[first] == TT_OK) first++;
    if (first == group->size) return TT_OK;
    code = codes[first];
    if (first == group->rank) snprintf(text, sizeof text, "%s", my_text);
    TT_TRY(tt_broadcast(group, name, first, text, sizeof text));
    text[sizeof text - 1] = '\0';
    if (group->comm->link.size == 1 || names_a_rank(text)) return tt_error_set((tt_status)code, "%s", text);
    return tt_error_set((tt_status)code, "rank %d: %s", group->ranks[first], text);
}

tt_status tt_agree(tt_group *group, const char *name, tt_status mine)
{
    char my_text[TEXT_BYTES];
    /* Kept aside: a failing exchange would overwrite it. */
    snprintf(my_text, sizeof my_text, "%s", mine == TT_OK ? "" : tt_error_text());
    tt_status status = agree(group, name, mine, my_text);
    if (mine != TT_OK && group->comm->broken) return tt_error_set(mine, "%s", my_text);
    group->comm->agreed = group->is_world && status != TT_OK && !group->comm->broken;
    return status;
}
