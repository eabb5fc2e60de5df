// SPDX-License-Identifier: Apache-2.0
// What the chip and the block size decide. A packet has one lane, since its values fill most of the packet header vector.
#ifndef P4REDUCE_PROFILE_P4
#define P4REDUCE_PROFILE_P4

#if LANES != 1
#error "LANES must be 1 on Tofino"
#endif
#if BLOCK_SIZE == 64
#define PAIRS               // two values a register: 32 stateful ALUs hold a block
#elif BLOCK_SIZE != 32
#error "BLOCK_SIZE must be 32 or 64 on Tofino"
#endif

#if __TARGET_TOFINO__ == 1
#ifdef PAIRS
#define SECOND_PASS         // a stateful ALU returns one word a packet: the answer comes round again for the others
#endif
#else
#define GUARDED_KEYS        // there is a stage between bitmap and sums, so a key is taken only from who is not counted yet
#endif

#ifndef RECIRCULATION_PORT
#define RECIRCULATION_PORT 68  // of each pipe: the low 7 bits of its number
#endif

// What a byte counter counts beside the frame's bytes, and count() takes off: the check sequence, and at egress the bridge
// header.
#define SURPLUS_IN 4
#define SURPLUS_OUT (SURPLUS_IN + 5)

#endif
