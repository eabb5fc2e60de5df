// SPDX-License-Identifier: Apache-2.0
// How fast packets may follow each other: a congestion window (RFC 5681), spread over a round trip (RFC 9002, 7.7).
// It is hostlib/p4reduce/protocol/pacing.py in C, which says more.
#ifndef P4REDUCE_PACE_H
#define P4REDUCE_PACE_H

#include "timer.h"

struct pace {
    double slots;     // packets that there can be under way
    double window;    // packets a round trip
    double threshold; // up to which the window doubles in a round trip
    double reduced_at;
    // What was before the last losses that are not settled, and how many packets that seemed to be lost have yet to turn
    // out to have arrived for them to have been none; 0 if all are settled.
    double former, former_threshold, former_reduced_at;
    unsigned doubted;
    double next; // when the next packet may go
};

struct pace pace_new(unsigned slots);

// Whether a packet may go now, which then has had its turn.
bool pace_turn(struct pace *pace, const struct timer *timer, double now);

// A packet was answered.
void pace_answered(struct pace *pace);

// A packet seems to be lost that was first sent at `sent_at`, when `flight` are under way; where there is no limit, only
// what is `proved` counts. Returns whether the window is smaller, and that is settled now.
bool pace_lost(struct pace *pace, const struct timer *timer, double sent_at, unsigned flight, bool proved, double now);

// So many of `flight` packets seem to be lost at once.
void pace_burst_lost(struct pace *pace, unsigned lost, unsigned flight, double now);

// A packet that seemed to be lost had arrived.
void pace_arrived(struct pace *pace);

#endif
