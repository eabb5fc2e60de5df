// SPDX-License-Identifier: Apache-2.0
#include "engine/control.h"

#include "base/clock.h"
#include "base/structures.h"
#include "engine/inflight.h"
#include "engine/lifecycle.h"
#include "engine/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Under the lock: returns whether this is the engine's thread. When that thread has ended, another may have its number.
static bool in_thread(const p4reduce_engine *engine) {
    return !engine->stopped && pthread_equal(pthread_self(), engine->thread);
}

void engine_fail_with(p4reduce_engine *engine, const p4reduce_error *error, bool close) {
    pthread_mutex_lock(&engine->lock);
    if (engine->external_failure.status == P4REDUCE_OK)
        engine->external_failure = *error;
    engine->closing |= close;
    progress_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

struct snapshot engine_query(p4reduce_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (in_thread(engine)) {
        engine_take_snapshot(engine, clock_now(), &engine->snapshot);
    } else if (!engine->stopped) {
        const unsigned number = ++engine->asked;
        progress_wake(engine);
        while ((int)(engine->answered - number) < 0 && !engine->stopped)
            pthread_cond_wait(&engine->changed, &engine->lock);
    }
    struct snapshot snapshot = engine->snapshot;
    pthread_mutex_unlock(&engine->lock);
    return snapshot;
}

void p4reduce_fail(p4reduce_engine *engine, const char *message) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_FAILED, "%s", message);
    engine_fail_with(engine, &error, false);
}

void p4reduce_abort(p4reduce_engine *engine, p4reduce_status status, int32_t rank, const char *message) {
    p4reduce_error error;
    error_fill(&error, status == P4REDUCE_MISMATCH ? status : P4REDUCE_ABORTED, "%s", message);
    error.rank = rank;
    engine_fail_with(engine, &error, false);
}

void p4reduce_counted(p4reduce_engine *engine, uint32_t half, uint32_t seq, const char *message) {
    p4reduce_engine *owner = engine;
    for (p4reduce_engine *shard = engine; shard != NULL; shard = shard->next_shard)
        if (shard->membership.first_slot <= half >> 1)
            owner = shard;
    if (owner->worker == NULL)
        return;
    struct counted *counted = &owner->counted_by_switch;
    pthread_mutex_lock(&owner->lock);
    *counted = (struct counted){.pending = true, .half = half - 2 * owner->membership.first_slot, .seq = seq};
    snprintf(counted->message, sizeof counted->message, "%s", message);
    progress_wake(owner);
    pthread_mutex_unlock(&owner->lock);
}

p4reduce_status p4reduce_failure(p4reduce_engine *engine, p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    p4reduce_status status = error_out(error, engine_failure(engine));
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// Returns a snapshot of the engine, with those of its group.
static struct snapshot query_group(p4reduce_engine *engine) {
    struct snapshot snapshot = engine_query(engine);
    if (engine->ops->add_shards != NULL)
        engine->ops->add_shards(engine, &snapshot);
    return snapshot;
}

int32_t p4reduce_unanswered(p4reduce_engine *engine) {
    return query_group(engine).unanswered;
}

void p4reduce_progress(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", query_group(engine).progress);
}

void p4reduce_awaited(p4reduce_engine *engine, uint32_t awaited[AWAITED_WORDS]) {
    const struct snapshot snapshot = query_group(engine);
    memcpy(awaited, snapshot.awaited, sizeof snapshot.awaited);
}

void p4reduce_describe(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", query_group(engine).link);
}

void p4reduce_get_stats(p4reduce_engine *engine, p4reduce_stats *stats) {
    const struct snapshot snapshot = query_group(engine);
    structure_out(stats, &snapshot.stats, sizeof snapshot.stats);
}

// Pausing: only the slots of an engine that sends packets by one thread can change.

uint64_t p4reduce_hold(p4reduce_engine *engine, uint64_t operations) {
    if (engine->worker == NULL || engine->next_shard != NULL)
        return 0;
    struct pause *pause = &engine->pause;
    pthread_mutex_lock(&engine->lock);
    const uint64_t number = ++pause->calls;
    pause->pause_requested = true;
    pause->pause_after = operations;
    progress_wake(engine);
    pthread_cond_broadcast(&engine->changed); // wakes a thread that waits for an earlier hold
    pthread_mutex_unlock(&engine->lock);
    return number;
}

void p4reduce_go_on(p4reduce_engine *engine, uint32_t slots, uint32_t first_seq) {
    struct pause *pause = &engine->pause;
    pthread_mutex_lock(&engine->lock);
    pause->calls++;
    pause->pause_requested = false;
    if (pause->paused && !pause->resume_requested) {
        pause->resume_requested = true;
        pause->slots = slots;
        pause->first_seq = first_seq;
        progress_wake(engine);
    }
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

int p4reduce_await_held(p4reduce_engine *engine, uint64_t hold, p4reduce_held *held, double timeout) {
    const struct pause *pause = &engine->pause;
    const struct timespec until = as_timespec(clock_now() + timeout);
    p4reduce_held known = {.size = sizeof known};
    if (!structure_in(&known, sizeof known, held, "held", NULL))
        return -1;
    bool timed_out = false, over, changed;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        over = hold == 0 || hold != pause->calls || engine->stopped || engine_failure(engine)->status != P4REDUCE_OK;
        changed = pause->reported_call == hold && pause->report.changes != known.changes;
        if (over || changed || timed_out)
            break;
        timed_out = pthread_cond_timedwait(&engine->changed, &engine->lock, &until) != 0;
    }
    if (changed && !over)
        structure_out(held, &pause->report, sizeof pause->report);
    pthread_mutex_unlock(&engine->lock);
    return over ? -1 : changed;
}

// Moving the slots of an aggregator that is lost.

// Lets the driver execute a call, and waits for that. The call is not executed if the engine has ended.
static void call_driver(p4reduce_engine *engine, struct driver_call *call) {
    pthread_mutex_lock(&engine->lock);
    while (engine->call != NULL && !engine->stopped)
        pthread_cond_wait(&engine->changed, &engine->lock);
    if (!engine->stopped) {
        engine->call = call;
        progress_wake(engine);
    }
    while (!call->done && !engine->stopped)
        pthread_cond_wait(&engine->changed, &engine->lock);
    pthread_mutex_unlock(&engine->lock);
}

// A call that the threads of an engine execute, one after the other.
struct move {
    struct driver_call call;
    uint32_t aggregator, via, job;
    uint32_t *rounds;  // those of the thread, and of the threads after it
    size_t count;      // as many, or room for them
    int64_t suspended; // slots of the thread; -1: none
};

static void take_rounds(struct move *move, size_t count) {
    move->rounds += count;
    move->count -= count;
}

static void suspend(p4reduce_engine *engine, double now, struct driver_call *call) {
    (void)now;
    struct move *move = (struct move *)call;
    if (move->aggregator >= engine->link->aggregators)
        return;
    const size_t slots = p4reduce_worker_suspend(engine->worker, move->aggregator, move->rounds, move->count);
    move->suspended = (int64_t)slots;
    take_rounds(move, slots < move->count ? slots : move->count);
}

static void move_on(p4reduce_engine *engine, double now, struct driver_call *call) {
    struct move *move = (struct move *)call;
    if (engine->link->redirect == NULL)
        return;
    const size_t slots = worker_slots_at(engine->worker, move->aggregator);
    // The last thread gets all rounds that are left: if there are too many, it fails.
    const size_t count = engine->next_shard == NULL || move->count < slots ? move->count : slots;
    p4reduce_error refusal = {.size = sizeof refusal}, error;
    error_fill(&refusal, P4REDUCE_INVALID, "there are no aggregators %" PRIu32 " and %" PRIu32, move->aggregator,
               move->via);
    if (!engine->link->redirect(engine->link, move->aggregator, move->via, move->job) ||
        p4reduce_worker_rewind(engine->worker, move->aggregator, move->rounds, count, now, &refusal) != P4REDUCE_OK) {
        error_fill(&error, P4REDUCE_FAILED, "the controller moved slots of the job in a way that cannot be: %.900s",
                   refusal.message);
        engine->ops->fail(engine, &error);
    }
    take_rounds(move, count);
}

int64_t p4reduce_suspend(p4reduce_engine *engine, uint32_t aggregator, uint32_t *rounds, size_t room) {
    if (engine->worker == NULL)
        return -1;
    struct move move = {.call.run = suspend, .aggregator = aggregator, .rounds = rounds, .count = room};
    int64_t slots = 0;
    for (p4reduce_engine *shard = engine; shard != NULL; shard = shard->next_shard) {
        move.call.done = false;
        move.suspended = -1;
        call_driver(shard, &move.call);
        if (move.suspended < 0)
            return -1;
        slots += move.suspended;
    }
    return slots;
}

void p4reduce_move(p4reduce_engine *engine, uint32_t aggregator, uint32_t via, const uint32_t *jobs,
                   const uint32_t *rounds, size_t count) {
    if (engine->worker == NULL)
        return;
    struct move move = {.call.run = move_on,
                        .aggregator = aggregator,
                        .via = via,
                        .rounds = (uint32_t *)rounds,
                        .count = count};
    for (p4reduce_engine *shard = engine; shard != NULL; shard = shard->next_shard) {
        move.call.done = false;
        move.job = *jobs++;
        call_driver(shard, &move.call);
    }
}

uint32_t p4reduce_take_most_slots(p4reduce_engine *engine) {
    return atomic_exchange(&engine->most_slots, 0);
}

// Closing.

void p4reduce_close(p4reduce_engine *engine) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_CLOSED, "the engine is closed");
    if (engine->next_shard != NULL) {
        engine_fail_with(engine, &error, false); // it goes on until the others of its group have ended their shards
        p4reduce_close(engine->next_shard);
    }
    engine_fail_with(engine, &error, true);
    pthread_mutex_lock(&engine->lock);
    while (!engine->stopped)
        pthread_cond_wait(&engine->changed, &engine->lock);
    const bool join = !engine->joined;
    engine->joined = true;
    pthread_mutex_unlock(&engine->lock);
    if (!join)
        return;
    pthread_join(engine->thread, NULL);
    pthread_mutex_lock(&engine->lock);
    engine->ops->close(engine);
    close(engine->wake);
    engine->wake = -1;
    pthread_mutex_unlock(&engine->lock);
}

void p4reduce_free(p4reduce_engine *engine) {
    if (engine == NULL)
        return;
    p4reduce_close(engine);
    engine_destroy(engine);
}
