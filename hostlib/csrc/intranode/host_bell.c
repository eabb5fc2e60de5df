// SPDX-License-Identifier: Apache-2.0
#include "intranode/host_bell.h"

#include "base/clock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { AT_ONCE = 16 };

// That at the other end of the socket. -1 where the kernel has none, or it has ended already, as its socket says.
static int open_process(int socket) {
#ifdef SYS_pidfd_open
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0)
        return (int)syscall(SYS_pidfd_open, peer.pid, 0);
#endif
    (void)socket;
    return -1;
}

// Events of the socket of number `index` say so, those of its process MAX_RANKS more.
static bool watch(const struct host *host, int descriptor, uint32_t number) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = number}};
    return epoll_ctl(host->poll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

bool host_bell_open(struct host *host) {
    if (host->memory.base == NULL)
        return true;
    if (!host_leads(host)) {
        host->processes[0] = open_process(host->sockets[0]);
        return true;
    }
    host->poll = epoll_create1(EPOLL_CLOEXEC);
    bool well = host->poll >= 0;
    for (uint32_t index = 1; well && index < host->memory.count; index++) {
        host->processes[index] = open_process(host->sockets[index]);
        well = watch(host, host->sockets[index], index) &&
               (host->processes[index] < 0 || watch(host, host->processes[index], MAX_RANKS + index));
    }
    return well;
}

int host_bell(const struct host *host) {
    return host_leads(host) ? host->poll : host->sockets[0];
}

int host_leaders_end(const struct host *host) {
    return host->processes[0];
}

void host_ring(struct host *host, uint32_t index) {
    const int socket = host->sockets[host_leads(host) ? index : 0];
    if (socket < 0 || !atomic_exchange(&host_rank(&host->memory, index)->resting, 0))
        return;
    const uint8_t byte = 0;
    const ssize_t sent = send(socket, &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent; // it fails where the other is gone, or has more to hear already
}

void host_ring_all(struct host *host) {
    for (uint32_t index = host_leads(host); index < (host_leads(host) ? host->memory.count : 1); index++)
        host_ring(host, index);
}

void host_rest(struct host *host) {
    if (host->memory.base != NULL)
        atomic_store(&host_rank(&host->memory, host->memory.index)->resting, 1);
}

// A process that was forked may keep what the descriptor is of, for which closing alone does not end its events.
static void let_go(struct host *host, int *descriptor) {
    if (*descriptor < 0)
        return;
    if (host->poll >= 0)
        epoll_ctl(host->poll, EPOLL_CTL_DEL, *descriptor, NULL);
    close(*descriptor);
    *descriptor = -1;
}

static void lose(struct host *host, uint32_t index) {
    let_go(host, &host->sockets[index]);
    let_go(host, &host->processes[index]);
    host->gone[index] = true;
    if (host->gone_at == 0)
        host->gone_at = clock_now();
}

void host_leader_ended(struct host *host) {
    lose(host, 0);
}

static void hear(struct host *host, uint32_t index) {
    uint8_t byte;
    ssize_t got;
    if (host->sockets[index] < 0)
        return;
    do
        got = recv(host->sockets[index], &byte, sizeof byte, MSG_DONTWAIT);
    while (got > 0);
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        lose(host, index);
}

void host_hear(struct host *host) {
    if (!host_leads(host)) {
        hear(host, 0);
        return;
    }
    struct epoll_event events[AT_ONCE];
    const int count = host->poll < 0 ? 0 : epoll_wait(host->poll, events, AT_ONCE, 0);
    for (int i = 0; i < count; i++)
        if (events[i].data.u32 < MAX_RANKS)
            hear(host, events[i].data.u32);
        else
            lose(host, events[i].data.u32 - MAX_RANKS);
}

void host_bell_close(struct host *host) {
    for (uint32_t index = 0; index < MAX_RANKS; index++) {
        if (host->sockets[index] >= 0)
            shutdown(host->sockets[index], SHUT_RDWR); // of processes that were forked, too
        let_go(host, &host->sockets[index]);
        let_go(host, &host->processes[index]);
    }
    if (host->poll >= 0)
        close(host->poll);
    host->poll = -1;
}
