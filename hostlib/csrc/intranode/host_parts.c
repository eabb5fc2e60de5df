// SPDX-License-Identifier: Apache-2.0
// The parts of operations at a leader or follower, and the memory of staging buffers.
#include "base/clock.h"
#include "base/structures.h"
#include "intranode/calls.h"
#include "intranode/host.h"
#include "intranode/wakeup.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

static const double TRIM_AFTER_S = 1; // time without an operation after which large memory is given back to the kernel

void parts_enqueue(struct host *host, p4reduce_operation *operation) {
    task_identify(operation->task, host->operations++, host->node.engine->membership.rank);
    if (host->next == NULL)
        host->next = operation;
}

struct part *parts_next(struct host *host, p4reduce_error *error) {
    struct part *part = parts_get(host, host->begun);
    p4reduce_operation *operation = host->next;
    const struct task *whole = operation->task;
    const uint64_t left = whole->blocks - host->next_block;
    const uint64_t blocks = min_of(left, PART_VALUES / whole->block_size);
    *part = (struct part){.operation = operation, .number = host->begun, .blocks = blocks};
    part->task = task_part(whole, host->next_block, blocks, host_leads(host));
    if (part->task == NULL) {
        error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation of %" PRIu64 " blocks", blocks);
        return NULL;
    }
    part->busy = true;
    host->large |= part->task->count > SMALL_VALUES;
    host->begun++;
    operation->parts++;
    host->next_block += blocks;
    operation->all_parts = blocks == left;
    if (operation->all_parts) {
        // An operation that is held back is in the list of those in flight, but was not enqueued.
        host->next = operation->next == host->node.engine->pause.held_back ? NULL : operation->next;
        host->next_block = 0;
    }
    return part;
}

void parts_end_operation(p4reduce_operation *operation, const p4reduce_error *error) {
    host_of(operation->engine)->idle_since = clock_now();
    calls_end(operation, error);
}

void parts_fail(struct host *host, const p4reduce_error *failure) {
    p4reduce_engine *engine = host->node.engine;
    // A rank that closes its engine after its last operation has not failed. Call 0 is before all calls, so the failure
    // counts at once for all ranks of the host.
    if (engine->oldest != NULL || failure->status != P4REDUCE_CLOSED)
        calls_publish_failure(&host->node, 0, failure);
    for (unsigned i = 0; i < BUFFERS; i++) {
        task_free(host->parts[i].task);
        host->parts[i] = (struct part){.busy = false};
    }
    host->taken = host->begun; // no sums are to be taken any more
    host->next = NULL;
    while (engine->oldest != NULL)
        parts_end_operation(engine->oldest, failure);
}

void parts_end(struct part *part) {
    part->busy = false;
    if (--part->operation->parts == 0 && part->operation->all_parts)
        parts_end_operation(part->operation, NULL);
}

bool parts_lack_buffer(const struct host *host, uint64_t number, uint32_t index) {
    // The buffer had part number - BUFFERS before. `taken` counts parts, so it is larger once that one was taken.
    return number >= BUFFERS && atomic_load(&segment_rank(&host->node.segment, index)->taken) <= number - BUFFERS;
}

// Memory.

size_t host_lay_out(struct host *host) {
    const size_t values_bytes = (size_t)PART_VALUES * sizeof(uint32_t);
    host->staging = (struct buffers){
        .count = BUFFERS,
        .ranks = host->node.segment.count,
        .copiers = host->node.segment.count - 1, // the followers
        .head_bytes = sizeof(uint64_t),
        .exponents_bytes = PART_VALUES / host->node.engine->membership.block_size + 1,
        .sums_bytes = values_bytes,
        .copies_bytes = values_bytes,
    };
    return buffers_lay_out(&host->staging);
}

// Returns whether the leader may discard sums: all followers have taken them. A follower's copies need no such check,
// because its operations are complete only after the leader has read them.
static bool all_have_taken(const struct host *host) {
    for (uint32_t index = 1; host_leads(host) && index < host->node.segment.count; index++)
        if (atomic_load(&segment_rank(&host->node.segment, index)->taken) < host->begun)
            return false;
    return true;
}

double host_trim_due(const struct host *host) {
    return host->large && host->node.engine->oldest == NULL ? host->idle_since + TRIM_AFTER_S : (double)INFINITY;
}

void host_trim(struct host *host, double now) {
    if (now < host_trim_due(host))
        return;
    host->idle_since = now; // if sums are still needed, it tries again after TRIM_AFTER_S
    if (!all_have_taken(host))
        return;
    for (uint64_t part = 0; host->staging.base != NULL && part < BUFFERS; part++)
        if (host_leads(host))
            madvise(buffers_sums(&host->staging, part), host->staging.sums_bytes, MADV_REMOVE);
        else
            madvise(host_copies(host, part, host->node.segment.index), host->staging.copies_bytes, MADV_REMOVE);
    host->large = false;
}

void host_close(p4reduce_engine *engine) {
    struct host *host = host_of(engine);
    if (host == NULL)
        return;
    intranode_close(&host->node);
    for (unsigned i = 0; i < BUFFERS; i++)
        task_free(host->parts[i].task);
    free(host);
}
