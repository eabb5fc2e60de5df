// SPDX-License-Identifier: Apache-2.0
// Holding operations back, so that a job's slots can change between two of them. Those held back are under way like the
// others, the last of them, but the worker has yet to get them.
#ifndef P4REDUCE_ENGINE_HOLDING_H
#define P4REDUCE_ENGINE_HOLDING_H

#include "engine/engine.h"

// For who drives an engine with a worker. Where one returns false, the engine is to fail, and `error` says why.

// Does what others want: first goes on, then holds.
bool holding_go_on(p4reduce_engine *engine, double now, p4reduce_error *error);
bool holding_hold(p4reduce_engine *engine, double now, p4reduce_error *error);

// Gives an operation that is under way, the newest, to the worker, or holds it back.
bool holding_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now, p4reduce_error *error);

// While it holds: tells how far operations have come, where that has changed.
void holding_tell(p4reduce_engine *engine);

// The worker has failed: nothing is held any more. The operations held back fail, but those of a host, which its leader
// ends.
void holding_end(p4reduce_engine *engine);

// Whether that is what the oldest operation under way waits for; in words.
bool holding_awaits(const p4reduce_engine *engine, double now, char *text, size_t room);

#endif
