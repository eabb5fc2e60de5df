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
#define NOTE_AGGREGATION
#include "../include/parser_states.p4"
}

control PacketDeparser(packet_out pkt, in headers_t hdr) {
    apply {
        EMIT_FRAME
    }
}
