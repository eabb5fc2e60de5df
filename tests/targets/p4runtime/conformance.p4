// SPDX-License-Identifier: Apache-2.0
// One object of each kind that P4Runtime can write to, for the tests of P4Runtime servers.
// p4c-bm2-ss --p4runtime-files conformance.p4info.txtpb -o conformance.json conformance.p4
#include <core.p4>
#include <v1model.p4>

typedef bit<9> port_t;
const port_t CPU_PORT = 510;

@controller_header("packet_out")
header packet_out_h {
    bit<3>  kind;
    bit<9>  egress_port;
    bit<4>  padding;
    bit<16> group;
}

@controller_header("packet_in")
header packet_in_h {
    bit<7>  padding;
    bit<9>  ingress_port;
    bit<12> tag;
    bit<4>  rest;
}

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    packet_out_h packet_out;
    packet_in_h  packet_in;
    ethernet_h   ethernet;
}

struct metadata_t {
    bit<12> tag;
}

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
    state parse_ethernet {
        pkt.extract(hdr.ethernet);
        transition accept;
    }
}

control NoChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(8, CounterType.packets_and_bytes) cells;
    counter(4, CounterType.packets) packets_only;
    register<bit<32>>(4) numbers;
    direct_counter(CounterType.packets_and_bytes) exact_hits;

    action forward(port_t port) {
        standard.egress_spec = port;
    }
    action set_tag(bit<12> tag, bit<4> other) {
        meta.tag = tag + (bit<12>)other;
    }
    action discard() {
        mark_to_drop(standard);
    }

    table exact_table {
        key = { hdr.ethernet.dst : exact @name("dst"); }
        actions = { forward; discard; @tableonly set_tag; @defaultonly NoAction; }
        default_action = NoAction;
        counters = exact_hits;
        size = 4;
    }
    table ternary_table {
        key = { hdr.ethernet.src : ternary @name("src"); hdr.ethernet.type : exact @name("type"); }
        actions = { set_tag; NoAction; }
        default_action = set_tag(1, 0);
        size = 64;
    }
    table lpm_table {
        key = { hdr.ethernet.dst : lpm @name("dst"); }
        actions = { set_tag; NoAction; }
        const default_action = NoAction;
        size = 64;
    }
    table constant_table {
        key = { hdr.ethernet.type : exact @name("type"); }
        actions = { set_tag; NoAction; }
        default_action = NoAction;
        const entries = {
            0x88B6 : set_tag(0x123, 0);
        }
    }

    apply {
        if (hdr.packet_out.isValid()) {
            cells.count((bit<32>)hdr.packet_out.kind);
            packets_only.count(0);
            if (hdr.packet_out.group != 0) {
                standard.mcast_grp = hdr.packet_out.group;
            } else {
                standard.egress_spec = hdr.packet_out.egress_port;
            }
        }
        bit<32> number;
        numbers.read(number, 0);
        numbers.write(0, number + 1);
        constant_table.apply();
        ternary_table.apply();
        lpm_table.apply();
        exact_table.apply();
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.packet_out.setInvalid();
        if (standard.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.padding = 0;
            hdr.packet_in.ingress_port = standard.ingress_port;
            hdr.packet_in.tag = meta.tag;
            hdr.packet_in.rest = (bit<4>)standard.egress_rid;
        }
    }
}

control PacketDeparser(packet_out pkt, in headers_t hdr) {
    apply {
        pkt.emit(hdr.packet_in);
        pkt.emit(hdr.ethernet);
    }
}

V1Switch(PacketParser(), NoChecksum(), SwitchIngress(), SwitchEgress(), NoChecksum(), PacketDeparser()) main;
