// SPDX-License-Identifier: Apache-2.0
// A thread that waits for packets at its ports, and processes them.
#ifndef NATIVE_THREAD_H
#define NATIVE_THREAD_H

#include "receiver.h"
#include "results.h"
#include "batches.h"
#include "switch.h"

struct thread {
    struct context context; // first member: a pointer to it is one to the thread
    struct native_switch *native;
    unsigned index; // from 0
    bool alone;
    bool started;
    pthread_t handle;
    int poll;
    uint64_t version; // plane's version for which `results` is valid
    struct receiver *receiver;
    struct results results;
    struct batches batches;
    const struct virtio_net_hdr *offload; // of the frame being processed; NULL: none
};

// Returns NULL without memory or file descriptors.
struct thread *thread_create(struct native_switch *native, unsigned index);
void thread_destroy(struct thread *thread);

// Returns 0 or a negative errno.
int thread_watch(struct thread *thread, struct port *port);
int thread_start(struct thread *thread);

#endif
