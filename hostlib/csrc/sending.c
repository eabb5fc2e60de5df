// SPDX-License-Identifier: Apache-2.0
#include "sending.h"

enum { MAX_CARRIED_DOUBLINGS = 6 };

#define NO_LIMIT 0

static double smaller(double one, double other) {
    return one < other ? one : other;
}

static double patience(const p4reduce_worker *worker, const struct slot *slot) {
    return timer_wait(&worker->timer, slot->doublings + slot->transmissions - 1, slot->polling);
}

static void hasten(p4reduce_worker *worker, struct slot *slot, double deadline) {
    if (deadline < slot->deadline) {
        slot->deadline = deadline;
        worker->earliest = smaller(worker->earliest, deadline);
    }
}

// Whether the slot's packet may still be on its way, behind others: answers come, but none to a later packet.
static bool in_queue(const p4reduce_worker *worker, const struct slot *slot, double now) {
    return now < worker->progress_at + worker->timer.timeout && worker->answered_through <= slot->sent_at;
}

static bool asks(const struct slot *slot) {
    return slot->waiting && !slot->polling && slot->transmissions + slot->lined_up > 1;
}

// Whether a packet that was sent once is to wait. Where no round ends, who is late is likelier than a loss, so a few
// packets ask first: one, and one more with each time-out that nothing answers. `asking`: sent again, not answered.
static bool held(p4reduce_worker *worker, unsigned asking, double now) {
    if (worker->askers == NO_LIMIT) {
        if (now < worker->progress_at + worker->timer.timeout)
            return false;
        worker->askers = 1;
    }
    if (now < worker->held_until)
        return true;
    if (asking < worker->askers)
        return false;
    worker->askers++;
    worker->held_until = now + worker->timer.timeout;
    return true;
}

static bool in_network(const struct slot *slot) {
    return under_way(slot) && !slot->polling && !slot->lined_up;
}

static unsigned flight(const p4reduce_worker *worker) {
    unsigned count = 0;
    for (uint32_t index = 0; index < worker->membership.slots; index++)
        count += in_network(&worker->slots[index]);
    return count;
}

static void release(p4reduce_worker *worker, const struct slot *slot, bool completed, double now) {
    // An answer at once to a packet that asked, which the switch had not seen before: others are lost as well, but for
    // those whose answers come with this one.
    if (worker->askers != NO_LIMIT && asks(slot) && completed && worker->timer.measured &&
        now < slot->sent_at + 2 * worker->timer.smoothed) {
        worker->answered_through = slot->sent_at;
        worker->held_until = worker->earliest = now + worker->timer.smoothed;
        worker->released = true;
    }
    worker->askers = NO_LIMIT;
}

void take_answer(p4reduce_worker *worker, struct slot *slot, const struct packet *packet, double now) {
    worker->stats.rounds++;
    worker->progress_at = now;
    pace_answered(&worker->pace);
    const bool completed = packet->worker == worker->index;    // or it answers this rank alone
    const bool lost = completed && worker->askers == NO_LIMIT; // else another rank was late, or the switch
    release(worker, slot, completed, now);
    if (slot->transmissions == 1) {
        if (slot->sent_at > worker->answered_through)
            worker->answered_through = slot->sent_at;
        // Who completes a round is answered at once. The others' time includes waiting for that rank, so it can only
        // show that the path is shorter than was thought.
        const double elapsed = now - slot->sent_at;
        if (completed || elapsed < timer_estimate(&worker->timer))
            timer_measure(&worker->timer, elapsed);
        if (completed || elapsed < worker->timer.timeout)
            slot->doublings = 0;
        worker->groups_arrive |= slot->grouped;
    } else if (!slot->polling) {
        // Not measurable (Karn), so the longer timeout stays until a packet is answered without being sent again.
        slot->doublings = slot->doublings < MAX_CARRIED_DOUBLINGS ? slot->doublings + 1 : MAX_CARRIED_DOUBLINGS;
        if (lost)
            worker->stats.slowdowns +=
                pace_lost(&worker->pace, &worker->timer, slot->first_sent_at, flight(worker), now);
        worker->groups_lost += slot->grouped;
    }
    slot->waiting = false;
    slot->polling = false;
    if (worker->polling) {
        // Stragglers are back: whoever waits for a RESULT now may have lost it.
        for (uint32_t i = 0; i < worker->polling; i++) {
            struct slot *other = &worker->slots[worker->polled[i]];
            other->listed = false;
            if (other != slot && !other->lined_up)
                hasten(worker, other, now + worker->timer.timeout);
        }
        worker->polling = 0;
    }
}

void take_status(p4reduce_worker *worker, struct slot *slot, const struct packet *packet, double now) {
    worker->stats.statuses++;
    // Only packets that are sent again are answered so. A leaf tells all its workers what its parent told of one's.
    if (slot->transmissions == 2 && packet->worker == worker->index) {
        timer_measure(&worker->timer, now - slot->sent_at);
        worker->groups_arrive |= slot->grouped; // as the first had been counted
    }
    if (worker->askers != NO_LIMIT && asks(slot)) {
        worker->askers = 1;
        worker->held_until = now + worker->timer.timeout;
    }
    slot->polling = true;
    slot->seen = packet_key(packet, 0);
    if (!slot->listed) {
        slot->listed = true;
        worker->polled[worker->polling++] = (uint32_t)(slot - worker->slots);
    }
    hasten(worker, slot, now + patience(worker, slot));
}

static void queue(p4reduce_worker *worker, struct slot *slot) {
    if (!slot->queued) { // else its newer form takes the place of the older
        slot->queued = true;
        worker->outbox[worker->queued++] = (uint32_t)(slot - worker->slots);
    }
}

static void transmit(p4reduce_worker *worker, struct slot *slot, double now) {
    slot->sent_at = now;
    if (slot->transmissions++ == 0)
        slot->first_sent_at = now;
    else
        worker->stats.retransmissions++;
    slot->deadline = now + patience(worker, slot);
    worker->earliest = smaller(worker->earliest, slot->deadline);
    queue(worker, slot);
}

void line_up(p4reduce_worker *worker, struct slot *slot, double now) {
    if (slot->queued || (worker->line_length == 0 && pace_turn(&worker->pace, &worker->timer, now))) {
        transmit(worker, slot, now);
        return;
    }
    slot->deadline = NEVER;
    if (!slot->lined_up) { // else its newer packet takes the place of the older
        slot->lined_up = true;
        worker->line[(worker->line_at + worker->line_length++) % worker->membership.slots] =
            (uint32_t)(slot - worker->slots);
    }
}

static void take_turns(p4reduce_worker *worker, double now) {
    while (worker->line_length > 0) {
        struct slot *slot = &worker->slots[worker->line[worker->line_at]];
        const bool goes = slot->waiting && slot->deadline == NEVER; // else a STATUS came meanwhile, or the end
        if (goes && !pace_turn(&worker->pace, &worker->timer, now))
            return;
        worker->line_at = (worker->line_at + 1) % worker->membership.slots;
        worker->line_length--;
        slot->lined_up = false;
        if (goes)
            transmit(worker, slot, now);
        else if (slot->waiting)
            worker->earliest = smaller(worker->earliest, slot->deadline);
    }
}

// Sends again what has waited too long for its answer.
static void look_for_losses(p4reduce_worker *worker, double now) {
    worker->earliest = NEVER;
    unsigned asking = 0, lost = 0;
    for (uint32_t index = 0; index < worker->membership.slots; index++) {
        const struct slot *slot = &worker->slots[index];
        asking += asks(slot);
        lost += in_network(slot) && slot->deadline <= now;
    }
    if (worker->released)
        worker->stats.slowdowns += pace_burst_lost(&worker->pace, lost, flight(worker), now);
    worker->released = false;
    for (uint32_t index = 0; index < worker->membership.slots; index++) {
        struct slot *slot = &worker->slots[index];
        if (!slot->waiting || slot->lined_up)
            continue;
        if (slot->deadline <= now && !slot->polling && in_queue(worker, slot, now)) {
            slot->deadline = worker->progress_at + worker->timer.timeout;
        } else if (slot->deadline <= now && slot->transmissions == 1 && held(worker, asking, now)) {
            worker->earliest = smaller(worker->earliest, worker->held_until);
            continue;
        } else if (slot->deadline <= now) {
            asking += slot->transmissions == 1;
            line_up(worker, slot, now);
        }
        worker->earliest = smaller(worker->earliest, slot->deadline);
    }
}

void p4reduce_worker_tick(p4reduce_worker *worker, double now) {
    if (now >= worker->earliest)
        look_for_losses(worker, now);
    take_turns(worker, now);
}

double p4reduce_worker_deadline(const p4reduce_worker *worker) {
    return worker->line_length > 0 ? smaller(worker->earliest, worker->pace.next) : worker->earliest;
}

void worker_sent(p4reduce_worker *worker, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        struct slot *slot = &worker->slots[worker->outbox[i]];
        slot->queued = false;
        worker->stats.packets_sent++;
        worker->stats.bytes_sent += slot->length;
    }
    worker->queued -= count;
    memmove(worker->outbox, worker->outbox + count, worker->queued * sizeof *worker->outbox);
}

size_t p4reduce_worker_take(p4reduce_worker *worker, p4reduce_payload *payloads, size_t room) {
    uint32_t count = worker->queued < room ? worker->queued : (uint32_t)room;
    for (uint32_t i = 0; i < count; i++) {
        const struct slot *slot = &worker->slots[worker->outbox[i]];
        payloads[i] = (p4reduce_payload){slot->payload, slot->length};
    }
    worker_sent(worker, count);
    return count;
}
