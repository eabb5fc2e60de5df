// SPDX-License-Identifier: Apache-2.0
// The variants of an engine, and the functions in which they differ.
//
//   single    It has a worker and a link.
//   group     Several engines share a job's slots. Each has a worker, a link and a thread.
//   leader    It has a worker and a link, which send the packets for all ranks of its host.
//   follower  It has no worker or link: the leader of its host sends for it.
//   local     It has no worker or link: all ranks of the job are on this host, and reduce in shared memory.
#ifndef P4REDUCE_ENGINE_OPS_H
#define P4REDUCE_ENGINE_OPS_H

#include "base/awaited.h"
#include "p4reduce.h"

#include <poll.h>
#include <stdbool.h>

enum { TEXT_BYTES = 512 };

// The state of an engine at one moment. Other threads ask its driver for it.
struct snapshot {
    p4reduce_stats stats;
    char progress[TEXT_BYTES], link[TEXT_BYTES];
    int32_t unanswered;              // see p4reduce_unanswered
    uint32_t awaited[AWAITED_WORDS]; // see p4reduce_awaited
    bool busy;                       // the worker has an operation in flight
    uint32_t oldest;                 // the number of its oldest one
};

// The events that the driver waits for.
struct wait_set {
    struct pollfd descriptors[3]; // with a link: its socket, `wake`, the host's notifications; without: the last two
    double deadline;
};

// The table of a variant. The driver calls these functions, and without the engine's lock, unless stated otherwise.
struct engine_ops {
    bool in_packets; // the worker gets each request as one task; false: the variant splits it, or has no worker

    // Takes one turn. Returns whether nothing is left to do until something happens.
    bool (*turn)(p4reduce_engine *engine);

    // Returns what to wait for then, until `limit` at the latest.
    struct wait_set (*wait)(p4reduce_engine *engine, double limit);

    // Begins an operation, the newest in flight. NULL: `turn` finds it itself.
    void (*begin)(p4reduce_engine *engine, p4reduce_operation *operation, double now);

    // Sets `failure`, unless it is set, and ends the operations in flight.
    void (*fail)(p4reduce_engine *engine, const p4reduce_error *error);

    // Fills a snapshot, except for `seconds`. May be called under the engine's lock.
    void (*snapshot)(p4reduce_engine *engine, double now, struct snapshot *snapshot);

    // In any thread, before an operation is submitted: makes its shards for the other engines of the group. Returns
    // false if it cannot, and `error` says why. NULL without a group.
    bool (*split)(p4reduce_operation *operation, const p4reduce_request *request, p4reduce_error *error);

    // In any thread, without any engine's lock: adds the snapshots of the other engines of the group. It waits for
    // their drivers. NULL without a group.
    void (*add_shards)(p4reduce_engine *engine, struct snapshot *snapshot);

    // Frees the variant's state, even if it was opened only in part. The thread has ended, or never ran.
    void (*close)(p4reduce_engine *engine);
};

#endif
