// SPDX-License-Identifier: Apache-2.0
parser PacketParser(packet_in pkt, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }

    state parse_packet_out {
        pkt.extract(hdr.packet_out);
        transition parse_ethernet;
    }

#define CHECK_IPV4
#define PARSE_AGGREGATION \
    state parse_aggregation { \
        pkt.extract(hdr.aggregation); \
        meta.member = hdr.aggregation.worker; \
        transition parse_keys; \
    }
#include "../include/parser_states.p4"
}

control PacketDeparser(packet_out pkt, in headers_t hdr) {
    apply {
        EMIT_FRAME
    }
}
