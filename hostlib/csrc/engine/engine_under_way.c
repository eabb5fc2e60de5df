// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_under_way.h"

#include "base/clock.h"

#include <stdlib.h>

void engine_keep_failure(p4reduce_engine *engine, const p4reduce_error *error) {
    if (engine->failure.status == P4REDUCE_OK)
        engine->failure = *error;
}

p4reduce_error engine_set_failure(p4reduce_engine *engine, const p4reduce_error *error) {
    pthread_mutex_lock(&engine->lock);
    engine_keep_failure(engine, error);
    const p4reduce_error failure = engine->failure;
    pthread_mutex_unlock(&engine->lock);
    return failure;
}

void engine_began(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    if (engine->oldest == NULL)
        engine->oldest_since = engine->busy_since = now;
    operation->newer = NULL;
    operation->older = engine->newest;
    *(engine->newest ? &engine->newest->newer : &engine->oldest) = operation;
    engine->newest = operation;
    engine->callbacks += operation->on_end != NULL;
}

// The operation has ended, wherever it was carried.
static void finish(p4reduce_operation *operation, const p4reduce_error *error) {
    p4reduce_engine *engine = operation->engine;
    const double now = clock_now();
    *(operation->older ? &operation->older->newer : &engine->oldest) = operation->newer;
    *(operation->newer ? &operation->newer->older : &engine->newest) = operation->older;
    if (operation->older == NULL)
        engine->oldest_since = now;
    if (engine->oldest == NULL)
        engine->seconds += now - engine->busy_since;
    engine->callbacks -= operation->on_end != NULL;

    void (*on_end)(void *, const p4reduce_error *) = operation->on_end;
    void *own_context = operation->context;
    p4reduce_error copy;
    if (error != NULL)
        copy = *error;
    pthread_mutex_lock(&engine->lock);
    if (error != NULL) {
        engine_keep_failure(engine, error); // before its caller learns of it, who may call again at once
        operation->error = *error;
    }
    operation->ended = true;
    if (operation->collected && operation->waiters == 0)
        pthread_cond_signal(&engine->untold);
    const bool forgotten = !operation->collected && !operation->held;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    if (forgotten)
        free(operation);
    if (on_end != NULL)
        on_end(own_context, error != NULL ? &copy : NULL);
}

// Notes that this engine has ended what it carries of an operation. Returns whether others of the team have yet to.
static bool waits_for_others(p4reduce_operation *operation, const p4reduce_error *error) {
    pthread_mutex_lock(&operation->engine->lock);
    operation->carried = true;
    if (error != NULL && operation->error.status == P4REDUCE_OK)
        operation->error = *error;
    const bool waits = operation->others > 0;
    pthread_mutex_unlock(&operation->engine->lock);
    return waits;
}

void engine_ended(void *context, const p4reduce_error *error) {
    p4reduce_operation *operation = context;
    if (operation->engine->team == NULL) {
        finish(operation, error);
    } else if (!waits_for_others(operation, error)) {
        const p4reduce_error first = operation->error; // maybe another's
        finish(operation, first.status != P4REDUCE_OK ? &first : NULL);
    }
}

void engine_finish_done(p4reduce_engine *engine) {
    p4reduce_operation *operation;
    while ((operation = operation_pop(&engine->done)) != NULL) {
        const p4reduce_error error = operation->error;
        pthread_mutex_unlock(&engine->lock);
        finish(operation, error.status != P4REDUCE_OK ? &error : NULL);
        pthread_mutex_lock(&engine->lock);
    }
}

void engine_answer(p4reduce_engine *engine, double now) {
    if (engine->answered == engine->asked)
        return;
    engine->take_snapshot(engine, now);
    engine->answered = engine->asked;
    pthread_cond_broadcast(&engine->changed);
}
