// SPDX-License-Identifier: Apache-2.0
#include "engine_holding.h"

#include "clock.h"
#include "engine_driving.h"
#include "engine_turns.h"
#include "host.h"
#include "host_leader.h"
#include "structures.h"

#include <inttypes.h>
#include <stdio.h>

// For any thread.

uint64_t p4reduce_hold(p4reduce_engine *engine, uint64_t operations) {
    if (engine->worker == NULL || engine->team != NULL)
        return 0;
    struct holding *holding = &engine->holding;
    pthread_mutex_lock(&engine->lock);
    const uint64_t number = ++holding->number;
    holding->to_hold = true;
    holding->wanted = operations;
    driving_wake(engine);
    pthread_cond_broadcast(&engine->changed); // for who waits for an earlier one
    pthread_mutex_unlock(&engine->lock);
    return number;
}

void p4reduce_go_on(p4reduce_engine *engine, uint32_t slots, uint32_t first_seq) {
    struct holding *holding = &engine->holding;
    pthread_mutex_lock(&engine->lock);
    holding->number++;
    holding->to_hold = false;
    if (holding->holds && !holding->to_go_on) {
        holding->to_go_on = true;
        holding->slots = slots;
        holding->first_seq = first_seq;
        driving_wake(engine);
    }
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
}

int p4reduce_await_held(p4reduce_engine *engine, uint64_t hold, p4reduce_held *held, double timeout) {
    const struct holding *holding = &engine->holding;
    const struct timespec until = as_timespec(clock_now() + timeout);
    p4reduce_held known = {.size = sizeof known};
    if (!structure_in(&known, sizeof known, held, "held", NULL))
        return -1;
    bool patient = true, over, news;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        over = hold == 0 || hold != holding->number || engine->stopped ||
               engine_failure(engine)->status != P4REDUCE_OK;
        news = holding->answered == hold && holding->told.changes != known.changes;
        if (over || news || !patient)
            break;
        patient = pthread_cond_timedwait(&engine->changed, &engine->lock, &until) == 0;
    }
    if (news && !over)
        structure_out(held, &holding->told, sizeof holding->told);
    pthread_mutex_unlock(&engine->lock);
    return over ? -1 : news;
}

uint32_t p4reduce_take_most_slots(p4reduce_engine *engine) {
    return atomic_exchange(&engine->most_slots, 0);
}

// For who drives.

// Gives an operation to the worker, or its host's leader, whose slots it is dealt to.
static void give(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    struct task *task = operation->task;
    p4reduce_error error;
    engine->holding.begun = operation->number + 1;
    if (!task_deal_anew(task, engine->worker->membership.slots, &error)) {
        engine_fail(engine, &error);
        if (engine->host != NULL)
            return; // its leader has ended it
    }
    if (task->all_slots > atomic_load_explicit(&engine->most_slots, memory_order_relaxed))
        atomic_store(&engine->most_slots, task->all_slots);
    if (engine->host != NULL) {
        leader_begin(engine, operation);
        return;
    }
    operation->task = NULL;
    engine->worker->counter = (uint32_t)operation->number;
    worker_submit(engine->worker, task, now);
}

void holding_begin(p4reduce_engine *engine, p4reduce_operation *operation, double now) {
    struct holding *holding = &engine->holding;
    if (!holding->holds || operation->number < holding->limit)
        give(engine, operation, now);
    else if (holding->held_back == NULL)
        holding->held_back = operation;
}

// Those held back up to the limit.
static void give_more(p4reduce_engine *engine, double now) {
    struct holding *holding = &engine->holding;
    while (holding->held_back != NULL && holding->held_back->number < holding->limit) {
        p4reduce_operation *operation = holding->held_back;
        holding->held_back = operation->newer;
        give(engine, operation, now);
    }
}

static void go_on(p4reduce_engine *engine, uint32_t slots, uint32_t first_seq, double now) {
    p4reduce_error refusal, error;
    refusal.size = sizeof refusal;
    if (slots != 0 && p4reduce_worker_begin_anew(engine->worker, slots, first_seq, &refusal) != P4REDUCE_OK) {
        error_fill(&error, P4REDUCE_FAILED, "the controller has changed the job's slots to what cannot be: %.900s",
                   refusal.message);
        engine_fail(engine, &error);
    }
    engine->holding.limit = UINT64_MAX;
    give_more(engine, now);
}

void holding_take_news(p4reduce_engine *engine, double now) {
    struct holding *holding = &engine->holding;
    if (holding->to_go_on) {
        const uint32_t slots = holding->slots, first_seq = holding->first_seq;
        holding->to_go_on = holding->holds = false;
        pthread_mutex_unlock(&engine->lock);
        go_on(engine, slots, first_seq, now);
        pthread_mutex_lock(&engine->lock);
    }
    if (!holding->to_hold || engine_failure(engine)->status != P4REDUCE_OK)
        return;
    holding->since = holding->holds ? holding->since : now;
    holding->to_hold = false;
    holding->holds = true;
    holding->limit = holding->wanted > holding->begun ? holding->wanted : holding->begun;
    holding->telling = holding->number;
    pthread_mutex_unlock(&engine->lock);
    give_more(engine, now);
    pthread_mutex_lock(&engine->lock);
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
    const struct holding *holding = &engine->holding;
    const bool awaits = holding->held_back != NULL && engine->oldest == holding->held_back;
    if (awaits)
        snprintf(text, room, "the controller has held operations for %.1f s to change the job's slots",
                 now - holding->since);
    return awaits;
}
