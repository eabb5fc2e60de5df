// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_asking.h"

#include "base/clock.h"
#include "engine/engine_driving.h"

// Under the lock. Once that thread has ended, others may have its number.
static bool in_thread(const p4reduce_engine *engine) {
    return !engine->stopped && pthread_equal(pthread_self(), engine->thread);
}

void engine_fail_with(p4reduce_engine *engine, const p4reduce_error *error, bool close) {
    pthread_mutex_lock(&engine->lock);
    if (engine->outside.status == P4REDUCE_OK)
        engine->outside = *error;
    engine->closing |= close;
    driving_wake(engine);
    pthread_mutex_unlock(&engine->lock);
}

struct snapshot engine_ask(p4reduce_engine *engine) {
    pthread_mutex_lock(&engine->lock);
    if (in_thread(engine)) {
        engine->take_snapshot(engine, clock_now());
    } else if (!engine->stopped) {
        const unsigned number = ++engine->asked;
        driving_wake(engine);
        while ((int)(engine->answered - number) < 0 && !engine->stopped)
            pthread_cond_wait(&engine->changed, &engine->lock);
    }
    struct snapshot snapshot = engine->snapshot;
    pthread_mutex_unlock(&engine->lock);
    return snapshot;
}
