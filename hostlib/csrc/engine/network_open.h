// SPDX-License-Identifier: Apache-2.0
// The worker and the link of an engine.
#ifndef P4REDUCE_NETWORK_OPEN_H
#define P4REDUCE_NETWORK_OPEN_H

#include "engine/engine.h"

// Opens them. False where that cannot be, and `error` says why; engine_close_network then frees what there is.
bool engine_open_network(p4reduce_engine *engine, const p4reduce_membership *membership,
                         const p4reduce_options *options, p4reduce_error *error);
void engine_close_network(p4reduce_engine *engine);

// Whether the options' sockets are open ones, each once; where not, `error` says so.
bool engine_check_sockets(const p4reduce_options *options, p4reduce_error *error);

// Makes an engine with a worker and a link, whose ranks share no streams. NULL on error.
p4reduce_engine *engine_prepare(const struct engine_ops *ops, const p4reduce_membership *membership,
                                const p4reduce_options *options, p4reduce_error *error);

#endif
