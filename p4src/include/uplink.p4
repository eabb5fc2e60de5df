// SPDX-License-Identifier: Apache-2.0
// Uplink: the switch's position in a job's tree. With an entry for the job, it is a worker of its parent; without one,
// it is the root.
//
// A packet comes from the parent if address and UDP port are those of the entry. The table of jobs knows the ports where it
// may come in.
control Uplink(in headers_t hdr, inout metadata_t meta) {
    action uplink(port_t port, mac_t mac, address_t ip, bit<16> udp_port, bit<8> worker) {
        meta.below = 1;
        meta.parent_port = port;
        meta.parent_mac = mac;
        meta.parent_ip = ip;
        meta.parent_udp_port = udp_port;
        meta.parent_worker = worker;
    }

    table uplinks {
        key = { hdr.aggregation.job : exact @name("job"); }
        actions = { uplink; @defaultonly NoAction; }
        default_action = NoAction;
        size = 4096;
    }

    apply {
        if (uplinks.apply().hit && meta.source == meta.parent_ip && hdr.udp.src_port == meta.parent_udp_port) {
            meta.from_parent = 1;
            meta.member = PARENT;
        }
    }
}

// EnvoyName: the worker that the parent's packet names for the workers here.
//
// A RESULT or STATUS of the parent names one of the parent's workers. If that is this switch, the worker here whose packet
// was the last to be added takes its place. No worker here stands for another switch, or for the sender of an ERROR. A
// HELLO, which is for the controller, stays as it is.
control EnvoyName(inout headers_t hdr, in metadata_t meta) {
    apply {
        if (meta.from_parent == 1 && hdr.aggregation.op != OP_HELLO) {
            if (hdr.aggregation.op != OP_ERROR && hdr.aggregation.worker == meta.parent_worker) {
                hdr.aggregation.worker = meta.envoy;
            } else {
                hdr.aggregation.worker = NOBODY;
            }
        }
    }
}
