// SPDX-License-Identifier: Apache-2.0
// Numbers and headers of IPv6 (RFC 8200) and of neighbour discovery (RFC 4861). p4src/include/ipv6.p4 defines them, and
// a test keeps this file equal to it. Names are formed as in wire/headers.h.
#ifndef P4REDUCE_WIRE_IPV6_H
#define P4REDUCE_WIRE_IPV6_H

#include "wire/headers.h"

enum {
    IPV6_SIZE = 40,
    IPV6_VERSION = 0, // and the traffic class's upper half
    IPV6_PAYLOAD_LENGTH = 4,
    IPV6_NEXT_HEADER = 6,
    IPV6_HOP_LIMIT = 7,
    IPV6_SRC = 8,
    IPV6_DST = 24,

    NEIGHBOUR_SIZE = 20,
    NEIGHBOUR_FLAGS = 0,
    NEIGHBOUR_TARGET = 4,

    NEIGHBOUR_MAC_SIZE = 8,
    NEIGHBOUR_MAC_TYPE = 0,
    NEIGHBOUR_MAC_LENGTH = 1,
    NEIGHBOUR_MAC_MAC = 2,

    // Bytes before an aggregation header in a frame.
    UDP_IPV6_HEADERS_SIZE = ETHERNET_SIZE + IPV6_SIZE + UDP_SIZE,
};

enum {
    ETHERTYPE_IPV6 = 0x86DD,
    PROTOCOL_ICMPV6 = 58,
    HOP_BY_HOP = 0, // this and the next three are extension headers
    ROUTING = 43,
    FRAGMENT = 44,
    OPTIONS = 60,
    ICMPV6_ECHO_REQUEST = 128,
    ICMPV6_ECHO_REPLY = 129,
    NEIGHBOUR_SOLICITATION = 135,
    NEIGHBOUR_ADVERTISEMENT = 136,
    REDIRECT = 137,
    SOLICITATION_LENGTH = 32,
    NOT_FORWARDED = 255,
    OPTION_SENDER_MAC = 1,
    OPTION_TARGET_MAC = 2,
    SOLICITED_AND_OVERRIDE = 0x60000000,
};

// The ECN of an IPv6 header: the last two bits of its traffic class, which begins in the first byte.
static inline unsigned ipv6_ecn(const uint8_t *header) {
    return header[IPV6_VERSION + 1] >> 4 & ECN_MASK;
}

static inline void ipv6_set_ecn(uint8_t *header, unsigned ecn) {
    header[IPV6_VERSION + 1] = (uint8_t)((header[IPV6_VERSION + 1] & 0xCF) | ecn << 4);
}

#endif
