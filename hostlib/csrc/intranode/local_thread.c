// SPDX-License-Identifier: Apache-2.0
// A rank's operations, one after the other. Each goes through its windows in steps, of which the oldest is done that
// waits for nobody: so ranks seldom wait for each other in between.
#include "intranode/local_thread.h"

#include "base/clock.h"
#include "base/structures.h"
#include "engine/engine_under_way.h"
#include "intranode/local_calls.h"
#include "intranode/local_in_place.h"
#include "intranode/local_waiting.h"

#include <fenv.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The steps of an operation's windows, by number, the first being 0.

// Collects what was postponed of the first so many windows, which all ranks have gathered.
static bool collect(p4reduce_engine *engine, uint64_t windows) {
    struct local *local = engine->local;
    while (local->collected < windows && local->collected < local->regular)
        if (!local_collect(local)) {
            p4reduce_error error;
            error_fill(&error, P4REDUCE_NO_MEMORY, "no memory for what is left of %s", engine->oldest->name);
            engine_set_failure(engine, &error);
            return false;
        }
    return true;
}

static bool scan(p4reduce_engine *engine, uint64_t number) {
    struct local *local = engine->local;
    const uint64_t window = local->windows + number;
    if (number == 0 && local->scanned)
        return true;
    if (window >= WINDOWS && !local_await(engine, GATHERED, window - WINDOWS))
        return false;
    if (number >= WINDOWS && !collect(engine, number - WINDOWS + 1))
        return false;
    struct piece piece;
    for (unsigned index = 0; local_piece(local, number, index, &piece); index++)
        local_scan(local, &piece);
    local_arrive(local, SCANNED, window);
    return true;
}

static bool reduce(p4reduce_engine *engine, uint64_t number) {
    struct local *local = engine->local;
    const uint64_t window = local->windows + number;
    if (!local_await(engine, SCANNED, window))
        return false;
    if (number == 0 && !local->scanned) {
        if (calls_differ(local, local->operations))
            return local_goes_on(engine);
        calls_take(local, local->operations);
    }
    struct window_head *head = segment_window(&local->segment, window);
    struct piece piece;
    struct read_failure failure = {.error = 0};
    unsigned index = 0;
    while (local_piece(local, number, local->by_all ? index++ : atomic_fetch_add(&head->next_piece, 1), &piece))
        if (!local_reduce(local, &piece, &failure))
            return local_could_read(engine, &failure);
    local_arrive(local, REDUCED, window);
    return true;
}

static bool gather(p4reduce_engine *engine, uint64_t number) {
    struct local *local = engine->local;
    const uint64_t window = local->windows + number;
    if (!local->by_all && !local_await(engine, REDUCED, window))
        return false;
    struct piece piece;
    struct read_failure failure = {.error = 0};
    for (unsigned index = 0; local_piece(local, number, index, &piece); index++)
        if (!local_gather(local, &piece, &failure))
            return local_could_read(engine, &failure);
    local_arrive(local, GATHERED, window);
    return true;
}

// Whether there is a place for the window of that number.
static bool has_place(const struct local *local, uint64_t number) {
    const uint64_t window = local->windows + number;
    return window < WINDOWS || local_are_through(local, GATHERED, window - WINDOWS);
}

// What to do next, of an operation of so many windows: `next` are those of each phase. Where all have to wait, what has
// to be done first.
static enum phase next_phase(const struct local *local, const uint64_t *next, uint64_t windows) {
    const bool to_gather = next[GATHERED] < next[REDUCED], to_reduce = next[REDUCED] < next[SCANNED];
    if (to_gather && local_are_through(local, REDUCED, local->windows + next[GATHERED]))
        return GATHERED;
    if (to_reduce && local_are_through(local, SCANNED, local->windows + next[REDUCED]))
        return REDUCED;
    if (next[SCANNED] < windows && has_place(local, next[SCANNED]))
        return SCANNED;
    return to_gather ? GATHERED : to_reduce ? REDUCED : SCANNED;
}

// Those from number `first` to `windows` - 1.
static bool carry_windows(p4reduce_engine *engine, uint64_t first, uint64_t windows) {
    static bool (*const steps[PHASES])(p4reduce_engine *, uint64_t) = {scan, reduce, gather};
    uint64_t next[PHASES] = {first, first, first};
    while (next[GATHERED] < windows) {
        const enum phase phase = next_phase(engine->local, next, windows);
        if (!local_goes_on(engine) || !steps[phase](engine, next[phase]++))
            return false;
    }
    return true;
}

// Tells the other ranks that this one fails in that operation, counted from 1. The first failure of a job stays.
static void tell_failure(const struct local *local, uint64_t operation) {
    uint64_t none = 0;
    atomic_compare_exchange_strong(&segment_head(&local->segment)->failed, &none,
                                   operation * (MAX_RANKS + 1) + local->segment.rank);
}

static uint64_t windows_of_postponed(const struct local *local) {
    return (local->postponed_count + local->segment.copied_pieces - 1) / local->segment.copied_pieces;
}

// When this rank is through with the regular windows: waits until the others have read its tensor, and carries what was
// postponed.
static bool carry_rest(p4reduce_engine *engine) {
    struct local *local = engine->local;
    if (local->by_all)
        return true;
    if (!local_await(engine, GATHERED, local->windows + local->regular - 1) || !local_have_all_done(engine) ||
        !collect(engine, local->regular))
        return false;
    local->stats.local_fallbacks += local->postponed_count > 0;
    return carry_windows(engine, local->regular, local->regular + windows_of_postponed(local));
}

// Reduces the oldest operation's tensor. False if it has failed.
static bool carry(p4reduce_engine *engine) {
    struct local *local = engine->local;
    struct task *task = engine->oldest->task;
    task->counter = (uint32_t)local->operations++;
    task->fingerprint = fingerprint(task->counter, task->dtype, task->reduce_op, task->request.count);
    task->numbers.seed = task->fingerprint | local->segment.rank;
    local_begin(local, task);
    in_place_lend(local);
    local->awaits = SCANNED;
    local->awaits_window = local->windows;
    calls_announce(local, task, local->operations);
    if (local->in_place && !in_place_meet(engine))
        return false;
    if (local->under_way) {
        if (!in_place_carry(engine))
            return false;
        if (local->under_way)
            return true;
    }
    const uint64_t of_window = (uint64_t)local->segment.pieces * local->piece_blocks;
    const uint64_t windows = task->blocks > of_window ? (task->blocks + of_window - 1) / of_window : 1;
    local->regular = windows;
    if (!carry_windows(engine, 0, windows) || !carry_rest(engine))
        return false;
    local->windows += windows + windows_of_postponed(local);
    return true;
}

// Ends the oldest operation.
static void end(p4reduce_engine *engine, const p4reduce_error *error) {
    p4reduce_operation *operation = engine->oldest;
    task_free(operation->task);
    operation->task = NULL;
    engine_ended(operation, error);
}

static void wait_for_news(const p4reduce_engine *engine) {
    struct pollfd descriptor = {.fd = engine->wake, .events = POLLIN};
    poll(&descriptor, 1, -1);
}

void *local_run(void *context) {
    p4reduce_engine *engine = context;
    fesetenv(FE_DFL_ENV); // as the numbers need it, whatever the thread that made this one has set
    while (!engine->must_stop) {
        if (engine->oldest == NULL)
            wait_for_news(engine);
        if (atomic_load(&engine->news))
            local_take_news(engine, clock_now());
        if (engine->oldest != NULL && engine->failure.status == P4REDUCE_OK) {
            const bool well = carry(engine);
            if (!well)
                tell_failure(engine->local, engine->local->operations);
            in_place_take_back(engine->local, well);
            if (well) {
                engine->local->stats.operations++;
                end(engine, NULL);
            }
        }
        // A failure from outside, for example an abort, also ends operations that this rank has not begun yet.
        if (engine->failure.status != P4REDUCE_OK && (engine->oldest != NULL || !engine->must_stop))
            tell_failure(engine->local, engine->local->operations + 1);
        while (engine->oldest != NULL && engine->failure.status != P4REDUCE_OK)
            end(engine, &engine->failure);
    }
    // The failure is set, so nothing was added to the inbox after the last look into it.
    local_take_news(engine, clock_now());
    while (engine->oldest != NULL)
        end(engine, &engine->failure);
    mappings_close(&engine->local->mappings);
    engine_stop(engine);
    return NULL;
}

void local_close(struct local *local) {
    if (local == NULL)
        return;
    segment_close(&local->segment);
    free(local->room);
    free(local->words);
    free(local->exponents);
    free(local->postponed);
    free(local);
}
