// SPDX-License-Identifier: Apache-2.0
#include "engine/group.h"

#include "base/membership.h"
#include "base/structures.h"
#include "engine/control.h"
#include "engine/inflight.h"
#include "engine/lifecycle.h"
#include "engine/network.h"
#include "engine/network_open.h"
#include "engine/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The state that all engines of a group share.
struct group {
    p4reduce_engine *first;
    atomic_bool failed;
};

// Failing.

// Fails one engine. The first one to fail makes the others fail, too, each in its own driver; they call this as well.
static void fail(p4reduce_engine *engine, const p4reduce_error *error) {
    struct group *group = engine->state;
    network_fail(engine, error);
    if (atomic_exchange(&group->failed, true))
        return;
    for (p4reduce_engine *other = group->first; other != NULL; other = other->next_shard)
        if (other != engine)
            engine_fail_with(other, &engine->failure, false);
}

static void close_one(p4reduce_engine *engine) {
    struct group *group = engine->state;
    engine_close_network(engine);
    if (group != NULL && group->first == engine)
        free(group); // engine_destroy closes the first engine last
}

// Operations.

// Called by another engine's driver, whose shard of the operation has ended. That engine's lock is not held meanwhile
// (`finish` in inflight.c releases it), so taking the first engine's lock keeps the lock order.
static void shard_ended(void *context, const p4reduce_error *error) {
    p4reduce_operation *operation = context;
    p4reduce_engine *first = operation->engine;
    pthread_mutex_lock(&first->lock);
    if (error != NULL && operation->error.status == P4REDUCE_OK)
        operation->error = *error;
    if (--operation->pending_shards == 0 && operation->own_shard_ended) {
        operation_push(&first->done, operation);
        progress_wake(first);
    }
    pthread_mutex_unlock(&first->lock);
}

// Makes shards for the other engines whose slots the operation uses.
static bool split(p4reduce_operation *operation, const p4reduce_request *request, p4reduce_error *error) {
    p4reduce_operation *last = operation;
    for (p4reduce_engine *engine = operation->engine->next_shard; engine != NULL; engine = engine->next_shard) {
        if (operation->task->all_slots <= engine->membership.first_slot)
            break; // a small operation does not wake all engines
        p4reduce_operation *shard = operation_new(engine, request, error);
        if (shard == NULL)
            return false;
        shard->timeout = (double)INFINITY; // only the first engine checks time limits
        shard->on_end = shard_ended;
        shard->context = operation;
        last->next_shard = shard;
        last = shard;
    }
    return true;
}

// Snapshots.

static void add_stats(p4reduce_stats *all, const p4reduce_stats *some) {
    all->rounds += some->rounds;
    all->packets_sent += some->packets_sent;
    all->bytes_sent += some->bytes_sent;
    all->packets_received += some->packets_received;
    all->bytes_received += some->bytes_received;
    all->blocks_sent += some->blocks_sent;
    all->blocks_filled += some->blocks_filled;
    all->blocks_skipped += some->blocks_skipped;
    all->blocks_received += some->blocks_received;
    all->retransmissions += some->retransmissions;
    all->statuses += some->statuses;
    all->stale += some->stale;
    all->foreign += some->foreign;
    all->slowdowns += some->slowdowns;
    all->local_fallbacks += some->local_fallbacks;
    all->marks += some->marks;
}

// Adds the other engines' snapshots. The text of progress is that of the engine which is furthest behind.
static void add_shards(p4reduce_engine *engine, struct snapshot *all) {
    unsigned threads = 1;
    for (p4reduce_engine *one = engine->next_shard; one != NULL; one = one->next_shard) {
        const struct snapshot other = engine_query(one);
        threads++;
        add_stats(&all->stats, &other.stats);
        if (all->unanswered < 0 && other.unanswered >= 0)
            all->unanswered = (int32_t)(2 * one->membership.first_slot) + other.unanswered; // numbers of halves
        if (other.busy && (!all->busy || (int32_t)(other.oldest - all->oldest) < 0)) {
            memcpy(all->progress, other.progress, sizeof all->progress);
            memcpy(all->awaited, other.awaited, sizeof all->awaited);
            all->oldest = other.oldest;
            all->busy = true;
        }
    }
    const size_t used = strlen(all->link);
    snprintf(all->link + used, sizeof all->link - used, ", in %u threads", threads);
}

// Opening.

static const struct engine_ops group_engine = {
    .in_packets = true,
    .turn = network_turn,
    .wait = network_wait,
    .begin = network_begin,
    .fail = fail,
    .snapshot = network_snapshot,
    .split = split,
    .add_shards = add_shards,
    .close = close_one,
};

// Returns the membership of one thread's worker.
static p4reduce_membership membership_of_thread(const p4reduce_membership *all, const p4reduce_options *options,
                                                uint32_t thread) {
    p4reduce_membership share = *all;
    share.first_slot = thread * all->slots / options->threads;
    share.slots = (thread + 1) * all->slots / options->threads - share.first_slot;
    share.all_slots = all->slots;
    if (thread > 0) {
        // A job's number and its generation: p4reduce.h.
        share.job = options->more_jobs[thread - 1] >> 16;
        share.generation = options->more_jobs[thread - 1] & 0xFFFF;
    }
    return share;
}

// Makes the engine of one thread, with its share of slots and sockets.
static p4reduce_engine *prepare(const p4reduce_membership *all, const p4reduce_options *options, uint32_t thread,
                                p4reduce_error *error) {
    const uint32_t each = (options->more_count + 1) / options->threads;
    const p4reduce_membership share = membership_of_thread(all, options, thread);
    // Sockets are numbered through, from options->socket, number 0, and more_sockets[0], number 1. Thread t has `each`
    // sockets, from number t * each on.
    p4reduce_options own = *options;
    if (thread > 0)
        own.socket = options->more_sockets[thread * each - 1];
    own.more_sockets = options->more_sockets + thread * each;
    own.more_count = each - 1;
    if (options->aggregator_jobs != NULL)
        own.aggregator_jobs = options->aggregator_jobs + thread * each;
    return engine_prepare(&group_engine, &share, &own, error);
}

// Checks that all threads have job numbers of their own.
static bool check_jobs(const p4reduce_membership *all, const p4reduce_options *options, p4reduce_error *error) {
    for (uint32_t i = 0; i + 1 < options->threads; i++) {
        const uint32_t job = options->more_jobs[i] >> 16;
        bool refused = job == 0 || job == all->job;
        for (uint32_t before = 0; before < i; before++)
            refused |= job == options->more_jobs[before] >> 16;
        if (refused) {
            error_tell(error, P4REDUCE_INVALID,
                       "more_jobs has job %" PRIu32
                       ": accepted are numbers from 1 on, each once, but the first thread's, "
                       "%" PRIu32,
                       job, all->job);
            return false;
        }
    }
    return true;
}

// Checks the options of a group. The membership must have all of the job's slots, not a share (all_slots).
static bool check(const p4reduce_membership *all, const p4reduce_options *options, p4reduce_error *error) {
    const uint32_t threads = options->threads;
    const uint64_t sockets = (uint64_t)options->more_count + 1;
    if (options->link == P4REDUCE_LINK_UDP && options->more_sockets != NULL && options->more_jobs != NULL &&
        threads <= MAX_THREADS && threads <= all->slots && all->all_slots == 0 && sockets % threads == 0 &&
        sockets / threads <= MAX_AGGREGATORS)
        return engine_check_sockets(options, error) && check_jobs(all, options, error);
    error_tell(error, P4REDUCE_INVALID,
               "threads is %" PRIu32 " of %" PRIu32 " slots, with %" PRIu64 " sockets: accepted are up to %d, and no "
               "more than slots, over UDP, with as many sockets for each, and a job number for all but the first",
               threads, all->slots, sockets, MAX_THREADS);
    return false;
}

// Starts the engines from the last to the first, because operations come to the first engine before all others. If one
// does not start, those after it are stopped.
static bool start(p4reduce_engine *engine, const char *name, p4reduce_error *error) {
    if (engine->next_shard != NULL && !start(engine->next_shard, name, error))
        return false;
    if (engine_start(engine, name, error))
        return true;
    if (engine->next_shard != NULL)
        p4reduce_close(engine->next_shard);
    return false;
}

p4reduce_engine *group_open(const p4reduce_membership *theirs, const p4reduce_options *options, p4reduce_error *error) {
    p4reduce_membership membership;
    if (!structure_in(&membership, sizeof membership, theirs, "membership", error) ||
        membership_check(&membership, error) != P4REDUCE_OK || !check(&membership, options, error))
        return NULL;
    struct group *group = calloc(1, sizeof *group);
    if (group == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for %" PRIu32 " threads", options->threads);
        return NULL;
    }
    p4reduce_engine **next = &group->first;
    for (uint32_t thread = 0; thread < options->threads; thread++) {
        *next = prepare(&membership, options, thread, error);
        if (*next == NULL)
            break;
        (*next)->state = group;
        next = &(*next)->next_shard;
        // Once all engines are made, their threads start.
        if (thread + 1 == options->threads && start(group->first, options->thread_name, error))
            return group->first;
    }
    if (group->first != NULL)
        engine_destroy(group->first);
    else
        free(group);
    return NULL;
}
