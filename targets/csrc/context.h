// SPDX-License-Identifier: Apache-2.0
// The context of packet processing: a thread's data, and the decision about a packet.
#ifndef NATIVE_CONTEXT_H
#define NATIVE_CONTEXT_H

#include "plane.h"

#define MAX_FRAME 65593 // packet-out header, Ethernet, the largest IPv6 packet
#define HEADROOM 64
#define CONTEXT_BUFFER_SIZE (HEADROOM + MAX_FRAME + 8 * 1024 + 64)

// The data that a thread needs to process packets.
struct context {
    struct plane *plane;
    struct counters *counters;
    unsigned number; // of the thread, from 1; 0: a caller's
    uint64_t random;
    void (*emit)(struct context *context, unsigned port, const uint8_t *frame, size_t length);
    uint8_t *buffer; // CONTEXT_BUFFER_SIZE bytes
    bool forwarded;  // the emitted frame is the received one, except for its addresses
};

// Returns false without memory. The caller sets plane, counters and emit.
bool context_create(struct context *context, unsigned number);
void context_destroy(struct context *context);

// The buffer for the frame to process: up to MAX_FRAME bytes.
static inline uint8_t *context_frame(const struct context *context) {
    return context->buffer + HEADROOM;
}

// The decision about a packet: where it goes, or that it is dropped.
struct verdict {
    unsigned egress_port;
    unsigned multicast_group;
    bool drop;
    bool bridged;   // at layer 2: not sent back to its ingress port
    bool packet_in; // with a packet-in header
    uint32_t bitmap;
};

#endif
