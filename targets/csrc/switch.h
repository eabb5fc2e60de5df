// SPDX-License-Identifier: Apache-2.0
// What the threads and the control interface share.
#ifndef NATIVE_SWITCH_H
#define NATIVE_SWITCH_H

#include <pthread.h>

#include "native.h"
#include "pipeline.h"

// Frames that came out of `native_process`.
struct outputs {
    uint8_t *data;
    size_t size;
    size_t room;
    bool overflow;
};

struct native_switch {
    // Read-locked by each thread for as long as it processes a batch of packets, write-locked for any change.
    pthread_rwlock_t lock;
    struct plane *plane; // that runs; NULL: none
    struct context caller;
    struct outputs outputs;
};

#endif
