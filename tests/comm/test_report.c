/* What a watchdog concludes from records, and what it says; words between watchdogs. No process is harmed. */
#include "support/test.h"

#include "comm/recorder.h"
#include "comm/report.h"
#include "comm/wire.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- records ------------------------------------------------------------------------------------------------- */

/* A rank with a world of key 1 and an ep group of key `ep`, at `clock` 100. */
static tt_rank_report rank_of(int rank, uint64_t ep)
{
    tt_recorder *r;
    tt_rank_report out = {.known = true, .clock = 100};
    assert_ok(tt_recorder_open(rank, NULL, 0, &r));
    tt_recorder_timeout(r, 10);
    assert_int_equal(tt_recorder_add_group(r, 1, "world"), 0);
    assert_int_equal(tt_recorder_add_group(r, ep, "ep"), 1);
    tt_recorder_phase(r, "backward");
    tt_recorder_step(r, 12);
    assert_true(tt_recorder_read(r, &out.record));
    tt_recorder_close(&r);
    snprintf(out.record.host, sizeof out.record.host, "h%d", rank / 2);
    out.record.pid = 1000 + rank;
    return out;
}

static void waits(tt_rank_report *r, int group, uint32_t number, const char *name, double since)
{
    r->record.groups[group].begun = number;
    r->record.waiting = true;
    r->record.at = (tt_recorded_op){.group = group, .number = number, .since = since, .phase = "backward"};
    snprintf(r->record.at.name, sizeof r->record.at.name, "%s", name);
}

static void did(tt_rank_report *r, int group, uint32_t number, const char *name, double since)
{
    waits(r, group, number, name, since);
    r->record.last[r->record.num_ended++ % TT_RECORD_OPS] = r->record.at;
    r->record.waiting = false;
}

static void a_recorder_remembers(void **state)
{
    (void)state;
    tt_recorder *r;
    tt_record d;
    char path[256] = "";
    assert_ok(tt_recorder_open(3, path, sizeof path, &r));
    assert_true(path[0]);
    tt_recorder *seen = tt_recorder_map(path); /* as another process would */
    assert_non_null(seen);
    int g = tt_recorder_add_group(r, 7, "a group whose name is longer than its place");
    for (uint32_t i = 1; i <= 20; i++) {
        tt_recorder_begin(r, g, i);
        tt_recorder_wait(r, i == 20 ? "the last" : "one of many", g, i);
        if (i < 20) tt_recorder_end(r);
    }
    assert_true(tt_recorder_read(seen, &d));
    assert_int_equal(d.rank, 3);
    assert_int_equal(d.pid, getpid());
    assert_string_equal(d.groups[g].name, "a group whose name is l");
    assert_int_equal(d.groups[g].begun, 20);
    assert_true(d.waiting);
    assert_string_equal(d.at.name, "the last");
    assert_int_equal(d.num_ended, 19);
    for (uint64_t i = 0; i < TT_RECORD_OPS; i++) assert_int_equal(d.last[(18 - i) % TT_RECORD_OPS].number, 19 - i);
    /* The same ranks under a new group count anew; more groups than there is room for are not followed. */
    assert_int_equal(tt_recorder_add_group(r, 7, "again"), g);
    for (uint64_t key = 8; key < 8 + TT_RECORD_GROUPS - 1; key++) assert_true(tt_recorder_add_group(r, key, "g") > 0);
    assert_int_equal(tt_recorder_add_group(r, 100, "one too many"), -1);
    tt_recorder_read(seen, &d);
    assert_int_equal(d.groups[g].begun, 0);
    tt_recorder_close(&seen);
    tt_recorder_close(&r);
}

static void *write_for_a_while(void *arg)
{
    tt_recorder *r = arg;
    for (uint32_t i = 1; i < 200000; i++) {
        tt_recorder_begin(r, 0, i);
        tt_recorder_wait(r, i % 2 ? "odd" : "even, and longer than it", 0, i);
        tt_recorder_end(r);
    }
    return NULL;
}

/* A copy that is called consistent is. */
static void readers_never_see_half_a_change(void **state)
{
    (void)state;
    tt_recorder *r;
    pthread_t writer;
    tt_record d;
    int seen = 0;
    assert_ok(tt_recorder_open(0, NULL, 0, &r));
    tt_recorder_add_group(r, 1, "world");
    assert_int_equal(pthread_create(&writer, NULL, write_for_a_while, r), 0);
    do {
        if (!tt_recorder_read(r, &d) || d.num_ended == 0 || d.waiting) continue;
        const tt_recorded_op *last = &d.last[(d.num_ended - 1) % TT_RECORD_OPS];
        assert_int_equal(last->number, d.num_ended);
        assert_string_equal(last->name, last->number % 2 ? "odd" : "even, and longer than i");
        seen++;
    } while (d.num_ended < 199999);
    pthread_join(writer, NULL);
    assert_true(seen > 0);
    tt_recorder_close(&r);
}

/* --- what is overdue ----------------------------------------------------------------------------------------- */

static void an_operation_has_its_timeout(void **state)
{
    (void)state;
    bool transfer;
    double stalled[3] = {0};
    tt_rank_report r[3] = {rank_of(0, 2), rank_of(1, 2), rank_of(2, 3)};
    waits(&r[1], 0, 5, "gather-unit", 90.5);
    assert_int_equal(tt_report_find_overdue(r, stalled, 3, 1000, &transfer), -1);
    r[1].age = 0.6; /* told 0.6 s ago */
    assert_int_equal(tt_report_find_overdue(r, stalled, 3, 1000, &transfer), 1);
    assert_false(transfer);
    r[1].record.timeout = 0; /* never */
    assert_int_equal(tt_report_find_overdue(r, stalled, 3, 1000, &transfer), -1);
    waits(&r[2], 0, 5, "gather-unit", 50);
    r[2].known = false;
    assert_int_equal(tt_report_find_overdue(r, stalled, 3, 1000, &transfer), -1);
}

static void who_waits_for_a_load_is_patient(void **state)
{
    (void)state;
    bool transfer;
    double stalled[2] = {0, 0};
    tt_rank_report r[2] = {rank_of(0, 2), rank_of(1, 2)};
    waits(&r[0], 0, 5, "load", 1); /* for 99 s, with a timeout of 10 */
    r[1].record.moving = true;
    r[1].record.moving_since = 1;
    r[1].record.bytes_to_move = 1000;
    r[1].moved = 10;
    stalled[1] = 9.9;
    assert_int_equal(tt_report_find_overdue(r, stalled, 2, 0, &transfer), -1);
    stalled[1] = 10.1; /* the timeout is the most a transfer may stand still */
    assert_int_equal(tt_report_find_overdue(r, stalled, 2, 0, &transfer), 1);
    assert_true(transfer);
    r[1].record.moving = false; /* from now on the timeout counts */
    assert_int_equal(tt_report_find_overdue(r, stalled, 2, 9.9, &transfer), -1);
    assert_int_equal(tt_report_find_overdue(r, stalled, 2, 10.1, &transfer), 0);
    assert_false(transfer);
}

static void the_limit_follows_the_rate(void **state)
{
    (void)state;
    tt_rank_report r = rank_of(0, 2);
    r.record.timeout = 1800;
    r.record.moving = true;
    r.record.moving_since = 0; /* 100 s ago */
    r.moved = 0;
    assert_close(tt_report_stall_limit(&r), 120, 0);
    r.moved = (int64_t)100 << 30; /* 1 GiB/s: 32 MiB take no time */
    assert_close(tt_report_stall_limit(&r), 120, 0);
    r.moved = (int64_t)100 << 20; /* 1 MiB/s: twenty times 32 s */
    assert_close(tt_report_stall_limit(&r), 640, 1e-9);
    r.moved = (int64_t)100 << 10;
    assert_close(tt_report_stall_limit(&r), 1800, 0);
    r.record.timeout = 0;
    assert_close(tt_report_stall_limit(&r), 0, 0);
}

/* --- what is said -------------------------------------------------------------------------------------------- */

static void assert_says(const char *text, const char *expected)
{
    if (!strstr(text, expected)) fail_msg("not said: '%s' in:\n%s", expected, text);
}

static void a_hang_names_the_missing(void **state)
{
    (void)state;
    char text[4096];
    tt_rank_report r[6];
    for (int i = 0; i < 6; i++) r[i] = rank_of(i, i < 4 ? 2 : 3);
    for (int i = 0; i < 3; i++) waits(&r[i], 1, 5, "dispatch-tokens", 85);
    did(&r[3], 1, 4, "return-outputs", 84);
    r[3].state = TT_RANK_STOPPED;
    did(&r[4], 1, 9, "return-outputs", 99); /* of another ep group */
    tt_report_hang(r, 6, 0, text, sizeof text);
    assert_says(text, "rank 0 (host h0, pid 1000, step 12, phase backward): not complete after 10 s: "
                      "dispatch-tokens (operation 5 of group ep, phase backward)\n");
    assert_says(text, "arrived: ranks 0-2\n");
    assert_says(text, "missing: ranks 3\n");
    assert_says(text, "rank 3 (host h1, pid 1003, step 12, phase backward) is stopped; its last operation, 16.0 s ago, was "
                      "return-outputs (operation 4 of group ep, phase backward)\n");
    assert_null(strstr(text, "rank 4"));
    did(&r[4], 1, 9, "return-outputs", 84); /* it stands: perhaps a missing rank waits for it in another group */
    tt_report_hang(r, 6, 0, text, sizeof text);
    assert_says(text, "rank 4 (host h2, pid 1004, step 12, phase backward) runs; its last operation, 16.0 s ago, was");
    /* Ranks out of sight: */
    r[3].state = TT_RANK_SILENT;
    r[3].age = 20;
    r[4].known = false; /* a stranger to a group other than the world */
    tt_report_hang(r, 6, 0, text, sizeof text);
    assert_says(text, "rank 3 (host h1, pid 1003, step 12, phase backward) sends no word for 20 s; its last operation, 36.0 s ago");
    for (int i = 0; i < 6; i++) waits(&r[i], 0, 7, "gather-unit", 85);
    r[4].known = false;
    tt_report_hang(r, 6, 0, text, sizeof text);
    assert_says(text, "arrived: ranks 0-3, 5\n");
    assert_says(text, "rank 4 was never heard of\n");
    r[4] = r[5];
    tt_report_hang(r, 6, 0, text, sizeof text);
    assert_says(text, "missing: ranks none\n");
    assert_says(text, "rank 5 (host h2"); /* then everyone is told of */
}

static void a_report_has_an_end(void **state)
{
    (void)state;
    enum { MANY = 2000 };
    char small[200], text[8192];
    tt_rank_report *r = calloc(MANY, sizeof *r);
    assert_non_null(r);
    for (int i = 0; i < MANY; i++) r[i] = rank_of(i, 2);
    waits(&r[0], 0, 3, "gather-unit", 80);
    for (int i = 0; i < MANY; i += 2) r[i].record.groups[0].begun = 3;
    size_t n = tt_report_hang(r, MANY, 0, text, sizeof text);
    assert_true(n < sizeof text && strlen(text) == n);
    memset(small, 'x', sizeof small);
    n = tt_report_hang(r, MANY, 0, small, sizeof small - 8);
    assert_int_equal(strlen(small), n);
    assert_int_equal(small[sizeof small - 8], 'x');
    for (int i = 0; i < MANY; i += 2) r[i].record.groups[0].begun = i < 1000 ? 3 : 2;
    for (int i = 1; i < MANY; i += 2) r[i].record.groups[0].begun = i < 1000 ? 3 : 2;
    tt_report_hang(r, MANY, 0, text, sizeof text);
    assert_says(text, "missing: ranks 1000-1999\n");
    assert_says(text, "and 984 more\n");
    free(r);
}

static void losses_and_stalls(void **state)
{
    (void)state;
    char text[2048];
    tt_rank_report r[2] = {rank_of(0, 2), rank_of(1, 2)};
    did(&r[1], 1, 4, "return-outputs", 98);
    tt_report_lost(r, 1, text, sizeof text);
    assert_says(text, "rank 1 (host h0, pid 1001, step 12, phase backward) has ended without a word: killed from outside");
    assert_says(text, "its last operation, 2.0 s ago, was return-outputs");
    r[1].known = false;
    tt_report_lost(r, 1, text, sizeof text);
    assert_says(text, "rank 1 has ended without a word");
    r[0].record.moving = true;
    r[0].record.bytes_to_move = 2500000000;
    r[0].moved = 1250000000;
    snprintf(r[0].record.phase, sizeof r[0].record.phase, "load");
    tt_report_stall(r, 0, 130, text, sizeof text);
    assert_says(text, "phase load): load does not move: 1.250 of 2.500 GB done, nothing for 130 s");
}

/* --- words --------------------------------------------------------------------------------------------------- */

static const uint64_t key[2] = {11, 22};

static tt_wire *wire_of(int fd)
{
    tt_wire *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->fd = fd;
    w->rank = -1;
    return w;
}

static void words_arrive_whole(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    tt_wire *a = wire_of(fds[0]), *b = wire_of(fds[1]);
    tt_word *word = calloc(2, sizeof *word), *got = word + 1;
    *word = (tt_word){.key = {key[0], key[1]}, .kind = TT_WORD_FAILED, .from = 3, .about = 3, .status = 5, .text = "why"};
    /* More than the socket takes: beats are left out, what is sent arrives whole and in order. */
    int received = 0, last = -1;
    for (int i = 0; i < 2000; i++) {
        bool read_now = i % 500 == 499;
        word->kind = read_now ? TT_WORD_FAILED : TT_WORD_BEAT;
        word->status = i;
        for (; read_now && tt_wire_receive(b, key, 4, got) == TT_WIRE_WORD; received++) {
            assert_true(got->status > last);
            last = got->status;
            assert_true(tt_wire_flush(a));
        }
        assert_true(tt_wire_send(a, word));
    }
    while (tt_wire_receive(b, key, 4, got) == TT_WIRE_WORD) received++;
    assert_int_equal(got->status, 1999); /* this one was not left out */
    assert_string_equal(got->text, "why");
    assert_true(received > 50 && received < 2000);
    assert_int_equal(b->rank, 3);
    tt_wire_close(a);
    assert_int_equal(tt_wire_receive(b, key, 4, got), TT_WIRE_CLOSED);
    tt_wire_close(b);
    free(a), free(b), free(word);
}

/* The ends of a TCP connection, as between two ranks of a host. */
static void connect_pair(tt_wire **a, tt_wire **b)
{
    struct in6_addr to[TT_PLACE_ADDRESSES + 2];
    tt_place here = {0};
    int32_t port;
    int listener = tt_wire_listen(&port), fd = -1;
    assert_true(listener >= 0);
    int n = tt_place_candidates(&here, true, to);
    for (int i = 0; i < n && fd < 0; i++) fd = tt_wire_connect(&to[i], port, 1);
    assert_true(fd >= 0);
    *a = wire_of(fd);
    struct pollfd p = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 1000), 1);
    *b = wire_of(accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    assert_true((*b)->fd >= 0);
    close(listener);
}

/* A rank that beats, not yet knowing that another is gone, must still learn it: with what that one said last or without, with
 * or without words under way to it, which turn the end of its connection into a reset. */
static void the_dead_are_noticed_while_speaking(void **state)
{
    (void)state;
    tt_word *word = calloc(1, sizeof *word);
    for (int how = 0; how < 4; how++) {
        tt_wire *dies, *lives;
        connect_pair(&dies, &lives);
        *word = (tt_word){.key = {key[0], key[1]}, .kind = TT_WORD_GOODBYE, .from = 3, .about = 3};
        if (how & 1) assert_true(tt_wire_send(dies, word));
        word->kind = TT_WORD_BEAT;
        if (how & 2) assert_true(tt_wire_send(lives, word));
        close(dies->fd);
        for (int i = 0; i < 5; i++) assert_true(tt_wire_send(lives, word));
        struct pollfd p = {.fd = lives->fd, .events = POLLIN};
        assert_int_equal(poll(&p, 1, 1000), 1);
        if (how & 1) assert_int_equal(tt_wire_receive(lives, key, 4, word), TT_WIRE_WORD);
        if (how & 1) assert_int_equal(word->kind, TT_WORD_GOODBYE);
        assert_int_equal(tt_wire_receive(lives, key, 4, word), TT_WIRE_CLOSED);
        tt_wire_close(lives);
        free(dies), free(lives);
    }
    free(word);
}

static void strangers_are_not_believed(void **state)
{
    (void)state;
    tt_word *word = calloc(1, sizeof *word);
    for (int what = 0; what < 6; what++) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        tt_wire *b = wire_of(fds[1]);
        tt_word bad = {.key = {key[0], key[1]}, .kind = TT_WORD_BEAT, .from = 3, .about = 3};
        if (what == 0) bad.key[1]++;
        if (what == 1) bad.kind = TT_WORD_LEAVE + 1;
        if (what == 2) bad.from = 4;
        if (what == 3) bad.about = -1;
        if (what == 4) b->rank = 2; /* it was rank 2 before */
        if (what == 5) memset(&bad, 'G', sizeof bad);
        assert_int_equal(write(fds[0], &bad, sizeof bad), sizeof bad);
        assert_int_equal(tt_wire_receive(b, key, 4, word), TT_WIRE_BROKEN);
        close(fds[0]);
        tt_wire_close(b);
        free(b);
    }
    free(word);
}

static void texts_of_others_end(void **state)
{
    (void)state;
    tt_record r;
    memset(&r, 'x', sizeof r);
    tt_record_close_names(&r);
    assert_true(strlen(r.host) < sizeof r.host && strlen(r.at.name) < sizeof r.at.name);
    assert_int_equal(r.num_groups, 0);
}

static void connections_are_found(void **state)
{
    (void)state;
    tt_place here;
    struct in6_addr to[TT_PLACE_ADDRESSES + 2];
    int32_t port = 0;
    tt_place_find(&here);
    assert_true(here.host[0] && tt_place_same_host(&here, &here));
    int listener = tt_wire_listen(&port);
    assert_true(listener >= 0 && port > 0);
    int n = tt_place_candidates(&here, true, to), found = 0;
    for (int i = 0; i < n; i++) {
        int fd = tt_wire_connect(&to[i], port, 1);
        found += fd >= 0;
        if (fd >= 0) close(fd);
    }
    assert_true(found > 0);
    close(listener);
    assert_int_equal(tt_wire_connect(&to[0], port, 1), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recorder_remembers),
        cmocka_unit_test(readers_never_see_half_a_change),
        cmocka_unit_test(an_operation_has_its_timeout),
        cmocka_unit_test(who_waits_for_a_load_is_patient),
        cmocka_unit_test(the_limit_follows_the_rate),
        cmocka_unit_test(a_hang_names_the_missing),
        cmocka_unit_test(a_report_has_an_end),
        cmocka_unit_test(losses_and_stalls),
        cmocka_unit_test(words_arrive_whole),
        cmocka_unit_test(the_dead_are_noticed_while_speaking),
        cmocka_unit_test(strangers_are_not_believed),
        cmocka_unit_test(texts_of_others_end),
        cmocka_unit_test(connections_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
