// SPDX-License-Identifier: Apache-2.0
// When a slot's packet is sent, and sent again.
#ifndef P4REDUCE_SENDING_H
#define P4REDUCE_SENDING_H

#include "worker.h"

#include <math.h>

#define NEVER ((double)INFINITY)

// Whether the slot's packet was sent and waits for its RESULT.
static inline bool under_way(const struct slot *slot) {
    return slot->waiting && slot->transmissions > 0;
}

// Sends the slot's packet, or lets it wait for its turn.
void line_up(p4reduce_worker *worker, struct slot *slot, double now);

// The packet's RESULT has come.
void take_answer(p4reduce_worker *worker, struct slot *slot, const struct packet *packet, double now);

// The packet was counted, so nothing is lost: from now on, only ask gently whether the round has ended.
void take_status(p4reduce_worker *worker, struct slot *slot, const struct packet *packet, double now);

#endif
