// SPDX-License-Identifier: Apache-2.0
// RESULTs of the short way. A round's result is the same datagram for every worker, so a row of them serves all.
#ifndef NATIVE_RESULTS_H
#define NATIVE_RESULTS_H

#include "plane.h"
#include "batches.h"
#include "udp.h"

#define MAX_WORKERS 64 // of a group that is served this way
#define DELIVERIES 64

// Where the results of a job go. Made anew when tables have changed.
struct delivery {
    unsigned job;
    unsigned group;
    bool valid;
    bool direct; // to UDP ports only, by entries, without losses; else each frame takes the long way
    unsigned workers;
    struct destination worker[MAX_WORKERS];
    struct batch batches[MAX_LANES + 1]; // by number of lanes
};

struct results {
    unsigned thread;
    struct port *const *ports; // of the switch, by number
    // To single packets, and what goes the long way. They go before RESULTs of the short way: the answer to a packet
    // that was sent again, before its slot's next RESULT.
    struct batches *replies;
    struct delivery *deliveries[DELIVERIES];
    uint64_t unsent; // bit i: deliveries[i] has rows to send
};

// The delivery of a job's results; NULL where they have to take the long way.
struct delivery *results_delivery(struct results *results, const struct plane *plane, unsigned job, unsigned group);
// `half` has completed; the packet that completed it has this header, with these lanes active.
void results_add(struct results *results, const struct slots *slots, struct delivery *delivery, const struct half *half,
                 const uint8_t *header, unsigned active);
// Sends what has been added.
void results_flush(struct results *results);
// Tables have changed; everything has been flushed.
void results_forget(struct results *results);
void results_destroy(struct results *results);

#endif
