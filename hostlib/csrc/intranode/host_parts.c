// SPDX-License-Identifier: Apache-2.0
#include "intranode/host_parts.h"

#include "base/clock.h"
#include "base/structures.h"
#include "engine/engine_under_way.h"

#include <inttypes.h>

void parts_number(struct host *host, p4reduce_operation *operation) {
    struct task *whole = operation->task;
    whole->counter = host->operations++;
    whole->fingerprint = fingerprint(whole->counter, whole->dtype, whole->reduce_op, whole->request.count);
    whole->numbers.seed = whole->fingerprint | host->engine->membership.rank;
    if (host->next == NULL)
        host->next = operation;
}

struct part *parts_next(struct host *host, p4reduce_error *error) {
    struct part *part = parts_get(host, host->begun);
    p4reduce_operation *operation = host->next;
    const struct task *whole = operation->task;
    const uint64_t most = PART_VALUES / whole->block_size, left = whole->blocks - host->next_block;
    const uint64_t blocks = left < most ? left : most;
    *part = (struct part){.host = host, .operation = operation, .number = host->begun, .blocks = blocks};
    part->task = task_part(whole, host->next_block, blocks, host_leads(host));
    if (part->task == NULL) {
        error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation of %" PRIu64 " blocks", blocks);
        return NULL;
    }
    part->busy = true;
    host->begun++;
    operation->parts++;
    host->next_block += blocks;
    operation->all_parts = blocks == left;
    if (operation->all_parts) {
        // What is held back has no number yet.
        host->next = operation->newer == host->engine->holding.held_back ? NULL : operation->newer;
        host->next_block = 0;
    }
    return part;
}

void parts_close(p4reduce_operation *operation, const p4reduce_error *error) {
    struct host *host = operation->engine->host;
    host->stats.operations += error == NULL;
    host->idle_since = clock_now();
    task_free(operation->task);
    operation->task = NULL;
    engine_ended(operation, error);
}

bool parts_end(struct part *part) {
    part->busy = false;
    return --part->operation->parts == 0 && part->operation->all_parts;
}
