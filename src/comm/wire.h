/* wire.h - words between the watchdogs of a job, over TCP.
 *
 * A listener takes connections from anywhere, so every word carries a key that only this job's ranks have (they got it
 * through MPI); a connection with anything else is closed. Sending never blocks: what does not fit is kept until the
 * socket takes it, and a beat is left out while something is kept. */
#ifndef TT_COMM_WIRE_H
#define TT_COMM_WIRE_H

#include "comm/recorder.h"

#include <netinet/in.h>
#include <string.h>

#define TT_PLACE_ADDRESSES 8
#define TT_WORD_TEXT       2048

/* Where a rank is, told to all at the start. */
typedef struct tt_place {
    char host[TT_RECORD_HOST];
    char boot[40]; /* of the running system: equal host names do not mean equal hosts */
    char recorder[256];
    int32_t port; /* 0: does not listen */
    int32_t num_addresses;
    struct in6_addr addresses[TT_PLACE_ADDRESSES]; /* IPv4 as ::ffff:a.b.c.d */
    uint64_t key[2];
} tt_place;

typedef enum tt_word_kind {
    TT_WORD_BEAT,    /* the record of `about` */
    TT_WORD_FAILED,  /* `from` fails: text, status, and whether it may be a consequence */
    TT_WORD_GOODBYE, /* `from` ends in good order */
    TT_WORD_LEAVE,   /* leave with `status` and say nothing */
} tt_word_kind;

typedef struct tt_word {
    uint64_t key[2];
    int32_t kind, from, about;
    int32_t status, consequence;
    int32_t state; /* tt_rank_state, of a beat */
    double clock;  /* of the host that read the record */
    int64_t moved;
    tt_record record;
    char text[TT_WORD_TEXT]; /* sent with TT_WORD_FAILED only */
} tt_word;

typedef struct tt_wire {
    int fd;    /* -1: closed */
    int rank;  /* at the other end; -1: has not said */
    size_t have, kept, kept_at;
    unsigned char in[sizeof(tt_word)], out[sizeof(tt_word)];
} tt_wire;

/* tt_place_find - host, boot, addresses of this machine. */
void tt_place_find(tt_place *p);
static inline bool tt_place_same_host(const tt_place *a, const tt_place *b)
{
    return strcmp(a->host, b->host) == 0 && strcmp(a->boot, b->boot) == 0;
}

/* A listening socket on a free port, or -1. */
int tt_wire_listen(int32_t *port);
/* The addresses to try, in order; returns how many. */
int tt_place_candidates(const tt_place *p, bool same_host, struct in6_addr out[TT_PLACE_ADDRESSES + 2]);
/* A connection, or -1 when nobody answers within `seconds`. Who answered shows in the first word. */
int tt_wire_connect(const struct in6_addr *to, int port, double seconds);

/* tt_wire_send - false: the link has failed. What is for a process that is gone is dropped, and true: tt_wire_receive
 * tells what it said last, and then that it is gone. */
bool tt_wire_send(tt_wire *w, const tt_word *word);
/* Send what is kept. */
bool tt_wire_flush(tt_wire *w);

typedef enum tt_wire_event { TT_WIRE_NOTHING, TT_WIRE_WORD, TT_WIRE_CLOSED, TT_WIRE_BROKEN } tt_wire_event;
/* tt_wire_receive - the next whole word, if there is one. CLOSED: the other process is gone; BROKEN: the link is, or what
 * came is no word of this job. */
tt_wire_event tt_wire_receive(tt_wire *w, const uint64_t key[2], int size, tt_word *word);
void tt_wire_close(tt_wire *w);

#endif
