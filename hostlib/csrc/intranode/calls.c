// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include "base/structures.h"
#include "engine/inflight.h"
#include "intranode/calls.h"
#include "intranode/wakeup.h"
#include "protocol/job_errors.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>

_Static_assert(sizeof((struct call *)0)->text >= TASK_TEXT_BYTES, "room for what a task is");

// Dekker's pattern (shm/segment.h): each rank stores `number` of its call, and then loads those of the others. All
// these accesses are sequentially consistent. So of two ranks whose calls differ, at least the later one sees both.

static struct call *own_call(const struct intranode *node, uint64_t number) {
    return segment_call(&node->segment, node->segment.index, number);
}

const struct call *calls_get(const struct intranode *node, uint32_t index, uint64_t number) {
    const struct call *call = segment_call(&node->segment, index, number);
    return atomic_load(&call->number) == number ? call : NULL;
}

// Returns another rank's call of that number that differs from this rank's; NULL if none is known.
static const struct call *differing_call(const struct intranode *node, uint64_t number, uint32_t *index) {
    const uint32_t fingerprint = own_call(node, number)->fingerprint;
    for (*index = 0; *index < node->segment.count; ++*index) {
        const struct call *call = calls_get(node, *index, number);
        if (call != NULL && call->fingerprint != fingerprint)
            return call;
    }
    return NULL;
}

void calls_announce(struct intranode *node, const struct task *task, const struct region *region, bool in_place) {
    const uint64_t number = ++node->announced;
    if (node->segment.base == NULL)
        return;
    struct call *call = own_call(node, number);
    call->operation = task->counter;
    call->fingerprint = task->fingerprint;
    call->type = task->request.type;
    call->divisor = task->numbers.divisor;
    call->data = (uint64_t)(uintptr_t)task->request.data;
    call->region = region != NULL ? *region : (struct region){.number = 0};
    call->in_place = in_place;
    task_describe(task, call->text);
    atomic_store(&call->number, number);
    calls_compare(node, number);
}

void calls_compare(const struct intranode *node, uint64_t number) {
    uint32_t index;
    uint64_t none = 0;
    if (node->segment.base != NULL && differing_call(node, number, &index) != NULL) {
        atomic_compare_exchange_strong(&segment_head(&node->segment)->mismatch, &none, number);
        wakeup_broadcast(node);
    }
}

struct numbers calls_numbers(const struct intranode *node, uint32_t index, const struct call *call,
                             const struct task *task) {
    struct numbers numbers;
    numbers_of(&numbers, task->numbers.kernels, call->type, task->numbers.wire, node->engine->membership.world_size);
    numbers.seed = task->fingerprint | node->segment.ranks[index];
    return numbers;
}

bool calls_have_all_come(const struct intranode *node, uint64_t number) {
    for (uint32_t index = 0; node->segment.base != NULL && index < node->segment.count; index++)
        if (calls_get(node, index, number) == NULL)
            return false;
    return true;
}

bool calls_differ(const struct intranode *node, p4reduce_error *error) {
    const uint64_t number = atomic_load(&segment_head(&node->segment)->mismatch);
    if (number == 0 || number > node->announced)
        return false;
    uint32_t index;
    const struct call *own = own_call(node, number), *other = differing_call(node, number, &index);
    char those[CALL_TEXT_BYTES + 80] = "two other ranks disagree";
    if (other != NULL)
        snprintf(those, sizeof those, "rank %u has %s, fingerprint %08" PRIx32, node->segment.ranks[index], other->text,
                 other->fingerprint);
    job_error_disagreement(own->operation, those, node->segment.ranks[node->segment.index], own->text, own->fingerprint,
                           error);
    return true;
}

void calls_end(p4reduce_operation *operation, const p4reduce_error *error) {
    intranode_of(operation->engine)->stats.operations += error == NULL;
    task_free(operation->task);
    operation->task = NULL;
    engine_ended(operation, error);
}

// Failures. `claimed` is the number of the call times MAX_HOST_RANKS + 1, plus the rank's index plus one. The rank
// whose compare-and-swap succeeds writes `error`, and then sets `published`.

bool calls_have_failed(const struct intranode *node, p4reduce_error *error) {
    const struct failure *failure = &segment_head(&node->segment)->failure;
    const uint64_t claimed = atomic_load(&failure->claimed);
    if (claimed == 0 || claimed / (MAX_HOST_RANKS + 1) > node->announced)
        return false;
    const uint32_t rank = node->segment.ranks[claimed % (MAX_HOST_RANKS + 1) - 1];
    for (unsigned i = 0; i < 1000 && !atomic_load(&failure->published); i++)
        sched_yield(); // the rank is about to write the error, unless it was killed in between
    if (atomic_load(&failure->published)) {
        *error = failure->error;
    } else {
        error_fill(error, P4REDUCE_ABORTED, "rank %" PRIu32 " has failed", rank);
        error->rank = (int32_t)rank;
    }
    return true;
}

static bool is_gone(const struct intranode *node, p4reduce_error *error) {
    if (clock_now() < intranode_gone_due(node))
        return false;
    uint32_t index = 0;
    while (!node->gone[index])
        index++;
    error_fill(error, P4REDUCE_ABORTED, "rank %u of this host has ended", node->segment.ranks[index]);
    error->rank = node->segment.ranks[index];
    return true;
}

bool calls_fail(const struct intranode *node, p4reduce_error *error) {
    return node->segment.base != NULL &&
           (calls_differ(node, error) || calls_have_failed(node, error) || is_gone(node, error));
}

p4reduce_error calls_set_failure(struct intranode *node, const p4reduce_error *error) {
    p4reduce_error cause;
    if (node->engine->oldest != NULL && calls_fail(node, &cause) && cause.status == P4REDUCE_MISMATCH)
        error = &cause;
    return engine_set_failure(node->engine, error);
}

void calls_publish_failure(struct intranode *node, uint64_t number, const p4reduce_error *error) {
    if (node->segment.base == NULL || node->published)
        return;
    node->published = true;
    struct failure *failure = &segment_head(&node->segment)->failure;
    uint64_t none = 0;
    const uint64_t claim = number * (MAX_HOST_RANKS + 1) + node->segment.index + 1;
    if (!atomic_compare_exchange_strong(&failure->claimed, &none, claim))
        return;
    const uint32_t rank = node->segment.ranks[node->segment.index];
    const bool is_all_ranks = error->status == P4REDUCE_MISMATCH || error->status == P4REDUCE_ABORTED;
    if (is_all_ranks) {
        failure->error = *error;
    } else {
        error_fill(&failure->error, P4REDUCE_ABORTED, "rank %u has failed: %.900s", rank, error->message);
        failure->error.rank = (int32_t)rank;
    }
    atomic_store(&failure->published, 1);
    wakeup_broadcast(node);
}
