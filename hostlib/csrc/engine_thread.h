// SPDX-License-Identifier: Apache-2.0
// What the engine's thread does.
#ifndef P4REDUCE_ENGINE_THREAD_H
#define P4REDUCE_ENGINE_THREAD_H

#include "engine.h"

// The thread, until the engine is closed; `context` is the engine.
void *engine_run(void *context);

// From within the worker: the operation, `context`, has its result, or an error that is the worker's failure too.
void engine_ended(void *context, const p4reduce_error *error);

// Under the lock, in the thread: takes down what others ask for.
void engine_take_snapshot(p4reduce_engine *engine, double now);

#endif
