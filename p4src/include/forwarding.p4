// SPDX-License-Identifier: Apache-2.0
// Forwarding: frames that are not for the aggregator, as an ordinary switch forwards them.
//
// A frame to one of the switch's router MACs is routed by longest prefix; all others are bridged by destination MAC.
// Frames with a VLAN tag are only bridged.
control Forwarding(inout headers_t hdr, inout metadata_t meta) {
    action route(port_t port, mac_t source_mac, mac_t next_hop_mac) {
        meta.egress_port = port;
        hdr.ethernet.src = source_mac;
        hdr.ethernet.dst = next_hop_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }

    action unroutable() {
        meta.drop = 1;
    }

    table ipv4_routes {
        key = { hdr.ipv4.dst : lpm @name("destination"); }
        actions = { route; unroutable; }
        default_action = unroutable;
        size = 1024;
    }

    action forward(port_t port) {
        meta.egress_port = port;
        meta.bridged = 1;
    }

    action flood(bit<16> group) {
        meta.multicast_group = group;
        meta.bridged = 1;
    }

    action discard() {
        meta.drop = 1;
    }

    // Group 0 does not exist, so until the controller sets the default, unknown destinations are discarded.
    table mac_addresses {
        key = { hdr.ethernet.dst : exact @name("mac"); }
        actions = { forward; flood; discard; }
        default_action = discard;
        size = 4096;
    }

    table router_macs {
        key = { hdr.ethernet.dst : exact @name("mac"); }
        actions = { NoAction; }
        default_action = NoAction;
        size = 64;
    }

    apply {
        if (router_macs.apply().hit) {
            if (UNTAGGED && hdr.ipv4.isValid() && hdr.ipv4.version == 4 && hdr.ipv4.ihl == 5 && hdr.ipv4.ttl > 1
                && meta.bad_checksum == 0) {
                ipv4_routes.apply();
            } else {
                meta.drop = 1;
            }
        } else {
            mac_addresses.apply();
        }
    }
}
