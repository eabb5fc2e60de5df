// SPDX-License-Identifier: Apache-2.0
// Several engines of one rank as one. Each has a share of the job's slots, with a worker, a thread and a socket of its
// own, and carries of each operation the shard that is in its streams. Callers know the first alone, as every operation
// uses slot 0: it keeps order and time limits, and an operation ends there when all shards have ended. One engine that
// fails fails all.
#ifndef P4REDUCE_GROUP_H
#define P4REDUCE_GROUP_H

#include "engine/engine.h"

// The first of as many engines as the options have threads. NULL on error.
p4reduce_engine *group_open(const p4reduce_membership *membership, const p4reduce_options *options,
                            p4reduce_error *error);

#endif
