// SPDX-License-Identifier: Apache-2.0
// Room for a batch of datagrams that are received at once. Each message may be a chain of them (UDP_GRO).
#ifndef NATIVE_RECEIVER_H
#define NATIVE_RECEIVER_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>

#define MESSAGES 4 // that are received at once

struct receiver;

struct message {
    const struct sockaddr_in *peer;
    const uint8_t *data;
    size_t length;
    size_t segment_size; // the length of each datagram in the chain, but of the last
};

// NULL where there is no memory.
struct receiver *receiver_create(void);
void receiver_destroy(struct receiver *receiver);

// Receives what waits at a socket: at most MESSAGES. Returns how many it got.
unsigned receiver_fill(struct receiver *receiver, int socket);
// One of those.
struct message receiver_message(struct receiver *receiver, unsigned at);

#endif
