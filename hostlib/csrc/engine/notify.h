// SPDX-License-Identifier: Apache-2.0
// How the driver learns that others want something, also where it waits for packets. Under the engine's lock.
#ifndef P4REDUCE_ENGINE_NOTIFY_H
#define P4REDUCE_ENGINE_NOTIFY_H

#include "engine/engine.h"

// Sets `news`, and makes `wake` readable until they are taken.
void notify_post(p4reduce_engine *engine);

// Clears both. The driver looks for what others want next, under the same lock.
void notify_take(p4reduce_engine *engine);

#endif
