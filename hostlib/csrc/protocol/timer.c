// SPDX-License-Identifier: Apache-2.0
#include "protocol/timer.h"

#include <math.h>

void timer_restart(struct timer *timer) {
    timer->timeout = timer->initial;
    timer->measured = false;
    timer->srtt = timer->rttvar = 0;
    timer->min_rtt = (double)INFINITY;
}

void timer_sample(struct timer *timer, double round_trip) {
    if (!timer->measured) {
        timer->measured = true;
        timer->srtt = round_trip;
        timer->rttvar = round_trip / 2;
    } else {
        timer->rttvar += (fabs(timer->srtt - round_trip) - timer->rttvar) / 4;
        timer->srtt += (round_trip - timer->srtt) / 8;
    }
    timer->min_rtt = fmin(timer->min_rtt, round_trip);
    const double slack = fmax(fmax(4 * timer->rttvar, timer->srtt), timer->margin);
    timer->timeout = fmin(timer->srtt + slack, timer->ceiling);
}

double timer_backed_off(const struct timer *timer, unsigned backoff, bool polling) {
    const double limit = polling ? timer->poll : timer->ceiling;
    return fmin(timer->timeout * (double)(1u << (backoff < 30 ? backoff : 30)), limit);
}

unsigned timer_kept(const struct timer *timer, unsigned backoff) {
    while (backoff > 0 && timer_backed_off(timer, backoff, false) > timer->poll)
        backoff--;
    return backoff;
}
