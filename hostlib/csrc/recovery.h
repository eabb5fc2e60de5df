// SPDX-License-Identifier: Apache-2.0
// When a packet that has no answer is sent again: hostlib/p4reduce/protocol/recovery.py in C, which draws how its
// states follow each other. docs/protocol.md explains why, in section 3.
#ifndef P4REDUCE_RECOVERY_H
#define P4REDUCE_RECOVERY_H

#include "deadlines.h"
#include "sending.h"

// Of the job.
enum mode {
    FLOWING,  // rounds end: what is due is sent again
    PROBING,  // no round ends, so a rank is late, likelier than all is lost: few packets ask, others are held back
    RELEASED, // the answer to one that asked says that the others are lost too, but for those answered in a round trip
};

// What becomes of super-packets. Python sends none.
enum groups {
    GROUPS_UNPROVED, // none is known to have arrived
    GROUPS_LOST,     // so many were only answered after their packets were sent again singly that none seems to arrive
    GROUPS_ARRIVE,
};

struct slot_list {
    struct slot **slots;
    uint32_t count;
};

// Sends the packets of slots, and sends them again until they are answered.
struct recovery {
    struct timer timer;
    struct sending sending;
    p4reduce_stats *stats;
    struct slot *slots;
    uint32_t slot_count;
    unsigned in_state[STATES]; // how many packets
    struct deadlines deadlines;
    struct slot **due; // room for all slots
    // When slots are looked at next. Only a look makes it later, so what is answered meanwhile does not.
    double look_at;
    enum mode mode;
    // When the last round ended, and when the packet was sent that is the latest of those known to be answered.
    double progress_at, answered_through;
    // In PROBING: how many packets may ask at a time, when the next may, and those that may not yet.
    unsigned askers;
    double held_until;
    struct slot_list held;
    struct slot_list polled; // those whose rounds wait for stragglers
    enum groups groups;
    unsigned groups_lost;
};

// False if there is no memory.
bool recovery_open(struct recovery *recovery, struct slot *slots, uint32_t slot_count, struct timer timer,
                   p4reduce_stats *stats);
void recovery_close(struct recovery *recovery);

// Sends the packet of the slot's next round.
void recovery_send(struct recovery *recovery, struct slot *slot, double now);

// The RESULT of the slot's packet has come. `completed`: to the one that completed the round, or that asked.
void recovery_answered(struct recovery *recovery, struct slot *slot, bool completed, double now);

// A STATUS says that nothing is lost: from now on, the slot only asks gently whether the round has ended. `seen`: the
// workers counted so far. `own`: whether it answers this rank's packet: a leaf tells all its workers what its parent
// told of one's.
void recovery_counted(struct recovery *recovery, struct slot *slot, uint32_t seen, bool own, double now);

// Sends again what has waited too long for its answer, and what has its turn.
void recovery_tick(struct recovery *recovery, double now);

// When to call `recovery_tick` next.
double recovery_deadline(const struct recovery *recovery);

// No operation is under way.
void recovery_rest(struct recovery *recovery);

// The job has ended. Packets that wait for answers are still sent, where `insist`.
void recovery_end(struct recovery *recovery, bool insist);

// Whether no super-packets are to be sent of what is in the outbox.
bool recovery_sends_singly(const struct recovery *recovery);

#endif
