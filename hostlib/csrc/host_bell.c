// SPDX-License-Identifier: Apache-2.0
#include "host_bell.h"

#include "clock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { AT_ONCE = 16 };

bool host_bell_open(struct host *host) {
    if (!host_leads(host) || host->memory.base == NULL)
        return true;
    host->poll = epoll_create1(EPOLL_CLOEXEC);
    bool well = host->poll >= 0;
    for (uint32_t index = 1; well && index < host->memory.count; index++) {
        struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = index}};
        well = epoll_ctl(host->poll, EPOLL_CTL_ADD, host->sockets[index], &event) == 0;
    }
    return well;
}

int host_bell(const struct host *host) {
    return host_leads(host) ? host->poll : host->sockets[0];
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

static void hear(struct host *host, uint32_t index) {
    uint8_t byte;
    ssize_t got;
    do
        got = recv(host->sockets[index], &byte, sizeof byte, MSG_DONTWAIT);
    while (got > 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    close(host->sockets[index]);
    host->sockets[index] = -1;
    host->gone[index] = true;
    if (host->gone_at == 0)
        host->gone_at = clock_now();
}

void host_hear(struct host *host) {
    if (!host_leads(host)) {
        if (host->sockets[0] >= 0)
            hear(host, 0);
        return;
    }
    struct epoll_event events[AT_ONCE];
    const int count = host->poll < 0 ? 0 : epoll_wait(host->poll, events, AT_ONCE, 0);
    for (int i = 0; i < count; i++)
        if (host->sockets[events[i].data.u32] >= 0)
            hear(host, events[i].data.u32);
}
