// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_TNA_METADATA_P4
#define P4REDUCE_TNA_METADATA_P4

// From ingress to egress: what a parser cannot see in the packet. A container takes two sources in one action at most,
// so each field has its own.
header bridge_h {
    @padding bit<7> before_bridged;
    bit<1>   bridged;          // by L2: not back to where it came from
    @padding bit<7> before_update_checksum;
    bit<1>   update_checksum;  // of an IPv4 header that was right
    @padding bit<7> before_aggregation;
    bit<1>   aggregation;      // of ours, and not a packet-in
    @padding bit<7> before_ingress_port;
    PortId_t ingress_port;
}

#ifdef SECOND_PASS
// From the first pass to the second: where the sums are and where the answer goes then.
header harvest_h {
    bit<16> half;
    bit<16> multicast_group;
    @padding bit<7> before_egress_port;
    PortId_t egress_port;    // where there is no group
}
#define ARCHITECTURE_HEADERS bridge_h bridge; harvest_h harvest; harvest_h harvested;
#else
#define ARCHITECTURE_HEADERS bridge_h bridge;
#endif

// What is to be done, at the slot half or else; 0: nothing, so far.
const bit<3> STEP_DATA    = 1;
const bit<3> STEP_RESET   = 2;
const bit<3> STEP_QUERY   = 3;
const bit<3> STEP_HARVEST = 4;  // of the second pass
const bit<3> STEP_SEND    = 5;  // a packet-out that goes as it is

// Only a stateful ALU compares 32 bits with 32 bits. So those give answers of one bit each, and tables with constant
// entries decide.
//   from_port       neither from the controller nor of the second pass
//   margin          not 0: the drop simulator loses the packet
//   step            what is to be done
//   newer           than the half's round
//   live            of the round that is under way in the half, or complete
//   same            of the same operation
//   others          full bitmap without the sender
//   missing         0: only the sender was missing
//   lacking         0: nobody was missing
//   update_checksum as bridged
//   active          as the packet came; an answer changes the packet before the last sums are through
#define ARCHITECTURE_METADATA \
    bit<1> from_port; bit<16> margin; bit<3> step; bit<1> newer; bit<1> live; bit<1> same; \
    bit<32> others; bit<32> missing; bit<32> lacking; bit<1> update_checksum; bit<8> active;

// Of a table's entries: their actions count.
#define DIRECT_COUNTER(name) DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) name
#define COUNT_DIRECTLY(name) name.count(SURPLUS_IN);

typedef bit<16> half_t;

#include "../include/headers.p4"
#include "../include/metadata.p4"

#endif
