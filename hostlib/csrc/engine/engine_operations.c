// SPDX-License-Identifier: Apache-2.0
// Submitting operations and waiting for their ends, in any thread.
#include "engine/engine_driving.h"
#include "engine/engine_team.h"
#include "engine/engine_turns.h"

#include "base/clock.h"
#include "base/structures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const double DEFAULT_TIMEOUT_S = 1800;

// Submitting.

// NULL where there is none, and `error` says why.
static p4reduce_operation *make(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error) {
    const bool in_packets = engine->local == NULL && engine->host == NULL;
    struct task *task = task_new(&engine->membership, request, in_packets, error);
    if (task == NULL)
        return NULL;
    p4reduce_operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL) {
        task_free(task);
        error_fill(error, P4REDUCE_NO_MEMORY, "no memory for an operation");
        return NULL;
    }
    const p4reduce_request *taken = &task->request;
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
    task->request.name = NULL;
    task->request.on_end = engine_ended;
    task->request.context = operation;
    if (team_share(operation, request, error))
        return operation;
    task_free(task);
    free(operation);
    return NULL;
}

// Under the lock: it is among those that p4reduce_next_ended is to tell of.
static void list(p4reduce_engine *engine, p4reduce_operation *operation) {
    operation->collected = true;
    operation->sooner = engine->latest;
    *(engine->latest ? &engine->latest->later : &engine->soonest) = operation;
    engine->latest = operation;
}

// Under the lock: it has ended, and is no longer among them.
static void unlist(p4reduce_engine *engine, p4reduce_operation *operation) {
    *(operation->sooner ? &operation->sooner->later : &engine->soonest) = operation->later;
    *(operation->later ? &operation->later->sooner : &engine->latest) = operation->sooner;
    operation->collected = false;
}

// Under the lock: frees an operation that nobody will ask for any more.
static void let_go(p4reduce_operation *operation) {
    if (operation->ended && !operation->held && !operation->collected && operation->waiters == 0)
        free(operation);
}

// Takes the lock. Without it where the engine takes no operations, which then is gone, and `error` says why.
static bool enter(p4reduce_engine *engine, p4reduce_operation *operation, p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    if (engine_failure(engine)->status == P4REDUCE_OK) {
        operation->number = engine->numbered++;
        operation_push(&engine->inbox, operation);
        team_begin(operation);
        return true;
    }
    *error = *engine_failure(engine);
    pthread_mutex_unlock(&engine->lock);
    team_forget(operation);
    task_free(operation->task);
    free(operation);
    return false;
}

p4reduce_status p4reduce_submit(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_operation **handle,
                                p4reduce_error *error) {
    p4reduce_error refusal;
    p4reduce_operation *operation = make(engine, request, &refusal);
    if (operation == NULL || !enter(engine, operation, &refusal))
        return error_out(error, &refusal);
    operation->held = handle != NULL;
    if (handle != NULL)
        *handle = operation;
    else if (operation->on_end == NULL)
        list(engine, operation);
    driving_wake(engine);
    pthread_mutex_unlock(&engine->lock);
    return P4REDUCE_OK;
}

// Waiting.

static double deadline_of(double timeout) {
    return timeout < 0 ? (double)INFINITY : clock_now() + timeout;
}

// Under the lock: waits until something has happened, or `deadline` (infinite for none) is over. False when it is.
static bool wait_for(p4reduce_engine *engine, pthread_cond_t *what, double deadline) {
    if (isinf(deadline))
        return pthread_cond_wait(what, &engine->lock) == 0;
    if (clock_now() >= deadline)
        return false;
    const struct timespec time = as_timespec(deadline);
    return pthread_cond_timedwait(what, &engine->lock, &time) == 0;
}

// Under the lock, by who has begun to drive: does, until the operation has ended or `deadline` is over.
static void carry(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline) {
    pthread_mutex_unlock(&engine->lock);
    driving_carry(engine, operation, deadline);
    pthread_mutex_lock(&engine->lock);
    driving_leave(engine);
}

// Under the lock: waits until the operation has ended, and carries it where nobody else does. False when `deadline` is
// over before. The operation stays for as long as it is held, collected or waited for.
static bool wait_for_end(p4reduce_engine *engine, p4reduce_operation *operation, double deadline) {
    bool patient = true;
    while (!operation->ended && patient) {
        if (driving_take(engine)) {
            carry(engine, operation, deadline);
            patient = clock_now() < deadline;
        } else {
            patient = wait_for(engine, &engine->changed, deadline);
        }
    }
    return operation->ended;
}

// The same of an operation that has just been submitted: where nobody drives, nobody needs to be woken up for it.
static bool begin_and_wait(p4reduce_engine *engine, p4reduce_operation *operation, double deadline) {
    if (driving_take(engine)) {
        atomic_store(&engine->news, true);
        carry(engine, operation, deadline);
    } else {
        driving_wake(engine);
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
        status = error_tell(error, P4REDUCE_TIMEOUT, "%s", "");
    pthread_mutex_unlock(&engine->lock);
    return status;
}

void p4reduce_release(p4reduce_operation *operation) {
    p4reduce_engine *engine = operation->engine;
    pthread_mutex_lock(&engine->lock);
    operation->held = false;
    let_go(operation);
    pthread_mutex_unlock(&engine->lock);
}

p4reduce_status p4reduce_allreduce(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error) {
    p4reduce_error refusal;
    p4reduce_operation *operation = make(engine, request, &refusal);
    if (operation == NULL || !enter(engine, operation, &refusal))
        return error_out(error, &refusal);
    operation->held = true;
    begin_and_wait(engine, operation, (double)INFINITY);
    const p4reduce_status status = error_out(error, &operation->error);
    operation->held = false;
    let_go(operation);
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// Operations that have neither a handle nor a callback.

// Under the lock: the one with this context that p4reduce_next_ended has yet to tell of; NULL if there is none.
static p4reduce_operation *find(const p4reduce_engine *engine, const void *context) {
    p4reduce_operation *operation = engine->latest;
    while (operation != NULL && operation->context != context)
        operation = operation->sooner;
    return operation;
}

p4reduce_status p4reduce_run(p4reduce_engine *engine, const p4reduce_request *request, double timeout, int *ended,
                             p4reduce_error *error) {
    *ended = 0;
    p4reduce_error refusal;
    const double deadline = deadline_of(timeout);
    p4reduce_operation *operation = make(engine, request, &refusal);
    if (operation == NULL || !enter(engine, operation, &refusal))
        return error_out(error, &refusal);
    list(engine, operation);
    operation->waiters++;
    *ended = begin_and_wait(engine, operation, deadline);
    operation->waiters--;
    if (*ended)
        error_out(error, &operation->error);
    let_go(operation);
    pthread_mutex_unlock(&engine->lock);
    return P4REDUCE_OK;
}

int p4reduce_await(p4reduce_engine *engine, const void *context, double timeout, p4reduce_error *error) {
    int ended = -1;
    const double deadline = deadline_of(timeout);
    pthread_mutex_lock(&engine->lock);
    p4reduce_operation *operation = find(engine, context);
    if (operation != NULL) {
        operation->waiters++;
        ended = wait_for_end(engine, operation, deadline);
        operation->waiters--;
        if (ended)
            error_out(error, &operation->error);
        let_go(operation);
    }
    pthread_mutex_unlock(&engine->lock);
    return ended;
}

void p4reduce_forget(p4reduce_engine *engine, const void *context) {
    pthread_mutex_lock(&engine->lock);
    p4reduce_operation *operation = find(engine, context);
    if (operation != NULL && operation->ended) {
        unlist(engine, operation);
        let_go(operation);
    }
    pthread_mutex_unlock(&engine->lock);
}

static p4reduce_operation *first_ended(const p4reduce_engine *engine) {
    p4reduce_operation *operation = engine->soonest;
    while (operation != NULL && !operation->ended)
        operation = operation->later;
    return operation;
}

void *p4reduce_next_ended(p4reduce_engine *engine, double timeout, p4reduce_error *error) {
    const double deadline = deadline_of(timeout);
    void *context = NULL;
    pthread_mutex_lock(&engine->lock);
    p4reduce_operation *operation = first_ended(engine);
    while (operation == NULL && !engine->stopped && wait_for(engine, &engine->untold, deadline))
        operation = first_ended(engine);
    if (operation != NULL) {
        context = operation->context;
        error_out(error, &operation->error);
        unlist(engine, operation);
        let_go(operation);
    } else {
        error_tell(error, engine->stopped ? P4REDUCE_CLOSED : P4REDUCE_TIMEOUT, "%s", "");
    }
    pthread_mutex_unlock(&engine->lock);
    return context;
}
