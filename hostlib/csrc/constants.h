// SPDX-License-Identifier: Apache-2.0
// The numbers of the protocol. Their home is p4src/include/constants.p4; a test holds this file to it.
#ifndef P4REDUCE_CONSTANTS_H
#define P4REDUCE_CONSTANTS_H

#include <stdint.h>

enum {
    PROTOCOL_VERSION = 1,
    MAX_WORKERS = 32, // of one switch
    MAX_RANKS = 255,  // of a job
    PARENT = 31,      // as which a switch that has a parent counts it
    NOBODY = 255,     // the worker that a packet names if it is none of those that read it
    MAX_LANES = 8,
    MAX_AGGREGATORS = 32, // over which a job's slots may be dealt
    MAX_GROWTH = 512,     // bytes that the switch's answer may be longer than the packet it is made of
};

// What a lane announces when no more blocks follow.
#define NO_KEY UINT32_C(0xFFFFFFFF)
#define MAX_STREAM_LENGTH (UINT64_C(1) << 24)

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

#endif
