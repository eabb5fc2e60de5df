// SPDX-License-Identifier: Apache-2.0
#ifndef P4REDUCE_TNA_METADATA_P4
#define P4REDUCE_TNA_METADATA_P4

// Bridge header, from ingress to egress: facts that the egress parser cannot see in the packet. An action can write at
// most two sources into one container, so each field has a container of its own.
header bridge_h {
    @padding bit<7> before_bridged;
    bit<1>   bridged;          // forwarded by MAC: does not leave by its ingress port
    @padding bit<7> before_update_checksum;
    bit<1>   update_checksum;  // the IPv4 checksum was right, so it is computed again
    @padding bit<7> before_aggregation;
    bit<1>   aggregation;      // has an aggregation header, and is not a packet-in
    @padding bit<7> before_ingress_port;
    PortId_t ingress_port;
}

#ifdef SECOND_PASS
// Harvest header, from the first pass to the second: the half that has the sums, and where the reply goes.
header harvest_h {
    bit<16> half;
    bit<16> multicast_group;
    @padding bit<7> before_egress_port;
    PortId_t egress_port;    // if multicast_group is 0
}
#define ARCHITECTURE_HEADERS bridge_h bridge; harvest_h harvest; harvest_h harvested;
#else
#define ARCHITECTURE_HEADERS bridge_h bridge;
#endif

#ifdef LEAF
#define MAY_BE_LOST fresh
typedef bit<4> step_t;
#else
#define MAY_BE_LOST from_port
typedef bit<3> step_t;
#endif

// Values of `step`: the action for this packet. 0: none yet.
const step_t STEP_DATA    = 1;
const step_t STEP_RESET   = 2;
const step_t STEP_QUERY   = 3;
const step_t STEP_HARVEST = 4;  // second pass
const step_t STEP_SEND    = 5;  // packet-out that leaves unchanged
#ifdef LEAF
const step_t STEP_STORE   = 6;  // RESULT from the parent
const step_t STEP_STATUS  = 7;  // STATUS from the parent
const step_t STEP_AGAIN   = 8;  // ERROR from the parent, which is submitted again
#endif

// Metadata of this architecture. Only a stateful ALU can compare two 32-bit words. So stateful ALUs give one bit for
// each comparison (newer, live, same), and tables with constant entries decide by those bits.
//   from_port       1: from a port; 0: from the controller, or second pass.
//   fresh           1: from a port, and not submitted again.
//   margin          not 0: the drop simulator loses the packet.
//   step            STEP_DATA ...
//   newer           1: the packet's round is newer than the half's.
//   live            1: it is the half's round, which has not been reset.
//   same            1: it has the fingerprint of the half's operation.
//   others          bits of the workers here, without the sender's and the parent's.
//   noted           fingerprint of the packet, with HAS_VALUES and IS_MARKED (slot_state.p4) of this packet.
//   of_envoy        1: the sender is the worker whose packet completed the rack's round.
//   missing         0: only the sender was missing in the bitmap.
//   lacking         0: the bitmap was full.
//   update_checksum see bridge_h.
//   active          lanes of the packet as it came; the reply overwrites the header before the last sums are read.
#ifdef LEAF
#define IF_LEAF(text) text
#else
#define IF_LEAF(text)
#endif
#define ARCHITECTURE_METADATA \
    bit<1> from_port; IF_LEAF(bit<1> fresh;) bit<16> margin; step_t step; bit<1> newer; bit<1> live; bit<1> same; \
    IF_LEAF(bit<32> noted; bit<1> of_envoy;) \
    bit<32> others; bit<32> missing; bit<32> lacking; bit<1> update_checksum; bit<8> active;

// Direct counters of tables. In TNA the actions count.
#define DIRECT_COUNTER(name) DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) name
#define COUNT_DIRECTLY(name) name.count(SURPLUS_IN);

typedef bit<16> half_t;

#include "../include/headers.p4"
#include "../include/metadata.p4"

#endif
