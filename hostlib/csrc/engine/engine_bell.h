// SPDX-License-Identifier: Apache-2.0
// How whoever carries operations learns that others want something, also where it waits for packets. Under the engine's
// lock.
#ifndef P4REDUCE_ENGINE_BELL_H
#define P4REDUCE_ENGINE_BELL_H

#include "engine/engine.h"

// There are news: makes `wake` readable until they are looked for.
void bell_ring(p4reduce_engine *engine);

// Looks for news.
void bell_answer(p4reduce_engine *engine);

#endif
