// SPDX-License-Identifier: Apache-2.0
// What an engine's thread is asked for and told by others, which hold no lock of an engine.
#ifndef P4REDUCE_ENGINE_ASKING_H
#define P4REDUCE_ENGINE_ASKING_H

#include "engine/engine.h"

// What the engine's thread knows at this moment; once it has stopped, what it knew last.
struct snapshot engine_ask(p4reduce_engine *engine);

// Ends all operations with `error`, and lets none start. The first failure stays.
void engine_fail_with(p4reduce_engine *engine, const p4reduce_error *error, bool close);

#endif
