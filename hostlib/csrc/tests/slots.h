// SPDX-License-Identifier: Apache-2.0
// A substitute for the controller, which changes the slots of a job of one worker as fast as possible.
#ifndef P4REDUCE_TESTS_SLOTS_H
#define P4REDUCE_TESTS_SLOTS_H

#include "p4reduce.h"
#include "require.h"

#include <stdint.h>
#include <unistd.h>

enum { SLOTS = 8 };

// Changes the slots whenever all operations that have begun have ended, until the engine is closed.
static void *change_slots(void *context) {
    p4reduce_engine *engine = context;
    int changes = 0;
    for (uint32_t slots = 1;; slots = slots % SLOTS + 1) {
        p4reduce_held held = {.size = sizeof held};
        const uint64_t hold = p4reduce_hold(engine, 0);
        int news = hold == 0 ? -1 : 0;
        while (news >= 0 && !held.quiet)
            news = p4reduce_await_held(engine, hold, &held, 0.01);
        if (news < 0)
            break;
        p4reduce_go_on(engine, changes % 5 ? slots : 0, held.first_seq);
        require(p4reduce_take_most_slots(engine) <= SLOTS, "slots that operations use");
        changes++;
        usleep(100);
    }
    return (void *)(intptr_t)changes;
}

#endif
