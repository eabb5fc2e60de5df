// SPDX-License-Identifier: Apache-2.0
#include "protocol/recovery.h"

#include <stdlib.h>

enum {
    PROBES = 2,                // packets that are probed at each time-out
    COST = 64,                 // retransmit budget that an overtaken packet costs; a round that ends earns one
    SUPER_PACKETS_GIVE_UP = 8, // packets of super-packets that seem to be lost, before any has arrived
};

// States, and the lists of packets in the network.

static void enter(struct recovery *recovery, struct slot *slot, enum state state) {
    recovery->in_state[slot->state]--;
    recovery->in_state[state]++;
    slot->state = state;
}

static unsigned in_flight(const struct recovery *recovery) {
    return recovery->in_state[SENT] + recovery->in_state[RETRANSMITTED];
}

static void unlink_slot(struct slot *slot) {
    if (!slot->in_unacked)
        return;
    struct unacked *unacked = &slot->path->unacked[slot->backoff_level];
    *(slot->prev ? &slot->prev->next : &unacked->head) = slot->next;
    *(slot->next ? &slot->next->prev : &unacked->tail) = slot->prev;
    slot->in_unacked = false;
}

// Moves the slot behind all others whose packet is in the network. A packet in PARTIAL_ACK only asks for others, so it
// asks less and less often.
static void await_answer(struct slot *slot) {
    unlink_slot(slot);
    const unsigned copies = slot->transmissions < BACKOFF_LEVELS ? slot->transmissions : BACKOFF_LEVELS;
    slot->backoff_level = slot_counted(slot) ? copies - 1 : 0;
    struct unacked *unacked = &slot->path->unacked[slot->backoff_level];
    slot->prev = unacked->tail;
    slot->next = NULL;
    *(slot->prev ? &slot->prev->next : &unacked->head) = slot;
    unacked->tail = slot;
    slot->in_unacked = true;
}

static void forget(struct recovery *recovery, struct slot *slot) {
    enter(recovery, slot, IDLE);
    unlink_slot(slot);
    sending_withdraw(&recovery->sending, slot);
}

// Sending.

static void transmit(struct recovery *recovery, struct slot *slot, double now) {
    slot->sent_at = recovery->last_activity = now;
    if (slot->transmissions == 0)
        slot->first_sent_at = slot->last_answer = now;
    else
        recovery->stats->retransmissions += !slot->in_outbox;
    // A copy that is still in the outbox is the only one.
    slot->transmissions += slot->transmissions == 0 || !slot->in_outbox;
    enter(recovery, slot, slot_counted(slot) ? PARTIAL_ACK : slot->transmissions == 1 ? SENT : RETRANSMITTED);
    await_answer(slot);
    sending_put(&recovery->sending, slot);
}

static void send_or_queue(struct recovery *recovery, struct slot *slot, double now) {
    if (sending_may_bypass_queue(&recovery->sending, slot, now)) {
        transmit(recovery, slot, now);
        return;
    }
    unlink_slot(slot);
    enter(recovery, slot, slot->transmissions == 0 ? QUEUED : slot_counted(slot) ? POLL_QUEUED : RETRANSMIT_QUEUED);
    sending_enqueue(&recovery->sending, slot);
}

void recovery_send(struct recovery *recovery, struct slot *slot, double now) {
    slot->transmissions = 0;
    slot->grouped = false;
    slot->began_at = now;
    send_or_queue(recovery, slot, now);
}

bool recovery_sends_singly(const struct recovery *recovery) {
    if (recovery->super_packets == SUPER_PACKETS_UNPROVED)
        for (uint32_t i = 0; i < recovery->sending.queued; i++)
            if (recovery->sending.outbox[i]->transmissions > 1)
                return true;
    return recovery->super_packets == SUPER_PACKETS_LOST;
}

// Answers.

// Updates the round trip, RACK's latest packet and the back-off.
static void measure(struct recovery *recovery, const struct slot *slot, bool completed, double now) {
    struct timer *timer = &recovery->timer;
    const double elapsed = now - slot->sent_at;
    const bool once = slot->transmissions == 1;
    if (once && (completed || elapsed < timer_estimate(timer)))
        timer_sample(timer, elapsed);
    struct path *path = slot->path;
    if (once && slot->sent_at > path->rack_sent_at) {
        path->rack_sent_at = slot->sent_at;
        path->rack_rtt = elapsed;
    }
    // From the last transmission to the first answer after it: a STATUS, or this RESULT.
    const double first = (slot->last_answer > slot->sent_at ? slot->last_answer : now) - slot->sent_at;
    if ((once && completed) || (timer->min_rtt <= first && first < timer->timeout))
        recovery->backoff = 0;
}

static void judge_super_packets(struct recovery *recovery, const struct slot *slot) {
    if (!slot->grouped)
        return;
    if (slot->transmissions == 1)
        recovery->super_packets = SUPER_PACKETS_ARRIVE;
    else if (!slot_counted(slot) && ++recovery->super_packets_lost == SUPER_PACKETS_GIVE_UP &&
             recovery->super_packets == SUPER_PACKETS_UNPROVED)
        recovery->super_packets = SUPER_PACKETS_LOST;
}

// Slows down: a router had a long queue for the slot's packet, for another rank's, or for the answer.
static void take_mark(struct recovery *recovery, const struct slot *slot, double now) {
    recovery->stats->marks++;
    recovery->stats->slowdowns += pace_on_mark(&recovery->sending.pace, &recovery->timer, slot->began_at,
                                               in_flight(recovery), now);
}

void recovery_on_result(struct recovery *recovery, struct slot *slot, bool completed, bool marked, double now) {
    recovery->stats->rounds++;
    recovery->last_activity = now;
    if (slot_counted(slot)) // The round waited for a late rank. Otherwise the path may have become longer.
        recovery->backoff = timer_kept(&recovery->timer, recovery->backoff);
    if (marked)
        take_mark(recovery, slot, now);
    else
        pace_on_answer(&recovery->sending.pace);
    const unsigned copies = slot_copies(slot);
    recovery->stats->retransmissions -= slot->transmissions - copies;
    const bool lossy = completed && copies > 1 && !slot_counted(slot);
    recovery->budget += lossy ? recovery->budget_of_loss : 1;
    if (recovery->budget > recovery->max_budget)
        recovery->budget = recovery->max_budget;
    if (slot->unacked_copies > 0) // Paths keep order, so answers to these copies would have come before this RESULT.
        recovery->stats->slowdowns +=
            pace_on_loss(&recovery->sending.pace, &recovery->timer, slot->unacked_since, in_flight(recovery), now);
    slot->unacked_copies = lossy ? copies - 1 : 0;
    slot->unacked_since = slot->first_sent_at;
    measure(recovery, slot, completed, now);
    judge_super_packets(recovery, slot);
    forget(recovery, slot);
}

void recovery_withdraw(struct recovery *recovery, struct slot *slot) {
    forget(recovery, slot);
    slot->unacked_copies = 0;
}

void recovery_begin_path(struct recovery *recovery, double now) {
    recovery->backoff = 0;
    timer_restart(&recovery->timer);
    recovery->sending.pace = pace_new(recovery->slot_count);
    // An initial window may leave at once.
    recovery->sending.pace.last_turn = now - 2 * timer_estimate(&recovery->timer);
}

void recovery_on_late_answer(struct slot *slot, uint32_t seq) {
    if (seq == slot->seq - 1 && slot->unacked_copies > 0)
        slot->unacked_copies--;
}

void recovery_on_status(struct recovery *recovery, struct slot *slot, uint32_t counted, bool own, bool marked,
                        double now) {
    recovery->stats->statuses++;
    if (marked)
        take_mark(recovery, slot, now);
    if (slot->transmissions == 2 && own) { // The first transmission gets no STATUS, so this answers the second.
        timer_sample(&recovery->timer, now - slot->sent_at);
        if (slot->grouped)
            recovery->super_packets = SUPER_PACKETS_ARRIVE; // because the first transmission had been counted
    }
    slot->counted = counted;
    slot->last_answer = now;
    enter(recovery, slot, PARTIAL_ACK);
    if (!slot->in_send_queue)
        await_answer(slot);
}

// Time.

// Returns when the slot's packet is sent again because it was overtaken. NEVER if it was not overtaken, or if the
// retransmit budget is used up.
static double overtaken_at(const struct recovery *recovery, const struct slot *slot) {
    const struct path *path = slot->path;
    if (slot->sent_at >= path->rack_sent_at || recovery->budget < COST)
        return NEVER;
    return slot->sent_at + (path->rack_rtt + 4 * recovery->timer.rttvar) * (double)(1u << slot->backoff_level);
}

// Returns when the next packet is to be sent again.
static double due_at(const struct recovery *recovery) {
    double due = NEVER;
    bool none = true;
    for (uint32_t i = 0; i < recovery->aggregators; i++)
        for (unsigned level = 0; level < BACKOFF_LEVELS; level++) {
            const struct slot *head = recovery->paths[i].unacked[level].head;
            if (head == NULL)
                continue;
            none = false;
            due = fmin(due, overtaken_at(recovery, head));
        }
    if (none)
        return NEVER;
    const bool polling = recovery->in_state[PARTIAL_ACK] + recovery->in_state[POLL_QUEUED] > 0;
    return fmin(due, recovery->last_activity + timer_backed_off(&recovery->timer, recovery->backoff, polling));
}

// Collects overtaken packets that are due in `due`, and deducts their cost from the budget. Returns how many there are.
static uint32_t take_overtaken(struct recovery *recovery, double now) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < recovery->aggregators; i++)
        for (unsigned level = 0; level < BACKOFF_LEVELS; level++) {
            struct slot *slot = recovery->paths[i].unacked[level].head;
            for (; slot != NULL && overtaken_at(recovery, slot) <= now; slot = slot->next) {
                recovery->due[count++] = slot;
                if (!slot->in_outbox)
                    recovery->budget -= COST;
            }
        }
    return count;
}

// Returns the slot whose packet was sent first, and puts its next one in its place. NULL if there is none.
static struct slot *take_oldest(struct slot *slots[], uint32_t count) {
    struct slot **oldest = slots;
    for (uint32_t i = 1; i < count; i++)
        if (slots[i] != NULL && (*oldest == NULL || slots[i]->sent_at < (*oldest)->sent_at))
            oldest = &slots[i];
    struct slot *slot = *oldest;
    if (slot != NULL)
        *oldest = slot->next;
    return slot;
}

// Collects the oldest packets in `due`, and doubles the next time-out. Returns how many there are.
static uint32_t take_probes(struct recovery *recovery) {
    uint32_t count = 0;
    for (unsigned level = 0; level < BACKOFF_LEVELS; level++) {
        struct slot *next[MAX_AGGREGATORS], *oldest;
        for (uint32_t i = 0; i < recovery->aggregators; i++)
            next[i] = recovery->paths[i].unacked[level].head;
        while (count < PROBES && (oldest = take_oldest(next, recovery->aggregators)) != NULL)
            recovery->due[count++] = oldest;
    }
    recovery->backoff++;
    return count;
}

void recovery_tick(struct recovery *recovery, double now) {
    if (now >= due_at(recovery)) {
        uint32_t due = take_overtaken(recovery, now);
        if (due == 0)
            due = take_probes(recovery);
        for (uint32_t i = 0; i < due; i++)
            send_or_queue(recovery, recovery->due[i], now);
    }
    struct slot *slot;
    while ((slot = sending_dequeue(&recovery->sending, now)) != NULL) {
        if (slot_waits_for_turn(slot))
            transmit(recovery, slot, now);
        else if (slot_in_network(slot)) // A STATUS came while it was queued.
            await_answer(slot);
    }
}

double recovery_deadline(const struct recovery *recovery) {
    return fmin(due_at(recovery), sending_next_turn(&recovery->sending));
}

// Opening and closing.

void recovery_end(struct recovery *recovery, bool insist) {
    if (insist)
        return;
    for (uint32_t index = 0; index < recovery->slot_count; index++)
        forget(recovery, &recovery->slots[index]);
}

bool recovery_open(struct recovery *recovery, struct slot *slots, uint32_t slot_count, uint32_t streams,
                   struct timer timer, p4reduce_stats *stats) {
    recovery->timer = timer;
    recovery->stats = stats;
    recovery->slots = slots;
    recovery->aggregators = 1;
    recovery->budget_of_loss = 2 * streams * COST; // A loss makes all ranks send the slot's packet again.
    recovery->due = calloc(slot_count, sizeof(struct slot *));
    if (!sending_open(&recovery->sending, slot_count, &recovery->timer, stats) || recovery->due == NULL)
        return false;
    recovery_begin_anew(recovery, slot_count);
    return true;
}

void recovery_begin_anew(struct recovery *recovery, uint32_t slot_count) {
    *recovery = (struct recovery){
        .timer = recovery->timer,
        .sending = recovery->sending,
        .stats = recovery->stats,
        .slots = recovery->slots,
        .slot_count = slot_count,
        .in_state = {[IDLE] = slot_count},
        .due = recovery->due,
        .aggregators = recovery->aggregators,
        .last_activity = -NEVER,
        .budget = slot_count * COST,
        .budget_of_loss = recovery->budget_of_loss,
        .max_budget = slot_count * COST + recovery->budget_of_loss,
        .super_packets = recovery->super_packets,
        .super_packets_lost = recovery->super_packets_lost,
    };
    for (uint32_t i = 0; i < recovery->aggregators; i++)
        recovery->paths[i].rack_sent_at = -NEVER;
    for (uint32_t i = 0; i < slot_count; i++)
        recovery->slots[i].path = &recovery->paths[i % recovery->aggregators];
    sending_begin_anew(&recovery->sending, slot_count);
}

void recovery_close(struct recovery *recovery) {
    sending_close(&recovery->sending);
    free(recovery->due);
}
