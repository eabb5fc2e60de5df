// SPDX-License-Identifier: Apache-2.0
// The one home of every number of the protocol. Python and C are checked against this file.
#ifndef P4REDUCE_CONSTANTS_P4
#define P4REDUCE_CONSTANTS_P4

// Build parameters: p4c -DLANES=1 -DBLOCK_SIZE=32 -DSLOTS=128 ...
#ifndef LANES
#define LANES 4         // blocks that a packet can carry: 1, 2, 4 or 8
#endif
#ifndef BLOCK_SIZE
#define BLOCK_SIZE 64   // int32 values a block: 32, 64, 128 or 256
#endif
#ifndef SLOTS
#define SLOTS 512       // slots of the whole switch, shared by its jobs
#endif
#ifndef CPU_PORT
#define CPU_PORT 510    // where packet-in and packet-out go
#endif

#ifndef MAX_GROWTH
#define MAX_GROWTH 512  // bytes that an answer may be longer than the packet it is made of: BMv2 has no room for more
#endif

#define HALVES (2 * SLOTS)
#define ALL_LANES ((1 << LANES) - 1)

const bit<4>  PROTOCOL_VERSION = 1;
const bit<16> AGGREGATION_PORT = 0x7A52;

const bit<4> OP_DATA   = 1;
const bit<4> OP_RESULT = 2;
const bit<4> OP_STATUS = 3;
const bit<4> OP_ERROR  = 4;
const bit<4> OP_RESET  = 5;
const bit<4> OP_QUERY  = 6;
const bit<4> OP_ABORT  = 7;
const bit<4> OP_HELLO  = 8;

@noWarn("unused")  // Tofino asks its registers without taking a minimum
const bit<32> NO_KEY = 0xFFFFFFFF;

// A switch that has a parent counts it as a worker of its own, the last one.
@noWarn("unused")
const bit<8>  PARENT = 31;
@noWarn("unused")
const bit<32> PARENT_BIT = 0x80000000;
@noWarn("unused")
const bit<8>  NOBODY = 255;  // in `worker` on the way down: none of this switch's workers

// What became of a packet to the aggregator: the index into the counter `outcomes`.
const bit<8>  OUTCOME_STARTED      = 0;   // newer round: the half started over
const bit<8>  OUTCOME_ADDED        = 1;   // added to a round under way
const bit<8>  OUTCOME_COMPLETED    = 2;   // filled the bitmap (counted besides STARTED, ADDED or STORED)
const bit<8>  OUTCOME_STALE        = 3;   // of an older round: dropped
const bit<8>  OUTCOME_MISMATCH     = 4;   // fingerprint differs, here or elsewhere: ERROR to all
const bit<8>  OUTCOME_AHEAD        = 5;   // already counted, others awaited: STATUS to the sender
const bit<8>  OUTCOME_REPLAYED     = 6;   // already complete: RESULT to the sender
const bit<8>  OUTCOME_NOT_ADMITTED = 7;   // no such member of a job: dropped
const bit<8>  OUTCOME_BAD_SLOT     = 8;   // slot outside the job's pool, or of the wrong half: dropped
const bit<8>  OUTCOME_MALFORMED    = 9;   // truncated, wrong version, length or lanes, or contradicts itself: dropped
const bit<8>  OUTCOME_FORBIDDEN    = 10;  // an op that its sender may not use: dropped
const bit<8>  OUTCOME_HELLO        = 11;  // told to the controller
const bit<8>  OUTCOME_RESET        = 12;
const bit<8>  OUTCOME_QUERY        = 13;
@noWarn("unused")
const bit<8>  OUTCOME_SENT_UP      = 14;  // partial sums to the parent (the first time counted besides STARTED or ADDED)
@noWarn("unused")
const bit<8>  OUTCOME_STORED       = 15;  // the parent's RESULT taken (counted besides COMPLETED)
const bit<8>  OUTCOME_HELLO_LIMITED = 16; // more of them than the port may send: dropped
#define OUTCOMES 17

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<16> ETHERTYPE_VLAN = 0x8100;  // IEEE 802.1Q
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88A8;  // IEEE 802.1ad
const bit<8>  PROTOCOL_ICMP  = 1;
const bit<8>  PROTOCOL_UDP   = 17;
const bit<16> ARP_REQUEST    = 1;
const bit<16> ARP_REPLY      = 2;
const bit<8>  ICMP_ECHO_REPLY   = 0;
const bit<8>  ICMP_ECHO_REQUEST = 8;
const bit<8>  DEFAULT_TTL    = 64;

#endif
