// SPDX-License-Identifier: Apache-2.0
// Questions about a rank's membership in its job.
#ifndef P4REDUCE_MEMBERSHIP_H
#define P4REDUCE_MEMBERSHIP_H

#include "p4reduce.h"

#include <stdbool.h>

// Returns how many streams the job has: one for each rank, or for each host.
unsigned membership_streams(const p4reduce_membership *m);

// Returns how many workers of the job this rank's switch has: ranks, or hosts whose ranks share one stream.
unsigned membership_workers(const p4reduce_membership *m);

// Returns the rank, or the leader of the ranks, with worker number `index` at the switch.
unsigned membership_rank(const p4reduce_membership *m, unsigned index);

// Returns the worker number of this rank's stream at its switch.
unsigned membership_worker(const p4reduce_membership *m);

// Returns a number, below MAX_RANKS, that ranks which share a stream have in common.
unsigned membership_host(const p4reduce_membership *m, unsigned rank);

// Returns whether two ranks share a stream, or are the same.
bool membership_beside(const p4reduce_membership *m, unsigned rank, unsigned other);

// Returns the leader of a rank's stream: the lowest of the ranks that share it.
unsigned membership_leader(const p4reduce_membership *m, unsigned rank);

// Returns how many slots the job has. The membership's slots may be a share of them.
uint32_t membership_all_slots(const p4reduce_membership *m);

// Checks the membership. If it is invalid, `error` says why.
p4reduce_status membership_check(const p4reduce_membership *m, p4reduce_error *error);

#endif
