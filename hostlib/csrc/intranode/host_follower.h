// SPDX-License-Identifier: Apache-2.0
// The thread of an engine whose stream another rank of the host leads.
#ifndef P4REDUCE_HOST_FOLLOWER_H
#define P4REDUCE_HOST_FOLLOWER_H

#include "engine/engine.h"

// The thread, until the engine is closed; `context` is the engine.
void *follower_run(void *context);

// As engine_take_snapshot.
void follower_take_snapshot(p4reduce_engine *engine, double now);

#endif
