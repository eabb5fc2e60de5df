// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that share one stream, in a job of several hosts. The lowest of them, the leader, uses the network:
// its worker carries tasks that add the values of all (colocated.h). The others, the followers, scan their values and
// copy them for the leader, and compute their own results from the sums.
#ifndef P4REDUCE_HOST_H
#define P4REDUCE_HOST_H

#include "intranode/intranode.h"
#include "shm/buffers.h"

// The leader is an engine with a worker (engine/network.h). It gives the worker tasks that carry the values of all
// ranks of the host, once all of them have called the operation.
//
// Each section of a part's buffer has one writer. A follower that has begun the part writes its exponents and copies,
// and publishes them with `scanned`. The leader writes the agreed exponents and sums, and publishes them with `ended`.
// Each follower then reads them, and stores `taken`. When all followers have, a later part may use the buffer.
extern const struct engine_ops leader_engine, follower_engine;

enum {
    BUFFERS = CALLS,        // staging buffers, and so parts under way
    PART_VALUES = 8 << 20,  // the most values of a part; all ranks of a job split alike
    SMALL_VALUES = 1 << 18, // values of a part whose memory is kept between operations
};

// A part of a request, under way.
struct part {
    p4reduce_operation *operation;
    struct task *task; // the leader's is here until the worker has it
    uint64_t number, blocks;
    bool busy;
};

// The state of a leader's or follower's engine. The driver owns it, except for the memory in `staging`.
struct host {
    struct intranode node;
    struct buffers staging;     // copies of followers' non-zero blocks have the same offsets as in their tensors
    uint32_t operations;        // operations numbered so far
    p4reduce_operation *next;   // the first operation that is not completely split into parts
    uint64_t next_block;        // its first block that is not in a part
    uint64_t begun;             // parts begun so far
    struct part parts[BUFFERS]; // part n at n mod BUFFERS
    bool large;                 // memory was used that can be given back to the kernel
    double idle_since;          // when the last operation ended
    // The leader's.
    uint64_t submitted;   // parts that the worker has got
    double reported_at;   // when it last reported for which ranks it waits
    bool reported_paused; // whether it then reported that the controller has paused operations
    // A follower's.
    uint64_t taken, scanned; // parts whose sums it has taken; blocks scanned of the part begun last
};

static inline struct host *host_of(const p4reduce_engine *engine) {
    return engine->state;
}

static inline bool host_leads(const struct host *host) {
    return host->node.segment.index == 0;
}

// Returns a rank's record of a part, which is a call.
static inline struct call *host_call(const struct host *host, uint64_t part, uint32_t index) {
    return segment_call(&host->node.segment, index, part + 1);
}

// Returns the word `ended` of a part's buffer: the number, plus one, of the last part there whose sums are complete.
static inline _Atomic uint64_t *host_ended(const struct host *host, uint64_t part) {
    return buffers_head(&host->staging, part);
}

// Returns a follower's copies of its values.
static inline uint8_t *host_copies(const struct host *host, uint64_t part, uint32_t index) {
    return buffers_copies(&host->staging, part, index - 1);
}

// Sets the sizes of the staging buffers. Returns how many bytes all take.
size_t host_lay_out(struct host *host);

// Gives large memory back to the kernel, if no operation has been under way for a second and all followers have taken
// their sums. The second function returns when that is due.
void host_trim(struct host *host, double now);
double host_trim_due(const struct host *host);

// Frees an engine's host, if there is one.
void host_close(p4reduce_engine *engine);

// Parts, into which all ranks of a job split requests in the same way.

// Gives an operation that begins the next number, and queues it to be split into parts.
void parts_enqueue(struct host *host, p4reduce_operation *operation);

// Makes the next part of the queued operations, whose buffer must be free. Returns NULL if there is no memory, and
// `error` says so.
struct part *parts_next(struct host *host, p4reduce_error *error);

// Ends a part, which has its result. With its last part, the operation ends.
void parts_end(struct part *part);

// Ends an operation, without an error if `error` is NULL.
void parts_end_operation(p4reduce_operation *operation, const p4reduce_error *error);

// Publishes to the others of the host that this rank fails, and ends all parts and operations.
void parts_fail(struct host *host, const p4reduce_error *failure);

// Returns whether a part has no buffer yet, because the follower `index` has not taken the sums that are there.
bool parts_lack_buffer(const struct host *host, uint64_t number, uint32_t index);

// Returns the record of a part.
static inline struct part *parts_get(struct host *host, uint64_t number) {
    return &host->parts[number % BUFFERS];
}

#endif
