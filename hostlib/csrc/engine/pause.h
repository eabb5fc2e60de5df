// SPDX-License-Identifier: Apache-2.0
// The pausing of operations, so that a job's slots can change between two of them. Operations that are held back are
// the last of those in flight; the worker does not have them yet.
#ifndef P4REDUCE_PAUSE_H
#define P4REDUCE_PAUSE_H

#include "engine/engine.h"

// For the driver. If a function returns false, the engine must fail, and `error` says why.

// Executes the requests of other threads. Call pause_resume first, then pause_start.
bool pause_resume(p4reduce_engine *engine, double now, p4reduce_error *error);
bool pause_start(p4reduce_engine *engine, double now, p4reduce_error *error);

// Begins an operation that is in flight, the newest, or holds it back.
bool pause_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now, p4reduce_error *error);

// While operations are paused: reports their progress, if it has changed.
void pause_report(p4reduce_engine *engine);

// Ends a pause after the worker has failed. Returns the first operation that was held back; NULL if there is none.
p4reduce_operation *pause_end(p4reduce_engine *engine);

// Returns whether the oldest operation in flight waits for the end of a pause. If so, `text` says so.
bool pause_describe(const p4reduce_engine *engine, double now, char *text, size_t room);

#endif
