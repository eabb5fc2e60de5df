// SPDX-License-Identifier: Apache-2.0
// RESULTs on their way to UDP ports. A round's result is the same datagram for every worker: those of one size are put
// in a row, which is sent to each worker in one call and split up by the kernel (UDP_SEGMENT). One piece of memory is
// what the kernel copies fastest, by more than it costs to fill it.
#ifndef NATIVE_RESULTS_H
#define NATIVE_RESULTS_H

#include <netinet/in.h>

#include "plane.h"

#define MAX_SEGMENTS 64 // as many as every kernel takes
#define MAX_DATAGRAM 65507
#define MAX_WORKERS 64 // of a group that is served this way
#define DELIVERIES 64

struct native_switch;
struct thread;
struct udp_port;

// Datagrams of one size, one after the other.
struct batch {
    size_t size; // of each
    unsigned count;
    uint8_t data[MAX_DATAGRAM];
};

// Where the results of a job go. Made anew when tables have changed.
struct delivery {
    unsigned job;
    unsigned group;
    bool valid;
    bool direct; // to UDP ports only, by entries, without losses; else each frame takes the long way
    unsigned workers;
    struct {
        struct udp_port *port;
        struct sockaddr_in address;
    } worker[MAX_WORKERS];
    struct batch batches[MAX_LANES + 1]; // by number of lanes
};

struct results {
    struct delivery *deliveries[DELIVERIES];
    uint64_t unsent; // bit i: deliveries[i] has batches to send
};

// The delivery of a job's results; NULL where they have to take the long way.
struct delivery *results_delivery(struct thread *thread, unsigned job, unsigned group);
// `half` has completed; `header` is that of the packet which completed it.
void results_add(struct thread *thread, struct delivery *delivery, const struct half *half, const uint8_t *header);
// Sends what has been added.
void results_flush(struct thread *thread);
// Tables have changed; everything has been flushed.
void results_forget(struct results *results);
void results_destroy(struct results *results);

#endif
