// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_holding.h"

#include "base/structures.h"
#include "intranode/host_leader.h"

#include <stdio.h>

// Gives an operation to the worker, or its host's leader. False where it cannot be dealt to the slots that there are now,
// and `error` says why; then it is held back.
static bool give(p4reduce_engine *engine, p4reduce_operation *operation, double now, p4reduce_error *error) {
    struct task *task = operation->task;
    if (!task_deal_anew(task, engine->worker->membership.slots, error)) {
        engine->holding.held_back = operation;
        return false;
    }
    engine->holding.begun = operation->number + 1;
    if (task->all_slots > atomic_load_explicit(&engine->most_slots, memory_order_relaxed))
        atomic_store(&engine->most_slots, task->all_slots);
    if (engine->host != NULL) {
        leader_begin(engine, operation);
        return true;
    }
    operation->task = NULL;
    engine->worker->counter = (uint32_t)operation->number;
    worker_submit(engine->worker, task, now);
    return true;
}

bool holding_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now, p4reduce_error *error) {
    struct holding *holding = &engine->holding;
    if (!holding->holds || operation->number < holding->limit)
        return give(engine, operation, now, error);
    if (holding->held_back == NULL)
        holding->held_back = operation;
    return true;
}

// Those held back up to the limit.
static bool give_more(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct holding *holding = &engine->holding;
    bool given = true;
    while (given && holding->held_back != NULL && holding->held_back->number < holding->limit) {
        p4reduce_operation *operation = holding->held_back;
        holding->held_back = operation->newer;
        given = give(engine, operation, now, error);
    }
    return given;
}

bool holding_go_on(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct holding *holding = &engine->holding;
    p4reduce_error refusal = {.size = sizeof refusal};
    pthread_mutex_lock(&engine->lock);
    const bool goes_on = holding->to_go_on, refused = engine_failure(engine)->status != P4REDUCE_OK;
    const uint32_t slots = holding->slots, first_seq = holding->first_seq;
    if (goes_on)
        holding->to_go_on = holding->holds = false;
    pthread_mutex_unlock(&engine->lock);
    if (!goes_on || refused)
        return true;
    if (slots != 0 && p4reduce_worker_begin_anew(engine->worker, slots, first_seq, &refusal) != P4REDUCE_OK) {
        error_fill(error, P4REDUCE_FAILED, "the controller sent slots that the job cannot have: %.900s",
                   refusal.message);
        return false;
    }
    holding->limit = UINT64_MAX;
    if (engine->host != NULL)
        leader_goes_on(engine);
    return give_more(engine, now, error);
}

bool holding_hold(p4reduce_engine *engine, double now, p4reduce_error *error) {
    struct holding *holding = &engine->holding;
    pthread_mutex_lock(&engine->lock);
    const bool holds = holding->to_hold && engine_failure(engine)->status == P4REDUCE_OK;
    if (holds) {
        holding->since = holding->holds ? holding->since : now;
        holding->to_hold = false;
        holding->holds = true;
        holding->limit = holding->wanted > holding->begun ? holding->wanted : holding->begun;
        holding->telling = holding->number;
    }
    pthread_mutex_unlock(&engine->lock);
    return !holds || give_more(engine, now, error);
}

void holding_tell(p4reduce_engine *engine) {
    struct holding *holding = &engine->holding;
    const bool quiet = engine->oldest == holding->held_back;
    // The driver alone writes to these.
    if (holding->answered == holding->telling && holding->told.operations == holding->begun &&
        holding->told.quiet == quiet)
        return;
    const p4reduce_held told = {
        .size = sizeof told,
        .quiet = quiet,
        .operations = holding->begun,
        .first_seq = quiet ? p4reduce_worker_next_first_seq(engine->worker) : 0,
        .changes = holding->told.changes + 1,
    };
    pthread_mutex_lock(&engine->lock);
    holding->told = told;
    holding->answered = holding->telling;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

void holding_end(p4reduce_engine *engine) {
    struct holding *holding = &engine->holding;
    pthread_mutex_lock(&engine->lock);
    holding->holds = holding->to_go_on = false;
    pthread_mutex_unlock(&engine->lock);
    p4reduce_operation *operation = holding->held_back;
    holding->held_back = NULL;
    while (operation != NULL && engine->host == NULL) {
        struct task *task = operation->task;
        operation->task = NULL;
        operation = operation->newer;
        worker_submit(engine->worker, task, 0);
    }
}

bool holding_awaits(const p4reduce_engine *engine, double now, char *text, size_t room) {
    const bool awaits = engine_oldest_is_held_back(engine);
    if (awaits)
        snprintf(text, room, "the controller has paused operations for %.1f s to change the job's slots",
                 now - engine->holding.since);
    return awaits;
}
