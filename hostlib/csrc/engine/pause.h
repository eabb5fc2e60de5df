// SPDX-License-Identifier: Apache-2.0
// Pausing operations, so that a job's slots can change between two of them. Those held back are in flight like the
// others, the last of them, but the worker has yet to get them.
#ifndef P4REDUCE_PAUSE_H
#define P4REDUCE_PAUSE_H

#include "engine/engine.h"

// For the driver. Where one returns false, the engine is to fail, and `error` says why.

// Does what other threads have requested. First resume, then pause.
bool pause_resume(p4reduce_engine *engine, double now, p4reduce_error *error);
bool pause_take(p4reduce_engine *engine, double now, p4reduce_error *error);

// Begins an operation that is in flight, the newest, or holds it back.
bool pause_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now, p4reduce_error *error);

// While operations are paused: reports how far they have come, where that has changed.
void pause_report(p4reduce_engine *engine);

// The worker has failed, and nothing is paused any more. Returns the first operation that was held back; NULL for none.
p4reduce_operation *pause_end(p4reduce_engine *engine);

// Whether that is what the oldest operation in flight waits for; in words.
bool pause_describe(const p4reduce_engine *engine, double now, char *text, size_t room);

#endif
