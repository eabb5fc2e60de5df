// SPDX-License-Identifier: Apache-2.0
// UDP ports, and the way out of them. Datagrams of one size leave in rows, one after the other: a row is sent in one
// call and split up by the kernel (UDP_SEGMENT). One piece of memory is what the kernel copies fastest, by more than it
// costs to fill it.
#ifndef NATIVE_UDP_H
#define NATIVE_UDP_H

#include <netinet/in.h>

#include "plane.h"
#include "port.h"

#define MAX_SEGMENTS 64 // as many as every kernel takes
#define MAX_DATAGRAM 65507
#define UNSEGMENTED 64 // addresses known of

struct udp_port {
    struct port port;
    uint32_t ip;
    unsigned threads;
    // Where the kernel does not split up rows, by the address they go to: see udp.c.
    _Atomic uint64_t unsegmented[UNSEGMENTED];
    _Atomic uint64_t full_until; // milliseconds: a socket had no room for long, and nobody waits for it till then
    int sockets[MAX_THREADS];
};

struct destination {
    struct udp_port *port;
    struct sockaddr_in address;
};

struct batch {
    size_t size; // of each
    unsigned count;
    uint8_t data[MAX_DATAGRAM];
};

// Where the next datagram goes; `size` is the batch's already, or the batch is empty.
static inline uint8_t *batch_end(struct batch *batch) {
    return batch->data + batch->count * batch->size;
}

static inline bool batch_is_full(const struct batch *batch) {
    return batch->count == MAX_SEGMENTS || (batch->count + 1) * batch->size > MAX_DATAGRAM;
}

// Sends each datagram of the batch, from the socket of this thread.
void udp_send_batch(const struct destination *to, unsigned thread, const struct batch *batch);
// Sends one datagram.
void udp_send(const struct destination *to, unsigned thread, const uint8_t *data, size_t size);

#endif
