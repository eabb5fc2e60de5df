// SPDX-License-Identifier: Apache-2.0
// An operation, from its submission until both the engine and its caller have let go of it, and queues of them.
#ifndef P4REDUCE_OPERATION_H
#define P4REDUCE_OPERATION_H

#include "protocol/task.h"

enum { OPERATION_NAME_BYTES = 128 };

struct p4reduce_operation {
    // Set before it is submitted.
    p4reduce_engine *engine;
    char name[OPERATION_NAME_BYTES];
    double timeout;
    void (*on_end)(void *context, const p4reduce_error *error);
    void *context;
    struct task *task;                     // until the worker has it; engines without a worker keep it until the end
    p4reduce_operation *next_shard;        // the shards for other engines of the group, until they have them
    uint64_t number;                       // of the job's, as all ranks count them
    // Guarded by the engine's lock.
    p4reduce_operation *next_queued;       // in the inbox, or in `done`
    p4reduce_operation *prev_unreported, *next_unreported;
    bool ended;
    bool held;               // by its caller
    bool unreported;         // p4reduce_next_ended is to report it
    unsigned waiters;        // threads that wait for its end
    unsigned pending_shards; // that other engines of the group carry
    bool carried;            // this engine's own shard has ended
    p4reduce_error error;    // the first of any shard
    // Owned by who holds the progress lock.
    p4reduce_operation *prev, *next; // in flight
    unsigned parts;                  // in flight, where ranks share a stream
    bool all_parts;                  // there will be no more
};

// First in, first out.
struct operation_queue {
    p4reduce_operation *head, *tail;
};

static inline void operation_push(struct operation_queue *queue, p4reduce_operation *operation) {
    operation->next_queued = NULL;
    *(queue->tail ? &queue->tail->next_queued : &queue->head) = operation;
    queue->tail = operation;
}

// NULL if there is none.
static inline p4reduce_operation *operation_pop(struct operation_queue *queue) {
    p4reduce_operation *operation = queue->head;
    if (operation != NULL && (queue->head = operation->next_queued) == NULL)
        queue->tail = NULL;
    return operation;
}

#endif
