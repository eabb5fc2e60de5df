// SPDX-License-Identifier: Apache-2.0
#include "base/awaited.h"
#include "base/structures.h"
#include "engine/network.h"
#include "engine/network_open.h"
#include "engine/pause.h"
#include "intranode/calls.h"
#include "intranode/host.h"
#include "intranode/wakeup.h"

#include <stdio.h>
#include <stdlib.h>

// The leader reports the ranks it waits for, for followers' texts: at most every REPORT_S, and at least every
// REPORT_AGAIN_S.
static const double REPORT_S = 0.1, REPORT_AGAIN_S = 1;

static void begin(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    (void)now;
    network_expect(engine, operation);
    if (engine->worker->failure.status != P4REDUCE_OK)
        parts_end_operation(operation, &engine->worker->failure);
    else
        parts_enqueue(host_of(engine), operation);
}

// Called by the worker: a part has its sums, or the worker has failed.
static void part_ended(void *context, const p4reduce_error *error) {
    struct part *part = context;
    if (error != NULL) {
        part->busy = false; // `fail` ends its operation
        return;
    }
    struct host *host = host_of(part->operation->engine);
    if (host->node.segment.base != NULL) {
        atomic_store(host_ended(host, part->number), part->number + 1);
        wakeup_all(&host->node);
    }
    parts_end(part);
}

// Returns the followers' values of a part that all have begun; NULL if there is no memory.
static struct colocated *colocated_of(const struct host *host, const struct part *part) {
    const struct segment *segment = &host->node.segment;
    const struct task *task = part->task;
    const unsigned count = segment->count - 1;
    struct colocated *colocated = calloc(1, sizeof *colocated + count * sizeof *colocated->each);
    if (colocated == NULL)
        return NULL;
    *colocated = (struct colocated){
        .block_size = task->block_size,
        .first = task->first,
        .exponents = buffers_exponents(&host->staging, part->number, 0),
        .agreed = buffers_agreed(&host->staging, part->number),
        .sums = buffers_sums(&host->staging, part->number),
        .stride = numbers_words(&task->numbers, task->block_size) * sizeof(uint32_t),
        .count = count,
    };
    for (unsigned i = 0; i < count; i++) {
        const struct call *call = host_call(host, part->number, i + 1);
        struct colocated_rank *other = &colocated->each[i];
        other->numbers = calls_numbers(&host->node, i + 1, call, task);
        other->values = host_copies(host, part->number, i + 1);
        other->exponents = buffers_exponents(&host->staging, part->number, i + 1);
        other->scanned = &call->scanned;
    }
    memset(colocated->agreed, BLOCK_ZERO, part->blocks);
    return colocated;
}

static bool submit(struct host *host, struct part *part, double now) {
    struct task *task = part->task;
    if (host->node.segment.base != NULL && (task->colocated = colocated_of(host, part)) == NULL)
        return false;
    task->request.on_end = part_ended;
    task->request.context = part;
    part->task = NULL;
    host->submitted++;
    worker_submit(host->node.engine->worker, task, now);
    return true;
}

// Returns whether there is a next part, and all followers have taken the sums that were in its buffer.
static bool may_begin(struct host *host) {
    bool may = host->next != NULL && !parts_get(host, host->begun)->busy;
    for (uint32_t index = 1; may && index < host->node.segment.count; index++)
        may = !parts_lack_buffer(host, host->begun, index);
    return may;
}

// Returns whether there is a part that the worker does not have, and that all ranks of the host have called.
static bool may_submit(const struct host *host) {
    return host->submitted < host->begun && calls_have_all_come(&host->node, host->submitted + 1);
}

static bool is_active(const p4reduce_engine *engine) {
    return engine->oldest != NULL && engine->worker->failure.status == P4REDUCE_OK;
}

// Begins parts and gives them to the worker, as far as possible. Returns false if the engine must fail, and `error`
// says why.
static bool advance(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct host *host = host_of(engine);
    if (calls_fail(&host->node, error))
        return false;
    while (may_begin(host)) {
        const struct part *part = parts_next(host, error);
        if (part == NULL)
            return false;
        calls_announce(&host->node, part->task, NULL, false);
    }
    while (may_submit(host)) {
        calls_compare(&host->node, host->submitted + 1); // the last rank to come may not have compared it yet
        if (calls_fail(&host->node, error))
            return false;
        if (!submit(host, parts_get(host, host->submitted), now)) {
            error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation");
            return false;
        }
    }
    return true;
}

// Returns the oldest part that the worker has; NULL if it has none.
static const struct part *oldest_submitted(const struct host *host) {
    const struct part *oldest = NULL;
    for (unsigned i = 0; i < BUFFERS; i++) {
        const struct part *part = &host->parts[i];
        if (part->busy && part->number < host->submitted && (oldest == NULL || part->number < oldest->number))
            oldest = part;
    }
    return oldest;
}

// Returns whether a rank of this host has not done its share of the part that the leader works on next.
static bool lags(const struct host *host, uint32_t index) {
    const struct part *oldest = oldest_submitted(host);
    if (oldest != NULL)
        return atomic_load(&host_call(host, oldest->number, index)->scanned) < oldest->blocks;
    if (host->submitted < host->begun)
        return calls_get(&host->node, index, host->submitted + 1) == NULL;
    return host->next != NULL && parts_lack_buffer(host, host->begun, index);
}

// Finds the ranks of this host that are waited for, as a bitmap. Returns false if there are none.
static bool find_awaited(const p4reduce_engine *engine, uint32_t awaited[AWAITED_WORDS]) {
    const struct host *host = host_of(engine);
    bool some = false;
    memset(awaited, 0, AWAITED_WORDS * sizeof *awaited);
    for (uint32_t index = 1; engine->oldest != NULL && index < host->node.segment.count; index++)
        if (lags(host, index)) {
            awaited_add(awaited, host->node.segment.ranks[index]);
            some = true;
        }
    return some;
}

// Publishes the ranks that the leader waits for: those of its host, or else those that the switch waits for.
static void report_awaited(const p4reduce_engine *engine, double now) {
    struct host *host = host_of(engine);
    const bool paused = engine_oldest_is_held_back(engine);
    if (host->node.segment.base == NULL || (paused == host->reported_paused && now - host->reported_at <= REPORT_S))
        return;
    uint32_t awaited[AWAITED_WORDS];
    if (!find_awaited(engine, awaited))
        p4reduce_worker_awaited(engine->worker, awaited);
    for (unsigned i = 0; i < AWAITED_WORDS; i++)
        atomic_store(&segment_head(&host->node.segment)->awaited[i], awaited[i]);
    atomic_store(&segment_head(&host->node.segment)->paused, paused);
    atomic_store(&segment_head(&host->node.segment)->awaited_at, (uint32_t)now);
    host->reported_at = now;
    host->reported_paused = paused;
}

static bool turn(p4reduce_engine *engine) {
    struct host *host = host_of(engine);
    double now;
    p4reduce_error error;
    const bool drained = network_begin_turn(engine, &now);
    wakeup_receive(&host->node);
    host_trim(host, now);
    if (is_active(engine)) {
        if (advance(engine, now, &error))
            report_awaited(engine, now);
        else
            engine->ops->fail(engine, &error);
    }
    return network_end_turn(engine, drained, now);
}

static struct wait_set wait(p4reduce_engine *engine, double limit) {
    struct host *host = host_of(engine);
    struct wait_set set = network_wait(engine, fmin(limit, host_trim_due(host)));
    const struct wait_set own = wakeup_announce_sleep(&host->node, set.deadline);
    p4reduce_error error;
    set.descriptors[2] = own.descriptors[1]; // notifications of this host's ranks
    set.deadline = own.deadline;
    if (is_active(engine) && host->node.segment.base != NULL)
        set.deadline = fmin(set.deadline, host->reported_at + REPORT_AGAIN_S);
    // The conditions must be checked again after the announcement (wakeup.h).
    if (is_active(engine) && (may_begin(host) || may_submit(host) || calls_fail(&host->node, &error)))
        set.deadline = 0;
    engine->poll_deadline = set.deadline;
    return set;
}

static void fail(p4reduce_engine *engine, const p4reduce_error *error) {
    const p4reduce_error failure = engine_set_failure(engine, error);
    worker_fail(engine->worker, &failure);
    pause_end(engine);
    parts_fail(host_of(engine), &failure);
}

static void take_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot) {
    const struct host *host = host_of(engine);
    network_snapshot(engine, now, snapshot);
    snapshot->stats.operations = host->node.stats.operations; // an operation may have several tasks
    const size_t used = strlen(snapshot->link);
    snprintf(snapshot->link + used, sizeof snapshot->link - used, ", one stream of its host, of %u rank%s",
             host->node.segment.count, host->node.segment.count > 1 ? "s" : "");
    uint32_t awaited[AWAITED_WORDS];
    char ranks[AWAITED_TEXT_BYTES];
    if (!find_awaited(engine, awaited))
        return;
    memcpy(snapshot->awaited, awaited, sizeof awaited);
    if (engine_oldest_is_held_back(engine) || !awaited_ranks(awaited, ranks))
        return;
    snprintf(snapshot->progress, sizeof snapshot->progress, "waiting for %s on this host", ranks);
    network_describe_stall(engine, snapshot->progress, sizeof snapshot->progress);
}

static void close_host(p4reduce_engine *engine) {
    engine_close_network(engine);
    host_close(engine);
}

const struct engine_ops leader_engine = {
    .turn = turn,
    .wait = wait,
    .begin = begin,
    .fail = fail,
    .snapshot = take_snapshot,
    .close = close_host,
};
