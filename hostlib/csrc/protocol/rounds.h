// SPDX-License-Identifier: Apache-2.0
// A slot's rounds: the contents of its packets, and the meaning of a RESULT.
#ifndef P4REDUCE_ROUNDS_H
#define P4REDUCE_ROUNDS_H

#include "protocol/packet.h"
#include "protocol/slot.h"

// The rounds of a worker's slots: each packet is made from the answer to the one before.
struct rounds {
    const p4reduce_membership *membership;
    p4reduce_stats *stats;
    uint8_t worker; // worker number of this rank's stream
    struct layout layout;
    uint32_t streams, first_stream; // the job's number of streams, and this worker's first
    unsigned max_absent_lanes;
};

struct rounds rounds_of(const p4reduce_membership *membership, p4reduce_stats *stats);

// Begins a task with its announcement, which has no values unless it is the task's only round.
void rounds_announce(const struct rounds *rounds, struct slot *slot, struct task *task);

// Returns whether a RESULT has the sums of the round's lanes. Its round number and fingerprint are those of the slot.
bool rounds_is_result(const struct slot *slot, const struct packet *packet);

// Returns whether a RESULT's keys can be minimums over workers, of which this is one.
bool rounds_plausible(const struct rounds *rounds, const struct slot *slot, const struct packet *packet);

// Prefetches the memory that a RESULT of the slot's round with these keys, in network order, will need.
void rounds_expect(const struct rounds *rounds, const struct slot *slot, const uint8_t *keys);

// Takes the sums of the round, and begins the next one. Returns false when the slot has finished the task.
bool rounds_take_result(const struct rounds *rounds, struct slot *slot, const struct packet *packet);

// Completes the round's packet. Returns false while a lane's next block is not known.
bool rounds_complete(const struct rounds *rounds, struct slot *slot);

#endif
