// SPDX-License-Identifier: Apache-2.0
// The opening of engines for ranks of one host.
#include "base/membership.h"
#include "base/structures.h"
#include "engine/lifecycle.h"
#include "engine/network_open.h"
#include "intranode/host.h"
#include "intranode/local.h"
#include "intranode/wakeup.h"
#include "shm/rendezvous.h"

#include <inttypes.h>
#include <stdlib.h>

// Returns whether memory has room for all ranks that are to share it. If not, `error` says so.
static bool have_room(const p4reduce_membership *membership, p4reduce_error *error) {
    unsigned count = 0;
    for (unsigned rank = 0; rank < membership->world_size; rank++)
        count += !membership->sharing || membership_beside(membership, rank, membership->rank);
    if (count > MAX_HOST_RANKS)
        error_tell(error, P4REDUCE_INVALID,
                   "%u ranks of the job are on this host: accepted are up to %d that share memory; P4REDUCE_LOCAL=off "
                   "makes them use the network",
                   count, MAX_HOST_RANKS);
    return count <= MAX_HOST_RANKS;
}

static void prepare(struct intranode *node, p4reduce_engine *engine) {
    engine->state = node;
    node->engine = engine;
    node->stats.size = sizeof node->stats;
    node->socket = node->poll = -1;
    memset(node->processes, -1, sizeof node->processes);
    segment_members(&node->segment, &engine->membership);
}

static bool meet(struct intranode *node, size_t area_bytes, const p4reduce_local_options *options, bool probe,
                 p4reduce_error *error) {
    if (!segment_open(&node->segment, area_bytes, options, probe, error))
        return false;
    return wakeup_open(node, options->rendezvous) || rendezvous_refused(error, "a socket");
}

static void *no_memory(p4reduce_error *error) {
    error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
    return NULL;
}

// All ranks of the job.

// Opens the variant's state. Returns false on error, and `error` says why. engine_destroy then closes what was opened.
static bool open_local(p4reduce_engine *engine, const p4reduce_local_options *options, p4reduce_error *error) {
    struct local *local = calloc(1, sizeof *local);
    if (local == NULL)
        return no_memory(error);
    prepare(&local->node, engine);
    local->rank = local->node.segment.index;
    local->ranks = local->node.segment.count;
    if (!meet(&local->node, local_lay_out(local), options, true, error))
        return false;
    local->windows.base = segment_area(&local->node.segment);
    if (!local->node.segment.readable)
        local->pieces = local->copied_pieces; // because all values must be copied
    local->scratch = malloc(local->ranks * local->piece_bytes);
    return local->scratch != NULL || no_memory(error);
}

p4reduce_engine *p4reduce_open_local(const p4reduce_membership *their_membership,
                                     const p4reduce_local_options *their_options, p4reduce_error *error) {
    p4reduce_membership membership;
    p4reduce_local_options options;
    if (!structure_in(&membership, sizeof membership, their_membership, "membership", error) ||
        !structure_in(&options, sizeof options, their_options, "options", error) ||
        membership_check(&membership, error) != P4REDUCE_OK || !have_room(&membership, error))
        return NULL;
    if (membership.sharing && membership_streams(&membership) > 1) {
        error_tell(error, P4REDUCE_INVALID, "hosts has %u hosts: accepted is one, of all ranks",
                   membership_streams(&membership));
        return NULL;
    }
    p4reduce_engine *engine = engine_make(&local_engine, &(p4reduce_options){.size = 0}, error);
    if (engine == NULL)
        return NULL;
    engine->membership = membership;
    if (open_local(engine, &options, error) && engine_start(engine, options.thread_name, error))
        return engine;
    engine_destroy(engine);
    return NULL;
}

// Ranks that share a stream.

// Takes the options of the network, which only a leader uses.
static bool take_options(p4reduce_options *options, const p4reduce_options *theirs, p4reduce_error *error) {
    if (!structure_in(options, sizeof *options, theirs, "options", error))
        return false;
    if (options->threads > 1) {
        error_tell(error, P4REDUCE_INVALID, "threads is %" PRIu32 ": accepted is 1 where ranks share streams",
                   options->threads);
        return false;
    }
    return true;
}

static bool open_sharing(p4reduce_engine *engine, const p4reduce_options *options, const p4reduce_local_options *local,
                         p4reduce_error *error) {
    if (engine->ops == &leader_engine && !engine_open_network(engine, &engine->membership, options, error))
        return false;
    struct host *host = calloc(1, sizeof *host);
    if (host == NULL)
        return no_memory(error);
    prepare(&host->node, engine);
    const struct segment *segment = &host->node.segment;
    if (segment->count == 1)
        return true;
    if (!meet(&host->node, host_lay_out(host), local, false, error))
        return false;
    host->staging.base = segment_area(segment);
    return true;
}

p4reduce_engine *p4reduce_open_sharing(const p4reduce_membership *their_membership,
                                       const p4reduce_options *their_options, const p4reduce_local_options *their_local,
                                       p4reduce_error *error) {
    p4reduce_membership membership;
    p4reduce_options options = {.size = sizeof options};
    p4reduce_local_options local;
    if (!structure_in(&membership, sizeof membership, their_membership, "membership", error) ||
        !structure_in(&local, sizeof local, their_local, "local options", error) ||
        membership_check(&membership, error) != P4REDUCE_OK || !have_room(&membership, error))
        return NULL;
    if (!membership.sharing) {
        error_tell(error, P4REDUCE_INVALID, "sharing is 0: accepted are memberships of ranks that share streams");
        return NULL;
    }
    const bool leader = membership_leader(&membership, membership.rank) == membership.rank;
    if (leader && !take_options(&options, their_options, error))
        return NULL;
    p4reduce_engine *engine = engine_make(leader ? &leader_engine : &follower_engine, &options, error);
    if (engine == NULL)
        return NULL;
    engine->membership = membership;
    if (open_sharing(engine, &options, &local, error) && engine_start(engine, local.thread_name, error))
        return engine;
    engine_destroy(engine);
    return NULL;
}
