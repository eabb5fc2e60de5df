// SPDX-License-Identifier: Apache-2.0
#include "meter.h"

#include <time.h>

#include "spinlock.h"

// Levels are in billionths of a token: rates are tokens a second, and times are in nanoseconds.
#define SECOND UINT64_C(1000000000)

void meter_configure(struct meter *meter, uint64_t rate, uint64_t burst, uint64_t now) {
    meter->rate = rate;
    meter->capacity = meter->level = burst * SECOND;
    meter->last = now;
    meter->configured = true;
}

bool meter_pass(struct meter *meter, uint64_t now) {
    if (!meter->configured)
        return true;
    spin_lock(&meter->locked);
    if (now > meter->last) { // another thread may have read the clock later, but got the lock first
        uint64_t elapsed = now - meter->last, lacking = meter->capacity - meter->level;
        bool full = meter->rate != 0 && elapsed >= lacking / meter->rate + 1;
        meter->level = full ? meter->capacity : meter->level + elapsed * meter->rate;
        if (meter->level > meter->capacity)
            meter->level = meter->capacity;
        meter->last = now;
    }
    bool passes = meter->level >= SECOND;
    if (passes)
        meter->level -= SECOND;
    spin_unlock(&meter->locked);
    return passes;
}

uint64_t meter_clock(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND + (uint64_t)time.tv_nsec;
}
