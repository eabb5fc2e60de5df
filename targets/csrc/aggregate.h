// SPDX-License-Identifier: Apache-2.0
// A packet to the aggregator: p4src/bmv2/aggregation.p4 and what it uses.
#ifndef NATIVE_AGGREGATE_H
#define NATIVE_AGGREGATE_H

#include "context.h"
#include "packet.h"

// Is it well formed, who may send it, what does its slot make of it, and what is the answer.
void aggregate(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t switch_mac);

#endif
