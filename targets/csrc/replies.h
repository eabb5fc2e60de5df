// SPDX-License-Identifier: Apache-2.0
// What the aggregator answers: p4src/include/replies.p4.
#ifndef NATIVE_REPLIES_H
#define NATIVE_REPLIES_H

#include "context.h"
#include "packet.h"

// A packet at the aggregator.
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
    bool send_up; // the partial sums, to the parent
};

// Makes the packet its own answer, and says where it goes. The half is locked, where there is one.
void reply(struct aggregation *aggregation, struct verdict *verdict, enum outcome outcome);

#endif
