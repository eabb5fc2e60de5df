// SPDX-License-Identifier: Apache-2.0
#include "recovery.h"

#include <stdlib.h>

enum {
    MAX_CARRIED_DOUBLINGS = 6,
    LOST_GROUPS = 8, // packets of super-packets that seem to be lost, before any has arrived
};

static double smaller(double one, double other) {
    return one < other ? one : other;
}

static void enter(struct recovery *recovery, struct slot *slot, enum state state) {
    recovery->in_state[slot->state]--;
    recovery->in_state[state]++;
    slot->state = state;
}

static void forget(struct recovery *recovery, struct slot *slot) {
    enter(recovery, slot, IDLE);
    slot->deadline = NEVER;
}

static unsigned flight(const struct recovery *recovery) {
    return recovery->in_state[SENT] + recovery->in_state[ASKING];
}

// Time.

static double patience(const struct recovery *recovery, const struct slot *slot) {
    return timer_wait(&recovery->timer, slot->doublings + slot->transmissions - 1, slot_counted(slot));
}

// Sees to it that the slot is looked at when it is due.
static void watch(struct recovery *recovery, struct slot *slot) {
    deadlines_add(&recovery->deadlines, slot);
    recovery->look_at = smaller(recovery->look_at, slot->deadline);
}

static void hasten(struct recovery *recovery, struct slot *slot, double deadline) {
    if (deadline < slot->deadline) {
        slot->deadline = deadline;
        watch(recovery, slot);
    }
}

// Sending.

static void transmit(struct recovery *recovery, struct slot *slot, double now) {
    slot->sent_at = now;
    if (slot->transmissions++ == 0)
        slot->first_sent_at = slot->heard_at = now;
    else
        recovery->stats->retransmissions++;
    enter(recovery, slot, slot_counted(slot) ? COUNTED : slot->transmissions == 1 ? SENT : ASKING);
    slot->deadline = now + patience(recovery, slot);
    watch(recovery, slot);
    sending_put(&recovery->sending, slot);
}

// Sends the slot's packet, or lets it wait for its turn.
static void line_up(struct recovery *recovery, struct slot *slot, double now) {
    if (sending_may_go(&recovery->sending, slot, now)) {
        transmit(recovery, slot, now);
        return;
    }
    slot->deadline = NEVER;
    enter(recovery, slot, slot->transmissions == 0 ? NEW : slot_counted(slot) ? POLLING : AGAIN);
    sending_line_up(&recovery->sending, slot);
}

void recovery_send(struct recovery *recovery, struct slot *slot, double now) {
    slot->transmissions = 0;
    slot->grouped = false;
    line_up(recovery, slot, now);
}

bool recovery_sends_singly(const struct recovery *recovery) {
    // A software switch may see a super-packet as one huge frame, which it drops: where interfaces are virtual and do
    // not cut it up. So until one is known to arrive, packets are sent again singly; and if only that helps, all are.
    if (recovery->groups == GROUPS_UNPROVED)
        for (uint32_t i = 0; i < recovery->sending.queued; i++)
            if (recovery->sending.outbox[i]->transmissions > 1)
                return true;
    return recovery->groups == GROUPS_LOST;
}

// Answers.

static void answered_first(struct recovery *recovery, struct slot *slot, bool completed, double now) {
    if (slot->sent_at > recovery->answered_through)
        recovery->answered_through = slot->sent_at;
    // Who completes a round is answered at once. The others' time includes waiting for that rank, so it can only show
    // that the path is shorter than was thought.
    const double elapsed = now - slot->sent_at;
    if (completed || elapsed < timer_estimate(&recovery->timer))
        timer_measure(&recovery->timer, elapsed);
    if (completed || elapsed < recovery->timer.timeout)
        slot->doublings = 0;
    if (slot->grouped)
        recovery->groups = GROUPS_ARRIVE;
}

static void answered_again(struct recovery *recovery, struct slot *slot, bool lost, double now) {
    // Not measurable (Karn), so the longer timeout stays until a packet is answered without being sent again.
    if (slot->doublings < MAX_CARRIED_DOUBLINGS)
        slot->doublings++;
    if (lost)
        recovery->stats->slowdowns +=
            pace_lost(&recovery->sending.pace, &recovery->timer, slot->first_sent_at, flight(recovery), now);
    if (slot->grouped && ++recovery->groups_lost == LOST_GROUPS && recovery->groups == GROUPS_UNPROVED)
        recovery->groups = GROUPS_LOST;
}

static void end_probing(struct recovery *recovery, const struct slot *slot, bool completed, double now) {
    // An answer at once to a packet that asked, which the switch had not seen before: others are lost as well, but for
    // those whose answers come with this one.
    const double round_trip = recovery->timer.smoothed;
    recovery->mode = FLOWING;
    if (slot_asks(slot) && completed && recovery->timer.measured && now < slot->sent_at + 2 * round_trip) {
        recovery->mode = RELEASED;
        recovery->answered_through = slot->sent_at;
        recovery->held_until = recovery->look_at = now + round_trip;
    }
}

// Stragglers are back: whoever waits for a RESULT now may have lost it.
static void stragglers_are_back(struct recovery *recovery, const struct slot *answered, double now) {
    for (uint32_t i = 0; i < recovery->polled.count; i++) {
        struct slot *slot = recovery->polled.slots[i];
        slot->polled = false;
        if (slot != answered && !slot->lined_up)
            hasten(recovery, slot, now + recovery->timer.timeout);
    }
    recovery->polled.count = 0;
}

void recovery_answered(struct recovery *recovery, struct slot *slot, bool completed, double now) {
    recovery->stats->rounds++;
    recovery->progress_at = now;
    pace_answered(&recovery->sending.pace);
    const bool lost = completed && recovery->mode != PROBING; // else another rank was late, or the switch
    if (recovery->mode == PROBING)
        end_probing(recovery, slot, completed, now);
    if (slot->transmissions == 1)
        answered_first(recovery, slot, completed, now);
    else if (!slot_counted(slot))
        answered_again(recovery, slot, lost, now);
    forget(recovery, slot);
    stragglers_are_back(recovery, slot, now);
}

void recovery_counted(struct recovery *recovery, struct slot *slot, uint32_t seen, bool own, double now) {
    recovery->stats->statuses++;
    if (slot->transmissions == 2 && own) { // only packets that are sent again are answered so
        timer_measure(&recovery->timer, now - slot->sent_at);
        if (slot->grouped)
            recovery->groups = GROUPS_ARRIVE; // as the first had been counted
    }
    if (recovery->mode == PROBING && slot_asks(slot)) {
        recovery->askers = 1;
        recovery->held_until = now + recovery->timer.timeout;
    }
    slot->seen = seen;
    slot->heard_at = now;
    enter(recovery, slot, COUNTED);
    if (!slot->polled) {
        slot->polled = true;
        recovery->polled.slots[recovery->polled.count++] = slot;
    }
    hasten(recovery, slot, now + patience(recovery, slot));
}

// Losses.

// Whether the slot's packet may still be on its way, behind others: answers come, but none to a later packet.
static bool in_queue(const struct recovery *recovery, const struct slot *slot, double now) {
    return now < recovery->progress_at + recovery->timer.timeout && recovery->answered_through <= slot->sent_at;
}

// Whether a packet that was sent once is held back, when `asking` were sent again and have no answer. Where no round
// ends, who is late is likelier than a loss, so a few packets ask first: one, and one more with each time-out that
// nothing answers.
static bool has_to_wait(struct recovery *recovery, unsigned asking, double now) {
    if (recovery->mode == FLOWING) {
        if (now < recovery->progress_at + recovery->timer.timeout)
            return false;
        recovery->mode = PROBING;
        recovery->askers = 1;
    }
    if (now < recovery->held_until)
        return true;
    if (asking < recovery->askers)
        return false;
    recovery->askers++;
    recovery->held_until = now + recovery->timer.timeout;
    return true;
}

static uint32_t take_due(struct recovery *recovery, double now) {
    for (uint32_t i = 0; i < recovery->held.count; i++)
        deadlines_add(&recovery->deadlines, recovery->held.slots[i]);
    recovery->held.count = 0;
    return deadlines_take_due(&recovery->deadlines, now, recovery->due);
}

// Begins again where most of what was under way was lost.
static void take_release(struct recovery *recovery, uint32_t due, double now) {
    unsigned lost = 0;
    for (uint32_t i = 0; i < due; i++)
        lost += slot_in_network(recovery->due[i]);
    recovery->stats->slowdowns += pace_burst_lost(&recovery->sending.pace, lost, flight(recovery), now);
    recovery->mode = FLOWING;
}

// Sends again what has waited too long for its answer.
static void look(struct recovery *recovery, double now) {
    const uint32_t due = take_due(recovery, now);
    if (recovery->mode == RELEASED)
        take_release(recovery, due, now);
    unsigned asking = recovery->in_state[AGAIN] + recovery->in_state[ASKING];
    for (uint32_t i = 0; i < due; i++) {
        struct slot *slot = recovery->due[i];
        if (!slot_counted(slot) && in_queue(recovery, slot, now)) {
            slot->deadline = recovery->progress_at + recovery->timer.timeout;
            deadlines_add(&recovery->deadlines, slot);
        } else if (slot->transmissions == 1 && has_to_wait(recovery, asking, now)) {
            recovery->held.slots[recovery->held.count++] = slot;
        } else {
            asking += slot->transmissions == 1;
            line_up(recovery, slot, now);
        }
    }
    recovery->look_at =
        smaller(deadlines_first(&recovery->deadlines), recovery->held.count > 0 ? recovery->held_until : NEVER);
}

void recovery_tick(struct recovery *recovery, double now) {
    if (now >= recovery->look_at)
        look(recovery, now);
    struct slot *slot;
    while ((slot = sending_take_turn(&recovery->sending, now)) != NULL) {
        if (slot_waits_for_turn(slot))
            transmit(recovery, slot, now);
        else // a STATUS came meanwhile, or the end
            watch(recovery, slot);
    }
}

double recovery_deadline(const struct recovery *recovery) {
    return smaller(recovery->look_at, sending_next_turn(&recovery->sending));
}

// Ends.

void recovery_rest(struct recovery *recovery) {
    recovery->look_at = NEVER;
    if (recovery->mode == RELEASED)
        recovery->mode = FLOWING;
}

void recovery_end(struct recovery *recovery, bool insist) {
    for (uint32_t i = 0; i < recovery->polled.count; i++)
        recovery->polled.slots[i]->polled = false;
    recovery->polled.count = 0;
    if (insist)
        return;
    recovery->look_at = NEVER;
    for (uint32_t index = 0; index < recovery->slot_count; index++)
        forget(recovery, &recovery->slots[index]);
}

bool recovery_open(struct recovery *recovery, struct slot *slots, uint32_t slot_count, struct timer timer,
                   p4reduce_stats *stats) {
    recovery->timer = timer;
    recovery->stats = stats;
    recovery->slots = slots;
    recovery->slot_count = recovery->in_state[IDLE] = slot_count;
    recovery->look_at = NEVER;
    recovery->progress_at = recovery->answered_through = recovery->held_until = -NEVER;
    recovery->due = calloc(slot_count, sizeof(struct slot *));
    recovery->held.slots = calloc(slot_count, sizeof(struct slot *));
    recovery->polled.slots = calloc(slot_count, sizeof(struct slot *));
    for (uint32_t index = 0; index < slot_count; index++)
        slots[index].deadline = NEVER;
    const bool sends = sending_open(&recovery->sending, slot_count, &recovery->timer, stats);
    return deadlines_open(&recovery->deadlines, slot_count) && sends && recovery->due != NULL &&
           recovery->held.slots != NULL && recovery->polled.slots != NULL;
}

void recovery_close(struct recovery *recovery) {
    sending_close(&recovery->sending);
    deadlines_close(&recovery->deadlines);
    free(recovery->due);
    free(recovery->held.slots);
    free(recovery->polled.slots);
}
