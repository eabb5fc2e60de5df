// SPDX-License-Identifier: Apache-2.0
// One rank's side of the protocol. docs/protocol.md explains why, hostlib/p4reduce/protocol/worker.py says it in
// Python: the same names, the same states, the same order of steps.
#ifndef P4REDUCE_WORKER_INTERNAL_H
#define P4REDUCE_WORKER_INTERNAL_H

#include "p4reduce_worker.h"
#include "pace.h"
#include "packet.h"
#include "task.h"
#include "timer.h"

// Bytes before each payload that a link may use for the headers of frames.
enum { HEADROOM_BYTES = 64 };

// One slot: its round, and what of the task its streams have sent.
struct slot {
    struct task *task;
    uint32_t seq;
    // The round: the lanes that carry values, and the keys of their blocks.
    uint8_t active;
    uint32_t agreed[MAX_LANES];
    // Each lane's next non-zero block.
    uint32_t announced[MAX_LANES];
    // The least that a RESULT may name in each lane, as blocks come in order.
    uint32_t least[MAX_LANES];
    // The packet, and whether it waits for its RESULT, or to be sent.
    uint8_t *payload;
    uint32_t length;
    uint8_t present; // lanes
    bool waiting, queued, lined_up; // the last: for its turn
    uint32_t transmissions;
    bool grouped;       // it was first sent in a super-packet
    uint32_t doublings; // of the timeout, carried from round to round
    double first_sent_at, sent_at, deadline;
    // The workers that the switch has seen in this round, from STATUS.
    bool polling;
    bool listed; // in the worker's `polled`
    uint32_t seen;
};

struct p4reduce_worker {
    p4reduce_membership membership;
    uint8_t index; // as which the switch knows this rank
    p4reduce_stats stats;
    p4reduce_error failure; // status P4REDUCE_OK while there is none
    struct layout layout;
    uint32_t streams;
    unsigned max_absent_lanes;
    struct timer timer;
    struct pace pace;
    uint32_t counter;
    struct task *oldest, *newest; // those not done
    double earliest;              // no deadline is before this
    // When the last round ended, and when the packet was sent that is the latest of those known to be answered.
    double progress_at, answered_through;
    // While no round ends: how many packets may ask at a time (0: as many as there are), and when the next may.
    uint32_t askers;
    double held_until;
    bool released; // from that, as many packets seem to be lost
    struct slot *slots;
    uint8_t *payloads;
    uint32_t *outbox, queued; // slots, in the order in which they are to be sent
    uint32_t *line, line_at, line_length; // a ring of slots whose packets wait for their turn
    // What became of packets that were first sent in super-packets: whether one has arrived, and how many were only
    // answered after they were sent again.
    bool groups_arrive;
    unsigned groups_lost;
    uint32_t *polled, polling; // slots whose round waits for stragglers
};

// Queues a task made by task_new, which is the worker's from now on.
void worker_submit(p4reduce_worker *worker, struct task *task, double now);

// Ends all operations, and those yet to come, with `error`.
void worker_fail(p4reduce_worker *worker, const p4reduce_error *error);

// For links: the slots whose packets are to be sent, in order, and how many. `worker_sent` says that the first `count`
// of them were; their order may have been changed.
static inline uint32_t *worker_outbox(p4reduce_worker *worker, uint32_t *count) {
    *count = worker->queued;
    return worker->outbox;
}
void worker_sent(p4reduce_worker *worker, uint32_t count);

// How many lanes a slot's packet carries: what its length depends on.
static inline unsigned slot_lanes(const struct slot *slot) {
    return lanes_in(slot->present);
}

#endif
