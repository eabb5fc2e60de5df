// SPDX-License-Identifier: Apache-2.0
// What every engine has, whatever its variant: its making, its thread, its end.
#ifndef P4REDUCE_LIFECYCLE_H
#define P4REDUCE_LIFECYCLE_H

#include "engine/engine.h"

// Makes an engine of a variant, without its state. NULL where there is no memory, and `error` says so.
p4reduce_engine *engine_make(const struct engine_ops *ops, const p4reduce_options *options, p4reduce_error *error);

// Gives it its thread. False where that cannot be, and `error` says why.
bool engine_start(p4reduce_engine *engine, const char *name, p4reduce_error *error);

// Frees it, and the engines that follow in its group. Their threads have ended, or never ran.
void engine_destroy(p4reduce_engine *engine);

#endif
