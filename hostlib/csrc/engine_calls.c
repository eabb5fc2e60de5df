// SPDX-License-Identifier: Apache-2.0
// What any thread may ask of an engine.
#include "engine_thread.h"

#include "clock.h"
#include "local_thread.h"
#include "structures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const double DEFAULT_TIMEOUT_S = 1800;

// Under the lock: makes the thread look for news.
static void wake(p4reduce_engine *engine) {
    if (engine->wake < 0)
        return; // closed
    atomic_store(&engine->news, true);
    const uint64_t one = 1;
    ssize_t written = write(engine->wake, &one, sizeof one);
    (void)written; // it fails only where the thread is to wake up anyway
}

static bool in_thread(const p4reduce_engine *engine) {
    return pthread_equal(pthread_self(), engine->thread);
}

// Under the lock.
static const p4reduce_error *failure_of(const p4reduce_engine *engine) {
    return engine->failure.status != P4REDUCE_OK ? &engine->failure : &engine->outside;
}

p4reduce_status p4reduce_submit(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_operation **handle,
                                p4reduce_error *error) {
    p4reduce_error refusal;
    struct task *task = task_new(&engine->membership, request, &refusal);
    if (task == NULL)
        return error_out(error, &refusal);
    p4reduce_operation *operation = calloc(1, sizeof *operation);
    if (operation == NULL) {
        task_free(task);
        return error_tell(error, P4REDUCE_NO_MEMORY, "no memory for an operation");
    }
    const p4reduce_request *taken = &task->request;
    operation->engine = engine;
    operation->task = task;
    operation->timeout = taken->timeout > 0 ? taken->timeout : DEFAULT_TIMEOUT_S;
    operation->on_end = taken->on_end;
    operation->context = taken->context;
    operation->held = handle != NULL;
    operation->collected = handle == NULL && taken->on_end == NULL;
    if (taken->name != NULL)
        snprintf(operation->name, sizeof operation->name, "%s", taken->name);
    else
        snprintf(operation->name, sizeof operation->name, "allreduce (%s) of %" PRIu64 " %s", task->reduce_op,
                 taken->count, task->dtype);
    task->request.name = NULL;
    task->request.on_end = engine_ended;
    task->request.context = operation;

    pthread_mutex_lock(&engine->lock);
    if (failure_of(engine)->status != P4REDUCE_OK) {
        p4reduce_status status = error_out(error, failure_of(engine));
        pthread_mutex_unlock(&engine->lock);
        task_free(task);
        free(operation);
        return status;
    }
    operation_push(&engine->inbox, operation);
    if (handle != NULL)
        *handle = operation;
    wake(engine);
    pthread_mutex_unlock(&engine->lock);
    return P4REDUCE_OK;
}

// Under the lock: waits until something has changed, or `deadline` (infinite for none) is over. False when it is.
static bool wait_for_change(p4reduce_engine *engine, double deadline) {
    if (isinf(deadline))
        return pthread_cond_wait(&engine->changed, &engine->lock) == 0;
    if (clock_now() >= deadline)
        return false;
    const struct timespec time = as_timespec(deadline);
    return pthread_cond_timedwait(&engine->changed, &engine->lock, &time) == 0;
}

static double deadline_of(double timeout) {
    return timeout < 0 ? (double)INFINITY : clock_now() + timeout;
}

p4reduce_status p4reduce_wait(p4reduce_operation *operation, double timeout, p4reduce_error *error) {
    p4reduce_engine *engine = operation->engine;
    const double deadline = deadline_of(timeout);
    pthread_mutex_lock(&engine->lock);
    while (!operation->ended && wait_for_change(engine, deadline))
        ;
    p4reduce_status status;
    if (operation->ended)
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
    const bool last = operation->ended;
    pthread_mutex_unlock(&engine->lock);
    if (last)
        free(operation);
}

p4reduce_status p4reduce_allreduce(p4reduce_engine *engine, const p4reduce_request *request, p4reduce_error *error) {
    p4reduce_operation *operation;
    p4reduce_status status = p4reduce_submit(engine, request, &operation, error);
    if (status == P4REDUCE_OK) {
        status = p4reduce_wait(operation, -1, error);
        p4reduce_release(operation);
    }
    return status;
}

void *p4reduce_next_ended(p4reduce_engine *engine, double timeout, p4reduce_error *error) {
    const double deadline = deadline_of(timeout);
    void *context = NULL;
    pthread_mutex_lock(&engine->lock);
    while (engine->told.first == NULL && !engine->stopped && wait_for_change(engine, deadline))
        ;
    p4reduce_operation *operation = operation_pop(&engine->told);
    if (operation != NULL) {
        context = operation->context;
        error_out(error, &operation->error);
        free(operation);
    } else {
        error_tell(error, engine->stopped ? P4REDUCE_CLOSED : P4REDUCE_TIMEOUT, "%s", "");
    }
    pthread_mutex_unlock(&engine->lock);
    return context;
}

static void fail_with(p4reduce_engine *engine, const p4reduce_error *error, bool close) {
    pthread_mutex_lock(&engine->lock);
    if (engine->outside.status == P4REDUCE_OK)
        engine->outside = *error;
    engine->closing |= close;
    wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

void p4reduce_fail(p4reduce_engine *engine, const char *message) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_FAILED, "%s", message);
    fail_with(engine, &error, false);
}

void p4reduce_counted(p4reduce_engine *engine, uint32_t half, uint32_t seq, const char *message) {
    pthread_mutex_lock(&engine->lock);
    engine->told_of = (struct counted){.news = true, .half = half, .seq = seq};
    snprintf(engine->told_of.message, sizeof engine->told_of.message, "%s", message);
    wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

p4reduce_status p4reduce_failure(p4reduce_engine *engine, p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    p4reduce_status status = error_out(error, failure_of(engine));
    pthread_mutex_unlock(&engine->lock);
    return status;
}

// What the engine's thread knows at this moment; once it has stopped, what it knew last.
static struct snapshot ask(p4reduce_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (in_thread(engine)) {
        if (engine->local != NULL)
            local_take_snapshot(engine, clock_now());
        else
            engine_take_snapshot(engine, clock_now());
    } else if (!engine->stopped) {
        const unsigned number = ++engine->asked;
        wake(engine);
        while ((int)(engine->answered - number) < 0 && !engine->stopped)
            wait_for_change(engine, (double)INFINITY);
    }
    struct snapshot snapshot = engine->snapshot;
    pthread_mutex_unlock(&engine->lock);
    return snapshot;
}

int32_t p4reduce_unanswered(p4reduce_engine *engine) {
    return ask(engine).unanswered;
}

void p4reduce_progress(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", ask(engine).progress);
}

void p4reduce_describe(p4reduce_engine *engine, char *text, size_t room) {
    snprintf(text, room, "%s", ask(engine).link);
}

void p4reduce_get_stats(p4reduce_engine *engine, p4reduce_stats *stats) {
    const struct snapshot snapshot = ask(engine);
    structure_out(stats, &snapshot.stats, sizeof snapshot.stats);
}

void p4reduce_close(p4reduce_engine *engine) {
    p4reduce_error error;
    error_fill(&error, P4REDUCE_CLOSED, "the engine is closed");
    fail_with(engine, &error, true);
    pthread_mutex_lock(&engine->lock);
    while (!engine->stopped)
        wait_for_change(engine, (double)INFINITY);
    const bool join = !engine->joined;
    engine->joined = true;
    pthread_mutex_unlock(&engine->lock);
    if (!join)
        return;
    pthread_join(engine->thread, NULL);
    pthread_mutex_lock(&engine->lock);
    if (engine->link != NULL)
        engine->link->free(engine->link); // the socket is the caller's again
    engine->link = NULL;
    close(engine->wake);
    engine->wake = -1;
    pthread_mutex_unlock(&engine->lock);
}
