// SPDX-License-Identifier: Apache-2.0
#include "intranode/host_follower.h"

#include "base/awaited.h"
#include "base/clock.h"
#include "base/structures.h"
#include "engine/engine_bell.h"
#include "engine/engine_turns.h"
#include "intranode/host_bell.h"
#include "intranode/host_calls.h"
#include "intranode/host_share.h"

#include <fenv.h>
#include <stdio.h>

static const double KNOWN_S = 3; // after which a leader has said nothing of whom it waits for

// Texts.

// Whether a rank of this host keeps others from the sums of the part that this one waits for. The leader, which scans as
// it sends, cannot begin the part while some rank has not taken what is in its place.
static bool lags(const struct host *host, uint32_t index) {
    const uint64_t number = host->taken;
    const bool has_called = host_has_called(host, number, index);
    if (index > 0)
        return !has_called || atomic_load(&host_call(&host->memory, number, index)->scanned) <
                                  host->parts[number % PLACES].blocks;
    for (uint32_t other = 1; !has_called && other < host->memory.count; other++)
        if (host_lacks_place(host, number, other))
            return false;
    return !has_called;
}

// The ranks of this host that lag; else those that the leader waits for.
static void describe_wait(const p4reduce_engine *engine, char *text, size_t room, uint32_t awaited[8]) {
    const struct host *host = engine->host;
    const struct host_head *head = host_head(&host->memory);
    const bool known = engine->oldest != NULL && clock_now() - atomic_load(&head->awaited_at) < KNOWN_S;
    char ranks[AWAITED_TEXT_BYTES];
    memset(awaited, 0, 8 * sizeof *awaited);
    if (known && atomic_load(&head->held)) {
        snprintf(text, room, "the controller has paused operations to change the job's slots, as it told rank %u, "
                             "which sends for this host", host->memory.ranks[0]);
        return;
    }
    for (uint32_t index = 0; host->taken < host->begun && index < host->memory.count; index++)
        if (lags(host, index))
            awaited_add(awaited, host->memory.ranks[index]);
    if (awaited_ranks(awaited, ranks)) {
        snprintf(text, room, "waiting for %.400s on this host", ranks);
        return;
    }
    const uint32_t leader = host->memory.ranks[0];
    for (unsigned i = 0; known && i < 8; i++)
        awaited[i] = atomic_load(&head->awaited[i]);
    if (engine->oldest == NULL)
        snprintf(text, room, "waiting for no rank");
    else if (awaited_ranks(awaited, ranks))
        snprintf(text, room, "waiting for %.400s, like rank %u, which sends for this host", ranks, leader);
    else {
        awaited_add(awaited, leader);
        snprintf(text, room, "waiting for rank %u, which sends for this host", leader);
    }
}

void follower_take_snapshot(p4reduce_engine *engine, double now) {
    struct snapshot *snapshot = &engine->snapshot;
    snapshot->stats = engine->host->stats;
    snapshot->stats.seconds = engine->seconds + (engine->oldest != NULL ? now - engine->busy_since : 0);
    snapshot->unanswered = -1;
    describe_wait(engine, snapshot->progress, sizeof snapshot->progress, snapshot->awaited);
    snprintf(snapshot->link, sizeof snapshot->link, "the stream of rank %u, one of its host",
             engine->host->memory.ranks[0]);
}

// Ends.

static void free_parts(struct host *host) {
    for (unsigned i = 0; i < PLACES; i++) {
        task_free(host->parts[i].task);
        host->parts[i] = (struct part){.host = host};
    }
    host->taken = host->begun;
    host->next = NULL;
}

// All operations fail.
static void fail(p4reduce_engine *engine, const p4reduce_error *error) {
    const p4reduce_error failure = engine_set_failure(engine, error);
    if (engine->oldest != NULL || failure.status != P4REDUCE_CLOSED)
        host_tell_failure(engine->host, &failure);
    free_parts(engine->host);
    while (engine->oldest != NULL)
        parts_close(engine->oldest, &failure);
}

static void fail_late(p4reduce_engine *engine) {
    char wait[TEXT_BYTES];
    p4reduce_error error;
    uint32_t awaited[8];
    describe_wait(engine, wait, sizeof wait, awaited);
    error_fill(&error, P4REDUCE_TIMEOUT, "%s did not end within %g s: %s", engine->oldest->name,
               engine->oldest->timeout, wait);
    memcpy(error.awaited, awaited, sizeof error.awaited);
    fail(engine, &error);
}

// What other threads want.
static void take_news(p4reduce_engine *engine, double now) {
    pthread_mutex_lock(&engine->lock);
    bell_answer(engine);
    p4reduce_error failure = engine->failure.status != P4REDUCE_OK ? engine->failure : engine->outside;
    engine->must_stop = engine->closing;
    p4reduce_operation *operation;
    while ((operation = operation_pop(&engine->inbox)) != NULL) {
        engine_began(engine, operation, now);
        parts_number(engine->host, operation);
    }
    engine_answer(engine, now);
    pthread_mutex_unlock(&engine->lock);
    if (failure.status == P4REDUCE_OK)
        return;
    p4reduce_error cause;
    if (engine->oldest != NULL && host_fails(engine->host, &cause) && cause.status == P4REDUCE_MISMATCH)
        failure = cause; // of which others, who have left for it, only say that they have
    fail(engine, &failure);
}

// Steps. Each returns whether there was something to do.

static bool take_sums(p4reduce_engine *engine) {
    struct host *host = engine->host;
    if (host->taken == host->begun ||
        atomic_load(&host_place(&host->memory, host->taken)->ended) != host->taken + 1)
        return false;
    struct part *part = parts_get(host, host->taken);
    share_take(host, part);
    task_free(part->task);
    part->task = NULL;
    atomic_store(&host_rank(&host->memory, host->memory.index)->taken, ++host->taken);
    host_ring(host, 0);
    if (parts_end(part))
        parts_close(engine->oldest, NULL);
    return true;
}

static bool begin_part(p4reduce_engine *engine) {
    struct host *host = engine->host;
    if (host->next == NULL || host->begun - host->taken == PLACES)
        return false;
    p4reduce_error error;
    const struct part *part = parts_next(host, &error);
    if (part == NULL) {
        fail(engine, &error);
        return true;
    }
    host->scanned = 0;
    share_scan(host); // so that of few blocks all are known once the part is announced
    host_announce(host, part, part->task);
    return true;
}

static bool scan_more(struct host *host) {
    if (host->begun == host->taken || host->scanned == parts_get(host, host->begun - 1)->blocks)
        return false;
    share_scan(host);
    return true;
}

static bool step(p4reduce_engine *engine, double now) {
    struct host *host = engine->host;
    p4reduce_error error;
    if (engine->oldest == NULL)
        return false;
    if (take_sums(engine))
        return true;
    if (host_fails(host, &error))
        fail(engine, &error);
    else if (now - engine->oldest_since >= engine->oldest->timeout)
        fail_late(engine);
    else
        return scan_more(host) || begin_part(engine);
    return true;
}

// Waiting.

static bool has_something(const p4reduce_engine *engine) {
    const struct host *host = engine->host;
    p4reduce_error error;
    return engine->oldest != NULL &&
           ((host->taken < host->begun &&
             atomic_load(&host_place(&host->memory, host->taken)->ended) == host->taken + 1) ||
            host_fails(host, &error));
}

static void rest(p4reduce_engine *engine) {
    struct host *host = engine->host;
    struct rest rest = {.descriptors = {{.fd = engine->wake, .events = POLLIN},
                                        {.fd = host_bell(host), .events = POLLIN},
                                        {.fd = host_leaders_end(host), .events = POLLIN}},
                        .due = (double)INFINITY};
    if (engine->oldest != NULL)
        rest.due = fmin(engine->oldest_since + engine->oldest->timeout, host_gone_due(host));
    else if (host->large)
        rest.due = host->idle_since + SPARE_S;
    host_rest(host);
    if (!has_something(engine))
        engine_sleep(&rest);
    host_hear(host);
    if (rest.descriptors[2].revents != 0)
        host_leader_ended(host);
    if (engine->oldest == NULL)
        host_spare(host, clock_now());
}

void *follower_run(void *context) {
    p4reduce_engine *engine = context;
    fesetenv(FE_DFL_ENV); // as the numbers need it, whatever the thread that made this one has set
    while (!engine->must_stop) {
        const double now = clock_now();
        if (atomic_load(&engine->news))
            take_news(engine, now);
        else if (!step(engine, now))
            rest(engine);
    }
    // The failure is set, so nothing was added to the inbox after the last look into it.
    take_news(engine, clock_now());
    engine_stop(engine);
    return NULL;
}
