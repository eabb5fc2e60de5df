// SPDX-License-Identifier: Apache-2.0
// The aggregator: p4src/bmv2/aggregation.p4 and the controls that it applies.
#ifndef NATIVE_AGGREGATE_H
#define NATIVE_AGGREGATE_H

#include "context.h"
#include "packet.h"

// Validates a packet, applies it to its slot, counts the outcome and makes the reply.
void aggregate(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t switch_mac);

#endif
