// SPDX-License-Identifier: Apache-2.0
// What ranks of one host have in common. Either all ranks of the job are there (local.h), and need no switch; or
// some are (host.h), and one of them, the leader, sends for all. They share a segment, and shm/segment.h says who writes
// what. They tell each other in it what they call and why they fail (calls.h), and wake each other (wakeup.h).
//
// A call is an operation, or a part of one. It goes through these states at each rank:
//
//   announced   Its record is in the rank's table: what is called, and where the tensor is.
//   scanned     The others know which of its blocks are zero. local: phase SCANNED. host: `scanned`.
//   reduced     The sums are there. local: phase REDUCED. host: `ended`, of the leader.
//   gathered    This rank has the sums, and their memory is free. local: phase GATHERED. host: `taken`.
//
// A rank that finds another's record of the same call with another fingerprint says so in the segment's head. Then all
// fail. They also fail when one says that it fails, or has ended. A connection, left from the rendezvous, ends with its
// process. A child process may keep it, so a descriptor of the process is watched, too, where the kernel has those.
//
// There are two data planes. With all ranks here, each rank reduces pieces of the tensors where they are, in parallel:
// one rank that adds up copies of the others' would be slower. With some ranks here, all hosts first agree on a block's
// exponent, packet by packet: so the leader's worker adds up its host's values when a packet is due.
#ifndef P4REDUCE_INTRANODE_H
#define P4REDUCE_INTRANODE_H

#include "engine/engine.h"
#include "shm/segment.h"

#include <math.h>

enum { MOST_BLOCK_BYTES = 1024 * 4 }; // of words

struct intranode {
    p4reduce_engine *engine;
    struct segment segment;
    uint64_t announced; // the number of this rank's last call
    bool published;     // others were told that this rank fails
    p4reduce_stats stats;
    // Notification:
    char name[72];            // of the sockets to which ranks send to wake each other: rendezvous_address
    int socket;               // this rank's
    int processes[MAX_RANKS]; // of those at the other ends of connections; readable when they end; -1 where there is none
    int poll;                 // of all those, and the connections; -1 where this rank is alone
    bool gone[MAX_RANKS];     // at the other end of each connection, is the process
    double gone_at;           // when that was seen first; 0 while none is
    bool rested;              // since it was last looked who has sent
};

// How long the controller has to say who is gone, which all ranks hear alike, before ranks of this host do.
static const double GONE_S = 0.5;

static inline struct intranode *intranode_of(const p4reduce_engine *engine) {
    return engine->state; // begins with it
}

static inline double intranode_gone_due(const struct intranode *node) {
    return node->gone_at > 0 ? node->gone_at + GONE_S : (double)INFINITY;
}

#endif
