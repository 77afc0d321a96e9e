#include "comm/watchdog.h"

#include "base/checked.h"
#include "comm/report.h"
#include "comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_SECONDS     2.0  /* for each address */
#define MEET_SECONDS        20.0
#define CONSEQUENCE_SECONDS 2.0  /* a cause is looked for so long */
#define AWAKE_SECONDS       3.0
#define ALONE_SECONDS       5.0  /* a failing rank waits so long for the collector */
#define DRAIN_SECONDS       1.0  /* for the last words to arrive */
#define REPORT_BYTES        8192

enum { COLLECTOR, DEPUTY, NUM_COLLECTORS };

/* What this rank knows of another. */
typedef struct peer {
    tt_rank_report report;
    double heard;        /* when, by our clock; 0: never */
    double moved_at;     /* its transfer moved last, as far as we saw */
    int64_t moved;
    tt_recorder *mapped; /* of this host, else NULL */
    bool goodbye, lost;
} peer;

/* A rank's failure that has been told and is to be reported at `due`. */
typedef struct verdict {
    bool there, consequence;
    double due;
    int status;
    char text[REPORT_BYTES];
} verdict;

struct tt_watchdog {
    int rank, size;
    tt_recorder *own;
    tt_place *places; /* [size] */
    peer *peers;      /* [size] */
    uint64_t key[2];
    pthread_t thread;
    int wake[2]; /* a pipe: signal handlers may write to it */
    int listener;
    tt_wire *up[NUM_COLLECTORS]; /* to the collectors; NULL: is this rank, or there is none */
    tt_wire **members;           /* connections to us */
    int num_members;
    double beat_at;       /* the last one */
    double awake_since;   /* this process did not run before: its clocks start there; 0: it always did */
    double moved_at;      /* when a rank was last seen to move bytes of files */
    double overdue_since; /* something is, and has not been reported; 0: nothing is */
    double lost_since;
    double gave_up;       /* when a failing rank reports for itself; 0: does not fail */
    verdict verdict;
    tt_word word;         /* room for the one at hand */
    /* Set by the main thread or a signal handler, read after a byte on `wake`. */
    _Atomic bool stop, failing, changed;
    _Atomic bool connected; /* has tried to */
    _Atomic int crash; /* signal */
    _Atomic bool crash_told;
    int fail_status;
    bool fail_consequence;
    char fail_text[TT_WORD_TEXT];
};

/* Signal handlers and broken invariants know no rank. One world of processes exists at a time. */
static _Atomic(tt_watchdog *) of_process;

/* --- leaving ------------------------------------------------------------------------------------------------- */

static void say(const char *what, const char *text)
{
    char line[REPORT_BYTES + 64];
    int n = snprintf(line, sizeof line, "tartan: %s%s\n", what, text);
    size_t bytes = (size_t)tt_min_i64(n, (int64_t)sizeof line - 1);
    for (size_t at = 0; at < bytes;) {
        ssize_t done = write(STDERR_FILENO, line + at, bytes - at);
        if (done <= 0 && errno != EINTR) return;
        if (done > 0) at += (size_t)done;
    }
}

static void leave(tt_watchdog *w, int status)
{
    atomic_store(&w->own->left, true);
    /* A crash ends as the crash that it is, for the sake of a core file. */
    if (atomic_load(&w->crash)) {
        atomic_store(&w->crash_told, true);
        for (;;) pause();
    }
    _exit(status);
}

static void start_word(const tt_watchdog *w, tt_word *word, tt_word_kind kind, int about)
{
    memset(word, 0, sizeof *word);
    word->key[0] = w->key[0], word->key[1] = w->key[1];
    word->kind = kind;
    word->from = w->rank;
    word->about = about;
}

static void send_to_all(tt_watchdog *w, tt_word *word)
{
    for (int i = 0; i < w->num_members; i++)
        if (w->members[i]->rank >= 0 && !tt_wire_send(w->members[i], word)) tt_wire_close(w->members[i]);
    for (int i = 0; i < NUM_COLLECTORS; i++)
        if (w->up[i] && !tt_wire_send(w->up[i], word)) tt_wire_close(w->up[i]);
}

/* Wait until the others have closed their ends, reading what they still send: closing first could take the last word
 * away from them. */
static void drain(tt_watchdog *w)
{
    double end = tt_seconds() + DRAIN_SECONDS;
    for (int open = 1; open > 0 && tt_seconds() < end;) {
        open = 0;
        for (int i = 0; i < w->num_members; i++) {
            tt_wire *m = w->members[i];
            tt_wire_event e = TT_WIRE_WORD;
            if (m->fd < 0) continue;
            tt_wire_flush(m);
            if (m->kept_at == m->kept) shutdown(m->fd, SHUT_WR);
            while (e == TT_WIRE_WORD) e = tt_wire_receive(m, w->key, w->size, &w->word);
            if (e == TT_WIRE_NOTHING) open++;
            else tt_wire_close(m);
        }
        if (open > 0) usleep(5000);
    }
}

/* One report, and the end of all ranks. */
static void conclude(tt_watchdog *w, int status, const char *text)
{
    say("error: ", text);
    start_word(w, &w->word, TT_WORD_LEAVE, w->rank);
    w->word.status = status;
    send_to_all(w, &w->word);
    drain(w);
    leave(w, status);
}

/* --- who is there -------------------------------------------------------------------------------------------- */

static double beat_seconds(const tt_watchdog *w)
{
    double timeout = w->peers[w->rank].report.record.timeout;
    return timeout > 0 ? fmin(fmax(timeout / 10, 0.1), 5) : 5;
}

static bool same_host(const tt_watchdog *w, int rank)
{
    return tt_place_same_host(&w->places[w->rank], &w->places[rank]);
}

/* 'T', 't' stopped; 'Z', 'X', 0 gone. */
static char process_state(int pid)
{
    char path[64], line[256], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fgets(line, sizeof line, f)) {
        const char *end = strrchr(line, ')'); /* the program's name may hold anything */
        if (end && end[1] == ' ') state = end[2];
    }
    fclose(f);
    return state;
}

static tt_rank_state state_of(int pid)
{
    char s = process_state(pid);
    return s == 'T' || s == 't' ? TT_RANK_STOPPED : s == 0 || s == 'Z' || s == 'X' ? TT_RANK_LOST : TT_RANK_RUNS;
}

/* A record as it lies in memory of this host. */
static void look(peer *p)
{
    tt_rank_report *r = &p->report;
    tt_recorder_read(p->mapped, &r->record);
    r->known = true;
    r->clock = tt_seconds();
    r->moved = atomic_load(&p->mapped->moved);
    p->heard = r->clock;
}

static double alive(const peer *p)
{
    return 1e-3 * (double)atomic_load(&p->mapped->alive);
}

/* Of the ranks of this host whose watchdogs run, the lowest. Only collectors see the links of others close: whether a rank that
 * has just beaten still exists the system tells. One that its watchdog has ended has spoken for those above it. */
static bool speaks_for_host(const tt_watchdog *w)
{
    double now = tt_seconds(), patience = 3 * beat_seconds(w);
    for (int r = 0; r < w->rank; r++) {
        const peer *p = &w->peers[r];
        bool beats = p->mapped && !p->lost && now - alive(p) < patience;
        if (beats && (state_of(p->report.record.pid) != TT_RANK_LOST || atomic_load(&p->mapped->left))) return false;
    }
    return true;
}

static void note_movement(peer *p)
{
    double now = tt_seconds();
    if (!p->report.record.moving || p->report.moved != p->moved || p->moved_at == 0) p->moved_at = now;
    p->moved = p->report.moved;
}

/* Everything of this host from memory; the rest as it was told. */
static void refresh(tt_watchdog *w)
{
    double now = tt_seconds(), patience = 3 * beat_seconds(w);
    for (int r = 0; r < w->size; r++) {
        peer *p = &w->peers[r];
        if (p->mapped) {
            look(p); /* of a process that is gone too: its memory is still ours */
            bool lives = r == w->rank || now - alive(p) < patience;
            p->report.state = p->lost ? TT_RANK_LOST : lives ? TT_RANK_RUNS : state_of(p->report.record.pid);
        } else if (p->report.known && !p->lost && p->report.state == TT_RANK_RUNS && now - p->heard > patience) {
            p->report.state = TT_RANK_SILENT;
        }
        p->report.age = p->report.known ? now - p->heard : 0;
        note_movement(p);
    }
}

/* --- beats --------------------------------------------------------------------------------------------------- */

static void fill_record(const tt_watchdog *w, tt_word *word, int about)
{
    const tt_rank_report *r = &w->peers[about].report;
    word->record = r->record;
    word->clock = r->clock;
    word->moved = r->moved;
    word->state = (int32_t)r->state;
}

static void beat(tt_watchdog *w)
{
    double now = tt_seconds();
    /* Stopped and woken, alone or with all others: what has waited meanwhile may still come. */
    if (w->beat_at != 0 && now - w->beat_at > 3 * beat_seconds(w) + 1) w->awake_since = now;
    w->beat_at = now;
    atomic_store(&w->own->alive, (int64_t)(now * 1e3));
    refresh(w);
    start_word(w, &w->word, TT_WORD_BEAT, w->rank);
    fill_record(w, &w->word, w->rank);
    send_to_all(w, &w->word);
    if (!speaks_for_host(w)) return;
    for (int r = 0; r < w->size; r++) {
        if (r == w->rank || !w->peers[r].mapped || w->peers[r].report.state == TT_RANK_RUNS) continue;
        start_word(w, &w->word, TT_WORD_BEAT, r);
        fill_record(w, &w->word, r);
        send_to_all(w, &w->word);
    }
}

/* --- judgement ----------------------------------------------------------------------------------------------- */

/* Whether this rank is the one to speak: the collector; while it is not to be heard the deputy; and without both the lowest
 * rank of each host. The others of that host then leave in silence. */
typedef enum duty { SPEAKS, LISTENS, LEAVES } duty;

static bool heard_of(const tt_watchdog *w, int rank)
{
    const peer *p = &w->peers[rank];
    return rank < w->size && p->report.known && !p->lost && p->report.state == TT_RANK_RUNS;
}

static duty duty_of(const tt_watchdog *w)
{
    if (w->rank == COLLECTOR) return SPEAKS;
    if (heard_of(w, COLLECTOR)) return LISTENS;
    if (w->rank == DEPUTY) return SPEAKS;
    if (heard_of(w, DEPUTY)) return LISTENS;
    return speaks_for_host(w) ? SPEAKS : LEAVES;
}

static void judge_overdue(tt_watchdog *w)
{
    char text[REPORT_BYTES];
    bool transfer;
    double now = tt_seconds();
    tt_rank_report *ranks = malloc((size_t)w->size * sizeof *ranks);
    double *stalled = malloc((size_t)w->size * sizeof *stalled);
    int who = -1;
    for (int r = 0; ranks && stalled && r < w->size; r++) {
        ranks[r] = w->peers[r].report;
        /* Of what ranks out of sight do we judge nothing: they may have gone on. */
        if (ranks[r].state == TT_RANK_SILENT) ranks[r].record.waiting = ranks[r].record.moving = false;
        stalled[r] = now - fmax(w->peers[r].moved_at, w->awake_since);
        if (ranks[r].known && ranks[r].record.moving) w->moved_at = now;
    }
    if (ranks && stalled) who = tt_report_find_overdue(ranks, stalled, w->size, now - fmax(w->moved_at, w->awake_since), &transfer);
    if (who < 0) w->overdue_since = 0;
    else if (w->overdue_since == 0) w->overdue_since = now;
    duty d = duty_of(w);
    if (who >= 0 && d != LISTENS) {
        for (int r = 0; r < w->size; r++) ranks[r] = w->peers[r].report;
        if (transfer) tt_report_stall(ranks, who, stalled[who], text, sizeof text);
        else tt_report_hang(ranks, w->size, who, text, sizeof text);
        if (d == SPEAKS) conclude(w, tt_status_exit(TT_ECOMM), text);
        if (now - w->overdue_since > ALONE_SECONDS) leave(w, tt_status_exit(TT_ECOMM));
    }
    free(ranks);
    free(stalled);
}

/* The lowest rank that has ended without a word. */
static void judge_lost(tt_watchdog *w)
{
    char text[REPORT_BYTES];
    int who = 0;
    while (who < w->size && !w->peers[who].lost) who++;
    if (who == w->size) return;
    double now = tt_seconds();
    if (w->lost_since == 0) w->lost_since = now;
    duty d = duty_of(w);
    if (d == LEAVES && now - w->lost_since > ALONE_SECONDS) leave(w, tt_status_exit(TT_ECOMM));
    if (d != SPEAKS) return;
    refresh(w);
    tt_rank_report *ranks = malloc((size_t)w->size * sizeof *ranks);
    for (int r = 0; ranks && r < w->size; r++) ranks[r] = w->peers[r].report;
    if (ranks) tt_report_lost(ranks, who, text, sizeof text);
    else snprintf(text, sizeof text, "rank %d has ended without a word", who);
    free(ranks);
    conclude(w, tt_status_exit(TT_ECOMM), text);
}

static void judge(tt_watchdog *w)
{
    double now = tt_seconds();
    /* The launcher wakes stopped processes to end them, when another rank has reported already. */
    if (w->awake_since != 0 && now - w->awake_since < AWAKE_SECONDS) return;
    /* A cause goes before its consequence. */
    if (w->verdict.there && !w->verdict.consequence && now >= w->verdict.due) conclude(w, w->verdict.status, w->verdict.text);
    judge_lost(w);
    if (w->verdict.there && now >= w->verdict.due) conclude(w, w->verdict.status, w->verdict.text);
    judge_overdue(w);
    if (w->gave_up != 0 && now >= w->gave_up) conclude(w, w->fail_status, w->verdict.text);
}

/* A failure of `rank`: what a collector will report unless a better reason comes. */
static void hear_failure(tt_watchdog *w, int rank, int status, bool consequence, const char *cause)
{
    if (w->verdict.there && (consequence || !w->verdict.consequence)) return;
    if (w->peers[rank].mapped) look(&w->peers[rank]);
    size_t n = tt_report_where(&w->peers[rank].report, rank, w->verdict.text, sizeof w->verdict.text);
    snprintf(w->verdict.text + n, sizeof w->verdict.text - n, ": %s", cause);
    w->verdict.status = status;
    w->verdict.consequence = consequence;
    if (w->rank >= NUM_COLLECTORS) return;
    w->verdict.there = true;
    w->verdict.due = tt_seconds() + (consequence ? CONSEQUENCE_SECONDS : 0) +
                     (duty_of(w) == SPEAKS ? 0 : CONSEQUENCE_SECONDS);
}

/* --- requests of this rank ----------------------------------------------------------------------------------- */

/* The name of a signal, without strsignal's locks. */
static const char *signal_text(int signal)
{
    switch (signal) {
    case SIGSEGV: return "crashed: segmentation fault";
    case SIGBUS: return "crashed: bus error (a mapped file may have been cut, or memory is damaged)";
    case SIGFPE: return "crashed: arithmetic error";
    case SIGILL: return "crashed: illegal instruction (built for another processor?)";
    default: return "aborted";
    }
}

static void tell_failure(tt_watchdog *w)
{
    int crash = atomic_load(&w->crash);
    if (w->gave_up != 0) return;
    if (crash) {
        w->fail_status = 128 + crash;
        snprintf(w->fail_text, sizeof w->fail_text, "%s", signal_text(crash));
    }
    w->gave_up = tt_seconds() + ALONE_SECONDS;
    refresh(w);
    start_word(w, &w->word, TT_WORD_FAILED, w->rank);
    fill_record(w, &w->word, w->rank);
    w->word.status = w->fail_status;
    w->word.consequence = w->fail_consequence;
    snprintf(w->word.text, sizeof w->word.text, "%s", w->fail_text);
    for (int i = 0; i < NUM_COLLECTORS; i++)
        if (w->up[i] && !tt_wire_send(w->up[i], &w->word)) tt_wire_close(w->up[i]);
    hear_failure(w, w->rank, w->fail_status, w->fail_consequence, w->fail_text);
}

/* --- words of others ----------------------------------------------------------------------------------------- */

static void hear(tt_watchdog *w, tt_wire *from, const tt_word *word, bool first)
{
    peer *p = &w->peers[word->about];
    switch (word->kind) {
    case TT_WORD_LEAVE:
        leave(w, word->status);
        return;
    case TT_WORD_GOODBYE:
        w->peers[word->from].goodbye = true;
        return;
    default:
        if (!p->mapped) {
            p->report.known = true;
            p->report.record = word->record;
            p->report.clock = word->clock;
            p->report.moved = word->moved;
            p->report.state = word->from != word->about && word->state <= TT_RANK_LOST ? (tt_rank_state)word->state : TT_RANK_RUNS;
            p->heard = tt_seconds();
            note_movement(p);
        }
        if (word->kind == TT_WORD_FAILED) hear_failure(w, word->from, word->status, word->consequence, word->text);
        if (!first) return;
        /* An answer, so that the other side knows whom it has reached. */
        start_word(w, &w->word, TT_WORD_BEAT, w->rank);
        fill_record(w, &w->word, w->rank);
        tt_wire_send(from, &w->word);
    }
}

static void listen_to(tt_watchdog *w, tt_wire *wire, bool member)
{
    tt_wire_event e;
    for (;;) {
        bool first = member && wire->rank < 0;
        e = tt_wire_receive(wire, w->key, w->size, &w->word);
        if (e != TT_WIRE_WORD) break;
        tt_word word = w->word;
        hear(w, wire, &word, first);
    }
    if (e == TT_WIRE_NOTHING) return;
    if (e == TT_WIRE_CLOSED && wire->rank >= 0 && !w->peers[wire->rank].goodbye) w->peers[wire->rank].lost = true;
    tt_wire_close(wire);
}

/* --- connections --------------------------------------------------------------------------------------------- */

static tt_wire *new_wire(int fd)
{
    tt_wire *wire = calloc(1, sizeof *wire);
    if (!wire) {
        close(fd);
        return NULL;
    }
    wire->fd = fd;
    wire->rank = -1;
    return wire;
}

static void free_wire(tt_wire **wire)
{
    if (*wire) tt_wire_close(*wire);
    free(*wire);
    *wire = NULL;
}

static void drop_closed(tt_watchdog *w)
{
    int n = 0;
    for (int i = 0; i < w->num_members; i++)
        if (w->members[i]->fd < 0) free_wire(&w->members[i]);
        else w->members[n++] = w->members[i];
    w->num_members = n;
}

static void accept_members(tt_watchdog *w)
{
    for (;;) {
        int fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) return;
        /* Strangers may knock, but cannot use up more than this. */
        if (w->num_members >= 2 * w->size + 16) {
            close(fd);
            continue;
        }
        tt_wire *wire = new_wire(fd);
        if (wire) w->members[w->num_members++] = wire;
    }
}

static bool answered(tt_watchdog *w, tt_wire *wire)
{
    struct pollfd p = {.fd = wire->fd, .events = POLLIN};
    start_word(w, &w->word, TT_WORD_BEAT, w->rank);
    fill_record(w, &w->word, w->rank);
    if (!tt_wire_send(wire, &w->word)) return false;
    double end = tt_seconds() + CONNECT_SECONDS;
    while (wire->rank < 0 && tt_seconds() < end && poll(&p, 1, 100) >= 0) {
        tt_wire_event e = tt_wire_receive(wire, w->key, w->size, &w->word);
        if (e == TT_WIRE_WORD) {
            tt_word word = w->word;
            hear(w, wire, &word, false);
        } else if (e != TT_WIRE_NOTHING) {
            return false;
        }
    }
    return wire->rank >= 0;
}

static void connect_up(tt_watchdog *w, int collector)
{
    struct in6_addr to[TT_PLACE_ADDRESSES + 2];
    const tt_place *place = &w->places[collector];
    int n = place->port ? tt_place_candidates(place, same_host(w, collector), to) : 0;
    for (int i = 0; i < n && !w->up[collector]; i++) {
        int fd = tt_wire_connect(&to[i], place->port, CONNECT_SECONDS);
        tt_wire *wire = fd < 0 ? NULL : new_wire(fd);
        if (wire && !answered(w, wire)) free_wire(&wire);
        w->up[collector] = wire;
    }
    if (w->up[collector] || !speaks_for_host(w)) return;
    char text[256];
    snprintf(text, sizeof text,
             "rank %d (host %s) cannot reach rank %d (host %s) over TCP: if they lose each other, each host reports alone",
             w->rank, w->places[w->rank].host, collector, place->host);
    say("warning: ", text);
}

/* --- the thread ---------------------------------------------------------------------------------------------- */

static void wait_for_news(tt_watchdog *w, struct pollfd *fds, double seconds)
{
    int n = 0;
    fds[n++] = (struct pollfd){.fd = w->wake[0], .events = POLLIN};
    fds[n++] = (struct pollfd){.fd = w->listener, .events = POLLIN};
    for (int i = 0; i < NUM_COLLECTORS; i++) fds[n++] = (struct pollfd){.fd = w->up[i] ? w->up[i]->fd : -1, .events = POLLIN};
    for (int i = 0; i < w->num_members; i++) fds[n++] = (struct pollfd){.fd = w->members[i]->fd, .events = POLLIN};
    poll(fds, (nfds_t)n, (int)(seconds * 1000) + 1);
}

static void read_news(tt_watchdog *w)
{
    char bytes[64];
    while (read(w->wake[0], bytes, sizeof bytes) > 0) continue;
    if (w->listener >= 0) accept_members(w);
    for (int i = 0; i < NUM_COLLECTORS; i++)
        if (w->up[i]) listen_to(w, w->up[i], false);
    for (int i = 0; i < w->num_members; i++) listen_to(w, w->members[i], true);
    drop_closed(w);
}

static void *run(void *arg)
{
    tt_watchdog *w = arg;
    struct pollfd *fds = malloc((size_t)(2 * w->size + 16 + 2 + NUM_COLLECTORS) * sizeof *fds);
    if (!fds) {
        say("warning: ", "no memory for the watchdog");
        return NULL;
    }
    refresh(w);
    atomic_store(&w->own->alive, (int64_t)(tt_seconds() * 1e3));
    for (int c = 0; c < NUM_COLLECTORS && c < w->rank; c++) connect_up(w, c);
    atomic_store(&w->connected, true);
    for (double next = 0; !atomic_load(&w->stop);) {
        double now = tt_seconds();
        bool urgent = w->verdict.there || w->lost_since != 0 || w->gave_up != 0;
        if (now >= next || atomic_exchange(&w->changed, false)) {
            beat(w);
            next = now + beat_seconds(w);
        }
        if (atomic_load(&w->failing) || atomic_load(&w->crash)) tell_failure(w);
        judge(w);
        wait_for_news(w, fds, urgent ? 0.05 : fmax(next - tt_seconds(), 0));
        read_news(w);
    }
    start_word(w, &w->word, TT_WORD_GOODBYE, w->rank);
    send_to_all(w, &w->word);
    drain(w);
    free(fds);
    return NULL;
}

/* --- requests of the main thread ----------------------------------------------------------------------------- */

static void wake(tt_watchdog *w)
{
    ssize_t n = write(w->wake[1], "", 1);
    (void)n; /* a full pipe wakes as well */
}

void tt_watchdog_timeout_changed(tt_watchdog *w)
{
    atomic_store(&w->changed, true);
    wake(w);
}

void tt_watchdog_fail(tt_watchdog *w, int exit_status, const char *text, bool consequence)
{
    w->fail_status = exit_status ? exit_status : 1;
    w->fail_consequence = consequence;
    snprintf(w->fail_text, sizeof w->fail_text, "%s", text);
    atomic_store(&w->failing, true);
    wake(w);
    /* The thread ends the process before that. */
    for (double end = tt_seconds() + 2 * ALONE_SECONDS; tt_seconds() < end;) usleep(10000);
}

static void on_crash(int signal_number)
{
    tt_watchdog *w = atomic_load(&of_process);
    int none = 0;
    signal(signal_number, SIG_DFL);
    if (w && atomic_compare_exchange_strong(&w->crash, &none, signal_number)) {
        wake(w);
        for (int i = 0; i < 1000 && !atomic_load(&w->crash_told); i++) nanosleep(&(struct timespec){0, 10 * 1000 * 1000}, NULL);
    }
    raise(signal_number);
}

void tt_watchdog_catch_crashes(tt_watchdog *w)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    static unsigned char stack[64 * 1024]; /* a stack that overflowed cannot run a handler */
    (void)w;
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    struct sigaction a = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &a, NULL);
}

static void on_broken_invariant(const char *text)
{
    tt_watchdog *w = atomic_load(&of_process);
    if (w) tt_watchdog_fail(w, 1, text, false);
}

/* --- life ---------------------------------------------------------------------------------------------------- */

static void destroy(tt_watchdog **watchdog)
{
    tt_watchdog *w = *watchdog;
    *watchdog = NULL;
    if (!w) return;
    for (int i = 0; i < w->num_members; i++) free_wire(&w->members[i]);
    for (int i = 0; i < NUM_COLLECTORS; i++) free_wire(&w->up[i]);
    for (int r = 0; w->peers && r < w->size; r++)
        if (r != w->rank) tt_recorder_close(&w->peers[r].mapped);
    if (w->listener >= 0) close(w->listener);
    for (int i = 0; i < 2; i++)
        if (w->wake[i] >= 0) close(w->wake[i]);
    free(w->members);
    free(w->peers);
    free(w->places);
    free(w);
}

/* Places of all ranks, and the recorders of those that share this host. */
static tt_status meet(tt_comm *comm, const char *path, tt_watchdog *w)
{
    tt_place *mine = &w->places[w->rank];
    tt_place_find(mine);
    snprintf(mine->recorder, sizeof mine->recorder, "%s", path);
    if (w->rank < NUM_COLLECTORS) w->listener = tt_wire_listen(&mine->port);
    if (w->rank == 0 && getrandom(mine->key, sizeof mine->key, 0) != sizeof mine->key)
        mine->key[0] = (uint64_t)getpid() << 32 ^ (uint64_t)(tt_seconds() * 1e9);
    tt_status status = tt_allgather(tt_comm_world(comm), "meet", mine, w->places, sizeof *mine);
    for (int r = 0; status == TT_OK && r < w->size; r++) {
        if (r == w->rank || !w->places[r].recorder[0] || !same_host(w, r)) continue;
        w->places[r].recorder[sizeof w->places[r].recorder - 1] = '\0';
        w->peers[r].mapped = tt_recorder_map(w->places[r].recorder);
    }
    if (status == TT_OK) status = tt_barrier(tt_comm_world(comm), "meet");
    memcpy(w->key, w->places[0].key, sizeof w->key);
    return status;
}

static tt_status start_thread(tt_watchdog *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the program's own threads */
    int code = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    TT_CHECK(code == 0, TT_ENOMEM, "the system refuses a thread for the watchdog: %s", strerror(code));
    return TT_OK;
}

tt_status tt_watchdog_start(tt_comm *comm, const char *path, tt_watchdog **out)
{
    tt_status status;
    int size = comm->link.size;
    *out = NULL;
    tt_watchdog *w = size > 1 ? calloc(1, sizeof *w) : NULL;
    if (size == 1) return TT_OK;
    TT_CHECK(w, TT_ENOMEM, "no memory for the watchdog");
    w->rank = comm->link.rank, w->size = size;
    w->own = comm->link.recorder;
    w->listener = w->wake[0] = w->wake[1] = -1;
    w->places = calloc((size_t)size, sizeof *w->places);
    w->peers = calloc((size_t)size, sizeof *w->peers);
    w->members = calloc((size_t)size * 2 + 16, sizeof *w->members);
    if (!w->places || !w->peers || !w->members) TT_GO(tt_error_set(TT_ENOMEM, "no memory for the watchdog"));
    w->peers[w->rank].mapped = w->own;
    if (pipe2(w->wake, O_CLOEXEC | O_NONBLOCK) != 0) TT_GO(tt_error_set(TT_EIO, "no pipe for the watchdog: %s", strerror(errno)));
    TT_GO(meet(comm, path, w));
    TT_GO(start_thread(w));
    /* Nobody goes on, and perhaps fails, before all can be told. Where addresses do not answer this ends as well. */
    double end = tt_seconds() + MEET_SECONDS;
    while (!atomic_load(&w->connected) && tt_seconds() < end) usleep(200);
    atomic_store(&of_process, w);
    tt_set_abort_hook(on_broken_invariant);
    *out = w;
    return tt_barrier(tt_comm_world(comm), "meet");
fail:
    destroy(&w);
    return status;
}

void tt_watchdog_stop(tt_watchdog **watchdog)
{
    tt_watchdog *w = *watchdog;
    if (!w) return;
    tt_set_abort_hook(NULL);
    atomic_store(&of_process, NULL);
    atomic_store(&w->stop, true);
    wake(w);
    pthread_join(w->thread, NULL);
    destroy(watchdog);
}
