// SPDX-License-Identifier: Apache-2.0
// The progress lock. One thread at a time, its holder, makes progress on an engine's operations: takes turns, and waits
// for packets between them. It is the engine's own thread, unless one that waits for an operation finds the lock free:
// that thread then does the work itself until its operation has ended, so that nobody has to be woken up. The engine's
// thread takes the lock again when its wakeup is requested, or when no waiter has held it for a while.
//
//   free              The engine's thread waits for packets, or is `idle`. Who first finds something to do takes it.
//   held              The engine's thread takes turns.
//   held, by_waiter   A thread that waits for its operation takes turns. The engine's thread is as where it is free.
//
// The engine's thread alone calls back. Where the next operation has a callback, a waiter releases the lock
// (`callback_pending`) and requests the thread's wakeup.
#ifndef P4REDUCE_PROGRESS_H
#define P4REDUCE_PROGRESS_H

#include "engine/engine.h"

// For the engine's thread, which holds the lock from before it runs: runs turns until the engine stops. Yields while a
// waiter holds the lock.
void progress_run(p4reduce_engine *engine);

// For any thread, under the engine's lock.

// Sees to it that somebody takes a turn soon. What for is under the lock.
void progress_wake(p4reduce_engine *engine);

// By the driver, which looks for what others want next, under the same lock: there is no more news.
void progress_take_news(p4reduce_engine *engine);

// Takes the lock for a thread that waits. False where it is held, or only the engine's thread may.
bool progress_try_acquire(p4reduce_engine *engine);

// Makes progress until the operation has ended, `deadline` is over, or the engine's thread has to. Not under the
// engine's lock.
void progress_until(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline);

// Releases what progress_try_acquire has taken.
void progress_leave(p4reduce_engine *engine);

#endif
