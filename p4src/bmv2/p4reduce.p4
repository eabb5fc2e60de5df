// SPDX-License-Identifier: Apache-2.0
// The aggregator as a switch program for BMv2's v1model architecture.
#include <core.p4>
#include <v1model.p4>

#include "../include/constants.p4"
#include "metadata.p4"
#include "parser.p4"
#include "checksums.p4"
#include "drop_simulator.p4"
#include "../include/own_address.p4"
#include "own_answers_ipv6.p4"
#include "../include/forwarding.p4"
#include "../include/uplink.p4"
#include "../include/admission.p4"
#include "../include/verdict.p4"
#include "slot_state.p4"
#include "lane.p4"
#include "../include/replies.p4"
#include "../include/lengths.p4"
#include "aggregation.p4"
#include "../include/delivery.p4"

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    DropSimulator() drop_simulator;
    OwnAddress() own_address;
    OwnAnswers() own_answers;
    OwnAnswersIpv6() own_answers_ipv6;
    Aggregation() aggregation;
    Forwarding() forwarding;

    counter(512, CounterType.packets_and_bytes) forgeries;  // frames with the switch's source address, by ingress port

    bit<1> lost = 0;

    apply {
        meta.ingress_port = standard.ingress_port;
        meta.from_cpu = standard.ingress_port == CPU_PORT ? 1w1 : 1w0;
        meta.truncated = standard.parser_error != error.NoError ? 1w1 : 1w0;
        meta.bad_checksum = standard.checksum_error;

        bit<1> to_aggregator = 0;
        bit<1> to_forwarding = 0;
        if (meta.from_cpu == 1) {
            if (hdr.packet_out.through_pipeline == 0) {
                meta.egress_port = hdr.packet_out.egress_port;
            } else if (!hdr.aggregation.isValid()) {
                to_forwarding = 1;
            } else if (hdr.aggregation.op == OP_ABORT) {
                meta.multicast_group = hdr.packet_out.multicast_group;
            } else {
                to_aggregator = 1;
            }
            hdr.packet_out.setInvalid();
        } else {
            drop_simulator.apply(standard.ingress_port, lost);
            if (lost == 1) {
                meta.drop = 1;
            } else {
                own_address.apply(meta);
                if (meta.own == 1) {
                    if (hdr.aggregation.isValid()) {
                        to_aggregator = 1;
                    } else if (hdr.ipv6.isValid()) {
                        own_answers_ipv6.apply(hdr, meta);
                    } else {
                        own_answers.apply(hdr, meta);
                    }
                } else if (meta.forged == 1) {
                    meta.drop = 1;
                    forgeries.count((bit<32>)meta.ingress_port);
                } else {
                    to_forwarding = 1;
                }
            }
        }
        if (to_aggregator == 1) {
            aggregation.apply(hdr, meta);
        } else if (to_forwarding == 1) {
            forwarding.apply(hdr, meta);
        }

        if (meta.drop == 1) {
            mark_to_drop(standard);
        } else if (meta.multicast_group != 0) {
            standard.mcast_grp = meta.multicast_group;
        } else {
            standard.egress_spec = meta.egress_port;
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    DropSimulator() drop_simulator;
    Delivery() delivery;

    bit<1> lost = 0;

    apply {
        delivery.apply(hdr, standard.egress_rid);
        if (meta.bridged == 1 && standard.egress_port == meta.ingress_port) {
            lost = 1;
        } else if (meta.growth > MAX_GROWTH - TAG_LENGTH && meta.vlan == 0 && hdr.tag.isValid()
            && hdr.aggregation.op == OP_RESULT) {
            lost = 1;  // the tag makes it too long. Its receiver asks again with a packet that has a tag.
        } else if (standard.egress_port != CPU_PORT) {
            drop_simulator.apply(standard.egress_port, lost);
        }
        if (lost == 1) {
            mark_to_drop(standard);
        }
    }
}

@pkginfo(name="p4reduce", version="1.0.0")
V1Switch(PacketParser(), VerifyChecksums(), SwitchIngress(), SwitchEgress(), UpdateChecksums(), PacketDeparser()) main;
