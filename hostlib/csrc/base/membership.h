// SPDX-License-Identifier: Apache-2.0
// A rank's place in its job, as callers describe it.
#ifndef P4REDUCE_MEMBERSHIP_H
#define P4REDUCE_MEMBERSHIP_H

#include "p4reduce_worker.h"

#include <stdbool.h>

// How many streams the job has: one a rank, or a host.
unsigned membership_streams(const p4reduce_membership *m);

// How many workers of the job this rank's switch has: ranks, or hosts whose ranks share one stream.
unsigned membership_workers(const p4reduce_membership *m);

// The rank of the one that the switch knows by `index`.
unsigned membership_rank(const p4reduce_membership *m, unsigned index);

// What the switch knows this rank's stream as.
unsigned membership_worker(const p4reduce_membership *m);

// Whether two ranks share a stream, or are the same.
bool membership_beside(const p4reduce_membership *m, unsigned rank, unsigned other);

// The lowest of the ranks that share a stream with this one, which leads it.
unsigned membership_leader(const p4reduce_membership *m, unsigned rank);

// How many slots the job has, of which the membership's may be a share.
uint32_t membership_all_slots(const p4reduce_membership *m);

// Whether the membership is one that there can be; where not, `error` says why.
p4reduce_status membership_check(const p4reduce_membership *m, p4reduce_error *error);

#endif
