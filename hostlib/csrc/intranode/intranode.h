// SPDX-License-Identifier: Apache-2.0
// The common part of engines for ranks of one host. If all ranks of the job are on this host (local.h), they need no
// switch. Otherwise (host.h) one of them, the leader, sends for all of them. They share a segment; shm/segment.h says
// which rank writes what. In it they publish their calls and failures (calls.h), and they wake each other (wakeup.h).
//
// A call is an operation, or a part of one. It goes through these states at each rank:
//
//   announced   Its record, with the operation and the tensor's address, is in the rank's table.
//   scanned     The others know which of its blocks are zero. local: phase SCANNED. host: `scanned`.
//   reduced     The sums are there. local: phase REDUCED. host: the leader's `ended`.
//   gathered    This rank has the sums, and their memory is free. local: phase GATHERED. host: `taken`.
//
// If a rank finds another's record of the same call with another fingerprint, it reports that in the segment's head,
// and all fail. They also fail if one reports a failure, or ends. A connection of the rendezvous ends with its process.
// A forked child may keep it open, so a descriptor of the process (pidfd) is watched, too, if the kernel has them.
//
// There are two data planes. If all ranks are here, each rank reduces pieces of the tensors in place, in parallel: one
// rank that adds copies of all tensors would be slower. If only some ranks are here, all hosts must first agree on a
// block's exponent, packet by packet. So the leader's worker adds its host's values when a packet is due.
#ifndef P4REDUCE_INTRANODE_H
#define P4REDUCE_INTRANODE_H

#include "engine/engine.h"
#include "shm/segment.h"

#include <math.h>

enum { MOST_BLOCK_BYTES = 1024 * 4 }; // bytes of a block's words

// The state that these engines have in common. The driver owns it.
struct intranode {
    p4reduce_engine *engine;
    struct segment segment;
    uint64_t announced; // the number of this rank's last call
    bool published;     // this rank has published its failure
    p4reduce_stats stats;
    // Notification:
    char name[72];                 // of the sockets by which ranks wake each other: rendezvous_address
    int socket;                    // this rank's
    int processes[MAX_HOST_RANKS]; // pidfds of the other ranks' processes, readable when they end; -1 if there is none
    int poll;                      // epoll descriptor of all these and the connections; -1 if this rank is alone
    bool gone[MAX_HOST_RANKS];     // ranks whose process has ended
    double gone_at;                // when this rank found the first of them; 0 while there is none
    bool has_slept;                // this rank has slept since it last read notifications
};

// Time that the controller has to report a rank that has ended, in the same words to all ranks of the job. After it,
// ranks of this host report it themselves.
static const double GONE_S = 0.5;

static inline struct intranode *intranode_of(const p4reduce_engine *engine) {
    return engine->state; // the states of these variants begin with it
}

// Returns when this rank is to fail because another has ended; infinity while none has.
static inline double intranode_gone_due(const struct intranode *node) {
    return node->gone_at > 0 ? node->gone_at + GONE_S : (double)INFINITY;
}

#endif
