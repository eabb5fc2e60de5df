// SPDX-License-Identifier: Apache-2.0
// The switch as a host (ARP, neighbour discovery, ping), and forwarding: bridging and IPv4 routing.
#ifndef NATIVE_FORWARD_H
#define NATIVE_FORWARD_H

#include "context.h"
#include "packet.h"

// p4src/include/own_address.p4: returns whether the packet is for the switch itself, and its MAC.
bool own_address(struct context *context, struct packet *packet, struct verdict *verdict, uint64_t *switch_mac);
// Returns whether a packet to another host has a source address of the switch.
bool is_forged(const struct context *context, const struct packet *packet);
// p4src/include/forwarding.p4
void forward(struct context *context, struct packet *packet, struct verdict *verdict);

#endif
