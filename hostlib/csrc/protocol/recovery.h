// SPDX-License-Identifier: Apache-2.0
// When a packet that has no answer is sent again: hostlib/p4reduce/protocol/recovery.py in C. docs/protocol.md explains
// why, in section 3.
#ifndef P4REDUCE_RECOVERY_H
#define P4REDUCE_RECOVERY_H

#include "protocol/sending.h"

enum { LEVELS = 8 };

// What becomes of super-packets. Python sends none.
enum groups {
    GROUPS_UNPROVED, // none is known to have arrived
    GROUPS_LOST,     // so many were only answered after their packets were sent again singly that none seems to arrive
    GROUPS_ARRIVE,
};

// Sends the packets of slots, and sends them again until they are answered. A packet is passed when one that was sent
// later is answered: it is lost, or another rank's of its round is. Where nothing is answered for a time-out, a few
// packets ask: probes.
struct recovery {
    struct timer timer;
    struct sending sending;
    p4reduce_stats *stats;
    struct slot *slots;
    uint32_t slot_count;
    unsigned in_state[STATES]; // how many packets
    // Those that wait for answers and are not in the line, as they were sent. By levels: each waits twice as long as
    // the one before until it is sent again, when it was passed.
    struct waiting {
        struct slot *oldest, *newest;
    } waiting[LEVELS];
    struct slot **due; // room for all slots
    // When a packet was sent that was answered, the latest of all those, and how long its answer took.
    double answered_through, took;
    double heard_at; // when the last round ended, or the last packet was sent
    // How many packets may ask next, after a time-out that was doubled so often; and whether any has since the last
    // round ended.
    unsigned probes, doublings;
    bool probing;
    // The slot and seq of the packet that was proved lost when there was no limit.
    const struct slot *limited_by;
    uint32_t limited_by_seq;
    bool duplicates; // the network duplicates packets, so answers to all copies prove nothing
    double resumed_at; // when a round ended after probes
    // What packets that were passed may yet cost, in shares of one: each that is sent again costs a whole one.
    unsigned credit, pays, most_credit; // what one that was lost pays for
    enum groups groups;
    unsigned groups_lost;
};

// False if there is no memory. `streams`: of the job.
bool recovery_open(struct recovery *recovery, struct slot *slots, uint32_t slot_count, uint32_t streams,
                   struct timer timer, p4reduce_stats *stats);
void recovery_close(struct recovery *recovery);

// Begins anew with so many of the slots, none of which has a packet. What is known of the path's round trips stays.
void recovery_begin_anew(struct recovery *recovery, uint32_t slot_count);

// Sends the packet of the slot's next round.
void recovery_send(struct recovery *recovery, struct slot *slot, double now);

// The RESULT of the slot's packet has come. `completed`: to the one that completed the round, or that asked.
void recovery_answered(struct recovery *recovery, struct slot *slot, bool completed, double now);

// An answer, a RESULT or not, came for a round of the slot that has its RESULT.
void recovery_answered_again(struct recovery *recovery, struct slot *slot, uint32_t seq, bool result);

// A STATUS says that nothing is lost: another rank is awaited. `seen`: the workers counted so far. `own`: whether it
// answers this rank's packet: a leaf tells all its workers what its parent told of one's.
void recovery_counted(struct recovery *recovery, struct slot *slot, uint32_t seen, bool own, double now);

// Sends again what has waited too long for its answer, and what has its turn.
void recovery_tick(struct recovery *recovery, double now);

// When to call `recovery_tick` next.
double recovery_deadline(const struct recovery *recovery);

// The job has ended. Packets that wait for answers are still sent, where `insist`.
void recovery_end(struct recovery *recovery, bool insist);

// Whether no super-packets are to be sent of what is in the outbox.
bool recovery_sends_singly(const struct recovery *recovery);

#endif
