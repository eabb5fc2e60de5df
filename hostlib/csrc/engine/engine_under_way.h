// SPDX-License-Identifier: Apache-2.0
// Operations under way and their ends, whatever carries them. For who drives an engine.
#ifndef P4REDUCE_ENGINE_UNDER_WAY_H
#define P4REDUCE_ENGINE_UNDER_WAY_H

#include "engine/engine.h"

// Under the lock: the first failure stays.
void engine_keep_failure(p4reduce_engine *engine, const p4reduce_error *error);

// An operation is under way, after all that are.
void engine_began(p4reduce_engine *engine, p4reduce_operation *operation, double now);

// Not under the lock: why no operations are taken any more, unless there is an earlier reason. Returns which it is.
p4reduce_error engine_set_failure(p4reduce_engine *engine, const p4reduce_error *error);

// From within the worker: the operation, `context`, has its result, or an error that is the worker's failure too.
void engine_ended(void *context, const p4reduce_error *error);

// Under the lock, which it gives up meanwhile: ends the operations of which others of the team have carried the last.
void engine_finish_done(p4reduce_engine *engine);

// Under the lock: tells who has asked.
void engine_answer(p4reduce_engine *engine, double now);

#endif
