// SPDX-License-Identifier: Apache-2.0
// How long nothing may be answered: RFC 6298 for the round trip, Karn's rule for what may be measured.
#ifndef P4REDUCE_TIMER_H
#define P4REDUCE_TIMER_H

#include <stdbool.h>

// Seconds; see p4reduce_timing.
struct timer {
    double initial, margin, ceiling, poll;
    double timeout;
    bool measured;
    double smoothed, variation, least; // round trips
    double usual; // how long packets wait for their answers, and so for other ranks
};

// The round trip as it is known.
static inline double timer_estimate(const struct timer *timer) {
    return timer->measured ? timer->smoothed : timer->initial;
}

// Takes in one round trip, of a packet that was sent only once.
void timer_measure(struct timer *timer, double round_trip);

// Takes in how long a packet that was sent only once has waited for its answer, and for other ranks.
void timer_answered_after(struct timer *timer, double elapsed);

// Seconds until the next packet, after the timeout was doubled so often.
double timer_wait(const struct timer *timer, unsigned doublings, bool polling);

#endif
