// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_driving.h"

#include "base/clock.h"
#include "engine/engine_bell.h"
#include "engine/engine_turns.h"

#include <fenv.h>

static const double QUIET_S = 0.1; // without another driver, after which the engine's thread looks for packets again

void driving_lend(p4reduce_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->driving.taken = false;
    pthread_mutex_unlock(&engine->lock);
}

unsigned driving_return(p4reduce_engine *engine, unsigned spells) {
    struct driving *driving = &engine->driving;
    pthread_mutex_lock(&engine->lock);
    driving->parked = true;
    while (driving->taken || (driving->spells != spells && !driving->called)) {
        spells = driving->spells;
        const struct timespec until = as_timespec(clock_now() + QUIET_S);
        pthread_cond_timedwait(&driving->left, &engine->lock, &until);
    }
    driving->parked = driving->called = false;
    driving->taken = true;
    spells = driving->spells;
    pthread_mutex_unlock(&engine->lock);
    return spells;
}

// The engine's thread is to drive as soon as nobody else does.
static void call(p4reduce_engine *engine) {
    engine->driving.called = true;
    if (engine->driving.parked)
        pthread_cond_signal(&engine->driving.left);
    else
        bell_ring(engine);
}

void driving_wake(p4reduce_engine *engine) {
    if (engine->wake < 0)
        return; // closed
    atomic_store(&engine->news, true);
    if (engine->driving.taken)
        bell_ring(engine);
    else
        call(engine);
}

// Whether what is next is to be begun by the engine's thread, which alone calls back.
static bool owes_callbacks(const p4reduce_engine *engine) {
    const p4reduce_operation *next = engine->inbox.first;
    return engine->callbacks > 0 || (next != NULL && next->on_end != NULL);
}

bool driving_take(p4reduce_engine *engine) {
    struct driving *driving = &engine->driving;
    if (driving->taken || engine->stopped || engine->closing || owes_callbacks(engine))
        return false;
    driving->taken = driving->lent = true;
    driving->owed = false;
    driving->spells++;
    return true;
}

void driving_carry(p4reduce_engine *engine, const p4reduce_operation *operation, double deadline) {
    fenv_t callers;
    fegetenv(&callers);
    fesetenv(FE_DFL_ENV);
    bool dry = engine_turn(engine);
    while (!operation->ended && !engine->driving.owed && !engine->must_stop && clock_now() < deadline) {
        if (dry) {
            struct rest rest = engine_rest(engine, deadline);
            if (engine_sleep(&rest))
                engine_take_error(engine);
        }
        dry = engine_turn(engine);
    }
    fesetenv(&callers);
}

void driving_leave(p4reduce_engine *engine) {
    struct driving *driving = &engine->driving;
    driving->taken = driving->lent = false;
    if (driving->called || engine->oldest != NULL || engine->inbox.first != NULL || atomic_load(&engine->news) ||
        engine->closing)
        call(engine);
}
