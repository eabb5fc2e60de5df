// SPDX-License-Identifier: Apache-2.0
// Submitting operations and waiting for their ends, in any thread.
#include "engine/inflight.h"
#include "engine/progress.h"

#include "base/clock.h"
#include "base/structures.h"

#include <stdlib.h>

// Submitting.

// Under the lock: lists the operation, so that p4reduce_next_ended reports it.
static void add_unreported(p4reduce_engine *engine, p4reduce_operation *operation) {
    p4reduce_operation *tail = engine->unreported.tail;
    operation->unreported = true;
    operation->prev_unreported = tail;
    *(tail ? &tail->next_unreported : &engine->unreported.head) = operation;
    engine->unreported.tail = operation;
}

// Under the lock: takes an operation that has ended off that list.
static void remove_unreported(p4reduce_engine *engine, p4reduce_operation *operation) {
    p4reduce_operation *prev = operation->prev_unreported, *next = operation->next_unreported;
    *(prev ? &prev->next_unreported : &engine->unreported.head) = next;
    *(next ? &next->prev_unreported : &engine->unreported.tail) = prev;
    operation->unreported = false;
}

// Under the lock: frees an operation that no thread needs any more.
static void free_if_unused(p4reduce_operation *operation) {
    if (operation->ended && !operation->has_handle && !operation->unreported && operation->waiters == 0)
        free(operation);
}

// Under the lock of the first engine: gives other engines of the group their shards of an operation. It takes one of
// their locks at a time, in the lock order.
static void hand_out_shards(p4reduce_operation *operation) {
    p4reduce_operation *shard;
    while ((shard = operation->next_shard) != NULL) {
        operation->next_shard = shard->next_shard;
        shard->next_shard = NULL;
        shard->number = operation->number;
        operation->pending_shards++;
        pthread_mutex_lock(&shard->engine->lock);
        operation_push(&shard->engine->inbox, shard);
        progress_wake(shard->engine);
        pthread_mutex_unlock(&shard->engine->lock);
    }
}

// Puts a new operation into the inbox. Returns P4REDUCE_OK with the lock held; otherwise without it, and `error` says
// why.
static p4reduce_status enqueue(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_operation **enqueued,
                               p4reduce_error *error) {
    p4reduce_error refusal;
    p4reduce_operation *operation = operation_new(engine, request, &refusal);
    if (operation == NULL)
        return error_out(error, &refusal);
    if (engine->ops->split != NULL && !engine->ops->split(operation, request, &refusal))
        goto refused;
    pthread_mutex_lock(&engine->lock);
    if (engine_failure(engine)->status == P4REDUCE_OK) {
        operation->number = engine->numbered++;
        operation_push(&engine->inbox, operation);
        hand_out_shards(operation);
        *enqueued = operation;
        return P4REDUCE_OK;
    }
    refusal = *engine_failure(engine);
    pthread_mutex_unlock(&engine->lock);

refused:
    operation_free(operation);
    return error_out(error, &refusal);
}

p4reduce_status p4reduce_submit(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_operation **handle,
                                p4reduce_error *error) {
    p4reduce_operation *operation;
    const p4reduce_status refused = enqueue(engine, request, &operation, error);
    if (refused)
        return refused;
    operation->has_handle = handle != NULL;
    if (handle != NULL)
        *handle = operation;
    else if (operation->on_end == NULL)
        add_unreported(engine, operation);
    progress_wake(engine);
    pthread_mutex_unlock(&engine->lock);
    return P4REDUCE_OK;
}

// Waiting.

static double deadline_of(double timeout) {
    return timeout < 0 ? (double)INFINITY : clock_now() + timeout;
}

// Under the lock: waits for a signal of `what`. Returns false if `deadline` (infinite for none) is over.
static bool wait_for(p4reduce_engine *engine, pthread_cond_t *what, double deadline) {
    if (isinf(deadline))
        return pthread_cond_wait(what, &engine->lock) == 0;
    if (clock_now() >= deadline)
        return false;
    const struct timespec time = as_timespec(deadline);
    return pthread_cond_timedwait(what, &engine->lock, &time) == 0;
}

// Under the lock, for a thread that has taken the progress lock: makes progress until the operation has ended or
// `deadline` is over, and releases the progress lock. It releases the engine's lock meanwhile.
static void make_progress(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline) {
    pthread_mutex_unlock(&engine->lock);
    progress_until(engine, operation, deadline);
    pthread_mutex_lock(&engine->lock);
    progress_release(engine);
}

// Under the lock: waits until the operation has ended, and makes progress itself if the progress lock is free. Returns
// false if `deadline` is over before. The operation is not freed while it has a handle, is unreported or waited for.
static bool wait_for_end(p4reduce_engine *engine, p4reduce_operation *operation, double deadline) {
    bool timed_out = false;
    while (!operation->ended && !timed_out) {
        if (progress_try_acquire(engine)) {
            make_progress(engine, operation, deadline);
            timed_out = clock_now() >= deadline;
        } else {
            timed_out = !wait_for(engine, &engine->changed, deadline);
        }
    }
    return operation->ended;
}

// The same for an operation that has just been submitted: if the progress lock is free, no thread is woken up for it.
static bool begin_and_wait(p4reduce_engine *engine, p4reduce_operation *operation, double deadline) {
    if (progress_try_acquire(engine)) {
        atomic_store(&engine->requests_pending, true); // for this thread's own turn, which takes it from the inbox
        make_progress(engine, operation, deadline);
    } else {
        progress_wake(engine);
    }
    return wait_for_end(engine, operation, deadline);
}

p4reduce_status p4reduce_wait(p4reduce_operation *operation, double timeout, p4reduce_error *error) {
    p4reduce_engine *engine = operation->engine;
    const double deadline = deadline_of(timeout);
    pthread_mutex_lock(&engine->lock);
    p4reduce_status status;
    if (wait_for_end(engine, operation, deadline))
        status = error_out(error, &operation->error);
    else
        status = error_tell(error, P4REDUCE_TIMEOUT, "%s", ""); // without a message, as p4reduce.h says
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void p4reduce_release(p4reduce_operation *operation) {
    p4reduce_engine *engine = operation->engine;
    pthread_mutex_lock(&engine->lock);
    operation->has_handle = false;
    free_if_unused(operation);
    pthread_mutex_unlock(&engine->lock);
}

p4reduce_status p4reduce_allreduce(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error) {
    p4reduce_operation *operation;
    const p4reduce_status refused = enqueue(engine, request, &operation, error);
    if (refused)
        return refused;
    operation->has_handle = true;
    begin_and_wait(engine, operation, (double)INFINITY);
    const p4reduce_status status = error_out(error, &operation->error);
    operation->has_handle = false;
    free_if_unused(operation);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// Operations that have neither a handle nor a callback.

// Under the lock: returns the last unreported operation with this context; NULL if there is none.
static p4reduce_operation *find_unreported(const p4reduce_engine *engine, const void *context) {
    p4reduce_operation *operation = engine->unreported.tail;
    while (operation != NULL && operation->context != context)
        operation = operation->prev_unreported;
    return operation;
}

p4reduce_status p4reduce_run(p4reduce_engine *engine, const p4reduce_request *request, double timeout, int *ended,
                             p4reduce_error *error) {
    *ended = 0;
    const double deadline = deadline_of(timeout);
    p4reduce_operation *operation;
    const p4reduce_status refused = enqueue(engine, request, &operation, error);
    if (refused)
        return refused;
    add_unreported(engine, operation);
    operation->waiters++;
    *ended = begin_and_wait(engine, operation, deadline);
    operation->waiters--;
    if (*ended)
        error_out(error, &operation->error);
    free_if_unused(operation); // it stays until p4reduce_next_ended reports it, or p4reduce_forget drops it
    pthread_mutex_unlock(&engine->lock);
    return P4REDUCE_OK;
}

int p4reduce_await(p4reduce_engine *engine, const void *context, double timeout, p4reduce_error *error) {
    int ended = -1;
    const double deadline = deadline_of(timeout);
    pthread_mutex_lock(&engine->lock);
    p4reduce_operation *operation = find_unreported(engine, context);
    if (operation != NULL) {
        operation->waiters++;
        ended = wait_for_end(engine, operation, deadline);
        operation->waiters--;
        if (ended)
            error_out(error, &operation->error);
        free_if_unused(operation);
    }
    pthread_mutex_unlock(&engine->lock);
    return ended;
}

void p4reduce_forget(p4reduce_engine *engine, const void *context) {
    pthread_mutex_lock(&engine->lock);
    p4reduce_operation *operation = find_unreported(engine, context);
    if (operation != NULL && operation->ended) {
        remove_unreported(engine, operation);
        free_if_unused(operation);
    }
    pthread_mutex_unlock(&engine->lock);
}

// Under the lock: returns the first unreported operation that has ended; NULL if there is none.
static p4reduce_operation *first_unreported_ended(const p4reduce_engine *engine) {
    p4reduce_operation *operation = engine->unreported.head;
    while (operation != NULL && !operation->ended)
        operation = operation->next_unreported;
    return operation;
}

void *p4reduce_next_ended(p4reduce_engine *engine, double timeout, p4reduce_error *error) {
    const double deadline = deadline_of(timeout);
    void *context = NULL;
    pthread_mutex_lock(&engine->lock);
    p4reduce_operation *operation = first_unreported_ended(engine);
    while (operation == NULL && !engine->stopped && wait_for(engine, &engine->reportable, deadline))
        operation = first_unreported_ended(engine);
    if (operation != NULL) {
        context = operation->context;
        error_out(error, &operation->error);
        remove_unreported(engine, operation);
        free_if_unused(operation);
    } else {
        error_tell(error, engine->stopped ? P4REDUCE_CLOSED : P4REDUCE_TIMEOUT, "%s", "");
    }
    pthread_mutex_unlock(&engine->lock);
    return context;
}
