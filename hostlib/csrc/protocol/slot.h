// SPDX-License-Identifier: Apache-2.0
// One slot of the job: its round, what of the task its streams have sent, and where its packet is.
#ifndef P4REDUCE_SLOT_H
#define P4REDUCE_SLOT_H

#include "protocol/task.h"

#include "wire/bytes.h"

#include <math.h>

#define NEVER ((double)INFINITY)

// Of a slot's packet.
enum state {
    IDLE,    // there is none
    NEW,     // not sent yet: it waits for its turn
    SENT,    // sent once
    AGAIN,   // it has no answer, and waits for its turn to be sent again
    ASKING,  // sent again
    COUNTED, // the switch has it, as a STATUS said, and waits for others
    POLLING, // the same, and it waits for its turn to ask whether they have come
    STATES,
};

struct slot {
    uint32_t index;
    struct task *task;
    // The round: its number, the lanes that carry values, what says both operation and lanes, and the blocks' keys.
    uint32_t seq;
    uint8_t active;
    uint32_t fingerprint;
    uint32_t agreed[MAX_LANES];
    // Each lane's next non-zero block, and where it is looked for: the number of the first that it can be.
    uint32_t announced[MAX_LANES], sought[MAX_LANES];
    uint8_t unknown; // lanes whose next block is still looked for: the round's packet waits for them
    // The least that a RESULT may name in each lane, as blocks come in order.
    uint32_t least[MAX_LANES];

    // The packet that waits for its RESULT.
    uint8_t *payload;
    uint32_t length;
    uint8_t present; // lanes
    enum state state;
    bool lined_up; // in the line, though it may not need its turn any more
    bool queued;   // in the outbox
    bool grouped;  // it was first sent in a super-packet
    uint32_t transmissions;
    uint32_t seen; // the workers that the switch has seen in this round, from STATUS
    double first_sent_at, sent_at;
    double heard_at; // the last STATUS, or when it was first sent
    // Of the round before, where only this rank was awaited: the copies of its packet that have not been answered, and
    // when the first was sent.
    uint32_t unanswered;
    double unanswered_since;
    bool sent_once; // the packet of the round before
    // Among those that wait for answers: whether it is, at which level, and its neighbours there.
    bool waiting;
    unsigned level;
    struct slot *before, *after;
};

// Whether the packet was sent and waits for its RESULT.
static inline bool slot_under_way(const struct slot *slot) {
    return slot->state != IDLE && slot->state != NEW;
}

static inline bool slot_waits_for_turn(const struct slot *slot) {
    return slot->state == NEW || slot->state == AGAIN || slot->state == POLLING;
}

// Whether a STATUS has said that the switch has the packet.
static inline bool slot_counted(const struct slot *slot) {
    return slot->state == COUNTED || slot->state == POLLING;
}

static inline bool slot_in_network(const struct slot *slot) {
    return slot->state == SENT || slot->state == ASKING;
}

// Whether the packet was sent again, or is about to be, and waits for its RESULT.
static inline bool slot_was_sent_again(const struct slot *slot) {
    return slot_under_way(slot) && slot->state != SENT;
}

// How many copies of the packet have left: the next round's takes the place of one that is still in the outbox.
static inline unsigned slot_copies(const struct slot *slot) {
    return slot->transmissions - (slot->queued && slot->transmissions > 1);
}

// How many lanes the packet carries: what its length depends on.
static inline unsigned slot_lanes(const struct slot *slot) {
    return lanes_in(slot->present);
}

#endif
