// SPDX-License-Identifier: Apache-2.0
#include "protocol/sending.h"

#include <stdlib.h>

bool sending_open(struct sending *sending, uint32_t slots, const struct timer *timer, p4reduce_stats *stats) {
    *sending = (struct sending){.timer = timer, .stats = stats};
    sending->line = calloc(slots, sizeof(struct slot *));
    sending->outbox = calloc(slots, sizeof(struct slot *));
    return sending->line != NULL && sending->outbox != NULL;
}

void sending_begin_anew(struct sending *sending, uint32_t slots) {
    sending->pace = pace_new(slots);
    sending->slots = slots;
    sending->line_at = sending->line_length = sending->queued = 0;
}

void sending_close(struct sending *sending) {
    free(sending->line);
    free(sending->outbox);
}

void sending_line_up(struct sending *sending, struct slot *slot) {
    if (slot->lined_up)
        return; // its newer packet takes the place of the older
    slot->lined_up = true;
    sending->line[(sending->line_at + sending->line_length++) % sending->slots] = slot;
}

struct slot *sending_take_turn(struct sending *sending, double now) {
    if (sending->line_length == 0)
        return NULL;
    struct slot *first = sending->line[sending->line_at];
    if (slot_waits_for_turn(first) && !pace_turn(&sending->pace, sending->timer, now))
        return NULL;
    sending->line_at = (sending->line_at + 1) % sending->slots;
    sending->line_length--;
    first->lined_up = false;
    return first;
}

double sending_next_turn(const struct sending *sending) {
    return sending->line_length > 0 ? sending->pace.next : NEVER;
}

void sending_sent(struct sending *sending, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        sending->outbox[i]->queued = false;
        sending->stats->packets_sent++;
        sending->stats->bytes_sent += sending->outbox[i]->length;
    }
    sending->queued -= count;
    memmove(sending->outbox, sending->outbox + count, sending->queued * sizeof *sending->outbox);
}
