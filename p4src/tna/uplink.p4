// SPDX-License-Identifier: Apache-2.0
// Uplink: the switch's position in a job's tree, with the same table as include/uplink.p4.
//
// It is looked up beside the sender's entry, so it only computes the differences between the parent's addresses and
// number and the packet's. The packet is from the parent if those of the addresses are 0. `restore` turns them into the
// parent's. The port is treated in the same way, because the assembler fails if it is copied.
control Uplink(in headers_t hdr, inout metadata_t meta) {
    action uplink(port_t port, mac_t mac, ipv4_t ip, bit<16> udp_port, bit<8> worker) {
        meta.below = 1;
        meta.parent_port = meta.ingress_port ^ port;
        meta.parent_mac = mac;
        meta.parent_ip = hdr.ipv4.src ^ ip;
        meta.parent_udp_port = hdr.udp.src_port ^ udp_port;
        meta.parent_worker = hdr.aggregation.worker ^ worker;
    }

    table uplinks {
        key = { hdr.aggregation.job : exact @name("job"); }
        actions = { uplink; @defaultonly NoAction; }
        default_action = NoAction;
        size = 4096;
    }

    apply {
        uplinks.apply();
    }
}

// Verdict: whether the packet is from the parent, and the outcome of one that may not reach its slot
// (include/verdict.p4).
//
// The parent's entry in the table of jobs is that of worker PARENT. The parser looks for it with a RESULT or STATUS. It
// cannot know whether an ERROR is from the parent or from a worker, and looks for the worker's first. So an ERROR of
// the parent is submitted again, and then its entry is the parent's. A packet to another address passes as it is, also
// if the parent sent it.
control Verdict(in headers_t hdr, inout metadata_t meta) {
    @hidden action parent() { meta.from_parent = 1; }
    @hidden action forbidden() { meta.outcome = OUTCOME_FORBIDDEN; }
    @hidden action not_admitted() { meta.outcome = OUTCOME_NOT_ADMITTED; }
    @hidden action bad_slot() { meta.outcome = OUTCOME_BAD_SLOT; }
    @hidden action submit_again() { meta.step = STEP_AGAIN; }

#define FROM_PARENT 1, 1, 0, 0
#define FROM_ANYONE _, _, _, _
#define STARTED_OR_MISMATCH OUTCOME_STARTED &&& ~OUTCOME_MISMATCH
#define RESULT_OR_STATUS OP_RESULT &&& OP_RESULT | ~OP_STATUS
#define BAD_SLOTS(sender) \
            (STARTED_OR_MISMATCH, _, sender, 1, _, 0, _, _) : bad_slot(); \
            (STARTED_OR_MISMATCH, _, sender, 1, _, _, 0, 1) : bad_slot(); \
            (STARTED_OR_MISMATCH, _, sender, 1, _, _, 1, 0) : bad_slot();
    @hidden table verdict {
        key = {
            meta.outcome         : ternary;
            hdr.aggregation.op   : ternary;
            meta.own             : ternary;
            meta.below           : ternary;
            meta.parent_ip       : ternary;
            meta.parent_udp_port : ternary;
            meta.admitted        : ternary;
            meta.member          : ternary;
            meta.room            : ternary;
            hdr.aggregation.slot[0:0] : ternary @name("half_of_slot");
            hdr.aggregation.seq[0:0]  : ternary @name("half_of_seq");
        }
        actions = { parent; forbidden; not_admitted; bad_slot; submit_again; @defaultonly NoAction; }
        const entries = {
            (OUTCOME_STARTED, OP_DATA, FROM_PARENT, _, _, _, _, _)     : forbidden();
            (STARTED_OR_MISMATCH, _, FROM_PARENT, 0, PARENT, _, _, _)  : not_admitted();
            (STARTED_OR_MISMATCH, _, FROM_PARENT, 0, _, _, _, _)       : submit_again();
            BAD_SLOTS(FROM_PARENT)
            (STARTED_OR_MISMATCH, _, FROM_PARENT, 1, _, _, _, _)       : parent();
            (OUTCOME_STARTED, RESULT_OR_STATUS, FROM_ANYONE, _, _, _, _, _) : forbidden();
            (STARTED_OR_MISMATCH, _, FROM_ANYONE, 0, _, _, _, _)       : not_admitted();
            BAD_SLOTS(FROM_ANYONE)
        }
        const default_action = NoAction;
        size = 16;
    }

    apply {
        verdict.apply();
    }
}

// EnvoyName: the worker that the parent's packet names for the workers here (include/uplink.p4). Afterwards the
// metadata has the parent's port, addresses and number, which the reply needs.
control EnvoyName(inout headers_t hdr, inout metadata_t meta) {
    @hidden action name(bit<8> worker) { hdr.aggregation.worker = worker; }
    @hidden table envoy {
        key = {
            meta.from_parent   : ternary;
            meta.parent_worker : ternary;  // 0: the packet names this switch
            meta.seq           : ternary;  // the envoy's bit; 0 for an ERROR
        }
        actions = { name; @defaultonly NoAction; }
        const entries = {
#define ENVOY_ROW(w) (1, 0, 32w1 << w) : name(w);
            REPEAT_32(ENVOY_ROW)
            (1, _, _) : name(NOBODY);
        }
        const default_action = NoAction;
        size = 64;
    }

    @hidden action restore() {
        meta.parent_port = meta.ingress_port ^ meta.parent_port;
        meta.parent_ip = hdr.ipv4.src ^ meta.parent_ip;
        meta.parent_udp_port = hdr.udp.src_port ^ meta.parent_udp_port;
        meta.parent_worker = hdr.aggregation.worker ^ meta.parent_worker;
    }

    apply {
        envoy.apply();
        restore();
    }
}
