// SPDX-License-Identifier: Apache-2.0
// The constants of the protocol, for the host library and the native switch. p4src/include/constants.p4 defines them,
// and hostlib/p4reduce/protocol/constants.py those that only software uses. A test keeps this file equal to both.
#ifndef P4REDUCE_WIRE_CONSTANTS_H
#define P4REDUCE_WIRE_CONSTANTS_H

#include <stdint.h>

enum {
    PROTOCOL_VERSION = 1,
    AGGREGATION_PORT = 0x7A52,
    MAX_WORKERS = 32, // at one switch
    MAX_RANKS = 4096, // in a job
    PARENT = 31,      // worker number that a switch gives its parent
    NOBODY = 255,     // worker number of a packet that names none of the workers that receive it
    MAX_LANES = 8,
    MAX_AGGREGATORS = 32, // over which a job's slots may be striped
    MAX_THREADS = 16,     // of a rank, which share its slots
    MAX_GROWTH = 512,     // bytes by which the switch's answer may be longer than the packet that it is made from
};

// Key that a lane announces when no more blocks follow.
#define NO_KEY UINT32_C(0xFFFFFFFF)
#define PARENT_BIT UINT32_C(0x80000000)

enum op {
    OP_DATA = 1,
    OP_RESULT = 2,
    OP_STATUS = 3,
    OP_ERROR = 4,
    OP_RESET = 5,
    OP_QUERY = 6,
    OP_ABORT = 7,
    OP_HELLO = 8,
};

// The outcome of a packet at the aggregator: the index into the counter `outcomes`.
enum outcome {
    OUTCOME_STARTED = 0,
    OUTCOME_ADDED = 1,
    OUTCOME_COMPLETED = 2,
    OUTCOME_STALE = 3,
    OUTCOME_MISMATCH = 4,
    OUTCOME_AHEAD = 5,
    OUTCOME_REPLAYED = 6,
    OUTCOME_NOT_ADMITTED = 7,
    OUTCOME_BAD_SLOT = 8,
    OUTCOME_MALFORMED = 9,
    OUTCOME_FORBIDDEN = 10,
    OUTCOME_HELLO = 11,
    OUTCOME_RESET = 12,
    OUTCOME_QUERY = 13,
    OUTCOME_SENT_UP = 14,
    OUTCOME_STORED = 15,
    OUTCOME_HELLO_LIMITED = 16,
    OUTCOMES = 17,
};

enum {
    ETHERTYPE_IPV4 = 0x0800,
    ETHERTYPE_ARP = 0x0806,
    ETHERTYPE_VLAN = 0x8100,
    ETHERTYPE_SERVICE_VLAN = 0x88A8,
    PROTOCOL_ICMP = 1,
    PROTOCOL_UDP = 17,
    ARP_REQUEST = 1,
    ARP_REPLY = 2,
    ICMP_ECHO_REPLY = 0,
    ICMP_ECHO_REQUEST = 8,
    DEFAULT_TTL = 64,
    ECN_MASK = 3,  // the field's bits in the TOS or traffic class (RFC 3168)
    ECN_ECT_0 = 2, // the sender reacts to marks
    ECN_CE = 3,    // marked: a router had a long queue
};

#endif
