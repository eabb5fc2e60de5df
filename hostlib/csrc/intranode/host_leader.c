// SPDX-License-Identifier: Apache-2.0
#include "intranode/host_leader.h"

#include "base/awaited.h"
#include "base/structures.h"
#include "intranode/host_bell.h"
#include "intranode/host_calls.h"

#include <stdio.h>
#include <stdlib.h>

static const double TELL_S = 0.1, TELL_AGAIN_S = 1; // from one time to the next that it says whom it waits for

void leader_begin(p4reduce_engine *engine, p4reduce_operation *operation) {
    if (engine->worker->failure.status != P4REDUCE_OK)
        parts_close(operation, &engine->worker->failure);
    else
        parts_number(engine->host, operation);
}

// From within the worker: a part has its sums, or the worker has failed.
static void part_ended(void *context, const p4reduce_error *error) {
    struct part *part = context;
    struct host *host = part->host;
    if (error != NULL) {
        part->busy = false; // leader_fail ends its operation
        return;
    }
    if (host->memory.base != NULL) {
        atomic_store(&host_place(&host->memory, part->number)->ended, part->number + 1);
        host_ring_all(host);
    }
    if (parts_end(part))
        parts_close(part->operation, NULL);
}

// The values of the others, of a part that all have begun. NULL where there is no memory.
static struct neighbours *neighbours_of(const struct host *host, const struct part *part) {
    const struct host_memory *memory = &host->memory;
    const struct task *task = part->task;
    const unsigned count = memory->count - 1;
    struct neighbours *neighbours = calloc(1, sizeof *neighbours + count * sizeof *neighbours->each);
    if (neighbours == NULL)
        return NULL;
    *neighbours = (struct neighbours){
        .block_size = task->block_size,
        .first = task->first,
        .exponents = host_exponents(memory, part->number, 0),
        .agreed = host_agreed(memory, part->number),
        .sums = host_sums(memory, part->number),
        .stride = numbers_words(&task->numbers, task->block_size) * sizeof(uint32_t),
        .count = count,
    };
    for (unsigned i = 0; i < count; i++) {
        const struct host_call *call = host_call(memory, part->number, i + 1);
        struct neighbour *neighbour = &neighbours->each[i];
        numbers_of(&neighbour->numbers, task->numbers.kernels, call->type, task->numbers.wire,
                   host->engine->membership.world_size);
        neighbour->numbers.seed = task->fingerprint | memory->ranks[i + 1];
        neighbour->values = host_values(memory, part->number, i + 1);
        neighbour->exponents = host_exponents(memory, part->number, i + 1);
        neighbour->scanned = &call->scanned;
    }
    memset(neighbours->agreed, BLOCK_ZERO, part->blocks);
    return neighbours;
}

static bool submit(struct host *host, struct part *part, double now) {
    struct task *task = part->task;
    host->large |= task->count > SMALL_VALUES;
    if (host->memory.base != NULL && (task->neighbours = neighbours_of(host, part)) == NULL)
        return false;
    task->request.on_end = part_ended;
    task->request.context = part;
    part->task = NULL;
    host->submitted++;
    worker_submit(host->engine->worker, task, now);
    return true;
}

// Whether the next part has a place: nobody needs any more what was there.
static bool has_place(struct host *host) {
    if (parts_get(host, host->begun)->busy)
        return false;
    for (uint32_t index = 1; index < host->memory.count; index++)
        if (host_lacks_place(host, host->begun, index))
            return false;
    return true;
}

static bool may_begin(struct host *host) {
    return host->next != NULL && has_place(host);
}

static bool may_submit(const struct host *host) {
    return host->submitted < host->begun && host_all_have_called(host, host->submitted);
}

// Some rank of the host tells of a failure, of which not all have heard.
static bool may_pass_on(const struct host *host) {
    const struct host_head *head = host_head(&host->memory);
    return head != NULL && !host->passed_on && (atomic_load(&head->mismatch) || atomic_load(&head->failure.told));
}

static bool carry_on(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct host *host = engine->host;
    if (host_fails(host, error))
        return false;
    while (may_begin(host)) {
        const struct part *part = parts_next(host, error);
        if (part == NULL)
            return false;
        host_announce(host, part, part->task);
    }
    if (host_fails(host, error))
        return false;
    while (may_submit(host)) {
        if (host_fails(host, error)) // who calls something else says so before it has called
            return false;
        if (!submit(host, parts_get(host, host->submitted), now)) {
            error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation");
            return false;
        }
    }
    return true;
}

// Of the parts that the worker has, the oldest; NULL where it has none.
static const struct part *oldest_carried(const struct host *host) {
    const struct part *oldest = NULL;
    for (unsigned i = 0; i < PLACES; i++) {
        const struct part *part = &host->parts[i];
        if (part->busy && part->number < host->submitted && (oldest == NULL || part->number < oldest->number))
            oldest = part;
    }
    return oldest;
}

// Whether a rank of this host has not done its part of what is carried next.
static bool lags(const struct host *host, uint32_t index) {
    const struct part *carried = oldest_carried(host);
    if (carried != NULL)
        return atomic_load(&host_call(&host->memory, carried->number, index)->scanned) < carried->blocks;
    if (host->submitted < host->begun)
        return !host_has_called(host, host->submitted, index);
    return host->next != NULL && host_lacks_place(host, host->begun, index);
}

bool leader_awaits(const p4reduce_engine *engine, char *text, size_t room, uint32_t awaited[8]) {
    const struct host *host = engine->host;
    bool some = false;
    memset(awaited, 0, 8 * sizeof *awaited);
    for (uint32_t index = 1; engine->oldest != NULL && index < host->memory.count; index++)
        if (lags(host, index)) {
            awaited_add(awaited, host->memory.ranks[index]);
            some = true;
        }
    char ranks[AWAITED_TEXT_BYTES];
    if (some && awaited_ranks(awaited, ranks))
        snprintf(text, room, "waiting for %.400s on this host", ranks);
    return some;
}

static void tell_awaited(const p4reduce_engine *engine, double now) {
    struct host *host = engine->host;
    if (host->memory.base == NULL || now - host->awaited_at <= TELL_S)
        return;
    uint32_t awaited[8];
    char text[TEXT_BYTES];
    if (!leader_awaits(engine, text, sizeof text, awaited))
        p4reduce_worker_awaited(engine->worker, awaited);
    for (unsigned i = 0; i < 8; i++)
        atomic_store(&host_head(&host->memory)->awaited[i], awaited[i]);
    atomic_store(&host_head(&host->memory)->held, engine_oldest_is_held_back(engine));
    atomic_store(&host_head(&host->memory)->awaited_at, (uint32_t)now);
    host->awaited_at = now;
}

bool leader_turn(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct host *host = engine->host;
    host_hear(host);
    if (may_pass_on(host)) {
        host->passed_on = true;
        host_ring_all(host);
    }
    if (engine->oldest == NULL)
        host_spare(host, now);
    if (engine->oldest == NULL || engine->worker->failure.status != P4REDUCE_OK)
        return true;
    if (!carry_on(engine, now, error))
        return false;
    tell_awaited(engine, now);
    return true;
}

void leader_goes_on(p4reduce_engine *engine) {
    engine->host->awaited_at = -(double)INFINITY;
}

void leader_rest(p4reduce_engine *engine, struct rest *rest) {
    struct host *host = engine->host;
    rest->descriptors[2] = (struct pollfd){.fd = host_bell(host), .events = POLLIN};
    host_rest(host);
    const bool works = engine->oldest != NULL && engine->worker->failure.status == P4REDUCE_OK;
    if (works)
        rest->due = fmin(rest->due, host_gone_due(host));
    if (works && host->memory.base != NULL)
        rest->due = fmin(rest->due, host->awaited_at + TELL_AGAIN_S);
    if (may_pass_on(host) || (works && (may_begin(host) || may_submit(host))))
        rest->due = 0;
    else if (engine->oldest == NULL && host->large)
        rest->due = fmin(rest->due, host->idle_since + SPARE_S);
}

void leader_fail(p4reduce_engine *engine, const p4reduce_error *error) {
    struct host *host = engine->host;
    if (engine->oldest != NULL || error->status != P4REDUCE_CLOSED)
        host_tell_failure(host, error);
    for (unsigned i = 0; i < PLACES; i++) {
        task_free(host->parts[i].task);
        host->parts[i] = (struct part){.host = host};
    }
    host->next = NULL;
    while (engine->oldest != NULL)
        parts_close(engine->oldest, error);
}

void leader_describe(const p4reduce_engine *engine, char *text, size_t room) {
    const unsigned count = engine->host->memory.count;
    const size_t used = strlen(text);
    snprintf(text + used, room - used, ", one stream of its host, of %u rank%s", count, count > 1 ? "s" : "");
}
