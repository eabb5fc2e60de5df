// SPDX-License-Identifier: Apache-2.0
// A slot's rounds: what its packets say, and what a RESULT means.
#ifndef P4REDUCE_ROUNDS_H
#define P4REDUCE_ROUNDS_H

#include "protocol/packet.h"
#include "protocol/slot.h"

// Makes the packets of slots' rounds, each of the answer to the one before.
struct rounds {
    const p4reduce_membership *membership;
    p4reduce_stats *stats;
    uint8_t worker; // as which the switch knows this rank
    struct layout layout;
    uint32_t streams, first_stream; // of the job; of those, this worker's
    unsigned max_absent_lanes;
};

struct rounds rounds_of(const p4reduce_membership *membership, p4reduce_stats *stats);

// Begins a task, with a round that has no values unless it is the only one.
void rounds_announce(const struct rounds *rounds, struct slot *slot, struct task *task);

// Whether a RESULT of the slot's round, as number and fingerprint say, has the sums of its lanes.
bool rounds_is_result(const struct slot *slot, const struct packet *packet);

// Whether a RESULT's keys can be minimums over workers of which this is one.
bool rounds_plausible(const struct rounds *rounds, const struct slot *slot, const struct packet *packet);

// Has the processor fetch what a RESULT of the slot's round will need that has such keys, in network order.
void rounds_expect(const struct rounds *rounds, const struct slot *slot, const uint8_t *keys);

// Takes the sums of the round, and begins the next one. False when the slot has done its part.
bool rounds_take_result(const struct rounds *rounds, struct slot *slot, const struct packet *packet);

// Makes the round's packet, unless some lane's next block is not known yet. Returns whether it has.
bool rounds_complete(const struct rounds *rounds, struct slot *slot);

#endif
