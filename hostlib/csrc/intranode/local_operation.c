// SPDX-License-Identifier: Apache-2.0
// A rank's operations, one after the other, executed by the driver. Each goes through its windows, and each window
// through three phases. Of the steps that need not wait for other ranks, the one of the latest phase comes first. No
// step blocks: if other ranks must do something first, `advance` returns WAITS, and is called again when they may have
// done it.
//
// - If others may write to this rank's tensor, the rank does not scan its first window, but only arrives. If all ranks
//   allow that, the whole operation takes place in this window (local_in_place.c). If they do not, or if no rank could
//   map all tensors, windows follow as in any other operation.
// - When all ranks have gathered the regular windows, more windows follow for values that could not be read, by copies.
// - In a one-shot operation, of few values, each rank adds all values for itself, and does not wait at the end.
#include "base/awaited.h"
#include "base/clock.h"
#include "base/structures.h"
#include "engine/inflight.h"
#include "intranode/calls.h"
#include "intranode/local.h"
#include "intranode/wakeup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPINS = 64 };                // polls between two readings of the clock
static const double SPIN_S = 50e-6; // time that a rank polls before it sleeps

// Waiting.

// Returns whether this rank must wait until all ranks have completed a phase of the window.
static bool must_wait_for(struct local *local, enum phase phase, uint64_t window) {
    local->awaited_phase = phase;
    local->awaited_window = window;
    return !local_have_all_arrived(local, phase, window);
}

// Returns whether the window's buffer is free: all ranks have gathered the window that used it before.
static bool is_buffer_free(const struct local *local, uint64_t window) {
    return window < WINDOWS || local_have_all_arrived(local, GATHERED, window - WINDOWS);
}

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Polls for a bounded time. Returns whether the phase that this rank waits for is complete.
static bool poll_briefly(const p4reduce_engine *engine) {
    const struct local *local = local_of(engine);
    if (local->node.segment.processors < local->ranks)
        return false; // the others may need this rank's processor
    const double until = clock_now() + SPIN_S;
    do
        for (unsigned i = 0; i < SPINS; i++) {
            if (local_have_all_arrived(local, local->awaited_phase, local->awaited_window))
                return true;
            relax();
        }
    while (!atomic_load(&engine->requests_pending) && clock_now() < until);
    return false;
}

// Returns whether the operation may go on waiting. Otherwise it has failed, for example because another rank has.
static bool may_keep_waiting(p4reduce_engine *engine) {
    p4reduce_error error;
    if (!local_may_continue(engine))
        return false;
    const bool fails = calls_fail(intranode_of(engine), &error);
    if (fails)
        engine_set_failure(engine, &error);
    return !fails;
}

// The steps of an operation's windows, whose numbers count from 0. Each returns false if the operation has failed.

// Collects the postponed pieces of the first `windows` windows, which all ranks have gathered.
static bool collect(p4reduce_engine *engine, uint64_t windows) {
    if (local_collect(local_of(engine), windows))
        return true;
    p4reduce_error error;
    error_fill(&error, P4REDUCE_NO_MEMORY, "no memory for what is left of %s", engine->oldest->name);
    engine_set_failure(engine, &error);
    return false;
}

// Returns how many windows the operation's blocks take; an empty operation takes one.
static uint64_t count_windows(const struct local *local) {
    const uint64_t blocks = (uint64_t)local->pieces * local->piece_blocks;
    return local->task->blocks > blocks ? (local->task->blocks + blocks - 1) / blocks : 1;
}

static void begin_windows(struct local *local) {
    local->window_count = local->regular_count = local->in_place ? 1 : count_windows(local);
    memset(local->next, 0, sizeof local->next);
}

static bool scan(p4reduce_engine *engine, uint64_t number) {
    struct local *local = local_of(engine);
    const uint64_t window = local->first_window + number;
    // The scan overwrites the buffer's last window, so its postponed pieces are collected first.
    if (number >= WINDOWS && !collect(engine, number - WINDOWS + 1))
        return false;
    struct piece piece;
    // With tensors in place, the rank that takes a piece scans it, for all ranks.
    if (number == 0 && local->in_place)
        memset(local_window(local, window)->ranks[local->rank].contents, UNSCANNED, local->pieces);
    else
        for (unsigned index = 0; local_piece(local, number, index, &piece); index++)
            local_scan(local, &piece);
    local_arrive(local, SCANNED, window);
    return true;
}

static bool reduce(p4reduce_engine *engine, uint64_t number) {
    struct local *local = local_of(engine);
    const uint64_t window = local->first_window + number;
    if (number == 0) { // all ranks have come, so this rank can read their calls
        in_place_find_tensors(local);
        if (local->reduces_in_place)
            return in_place_add_up(engine);
        local->window_count = local->regular_count = count_windows(local);
    }
    struct window *head = local_window(local, window);
    struct piece piece;
    unsigned index = 0;
    while (local_piece(local, number, local->one_shot ? index++ : atomic_fetch_add(&head->next_piece, 1), &piece))
        local_reduce(local, &piece);
    local_arrive(local, REDUCED, window);
    return true;
}

// Continues after the reduction in place. If no rank could map all tensors, the operation begins again without it.
static bool end_in_place(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    if (!local_no_rank_failed(engine))
        return false;
    local->node.stats.local_fallbacks += local->unmappable;
    if (in_place_was_added_up(local))
        return true;
    local->reduces_in_place = local->in_place = false;
    local->first_window++; // the first window is used up
    begin_windows(local);
    return true;
}

static bool gather(p4reduce_engine *engine, uint64_t number) {
    struct local *local = local_of(engine);
    if (local->reduces_in_place)
        return end_in_place(engine);
    struct piece piece;
    for (unsigned index = 0; local_piece(local, number, index, &piece); index++)
        local_gather(local, &piece);
    local_arrive(local, GATHERED, local->first_window + number);
    return true;
}

// Returns the phase of the next step: one that need not wait for other ranks, if there is one.
static enum phase next_phase(const struct local *local) {
    const uint64_t *next = local->next;
    const bool to_gather = next[GATHERED] < next[REDUCED], to_reduce = next[REDUCED] < next[SCANNED];
    if (to_gather && local_have_all_arrived(local, REDUCED, local->first_window + next[GATHERED]))
        return GATHERED;
    if (to_reduce && local_have_all_arrived(local, SCANNED, local->first_window + next[REDUCED]))
        return REDUCED;
    if (next[SCANNED] < local->window_count && is_buffer_free(local, local->first_window + next[SCANNED]))
        return SCANNED;
    return to_gather ? GATHERED : to_reduce ? REDUCED : SCANNED;
}

// Returns whether the step of that phase must wait for other ranks.
static bool must_wait(struct local *local, enum phase phase, uint64_t window) {
    if (phase == SCANNED)
        return window >= WINDOWS && must_wait_for(local, GATHERED, window - WINDOWS);
    // In a one-shot operation each rank has its own sums when it has reduced.
    return !(phase == GATHERED && local->one_shot) && must_wait_for(local, phase - 1, window);
}

static enum progress advance_windows(p4reduce_engine *engine) {
    static bool (*const steps[PHASES])(p4reduce_engine *, uint64_t) = {scan, reduce, gather};
    struct local *local = local_of(engine);
    while (local->next[GATHERED] < local->window_count) {
        const enum phase phase = next_phase(local);
        if (must_wait(local, phase, local->first_window + local->next[phase]))
            return WAITS;
        if (!local_may_continue(engine) || !steps[phase](engine, local->next[phase]++))
            return FAILS;
    }
    return DONE;
}

// The operation.

static void begin(struct local *local, struct task *task) {
    task_identify(task, (uint32_t)local->node.announced, local->rank);
    local_begin(local, task);
    in_place_export(local);
    local->awaited_phase = SCANNED;
    local->awaited_window = local->first_window;
    calls_announce(&local->node, task, &local->region, local->in_place);
    begin_windows(local);
    local->under_way = true;
}

// Adds windows for postponed pieces, once all ranks have gathered the regular windows.
static enum progress add_windows(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    if (must_wait_for(local, GATHERED, local->first_window + local->regular_count - 1))
        return WAITS;
    if (!local_no_rank_failed(engine) || !collect(engine, local->regular_count))
        return FAILS;
    const uint64_t windows = (local->postponed_count + local->copied_pieces - 1) / local->copied_pieces;
    local->node.stats.local_fallbacks += windows > 0;
    local->window_count += windows;
    local->retries = true;
    return DONE;
}

// Executes the operation's steps until one must wait for other ranks.
static enum progress advance(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    enum progress progress = advance_windows(engine);
    if (progress == DONE && !local->one_shot && !local->retries && (progress = add_windows(engine)) == DONE)
        progress = advance_windows(engine);
    if (progress == DONE) {
        local->first_window += local->window_count;
        local->under_way = false;
    }
    return progress;
}

// The engine.

// Returns whether this rank waits for another one. `completed` is the number of its last window, plus one.
static bool is_awaited(const struct local *local, uint32_t rank) {
    const struct rank_record *other = segment_rank(&local->node.segment, rank);
    return rank != local->rank && atomic_load(&other->completed[local->awaited_phase]) <= local->awaited_window;
}

static void take_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot) {
    (void)now;
    const struct local *local = local_of(engine);
    char ranks[AWAITED_TEXT_BYTES];
    snapshot->stats = local->node.stats;
    for (uint32_t rank = 0; engine->oldest != NULL && rank < local->ranks; rank++)
        if (is_awaited(local, rank))
            awaited_add(snapshot->awaited, rank);
    if (awaited_ranks(snapshot->awaited, ranks))
        snprintf(snapshot->progress, sizeof snapshot->progress, "waiting for %s on this host", ranks);
    else
        snprintf(snapshot->progress, sizeof snapshot->progress, "waiting for no rank");
    snprintf(snapshot->link, sizeof snapshot->link, "memory of this host, %s",
             local->node.segment.readable ? "process_vm_readv" : "copies");
}

static void fail(p4reduce_engine *engine, const p4reduce_error *error) {
    calls_set_failure(intranode_of(engine), error);
}

// Executes steps of the oldest operation. If a step must wait, it polls for SPIN_S before it returns WAITS.
static enum progress advance_oldest(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    if (!local->under_way)
        begin(local, engine->oldest->task);
    enum progress progress = advance(engine);
    while (progress == WAITS && poll_briefly(engine))
        progress = advance(engine);
    return progress == WAITS && !may_keep_waiting(engine) ? FAILS : progress;
}

// Ends all operations with the failure, and publishes it. It counts from the call under way, or from the next one. So
// other ranks can complete the calls before it. A failure from outside, for example an abort, also ends operations that
// this rank has not begun.
static void fail_all(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    // A rank that closes its engine after its last operation has not failed.
    if (engine->oldest != NULL || !engine->must_stop)
        calls_publish_failure(&local->node, local->node.announced + !local->under_way, &engine->failure);
    if (local->under_way)
        in_place_revoke(local, false);
    local->under_way = false;
    while (engine->oldest != NULL)
        calls_end(engine->oldest, &engine->failure);
}

static bool turn(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    wakeup_receive(&local->node);
    if (atomic_load(&engine->requests_pending))
        engine_handle_requests(engine, clock_now());
    if (engine->oldest != NULL && engine->failure.status == P4REDUCE_OK) {
        const enum progress progress = advance_oldest(engine);
        if (progress == WAITS)
            return true;
        if (progress == DONE) {
            in_place_revoke(local, true);
            calls_end(engine->oldest, NULL);
        }
    }
    if (engine->failure.status != P4REDUCE_OK)
        fail_all(engine);
    return engine->oldest == NULL && !engine->must_stop;
}

static struct wait_set wait(p4reduce_engine *engine, double limit) {
    struct local *local = local_of(engine);
    struct wait_set set = wakeup_announce_sleep(&local->node, limit);
    p4reduce_error error;
    // The condition must be checked again after the announcement (wakeup.h). If it is true, the next turn is at once.
    if (engine->oldest != NULL && (local_have_all_arrived(local, local->awaited_phase, local->awaited_window) ||
                                   calls_fail(&local->node, &error)))
        set.deadline = 0;
    return set;
}

static void close_local(p4reduce_engine *engine) {
    struct local *local = local_of(engine);
    if (local == NULL)
        return;
    mappings_close(&local->mappings);
    intranode_close(&local->node);
    free(local->scratch);
    free(local->postponed);
    free(local);
}

const struct engine_ops local_engine = {
    .turn = turn,
    .wait = wait,
    .fail = fail,
    .snapshot = take_snapshot,
    .close = close_local,
};
