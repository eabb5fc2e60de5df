// SPDX-License-Identifier: Apache-2.0
// Consequences of chip and block size. A packet has one lane, because its values fill most of the packet header vector.
#ifndef P4REDUCE_PROFILE_P4
#define P4REDUCE_PROFILE_P4

#if LANES != 1
#error "LANES must be 1 on Tofino"
#endif
#if BLOCK_SIZE == 64
#define PAIRS               // two values in a register, so that 32 stateful ALUs hold a block
#elif BLOCK_SIZE != 32
#error "BLOCK_SIZE must be 32 or 64 on Tofino"
#endif

#if __TARGET_TOFINO__ == 1
#ifdef PAIRS
#define SECOND_PASS         // a stateful ALU returns one word a packet: a second pass reads the other
#endif
#else
#define GUARDED             // a stage lies between bitmap and sums, so a worker's packet counts only once
#endif

#ifndef SECOND_PASS
#define LEAF                // can be below another switch; with second passes, the packet header vector lacks the room
#endif

#ifndef RECIRCULATION_PORT
#define RECIRCULATION_PORT 68  // low 7 bits of the port's number, in each pipe
#endif

#define SUBMIT_AGAIN 1         // resubmit_type of a packet that goes through ingress once more

// Bytes that a byte counter counts besides the frame's, and that count() subtracts: the frame check sequence, and at
// egress the bridge header.
#define SURPLUS_IN 4
#define SURPLUS_OUT (SURPLUS_IN + 5)

#endif
