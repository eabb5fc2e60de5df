// SPDX-License-Identifier: Apache-2.0
#include "protocol/pace.h"

#include <math.h>

static const double INITIAL_WINDOW = 10; // packets (RFC 6928); also the most unused turns of a pause that are used
static const double MIN_WINDOW = 2;      // packets
static const double MAX_BACKLOG = 3;     // packets in queues: with no more than these, no queue overflows

static void set_window(struct pace *pace, double window) {
    pace->window = window < pace->slots ? window : (double)INFINITY;
}

struct pace pace_new(unsigned slots) {
    struct pace pace = {
        .slots = slots, .ssthresh = (double)INFINITY, .reduced_at = -(double)INFINITY, .last_turn = -(double)INFINITY};
    set_window(&pace, INITIAL_WINDOW);
    return pace;
}

static double gap_of(const struct pace *pace, const struct timer *timer) {
    return timer_estimate(timer) / pace->window;
}

double pace_next_turn(const struct pace *pace, const struct timer *timer) {
    return pace->last_turn + gap_of(pace, timer);
}

bool pace_take_turn(struct pace *pace, const struct timer *timer, double now) {
    if (isinf(pace->window))
        return true;
    const double next_turn = pace_next_turn(pace, timer);
    if (now < next_turn)
        return false;
    pace->last_turn = fmax(next_turn, now - INITIAL_WINDOW * gap_of(pace, timer));
    return true;
}

void pace_on_answer(struct pace *pace) {
    set_window(pace, pace->window + (pace->window < pace->ssthresh ? 1 : 1 / pace->window));
}

static bool halve(struct pace *pace, unsigned in_flight, double now) {
    const double former = pace->window;
    pace->window = pace->ssthresh = fmax(fmin(in_flight, former) / 2, MIN_WINDOW);
    pace->reduced_at = now;
    return pace->window < former;
}

bool pace_on_loss(struct pace *pace, const struct timer *timer, double sent_at, unsigned in_flight, double now) {
    if (sent_at < pace->reduced_at || !timer->measured)
        return false;
    if (in_flight * (timer->srtt - timer->min_rtt) <= MAX_BACKLOG * timer->srtt)
        return false;
    return halve(pace, in_flight, now);
}

bool pace_on_mark(struct pace *pace, const struct timer *timer, double began_at, unsigned in_flight, double now) {
    return began_at >= pace->reduced_at && timer->measured && halve(pace, in_flight, now);
}
