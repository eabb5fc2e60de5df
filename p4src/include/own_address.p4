// SPDX-License-Identifier: Apache-2.0
// The switch as a host: it answers ARP and ping for its own addresses, and knows which packets are meant for it.
control OwnAddress(inout headers_t hdr, inout metadata_t meta, out bit<1> is_own) {
    ipv4_t address = 0;

    action own(mac_t mac) {
        meta.switch_mac = mac;
    }

    table own_addresses {
        key = { address : exact @name("address"); }
        actions = { own; @defaultonly NoAction; }
        default_action = NoAction;
        size = 64;
    }

    action answer_arp() {
        hdr.arp.op = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = meta.switch_mac;
        hdr.arp.sender_ip = address;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.switch_mac;
        meta.egress_port = meta.ingress_port;
    }

    action answer_ping() {
        hdr.icmp.type = ICMP_ECHO_REPLY;
        // RFC 1624: the type fell by 8, so the checksum rises by 0x0800, with the carry added back.
        bit<32> sum = (bit<32>)hdr.icmp.checksum + 0x0800;
        hdr.icmp.checksum = sum[15:0] + (bit<16>)sum[31:16];
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = address;
        hdr.ipv4.ttl = DEFAULT_TTL;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.switch_mac;
        meta.egress_port = meta.ingress_port;
    }

    apply {
        is_own = 0;
        if (hdr.arp.isValid()) {
            address = hdr.arp.target_ip;
        } else if (hdr.ipv4.isValid()) {
            address = hdr.ipv4.dst;
        }
        if (own_addresses.apply().hit) {
            is_own = 1;
            if (hdr.arp.isValid() && hdr.arp.op == ARP_REQUEST) {
                answer_arp();
            } else if (hdr.icmp.isValid() && hdr.icmp.type == ICMP_ECHO_REQUEST && meta.bad_checksum == 0) {
                answer_ping();
            } else if (!hdr.aggregation.isValid()) {
                meta.drop = 1;
            }
        }
    }
}
