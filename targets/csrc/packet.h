// SPDX-License-Identifier: Apache-2.0
// The parser: p4src/bmv2/parser.p4.
#ifndef NATIVE_PACKET_H
#define NATIVE_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ip.h"
#include "layout.h"
#include "wire/ipv6.h"

struct packet {
    uint8_t *frame;        // from the Ethernet header on
    size_t length;         // of the frame
    size_t ingress_length; // as received, with a packet-out header if it had one
    unsigned ingress_port;
    bool from_cpu;
    bool truncated;     // shorter than its headers say
    bool bad_checksum;  // of the IPv4 header
    bool hidden_source; // it may have a forged source address that the parser does not see
    unsigned vlan;      // of the frame's tag; 0: no tag
    // Destination and source address, of IP, ARP or neighbour discovery. Without one, ::.
    struct ip address, source;

    // The parsed headers; NULL: not in the packet.
    const uint8_t *packet_out;
    uint8_t *ethernet, *arp, *ipv4, *ipv6, *icmp, *neighbour, *neighbour_mac, *udp, *aggregation;
    struct header header; // the content of `aggregation` when the packet arrived
    uint8_t *keys;        // NULL unless the packet has all of them
    uint8_t *payload;     // the rest after the parsed headers
    unsigned values;      // bit i: the packet has lane i's values
};

// Parses a frame that arrived at `port`. `packet` refers to `data`, which later steps may change.
void packet_parse(struct packet *packet, const struct layout *layout, unsigned port, uint8_t *data, size_t length);

// Puts a frame with an IP header into a VLAN; 0: removes its tag. The frame's beginning moves by up to VLAN_SIZE bytes.
void packet_set_vlan(struct packet *packet, unsigned vlan);

// --- the IP header of a packet that has one, of either family --------------------------------------------------------

static inline uint8_t *packet_ip(const struct packet *packet) {
    return packet->ipv6 != NULL ? packet->ipv6 : packet->ipv4;
}

static inline unsigned packet_ecn(const struct packet *packet) {
    return packet->ipv6 != NULL ? ipv6_ecn(packet->ipv6) : packet->ipv4[IPV4_TOS] & ECN_MASK;
}

// Marks the packet, as a router with a long queue does.
static inline void packet_mark(struct packet *packet) {
    if (packet->ipv6 != NULL)
        ipv6_set_ecn(packet->ipv6, ECN_CE);
    else
        packet->ipv4[IPV4_TOS] |= ECN_CE;
}

// The length of what follows the header, as the header has it.
static inline size_t packet_ip_payload(const struct packet *packet) {
    return packet->ipv6 != NULL ? load_16(packet->ipv6 + IPV6_PAYLOAD_LENGTH)
                                : load_16(packet->ipv4 + IPV4_TOTAL_LENGTH) - (size_t)IPV4_SIZE;
}

void packet_set_ip_payload(struct packet *packet, size_t length);
// Set addresses and hop limit (IPv4: TTL). Of an IPv6 address, an IPv4 header gets the last four bytes, as in P4.
void packet_set_addresses(struct packet *packet, struct ip source, struct ip destination, unsigned hop_limit);
void packet_set_destination(struct packet *packet, struct ip destination);

// The Internet checksum (RFC 1071) of an IPv4 header without options, without its checksum field.
uint16_t ipv4_checksum(const uint8_t *header);
// The checksum of a packet with a neighbour solicitation or advertisement (RFC 4443, 2.3), without its checksum field.
uint16_t neighbour_checksum(const struct packet *packet);

#endif
