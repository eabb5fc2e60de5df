// SPDX-License-Identifier: Apache-2.0
// UDP ports, and sending from them. Datagrams of one size are collected in a batch, which is sent in one call and which
// the kernel splits up (UDP_SEGMENT). The kernel copies one piece of memory much faster than many, which is worth the
// copy into the batch.
#ifndef NATIVE_UDP_H
#define NATIVE_UDP_H

#include "plane.h"
#include "port.h"

#define MAX_SEGMENTS 64 // accepted by every kernel
#define MAX_DATAGRAM 65507
#define UNSEGMENTED 64 // entries of `unsegmented`

struct udp_port {
    struct port port;
    struct ip ip;
    unsigned threads;
    // Destinations to which the kernel does not split up batches: see udp.c.
    _Atomic uint64_t unsegmented[UNSEGMENTED];
    _Atomic uint64_t full_until; // milliseconds: no thread waits for room in a socket's buffer until then
    int sockets[MAX_THREADS];
};

// Fibonacci hashing to six bits.
static inline unsigned hash_to_6_bits(uint32_t value) {
    return value * UINT32_C(2654435769) >> 26;
}

struct destination {
    struct udp_port *port;
    struct ip ip;
    uint16_t udp_port;
};

struct batch {
    size_t size;  // of each datagram
    unsigned ecn; // of all datagrams
    unsigned count;
    uint8_t data[MAX_DATAGRAM];
};

// Returns the position of the next datagram. The batch's `size` is set.
static inline uint8_t *batch_end(struct batch *batch) {
    return batch->data + batch->count * batch->size;
}

static inline bool batch_is_full(const struct batch *batch) {
    return batch->count == MAX_SEGMENTS || (batch->count + 1) * batch->size > MAX_DATAGRAM;
}

// Sends each datagram of the batch, from the socket of this thread.
void udp_send_batch(const struct destination *to, unsigned thread, const struct batch *batch);
// Sends one datagram.
void udp_send(const struct destination *to, unsigned thread, unsigned ecn, const uint8_t *data, size_t size);

#endif
