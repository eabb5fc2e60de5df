// SPDX-License-Identifier: Apache-2.0
// Who carries operations. One thread at a time drives an engine: takes its turns, and waits for packets between them.
// It is the engine's own thread, unless one that waits for an operation finds nobody at it. That thread then does the
// work itself until its operation has ended, so that nobody has to be woken up; the engine's thread drives again when
// it is called, or has seen nobody drive for a while.
#ifndef P4REDUCE_ENGINE_DRIVING_H
#define P4REDUCE_ENGINE_DRIVING_H

#include "engine/engine.h"

// For the engine's thread, which drives from the beginning, before it runs.

// Lets others drive.
void driving_lend(p4reduce_engine *engine);

// Drives again. Where others have since `spells`, what woke this thread up was for them: it waits until it is called.
// Returns what the next call takes; the first takes 0.
unsigned driving_return(p4reduce_engine *engine, unsigned spells);

// Under the lock, for any thread.

// Sees that somebody takes a turn soon. `news` says why.
void driving_wake(p4reduce_engine *engine);

// Begins to drive. False where another does, or only the engine's thread may.
bool driving_take(p4reduce_engine *engine);

// Drives until the operation has ended, `deadline` is over, or the engine's thread has to. Not under the lock.
void driving_carry(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline);

// Ends what `driving_take` has begun.
void driving_leave(p4reduce_engine *engine);

#endif
