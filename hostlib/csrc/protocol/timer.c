// SPDX-License-Identifier: Apache-2.0
#include "protocol/timer.h"

#include <math.h>

static void set_timeout(struct timer *timer) {
    const double slack = fmax(fmax(4 * timer->variation, timer->smoothed), timer->margin);
    const double timeout = fmax(timer->smoothed + slack, fmin(2 * timer->usual, timer->initial));
    timer->timeout = fmin(timeout, timer->ceiling);
}

void timer_measure(struct timer *timer, double round_trip) {
    if (!timer->measured) {
        timer->measured = true;
        timer->smoothed = round_trip;
        timer->variation = round_trip / 2;
    } else {
        timer->variation += (fabs(timer->smoothed - round_trip) - timer->variation) / 4;
        timer->smoothed += (round_trip - timer->smoothed) / 8;
    }
    timer->least = fmin(timer->least, round_trip);
    set_timeout(timer);
}

void timer_answered_after(struct timer *timer, double elapsed) {
    timer->usual += (elapsed - timer->usual) / 8;
    if (timer->measured)
        set_timeout(timer);
}

double timer_wait(const struct timer *timer, unsigned doublings, bool polling) {
    double limit = polling ? timer->poll : timer->ceiling;
    double wait = timer->timeout * (double)(1u << (doublings < 30 ? doublings : 30));
    return wait < limit ? wait : limit;
}
