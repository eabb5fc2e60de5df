// SPDX-License-Identifier: Apache-2.0
// A UDP port: what its datagrams have to do with frames.
#ifndef NATIVE_UDP_H
#define NATIVE_UDP_H

#include "plane.h"
#include "port.h"
#include "rows.h"

struct udp_port {
    struct port port;
    uint32_t ip;
    uint16_t udp_port;
    unsigned threads;
    _Atomic uint64_t unsegmented; // datagrams of this size and more the kernel does not split up; 0: none known
    int sockets[MAX_THREADS];
};

extern const struct port_kind udp_port_kind;

// Room for a batch of datagrams, or of chains of them (UDP_GRO); NULL where there is no memory.
struct receiver;
struct receiver *receiver_create(void);
void receiver_destroy(struct receiver *receiver);

// Writes the Ethernet, IPv4 and UDP headers of a datagram of `length` bytes that came from ip:port.
void udp_write_headers(const struct udp_port *udp, uint8_t *frame, uint32_t ip, uint16_t port, size_t length);

// Sends each datagram of the row.
void udp_send(struct thread *thread, const struct destination *to, const struct row *row);

#endif
