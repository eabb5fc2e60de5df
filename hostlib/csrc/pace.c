// SPDX-License-Identifier: Apache-2.0
#include "pace.h"

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
        .slots = slots, .threshold = (double)INFINITY, .reduced_at = -(double)INFINITY, .next = -(double)INFINITY};
    set(&pace, FIRST);
    return pace;
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

// `doubted`: packets that seem to be lost, 0 if it is settled that they are.
static void reduce(struct pace *pace, unsigned flight, double most, unsigned doubted, double now) {
    if (pace->doubted == 0) {
        pace->former = pace->window;
        pace->former_threshold = pace->threshold;
        pace->former_reduced_at = pace->reduced_at;
    }
    pace->doubted = doubted > 0 ? pace->doubted + doubted : 0;
    pace->threshold = larger(smaller(flight, pace->window) / REDUCTION, LEAST);
    pace->window = smaller(pace->threshold, most);
    pace->reduced_at = now;
}

bool pace_lost(struct pace *pace, const struct timer *timer, double sent_at, unsigned flight, bool proved, double now) {
    const bool settled = proved && pace->doubted > 0;
    if (proved)
        pace->doubted = 0;
    if (sent_at < pace->reduced_at || !timer->measured || (isinf(pace->window) && !proved))
        return settled;
    if (flight * (timer->smoothed - timer->least) <= BACKLOG * timer->smoothed)
        return settled;
    reduce(pace, flight, (double)INFINITY, !proved, now);
    return settled || (proved && pace->window < pace->former);
}

void pace_burst_lost(struct pace *pace, unsigned lost, unsigned flight, double now) {
    if (lost > FIRST && lost > flight / 2)
        reduce(pace, flight, FIRST, lost, now);
}

void pace_arrived(struct pace *pace) {
    if (pace->doubted == 0 || --pace->doubted > 0)
        return;
    pace->window = pace->former;
    pace->threshold = pace->former_threshold;
    pace->reduced_at = pace->former_reduced_at;
}
