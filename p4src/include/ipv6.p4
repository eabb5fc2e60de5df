// SPDX-License-Identifier: Apache-2.0
// Numbers and headers of IPv6 (RFC 8200) and of neighbour discovery (RFC 4861), which is to IPv6 what ARP is to IPv4.
#ifndef P4REDUCE_IPV6_P4
#define P4REDUCE_IPV6_P4

typedef bit<128> ipv6_t;

const bit<96> IPV4_MAPPED = 0xFFFF;  // the first bits of ::ffff:a.b.c.d

const bit<16> ETHERTYPE_IPV6  = 0x86DD;
const bit<8>  PROTOCOL_ICMPV6 = 58;
const bit<8>  HOP_BY_HOP      = 0;   // this and the next three are extension headers
const bit<8>  ROUTING         = 43;
const bit<8>  FRAGMENT        = 44;
const bit<8>  OPTIONS         = 60;
const bit<8>  ICMPV6_ECHO_REQUEST     = 128;
const bit<8>  ICMPV6_ECHO_REPLY       = 129;
const bit<8>  NEIGHBOUR_SOLICITATION  = 135;
const bit<8>  NEIGHBOUR_ADVERTISEMENT = 136;
const bit<8>  REDIRECT                = 137;
const bit<16> SOLICITATION_LENGTH     = 32;  // with one option, the sender's MAC address
const bit<8>  NOT_FORWARDED           = 255; // hop limit of these two: no router has lowered it
const bit<8>  OPTION_SENDER_MAC       = 1;
const bit<8>  OPTION_TARGET_MAC       = 2;
const bit<32> SOLICITED_AND_OVERRIDE  = 0x60000000;

header ipv6_h {
    bit<4>  version;
    bit<8>  traffic_class;
    bit<20> flow_label;
    bit<16> payload_length;
    bit<8>  next_header;
    bit<8>  hop_limit;
    ipv6_t  src;
    ipv6_t  dst;
}

// The rest of a neighbour solicitation or advertisement.
header neighbour_h {
    bit<32> flags;
    ipv6_t  target;
}

// Its option with a MAC address: the sender's in a solicitation, the target's in an advertisement.
header neighbour_mac_h {
    bit<8> type;
    bit<8> length;
    mac_t  mac;
}

#endif
