// SPDX-License-Identifier: Apache-2.0
// An operation, from its submission until neither the engine nor its caller needs it any more, and queues of
// operations.
#ifndef P4REDUCE_OPERATION_H
#define P4REDUCE_OPERATION_H

#include "protocol/task.h"

enum { OPERATION_NAME_BYTES = 128 };

// An operation. Each group of fields names its owner.
struct p4reduce_operation {
    // Set before it is submitted.
    p4reduce_engine *engine;
    char name[OPERATION_NAME_BYTES];
    double timeout;
    void (*on_end)(void *context, const p4reduce_error *error);
    void *context;
    struct task *task;              // until the worker has it; engines without a worker keep it until the end
    p4reduce_operation *next_shard; // the shards for other engines of the group, until they have them
    uint64_t number;                // its number in the job, the same at all ranks
    // Guarded by the engine's lock.
    p4reduce_operation *next_queued; // in the inbox, or in `done`
    p4reduce_operation *prev_unreported, *next_unreported;
    bool ended;
    bool has_handle;         // its caller still uses it; p4reduce_release clears this, or p4reduce_allreduce itself
    bool unreported;         // p4reduce_next_ended is to report it
    unsigned waiters;        // threads that wait for its end
    unsigned pending_shards; // shards that other engines of the group still carry
    bool own_shard_ended;    // this engine's own shard has ended
    p4reduce_error error;    // the first error of any shard
    // Owned by the driver.
    p4reduce_operation *prev, *next; // in flight
    unsigned parts;                  // parts in flight, if ranks share a stream
    bool all_parts;                  // all its parts have begun
};

// A queue: first in, first out.
struct operation_queue {
    p4reduce_operation *head, *tail;
};

static inline void operation_push(struct operation_queue *queue, p4reduce_operation *operation) {
    operation->next_queued = NULL;
    *(queue->tail ? &queue->tail->next_queued : &queue->head) = operation;
    queue->tail = operation;
}

// Returns NULL if the queue is empty.
static inline p4reduce_operation *operation_pop(struct operation_queue *queue) {
    p4reduce_operation *operation = queue->head;
    if (operation != NULL && (queue->head = operation->next_queued) == NULL)
        queue->tail = NULL;
    return operation;
}

#endif
