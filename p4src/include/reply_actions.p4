// SPDX-License-Identifier: Apache-2.0
// Actions that rewrite a packet into a reply, for all architectures. A control includes this file among its actions, and
// chooses one by the packet's outcome:
//
//   round complete             RESULT to all workers of the job.
//   partial sums complete      DATA to the parent.
//   REPLAYED                   RESULT to the sender, whose copy was lost.
//   AHEAD                      STATUS to the sender; one from the parent goes to all workers.
//   MISMATCH                   ERROR to all workers; below a parent to the parent, whose ERROR comes back to all.
//   HELLO, RESET, QUERY        packet-in to the controller.
//   all others                 dropped.
    // From the switch to the sender. In a multicast reply, egress replaces the receiver (Delivery). Of the headers of
    // IPv4 and IPv6, a packet has one, and what is written to the other has no effect.
    action turn_around(bit<4> op) {
        hdr.aggregation.op = op;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.switch_mac;
        ipv4_t own = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own;
        hdr.ipv4.ttl = DEFAULT_TTL;
#ifdef IPV6
        hdr.ipv6.dst = meta.source;
        hdr.ipv6.src = meta.address;
        hdr.ipv6.hop_limit = DEFAULT_TTL;
#endif
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = AGGREGATION_PORT;
        hdr.udp.checksum = 0;
    }

    action to_sender() {
        meta.egress_port = meta.ingress_port;
    }

    action to_group() {
        meta.multicast_group = meta.job_group;
    }

#ifdef LEAF
    // From this switch to its parent, as one of the parent's workers. The packet is a worker's, which may be in a VLAN.
    action to_parent(bit<4> op) {
        hdr.aggregation.op = op;
        hdr.aggregation.worker = meta.parent_worker;
        UNTAG
        hdr.ethernet.src = meta.switch_mac;
        hdr.ethernet.dst = meta.parent_mac;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = (ipv4_t)meta.parent_ip;
        hdr.ipv4.ttl = DEFAULT_TTL;
#ifdef IPV6
        hdr.ipv6.src = meta.address;
        hdr.ipv6.dst = meta.parent_ip;
        hdr.ipv6.hop_limit = DEFAULT_TTL;
#endif
        hdr.udp.src_port = AGGREGATION_PORT;
        hdr.udp.dst_port = meta.parent_udp_port;
        hdr.udp.checksum = 0;
        meta.egress_port = meta.parent_port;
    }
#endif

    action to_controller() {
        meta.egress_port = CPU_PORT;
        hdr.packet_in.setValid();
        hdr.packet_in.padding = 0;
        hdr.packet_in.ingress_port = meta.ingress_port;
        hdr.packet_in.bitmap = meta.bitmap;
    }

    action tell_state() {
        to_controller();
        hdr.aggregation.seq = meta.seq;
        hdr.aggregation.fingerprint = meta.fingerprint;
    }

    action without_values(bit<32> word) {
        hdr.aggregation.active = 0;
        hdr.aggregation.present = 0;
#define ONLY_KEY(i) hdr.keys[i].key = i == 0 ? word : 0;
        FOR_EACH_LANE(ONLY_KEY)
    }

    action result() {
        turn_around(OP_RESULT);
        hdr.aggregation.present = hdr.aggregation.active;
    }

#ifdef LEAF
    action partial_sums() {
        to_parent(OP_DATA);
        hdr.aggregation.present = hdr.aggregation.active & meta.present;
    }
#endif

    action result_to_group() {
        result();
        to_group();
    }

    action result_to_sender() {
        result();
        to_sender();
    }

    action status() {
        turn_around(OP_STATUS);
        without_values(meta.bitmap);
    }

    action status_to_sender() {
        status();
        to_sender();
    }

#ifdef LEAF
    action status_to_group() {
        status();
        to_group();
    }
#endif

    action disagreement() {
        without_values(hdr.aggregation.fingerprint);
        hdr.aggregation.fingerprint = meta.fingerprint;
    }

    action error_to_group() {
        turn_around(OP_ERROR);
        to_group();
    }

    action drop() {
        meta.drop = 1;
    }
