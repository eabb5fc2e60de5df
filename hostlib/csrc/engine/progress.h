// SPDX-License-Identifier: Apache-2.0
// The progress lock. Its holder, one thread at a time, makes progress on an engine's operations: it takes turns, and
// waits for packets between them. It is the engine's own thread, unless a thread that waits for an operation finds the
// lock free. That thread then does the work itself until its operation has ended, so that no thread has to be woken up.
// The engine's thread takes the lock again when its wakeup is requested, or when no waiter has held it for 0.1 s.
//
//   free              The engine's thread waits for packets, or is `idle`. It takes the lock when there is work. A
//                     thread that begins to wait for an operation takes it at once.
//   held              The engine's thread takes turns.
//   held, by_waiter   A thread that waits for its operation takes turns. The engine's thread waits as in `free`.
//
// Only the engine's thread calls callbacks. If the next operation has one, a waiter releases the lock
// (`callback_pending`) and requests the thread's wakeup.
#ifndef P4REDUCE_PROGRESS_H
#define P4REDUCE_PROGRESS_H

#include "engine/engine.h"

// For the engine's thread, which holds the lock from before it runs: runs turns until the engine stops. Yields while a
// waiter holds the lock. Not under the engine's lock.
void progress_run(p4reduce_engine *engine);

// The other functions are called under the engine's lock, except progress_until.

// In any thread: makes the driver take a turn soon, or the engine's thread if there is no driver. The caller has
// already written its request, under the same lock.
void progress_wake(p4reduce_engine *engine);

// By the driver: clears `requests_pending`. The driver then reads the requests, under the same lock.
void progress_clear_requests(p4reduce_engine *engine);

// Takes the progress lock for a thread that waits. Returns false if it is held, or only the engine's thread may take
// it.
bool progress_try_acquire(p4reduce_engine *engine);

// Makes progress for a waiter that holds the progress lock. Returns when the operation has ended, when `deadline` is
// over, or when only the engine's thread may go on: for a callback, or to stop. Not under the engine's lock.
void progress_until(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline);

// Releases the progress lock that progress_try_acquire has taken, and wakes the engine's thread if work is left.
void progress_release(p4reduce_engine *engine);

#endif
