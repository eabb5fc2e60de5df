// SPDX-License-Identifier: Apache-2.0
// Making an engine for ranks of one host.
#include "intranode/local_thread.h"

#include "base/membership.h"
#include "base/structures.h"
#include "intranode/local_waiting.h"

#include <stdlib.h>

static struct local *make(const p4reduce_membership *membership, const p4reduce_local_options *options,
                          p4reduce_error *error) {
    struct local *local = calloc(1, sizeof *local);
    if (local == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        return NULL;
    }
    local->stats.size = sizeof local->stats;
    if (!segment_open(&local->segment, membership, options, error))
        goto failed;
    local->room = malloc(local->segment.ranks * local->segment.piece_bytes);
    local->words = malloc((size_t)2 * MOST_BLOCK_BYTES);
    local->exponents = malloc((size_t)local->segment.ranks * MOST_PIECE_BLOCKS);
    if (local->room != NULL && local->words != NULL && local->exponents != NULL)
        return local;
    error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");

failed:
    local_close(local);
    return NULL;
}

p4reduce_engine *p4reduce_open_local(const p4reduce_membership *their_membership,
                                     const p4reduce_local_options *their_options, p4reduce_error *error) {
    p4reduce_membership membership;
    p4reduce_local_options options;
    if (!structure_in(&membership, sizeof membership, their_membership, "membership", error) ||
        !structure_in(&options, sizeof options, their_options, "options", error) ||
        membership_check(&membership, error) != P4REDUCE_OK)
        return NULL;
    p4reduce_engine *engine = engine_make(NULL, NULL);
    if (engine == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        return NULL;
    }
    engine->take_snapshot = local_take_snapshot;
    engine->membership = membership;
    engine->local = make(&membership, &options, error);
    if (engine->local != NULL && engine_start(engine, local_run, options.thread_name, error))
        return engine;
    engine_destroy(engine);
    return NULL;
}
