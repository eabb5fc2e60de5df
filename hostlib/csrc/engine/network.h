// SPDX-License-Identifier: Apache-2.0
// The turns of an engine with a worker and a link: the functions of its table. For the driver.
#ifndef P4REDUCE_NETWORK_H
#define P4REDUCE_NETWORK_H

#include "engine/inflight.h"

// Takes one turn: receives packets, handles other threads' requests, and sends packets. Returns whether nothing is left
// to do but wait.
bool network_turn(p4reduce_engine *engine);

// The two halves of a turn, between which the leader does its own work. The first receives packets and handles
// requests. It sets `now`, and returns whether it has read all packets of the link (`drained`). The second runs the
// timers and sends packets.
bool network_begin_turn(p4reduce_engine *engine, double *now);
bool network_end_turn(p4reduce_engine *engine, bool drained, double now);

// Returns what to wait for, until `limit` at the latest.
struct wait_set network_wait(p4reduce_engine *engine, double limit);

// The functions `begin`, `fail` and `snapshot` of the table (engine_ops.h).
void network_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now);
void network_fail(p4reduce_engine *engine, const p4reduce_error *error);
void network_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot);

// Tells the link an operation's size, and updates `most_slots`.
void network_expect(p4reduce_engine *engine, const p4reduce_operation *operation);

// Appends to `text` that this rank's process was stopped during the oldest operation, if it was.
void network_describe_stall(const p4reduce_engine *engine, char *text, size_t room);

#endif
