// SPDX-License-Identifier: Apache-2.0
// How a rank waits for the others of its host, and what ends an operation meanwhile.
#ifndef P4REDUCE_LOCAL_WAITING_H
#define P4REDUCE_LOCAL_WAITING_H

#include "engine/engine.h"
#include "intranode/local_pieces.h"

// Takes what other threads want.
void local_take_news(p4reduce_engine *engine, double now);

// Of these, those that are false have failed the operation under way.

// Whether the operation under way goes on.
bool local_goes_on(p4reduce_engine *engine);
// Whether nothing has failed to be read.
bool local_could_read(p4reduce_engine *engine, const struct read_failure *failure);
// How often ranks have come to the end of a phase in the window's place when all have in this window.
uint32_t local_all_of(const struct local *local, uint64_t window);
// This rank is through with a phase of the window.
void local_arrive(struct local *local, enum phase phase, uint64_t window);
// Whether all ranks are.
bool local_are_through(const struct local *local, enum phase phase, uint64_t window);
// Waits until all ranks are.
bool local_await(p4reduce_engine *engine, enum phase phase, uint64_t window);
// Whether no rank has failed in the operation under way or before, of which all has been read.
bool local_have_all_done(p4reduce_engine *engine);

// As engine_take_snapshot.
void local_take_snapshot(p4reduce_engine *engine, double now);

#endif
