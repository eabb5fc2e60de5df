// SPDX-License-Identifier: Apache-2.0
// What any thread may ask of an engine that holds operations, or is to.
#include "engine/engine_driving.h"

#include "base/clock.h"
#include "base/structures.h"

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
