// SPDX-License-Identifier: Apache-2.0
// Operations in flight, what other threads want of them, and their ends, whatever carries them. For the driver.
#ifndef P4REDUCE_INFLIGHT_H
#define P4REDUCE_INFLIGHT_H

#include "engine/engine.h"

// An operation that is yet to be submitted, in any thread. NULL where there is none, and `error` says why.
p4reduce_operation *operation_new(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error);

// Frees one that was not submitted, and its shards. NULL is accepted.
void operation_free(p4reduce_operation *operation);

// Takes what other threads want: begins what was submitted, and fails where that was asked for.
void engine_take_news(p4reduce_engine *engine, double now);

// Sets why no operations are taken any more, unless there is an earlier reason. Returns which it is.
p4reduce_error engine_set_failure(p4reduce_engine *engine, const p4reduce_error *error);

// From within the worker: the operation, `context`, has its result, or an error that is the engine's failure too.
void engine_ended(void *context, const p4reduce_error *error);

// Takes down how far the engine is.
void engine_take_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot);

// Fails the engine if the oldest operation's time is over. Returns whether it is not.
bool engine_check_time_limit(p4reduce_engine *engine, double now);

#endif
