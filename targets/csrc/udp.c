// SPDX-License-Identifier: Apache-2.0
#include "udp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "sockets.h"

#define WAIT_MS 20      // longest wait for room in a socket's buffer
#define NO_WAIT_MS 1000 // time without such waits after one of them was not enough
#define KEPT_S 10       // time for which an entry of `unsegmented` is valid

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// Waits for room in a full buffer of a socket. Datagrams to an address without a host may fill it for long, and all
// jobs wait meanwhile. So after a wait without success, there is no wait for some time: datagrams without room are
// dropped.
static bool wait_for_room(struct udp_port *udp, int socket) {
    uint64_t now = now_ms();
    struct pollfd room = {.fd = socket, .events = POLLOUT};
    if (now < atomic_load_explicit(&udp->full_until, memory_order_relaxed))
        return false;
    if (poll(&room, 1, WAIT_MS) > 0)
        return true;
    atomic_store_explicit(&udp->full_until, now + NO_WAIT_MS, memory_order_relaxed);
    return false;
}

// Returns 0 or the errno of sendmsg.
static int send_message(struct udp_port *udp, unsigned thread, const struct msghdr *message) {
    while (sendmsg(udp->sockets[thread], message, MSG_DONTWAIT) < 0) {
        int error = errno;
        if (error != EINTR && (error != EAGAIN || !wait_for_room(udp, udp->sockets[thread])))
            return error;
    }
    return 0;
}

static void count_sent(struct port *port, unsigned count, bool sent) {
    port_count(sent ? &port->sent : &port->dropped, count);
}

union control {
    struct cmsghdr align;
    uint8_t room[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(uint16_t))];
};

static void add_control(struct msghdr *message, int level, int type, const void *value, size_t size) {
    uint8_t *end = (uint8_t *)message->msg_control + message->msg_controllen;
    struct cmsghdr *item = (struct cmsghdr *)(void *)end;
    *item = (struct cmsghdr){.cmsg_level = level, .cmsg_type = type, .cmsg_len = CMSG_LEN(size)};
    memcpy(CMSG_DATA(item), value, size);
    message->msg_controllen += CMSG_SPACE(size);
}

// A message with what its header refers to.
struct prepared_message {
    struct msghdr message;
    union socket_address address;
    struct iovec piece;
    union control control;
};

static void prepare(struct prepared_message *prepared, const struct destination *to, unsigned ecn, const uint8_t *data,
                    size_t size) {
    prepared->piece = (struct iovec){(void *)(uintptr_t)data, size};
    prepared->message = (struct msghdr){
        .msg_name = &prepared->address,
        .msg_namelen = socket_address_write(&prepared->address, to->ip, to->udp_port),
        .msg_iov = &prepared->piece,
        .msg_iovlen = 1,
        .msg_control = &prepared->control,
    };
    if (ecn == ECN_ECT_0) // which is the socket's
        return;
    if (ip_is_ipv4(to->ip))
        add_control(&prepared->message, IPPROTO_IP, IP_TOS, &(int){(int)ecn}, sizeof(int));
    else
        add_control(&prepared->message, IPPROTO_IPV6, IPV6_TCLASS, &(int){(int)ecn}, sizeof(int));
}

static int send_one(const struct destination *to, unsigned thread, unsigned ecn, const uint8_t *data, size_t size) {
    struct prepared_message prepared;
    prepare(&prepared, to, ecn, data, size);
    int error = send_message(to->port, thread, &prepared.message);
    count_sent(&to->port->port, 1, error == 0);
    return error;
}

void udp_send(const struct destination *to, unsigned thread, unsigned ecn, const uint8_t *data, size_t size) {
    send_one(to, thread, ecn, data, size);
}

static void send_one_by_one(const struct destination *to, unsigned thread, const struct batch *batch, unsigned first) {
    for (unsigned at = first; at < batch->count; at++)
        send_one(to, thread, batch->ecn, batch->data + at * batch->size, batch->size);
}

// --- destinations without segmentation -------------------------------------------------------------------------------
// An entry contains the address (of IPv6, a hash of it), the smallest size of datagrams that are not split up, and the
// second until which this is valid, since routes and interfaces change. An entry is one word, so relaxed atomics
// suffice. Two addresses with the same hash replace each other's entry.

static _Atomic uint64_t *unsegmented_at(const struct destination *to) {
    return &to->port->unsegmented[hash_to_6_bits(ip_hash(to->ip))];
}

_Static_assert(UNSEGMENTED == 64, "the hash has six bits");

static bool goes_unsegmented(const struct destination *to, size_t size) {
    uint64_t entry = atomic_load_explicit(unsegmented_at(to), memory_order_relaxed);
    return entry >> 32 == ip_hash(to->ip) && size >= (entry >> 16 & 0xFFFF) &&
           (int16_t)(uint16_t)(entry - now_ms() / 1000) > 0;
}

static void remember_unsegmented(const struct destination *to, size_t size) {
    uint64_t until = (now_ms() / 1000 + KEPT_S) & 0xFFFF;
    uint64_t entry = (uint64_t)ip_hash(to->ip) << 32 | (uint64_t)size << 16 | until;
    atomic_store_explicit(unsegmented_at(to), entry, memory_order_relaxed);
}

// Handles a batch that the kernel has refused, by sending its first datagram alone. If that is sent, the destination or
// interface lacks segmentation; if it fails with the same error, the datagrams themselves are the reason.
static void send_refused_batch(const struct destination *to, unsigned thread, const struct batch *batch, int error) {
    int alone = send_one(to, thread, batch->ecn, batch->data, batch->size);
    if (alone == error) {
        count_sent(&to->port->port, batch->count - 1, false);
        return;
    }
    if (alone == 0)
        remember_unsegmented(to, batch->size);
    send_one_by_one(to, thread, batch, 1);
}

void udp_send_batch(const struct destination *to, unsigned thread, const struct batch *batch) {
    if (batch->count == 1 || goes_unsegmented(to, batch->size)) {
        send_one_by_one(to, thread, batch, 0);
        return;
    }
    struct prepared_message prepared;
    prepare(&prepared, to, batch->ecn, batch->data, batch->count * batch->size);
    add_control(&prepared.message, SOL_UDP, UDP_SEGMENT, &(uint16_t){(uint16_t)batch->size}, sizeof(uint16_t));
    int error = send_message(to->port, thread, &prepared.message);
    if (error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP)
        send_refused_batch(to, thread, batch, error); // the kernel, the interface or its MTU does not allow it
    else
        count_sent(&to->port->port, batch->count, error == 0);
}
