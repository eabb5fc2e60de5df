// SPDX-License-Identifier: Apache-2.0
// The monotonic clock of all times in the engine, in seconds.
#ifndef P4REDUCE_CLOCK_H
#define P4REDUCE_CLOCK_H

#include <math.h>
#include <time.h>

// Returns the time in seconds since an arbitrary moment.
static inline double clock_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline struct timespec as_timespec(double seconds) {
    double whole = floor(seconds);
    return (struct timespec){(time_t)whole, (long)((seconds - whole) * 1e9)};
}

#endif
