// SPDX-License-Identifier: Apache-2.0
// What passes between the engine's worker and its link.
#ifndef P4REDUCE_PACKETS_H
#define P4REDUCE_PACKETS_H

#include "engine/engine.h"

// Sends what the worker has for the switches. False, and why, if the link can never take it.
bool engine_send_packets(p4reduce_engine *engine, p4reduce_error *error);

// Hands the worker what has arrived. Returns whether the link has nothing more.
bool engine_receive_packets(p4reduce_engine *engine);

// On a slow link answers come singly, and a wake-up for each costs more than the answer: processors that others compute
// on, and send in small pieces. So where many are on their way, which is when all of a queue is, lets a few gather.
void engine_let_answers_gather(p4reduce_engine *engine);

#endif
