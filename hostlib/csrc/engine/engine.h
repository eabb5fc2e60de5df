// SPDX-License-Identifier: Apache-2.0
// An engine gives a worker its packets, its clock and its operations: hostlib/p4reduce/engine/python_engine.py in C.
//
// Theory of operation
//
// Threads. Callers submit operations and wait for them (submit.c), and ask how far they are (control.c). The engine has
// one thread of its own (lifecycle.c). The thread that holds the progress lock, the driver, carries operations: its own
// thread, or one that waits for an operation and finds nobody at it (progress.h). It takes turns (network.c): receives
// packets, does what others want, runs the timers, sends packets; then it waits for packets, a deadline or a
// notification (progress.h).
//
// States of an operation.
//
//   submitted   In the inbox, or refused where the engine has failed: submit.c.
//   in flight   In the list from `oldest` to `newest`: inflight.c.
//   held back   In flight, but not begun, while operations are paused: pause.c.
//   begun       By the variant, so that the worker has its task: engine_ops.h.
//   ended       Its caller is told by a handle, a callback, or p4reduce_next_ended.
//
// Failure. The first stays: every operation in flight ends with it, and none is taken any more. Other threads leave
// theirs in `outside`, from where the driver takes it, as a packet that has come before may tell more of the cause.
//
// Locks. The engine's lock guards what callers and the driver share. It is held for a few steps only: not while the
// driver receives, sends, waits or calls back. Lock order: the first engine of a group, then one other; never block
// while holding another engine's lock.
//
// Memory ordering. Threads that do not hold the progress lock access shared fields under the engine's lock. The driver
// also reads `failure` and an operation's `ended` without it, as only a driver writes them. `news` tells the driver,
// without it, that something under the lock is to be looked at: it is set after that was written, still under the lock,
// and cleared under the lock before that is read, so nothing is missed. `most_slots` is a statistic.
#ifndef P4REDUCE_ENGINE_H
#define P4REDUCE_ENGINE_H

#include "engine/engine_ops.h"
#include "engine/operation.h"
#include "link/link.h"

#include <pthread.h>
#include <stdatomic.h>

enum { ADDRESS_BYTES = 64 };

// What the switch has counted, as the controller says: a round, and the message for if it cannot be.
struct counted {
    bool news;
    uint32_t half, seq;
    char message[TEXT_BYTES];
};

// Which thread makes progress: progress.h. All fields are guarded by the engine's lock.
struct progress_lock {
    pthread_cond_t released; // for the engine's thread, while a waiter makes progress
    bool held;
    bool by_waiter;          // by a thread that waits for an operation, not by the engine's own
    bool wakeup_requested;   // the engine's thread is to make progress again
    bool idle;               // the engine's thread waits for `released`, not for packets
    bool callback_pending;   // the next operation has a callback, which the engine's thread alone calls
    unsigned epoch;          // waiters that have held it so far
};

// Operations are paused, or about to be: pause.h.
struct pause {
    // Guarded by the engine's lock. The requests of other threads: resume with so many slots, then pause.
    bool resume_requested, pause_requested;
    uint32_t slots, first_seq;
    uint64_t pause_after;    // so many operations of the job's
    uint64_t calls;          // of p4reduce_hold and p4reduce_go_on so far
    uint64_t reported_call;  // the call that `report` answers
    p4reduce_held report;    // written by who holds the progress lock
    // Owned by who holds the progress lock, but for `paused`, which changes under the engine's lock as well.
    bool paused;
    uint64_t limit;                 // operations from this number on are held back
    uint64_t begun;                 // operations
    uint32_t slots_now;             // where they have changed; else 0
    uint64_t paused_by;             // the call
    double since;
    p4reduce_operation *held_back;  // the first in flight that was not begun; NULL where there is none
};

struct p4reduce_engine {
    // Set when it is opened.
    const struct engine_ops *ops;
    void *state; // the variant's own
    p4reduce_membership membership;
    p4reduce_engine *next_shard; // the next engine of the group; NULL for none
    char switch_address[ADDRESS_BYTES], local_address[ADDRESS_BYTES];
    int wake; // a descriptor, readable while `notified`
    pthread_t thread;

    // Guarded by the lock, but for `news` and `most_slots`.
    pthread_mutex_t lock;
    pthread_cond_t changed;    // an operation has ended, a snapshot was taken, the thread has stopped
    pthread_cond_t reportable; // an operation has ended that nobody waits for, and p4reduce_next_ended is to report
    atomic_bool news;
    bool notified;
    struct operation_queue inbox;
    struct operation_queue done; // all shards have ended; this engine has still to end them
    uint64_t numbered;           // operations so far
    struct {
        p4reduce_operation *head, *tail;
    } unreported; // as they were submitted
    struct progress_lock progress;
    p4reduce_error failure; // status P4REDUCE_OK while there is none
    p4reduce_error outside; // the same, of other threads
    struct counted counted_by_switch;
    struct pause pause;
    atomic_uint most_slots;  // used by one operation since the last query
    bool closing, stopped, joined;
    unsigned asked, answered; // for a snapshot
    struct snapshot snapshot;

    // The driver's: it holds the progress lock. What is of a worker and a link is NULL where there is none.
    p4reduce_worker *worker;
    struct link *link;
    struct iovec *payloads; // room for those of all slots
    struct slot **sorted;
    bool *grouped;
    p4reduce_operation *oldest, *newest; // in flight
    unsigned callbacks;                  // operations in flight that have one
    double oldest_since, busy_since, heard_at, seconds;
    double last_poll, poll_deadline; // the last turn, and when there was to be another at the latest
    double stall_start, stall_end;   // the last interval in which the process was stopped past `poll_deadline`
    unsigned polls_with_backlog;     // turns in a row after which the link had more
    double gap, counted_at; // seconds from one packet to the next, smoothed, and when so many had been `counted`
    uint64_t counted;
    bool must_stop;
};

// Under the lock: why no operations are taken any more; its status is P4REDUCE_OK while they are.
static inline const p4reduce_error *engine_failure(const p4reduce_engine *engine) {
    return engine->failure.status != P4REDUCE_OK ? &engine->failure : &engine->outside;
}

// By the driver: whether none of the operations in flight has begun.
static inline bool engine_oldest_is_held_back(const p4reduce_engine *engine) {
    return engine->oldest != NULL && engine->oldest == engine->pause.held_back;
}

#endif
