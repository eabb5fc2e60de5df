// SPDX-License-Identifier: Apache-2.0
#include "engine/packets.h"

#include "base/clock.h"
#include "base/structures.h"

#include <poll.h>

enum {
    SEND_AT = 61,       // packets: a super-packet of the usual size
    COALESCED = 8,      // answers that one wake-up is to find, if they come singly
    COALESCE_SHARE = 4, // waiting for them may take 1 / COALESCE_SHARE of a round trip
};
static const double LEAST_PAUSE_S = 50e-6; // a shorter pause is less than the kernel's timer slack

// Returns a slot's sort key in the order of sending: aggregator by aggregator, for each the longest packets first.
static unsigned send_order(const p4reduce_engine *engine, const struct slot *slot) {
    const unsigned lanes = engine->worker->rounds.layout.lanes, shorter = lanes - slot_lanes(slot);
    const uint32_t aggregators = engine->link->aggregators;
    return aggregators == 0 ? shorter : slot->index % aggregators * (lanes + 1) + shorter;
}

// Sorts the outbox by counting sort, so that packets of equal length to one aggregator are adjacent.
static void sort_packets(p4reduce_engine *engine) {
    const struct sending *sending = &engine->worker->recovery.sending;
    const uint32_t aggregators = engine->link->aggregators ? engine->link->aggregators : 1;
    const unsigned orders = aggregators * (engine->worker->rounds.layout.lanes + 1);
    uint32_t starts[MAX_AGGREGATORS * (MAX_LANES + 1) + 1] = {0};
    for (uint32_t i = 0; i < sending->queued; i++)
        starts[send_order(engine, sending->outbox[i]) + 1]++;
    for (unsigned i = 1; i < orders; i++)
        starts[i] += starts[i - 1];
    for (uint32_t i = 0; i < sending->queued; i++) {
        struct slot *slot = sending->outbox[i];
        const uint32_t position = starts[send_order(engine, slot)]++;
        engine->sorted[position] = slot;
        engine->payloads[position] = (struct iovec){slot_outgoing(slot)->payload, slot_outgoing(slot)->length};
    }
    memcpy(sending->outbox, engine->sorted, sending->queued * sizeof *sending->outbox);
}

bool engine_send_packets(p4reduce_engine *engine, p4reduce_error *error) {
    struct recovery *recovery = &engine->worker->recovery;
    struct sending *sending = &recovery->sending;
    if (sending->queued == 0 && !engine->link->full)
        return true;
    sort_packets(engine);
    engine->link->singly = recovery_sends_singly(recovery);
    const uint32_t sent = engine->link->send(engine->link, engine->payloads, sending->queued, engine->grouped);
    for (uint32_t i = 0; i < sent; i++)
        if (sending->outbox[i]->transmissions == 1)
            sending->outbox[i]->grouped = engine->grouped[i];
    sending_sent(sending, sent);
    if (engine->link->fatal)
        error_fill(error, P4REDUCE_NETWORK, "a packet of %zu bytes is longer than the MTU of the path",
                   engine->payloads[0].iov_len);
    return !engine->link->fatal;
}

bool engine_receive_packets(p4reduce_engine *engine) {
    for (;;) {
        const double now = clock_now();
        if (engine->link->receive(engine->link, engine->worker, now) == 0)
            return true;
        engine->heard_at = now;
        if (engine->oldest == NULL)
            return true; // no operation waits for more packets
        if (engine->worker->recovery.sending.queued >= SEND_AT)
            return false;
    }
}

void engine_coalesce_answers(p4reduce_engine *engine) {
    const double now = clock_now();
    const uint64_t received = engine->worker->stats.packets_received;
    if (engine->oldest == NULL)
        engine->gap = 0;
    else if (received > engine->counted)
        engine->gap += ((now - engine->counted_at) / (double)(received - engine->counted) - engine->gap) / 8;
    if (engine->oldest == NULL || received > engine->counted) {
        engine->counted = received;
        engine->counted_at = now;
    }
    const double needed = COALESCED * engine->gap;
    const double pause = fmin(needed, p4reduce_worker_deadline(engine->worker) - now);
    if (pause < LEAST_PAUSE_S || COALESCE_SHARE * needed > engine->worker->recovery.timer.srtt || engine->link->full)
        return;
    struct pollfd wakeup = {.fd = engine->wake, .events = POLLIN};
    const struct timespec timeout = as_timespec(pause);
    ppoll(&wakeup, 1, &timeout, NULL);
}
