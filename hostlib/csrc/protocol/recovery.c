// SPDX-License-Identifier: Apache-2.0
#include "protocol/recovery.h"

#include <stdlib.h>

enum {
    MAX_CARRIED_DOUBLINGS = 6,
    PROBES = 2,      // packets that ask what is the matter, the first time
    LOST_GROUPS = 8, // packets of super-packets that seem to be lost, before any has arrived
    SHARES = 64,     // rounds that pay for a packet that is sent again in vain
};
static const double REORDERING = 0.25; // of a round trip: packets may overtake others that were sent so long before

static double smaller(double one, double other) {
    return one < other ? one : other;
}

// States, and who waits.

static void enter(struct recovery *recovery, struct slot *slot, enum state state) {
    recovery->in_state[slot->state]--;
    recovery->in_state[state]++;
    slot->state = state;
}

static unsigned flight(const struct recovery *recovery) {
    return recovery->in_state[SENT] + recovery->in_state[ASKING];
}

static void stop_waiting(struct recovery *recovery, struct slot *slot) {
    if (!slot->waiting)
        return;
    struct waiting *waiting = &recovery->waiting[slot->level];
    *(slot->before ? &slot->before->after : &waiting->oldest) = slot->after;
    *(slot->after ? &slot->after->before : &waiting->newest) = slot->before;
    slot->waiting = false;
}

// Whose packet is counted waits for others, so it asks less and less often.
static void wait_for_answer(struct recovery *recovery, struct slot *slot) {
    stop_waiting(recovery, slot);
    slot->level = !slot_counted(slot) ? 0 : (slot->transmissions < LEVELS ? slot->transmissions : LEVELS) - 1;
    struct waiting *waiting = &recovery->waiting[slot->level];
    slot->before = waiting->newest;
    slot->after = NULL;
    *(slot->before ? &slot->before->after : &waiting->oldest) = slot;
    waiting->newest = slot;
    slot->waiting = true;
}

static void forget(struct recovery *recovery, struct slot *slot) {
    enter(recovery, slot, IDLE);
    stop_waiting(recovery, slot);
}

// Sending.

static void transmit(struct recovery *recovery, struct slot *slot, double now) {
    slot->sent_at = recovery->heard_at = now;
    if (slot->transmissions == 0)
        slot->first_sent_at = slot->heard_at = now;
    else
        recovery->stats->retransmissions += !slot->queued;
    // No other copy goes before one that is in the outbox has left.
    slot->transmissions += slot->transmissions == 0 || !slot->queued;
    enter(recovery, slot, slot_counted(slot) ? COUNTED : slot->transmissions == 1 ? SENT : ASKING);
    wait_for_answer(recovery, slot);
    sending_put(&recovery->sending, slot);
}

// Sends the slot's packet, or lets it wait for its turn.
static void line_up(struct recovery *recovery, struct slot *slot, double now) {
    if (sending_may_go(&recovery->sending, slot, now)) {
        transmit(recovery, slot, now);
        return;
    }
    stop_waiting(recovery, slot);
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

// A rank that was late is taken for a loss as often as packets overtake each other. So those that were passed are sent
// again as long as that pays: each that was lost pays for as many in vain as other ranks' losses make.
static void earn(struct recovery *recovery, unsigned shares) {
    recovery->credit += shares;
    if (recovery->credit > recovery->most_credit)
        recovery->credit = recovery->most_credit;
}

// Takes in how long the slot's packet has waited, and what its answer says of those that were sent before.
static void measure(struct recovery *recovery, const struct slot *slot, bool completed, double now) {
    struct timer *timer = &recovery->timer;
    const double elapsed = now - slot->sent_at;
    const bool once = slot->transmissions == 1;
    // Who completes a round is answered at once. The others' time includes waiting for that rank, so it can only show
    // that the path is shorter than was thought.
    if (once && (completed || elapsed < timer_estimate(timer)))
        timer_measure(timer, elapsed);
    if (once)
        timer_answered_after(timer, elapsed);
    // A rank that was late does not send in the order in which the others have waited for it.
    if (once && slot->sent_at > recovery->answered_through && (completed || slot->sent_at >= recovery->resumed_at)) {
        recovery->answered_through = slot->sent_at;
        recovery->took = elapsed;
    }
    // The first answer to the last packet, which was a STATUS where one has come since.
    const double first = (slot->heard_at > slot->sent_at ? slot->heard_at : now) - slot->sent_at;
    if ((once && completed) || (timer->least <= first && first < timer->timeout))
        recovery->doublings = 0;
}

static void judge_groups(struct recovery *recovery, const struct slot *slot) {
    if (!slot->grouped)
        return;
    if (slot->transmissions == 1)
        recovery->groups = GROUPS_ARRIVE;
    else if (!slot_counted(slot) && ++recovery->groups_lost == LOST_GROUPS && recovery->groups == GROUPS_UNPROVED)
        recovery->groups = GROUPS_LOST;
}

static bool slow_down(struct recovery *recovery, const struct slot *slot, double now) {
    const bool slower =
        pace_lost(&recovery->sending.pace, &recovery->timer, slot->unanswered_since, flight(recovery), now);
    recovery->stats->slowdowns += slower;
    return slower;
}

void recovery_answered_again(struct recovery *recovery, struct slot *slot, uint32_t seq, bool result) {
    if (seq == slot->seq - 1) {
        recovery->duplicates |= result && slot->sent_once;
        if (slot->unanswered > 0 && --slot->unanswered == 0 && !recovery->duplicates) // so none was lost
            recovery->credit -= recovery->credit < recovery->pays ? recovery->credit : recovery->pays;
    } else if (slot == recovery->limited_by && seq == recovery->limited_by_seq && !recovery->duplicates) {
        pace_lift(&recovery->sending.pace);
        recovery->limited_by = NULL;
    }
}

void recovery_answered(struct recovery *recovery, struct slot *slot, bool completed, double now) {
    recovery->stats->rounds++;
    recovery->heard_at = now;
    pace_answered(&recovery->sending.pace);
    const unsigned copies = slot_copies(slot);
    recovery->stats->retransmissions -= slot->transmissions - copies;
    earn(recovery, completed && copies > 1 && !slot_counted(slot) ? recovery->pays : 1);
    if (slot->unanswered > 0) { // its copies came before this one, if they came
        const bool limited = pace_limited(&recovery->sending.pace);
        if (slow_down(recovery, slot, now) && !limited) {
            recovery->limited_by = slot;
            recovery->limited_by_seq = slot->seq - 1;
        }
    }
    // Else another rank was late, or the switch.
    const bool own = completed && !recovery->probing && !slot_counted(slot);
    slot->unanswered = own ? copies - 1 : 0;
    slot->unanswered_since = slot->first_sent_at;
    slot->sent_once = copies == 1;
    if (slot->unanswered > 0 && pace_limited(&recovery->sending.pace) && now - slot->sent_at >= recovery->timer.least)
        slow_down(recovery, slot, now);
    if (recovery->probing) {
        recovery->probing = false;
        recovery->probes = PROBES;
        if (recovery->doublings > MAX_CARRIED_DOUBLINGS)
            recovery->doublings = MAX_CARRIED_DOUBLINGS;
        recovery->resumed_at = now;
    }
    measure(recovery, slot, completed, now);
    judge_groups(recovery, slot);
    forget(recovery, slot);
}

void recovery_counted(struct recovery *recovery, struct slot *slot, uint32_t seen, bool own, double now) {
    recovery->stats->statuses++;
    if (slot->transmissions == 2 && own) { // only packets that are sent again are answered so
        timer_measure(&recovery->timer, now - slot->sent_at);
        if (slot->grouped)
            recovery->groups = GROUPS_ARRIVE; // as the first had been counted
    }
    recovery->probes = PROBES;
    slot->seen = seen;
    slot->heard_at = now;
    enter(recovery, slot, COUNTED);
    if (!slot->lined_up)
        wait_for_answer(recovery, slot);
}

// Time.

// When the slot's packet is taken for lost, if it was passed.
static double lost_at(const struct recovery *recovery, const struct slot *slot) {
    if (slot->sent_at >= recovery->answered_through || recovery->credit < SHARES)
        return NEVER;
    const double took = recovery->took, window = fmax(REORDERING * took, 4 * recovery->timer.variation);
    return slot->sent_at + (took + window) * (double)(1u << slot->level);
}

static double probe_at(const struct recovery *recovery) {
    const bool polling = recovery->in_state[COUNTED] + recovery->in_state[POLLING] > 0;
    return recovery->heard_at + timer_wait(&recovery->timer, recovery->doublings, polling);
}

// When packets are to be sent again.
static double due_at(const struct recovery *recovery) {
    double due = NEVER;
    bool none = true;
    for (unsigned level = 0; level < LEVELS; level++) {
        const struct slot *oldest = recovery->waiting[level].oldest;
        if (oldest == NULL)
            continue;
        none = false;
        due = smaller(due, lost_at(recovery, oldest));
    }
    return none ? NEVER : smaller(due, probe_at(recovery));
}

// Puts packets that are taken for lost in `due`. Returns how many.
static uint32_t take_lost(struct recovery *recovery, double now) {
    uint32_t count = 0;
    unsigned lost = 0;
    for (unsigned level = 0; level < LEVELS; level++) {
        struct slot *slot = recovery->waiting[level].oldest;
        for (; slot != NULL && lost_at(recovery, slot) <= now; slot = slot->after) {
            recovery->due[count++] = slot;
            if (slot->queued)
                continue;
            recovery->credit -= SHARES;
            lost += slot_in_network(slot);
        }
    }
    if (count > 0)
        recovery->stats->slowdowns += pace_burst_lost(&recovery->sending.pace, lost, flight(recovery), now);
    return count;
}

// The same with packets that ask.
static uint32_t take_probes(struct recovery *recovery) {
    uint32_t count = 0;
    for (unsigned level = 0; level < LEVELS; level++) {
        struct slot *slot = recovery->waiting[level].oldest;
        for (; slot != NULL && count < recovery->probes; slot = slot->after)
            recovery->due[count++] = slot;
    }
    recovery->probing = true;
    if (recovery->probes < recovery->slot_count)
        recovery->probes *= 2;
    recovery->doublings++;
    return count;
}

void recovery_tick(struct recovery *recovery, double now) {
    if (now >= due_at(recovery)) {
        uint32_t due = take_lost(recovery, now);
        if (due == 0)
            due = take_probes(recovery);
        for (uint32_t i = 0; i < due; i++)
            line_up(recovery, recovery->due[i], now);
    }
    struct slot *slot;
    while ((slot = sending_take_turn(&recovery->sending, now)) != NULL) {
        if (slot_waits_for_turn(slot))
            transmit(recovery, slot, now);
        else if (slot_under_way(slot)) // a STATUS came meanwhile
            wait_for_answer(recovery, slot);
    }
}

double recovery_deadline(const struct recovery *recovery) {
    return smaller(due_at(recovery), sending_next_turn(&recovery->sending));
}

// Ends.

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
    recovery->pays = 2 * streams * SHARES;
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
        .answered_through = -NEVER,
        .heard_at = -NEVER,
        .probes = PROBES,
        .resumed_at = -NEVER,
        .credit = slot_count * SHARES,
        .pays = recovery->pays,
        .most_credit = slot_count * SHARES + recovery->pays,
        .groups = recovery->groups,
        .groups_lost = recovery->groups_lost,
    };
    sending_begin_anew(&recovery->sending, slot_count);
}

void recovery_close(struct recovery *recovery) {
    sending_close(&recovery->sending);
    free(recovery->due);
}
