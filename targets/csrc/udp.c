// SPDX-License-Identifier: Apache-2.0
#include "udp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define SEND_TIMEOUT_MS 20

// Sends, and waits a while where the socket's buffer is full. Returns whether it was sent.
static bool send_message(int socket, const struct msghdr *message) {
    while (sendmsg(socket, message, MSG_DONTWAIT) < 0) {
        struct pollfd room = {.fd = socket, .events = POLLOUT};
        if (errno != EINTR && (errno != EAGAIN || poll(&room, 1, SEND_TIMEOUT_MS) <= 0))
            return false;
    }
    return true;
}

static void count_sent(struct port *port, unsigned count, bool sent) {
    port_count(sent ? &port->sent : &port->dropped, count);
}

static struct msghdr message_to(const struct destination *to, struct iovec *piece) {
    return (struct msghdr){
        .msg_name = (void *)(uintptr_t)&to->address,
        .msg_namelen = sizeof to->address,
        .msg_iov = piece,
        .msg_iovlen = 1,
    };
}

static struct iovec piece_of(const uint8_t *data, size_t size) {
    return (struct iovec){(void *)(uintptr_t)data, size};
}

void udp_send(const struct destination *to, unsigned thread, const uint8_t *data, size_t size) {
    struct iovec piece = piece_of(data, size);
    struct msghdr message = message_to(to, &piece);
    count_sent(&to->port->port, 1, send_message(to->port->sockets[thread], &message));
}

static void send_one_by_one(const struct destination *to, unsigned thread, const struct row *row) {
    for (unsigned at = 0; at < row->count; at++)
        udp_send(to, thread, row->data + at * row->size, row->size);
}

void udp_send_row(const struct destination *to, unsigned thread, const struct row *row) {
    struct udp_port *udp = to->port;
    uint64_t unsegmented = atomic_load_explicit(&udp->unsegmented, memory_order_relaxed);
    if (row->count == 1 || (unsegmented != 0 && row->size >= unsegmented)) {
        send_one_by_one(to, thread, row);
        return;
    }
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(uint16_t))];
    } control = {.head = {.cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))}};
    uint16_t size = (uint16_t)row->size;
    memcpy(CMSG_DATA(&control.head), &size, sizeof size);
    struct iovec piece = piece_of(row->data, row->count * row->size);
    struct msghdr message = message_to(to, &piece);
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    if (send_message(udp->sockets[thread], &message)) {
        count_sent(&udp->port, row->count, true);
    } else if (errno == EINVAL || errno == EIO || errno == EMSGSIZE || errno == EOPNOTSUPP) {
        // The kernel, the interface or its MTU does not have it.
        atomic_store_explicit(&udp->unsegmented, row->size, memory_order_relaxed);
        send_one_by_one(to, thread, row);
    } else {
        count_sent(&udp->port, row->count, false);
    }
}
