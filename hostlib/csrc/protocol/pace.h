// SPDX-License-Identifier: Apache-2.0
// The pace at which packets may follow each other: a congestion window (RFC 5681) that is paced (RFC 9002, 7.7).
//
// The window is a rate, not a count: `window` packets may leave in each round trip, evenly spaced. A packet is never
// held back until another is answered, because ranks that hold back different slots would wait for each other.
//
//   state                  window                                     after each answer   after one that counts
//   slow start             10 packets at first, below ssthresh        + 1                 congestion avoidance.
//   congestion avoidance   ssthresh or more                           + 1 / window        congestion avoidance.
//   unlimited              infinite, once it has reached the slots                        congestion avoidance.
//
// A loss or a mark (CE, RFC 3168) that counts sets window and ssthresh to half of the packets in flight, or of the window
// if that is smaller; to 2 at least. These do not count:
//
// - A loss of a packet that was first sent before `reduced_at`: the window was already halved for this round trip (RFC
//   9002, 7.3.1).
// - A mark of a round that began before `reduced_at`: another rank's packet, which may be the marked one, may have left
//   when the round began.
// - A loss while at most 3 packets are in queues, by Vegas's estimate of flight x (1 - min_rtt / srtt). Where nothing
//   queues, nothing overflows, and a packet was lost by chance (TCP Veno).
//
// After a pause, up to 10 packets may follow at once: the unused turns of that time. The next turn always follows from
// the present round trip and window: before the first sample, the round trip is taken to be long.
#ifndef P4REDUCE_PACE_H
#define P4REDUCE_PACE_H

#include "protocol/timer.h"

struct pace {
    double slots;  // how many packets can be in flight
    double window; // packets in a round trip
    double ssthresh;
    double reduced_at;
    double last_turn; // when the last packet had its turn, used late or not
};

struct pace pace_new(unsigned slots);

// Returns when the next packet may leave, unless an answer changes it.
double pace_next_turn(const struct pace *pace, const struct timer *timer);

// Returns whether a packet may leave now. If so, it takes the turn.
bool pace_take_turn(struct pace *pace, const struct timer *timer, double now);

// Lets the window grow. Not called for an answer that is marked.
void pace_on_answer(struct pace *pace);

// Halves the window if the loss counts. Returns whether the window is smaller. `sent_at`: when the lost packet was
// first sent.
bool pace_on_loss(struct pace *pace, const struct timer *timer, double sent_at, unsigned in_flight, double now);

// Halves the window if the mark of an answer counts. Returns whether the window is smaller. `began_at`: when this rank
// began the round.
bool pace_on_mark(struct pace *pace, const struct timer *timer, double began_at, unsigned in_flight, double now);

#endif
