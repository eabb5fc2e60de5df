// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that share one stream, in a job of several hosts. The lowest of them, the leader, has the network:
// its worker carries tasks that add up the values of all (colocated.h). The others, followers, scan and copy their own
// for it, and make their own results of the sums.
#ifndef P4REDUCE_HOST_H
#define P4REDUCE_HOST_H

#include "intranode/intranode.h"
#include "shm/buffers.h"

// The leader does what every engine with a worker does (engine/network.h), but gives the worker tasks that carry the
// values of all ranks of the host, once all have called the operation.
extern const struct engine_ops leader_engine, follower_engine;

enum {
    BUFFERS = CALLS,         // parts under way; they take turns in as many staging buffers
    PART_VALUES = 8 << 20,   // at most; all ranks of a job split alike
    SMALL_VALUES = 1 << 18,  // whose memory is kept
};

// Part of a request under way.
struct part {
    p4reduce_operation *operation;
    struct task *task; // of the leader, until the worker has it
    uint64_t number, blocks;
    bool busy;
};

struct host {
    struct intranode node;
    struct buffers staging; // where copies of its blocks that are not zero are as in its tensor, but of the leader's
    uint32_t operations;      // that were numbered
    p4reduce_operation *next; // the first operation that is not split into parts completely
    uint64_t next_block;      // of it, the first that is not in a part
    uint64_t begun;           // parts
    struct part parts[BUFFERS]; // part n at n mod BUFFERS
    bool large;        // memory was used that can be given back
    double idle_since; // when the last operation has ended
    // The leader's.
    uint64_t submitted; // parts, to the worker
    double awaited_at;  // when it last said whom it waits for
    bool told_held;     // and that the controller has paused operations
    // A follower's.
    uint64_t taken, scanned; // parts; blocks of the one begun last
};

static inline struct host *host_of(const p4reduce_engine *engine) {
    return engine->state;
}

static inline bool host_leads(const struct host *host) {
    return host->node.segment.index == 0;
}

// A rank's record of the part of that number, which is a call.
static inline struct call *host_call(const struct host *host, uint64_t part, uint32_t index) {
    return segment_call(&host->node.segment, index, part + 1);
}

// The number, plus one, of the last part in that part's buffer whose sums are there.
static inline _Atomic uint64_t *host_ended(const struct host *host, uint64_t part) {
    return buffers_head(&host->staging, part);
}

// A follower's copies of its values.
static inline uint8_t *host_copies(const struct host *host, uint64_t part, uint32_t index) {
    return buffers_copies(&host->staging, part, index - 1);
}

// Sets how large the staging buffers are. Returns how many bytes all take.
size_t host_lay_out(struct host *host);

// Gives large memory back, where all parts have ended, a while after the last operation has; and when that is due.
void host_spare(struct host *host, double now);
double host_spare_due(const struct host *host);

// Frees an engine's host, if there is one.
void host_close(p4reduce_engine *engine);

// Parts, as all ranks of a job split requests.

// Numbers an operation that has begun, as the next.
void parts_number(struct host *host, p4reduce_operation *operation);

// Makes the next part of those operations under way. NULL where there is no memory, and `error` says so.
struct part *parts_next(struct host *host, p4reduce_error *error);

// The part has its result. With the last, its operation ends.
void parts_end(struct part *part);

// The operation has ended, well where `error` is NULL.
void parts_close(p4reduce_operation *operation, const p4reduce_error *error);

// Tells the others of the host that this rank fails, and ends all parts and operations.
void parts_fail(struct host *host, const p4reduce_error *failure);

// Whether the part of that number has no buffer yet because that rank, a follower, has not taken the sums that are there.
bool parts_lack_buffer(const struct host *host, uint64_t number, uint32_t index);

// The place of the part of that number.
static inline struct part *parts_get(struct host *host, uint64_t number) {
    return &host->parts[number % BUFFERS];
}

#endif
