// SPDX-License-Identifier: Apache-2.0
// Delivery: writes the receiver's address into each copy of a multicast reply.
//
// A job's multicast group has one replica for each worker, and the replica's instance is the worker's index plus one.
// Frames that are flooded have instance 0 and stay as they are.
control Delivery(inout headers_t hdr, in bit<16> instance) {
    action address(mac_t mac, ipv4_t ip, bit<16> udp_port) {
        hdr.ethernet.dst = mac;
        hdr.ipv4.dst = ip;
        hdr.udp.dst_port = udp_port;
    }

    table workers {
        key = {
            hdr.aggregation.job : exact @name("job");
            instance            : exact @name("instance");
        }
        actions = { address; @defaultonly NoAction; }
        default_action = NoAction;
        size = 4096;
    }

    apply {
        if (hdr.aggregation.isValid() && instance != 0) {
            workers.apply();
        }
    }
}
