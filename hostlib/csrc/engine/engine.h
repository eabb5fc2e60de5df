// SPDX-License-Identifier: Apache-2.0
// An engine gives a worker its packets, its clock and its operations: hostlib/p4reduce/engine/python_engine.py in C.
//
// Theory of operation
//
// Threads. Callers submit operations and wait for them (submit.c), and query the engine's state (control.c). The engine
// has one thread of its own (lifecycle.c). The thread that holds the progress lock is the driver. It is the engine's
// thread, or a thread that waits for an operation and finds the lock free (progress.h). In each turn (network.c) the
// driver receives packets, handles other threads' requests, runs the timers and sends packets. Then it waits for
// packets, a deadline or a notification (progress.h).
//
// States of an operation.
//
//   submitted   In the inbox, or refused if the engine has failed: submit.c.
//   in flight   In the list from `oldest` to `newest`: inflight.c.
//   held back   In flight, but not begun, while operations are paused: pause.c.
//   begun       By the variant, so that the worker has its task: engine_ops.h.
//   ended       Its caller is told by a handle, a callback, or p4reduce_next_ended.
//
// Failure. Only the first counts: every operation in flight ends with it, and no more are accepted. Other threads store
// theirs in `external_failure`, and the driver takes it from there, because an earlier packet may say more about the
// cause.
//
// Locks. The engine's lock guards what callers and the driver share. It is held for a few steps only: not while the
// driver receives, sends, waits or calls back. Lock order: the first engine of a group, then one other; never block
// while holding another engine's lock.
//
// Memory ordering. Threads that do not hold the progress lock access shared fields under the engine's lock. The driver
// also reads `failure` and an operation's `ended` without it, because only a driver writes them. `requests_pending`
// tells the driver, without the lock, that other threads have written a request: an operation in the inbox, a pause, a
// failure or a query. It is set under the lock, after the request is written, and cleared under the lock, before the
// driver reads requests. So none is missed. `most_slots` is a statistic.
#ifndef P4REDUCE_ENGINE_H
#define P4REDUCE_ENGINE_H

#include "engine/engine_ops.h"
#include "engine/operation.h"
#include "link/link.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ADDRESS_BYTES = 64 };

// A round that the switch has counted, as the controller reports, and the message if no rank can be in it.
struct counted {
    bool pending;
    uint32_t half, seq;
    char message[TEXT_BYTES];
};

// A call of another thread that the driver executes between two of its steps.
struct driver_call {
    void (*run)(p4reduce_engine *engine, double now, struct driver_call *call);
    bool done;
};

// The progress lock: progress.h. The engine's lock guards all fields.
struct progress_lock {
    pthread_cond_t released; // for the engine's thread, while a waiter makes progress
    bool held;
    bool by_waiter;        // held by a thread that waits for an operation, not by the engine's own
    bool wakeup_requested; // the engine's thread is to make progress again
    bool idle;             // the engine's thread waits for `released`, not for packets
    bool callback_pending; // the next operation has a callback, which only the engine's thread calls
    unsigned epoch;        // how many waiters have held it so far
};

// The state of pausing operations: pause.h.
struct pause {
    // Guarded by the engine's lock. The requests of other threads: resume with `slots` slots, then pause.
    bool resume_requested, pause_requested;
    uint32_t slots, first_seq;
    uint64_t pause_after;   // the job's operations that may still begin
    uint64_t calls;         // calls of p4reduce_hold and p4reduce_go_on so far
    uint64_t reported_call; // the call that `report` answers
    p4reduce_held report;   // only the driver writes it
    // Owned by the driver. It changes `paused` under the engine's lock, too.
    bool paused;
    uint64_t limit;     // operations from this number on are held back
    uint64_t begun;     // how many operations have begun
    uint32_t slots_now; // the number of slots, if it has changed; otherwise 0
    uint64_t paused_by; // the call of p4reduce_hold
    double since;
    p4reduce_operation *held_back; // the first in flight that has not begun; NULL if there is none
};

// The engine. Each group of fields names its owner.
struct p4reduce_engine {
    // Set when it is opened.
    const struct engine_ops *ops;
    void *state; // the variant's own
    p4reduce_membership membership;
    p4reduce_engine *next_shard; // the next engine of the group; NULL if there is none
    char switch_address[ADDRESS_BYTES], local_address[ADDRESS_BYTES];
    int wake; // a descriptor, readable while `notified`
    pthread_t thread;

    // Guarded by the lock, except for `requests_pending` and `most_slots`.
    pthread_mutex_t lock;
    pthread_cond_t changed;       // an operation has ended, a snapshot was taken, the thread has stopped
    pthread_cond_t reportable;    // an operation has ended without a waiter, and p4reduce_next_ended is to report it
    atomic_bool requests_pending; // the driver is to call engine_handle_requests
    bool notified;                // `wake` is readable
    struct operation_queue inbox;
    struct operation_queue done; // operations whose shards have all ended, for this engine to end
    uint64_t numbered;           // operations that have a number: the next one's number
    struct {
        p4reduce_operation *head, *tail;
    } unreported; // in the order of submission
    struct progress_lock progress;
    p4reduce_error failure;           // status P4REDUCE_OK while there is none
    p4reduce_error external_failure;  // the first failure that another thread has set
    struct counted counted_by_switch; // the last report of the controller
    struct pause pause;
    atomic_uint most_slots;        // used by one operation since the last query
    bool closing, stopped, joined; // p4reduce_close was called; the thread is about to end; it was joined
    unsigned asked, answered;      // requests for a snapshot
    struct driver_call *call;      // the one that waits for the driver; NULL if there is none
    struct snapshot snapshot;

    // Owned by the driver. `worker` and `link`, and the arrays for them, are NULL if the variant has none.
    p4reduce_worker *worker;
    struct link *link;
    struct iovec *payloads; // room for the packets of all slots
    struct slot **sorted;
    bool *grouped;
    p4reduce_operation *oldest, *newest; // in flight
    unsigned callbacks;                  // operations in flight that have a callback
    double oldest_since;             // when the oldest operation became the oldest; its time limit counts from then on
    double busy_since, seconds;      // since when operations are in flight; the time with some in flight before that
    double heard_at;                 // the last packet
    double last_poll, poll_deadline; // the last turn, and when the next one was due
    double stall_start, stall_end;   // the last interval in which the process was stopped past `poll_deadline`
    unsigned polls_with_backlog;     // turns in a row after which the link had more
    double gap, counted_at;          // seconds between two packets, smoothed; when so many packets had been `counted`
    uint64_t counted;                // packets received
    bool must_stop;                  // the engine is closed: take no more turns
};

// Under the lock: returns the failure after which no operations are accepted; its status is P4REDUCE_OK without one.
static inline const p4reduce_error *engine_failure(const p4reduce_engine *engine) {
    return engine->failure.status != P4REDUCE_OK ? &engine->failure : &engine->external_failure;
}

// By the driver: returns whether none of the operations in flight has begun.
static inline bool engine_oldest_is_held_back(const p4reduce_engine *engine) {
    return engine->oldest != NULL && engine->oldest == engine->pause.held_back;
}

#endif
