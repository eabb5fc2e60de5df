// SPDX-License-Identifier: Apache-2.0
// Buffers for messages that are received in one call. A message may contain several datagrams (UDP_GRO).
#ifndef NATIVE_RECEIVER_H
#define NATIVE_RECEIVER_H

#include <stddef.h>
#include <stdint.h>

#include "ip.h"

#define MESSAGES 4 // received in one call

struct receiver;

struct message {
    struct ip ip; // of the sender, like the next
    uint16_t udp_port;
    const uint8_t *data;
    size_t length;
    size_t segment_size; // the length of each datagram in the message, except the last
    unsigned ecn;        // of all datagrams in the message
};

// Returns NULL without memory.
struct receiver *receiver_create(void);
void receiver_destroy(struct receiver *receiver);

// Receives at most MESSAGES waiting messages. Returns their number.
unsigned receiver_fill(struct receiver *receiver, int socket);
// Returns one of the received messages.
struct message receiver_message(struct receiver *receiver, unsigned at);

#endif
