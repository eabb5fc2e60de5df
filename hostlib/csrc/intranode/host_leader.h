// SPDX-License-Identifier: Apache-2.0
// What the leader of a host does besides what every engine with a worker does (engine_turns.h): it gives the worker
// tasks that carry the values of all ranks of the host, once all have called the operation.
#ifndef P4REDUCE_HOST_LEADER_H
#define P4REDUCE_HOST_LEADER_H

#include "intranode/host.h"

// An operation is under way, the newest.
void leader_begin(p4reduce_engine *engine, p4reduce_operation *operation);

// Goes on with what others of the host have done. False where it cannot; then `error` says why.
bool leader_turn(p4reduce_engine *engine, double now, p4reduce_error *error);

// Operations are held no longer, of which the others of the host shall hear soon.
void leader_goes_on(p4reduce_engine *engine);

// The same will be looked for when there is something to hear; or at once.
void leader_rest(p4reduce_engine *engine, struct rest *rest);

// All operations under way end, when the worker has failed.
void leader_fail(p4reduce_engine *engine, const p4reduce_error *error);

// Ranks of this host that are waited for, in words and as a bitmap. False where there are none.
bool leader_awaits(const p4reduce_engine *engine, char *text, size_t room, uint32_t awaited[8]);

// In words, how the host's values travel, after what the link says.
void leader_describe(const p4reduce_engine *engine, char *text, size_t room);

#endif
