// SPDX-License-Identifier: Apache-2.0
// A token bucket, exact to the nanosecond.
#ifndef NATIVE_METER_H
#define NATIVE_METER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define METER_LIMIT UINT32_MAX // of rates and bursts: what is computed with them fits into 64 bits

struct meter {
    uint64_t rate;     // tokens a second
    uint64_t capacity; // in billionths of a token, like `level`
    uint64_t level;
    uint64_t last; // time of `level`, in nanoseconds
    atomic_uint locked;
    bool configured; // if not, every packet passes
};

// Configures a meter, with a full bucket. The caller holds the switch's lock for writing. `meter_pass` runs with the
// lock held for reading, and excludes other threads by `locked`.
void meter_configure(struct meter *meter, uint64_t rate, uint64_t burst, uint64_t now);
// Takes a token if there is one. Returns whether there was.
bool meter_pass(struct meter *meter, uint64_t now);
// The machine's monotonic clock, in nanoseconds.
uint64_t meter_clock(void);

#endif
