// SPDX-License-Identifier: Apache-2.0
// The numbers of the protocol. Python and C repeat them, and tests compare those copies with this file.
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
#define CPU_PORT 510    // port of packet-ins and packet-outs
#endif

#ifndef MAX_GROWTH
#define MAX_GROWTH 512  // bytes by which a reply may be longer than the packet that it is made of: BMv2's headroom
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

@noWarn("unused")  // Tofino has actions that read a register without taking a minimum
const bit<32> NO_KEY = 0xFFFFFFFF;

// A switch that has a parent counts the parent as one of its own workers, the last one.
@noWarn("unused")
const bit<8>  PARENT = 31;
@noWarn("unused")
const bit<32> PARENT_BIT = 0x80000000;
@noWarn("unused")
const bit<8>  NOBODY = 255;  // `worker` of a packet from the parent that concerns none of this switch's workers

// Outcomes of a packet to the aggregator. They are the indices of the counter `outcomes`.
const bit<8>  OUTCOME_STARTED      = 0;   // first packet of a newer round: the half starts over
const bit<8>  OUTCOME_ADDED        = 1;   // added to the current round
const bit<8>  OUTCOME_COMPLETED    = 2;   // last packet of the round (counted besides STARTED, ADDED or STORED)
const bit<8>  OUTCOME_STALE        = 3;   // of an older round: dropped
const bit<8>  OUTCOME_MISMATCH     = 4;   // fingerprint differs, here or at another switch: ERROR to all
const bit<8>  OUTCOME_AHEAD        = 5;   // already added, waiting for others: STATUS to the sender
const bit<8>  OUTCOME_REPLAYED     = 6;   // round already complete: RESULT to the sender
const bit<8>  OUTCOME_NOT_ADMITTED = 7;   // no worker of the job: dropped
const bit<8>  OUTCOME_BAD_SLOT     = 8;   // slot outside the job's pool, or the wrong half: dropped
const bit<8>  OUTCOME_MALFORMED    = 9;   // truncated, or wrong version, length or lanes: dropped
const bit<8>  OUTCOME_FORBIDDEN    = 10;  // op that this sender may not use: dropped
const bit<8>  OUTCOME_HELLO        = 11;  // forwarded to the controller
const bit<8>  OUTCOME_RESET        = 12;
const bit<8>  OUTCOME_QUERY        = 13;
@noWarn("unused")
const bit<8>  OUTCOME_SENT_UP      = 14;  // partial sums sent to the parent (first: counted besides STARTED or ADDED)
@noWarn("unused")
const bit<8>  OUTCOME_STORED       = 15;  // parent's RESULT stored (counted besides COMPLETED)
const bit<8>  OUTCOME_HELLO_LIMITED = 16; // HELLO above the port's rate: dropped
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
const bit<8>  DEFAULT_TTL    = 64;  // IPv6: hop limit
const bit<2>  ECN_CE         = 3;  // a router had a long queue (RFC 3168)

#endif
