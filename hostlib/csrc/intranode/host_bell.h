// SPDX-License-Identifier: Apache-2.0
// How ranks of one host wake each other up: through the sockets by which they have met, which also say who has left. Only
// who has said that it rests is called. The leader is connected with all, the others with the leader. A process that
// was forked keeps the sockets of one that is killed, so descriptors of processes say who has ended, where the kernel
// has them.
#ifndef P4REDUCE_HOST_BELL_H
#define P4REDUCE_HOST_BELL_H

#include "intranode/host.h"

// Begins to listen to them. Returns false where the kernel refuses, by errno.
bool host_bell_open(struct host *host);

// Calls one rank, or all that this one is connected with.
void host_ring(struct host *host, uint32_t index);
void host_ring_all(struct host *host);

// This rank is going to wait for its bell. What others do from now on, they call it for.
void host_rest(struct host *host);

// Takes what others have called for, and sees who is gone.
void host_hear(struct host *host);

// What becomes readable when there is something to hear; -1 where there is nobody.
int host_bell(const struct host *host);

// Of a follower: what becomes readable when the leader's process has ended, and that it has; -1 where there is nothing.
int host_leaders_end(const struct host *host);
void host_leader_ended(struct host *host);

// Lets the others see that this rank is gone, and those of them that are asleep wake up.
void host_bell_close(struct host *host);

#endif
