// SPDX-License-Identifier: Apache-2.0
#include "engine/inflight.h"

#include "base/clock.h"
#include "base/structures.h"
#include "engine/pause.h"
#include "engine/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const double DEFAULT_TIMEOUT_S = 1800;

p4reduce_operation *operation_new(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error) {
    struct task *task = task_new(&engine->membership, request, engine->ops->in_packets, error);
    if (task == NULL)
        return NULL;
    p4reduce_operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL) {
        task_free(task);
        error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation");
        return NULL;
    }
    p4reduce_request *taken = &task->request;
    operation->engine = engine;
    operation->task = task;
    operation->timeout = taken->timeout > 0 ? taken->timeout : DEFAULT_TIMEOUT_S;
    operation->on_end = taken->on_end;
    operation->context = taken->context;
    if (taken->name != NULL)
        snprintf(operation->name, sizeof operation->name, "%s", taken->name);
    else
        snprintf(operation->name, sizeof operation->name, "allreduce (%s) of %" PRIu64 " %s", task->reduce_op,
                 taken->count, task->dtype);
    taken->name = NULL;
    taken->on_end = engine_ended;
    taken->context = operation;
    return operation;
}

void operation_free(p4reduce_operation *operation) {
    if (operation == NULL)
        return;
    operation_free(operation->next_shard);
    task_free(operation->task);
    free(operation);
}

// Under the lock: sets the failure, unless there is an earlier one.
static void keep_failure(p4reduce_engine *engine, const p4reduce_error *error) {
    if (engine->failure.status == P4REDUCE_OK)
        engine->failure = *error;
}

p4reduce_error engine_set_failure(p4reduce_engine *engine, const p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    keep_failure(engine, error);
    const p4reduce_error failure = engine->failure;
    pthread_mutex_unlock(&engine->lock);
    return failure;
}

// Adds the newest operation in flight. By the driver, like the next function.
static void append_inflight(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    if (engine->oldest == NULL)
        engine->oldest_since = engine->busy_since = now;
    operation->next = NULL;
    operation->prev = engine->newest;
    *(engine->newest ? &engine->newest->next : &engine->oldest) = operation;
    engine->newest = operation;
    engine->callbacks += operation->on_end != NULL;
}

// Removes an operation that ends. The time limit of the next oldest counts from now on.
static void remove_inflight(p4reduce_engine *engine, const p4reduce_operation *operation) {
    const double now = clock_now();
    *(operation->prev ? &operation->prev->next : &engine->oldest) = operation->next;
    *(operation->next ? &operation->next->prev : &engine->newest) = operation->prev;
    if (operation->prev == NULL)
        engine->oldest_since = now;
    if (engine->oldest == NULL)
        engine->seconds += now - engine->busy_since;
    engine->callbacks -= operation->on_end != NULL;
}

// Under the lock: ends an operation whose shards have all ended. Releases the lock while it calls a callback.
static void finish(p4reduce_engine *engine, p4reduce_operation *operation) {
    void (*on_end)(void *, const p4reduce_error *) = operation->on_end;
    void *context = operation->context;
    const bool well = operation->error.status == P4REDUCE_OK;
    p4reduce_error error;
    if (!well) {
        error = operation->error;
        keep_failure(engine, &error); // before its caller learns of the error, and may submit again at once
    }
    remove_inflight(engine, operation);
    operation->ended = true;
    if (operation->unreported && operation->waiters == 0)
        pthread_cond_signal(&engine->reportable);
    pthread_cond_broadcast(&engine->changed);
    if (!operation->unreported && !operation->has_handle)
        free(operation);
    if (on_end == NULL)
        return;
    pthread_mutex_unlock(&engine->lock);
    on_end(context, well ? NULL : &error);
    pthread_mutex_lock(&engine->lock);
}

void engine_ended(void *context, const p4reduce_error *error) {
    p4reduce_operation *operation = context;
    p4reduce_engine *engine = operation->engine;
    pthread_mutex_lock(&engine->lock);
    if (error != NULL && operation->error.status == P4REDUCE_OK)
        operation->error = *error;
    operation->own_shard_ended = true;
    if (operation->pending_shards == 0)
        finish(engine, operation);
    pthread_mutex_unlock(&engine->lock);
}

// Under the lock: ends the operations whose last shards other engines have completed.
static void finish_done(p4reduce_engine *engine) {
    p4reduce_operation *operation;
    while ((operation = operation_pop(&engine->done)) != NULL)
        finish(engine, operation);
}

void engine_take_snapshot(p4reduce_engine *engine, double now, struct snapshot *snapshot) {
    *snapshot = (struct snapshot){.unanswered = -1};
    engine->ops->snapshot(engine, now, snapshot);
    snapshot->stats.seconds = engine->seconds + (engine->oldest != NULL ? now - engine->busy_since : 0);
}

// Under the lock: answers the threads that have asked for a snapshot.
static void answer_queries(p4reduce_engine *engine, double now) {
    if (engine->answered == engine->asked)
        return;
    engine_take_snapshot(engine, now, &engine->snapshot);
    engine->answered = engine->asked;
    pthread_cond_broadcast(&engine->changed);
}

// Under the lock: takes the next operation out of the inbox. Only the engine's thread calls callbacks, so no other
// thread begins an operation that has one.
static p4reduce_operation *next_of_inbox(p4reduce_engine *engine) {
    const p4reduce_operation *first = engine->inbox.head;
    if (first != NULL && first->on_end != NULL && engine->progress.by_waiter) {
        engine->progress.callback_pending = true;
        return NULL;
    }
    return operation_pop(&engine->inbox);
}

// Resumes and pauses operations, as the controller has asked.
static void handle_pause_requests(p4reduce_engine *engine, double now) {
    p4reduce_error error;
    if (!pause_resume(engine, now, &error) || !pause_start(engine, now, &error))
        engine->ops->fail(engine, &error);
}

void engine_handle_requests(p4reduce_engine *engine, double now) {
    pthread_mutex_lock(&engine->lock);
    progress_clear_requests(engine);
    if (engine->pause.resume_requested || engine->pause.pause_requested) {
        pthread_mutex_unlock(&engine->lock);
        handle_pause_requests(engine, now);
        pthread_mutex_lock(&engine->lock);
    }
    struct driver_call *call = engine->call;
    if (call != NULL) {
        pthread_mutex_unlock(&engine->lock);
        call->run(engine, now, call);
        pthread_mutex_lock(&engine->lock);
        call->done = true;
        engine->call = NULL;
        pthread_cond_broadcast(&engine->changed);
    }
    // The controller has read this round from the switch. No rank can be in it until this rank has sent the
    // round before.
    const struct counted *counted = &engine->counted_by_switch;
    if (counted->pending && engine->external_failure.status == P4REDUCE_OK &&
        p4reduce_worker_is_impossible(engine->worker, counted->half, counted->seq))
        error_fill(&engine->external_failure, P4REDUCE_MISMATCH, "%s", counted->message);
    engine->counted_by_switch.pending = false;
    finish_done(engine);
    p4reduce_operation *operation;
    p4reduce_error error;
    while ((operation = next_of_inbox(engine)) != NULL) {
        pthread_mutex_unlock(&engine->lock);
        append_inflight(engine, operation, now);
        if (!pause_begin(engine, operation, now, &error))
            engine->ops->fail(engine, &error);
        pthread_mutex_lock(&engine->lock);
    }
    engine->must_stop = engine->closing;
    if (engine_failure(engine)->status != P4REDUCE_OK) {
        error = *engine_failure(engine);
        pthread_mutex_unlock(&engine->lock);
        engine->ops->fail(engine, &error);
        pthread_mutex_lock(&engine->lock);
    }
    answer_queries(engine, now);
    pthread_mutex_unlock(&engine->lock);
}

bool engine_check_time_limit(p4reduce_engine *engine, double now) {
    const p4reduce_operation *oldest = engine->oldest;
    if (oldest == NULL || now - engine->oldest_since < oldest->timeout)
        return true;
    struct snapshot wait;
    engine_take_snapshot(engine, now, &wait);
    if (engine->ops->add_shards != NULL)
        engine->ops->add_shards(engine, &wait);
    p4reduce_error error;
    error_fill(&error, P4REDUCE_TIMEOUT, "%s did not end within %g s: %s", oldest->name, oldest->timeout,
               wait.progress);
    memcpy(error.awaited, wait.awaited, sizeof error.awaited);
    engine->ops->fail(engine, &error);
    return false;
}
