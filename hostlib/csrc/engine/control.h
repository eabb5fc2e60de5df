// SPDX-License-Identifier: Apache-2.0
// The requests that any thread may make of an engine, besides operations. The caller must hold no engine's lock.
#ifndef P4REDUCE_CONTROL_H
#define P4REDUCE_CONTROL_H

#include "engine/engine.h"

// Returns a snapshot that the driver takes now, or the last one if the engine's thread has stopped. It waits for the
// driver.
struct snapshot engine_query(p4reduce_engine *engine);

// Ends all operations with `error`, and lets none start. Only the first failure counts.
void engine_fail_with(p4reduce_engine *engine, const p4reduce_error *error, bool close);

#endif
