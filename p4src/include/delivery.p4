// SPDX-License-Identifier: Apache-2.0
// Delivery: writes the receiver's address, and the tag of its VLAN, into each copy of a multicast reply.
//
// A job's multicast group has one replica for each worker, and the replica's instance is the worker's index plus one.
// Frames that are flooded have instance 0 and stay as they are.
control Delivery(inout headers_t hdr, in bit<16> instance) {
    action address(mac_t mac, address_t ip, bit<16> udp_port) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = (ipv4_t)ip;
#ifdef IPV6
        hdr.ipv6.dst = ip;  // the packet has one of the two headers
#endif
        hdr.udp.dst_port = udp_port;
        UNTAG
    }

#ifdef TAGS
    action address_in_vlan(mac_t mac, address_t ip, bit<16> udp_port, bit<12> vlan) {
        address(mac, ip, udp_port);
        hdr.ethernet.type = ETHERTYPE_VLAN;
        hdr.tag.setValid();
        hdr.tag.priority = 0;
        hdr.tag.drop_eligible = 0;
        hdr.tag.vlan = vlan;
        hdr.tag.type = IP_TYPE;
    }
#endif

    table workers {
        key = {
            hdr.aggregation.job : exact @name("job");
            instance            : exact @name("instance");
        }
        actions = {
            address;
#ifdef TAGS
            address_in_vlan;
#endif
            @defaultonly NoAction;
        }
        default_action = NoAction;
        size = 4096;
    }

    apply {
        if (hdr.aggregation.isValid() && instance != 0) {
            workers.apply();
        }
    }
}
