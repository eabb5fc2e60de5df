// SPDX-License-Identifier: Apache-2.0
// What the steps of the pipeline share: a thread's means, and what shall become of a packet.
#ifndef NATIVE_CONTEXT_H
#define NATIVE_CONTEXT_H

#include "plane.h"

#define MAX_FRAME 65553 // packet-out header, Ethernet, the largest IPv4 packet
#define HEADROOM 64
#define CONTEXT_BUFFER_SIZE (HEADROOM + MAX_FRAME + 8 * 1024 + 64)

// What a thread needs to process packets.
struct context {
    struct plane *plane;
    struct counters *counters;
    unsigned number; // of the thread, from 1; 0: a caller's
    uint64_t random;
    void (*emit)(struct context *context, unsigned port, const uint8_t *frame, size_t length);
    uint8_t *buffer; // CONTEXT_BUFFER_SIZE bytes
    bool forwarded;  // what is emitted is the frame that came, but for its addresses
};

// Returns false where there is no memory. Plane, counters and emit are the caller's to set.
bool context_create(struct context *context, unsigned number);
void context_destroy(struct context *context);

// Where a frame that shall be processed is to be written: up to MAX_FRAME bytes.
static inline uint8_t *context_frame(const struct context *context) {
    return context->buffer + HEADROOM;
}

// Where the packet shall go.
struct verdict {
    unsigned egress_port;
    unsigned multicast_group;
    bool drop;
    bool bridged;   // by L2: not back to where it came from
    bool packet_in; // with a packet-in header
    uint32_t bitmap;
};

#endif
