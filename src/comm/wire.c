#include "comm/wire.h"

#include "base/checked.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* --- places -------------------------------------------------------------------------------------------------- */

static void read_boot(char *out, size_t size)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    out[0] = '\0';
    if (!f) return;
    if (!fgets(out, (int)size, f)) out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    fclose(f);
}

static void add_address(tt_place *p, const struct sockaddr *a)
{
    struct in6_addr *to = &p->addresses[p->num_addresses];
    if (p->num_addresses == TT_PLACE_ADDRESSES) return;
    if (a->sa_family == AF_INET) {
        memset(to, 0, sizeof *to);
        to->s6_addr[10] = to->s6_addr[11] = 0xff;
        memcpy(&to->s6_addr[12], &((const struct sockaddr_in *)(const void *)a)->sin_addr, 4);
    } else {
        *to = ((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(to)) return; /* means nothing without the interface of the other side */
    }
    p->num_addresses++;
}

void tt_place_find(tt_place *p)
{
    struct ifaddrs *list = NULL;
    *p = (tt_place){0};
    if (gethostname(p->host, sizeof p->host - 1) != 0) snprintf(p->host, sizeof p->host, "unknown");
    read_boot(p->boot, sizeof p->boot);
    if (getifaddrs(&list) != 0) return;
    /* IPv4 first: it is what clusters route. */
    static const int families[] = {AF_INET, AF_INET6};
    for (int i = 0; i < 2; i++)
        for (const struct ifaddrs *a = list; a; a = a->ifa_next)
            if (a->ifa_addr && a->ifa_addr->sa_family == families[i] && (a->ifa_flags & IFF_UP) &&
                !(a->ifa_flags & IFF_LOOPBACK))
                add_address(p, a->ifa_addr);
    freeifaddrs(list);
}

/* --- connections --------------------------------------------------------------------------------------------- */

static int open_socket(bool *only_v4)
{
    int off = 0, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    *only_v4 = fd < 0;
    if (fd < 0) return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    return fd;
}

int tt_wire_listen(int32_t *port)
{
    bool only_v4;
    int fd = open_socket(&only_v4);
    if (fd < 0) return -1;
    struct sockaddr_storage a = {.ss_family = only_v4 ? AF_INET : AF_INET6}; /* any address, any port */
    socklen_t size = only_v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    if (bind(fd, (struct sockaddr *)&a, size) != 0 || listen(fd, 4096) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) != 0) {
        close(fd);
        return -1;
    }
    *port = only_v4 ? ntohs(((struct sockaddr_in *)&a)->sin_port) : ntohs(((struct sockaddr_in6 *)&a)->sin6_port);
    return fd;
}

int tt_wire_connect(const struct in6_addr *to, int port, double seconds)
{
    bool only_v4;
    int fd = open_socket(&only_v4), error = 0, one = 1;
    socklen_t length = sizeof error;
    if (fd < 0) return -1;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = *to};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    memcpy(&four.sin_addr, &to->s6_addr[12], 4);
    const struct sockaddr *a = only_v4 ? (const struct sockaddr *)&four : (const struct sockaddr *)&six;
    int code = connect(fd, a, only_v4 ? sizeof four : sizeof six);
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    bool good = code == 0 || (errno == EINPROGRESS && poll(&p, 1, (int)(seconds * 1000)) == 1 &&
                              getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
    if (good) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return fd;
    }
    close(fd);
    return -1;
}

int tt_place_candidates(const tt_place *p, bool same_host, struct in6_addr out[TT_PLACE_ADDRESSES + 2])
{
    int n = 0;
    if (same_host) {
        out[n++] = (struct in6_addr){{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}}};
        out[n++] = (struct in6_addr){{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}};
    }
    for (int i = 0; i < p->num_addresses; i++) out[n++] = p->addresses[i];
    return n;
}

void tt_wire_close(tt_wire *w)
{
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
}

/* --- words --------------------------------------------------------------------------------------------------- */

/* Texts are long and rare. */
static size_t word_bytes(int32_t kind)
{
    return kind == TT_WORD_FAILED ? sizeof(tt_word) : offsetof(tt_word, text);
}

bool tt_wire_flush(tt_wire *w)
{
    while (w->fd >= 0 && w->kept_at < w->kept) {
        ssize_t n = send(w->fd, w->out + w->kept_at, w->kept - w->kept_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
        /* The other process is gone. Closing now would lose its last words, and the end that receive is to see. */
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            w->kept = w->kept_at = 0;
            return true;
        }
        if (n < 0) return false;
        w->kept_at += (size_t)n;
    }
    return w->fd >= 0;
}

bool tt_wire_send(tt_wire *w, const tt_word *word)
{
    if (!tt_wire_flush(w)) return false;
    if (w->kept_at < w->kept && word->kind == TT_WORD_BEAT) return true;
    /* A word that matters follows the one under way, of which at most the rest is kept. */
    for (int i = 0; i < 100 && w->kept_at < w->kept; i++) {
        struct pollfd p = {.fd = w->fd, .events = POLLOUT};
        poll(&p, 1, 10);
        if (!tt_wire_flush(w)) return false;
    }
    if (w->kept_at < w->kept) return true;
    w->kept = word_bytes(word->kind), w->kept_at = 0;
    memcpy(w->out, word, w->kept);
    return tt_wire_flush(w);
}

static bool believable(const tt_wire *w, const uint64_t key[2], int size)
{
    tt_word head;
    memcpy(&head, w->in, offsetof(tt_word, record));
    return head.key[0] == key[0] && head.key[1] == key[1] && head.kind >= TT_WORD_BEAT && head.kind <= TT_WORD_LEAVE &&
           head.from >= 0 && head.from < size && head.about >= 0 && head.about < size &&
           (w->rank < 0 || w->rank == head.from);
}

tt_wire_event tt_wire_receive(tt_wire *w, const uint64_t key[2], int size, tt_word *word)
{
    const size_t head = offsetof(tt_word, record);
    while (w->fd >= 0) {
        size_t want = head;
        if (w->have >= head) {
            if (!believable(w, key, size)) return TT_WIRE_BROKEN;
            int32_t kind;
            memcpy(&kind, w->in + offsetof(tt_word, kind), sizeof kind);
            want = word_bytes(kind);
        }
        if (w->have == want) {
            memset(word, 0, sizeof *word);
            memcpy(word, w->in, want);
            word->text[TT_WORD_TEXT - 1] = '\0';
            tt_record_close_names(&word->record);
            w->have = 0;
            w->rank = word->from;
            return TT_WIRE_WORD;
        }
        ssize_t n = recv(w->fd, w->in + w->have, want - w->have, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return TT_WIRE_NOTHING;
        if (n == 0 || (n < 0 && errno == ECONNRESET)) return TT_WIRE_CLOSED;
        if (n < 0) return TT_WIRE_BROKEN;
        w->have += (size_t)n;
    }
    return TT_WIRE_NOTHING;
}
