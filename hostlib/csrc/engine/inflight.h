// SPDX-License-Identifier: Apache-2.0
// Operations in flight, other threads' requests, and the ends of operations, in all variants. For the driver.
#ifndef P4REDUCE_INFLIGHT_H
#define P4REDUCE_INFLIGHT_H

#include "engine/engine.h"

// Makes an operation that is not submitted yet. In any thread. Returns NULL on error, and `error` says why.
p4reduce_operation *operation_new(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error);

// Frees one that was not submitted, and its shards. NULL is accepted.
void operation_free(p4reduce_operation *operation);

// Handles other threads' requests: begins submitted operations, pauses, fails, and takes snapshots. Takes the engine's
// lock, and releases it while it calls back, begins operations or fails them.
void engine_handle_requests(p4reduce_engine *engine, double now);

// Sets the engine's failure, unless there is an earlier one. Returns the failure that counts.
p4reduce_error engine_set_failure(p4reduce_engine *engine, const p4reduce_error *error);

// The worker's callback for an operation, its `context`: it has its result, if `error` is NULL. An error becomes the
// engine's failure, too.
void engine_ended(void *context, const p4reduce_error *error);

// Fills a snapshot of the engine.
void engine_take_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot);

// Fails the engine if the oldest operation's time limit is over. Returns true if it is not.
bool engine_check_time_limit(p4reduce_engine *engine, double now);

#endif
