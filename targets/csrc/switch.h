// SPDX-License-Identifier: Apache-2.0
// The switch: the data that its threads and the control interface share.
#ifndef NATIVE_SWITCH_H
#define NATIVE_SWITCH_H

#include <pthread.h>

#include "context.h"
#include "packet_ins.h"
#include "port.h"

// The frames that `native_process` has produced.
struct outputs {
    uint8_t *data;
    size_t size;
    size_t capacity;
    bool overflow;
};

struct native_switch {
    // A thread holds it for reading while it processes a batch of packets. Every change needs it for writing. Order:
    // this lock first, then that of a half, a meter or `packet_ins`.
    pthread_rwlock_t lock;
    struct plane *plane;       // processes packets; NULL: none
    struct port *ports[PORTS]; // by number
    struct port *opened[PORTS];
    unsigned port_count;
    unsigned thread_count;
    struct thread *threads[MAX_THREADS];
    int stop; // eventfd that wakes all threads
    atomic_bool stopping;
    struct packet_ins packet_ins;
    _Atomic uint64_t undeliverable; // frames to ports that do not exist
    struct context caller;          // for `native_process` and `native_packet_out`, in the caller's thread
    struct outputs outputs;
};

// Passes a frame that the plane has emitted to its port. `thread`: NULL in a caller's thread.
void switch_emit(struct native_switch *native, const struct plane *plane, struct thread *thread, unsigned port,
                 const uint8_t *frame, size_t length);

#endif
