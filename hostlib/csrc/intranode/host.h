// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that share one stream, in a job of several hosts. The lowest of them, the leader, has the network:
// its worker carries tasks that add up the values of all (neighbours.h). The others, followers, scan and copy their own
// for it, and make their own results of the sums.
#ifndef P4REDUCE_HOST_H
#define P4REDUCE_HOST_H

#include "engine/engine.h"
#include "shm/host_memory.h"

#include <math.h>

enum { SMALL_VALUES = 1 << 18 }; // whose memory is kept
static const double SPARE_S = 1; // without an operation, after which the rest is given back

// Part of a request under way.
struct part {
    struct host *host;
    p4reduce_operation *operation;
    struct task *task; // of the leader, until the worker has it
    uint64_t number, blocks;
    bool busy;
};

struct host {
    p4reduce_engine *engine;
    struct host_memory memory;
    int sockets[MAX_RANKS]; // the leader's to each follower, a follower's to the leader at 0; -1 for none
    int processes[MAX_RANKS]; // descriptors of those at the other ends, readable when they end; -1 where there is none
    int poll;                 // the leader's, of all those; -1 where it is alone
    bool gone[MAX_RANKS];   // at the other end of each socket, is the process
    double gone_at;         // when that was seen first; 0 while none is
    bool told;              // others were told that this rank has failed
    bool passed_on;         // the leader: all were told that some rank has failed
    uint32_t operations;    // that were numbered
    p4reduce_operation *next; // of the operations under way, the first that is not all in parts
    uint64_t next_block;      // of it, the first that is not in a part
    uint64_t begun;           // parts
    struct part parts[PLACES]; // part n at n mod PLACES
    bool large;        // memory was used that can be given back
    double idle_since; // when the last operation has ended
    // The leader's.
    uint64_t submitted; // parts, to the worker
    double awaited_at;  // when it last said whom it waits for
    // A follower's.
    uint64_t taken, scanned; // parts; blocks of the one begun last
    uint8_t *words;          // room for a block's
    p4reduce_stats stats;    // of the leader's, the worker has the others
};

// How long the controller has to say who is gone, which all ranks hear alike, before ranks of this host do.
static const double GONE_S = 0.5;

static inline double host_gone_due(const struct host *host) {
    return host->gone_at > 0 ? host->gone_at + GONE_S : (double)INFINITY;
}

static inline bool host_leads(const struct host *host) {
    return host->memory.index == 0;
}

// Gives large memory back, where all parts have ended, a while after the last operation has.
void host_spare(struct host *host, double now);

// Meets the others of its host, where `meeting` says, within `timeout` seconds. Returns NULL on error.
struct host *host_make(p4reduce_engine *engine, const char *meeting, double timeout, p4reduce_error *error);
// Lets the others of the host see that this rank is gone, and gives their memory back; no thread may carry any more.
void host_leave(struct host *host);
void host_close(struct host *host);

#endif
