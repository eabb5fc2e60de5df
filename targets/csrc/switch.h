// SPDX-License-Identifier: Apache-2.0
// What the threads and the control interface share.
#ifndef NATIVE_SWITCH_H
#define NATIVE_SWITCH_H

#include <pthread.h>

#include "context.h"
#include "packet_ins.h"
#include "port.h"

// Frames that came out of `native_process`.
struct outputs {
    uint8_t *data;
    size_t size;
    size_t capacity;
    bool overflow;
};

struct native_switch {
    // Read-locked by each thread for as long as it processes a batch of packets, write-locked for any change.
    pthread_rwlock_t lock;
    struct plane *plane;       // that runs; NULL: none
    struct port *ports[PORTS]; // by number
    struct port *opened[PORTS];
    unsigned port_count;
    unsigned thread_count;
    struct thread *threads[MAX_THREADS];
    int stop; // an eventfd that wakes all threads
    atomic_bool stopping;
    struct packet_ins packet_ins;
    _Atomic uint64_t undeliverable; // frames to a port that is not there
    struct context caller;          // of whoever calls `native_process` and `native_packet_out`
    struct outputs outputs;
};

// Hands a frame that came out of the plane to its port; `thread` is NULL for a caller's.
void switch_emit(struct native_switch *native, const struct plane *plane, struct thread *thread, unsigned port,
                 const uint8_t *frame, size_t length);

#endif
