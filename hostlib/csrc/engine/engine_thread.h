// SPDX-License-Identifier: Apache-2.0
// The engine's own thread.
#ifndef P4REDUCE_ENGINE_THREAD_H
#define P4REDUCE_ENGINE_THREAD_H

#include "engine/engine.h"

// The thread, until the engine is closed; `context` is the engine.
void *engine_run(void *context);

#endif
