// SPDX-License-Identifier: Apache-2.0
#include "protocol/sending.h"

#include <stdlib.h>

bool sending_open(struct sending *sending, uint32_t slots, const struct timer *timer, p4reduce_stats *stats) {
    *sending = (struct sending){.timer = timer, .stats = stats};
    sending->queue = calloc(slots, sizeof(struct slot *));
    sending->outbox = calloc(slots, sizeof(struct slot *));
    return sending->queue != NULL && sending->outbox != NULL;
}

void sending_begin_anew(struct sending *sending, uint32_t slots) {
    sending->pace = pace_new(slots);
    sending->slots = slots;
    sending->queue_head = sending->queue_length = sending->queued = 0;
}

void sending_close(struct sending *sending) {
    free(sending->queue);
    free(sending->outbox);
}

void sending_enqueue(struct sending *sending, struct slot *slot) {
    if (slot->in_send_queue)
        return;
    slot->in_send_queue = true;
    sending->queue[(sending->queue_head + sending->queue_length++) % sending->slots] = slot;
}

struct slot *sending_dequeue(struct sending *sending, double now) {
    if (sending->queue_length == 0)
        return NULL;
    struct slot *first = sending->queue[sending->queue_head];
    if (slot_waits_for_turn(first) && !pace_take_turn(&sending->pace, sending->timer, now))
        return NULL;
    sending->queue_head = (sending->queue_head + 1) % sending->slots;
    sending->queue_length--;
    first->in_send_queue = false;
    return first;
}

double sending_next_turn(const struct sending *sending) {
    return sending->queue_length > 0 ? pace_next_turn(&sending->pace, sending->timer) : NEVER;
}

void sending_withdraw(struct sending *sending, struct slot *slot) {
    if (!slot->in_outbox)
        return;
    slot->in_outbox = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sending->queued; i++)
        if (sending->outbox[i] != slot)
            sending->outbox[kept++] = sending->outbox[i];
    sending->queued = kept;
}

void sending_sent(struct sending *sending, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        sending->outbox[i]->in_outbox = false;
        sending->stats->packets_sent++;
        sending->stats->bytes_sent += slot_outgoing(sending->outbox[i])->length;
    }
    sending->queued -= count;
    memmove(sending->outbox, sending->outbox + count, sending->queued * sizeof *sending->outbox);
}
