// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_team.h"

#include "base/membership.h"
#include "base/structures.h"
#include "engine/engine_asking.h"
#include "engine/engine_driving.h"
#include "engine/engine_thread.h"
#include "engine/engine_turns.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// How many engines are one to callers: more than itself of the first of a team.
static uint32_t threads_of(const p4reduce_engine *engine) {
    return engine->team != NULL && engine->team->engines[0] == engine ? engine->team->threads : 1;
}

// Failing.

static void fail_others(const struct team *team, const p4reduce_engine *failed, const p4reduce_error *error) {
    for (uint32_t i = 0; i < team->threads; i++)
        if (team->engines[i] != failed)
            engine_fail_with(team->engines[i], error, false);
}

void team_close(p4reduce_engine *engine, const p4reduce_error *error) {
    if (threads_of(engine) == 1)
        return;
    engine_fail_with(engine, error, false); // it lets no operation start, and goes on until the others have ended theirs
    for (uint32_t i = 1; i < engine->team->threads; i++)
        p4reduce_close(engine->team->engines[i]);
}

void team_destroy(p4reduce_engine *engine) {
    if (engine->team == NULL || engine->team->engines[0] != engine)
        return;
    for (uint32_t i = 1; i < engine->team->threads; i++)
        engine_destroy(engine->team->engines[i]);
    free(engine->team);
}

// Operations.

// In the thread of another engine, whose part of the operation has ended.
static void part_ended(void *context, const p4reduce_error *error) {
    p4reduce_operation *operation = context;
    p4reduce_engine *first = operation->engine;
    pthread_mutex_lock(&first->lock);
    if (error != NULL && operation->error.status == P4REDUCE_OK)
        operation->error = *error;
    if (--operation->others == 0 && operation->carried) {
        operation_push(&first->done, operation);
        driving_wake(first);
    }
    pthread_mutex_unlock(&first->lock);
}

static p4reduce_operation *make_part(p4reduce_engine *engine, p4reduce_operation *whole,
                                     const p4reduce_request *request, p4reduce_error *error) {
    struct task *task = task_new(&engine->membership, request, true, error);
    if (task == NULL)
        return NULL;
    p4reduce_operation *part = calloc(1, sizeof *part);
    if (part == NULL) {
        task_free(task);
        error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation");
        return NULL;
    }
    part->engine = engine;
    part->task = task;
    part->timeout = (double)INFINITY; // the first engine's counts
    part->on_end = part_ended;
    part->context = whole;
    snprintf(part->name, sizeof part->name, "%s", whole->name);
    task->request.name = NULL;
    task->request.on_end = engine_ended;
    task->request.context = part;
    return part;
}

bool team_share(p4reduce_operation *operation, const p4reduce_request *request, p4reduce_error *error) {
    p4reduce_operation *last = operation;
    const uint32_t threads = threads_of(operation->engine);
    for (uint32_t i = 1; i < threads; i++) {
        p4reduce_engine *engine = operation->engine->team->engines[i];
        if (operation->task->all_slots <= engine->membership.first_slot)
            break; // what is small needs not wake all
        last->further = make_part(engine, operation, request, error);
        last = last->further;
        if (last == NULL) {
            team_forget(operation);
            return false;
        }
    }
    return true;
}

void team_begin(p4reduce_operation *operation) {
    p4reduce_operation *next = operation->further;
    operation->further = NULL;
    while (next != NULL) {
        p4reduce_operation *part = next;
        next = part->further;
        part->further = NULL;
        part->number = operation->number;
        operation->others++;
        pthread_mutex_lock(&part->engine->lock);
        operation_push(&part->engine->inbox, part);
        driving_wake(part->engine);
        pthread_mutex_unlock(&part->engine->lock);
    }
}

void team_forget(p4reduce_operation *operation) {
    p4reduce_operation *next = operation->further;
    operation->further = NULL;
    while (next != NULL) {
        p4reduce_operation *part = next;
        next = part->further;
        task_free(part->task);
        free(part);
    }
}

// Looking.

// Of what engines know, `own` among it: that of the one with the earliest operation under way.
static struct snapshot furthest(const struct team *team, const struct snapshot *own) {
    struct snapshot found = *own;
    for (uint32_t i = 1; i < team->threads; i++) {
        const struct snapshot other = engine_ask(team->engines[i]);
        if (other.busy && (!found.busy || (int32_t)(other.oldest - found.oldest) < 0))
            found = other;
    }
    return found;
}

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
}

struct snapshot team_look(p4reduce_engine *engine) {
    struct snapshot all = engine_ask(engine);
    const uint32_t threads = threads_of(engine);
    uint32_t behind = all.oldest;
    for (uint32_t i = 1; i < threads; i++) {
        p4reduce_engine *one = engine->team->engines[i];
        const struct snapshot other = engine_ask(one);
        add_stats(&all.stats, &other.stats);
        if (all.unanswered < 0 && other.unanswered >= 0)
            all.unanswered = (int32_t)(2 * one->membership.first_slot) + other.unanswered;
        if (other.busy && (!all.busy || (int32_t)(other.oldest - behind) < 0)) {
            memcpy(all.progress, other.progress, sizeof all.progress);
            memcpy(all.awaited, other.awaited, sizeof all.awaited);
            behind = other.oldest;
            all.busy = true;
        }
    }
    const size_t used = strlen(all.link);
    if (threads > 1)
        snprintf(all.link + used, sizeof all.link - used, ", in %" PRIu32 " threads", threads);
    return all;
}

p4reduce_engine *team_find(p4reduce_engine *engine, uint32_t *half) {
    p4reduce_engine *found = engine;
    for (uint32_t i = 1; i < threads_of(engine); i++)
        if (engine->team->engines[i]->membership.first_slot <= *half >> 1)
            found = engine->team->engines[i];
    *half -= 2 * found->membership.first_slot;
    return found;
}

// Opening.

// The membership of one thread's worker.
static p4reduce_membership share_of(const p4reduce_membership *all, const p4reduce_options *options, uint32_t thread) {
    p4reduce_membership share = *all;
    share.first_slot = thread * all->slots / options->threads;
    share.slots = (thread + 1) * all->slots / options->threads - share.first_slot;
    share.all_slots = all->slots;
    if (thread > 0) {
        share.job = options->more_jobs[thread - 1] >> 16;
        share.generation = options->more_jobs[thread - 1] & 0xFFFF;
    }
    return share;
}

static p4reduce_engine *prepare(const p4reduce_membership *all, const p4reduce_options *options, uint32_t thread,
                                p4reduce_error *error) {
    const uint32_t each = (options->more_count + 1) / options->threads;
    const p4reduce_membership share = share_of(all, options, thread);
    p4reduce_options own = *options;
    if (thread > 0)
        own.socket = options->more_sockets[thread * each - 1];
    own.more_sockets = options->more_sockets + thread * each;
    own.more_count = each - 1;
    return engine_prepare(&share, &own, error);
}

// Whether all threads have jobs of their own.
static bool check_jobs(const p4reduce_membership *all, const p4reduce_options *options, p4reduce_error *error) {
    for (uint32_t i = 0; i + 1 < options->threads; i++) {
        const uint32_t job = options->more_jobs[i] >> 16;
        bool taken = job == 0 || job == all->job;
        for (uint32_t before = 0; before < i; before++)
            taken |= job == options->more_jobs[before] >> 16;
        if (taken) {
            error_tell(error, P4REDUCE_INVALID,
                       "more_jobs has job %" PRIu32 ": accepted are numbers from 1 on, each once, but the first thread's, "
                       "%" PRIu32,
                       job, all->job);
            return false;
        }
    }
    return true;
}

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

static bool start_all(struct team *team, const char *name, p4reduce_error *error) {
    for (uint32_t i = team->threads; i-- > 0;)
        if (!engine_start(team->engines[i], engine_run, name, error)) {
            while (++i < team->threads)
                p4reduce_close(team->engines[i]);
            return false;
        }
    return true;
}

p4reduce_engine *team_open(const p4reduce_membership *theirs, const p4reduce_options *options,
                           p4reduce_error *error) {
    p4reduce_membership membership;
    if (!structure_in(&membership, sizeof membership, theirs, "membership", error) ||
        membership_check(&membership, error) != P4REDUCE_OK || !check(&membership, options, error))
        return NULL;
    struct team *team = calloc(1, sizeof *team + options->threads * sizeof *team->engines);
    if (team == NULL) {
        error_tell(error, P4REDUCE_NO_MEMORY, "no memory for %" PRIu32 " threads", options->threads);
        return NULL;
    }
    *team = (struct team){.failed = fail_others, .furthest = furthest};
    while (team->threads < options->threads &&
           (team->engines[team->threads] = prepare(&membership, options, team->threads, error)) != NULL) {
        team->engines[team->threads]->team = team;
        team->threads++;
    }
    p4reduce_engine *first = team->engines[0];
    if (team->threads == options->threads && start_all(team, options->thread_name, error))
        return first;
    if (first == NULL)
        free(team);
    else
        engine_destroy(first);
    return NULL;
}
