// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "intranode/wakeup.h"
#include "shm/rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

// Numbers of epoll events: a rank's index for its connection, MAX_HOST_RANKS more for its process, and OWN_SOCKET for
// this rank's socket.
enum { EVENTS_AT_ONCE = 16, OWN_SOCKET = 2 * MAX_HOST_RANKS };
enum { DATAGRAM_BYTES = 1024 }; // more than the kernel accounts for a datagram that was not read yet: 768 to 896

// Opens a pidfd of the process at the other end of the socket. Returns -1 if the kernel has no pidfds, or if the
// process has ended already, as its socket then says.
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

static bool watch(const struct intranode *node, int descriptor, uint32_t number) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.u32 = number}};
    return descriptor < 0 || epoll_ctl(node->poll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

// Makes room for a datagram to each other rank. A wakeup that cannot be sent is lost, and the default has room for as
// few as 237. If the kernel's limit is lower, some wakeups may still be lost.
static void enlarge_send_buffer(int socket) {
    const int bytes = MAX_HOST_RANKS * DATAGRAM_BYTES;
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

bool wakeup_open(struct intranode *node, const char *rendezvous) {
    // The names differ from those of the rendezvous, because some kernels share names between sockets of all types.
    snprintf(node->name, sizeof node->name, "%s wakeup", rendezvous);
    struct sockaddr_un own;
    const socklen_t length = rendezvous_address(node->name, node->segment.index, &own);
    node->poll = epoll_create1(EPOLL_CLOEXEC);
    node->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enlarge_send_buffer(node->socket);
    bool well = node->poll >= 0 && node->socket >= 0 &&
                bind(node->socket, (const struct sockaddr *)&own, length) == 0 && watch(node, node->socket, OWN_SOCKET);
    for (uint32_t index = 0; well && index < node->segment.count; index++)
        if (node->segment.connections[index] >= 0) {
            node->processes[index] = open_process(node->segment.connections[index]);
            well = watch(node, node->segment.connections[index], index) &&
                   watch(node, node->processes[index], MAX_HOST_RANKS + index);
        }
    return well;
}

static void notify(const struct intranode *node, uint32_t index) {
    struct sockaddr_un address;
    const socklen_t length = rendezvous_address(node->name, index, &address);
    const uint8_t byte = 0;
    const ssize_t sent = sendto(node->socket, &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL,
                                (const struct sockaddr *)&address, length);
    (void)sent; // it fails if the other rank has ended, or has notifications to read already
}

void wakeup_rank(const struct intranode *node, uint32_t index) {
    _Atomic uint32_t *sleeping = &segment_rank(&node->segment, index)->sleeping;
    if (atomic_load(sleeping) && atomic_exchange(sleeping, 0))
        notify(node, index);
}

void wakeup_broadcast(const struct intranode *node) {
    for (uint32_t index = 0; node->segment.base != NULL && index < node->segment.count; index++)
        if (index != node->segment.index)
            notify(node, index);
}

void wakeup_all(const struct intranode *node) {
    for (uint32_t index = 0; node->segment.base != NULL && index < node->segment.count; index++)
        if (index != node->segment.index)
            wakeup_rank(node, index);
}

struct wait_set wakeup_announce_sleep(struct intranode *node, double limit) {
    const p4reduce_engine *engine = node->engine;
    struct wait_set set = {
        .descriptors = {{.fd = engine->wake, .events = POLLIN}, {.fd = node->poll, .events = POLLIN}, {.fd = -1}},
        .deadline = limit,
    };
    if (engine->oldest != NULL)
        set.deadline = fmin(limit, fmin(engine->oldest_since + engine->oldest->timeout, intranode_gone_due(node)));
    node->has_slept = true;
    if (node->segment.base != NULL)
        atomic_store(&segment_rank(&node->segment, node->segment.index)->sleeping, 1);
    return set;
}

// Closes a descriptor, and first removes it from the epoll set: if a forked child keeps the same open file, closing
// alone does not end its events.
static void stop_watching(const struct intranode *node, int *descriptor) {
    if (*descriptor < 0)
        return;
    if (node->poll >= 0)
        epoll_ctl(node->poll, EPOLL_CTL_DEL, *descriptor, NULL);
    close(*descriptor);
    *descriptor = -1;
}

static void mark_gone(struct intranode *node, uint32_t index) {
    stop_watching(node, &node->segment.connections[index]);
    stop_watching(node, &node->processes[index]);
    node->gone[index] = true;
    if (node->gone_at == 0)
        node->gone_at = clock_now();
}

// Reads and discards what a socket has received. Returns whether the other end is closed. It reads at most as often as
// there may be ranks, so that a sender without end cannot keep this rank here.
static bool drain(int socket) {
    uint8_t byte;
    ssize_t got = 1;
    for (unsigned i = 0; i < MAX_HOST_RANKS && got > 0; i++)
        got = recv(socket, &byte, sizeof byte, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void wakeup_receive(struct intranode *node) {
    struct epoll_event events[EVENTS_AT_ONCE];
    const int count = node->poll < 0 || !node->has_slept ? 0 : epoll_wait(node->poll, events, EVENTS_AT_ONCE, 0);
    node->has_slept = false;
    for (int i = 0; i < count; i++) {
        const uint32_t number = events[i].data.u32, index = number % MAX_HOST_RANKS;
        if (number == OWN_SOCKET)
            drain(node->socket);
        else if (number >= MAX_HOST_RANKS ||
                 (node->segment.connections[index] >= 0 && drain(node->segment.connections[index])))
            mark_gone(node, index);
    }
}

static void close_connections(struct intranode *node) {
    for (uint32_t index = 0; index < node->segment.count; index++) {
        if (node->segment.connections[index] >= 0)
            shutdown(node->segment.connections[index], SHUT_RDWR); // also ends it in forked children
        stop_watching(node, &node->segment.connections[index]);
        stop_watching(node, &node->processes[index]);
    }
    stop_watching(node, &node->socket);
    if (node->poll >= 0)
        close(node->poll);
    node->poll = -1;
}

void intranode_close(struct intranode *node) {
    close_connections(node);
    segment_close(&node->segment);
}
