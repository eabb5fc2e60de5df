// SPDX-License-Identifier: Apache-2.0
#include "engine/notify.h"

#include <unistd.h>

void notify_post(p4reduce_engine *engine) {
    atomic_store(&engine->news, true);
    if (engine->notified)
        return;
    engine->notified = true;
    const uint64_t one = 1;
    ssize_t written = write(engine->wake, &one, sizeof one);
    (void)written; // it fails only where the thread is to wake up anyway
}

void notify_take(p4reduce_engine *engine) {
    if (engine->notified) {
        uint64_t count;
        ssize_t got = read(engine->wake, &count, sizeof count);
        (void)got;
        engine->notified = false;
    }
    atomic_store(&engine->news, false);
}
