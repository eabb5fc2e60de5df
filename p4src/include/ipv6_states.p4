// SPDX-License-Identifier: Apache-2.0
// Parser states of IPv6, for parser_states.p4. A packet with an extension header is forwarded, and never reaches the
// aggregator.

    // Addresses of the form ::ffff:a.b.c.d stand for IPv4 addresses in tables. They are never in packets (RFC 4942), and
    // one could pass for that IPv4 host, so every such packet counts as forged.
    state parse_ipv6 {
        pkt.extract(hdr.ipv6);
        transition select(hdr.ipv6.src[127:32], hdr.ipv6.dst[127:32]) {
            (IPV4_MAPPED, _): hidden_source;
            (_, IPV4_MAPPED): hidden_source;
            default: parse_ipv6_payload;
        }
    }

    // A host accepts an advertisement behind an extension header, too, but the parser does not look there. Nothing else
    // has an extension header and this hop limit (RFC 6980), so every such packet counts as forged.
    state parse_ipv6_payload {
        meta.address = hdr.ipv6.dst;
        meta.source = hdr.ipv6.src;
        transition select(hdr.ipv6.version, hdr.ipv6.next_header, hdr.ipv6.hop_limit) {
            (6, PROTOCOL_UDP, _): parse_udp;
            (6, PROTOCOL_ICMPV6, _): parse_icmpv6;
            (6, HOP_BY_HOP, NOT_FORWARDED): hidden_source;
            (6, ROUTING, NOT_FORWARDED): hidden_source;
            (6, FRAGMENT, NOT_FORWARDED): hidden_source;
            (6, OPTIONS, NOT_FORWARDED): hidden_source;
            default: accept;
        }
    }

    state parse_icmpv6 {
        pkt.extract(hdr.icmp);
        transition select(hdr.icmp.type, hdr.ipv6.payload_length) {
            (NEIGHBOUR_SOLICITATION, SOLICITATION_LENGTH): parse_solicitation;
            (NEIGHBOUR_ADVERTISEMENT, _): parse_advertisement;
            (REDIRECT, _): parse_advertisement;
            default: accept;
        }
    }

    state parse_solicitation {
        pkt.extract(hdr.neighbour);
        pkt.extract(hdr.neighbour_mac);
        meta.address = hdr.neighbour.target;
        transition accept;
    }

    // Its receivers believe that the target is at the sender. A redirect begins like an advertisement, and may say so, too.
    state parse_advertisement {
        pkt.extract(hdr.neighbour);
        meta.source = hdr.neighbour.target;
        transition accept;
    }
