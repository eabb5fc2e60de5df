// SPDX-License-Identifier: Apache-2.0
// The way out of a worker: a send queue, from which the pace releases packets into the outbox.
#ifndef P4REDUCE_SENDING_H
#define P4REDUCE_SENDING_H

#include "protocol/pace.h"
#include "protocol/slot.h"

// The send queue and the outbox. Slots wait in the queue for their packet's turn, and in the outbox for the caller.
struct sending {
    struct pace pace;
    const struct timer *timer;
    p4reduce_stats *stats;
    uint32_t slots;
    struct slot **queue; // a ring
    uint32_t queue_head, queue_length;
    struct slot **outbox; // in the order in which packets are to be sent
    uint32_t queued;      // in the outbox
};

// Returns false if there is no memory; sending_close then frees the rest.
bool sending_open(struct sending *sending, uint32_t slots, const struct timer *timer, p4reduce_stats *stats);
void sending_close(struct sending *sending);

// Starts again with the first `slots` slots, none of which has a packet.
void sending_begin_anew(struct sending *sending, uint32_t slots);

// Returns whether the slot's packet may leave at once. If so, it takes the packet's turn.
static inline bool sending_may_bypass_queue(struct sending *sending, const struct slot *slot, double now) {
    return slot->in_outbox || (sending->queue_length == 0 && pace_take_turn(&sending->pace, sending->timer, now));
}

// Puts the slot into the queue. A slot that is in the queue already keeps its position.
void sending_enqueue(struct sending *sending, struct slot *slot);

// Takes the first slot out of the queue if its packet has its turn, or no longer needs one. Otherwise returns NULL.
struct slot *sending_dequeue(struct sending *sending, double now);

// Returns when to call `sending_dequeue` next.
double sending_next_turn(const struct sending *sending);

// Puts the slot's packet into the outbox, unless it is there.
static inline void sending_put(struct sending *sending, struct slot *slot) {
    if (slot->in_outbox)
        return;
    slot->in_outbox = true;
    sending->outbox[sending->queued++] = slot;
}

// Takes the slot's packet out of the outbox, if it is there.
void sending_withdraw(struct sending *sending, struct slot *slot);

// Removes the first `count` packets of the outbox, which were sent. The caller may have changed its order.
void sending_sent(struct sending *sending, uint32_t count);

#endif
