// SPDX-License-Identifier: Apache-2.0
// Several engines of one rank as one: each has a share of the job's slots, with a worker, a thread and a socket of its
// own, and carries of each operation what is in its streams. Callers know the first alone, as every operation uses slot
// 0; it keeps order and time limits, and an operation ends there when it has ended at all. One that fails fails all.
// Who has two engines' locks has taken the first's before; who has the lock of another waits for none.
#ifndef P4REDUCE_ENGINE_TEAM_H
#define P4REDUCE_ENGINE_TEAM_H

#include "engine/engine.h"

// The first of as many engines as the options have threads. NULL on error.
p4reduce_engine *team_open(const p4reduce_membership *membership, const p4reduce_options *options,
                           p4reduce_error *error);

// What is the first's alone; each does nothing for an engine that has no team, or is another of it.

// Ends the others' threads, and takes back the others.
void team_close(p4reduce_engine *engine, const p4reduce_error *error);
void team_destroy(p4reduce_engine *engine);

// Adds to an operation what others are to carry of it. False, and why, where that cannot be.
bool team_share(p4reduce_operation *operation, const p4reduce_request *request, p4reduce_error *error);

// Under the lock, for an operation that is entered: gives it to those who carry a part of it.
void team_begin(p4reduce_operation *operation);

// Or it is not entered: takes back what was added.
void team_forget(p4reduce_operation *operation);

// What the first knows, and what all do.
struct snapshot team_look(p4reduce_engine *engine);

// Which of them has a half of the job's; the half becomes its own.
p4reduce_engine *team_find(p4reduce_engine *engine, uint32_t *half);

#endif
