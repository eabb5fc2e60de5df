// SPDX-License-Identifier: Apache-2.0
// The parser: p4src/bmv2/parser.p4.
#ifndef NATIVE_PACKET_H
#define NATIVE_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"
#include "wire/bytes.h"

struct packet {
    uint8_t *frame;        // from the Ethernet header on
    size_t length;         // of the frame
    size_t ingress_length; // as received, with a packet-out header if it had one
    unsigned ingress_port;
    bool from_cpu;
    bool truncated;       // shorter than its headers say
    bool bad_checksum;    // of the IPv4 header
    bool priority_tagged; // has a VLAN tag with VLAN 0
    unsigned vlan;        // of the frame's tag; 0: no tag

    // The parsed headers; NULL: not in the packet.
    const uint8_t *packet_out;
    uint8_t *ethernet, *arp, *ipv4, *icmp, *udp, *aggregation;
    struct header header; // the content of `aggregation` when the packet arrived
    uint8_t *keys;        // NULL unless the packet has all of them
    uint8_t *payload;     // the rest after the parsed headers
    unsigned values;      // bit i: the packet has lane i's values
};

// Parses a frame that arrived at `port`. `packet` refers to `data`, which later steps may change.
void packet_parse(struct packet *packet, const struct layout *layout, unsigned port, uint8_t *data, size_t length);

// Puts a frame with an IPv4 header into a VLAN; 0: removes its tag. The frame's beginning moves by up to VLAN_SIZE bytes.
void packet_set_vlan(struct packet *packet, unsigned vlan);

// The Internet checksum (RFC 1071) of an IPv4 header without options, without its checksum field.
uint16_t ipv4_checksum(const uint8_t *header);

#endif
