// SPDX-License-Identifier: Apache-2.0
// The engine of a rank that has a link of its own.
#include "base/structures.h"
#include "engine/group.h"
#include "engine/lifecycle.h"
#include "engine/network.h"
#include "engine/network_open.h"

static const struct engine_ops single_engine = {
    .in_packets = true,
    .turn = network_turn,
    .wait = network_wait,
    .begin = network_begin,
    .fail = network_fail,
    .snapshot = network_snapshot,
    .close = engine_close_network,
};

p4reduce_engine *p4reduce_open(const p4reduce_membership *membership, const p4reduce_options *theirs,
                               p4reduce_error *error) {
    p4reduce_options options;
    if (!structure_in(&options, sizeof options, theirs, "options", error))
        return NULL;
    if (options.threads > 1)
        return group_open(membership, &options, error);
    p4reduce_engine *engine = engine_prepare(&single_engine, membership, &options, error);
    if (engine == NULL || engine_start(engine, options.thread_name, error))
        return engine;
    engine_destroy(engine);
    return NULL;
}
