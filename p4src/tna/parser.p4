// SPDX-License-Identifier: Apache-2.0
parser IngressParser(packet_in pkt, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;

    state start {
        meta = {...};
        pkt.extract(intrinsic);
        pkt.advance(PORT_METADATA_SIZE);
        meta.ingress_port = intrinsic.ingress_port;
#ifdef LEAF
        transition select(intrinsic.resubmit_flag, intrinsic.ingress_port) {
            (1, _): parse_again;
            (_, CPU_PORT): parse_packet_out;
#else
        transition select(intrinsic.ingress_port) {
            CPU_PORT: parse_packet_out;
            RECIRCULATION_PORT &&& 0x7F: parse_harvest;
#endif
            default: parse_from_port;
        }
    }

    state parse_from_port {
        meta.from_port = 1;
#ifdef LEAF
        meta.fresh = 1;
#endif
        transition parse_ethernet;
    }

#ifdef LEAF
    // An ERROR of the parent, which was sound when it came (Verdict).
    state parse_again {
        meta.from_port = 1;
        pkt.extract(hdr.ethernet);
        pkt.extract(hdr.ipv4);
        pkt.extract(hdr.udp);
        meta.address = hdr.ipv4.dst;
        transition aggregation_from_parent;
    }
#endif

    state parse_packet_out {
        pkt.extract(hdr.packet_out);
        transition select(hdr.packet_out.through_pipeline) {
            0: send_as_it_is;
            default: parse_from_controller;
        }
    }

    state send_as_it_is {
        meta.step = STEP_SEND;
        meta.egress_port = hdr.packet_out.egress_port;
        transition accept;
    }

    state parse_from_controller {
        meta.from_cpu = 1;
        transition parse_ethernet;
    }

#ifdef SECOND_PASS
    state parse_harvest {
        pkt.extract(hdr.harvested);
        meta.step = STEP_HARVEST;
        meta.half = hdr.harvested.half;
        meta.multicast_group = hdr.harvested.multicast_group;
        meta.egress_port = hdr.harvested.egress_port;
        transition select(hdr.harvested.egress_port) {
            CPU_PORT: parse_packet_in;
            default: parse_answer;
        }
    }

    state parse_packet_in {
        pkt.extract(hdr.packet_in);
        transition parse_answer;
    }

    state parse_answer {
        pkt.extract(hdr.ethernet);
        pkt.extract(hdr.ipv4);
        pkt.extract(hdr.udp);
        transition parse_aggregation;
    }
#endif

    // verify() returns true if the checksum is wrong.
#define CHECK_IPV4 ipv4_checksum.add(hdr.ipv4); meta.bad_checksum = (bit<1>)ipv4_checksum.verify();
#ifdef LEAF
#define PARSE_AGGREGATION \
    state parse_aggregation { \
        transition select(pkt.lookahead<bit<8>>()) { \
            (bit<8>)OP_RESULT &&& 0x0F: aggregation_from_parent; \
            (bit<8>)OP_STATUS &&& 0x0F: aggregation_from_parent; \
            default: aggregation_from_worker; \
        } \
    } \
    state aggregation_from_worker { \
        pkt.extract(hdr.aggregation); \
        meta.active = hdr.aggregation.active; \
        meta.member = hdr.aggregation.worker; \
        transition parse_keys; \
    } \
    state aggregation_from_parent { \
        pkt.extract(hdr.aggregation); \
        meta.active = hdr.aggregation.active; \
        meta.member = PARENT; \
        transition parse_keys; \
    }
#else
#define PARSE_AGGREGATION \
    state parse_aggregation { \
        pkt.extract(hdr.aggregation); \
        meta.member = hdr.aggregation.worker; \
        meta.active = hdr.aggregation.active; \
        transition parse_keys; \
    }
#endif
#include "../include/parser_states.p4"
}

control IngressDeparser(packet_out pkt, inout headers_t hdr, in metadata_t meta,
        in ingress_intrinsic_metadata_for_deparser_t deparser) {
#ifdef LEAF
    Resubmit(SUBMIT_AGAIN) resubmit;
#endif

    apply {
#ifdef LEAF
        if (deparser.resubmit_type == SUBMIT_AGAIN) {
            resubmit.emit();
        }
#endif
        pkt.emit(hdr.bridge);
#ifdef SECOND_PASS
        pkt.emit(hdr.harvest);
#endif
        EMIT_FRAME
    }
}

// The egress parser stops before keys and values, which egress does not change.
parser EgressParser(packet_in pkt, out headers_t hdr, out metadata_t meta, out egress_intrinsic_metadata_t intrinsic) {
    state start {
        meta = {...};
        pkt.extract(intrinsic);
        pkt.extract(hdr.bridge);
        meta.bridged = hdr.bridge.bridged;
        meta.update_checksum = hdr.bridge.update_checksum;
        meta.ingress_port = hdr.bridge.ingress_port;
        transition parse_ethernet;
    }

    state parse_ethernet {
        pkt.extract(hdr.ethernet);
        transition select(hdr.ethernet.type, hdr.bridge.update_checksum, hdr.bridge.aggregation) {
            (ETHERTYPE_IPV4, 1, _): parse_ipv4;
            (ETHERTYPE_IPV4, _, 1): parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        pkt.extract(hdr.ipv4);
        transition select(hdr.bridge.aggregation) {
            1: parse_aggregation;
            default: accept;
        }
    }

    state parse_aggregation {
        pkt.extract(hdr.udp);
        pkt.extract(hdr.aggregation);
        transition accept;
    }
}

// The checksum is computed again only where it was right. A frame with a wrong one is bridged unchanged, so that its
// receiver sees the error.
control EgressDeparser(packet_out pkt, inout headers_t hdr, in metadata_t meta,
        in egress_intrinsic_metadata_for_deparser_t deparser) {
    Checksum() ipv4_checksum;

    apply {
        if (meta.update_checksum == 1) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_FIELDS);
        }
        pkt.emit(hdr.ethernet);
        pkt.emit(hdr.ipv4);
        pkt.emit(hdr.udp);
        pkt.emit(hdr.aggregation);
    }
}
