// SPDX-License-Identifier: Apache-2.0
#include "engine/pause.h"

#include "base/structures.h"

#include <stdio.h>

// Begins an operation. Returns false if it cannot be striped over the slots that there are now, and `error` says why.
// Then it is held back.
static bool begin(p4reduce_engine *engine, p4reduce_operation *operation, double now, p4reduce_error *error) {
    struct pause *pause = &engine->pause;
    if (pause->slots_now != 0 && !task_deal_anew(operation->task, pause->slots_now, error)) {
        pause->held_back = operation;
        return false;
    }
    pause->begun = operation->number + 1;
    if (engine->ops->begin != NULL)
        engine->ops->begin(engine, operation, now);
    return true;
}

bool pause_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now, p4reduce_error *error) {
    struct pause *pause = &engine->pause;
    if (!pause->paused || operation->number < pause->limit)
        return begin(engine, operation, now, error);
    if (pause->held_back == NULL)
        pause->held_back = operation;
    return true;
}

// Begins operations that were held back, up to the limit.
static bool begin_held_back(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct pause *pause = &engine->pause;
    bool well = true;
    while (well && pause->held_back != NULL && pause->held_back->number < pause->limit) {
        p4reduce_operation *operation = pause->held_back;
        pause->held_back = operation->next;
        well = begin(engine, operation, now, error);
    }
    return well;
}

bool pause_resume(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct pause *pause = &engine->pause;
    p4reduce_error refusal = {.size = sizeof refusal};
    pthread_mutex_lock(&engine->lock);
    const bool resumes = pause->resume_requested, refused = engine_failure(engine)->status != P4REDUCE_OK;
    const uint32_t slots = pause->slots, first_seq = pause->first_seq;
    if (resumes)
        pause->resume_requested = pause->paused = false;
    pthread_mutex_unlock(&engine->lock);
    if (!resumes || refused)
        return true;
    if (slots != 0 && p4reduce_worker_begin_anew(engine->worker, slots, first_seq, &refusal) != P4REDUCE_OK) {
        error_fill(error, P4REDUCE_FAILED, "the controller sent slots that the job cannot have: %.900s",
                   refusal.message);
        return false;
    }
    pause->slots_now = slots != 0 ? slots : pause->slots_now;
    pause->limit = UINT64_MAX;
    return begin_held_back(engine, now, error);
}

bool pause_start(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct pause *pause = &engine->pause;
    pthread_mutex_lock(&engine->lock);
    const bool pauses = pause->pause_requested && engine_failure(engine)->status == P4REDUCE_OK;
    if (pauses) {
        pause->since = pause->paused ? pause->since : now;
        pause->pause_requested = false;
        pause->paused = true;
        pause->limit = pause->pause_after > pause->begun ? pause->pause_after : pause->begun;
        pause->paused_by = pause->calls;
    }
    pthread_mutex_unlock(&engine->lock);
    return !pauses || begin_held_back(engine, now, error);
}

void pause_report(p4reduce_engine *engine) {
    struct pause *pause = &engine->pause;
    const bool quiet = engine->oldest == pause->held_back;
    // Only the driver writes these fields, so it reads them without the lock.
    if (pause->reported_call == pause->paused_by && pause->report.operations == pause->begun &&
        pause->report.quiet == quiet)
        return;
    const p4reduce_held report = {
        .size = sizeof report,
        .quiet = quiet,
        .operations = pause->begun,
        .first_seq = quiet ? p4reduce_worker_next_first_seq(engine->worker) : 0,
        .changes = pause->report.changes + 1,
    };
    pthread_mutex_lock(&engine->lock);
    pause->report = report;
    pause->reported_call = pause->paused_by;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

p4reduce_operation *pause_end(p4reduce_engine *engine) {
    struct pause *pause = &engine->pause;
    pthread_mutex_lock(&engine->lock);
    pause->paused = pause->resume_requested = false;
    pthread_mutex_unlock(&engine->lock);
    p4reduce_operation *first = pause->held_back;
    pause->held_back = NULL;
    return first;
}

bool pause_describe(const p4reduce_engine *engine, double now, char *text, size_t room) {
    const bool is_held_back = engine_oldest_is_held_back(engine);
    if (is_held_back)
        snprintf(text, room, "the controller has paused operations for %.1f s to change the job's slots",
                 now - engine->pause.since);
    return is_held_back;
}
