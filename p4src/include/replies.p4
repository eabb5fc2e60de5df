// SPDX-License-Identifier: Apache-2.0
// Replies: rewrites the packet into the reply that its outcome asks for, or drops it.
//
//   round complete             RESULT to all workers of the job.
//   partial sums complete      DATA to the parent (LEAF: this switch may be below another).
//   REPLAYED                   RESULT to the sender, whose copy was lost.
//   AHEAD                      STATUS to the sender; one from the parent goes to all workers.
//   MISMATCH                   ERROR to all workers; below a parent to the parent, whose ERROR comes back to all.
//   HELLO, RESET, QUERY        packet-in to the controller.
//   all others                 dropped.
control Replies(inout headers_t hdr, inout metadata_t meta) {
    // From the switch to the sender. In a multicast reply, egress replaces the receiver (Delivery).
    action turn_around(bit<4> op) {
        hdr.aggregation.op = op;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = meta.switch_mac;
        ipv4_t own = hdr.ipv4.dst;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = own;
        hdr.ipv4.ttl = DEFAULT_TTL;
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
    // From this switch to its parent, as one of the parent's workers.
    action to_parent(bit<4> op) {
        hdr.aggregation.op = op;
        hdr.aggregation.worker = meta.parent_worker;
        hdr.ethernet.src = meta.switch_mac;
        hdr.ethernet.dst = meta.parent_mac;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = meta.parent_ip;
        hdr.ipv4.ttl = DEFAULT_TTL;
        hdr.udp.src_port = AGGREGATION_PORT;
        hdr.udp.dst_port = meta.parent_udp_port;
        hdr.udp.checksum = 0;
        meta.egress_port = meta.parent_port;
    }

    // The parent's reply names one of the parent's workers. If that is this switch, the worker here whose packet was
    // the last to be added takes its place; no worker here stands for another switch.
    action name_worker() {
        hdr.aggregation.worker = hdr.aggregation.worker == meta.parent_worker ? meta.envoy : NOBODY;
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

    apply {
        if (meta.complete == 1) {
#ifdef LEAF
            if (meta.from_parent == 1) {
                name_worker();
            }
#endif
            result_to_group();
#ifdef LEAF
        } else if (meta.send_up == 1) {
            to_parent(OP_DATA);
            hdr.aggregation.present = hdr.aggregation.active & meta.present;
#endif
        } else if (meta.outcome == OUTCOME_REPLAYED) {
            result_to_sender();
        } else if (meta.outcome == OUTCOME_AHEAD) {
#ifdef LEAF
            if (meta.from_parent == 1) {
                name_worker();
                status();
                to_group();
            } else
#endif
            status_to_sender();
        } else if (meta.outcome == OUTCOME_MISMATCH) {
            if (hdr.aggregation.op == OP_ERROR) {
                without_values(hdr.keys[0].key);
            } else {
                disagreement();
            }
#ifdef LEAF
            if (meta.from_parent == 1) {
                hdr.aggregation.worker = NOBODY;
            }
            if (meta.parent_bit != 0 && meta.from_parent == 0) {
                to_parent(OP_ERROR);
            } else
#endif
            error_to_group();
        } else if (meta.outcome == OUTCOME_QUERY) {
            tell_state();
        } else if (meta.outcome == OUTCOME_HELLO || meta.outcome == OUTCOME_RESET) {
            to_controller();
        } else {
            drop();
        }
    }
}

// Measure: the UDP length of the reply, which has the values of the lanes in `present`.
control Measure(in headers_t hdr, out bit<16> length) {
    apply {
        length = BARE_LENGTH;
#define ADD_LENGTH(i) if (hdr.aggregation.present[i:i] == 1) { length = length + LANE_LENGTH; }
        FOR_EACH_LANE(ADD_LENGTH)
    }
}

control Lengths(inout headers_t hdr, in bit<16> length) {
    apply {
        hdr.udp.length = length;
        hdr.ipv4.total_length = length + 20;
    }
}

// LeaveOut: removes the values of lanes that are not in `present`.
control LeaveOut(inout headers_t hdr) {
    apply {
#define LEAVE_OUT(i) if (hdr.aggregation.present[i:i] == 0) { hdr.values[i].setInvalid(); }
        FOR_EACH_LANE(LEAVE_OUT)
    }
}
