// SPDX-License-Identifier: Apache-2.0
// The progress lock. Its holder, one thread at a time, makes progress on an engine's operations: it takes turns, and
// waits for packets between them. It is the engine's own thread, unless a thread that waits for an operation finds the
// lock free. That thread then does the work itself until its operation has ended, so that no thread has to be woken up.
// The engine's thread takes the lock again when its wakeup is requested, or when no waiter has held it for 0.1 s.
//
//   free              The engine's thread waits for packets, or is `idle`. Any thread with something to do takes it.
//   held              The engine's thread takes turns.
//   held, by_waiter   A thread that waits for its operation takes turns. The engine's thread waits as in `free`.
//
// Only the engine's thread calls callbacks. If the next operation has one, a waiter releases the lock
// (`callback_pending`) and requests the thread's wakeup.
#ifndef P4REDUCE_PROGRESS_H
#define P4REDUCE_PROGRESS_H

#include "engine/engine.h"

// For the engine's thread, which holds the lock from before it runs: runs turns until the engine stops. Yields while a
// waiter holds the lock.
void progress_run(p4reduce_engine *engine);

// For any thread, under the engine's lock.

// Makes a thread take a turn soon. The caller has already written, under the same lock, what the turn is for.
void progress_wake(p4reduce_engine *engine);

// By the driver: clears `news`. It then reads, under the same lock, what other threads have written for it.
void progress_take_news(p4reduce_engine *engine);

// Takes the progress lock for a thread that waits. Returns false if it is held, or only the engine's thread may take
// it.
bool progress_try_acquire(p4reduce_engine *engine);

// Makes progress until the operation has ended, `deadline` is over, or the engine's thread must go on. Not under the
// engine's lock.
void progress_until(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline);

// Releases what progress_try_acquire has taken.
void progress_leave(p4reduce_engine *engine);

#endif
