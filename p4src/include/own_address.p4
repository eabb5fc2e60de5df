// SPDX-License-Identifier: Apache-2.0
// OwnAddress: the switch is a host, too. It recognises packets to its addresses, and packets that claim to come from
// them.
control OwnAddress(inout metadata_t meta) {
    action own(mac_t mac) {
        meta.own = 1;
        meta.switch_mac = mac;
    }

    table own_addresses {
        key = { meta.address : exact @name("address"); }
        actions = { own; @defaultonly NoAction; }
        default_action = NoAction;
        size = 64;
    }

    action forged() {
        meta.forged = 1;
    }

    // The same addresses as sources. Workers believe replies from them, so a frame from outside with one is a forgery.
    table own_sources {
        key = { meta.source : exact @name("address"); }
        actions = { forged; @defaultonly NoAction; }
        default_action = NoAction;
        size = 64;
    }

    apply {
        own_addresses.apply();
        own_sources.apply();
    }
}

// OwnAnswers: replies to ARP requests and pings for the switch's addresses. All else to them is dropped.
control OwnAnswers(inout headers_t hdr, inout metadata_t meta) {
    action answer_arp() {
        hdr.arp.op = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = meta.switch_mac;
        hdr.arp.sender_ip = (ipv4_t)meta.address;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.switch_mac;
        meta.egress_port = meta.ingress_port;
    }

    action answer_ping() {
        hdr.icmp.type = ICMP_ECHO_REPLY;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = (ipv4_t)meta.address;
        hdr.ipv4.ttl = DEFAULT_TTL;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.switch_mac;
        meta.egress_port = meta.ingress_port;
    }

    apply {
        if (hdr.arp.isValid() && hdr.arp.op == ARP_REQUEST) {
            answer_arp();
        } else if (hdr.icmp.isValid() && hdr.icmp.type == ICMP_ECHO_REQUEST && meta.bad_checksum == 0) {
            // RFC 1624: the type falls by 8, so the checksum rises by 0x0800, with the carry added back.
            if (hdr.icmp.checksum >= 0xF800) {
                hdr.icmp.checksum = hdr.icmp.checksum + 0x0801;
            } else {
                hdr.icmp.checksum = hdr.icmp.checksum + 0x0800;
            }
            answer_ping();
        } else {
            meta.drop = 1;
        }
    }
}
