// SPDX-License-Identifier: Apache-2.0
// The life of an engine, whatever its variant: it is made, gets a thread, and is destroyed.
#ifndef P4REDUCE_LIFECYCLE_H
#define P4REDUCE_LIFECYCLE_H

#include "engine/engine.h"

// Makes an engine of a variant, without its state. Returns NULL if there is no memory, and `error` says so.
p4reduce_engine *engine_make(const struct engine_ops *ops, const p4reduce_options *options, p4reduce_error *error);

// Starts the engine's thread. Returns false if that fails, and `error` says why.
bool engine_start(p4reduce_engine *engine, const char *name, p4reduce_error *error);

// Frees the engine, and those that follow in its group. Their threads have ended, or never ran.
void engine_destroy(p4reduce_engine *engine);

#endif
