// SPDX-License-Identifier: Apache-2.0
// A thread that waits at ports and processes what comes.
#ifndef NATIVE_THREAD_H
#define NATIVE_THREAD_H

#include "receiver.h"
#include "results.h"
#include "batches.h"
#include "switch.h"

struct thread {
    struct context context; // first: whoever gets it has the thread
    struct native_switch *native;
    unsigned index; // from 0
    bool alone;
    bool started;
    pthread_t handle;
    int poll;
    uint64_t version; // of the tables that `results` knows
    struct receiver *receiver;
    struct results results;
    struct batches batches;
    const struct virtio_net_hdr *offload; // of the frame at hand; NULL: none
};

// NULL where there is no memory, or no descriptor.
struct thread *thread_create(struct native_switch *native, unsigned index);
void thread_destroy(struct thread *thread);

// Returns 0 or a negative errno.
int thread_watch(struct thread *thread, struct port *port);
int thread_start(struct thread *thread);

#endif
