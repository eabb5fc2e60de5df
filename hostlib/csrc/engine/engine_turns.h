// SPDX-License-Identifier: Apache-2.0
// What who drives an engine does, and nobody else but for `engine_sleep`.
#ifndef P4REDUCE_ENGINE_TURNS_H
#define P4REDUCE_ENGINE_TURNS_H

#include "engine/engine_under_way.h"

// Takes what has come and what others want, and sends what there is to send. Returns whether all that is left is to
// wait.
bool engine_turn(p4reduce_engine *engine);

// What to wait for, until `limit` at the latest.
struct rest engine_rest(p4reduce_engine *engine, double limit);

// Waits, also where another drives meanwhile. Returns whether the socket has an error.
bool engine_sleep(struct rest *rest);

// Notes what the socket's error is.
void engine_take_error(p4reduce_engine *engine);

// What other threads want.
void engine_take_news(p4reduce_engine *engine, double now);

// Ends all operations, with this error or an earlier failure.
void engine_fail(p4reduce_engine *engine, const p4reduce_error *error);

// Under the lock: takes down what others ask for, where there is a worker.
void engine_take_snapshot(p4reduce_engine *engine, double now);

#endif
