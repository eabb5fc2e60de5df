// SPDX-License-Identifier: Apache-2.0
#include "intranode/local_waiting.h"

#include "base/awaited.h"
#include "base/clock.h"
#include "base/structures.h"
#include "engine/engine_bell.h"
#include "engine/engine_under_way.h"
#include "intranode/local_calls.h"
#include "shm/local_futex.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const double SLICE_S = 0.01; // after which a rank that waits looks whether something else has happened
static const double TOLD_S = 1; // from when another has failed, for the controller to say why

// Texts.

static bool is_awaited(const struct local *local, uint32_t rank) {
    const struct rank_record *other = segment_rank(&local->segment, rank);
    return rank != local->segment.rank && atomic_load(&other->through[local->awaits]) <= local->awaits_window;
}

static void describe_wait(const p4reduce_engine *engine, char *text, size_t room, uint32_t awaited[8]) {
    const struct local *local = engine->local;
    char ranks[AWAITED_TEXT_BYTES];
    memset(awaited, 0, 8 * sizeof *awaited);
    for (uint32_t rank = 0; engine->oldest != NULL && rank < local->segment.ranks; rank++)
        if (is_awaited(local, rank))
            awaited_add(awaited, rank);
    if (awaited_ranks(awaited, ranks))
        snprintf(text, room, "waiting for %.400s on this host", ranks);
    else
        snprintf(text, room, "waiting for no rank");
}

void local_take_snapshot(p4reduce_engine *engine, double now) {
    struct snapshot *snapshot = &engine->snapshot;
    snapshot->stats = engine->local->stats;
    snapshot->stats.seconds = engine->seconds + (engine->oldest != NULL ? now - engine->busy_since : 0);
    snapshot->unanswered = -1;
    describe_wait(engine, snapshot->progress, sizeof snapshot->progress, snapshot->awaited);
    snprintf(snapshot->link, sizeof snapshot->link, "memory of this host, %s",
             engine->local->segment.readable ? "process_vm_readv" : "copies");
}

// What other threads want, and what goes wrong.

// Of a failure from outside: who disagreed may have left before this rank has looked, and others say only that it has.
static p4reduce_error cause_of(const p4reduce_engine *engine) {
    p4reduce_error error = engine->outside;
    if (engine->oldest != NULL && calls_differ(engine->local, engine->local->operations))
        calls_mismatch(engine->local, engine->local->operations, &error);
    return error;
}

void local_take_news(p4reduce_engine *engine, double now) {
    pthread_mutex_lock(&engine->lock);
    bell_answer(engine);
    if (engine->outside.status != P4REDUCE_OK && engine->failure.status == P4REDUCE_OK)
        engine->failure = cause_of(engine);
    engine->must_stop = engine->closing;
    p4reduce_operation *operation;
    while ((operation = operation_pop(&engine->inbox)) != NULL)
        engine_began(engine, operation, now);
    engine_answer(engine, now);
    pthread_mutex_unlock(&engine->lock);
}

static void fail_late(p4reduce_engine *engine) {
    char wait[TEXT_BYTES];
    uint32_t awaited[8];
    describe_wait(engine, wait, sizeof wait, awaited);
    p4reduce_error error;
    error_fill(&error, P4REDUCE_TIMEOUT, "%s did not end within %g s: %s", engine->oldest->name,
               engine->oldest->timeout, wait);
    memcpy(error.awaited, awaited, sizeof error.awaited);
    engine_set_failure(engine, &error);
}

bool local_goes_on(p4reduce_engine *engine) {
    const double now = clock_now();
    if (atomic_load(&engine->news))
        local_take_news(engine, now);
    if (engine->failure.status == P4REDUCE_OK && calls_differ(engine->local, engine->local->operations)) {
        p4reduce_error error;
        calls_mismatch(engine->local, engine->local->operations, &error);
        engine_set_failure(engine, &error);
    }
    if (engine->failure.status == P4REDUCE_OK && now - engine->oldest_since >= engine->oldest->timeout)
        fail_late(engine);
    return engine->failure.status == P4REDUCE_OK;
}

// Whether some rank has failed in the operation under way or before; then `rank` is the first.
static bool has_some_failed(const struct local *local, uint32_t *rank) {
    const uint64_t failed = atomic_load(&segment_head(&local->segment)->failed);
    *rank = (uint32_t)(failed % (MAX_RANKS + 1));
    return failed != 0 && failed / (MAX_RANKS + 1) <= local->operations;
}

static void fail_with(p4reduce_engine *engine, uint32_t rank, const char *when) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_ABORTED, "rank %u has failed in %s%s", rank, engine->oldest->name, when);
    error.rank = (int32_t)rank;
    engine_set_failure(engine, &error);
}

bool local_have_all_done(p4reduce_engine *engine) {
    uint32_t rank;
    if (!has_some_failed(engine->local, &rank))
        return true;
    fail_with(engine, rank, ", while its memory was read");
    return false;
}

bool local_could_read(p4reduce_engine *engine, const struct read_failure *failure) {
    if (failure->error == 0)
        return true;
    if (!local_have_all_done(engine))
        return false;
    p4reduce_error error;
    if (failure->error == ESRCH) {
        error_fill(&error, P4REDUCE_ABORTED, "rank %u has ended: its process is not there any more", failure->rank);
        error.rank = (int32_t)failure->rank;
    } else {
        error_fill(&error, P4REDUCE_SYSTEM, "the tensor of rank %u cannot be read: %s", failure->rank,
                   strerror(failure->error));
    }
    engine_set_failure(engine, &error);
    return false;
}

// Waiting for the other ranks.

uint32_t local_all_of(const struct local *local, uint64_t window) {
    return (uint32_t)(local->segment.ranks * (window / WINDOWS + 1));
}

void local_arrive(struct local *local, enum phase phase, uint64_t window) {
    struct window_head *head = segment_window(&local->segment, window);
    struct rank_record *own = segment_rank(&local->segment, local->segment.rank);
    atomic_store_explicit(&own->through[phase], window + 1, memory_order_release);
    if (atomic_fetch_add(&head->arrived[phase], 1) + 1 != local_all_of(local, window))
        return;
    if (phase == REDUCED)
        atomic_store(&head->next_piece, 0); // nobody takes one any more, until all have gathered
    futex_wake_all(&head->arrived[phase]);
}

bool local_are_through(const struct local *local, enum phase phase, uint64_t window) {
    const uint32_t seen = atomic_load(&segment_window(&local->segment, window)->arrived[phase]);
    return (int32_t)(seen - local_all_of(local, window)) >= 0;
}

bool local_await(p4reduce_engine *engine, enum phase phase, uint64_t window) {
    struct local *local = engine->local;
    _Atomic uint32_t *arrived = &segment_window(&local->segment, window)->arrived[phase];
    local->awaits = phase;
    local->awaits_window = window;
    double failed_at = (double)INFINITY;
    uint32_t rank;
    for (uint32_t seen; (int32_t)((seen = atomic_load(arrived)) - local_all_of(local, window)) < 0;) {
        if (!local_goes_on(engine))
            return false;
        if (has_some_failed(local, &rank)) {
            failed_at = fmin(failed_at, clock_now());
            if (clock_now() - failed_at >= TOLD_S) {
                fail_with(engine, rank, "");
                return false;
            }
        }
        futex_wait(arrived, seen, SLICE_S);
    }
    return true;
}
