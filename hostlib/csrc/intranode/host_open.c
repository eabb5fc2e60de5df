// SPDX-License-Identifier: Apache-2.0
// Making an engine for a rank whose host has one stream.
#include "intranode/host.h"

#include "base/membership.h"
#include "base/structures.h"
#include "engine/engine_thread.h"
#include "engine/engine_turns.h"
#include "intranode/host_bell.h"
#include "intranode/host_follower.h"
#include "p4reduce_local.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MOST_BLOCK_BYTES = 1024 * 4 };

struct host *host_make(p4reduce_engine *engine, const char *meeting, double timeout, p4reduce_error *error) {
    struct host *host = calloc(1, sizeof *host);
    if (host == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        return NULL;
    }
    host->engine = engine;
    host->poll = -1;
    host->stats.size = sizeof host->stats;
    for (unsigned i = 0; i < MAX_RANKS; i++)
        host->sockets[i] = host->processes[i] = -1;
    host->words = aligned_alloc(CACHE_LINE, MOST_BLOCK_BYTES);
    if (host->words == NULL)
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
    else if (!host_memory_open(&host->memory, &engine->membership, meeting, timeout, host->sockets, error))
        ; // it has said why
    else if (!host_bell_open(host))
        error_tell(error, P4REDUCE_SYSTEM, "no epoll: errno %d", errno);
    else
        return host;
    host_close(host);
    return NULL;
}

static bool all_have_taken(const struct host *host) {
    for (uint32_t index = 1; host_leads(host) && index < host->memory.count; index++)
        if (atomic_load(&host_rank(&host->memory, index)->taken) < host->begun)
            return false;
    return true;
}

void host_spare(struct host *host, double now) {
    if (!host->large || now < host->idle_since + SPARE_S)
        return;
    host->idle_since = now;
    if (!all_have_taken(host))
        return;
    host_memory_spare(&host->memory);
    host->large = false;
}

void host_leave(struct host *host) {
    host_bell_close(host);
    host_memory_close(&host->memory);
}

void host_close(struct host *host) {
    if (host == NULL)
        return;
    host_leave(host);
    for (unsigned i = 0; i < PLACES; i++)
        task_free(host->parts[i].task);
    free(host->words);
    free(host);
}

static bool leads(const p4reduce_membership *membership) {
    return membership_leader(membership, membership->rank) == membership->rank;
}

// What only a leader has.
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

static bool start(p4reduce_engine *engine, const p4reduce_options *options, const p4reduce_local_options *local,
                  p4reduce_error *error) {
    const bool leader = leads(&engine->membership);
    engine->take_snapshot = leader ? engine_take_snapshot : follower_take_snapshot;
    if (leader && !engine_open_network(engine, &engine->membership, options, error))
        return false;
    engine->host = host_make(engine, local->meeting, local->timeout, error);
    return engine->host != NULL && engine_start(engine, leader ? engine_run : follower_run, local->thread_name, error);
}

p4reduce_engine *p4reduce_open_sharing(const p4reduce_membership *their_membership,
                                       const p4reduce_options *their_options,
                                       const p4reduce_local_options *their_local, p4reduce_error *error) {
    p4reduce_membership membership;
    p4reduce_options options = {.size = sizeof options};
    p4reduce_local_options local;
    if (!structure_in(&membership, sizeof membership, their_membership, "membership", error) ||
        !structure_in(&local, sizeof local, their_local, "local options", error) ||
        membership_check(&membership, error) != P4REDUCE_OK)
        return NULL;
    if (!membership.sharing) {
        error_tell(error, P4REDUCE_INVALID, "sharing is 0: accepted are memberships of ranks that share streams");
        return NULL;
    }
    if (leads(&membership) && !take_options(&options, their_options, error))
        return NULL;
    p4reduce_engine *engine = engine_make(options.switch_address, options.local_address);
    if (engine == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an engine");
        return NULL;
    }
    engine->membership = membership;
    if (start(engine, &options, &local, error))
        return engine;
    engine_destroy(engine);
    return NULL;
}
