// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_thread.h"

#include "base/clock.h"
#include "engine/engine_driving.h"
#include "engine/engine_turns.h"

#include <fenv.h>

void *engine_run(void *context) {
    p4reduce_engine *engine = context;
    fesetenv(FE_DFL_ENV); // as the numbers need it, whatever the thread that made this one has set
    unsigned spells = 0;
    while (!engine->must_stop) {
        if (!engine_turn(engine))
            continue;
        struct rest rest = engine_rest(engine, (double)INFINITY);
        driving_lend(engine);
        const bool error = engine_sleep(&rest);
        spells = driving_return(engine, spells);
        if (error)
            engine_take_error(engine);
    }
    // The failure is set, so nothing was added to the inbox after the last look into it.
    engine_take_news(engine, clock_now());
    engine_stop(engine);
    return NULL;
}
