// SPDX-License-Identifier: Apache-2.0
// What any thread may ask of an engine, besides operations; it holds no engine's lock.
#ifndef P4REDUCE_CONTROL_H
#define P4REDUCE_CONTROL_H

#include "engine/engine.h"

// What the driver knows at this moment; once the engine's thread has stopped, what it knew last.
struct snapshot engine_query(p4reduce_engine *engine);

// Ends all operations with `error`, and lets none start. The first failure stays.
void engine_fail_with(p4reduce_engine *engine, const p4reduce_error *error, bool close);

#endif
