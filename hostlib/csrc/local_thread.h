// SPDX-License-Identifier: Apache-2.0
// What the thread of an engine does that reduces in its host's memory.
#ifndef P4REDUCE_LOCAL_THREAD_H
#define P4REDUCE_LOCAL_THREAD_H

#include "engine.h"
#include "local_pieces.h"

// The thread, until the engine is closed; `context` is the engine.
void *local_run(void *context);

// What the steps of an operation share. Those that are false have failed it.

// Whether the operation under way goes on.
bool local_goes_on(p4reduce_engine *engine);
// Whether nothing has failed to be read.
bool local_could_read(p4reduce_engine *engine, const struct read_failure *failure);
// How often ranks have come to the end of a phase in the window's place when all have in this window.
uint32_t local_all_of(const struct local *local, uint64_t window);
// This rank is through with a phase of the window.
void local_arrive(struct local *local, enum phase phase, uint64_t window);
// Waits until all ranks are.
bool local_await(p4reduce_engine *engine, enum phase phase, uint64_t window);
// Whether no rank has failed in the operation under way or before, of which all has been read.
bool local_have_all_done(p4reduce_engine *engine);

// As engine_take_snapshot.
void local_take_snapshot(p4reduce_engine *engine, double now);

// Gives back what the engine shares, when its thread has ended.
void local_close(struct local *local);

#endif
