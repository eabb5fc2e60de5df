// SPDX-License-Identifier: Apache-2.0
#include "intranode/local_calls.h"

#include "base/structures.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

// NULL where the rank has not come to that operation.
static const struct call *call_of(const struct local *local, uint32_t rank, uint64_t number) {
    const struct call *call = &segment_rank(&local->segment, rank)->calls[number % 2];
    return atomic_load_explicit(&call->number, memory_order_acquire) == number ? call : NULL;
}

void calls_announce(const struct local *local, const struct task *task, uint64_t number) {
    struct call *call = &segment_rank(&local->segment, local->segment.rank)->calls[number % 2];
    call->fingerprint = task->fingerprint;
    call->type = task->request.type;
    call->divisor = task->numbers.divisor;
    call->data = (uint64_t)(uintptr_t)task->request.data;
    call->region = local->region;
    call->in_place = local->in_place;
    snprintf(call->text, sizeof call->text, "<%s of %" PRIu64 " %s>", task->reduce_op, task->request.count,
             task->dtype);
    atomic_store_explicit(&call->number, number, memory_order_seq_cst);
}

static const struct call *other_call(const struct local *local, uint64_t number, uint32_t *rank) {
    const struct call *own = call_of(local, local->segment.rank, number);
    for (*rank = 0; own != NULL && *rank < local->segment.ranks; ++*rank) {
        const struct call *call = call_of(local, *rank, number);
        if (call != NULL && call->fingerprint != own->fingerprint)
            return call;
    }
    return NULL;
}

bool calls_differ(const struct local *local, uint64_t number) {
    _Atomic uint64_t *mismatch = &segment_head(&local->segment)->mismatch;
    uint32_t rank;
    if (other_call(local, number, &rank) != NULL)
        atomic_store(mismatch, number);
    return atomic_load(mismatch) == number;
}

void calls_mismatch(const struct local *local, uint64_t number, p4reduce_error *error) {
    uint32_t rank;
    const struct call *own = call_of(local, local->segment.rank, number), *other = other_call(local, number, &rank);
    char those[CALL_TEXT_BYTES + 80] = "two other ranks disagree";
    if (other != NULL)
        snprintf(those, sizeof those, "rank %" PRIu32 " has %s, fingerprint %08" PRIx32, rank, other->text,
                 other->fingerprint);
    error_fill(error, P4REDUCE_MISMATCH,
               "ranks call different operations: of operation %" PRIu64 ", %s; on this rank, %" PRIu32
               ", it is %s, fingerprint %08" PRIx32
               ". Check that all ranks call the same collectives in the same order, with the same number of elements, "
               "dtype and reduction",
               number - 1, those, local->segment.rank, own != NULL ? own->text : "not known",
               own != NULL ? own->fingerprint : 0);
}

// Where another rank's tensor is in this process; NULL with errno 0 where it lies in no region.
static uint8_t *mapped(struct local *local, uint32_t rank, const struct region *region, size_t bytes) {
    errno = region->number != 0 && (region->offset > region->size || bytes > region->size - region->offset) ? EFAULT : 0;
    if (region->number == 0 || errno != 0)
        return NULL;
    uint8_t *base = mappings_find(&local->mappings, segment_rank(&local->segment, rank)->pid, region, bytes);
    return base != NULL ? base + region->offset : NULL;
}

void calls_take(struct local *local, uint64_t number) {
    const struct task *task = local->task;
    local->alike = true;
    mappings_begin(&local->mappings);
    for (uint32_t rank = 0; rank < local->segment.ranks; rank++) {
        const struct call *call = &segment_rank(&local->segment, rank)->calls[number % 2];
        numbers_of(&local->numbers[rank], task->numbers.kernels, call->type, task->numbers.wire, local->segment.ranks);
        local->numbers[rank].seed = task->fingerprint | rank;
        local->alike &= call->type == task->request.type && call->divisor == task->numbers.divisor;
        local->mapped[rank] = NULL;
        local->unmapped[rank] = 0;
        if (rank == local->segment.rank || local->by_all)
            continue;
        local->mapped[rank] = mapped(local, rank, &call->region, task->request.count * local->numbers[rank].value_bytes);
        local->unmapped[rank] = errno;
    }
}

bool calls_in_place(const struct local *local, uint64_t number) {
    const struct call *own = call_of(local, local->segment.rank, number);
    for (uint32_t rank = 0; own != NULL && rank < local->segment.ranks; rank++) {
        const struct call *call = call_of(local, rank, number);
        if (call == NULL || !call->in_place || call->fingerprint != own->fingerprint || call->type != own->type ||
            call->divisor != own->divisor)
            return false;
    }
    return own != NULL;
}
