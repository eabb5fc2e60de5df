// SPDX-License-Identifier: Apache-2.0
// The aggregator as a switch program for the Tofino Native Architecture. docs/tofino.md explains how it fits.
#if __TARGET_TOFINO__ == 1
#include <tna.p4>
#else
#include <t2na.p4>
#endif

#include "../include/constants.p4"
#include "profile.p4"
#include "metadata.p4"
#include "parser.p4"
#include "drop_simulator.p4"
#include "../include/own_address.p4"
#include "../include/forwarding.p4"
#ifdef LEAF
#include "uplink.p4"
#endif
#include "../include/admission.p4"
#ifndef LEAF
#include "../include/verdict.p4"
#endif
#include "slot_state.p4"
#include "lane.p4"
#ifdef LEAF
#include "replies.p4"
#else
#include "../include/replies.p4"
#endif
#include "../include/lengths.p4"
#include "aggregation.p4"
#include "../include/delivery.p4"

// Fields that are needed up to the last stage, by the sums or by decisions beside them. If the compiler gave such a
// field's container to another field afterwards, that field's table would have to wait for the last sum.
#define UNSHARED(field) @pa_no_overlay("ingress", field)
UNSHARED("meta.active")
UNSHARED("meta.half")
UNSHARED("meta.step")
UNSHARED("meta.newer")
UNSHARED("meta.live")
UNSHARED("meta.same")
UNSHARED("meta.worker_bit")
UNSHARED("meta.bitmap")
UNSHARED("meta.outcome")
UNSHARED("meta.complete")
#ifdef LEAF
UNSHARED("meta.send_up")
#endif
// Three tables of one stage write these fields, so they need three containers.
@pa_no_pack("ingress", "meta.newer", "meta.live")
@pa_no_pack("ingress", "meta.newer", "meta.same")
@pa_no_pack("ingress", "meta.live", "meta.same")
control SwitchIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
        in ingress_intrinsic_metadata_from_parser_t parsed, inout ingress_intrinsic_metadata_for_deparser_t deparser,
        inout ingress_intrinsic_metadata_for_tm_t traffic_manager) {
    DropSimulator(SURPLUS_IN) drop_simulator;
    OwnAddress() own_address;
    OwnAnswers() own_answers;
    LeaveOut() leave_out;
    Aggregation() aggregation;
    Forwarding() forwarding;

    // Frames with the switch's source address, by ingress port.
    Counter<bit<64>, port_t>(512, CounterType_t.PACKETS_AND_BYTES) forgeries;

    @hidden action forgery() {
        meta.drop = 1;
        forgeries.count(meta.ingress_port, SURPLUS_IN);
    }

#ifdef SECOND_PASS
    @hidden action send_round(port_t port) {
        hdr.harvest.setValid();
        hdr.harvest.half = meta.half;
        hdr.harvest.multicast_group = meta.multicast_group;
        hdr.harvest.egress_port = meta.egress_port;
        traffic_manager.ucast_egress_port = port;
        traffic_manager.bypass_egress = 1;
    }
    // To the recirculation port of the same pipe. The upper two bits of a port's number are the pipe's number.
#define OF_PIPE(n) n << 7 &&& 0x180 : send_round(n << 7 | RECIRCULATION_PORT);
    @hidden table second_pass {
        key = { meta.ingress_port : ternary; }
        actions = { send_round; @defaultonly NoAction; }
        const entries = {
            OF_PIPE(0)
            OF_PIPE(1)
            OF_PIPE(2)
            OF_PIPE(3)
        }
        const default_action = NoAction;
        size = 4;
    }
#endif

    @hidden action send(bit<1> ours, bit<1> update_checksum) {
        hdr.bridge.setValid();
        hdr.bridge.bridged = meta.bridged;
        hdr.bridge.update_checksum = update_checksum;
        hdr.bridge.aggregation = ours;
        hdr.bridge.ingress_port = meta.ingress_port;
    }

    apply {
        drop_simulator.apply(meta.MAY_BE_LOST, meta.ingress_port, meta.margin);
        if (meta.from_port == 1) {
            own_address.apply(meta);
        } else if (meta.from_cpu == 1 && hdr.aggregation.isValid()) {
            if (hdr.aggregation.op == OP_ABORT) {
                meta.multicast_group = hdr.packet_out.multicast_group;
            } else {
                meta.own = 1;
            }
        }
        if (meta.step == STEP_HARVEST || (hdr.ipv4.isValid() && hdr.ipv4.ihl == 5 && meta.bad_checksum == 0)) {
            meta.update_checksum = 1;
        }
        if (meta.from_port == 1 && meta.own == 0 && meta.forged == 1 && meta.margin == 0) {
            forgery();
        }
        aggregation.apply(hdr, meta, parsed.parser_err);
        if (meta.step == 0) {
            if (meta.own == 0 && ((meta.from_port == 1 && meta.forged == 0)
                || (meta.from_port == 0 && !hdr.aggregation.isValid()))) {
                forwarding.apply(hdr, meta);
            } else if (meta.own == 1 && !hdr.aggregation.isValid()) {
                own_answers.apply(hdr, meta);
            }
        }

        if (meta.margin != 0 || meta.drop == 1) {
            deparser.drop_ctl = 1;
#ifdef LEAF
        } else if (meta.step == STEP_AGAIN) {
            deparser.resubmit_type = SUBMIT_AGAIN;
#endif
#ifdef SECOND_PASS
        } else if (hdr.aggregation.present == 1 && (meta.complete == 1 || meta.outcome == OUTCOME_REPLAYED
            || meta.outcome == OUTCOME_QUERY)) {
            second_pass.apply();
#endif
        } else {
            if (hdr.packet_in.isValid()) {
                send(0, 0);
            } else if (hdr.aggregation.isValid()) {
                send(1, meta.update_checksum);
            } else {
                send(0, meta.update_checksum);
            }
            if (meta.multicast_group != 0) {
                traffic_manager.mcast_grp_a = meta.multicast_group;
            } else {
                traffic_manager.ucast_egress_port = meta.egress_port;
            }
        }
        // A packet that goes to the second pass keeps the lanes of the reply: `present` names them already.
        if (hdr.aggregation.isValid() && meta.own == 1) {
            leave_out.apply(hdr);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
        in egress_intrinsic_metadata_from_parser_t parsed, inout egress_intrinsic_metadata_for_deparser_t deparser,
        inout egress_intrinsic_metadata_for_output_port_t output) {
    DropSimulator(SURPLUS_OUT) drop_simulator;
    Delivery() delivery;

    apply {
        delivery.apply(hdr, intrinsic.egress_rid);
        if (meta.bridged == 1 && intrinsic.egress_port == meta.ingress_port) {
            deparser.drop_ctl = 1;
        } else if (intrinsic.egress_port != CPU_PORT) {
            drop_simulator.apply(1, intrinsic.egress_port, meta.margin);
            if (meta.margin != 0) {
                deparser.drop_ctl = 1;
            }
        }
    }
}

Pipeline(IngressParser(), SwitchIngress(), IngressDeparser(), EgressParser(), SwitchEgress(), EgressDeparser()) pipe;

@pkginfo(name="p4reduce", version="1.0.0")
Switch(pipe) main;
