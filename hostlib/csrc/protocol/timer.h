// SPDX-License-Identifier: Apache-2.0
// The estimate of the round trip and the probe time-out: RFC 6298, with Karn's rule for what may be a sample.
//
//   srtt      the smoothed round trip
//   rttvar    its mean deviation
//   min_rtt   the shortest sample, which is the path without queues
//   timeout   srtt + max(srtt, 4 rttvar, margin), but at most the ceiling
#ifndef P4REDUCE_TIMER_H
#define P4REDUCE_TIMER_H

#include <stdbool.h>

struct timer {
    double initial, margin, ceiling, poll; // seconds; see p4reduce_timing
    double timeout;
    bool measured; // whether there was a sample
    double srtt, rttvar, min_rtt;
};

// Returns srtt, or the initial time-out before the first sample.
static inline double timer_estimate(const struct timer *timer) {
    return timer->measured ? timer->srtt : timer->initial;
}

// Forgets all samples.
void timer_restart(struct timer *timer);

// Updates the estimate with one round trip.
void timer_sample(struct timer *timer, double round_trip);

// Returns the time-out, doubled `backoff` times. `polling`: whether a round waits for stragglers.
double timer_backed_off(const struct timer *timer, unsigned backoff, bool polling);

// Returns the doublings that remain after the wait for a late rank: the time-out is then at most `poll`.
unsigned timer_kept(const struct timer *timer, unsigned backoff);

#endif
