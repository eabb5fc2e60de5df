// SPDX-License-Identifier: Apache-2.0
// The replies of the aggregator: p4src/include/replies.p4.
#ifndef NATIVE_REPLIES_H
#define NATIVE_REPLIES_H

#include "context.h"
#include "packet.h"

// The processing of one packet in the aggregator.
struct aggregation {
    struct context *context;
    struct packet *packet;
    uint64_t switch_mac;
    struct half *half;
    struct contribution data;
    unsigned group;
    const struct action *uplink; // NULL: this switch is the root of the job's tree
    bool from_parent;
    bool complete;
    bool send_up; // the partial sums go to the parent
    bool marked;  // the reply is marked (CE), because a packet of its round was
};

// Rewrites the packet into its reply, and sets where it goes. The caller holds the lock of the half, if there is one.
void reply(struct aggregation *aggregation, struct verdict *verdict, enum outcome outcome);

#endif
