// SPDX-License-Identifier: Apache-2.0
// One rank's side of the protocol. docs/protocol.md explains why, hostlib/p4reduce/protocol/worker.py says it in
// Python: the same names, the same states, the same order of steps. rounds.h has what packets say, recovery.h when they
// are sent.
#ifndef P4REDUCE_WORKER_INTERNAL_H
#define P4REDUCE_WORKER_INTERNAL_H

#include "p4reduce_worker.h"
#include "protocol/recovery.h"
#include "protocol/rounds.h"

// Bytes before each payload that a link may use for the headers of frames.
enum { HEADROOM_BYTES = 64 };

struct p4reduce_worker {
    p4reduce_membership membership; // with as many slots as are used now
    uint32_t assigned;              // slots that there are
    p4reduce_stats stats;
    p4reduce_error failure; // status P4REDUCE_OK while there is none
    struct rounds rounds;
    struct recovery recovery;
    struct slot *slots;
    uint8_t *payloads;
    uint32_t counter;
    uint32_t waiting; // slots that wait for the scan
    double scan_at;   // when it is to go on, infinite where no slot waits for it
    double scan_backoff;  // seconds from one look at what co-located ranks have scanned to the next
    struct task *oldest, *newest; // those not done
};

// Queues a task made by task_new, which is the worker's from now on.
void worker_submit(p4reduce_worker *worker, struct task *task, double now);

// Has the processor fetch what a packet will need that is received next.
void worker_expect(const p4reduce_worker *worker, const uint8_t *payload, size_t length);

// Ends all operations, and those yet to come, with `error`.
void worker_fail(p4reduce_worker *worker, const p4reduce_error *error);

#endif
