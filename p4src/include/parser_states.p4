// SPDX-License-Identifier: Apache-2.0
// Parser states from the Ethernet header on, for all architectures. A parser includes this file among its states.
//   CHECK_IPV4         statements of the architecture that verify the checksum of an IPv4 header
//   PARSE_AGGREGATION  the architecture's state parse_aggregation, which goes on to parse_keys
    state parse_ethernet {
        pkt.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP: parse_arp;
#ifdef IPV6
            ETHERTYPE_IPV6: parse_ipv6;
#endif
#ifdef TAGS
            ETHERTYPE_VLAN: parse_vlan;
#else
            ETHERTYPE_VLAN: parse_tag;
#endif
            ETHERTYPE_SERVICE_VLAN: parse_tag;
            default: accept;
        }
    }

#ifdef TAGS
    state parse_vlan {
        pkt.extract(hdr.tag);
        meta.vlan = hdr.tag.vlan;
        transition select(hdr.tag.vlan, hdr.tag.type) {
            (0, _): hidden_source;
            (_, ETHERTYPE_IPV4): parse_ipv4;
            (_, ETHERTYPE_ARP): parse_arp;
#ifdef IPV6
            (_, ETHERTYPE_IPV6): parse_ipv6;
#endif
            (_, ETHERTYPE_VLAN): parse_tag;
            (_, ETHERTYPE_SERVICE_VLAN): parse_tag;
            default: accept;
        }
    }
#endif

    // A host handles a frame of VLAN 0 like one without this tag, but the parser does not look behind the tag. A forged
    // source address could hide there, so every such frame counts as forged.
    state parse_tag {
        transition select(pkt.lookahead<bit<16>>()) {
            0 &&& 0x0FFF: hidden_source;
            default: accept;
        }
    }

    state hidden_source {
        meta.forged = 1;
        transition accept;
    }

    state parse_arp {
        pkt.extract(hdr.arp);
        meta.address = IPV4_ADDRESS(hdr.arp.target_ip);
        meta.source = IPV4_ADDRESS(hdr.arp.sender_ip);
        transition accept;
    }

    // A header with options, or a fragment, is forwarded, and never reaches the aggregator.
    state parse_ipv4 {
        pkt.extract(hdr.ipv4);
        meta.address = IPV4_ADDRESS(hdr.ipv4.dst);
        meta.source = IPV4_ADDRESS(hdr.ipv4.src);
        CHECK_IPV4
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags[0:0], hdr.ipv4.fragment_offset,
                hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): parse_udp;
            (4, 5, 0, 0, PROTOCOL_ICMP): parse_icmp;
            default: accept;
        }
    }

    state parse_icmp {
        pkt.extract(hdr.icmp);
        transition accept;
    }

#ifdef IPV6
#include "ipv6_states.p4"
#endif

    state parse_udp {
        pkt.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            AGGREGATION_PORT: parse_aggregation;
            default: accept;
        }
    }

    PARSE_AGGREGATION

    state parse_keys {
#define EXTRACT_KEY(i) pkt.extract(hdr.keys[i]);
        FOR_EACH_LANE(EXTRACT_KEY)
        transition lane_0;
    }

#define LANE_STATES(i, next) \
    state lane_##i { transition select(hdr.aggregation.present[i:i]) { 1: values_##i; default: lane_##next; } } \
    state values_##i { pkt.extract(hdr.values[i]); transition lane_##next; }
    LANE_STATES(0, 1)
#if LANES >= 2
    LANE_STATES(1, 2)
#endif
#if LANES >= 4
    LANE_STATES(2, 3)
    LANE_STATES(3, 4)
#endif
#if LANES >= 8
    LANE_STATES(4, 5)
    LANE_STATES(5, 6)
    LANE_STATES(6, 7)
    LANE_STATES(7, 8)
#endif
#define LAST_STATE_(n) state lane_##n { transition accept; }
#define LAST_STATE(n) LAST_STATE_(n)
    LAST_STATE(LANES)
