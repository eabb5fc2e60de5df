// SPDX-License-Identifier: Apache-2.0
// What the thread of an engine does that reduces in its host's memory.
#ifndef P4REDUCE_LOCAL_THREAD_H
#define P4REDUCE_LOCAL_THREAD_H

#include "engine/engine.h"
#include "intranode/local_pieces.h"

// The thread, until the engine is closed; `context` is the engine.
void *local_run(void *context);

// Gives back what the engine shares, when its thread has ended.
void local_close(struct local *local);

#endif
