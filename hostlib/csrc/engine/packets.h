// SPDX-License-Identifier: Apache-2.0
// The packets that pass between the engine's worker and its link.
#ifndef P4REDUCE_PACKETS_H
#define P4REDUCE_PACKETS_H

#include "engine/engine.h"

// Sends the worker's packets. Returns false if the link can never send them, and `error` says why.
bool engine_send_packets(p4reduce_engine *engine, p4reduce_error *error);

// Hands the worker the packets that have arrived. Returns whether the link has nothing more.
bool engine_receive_packets(p4reduce_engine *engine);

// Waits a moment for several answers, if many are on their way. On a slow link answers come singly, and a wake-up for
// each costs more than the answer: it takes a processor from other threads, and makes this rank send in small pieces.
void engine_coalesce_answers(p4reduce_engine *engine);

#endif
