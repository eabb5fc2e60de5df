// SPDX-License-Identifier: Apache-2.0
#include "intranode/host_calls.h"

#include "base/clock.h"
#include "base/structures.h"
#include "intranode/host_bell.h"

#include <inttypes.h>
#include <stdio.h>

enum { FINGERPRINT_BITS = 24 };

static bool differs_from_first(const struct host *host, uint64_t number, uint32_t fingerprint) {
    _Atomic uint64_t *called = &host_place(&host->memory, number)->called;
    const uint64_t own = (number + 1) << FINGERPRINT_BITS | fingerprint >> (32 - FINGERPRINT_BITS);
    uint64_t seen = atomic_load(called);
    while (seen >> FINGERPRINT_BITS <= number)
        if (atomic_compare_exchange_weak(called, &seen, own))
            return false;
    return seen != own;
}

void host_announce(struct host *host, const struct part *part, const struct task *task) {
    const uint64_t number = part->number;
    if (host->memory.base == NULL)
        return;
    struct host_call *call = host_call(&host->memory, number, host->memory.index);
    call->operation = task->counter;
    call->fingerprint = task->fingerprint;
    call->type = task->request.type;
    snprintf(call->text, sizeof call->text, "<%s of %" PRIu64 " %s>", task->reduce_op, task->request.count,
             task->dtype);
    atomic_store(&call->number, number + 1);
    const bool differs = differs_from_first(host, number, task->fingerprint);
    uint64_t none = 0;
    if (differs)
        atomic_compare_exchange_strong(&host_head(&host->memory)->mismatch, &none, number + 1);
    atomic_fetch_add(&host_place(&host->memory, number)->announced, 1);
    if (!host_leads(host) && (differs || host_all_have_called(host, number)))
        host_ring(host, 0);
}

bool host_all_have_called(const struct host *host, uint64_t number) {
    if (host->memory.base == NULL)
        return true;
    const uint32_t all = (uint32_t)(host->memory.count * (number / PLACES + 1));
    return (int32_t)(atomic_load(&host_place(&host->memory, number)->announced) - all) >= 0;
}

static const struct host_call *call_of(const struct host *host, uint64_t number, uint32_t index) {
    const struct host_call *call = host_call(&host->memory, number, index);
    return atomic_load(&call->number) == number + 1 ? call : NULL;
}

bool host_has_called(const struct host *host, uint64_t number, uint32_t index) {
    return call_of(host, number, index) != NULL;
}

bool host_lacks_place(const struct host *host, uint64_t number, uint32_t index) {
    return number >= PLACES && atomic_load(&host_rank(&host->memory, index)->taken) <= number - PLACES;
}

// Of a part that this rank has begun.
static void mismatch(const struct host *host, uint64_t number, p4reduce_error *error) {
    const struct host_memory *memory = &host->memory;
    const struct host_call *own = call_of(host, number, memory->index);
    char those[CALL_BYTES + 80] = "two other ranks disagree";
    for (uint32_t index = 0; index < memory->count; index++) {
        const struct host_call *call = call_of(host, number, index);
        if (call == NULL || call->fingerprint == own->fingerprint)
            continue;
        snprintf(those, sizeof those, "rank %u has %s, fingerprint %08" PRIx32, memory->ranks[index], call->text,
                 call->fingerprint);
        break;
    }
    error_fill(error, P4REDUCE_MISMATCH,
               "ranks call different operations: of operation %" PRIu32 ", %s; on this rank, %u, it is %s, "
               "fingerprint %08" PRIx32
               ". Check that all ranks call the same collectives in the same order, with the same number of elements, "
               "dtype and reduction",
               own->operation, those, memory->ranks[memory->index], own->text, own->fingerprint);
}

static bool is_gone(const struct host *host, p4reduce_error *error) {
    if (host->gone_at == 0)
        return false;
    for (uint32_t index = 0; clock_now() >= host_gone_due(host) && index < host->memory.count; index++)
        if (host->gone[index]) {
            error_fill(error, P4REDUCE_ABORTED, "rank %u of this host has ended", host->memory.ranks[index]);
            error->rank = host->memory.ranks[index];
            return true;
        }
    return false;
}

bool host_fails(const struct host *host, p4reduce_error *error) {
    if (host->memory.base == NULL)
        return false;
    const struct host_head *head = host_head(&host->memory);
    const uint64_t differing = atomic_load(&head->mismatch);
    if (differing != 0 && host->begun >= differing) {
        mismatch(host, differing - 1, error);
        return true;
    }
    if (atomic_load(&head->failure.told) != 0) {
        *error = head->failure.error;
        return true;
    }
    return is_gone(host, error);
}

void host_tell_failure(struct host *host, const p4reduce_error *error) {
    if (host->memory.base == NULL || host->told)
        return;
    host->told = true;
    struct told_failure *failure = &host_head(&host->memory)->failure;
    const uint32_t rank = host->memory.ranks[host->memory.index];
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&failure->claimed, &none, host->memory.index + 1))
        return;
    const bool is_all_ranks = error->status == P4REDUCE_MISMATCH || error->status == P4REDUCE_ABORTED;
    if (is_all_ranks) {
        failure->error = *error;
    } else {
        error_fill(&failure->error, P4REDUCE_ABORTED, "rank %u has failed: %.900s", rank, error->message);
        failure->error.rank = (int32_t)rank;
    }
    atomic_store(&failure->told, 1);
    host_ring_all(host);
}
