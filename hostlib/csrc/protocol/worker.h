// SPDX-License-Identifier: Apache-2.0
// One rank's side of the protocol. docs/protocol.md is the specification. hostlib/p4reduce/protocol/worker.py is the
// same in Python: with the same names, the same states and the same order of steps. rounds.h defines the contents of
// packets, recovery.h when they are sent.
#ifndef P4REDUCE_WORKER_INTERNAL_H
#define P4REDUCE_WORKER_INTERNAL_H

#include "p4reduce_worker.h"
#include "protocol/recovery.h"
#include "protocol/rounds.h"

// Bytes before each payload that a link may use for the headers of frames.
enum { HEADROOM_BYTES = 64 };

// A worker. One thread at a time uses it: with an engine, the driver.
struct p4reduce_worker {
    p4reduce_membership membership; // with the number of slots that are used now
    uint32_t assigned;              // slots that the job was assigned
    p4reduce_stats stats;
    p4reduce_error failure; // status P4REDUCE_OK while there is none
    struct rounds rounds;
    struct recovery recovery;
    struct slot *slots;
    uint8_t *payloads;
    uint32_t counter;
    uint64_t scanned;             // blocks
    uint32_t waiting;             // slots that wait for the scan
    double scan_at;               // when the scan is to continue, infinite if no slot waits for it
    double scan_backoff;          // seconds between two polls of the scans of co-located ranks
    struct task *oldest, *newest; // tasks that are not done
};

// Queues a task made by task_new, and takes ownership of it.
void worker_submit(p4reduce_worker *worker, struct task *task, double now);

// Returns how many of the slots an aggregator has.
uint32_t worker_slots_at(const p4reduce_worker *worker, uint32_t aggregator);

// Takes one UDP payload. `marked`: whether a router has marked its IP packet (CE).
void worker_receive(p4reduce_worker *worker, const void *payload, size_t length, bool marked, double now);

// Prefetches the memory that the packet to be received next will need.
void worker_expect(const p4reduce_worker *worker, const uint8_t *payload, size_t length);

// Ends all operations, and those yet to come, with `error`.
void worker_fail(p4reduce_worker *worker, const p4reduce_error *error);

#endif
