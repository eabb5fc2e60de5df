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
    uint64_t capacity; // in billionths of a token, as `level` is
    uint64_t level;
    uint64_t last; // when `level` was right, in nanoseconds
    atomic_uint locked;
    bool configured; // else it lets everything pass
};

// With a full bucket. The caller has the switch's lock for writing, here; `meter_pass` locks for itself.
void meter_configure(struct meter *meter, uint64_t rate, uint64_t burst, uint64_t now);
// Takes a token where there is one; returns whether.
bool meter_pass(struct meter *meter, uint64_t now);
// Nanoseconds, of the machine's clock that never jumps.
uint64_t meter_clock(void);

#endif
