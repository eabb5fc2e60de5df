// SPDX-License-Identifier: Apache-2.0
// OwnAnswersIpv6: replies to neighbour solicitations and pings for the switch's IPv6 addresses. All else to them is
// dropped.
control OwnAnswersIpv6(inout headers_t hdr, inout metadata_t meta) {
    action back(bit<8> type, bit<8> hop_limit) {
        hdr.icmp.type = type;
        hdr.ipv6.dst = hdr.ipv6.src;
        hdr.ipv6.src = meta.address;
        hdr.ipv6.hop_limit = hop_limit;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.switch_mac;
        meta.egress_port = meta.ingress_port;
    }

    action advertise() {
        back(NEIGHBOUR_ADVERTISEMENT, NOT_FORWARDED);
        hdr.neighbour.flags = SOLICITED_AND_OVERRIDE;
        hdr.neighbour_mac.type = OPTION_TARGET_MAC;
        hdr.neighbour_mac.mac = meta.switch_mac;
        meta.advertised = 1;
    }

    apply {
        if (hdr.neighbour_mac.isValid() && hdr.neighbour_mac.type == OPTION_SENDER_MAC && hdr.neighbour_mac.length == 1
            && hdr.icmp.code == 0 && hdr.ipv6.hop_limit == NOT_FORWARDED && hdr.ipv6.src != 0) {
            advertise();
        } else if (hdr.icmp.isValid() && hdr.icmp.type == ICMPV6_ECHO_REQUEST) {
            // RFC 1624: the type rises by 1, so the checksum falls by 0x0100, with the borrow taken off again.
            if (hdr.icmp.checksum >= 0x0100) {
                hdr.icmp.checksum = hdr.icmp.checksum - 0x0100;
            } else {
                hdr.icmp.checksum = hdr.icmp.checksum - 0x0101;
            }
            back(ICMPV6_ECHO_REPLY, DEFAULT_TTL);
        } else {
            meta.drop = 1;
        }
    }
}
