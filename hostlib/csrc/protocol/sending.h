// SPDX-License-Identifier: Apache-2.0
// The way out: packets wait in a line for their turn, and then for whoever sends them.
#ifndef P4REDUCE_SENDING_H
#define P4REDUCE_SENDING_H

#include "protocol/pace.h"
#include "protocol/slot.h"

// The line, in front of which the pace says when the next may go, and the outbox behind it.
struct sending {
    struct pace pace;
    const struct timer *timer;
    p4reduce_stats *stats;
    uint32_t slots;
    struct slot **line; // a ring
    uint32_t line_at, line_length;
    struct slot **outbox; // in the order in which packets are to be sent
    uint32_t queued;
};

// False if there is no memory.
bool sending_open(struct sending *sending, uint32_t slots, const struct timer *timer, p4reduce_stats *stats);
void sending_close(struct sending *sending);

// Begins anew with so many of the slots, none of which has a packet.
void sending_begin_anew(struct sending *sending, uint32_t slots);

// Whether the slot's packet may leave at once, which then has had its turn.
static inline bool sending_may_go(struct sending *sending, const struct slot *slot, double now) {
    return slot->queued || (sending->line_length == 0 && pace_turn(&sending->pace, sending->timer, now));
}

// Lets the slot's packet wait for its turn.
void sending_line_up(struct sending *sending, struct slot *slot);

// Takes the first out of the line, once it has its turn or needs none any more; else NULL.
struct slot *sending_take_turn(struct sending *sending, double now);

// When the next may go.
double sending_next_turn(const struct sending *sending);

// Puts the slot's packet into the outbox; if it is there already, its newer form takes the place of the older.
static inline void sending_put(struct sending *sending, struct slot *slot) {
    if (slot->queued)
        return;
    slot->queued = true;
    sending->outbox[sending->queued++] = slot;
}

// The first `count` packets of the outbox, whose order may have been changed, were sent.
void sending_sent(struct sending *sending, uint32_t count);

#endif
