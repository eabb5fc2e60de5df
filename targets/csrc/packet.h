// SPDX-License-Identifier: Apache-2.0
// A frame and what the parser found in it: p4src/bmv2/parser.p4.
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
    size_t ingress_length; // as it came in: with a packet-out header, if it had one
    unsigned ingress_port;
    bool from_cpu;
    bool truncated;       // shorter than its headers say
    bool bad_checksum;    // of the IPv4 header
    bool priority_tagged; // behind a VLAN tag that hosts take for none

    // Headers that are there; NULL otherwise.
    const uint8_t *packet_out;
    uint8_t *ethernet, *arp, *ipv4, *icmp, *udp, *aggregation;
    struct header header; // what `aggregation` said when the packet came in
    uint8_t *keys;        // NULL unless all are there
    uint8_t *payload;     // what follows the parsed headers
    unsigned values;      // bit i: lane i's values are there
};

// Finds the headers of a frame that came in at `port`; `data` is kept and may be written to later.
void packet_parse(struct packet *packet, const struct layout *layout, unsigned port, uint8_t *data, size_t length);

// The Internet checksum (RFC 1071) of an IPv4 header without options, leaving out its checksum field.
uint16_t ipv4_checksum(const uint8_t *header);

#endif
