// SPDX-License-Identifier: Apache-2.0
// One slot of the job: its task, its round, and the state of its packet.
#ifndef P4REDUCE_SLOT_H
#define P4REDUCE_SLOT_H

#include "protocol/task.h"

#include "wire/bytes.h"
#include "wire/headers.h"

#include <math.h>

#define NEVER ((double)INFINITY)

// The state of a slot's packet. recovery.h has the table of transitions.
enum state {
    IDLE,              // there is no packet
    QUEUED,            // waits for its turn to be sent for the first time
    SENT,              // sent once
    RETRANSMIT_QUEUED, // waits for its turn to be sent again
    RETRANSMITTED,     // sent again
    PARTIAL_ACK,       // the switch has the packet, as a STATUS said, and waits for other ranks
    POLL_QUEUED,       // the same as PARTIAL_ACK, and waits for its turn to be sent again
    STATES,
};

// A slot's packet of one round.
struct datagram {
    uint8_t *payload; // the slot's own memory
    uint32_t length;  // 0: not complete
    uint8_t present;  // lanes
};

struct slot {
    uint32_t index;
    struct task *task;
    // The round: its number, the lanes that carry values, its fingerprint, and the blocks' keys.
    uint32_t seq;
    uint8_t active;
    uint32_t fingerprint;
    uint32_t agreed[MAX_LANES];
    // Each lane's next block to send: its key, and the number of the first block from which it is searched.
    uint32_t announced[MAX_LANES], sought[MAX_LANES];
    uint8_t unknown; // lanes whose next block is not found yet: the round's packet waits for them
    // The least key that a RESULT may have in each lane, because blocks come in order.
    uint32_t least[MAX_LANES];

    // The packets of this round and of the round before, as they were sent.
    struct datagram packet, previous;
    bool suspended; // nothing is sent, and answers are ignored
    bool repeating; // the packet of the round before is sent again, and the round's packet waits

    // The packet that waits for its RESULT.
    enum state state;
    bool in_send_queue; // stays true until the slot's turn, even if the packet no longer needs it
    bool in_outbox;
    bool grouped; // first sent in a super-packet
    uint32_t transmissions;
    uint32_t counted; // bitmap of the workers that the switch has counted, from the last STATUS
    double began_at; // when the packet was ready to be sent
    double first_sent_at, sent_at;
    double last_answer; // the last STATUS, or when the packet was first sent
    // If the packet of the round before seems to be lost: its copies without an answer, and when the first was sent.
    uint32_t unacked_copies;
    double unacked_since;
    // The slot's path, and its entry in that path's lists of packets in the network: recovery.h.
    struct path *path;
    bool in_unacked;
    unsigned backoff_level;
    struct slot *prev, *next;
};

// Returns whether the packet was sent and waits for its RESULT.
static inline bool slot_in_network(const struct slot *slot) {
    return slot->state != IDLE && slot->state != QUEUED;
}

static inline bool slot_waits_for_turn(const struct slot *slot) {
    return slot->state == QUEUED || slot->state == RETRANSMIT_QUEUED || slot->state == POLL_QUEUED;
}

// Returns whether a STATUS has said that the switch has the packet.
static inline bool slot_counted(const struct slot *slot) {
    return slot->state == PARTIAL_ACK || slot->state == POLL_QUEUED;
}

// Returns whether the packet was sent again, or is about to be, and waits for its RESULT.
static inline bool slot_was_sent_again(const struct slot *slot) {
    return slot_in_network(slot) && slot->state != SENT;
}

// Returns the packet to send: this round's, or that of the round before while it is repeated.
static inline const struct datagram *slot_outgoing(const struct slot *slot) {
    return slot->repeating ? &slot->previous : &slot->packet;
}

// Returns the round of the packet to send.
static inline uint32_t slot_outgoing_seq(const struct slot *slot) {
    return slot->seq - slot->repeating;
}

// Returns the fingerprint in the packet to send.
static inline uint32_t slot_outgoing_fingerprint(const struct slot *slot) {
    return slot->repeating ? load_32(slot->previous.payload + AGGREGATION_FINGERPRINT) : slot->fingerprint;
}

// Returns how many copies of the packet have left. A copy in the outbox has not.
static inline unsigned slot_copies(const struct slot *slot) {
    return slot->transmissions - (slot->in_outbox && slot->transmissions > 1);
}

// Returns how many lanes the packet carries, on which its length depends.
static inline unsigned slot_lanes(const struct slot *slot) {
    return lanes_in(slot_outgoing(slot)->present);
}

#endif
