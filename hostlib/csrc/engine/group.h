// SPDX-License-Identifier: Apache-2.0
// A group: several engines of one rank that act as one. Each has a share of the job's slots, with a worker, a thread
// and sockets of its own. Of each operation it carries the shard in its streams. Callers know only the first engine,
// because every operation uses slot 0. The first engine keeps the order and the time limits of operations, and ends an
// operation when all its shards have ended. If one engine fails, all fail.
#ifndef P4REDUCE_GROUP_H
#define P4REDUCE_GROUP_H

#include "engine/engine.h"

// Makes as many engines as the options have threads. Returns the first, or NULL on error.
p4reduce_engine *group_open(const p4reduce_membership *membership, const p4reduce_options *options,
                            p4reduce_error *error);

#endif
