// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_HEADERS_P4
#define P4REDUCE_HEADERS_P4

#include "constants.p4"
#include "repeat.p4"

typedef bit<48> mac_t;
typedef bit<32> ipv4_t;

// An address in a table or in metadata. Where IPv6 is known, an IPv4 address is written as ::ffff:a.b.c.d (RFC 4291).
#ifdef IPV6
#include "ipv6.p4"
typedef ipv6_t address_t;
#define IPV4_ADDRESS(ip) (IPV4_MAPPED ++ ip)
#else
typedef ipv4_t address_t;
#define IPV4_ADDRESS(ip) ip
#endif

typedef bit<9>  port_t;

header ethernet_h {
    mac_t   dst;
    mac_t   src;
    bit<16> type;
}

// IEEE 802.1Q tag.
header vlan_h {
    bit<3>  priority;
    bit<1>  drop_eligible;
    bit<12> vlan;
    bit<16> type;
}

header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8>  hardware_size;
    bit<8>  protocol_size;
    bit<16> op;
    mac_t   sender_mac;
    ipv4_t  sender_ip;
    mac_t   target_mac;
    ipv4_t  target_ip;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_length;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    ipv4_t  src;
    ipv4_t  dst;
}

// ICMP, and ICMPv6.
header icmp_h {
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
}

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// The aggregation header; docs/protocol.md explains each field.
header aggregation_h {
    bit<4>  version;
    bit<4>  op;
    bit<8>  active;
    bit<8>  present;
    bit<8>  worker;
    bit<16> job;
    bit<16> generation;
    bit<16> slot;
    bit<32> seq;
    bit<32> fingerprint;
}

header key_h {
    bit<32> key;
}

#define VALUE_FIELD(i) bit<32> v##i;
header values_h {
    FOR_EACH_VALUE(VALUE_FIELD)
}

// Bytes of a UDP datagram without values: UDP header, aggregation header, keys.
#define BARE_LENGTH (8 + 18 + 4 * LANES)
#define LANE_LENGTH (4 * BLOCK_SIZE)
#define TAG_LENGTH 4

// Packet-out, from the controller.
//   through_pipeline  1: the frame is forwarded or aggregated like one from a port
//                     0: it leaves by `egress_port`, unchanged
//   multicast_group   receivers of an ABORT
@controller_header("packet_out")
header packet_out_h {
    bit<1>  through_pipeline;
    bit<6>  padding;
    port_t  egress_port;
    bit<16> multicast_group;
}

// Packet-in, to the controller.
//   bitmap  in the reply to a QUERY, the workers that the half has counted; the frame's own fields have its seq,
//           fingerprint, keys, and the sums of the lanes in `active`
@controller_header("packet_in")
header packet_in_h {
    bit<7>  padding;
    port_t  ingress_port;
    bit<32> bitmap;
}

// All headers, in the order of a packet. ARCHITECTURE_HEADERS: those that an architecture adds for itself.
struct headers_t {
    ARCHITECTURE_HEADERS
    packet_out_h    packet_out;
    packet_in_h     packet_in;
    ethernet_h      ethernet;
#ifdef TAGS
    vlan_h          tag;
#endif
    arp_h           arp;
    ipv4_h          ipv4;
#ifdef IPV6
    ipv6_h          ipv6;
#endif
    icmp_h          icmp;
#ifdef IPV6
    neighbour_h     neighbour;
    neighbour_mac_h neighbour_mac;
#endif
    udp_h           udp;
    aggregation_h   aggregation;
    key_h[LANES]    keys;
    values_h[LANES] values;
}

// TAGS: the architecture's programs read and write VLAN tags. UNTAG removes that of a frame that carries IP.
#ifdef TAGS
#define EMIT_TAG pkt.emit(hdr.tag);
#define UNTAG hdr.ethernet.type = IP_TYPE; hdr.tag.setInvalid();
#define UNTAGGED (meta.vlan == 0)
#else
#define EMIT_TAG
#define UNTAG
#define UNTAGGED true
#endif

// The part of a deparser that is the same on all architectures: the frame, after a packet-in header if there is one.
#define EMIT_FRAME \
        pkt.emit(hdr.packet_in); \
        pkt.emit(hdr.ethernet); \
        EMIT_TAG \
        pkt.emit(hdr.arp); \
        pkt.emit(hdr.ipv4); \
        EMIT_IPV6 \
        pkt.emit(hdr.icmp); \
        EMIT_NEIGHBOUR \
        pkt.emit(hdr.udp); \
        pkt.emit(hdr.aggregation); \
        pkt.emit(hdr.keys); \
        pkt.emit(hdr.values);

#ifdef IPV6
#define IP_TYPE (hdr.ipv6.isValid() ? ETHERTYPE_IPV6 : ETHERTYPE_IPV4)
#define EMIT_IPV6 pkt.emit(hdr.ipv6);
#define EMIT_NEIGHBOUR pkt.emit(hdr.neighbour); pkt.emit(hdr.neighbour_mac);
#else
#define EMIT_IPV6
#define EMIT_NEIGHBOUR
#endif

#define IPV4_FIELDS { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification, \
    hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst }

#endif
