// SPDX-License-Identifier: Apache-2.0
// RESULTs of the fast path. A round's result is the same datagram for every worker, so one batch serves all workers.
#ifndef NATIVE_RESULTS_H
#define NATIVE_RESULTS_H

#include "plane.h"
#include "batches.h"
#include "udp.h"

#define MAX_WORKERS 64 // of a group on the fast path
#define DELIVERIES 64

// The destinations of a job's results. They are computed again when tables have changed.
struct delivery {
    unsigned job;
    unsigned group;
    bool valid;
    bool direct; // all destinations are UDP ports without simulated loss; if not, results take the general path
    unsigned workers;
    struct destination worker[MAX_WORKERS];
    struct batch batches[MAX_LANES + 1]; // by number of lanes
};

struct results {
    unsigned thread;
    struct port *const *ports; // of the switch, by number
    // Datagrams of the general path. They are sent before RESULTs of the fast path, so that the reply to a
    // retransmitted packet precedes its slot's next RESULT.
    struct batches *replies;
    struct delivery *deliveries[DELIVERIES];
    uint64_t unsent; // bit i: deliveries[i] has batches to send
};

// Returns the delivery of a job's results, or NULL if they take the general path.
struct delivery *results_delivery(struct results *results, const struct plane *plane, unsigned job, unsigned group);
// Adds the result of a completed half. `header`, `active` and `ecn` are those of the packet that completed it.
void results_add(struct results *results, const struct slots *slots, struct delivery *delivery, const struct half *half,
                 const uint8_t *header, unsigned active, unsigned ecn);
// Sends all results that were added.
void results_flush(struct results *results);
// Invalidates all deliveries after a change of tables. The caller has flushed the results.
void results_forget(struct results *results);
void results_destroy(struct results *results);

#endif
