// SPDX-License-Identifier: Apache-2.0
// The program as it stands in p4src, one packet at a time: what every port uses for whatever it has no faster way for.
#ifndef NATIVE_PIPELINE_H
#define NATIVE_PIPELINE_H

#include "plane.h"

#define MAX_FRAME 65553 // packet-out header, Ethernet, the largest IPv4 packet
#define HEADROOM 64
#define ROOM (HEADROOM + MAX_FRAME + 8 * 1024 + 64)

// What a thread needs to process packets.
struct context {
    struct plane *plane;
    struct counters *counters;
    unsigned number; // of the thread, from 1; 0: a caller's
    uint64_t random;
    void (*emit)(struct context *context, unsigned port, const uint8_t *frame, size_t length);
    uint8_t *room;  // ROOM bytes
    bool forwarded; // what is emitted is the frame that came, but for its addresses
};

// Returns false where there is no memory. Plane, counters and emit are the caller's to set.
bool context_create(struct context *context, unsigned number);
void context_destroy(struct context *context);

// Where a frame that shall be processed is to be written: up to MAX_FRAME bytes.
static inline uint8_t *context_frame(const struct context *context) {
    return context->room + HEADROOM;
}

// Processes the frame at `context_frame`, which came in at `port`, and emits what comes of it.
void pipeline_process(struct context *context, unsigned port, size_t length);

// Whether the drop simulator loses this packet; counts it if so.
bool drop_simulator_loses(struct context *context, enum table_id rates, unsigned port, size_t ingress_length);

// --- between the files of the pipeline -------------------------------------------------------------------------------

// Where the packet shall go.
struct verdict {
    unsigned egress_port;
    unsigned multicast_group;
    bool drop;
    bool bridged;   // by L2: not back to where it came from
    bool packet_in; // with a packet-in header
    uint32_t bitmap;
};

// p4src/include/own_address.p4: returns whether the packet is for the switch itself, and its MAC.
bool own_address(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t *switch_mac);
// p4src/include/forwarding.p4
void forward(struct context *context, struct packet *packet, struct verdict *verdict);
// p4src/bmv2/aggregation.p4 and what it uses
void aggregate(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t switch_mac);

#endif
