// SPDX-License-Identifier: Apache-2.0
#include "protocol/pace.h"

#include <math.h>

// Packets: the window to begin with, and how many of the past may follow at once after a pause; the least window; in
// queues, of which none overflows.
static const double FIRST = 10, LEAST = 2, BACKLOG = 3;
static const double REDUCTION = 2; // of the window, after a loss

static double larger(double one, double other) {
    return one > other ? one : other;
}

static double smaller(double one, double other) {
    return one < other ? one : other;
}

static void set(struct pace *pace, double window) {
    pace->window = window < pace->slots ? window : (double)INFINITY;
}

struct pace pace_new(unsigned slots) {
    struct pace pace = {
        .slots = slots, .threshold = (double)INFINITY, .former = (double)INFINITY, .reduced_at = -(double)INFINITY, .next = -(double)INFINITY};
    set(&pace, FIRST);
    return pace;
}

bool pace_limited(const struct pace *pace) {
    return !(isinf(pace->window) || isinf(pace->threshold));
}

bool pace_turn(struct pace *pace, const struct timer *timer, double now) {
    if (isinf(pace->window))
        return true;
    if (now < pace->next)
        return false;
    const double gap = timer_estimate(timer) / pace->window;
    pace->next = larger(pace->next, now - FIRST * gap) + gap;
    return true;
}

void pace_answered(struct pace *pace) {
    set(pace, pace->window + (pace->window < pace->threshold ? 1 : 1 / pace->window));
}

static void reduce(struct pace *pace, unsigned flight, double now) {
    if (!pace_limited(pace))
        pace->former = pace->window;
    pace->threshold = larger(smaller(flight, pace->window) / REDUCTION, LEAST);
    pace->reduced_at = now;
}

bool pace_lost(struct pace *pace, const struct timer *timer, double sent_at, unsigned flight, double now) {
    if (sent_at < pace->reduced_at || !timer->measured)
        return false;
    if (flight * (timer->smoothed - timer->least) <= BACKLOG * timer->smoothed)
        return false;
    const double former = pace->window;
    reduce(pace, flight, now);
    pace->window = pace->threshold;
    return pace->window < former;
}

bool pace_burst_lost(struct pace *pace, unsigned lost, unsigned flight, double now) {
    if (!pace_limited(pace) || lost <= FIRST || lost <= flight / 2)
        return false;
    const double former = pace->window;
    reduce(pace, flight, now);
    pace->window = smaller(FIRST, pace->threshold);
    return pace->window < former;
}

void pace_lift(struct pace *pace) {
    set(pace, larger(pace->window, pace->former));
    pace->threshold = (double)INFINITY;
    pace->reduced_at = -(double)INFINITY;
}
