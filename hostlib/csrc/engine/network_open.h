// SPDX-License-Identifier: Apache-2.0
// The worker and the link of an engine.
#ifndef P4REDUCE_NETWORK_OPEN_H
#define P4REDUCE_NETWORK_OPEN_H

#include "engine/engine.h"

// Opens them. Returns false on error, and `error` says why; engine_close_network then frees what was opened.
bool engine_open_network(p4reduce_engine *engine, const p4reduce_membership *membership,
                         const p4reduce_options *options, p4reduce_error *error);
void engine_close_network(p4reduce_engine *engine);

// Checks that the options' sockets are different descriptors. If they are not, `error` says so.
bool engine_check_sockets(const p4reduce_options *options, p4reduce_error *error);

// Makes an engine with a worker and a link, for ranks that share no streams. Returns NULL on error.
p4reduce_engine *engine_prepare(const struct engine_ops *ops, const p4reduce_membership *membership,
                                const p4reduce_options *options, p4reduce_error *error);

#endif
