// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_bell.h"

#include <unistd.h>

void bell_ring(p4reduce_engine *engine) {
    atomic_store(&engine->news, true);
    if (engine->rung)
        return;
    engine->rung = true;
    const uint64_t one = 1;
    ssize_t written = write(engine->wake, &one, sizeof one);
    (void)written; // it fails only where the thread is to wake up anyway
}

void bell_answer(p4reduce_engine *engine) {
    if (engine->rung) {
        uint64_t count;
        ssize_t got = read(engine->wake, &count, sizeof count);
        (void)got;
        engine->rung = false;
    }
    atomic_store(&engine->news, false);
}
