// SPDX-License-Identifier: Apache-2.0
// What the variants of an engine do differently.
//
//   single    It has a worker and a link.
//   group     Several engines share a job's slots, each with a thread of its own.
//   leader    It has a worker and a link, for all ranks of its host.
//   follower  It has neither: the leader of its host sends for it.
//   local     It has neither: all ranks of the job are on this host.
#ifndef P4REDUCE_ENGINE_OPS_H
#define P4REDUCE_ENGINE_OPS_H

#include "p4reduce.h"

#include <poll.h>
#include <stdbool.h>

enum { TEXT_BYTES = 512 };

// How far an engine is: what other threads ask its driver for.
struct snapshot {
    p4reduce_stats stats;
    char progress[TEXT_BYTES], link[TEXT_BYTES];
    int32_t unanswered;  // see p4reduce_unanswered
    uint32_t awaited[8]; // see p4reduce_awaited
    // Of a worker: it has an operation in flight, the oldest of which has this number.
    bool busy;
    uint32_t oldest;
};

// What the driver waits for.
struct rest {
    struct pollfd descriptors[3]; // with a link: its socket, `wake`, the host's notifications; else the last two
    double due;
};

// Called by who holds the progress lock, and not under the engine's lock, unless said otherwise.
struct engine_ops {
    bool in_packets; // its worker carries requests as they are

    // What the driver does next. Returns whether nothing is left to do until something happens.
    bool (*turn)(p4reduce_engine *engine);

    // What to wait for then, until `limit` at the latest.
    struct rest (*wait)(p4reduce_engine *engine, double limit);

    // Begins an operation, the newest in flight. NULL: `turn` looks for it.
    void (*begin)(p4reduce_engine *engine, p4reduce_operation *operation, double now);

    // Sets `failure`, unless it is set, and ends the operations in flight.
    void (*fail)(p4reduce_engine *engine, const p4reduce_error *error);

    // Fills a snapshot, but for `seconds`. May be under the engine's lock.
    void (*snapshot)(p4reduce_engine *engine, double now, struct snapshot *snapshot);

    // In any thread, of an operation that is not submitted yet: makes the shards that other engines of the group carry.
    // False where it cannot, and `error` says why. NULL where there is no group.
    bool (*split)(p4reduce_operation *operation, const p4reduce_request *request, p4reduce_error *error);

    // In any thread: adds what other engines of the group know. NULL where there is no group.
    void (*add_shards)(p4reduce_engine *engine, struct snapshot *snapshot);

    // Frees what is the variant's, also where it was opened in part. The thread has ended, or never ran.
    void (*close)(p4reduce_engine *engine);
};

#endif
