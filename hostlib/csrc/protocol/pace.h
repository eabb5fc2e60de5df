// SPDX-License-Identifier: Apache-2.0
// How fast packets may follow each other: a congestion window (RFC 5681), spread over a round trip (RFC 9002, 7.7).
// It is hostlib/p4reduce/protocol/pacing.py in C, which says more.
#ifndef P4REDUCE_PACE_H
#define P4REDUCE_PACE_H

#include "protocol/timer.h"

struct pace {
    double slots;     // packets that there can be under way
    double window;    // packets a round trip
    double threshold; // up to which the window doubles in a round trip
    double former; // the window, before there was a limit for what was lost
    double reduced_at;
    double next; // when the next packet may go
};

struct pace pace_new(unsigned slots);

// Whether a packet may go now, which then has had its turn.
bool pace_turn(struct pace *pace, const struct timer *timer, double now);

// Whether there is a limit for what was lost.
bool pace_limited(const struct pace *pace);

// A packet was answered.
void pace_answered(struct pace *pace);

// A packet was lost, or seems to be, that was first sent at `sent_at`, when `flight` are under way.
// Returns whether the window is smaller for it.
bool pace_lost(struct pace *pace, const struct timer *timer, double sent_at, unsigned flight, double now);

// So many of `flight` packets seem to be lost at once, which counts where there is a limit for what was lost before.
// Returns the same.
bool pace_burst_lost(struct pace *pace, unsigned lost, unsigned flight, double now);

// What there is a limit for was not lost: the window is again as large as before.
void pace_lift(struct pace *pace);

#endif
