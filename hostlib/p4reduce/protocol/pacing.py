# SPDX-License-Identifier: Apache-2.0
"""The pace at which packets may follow each other: a congestion window (RFC 5681) that is paced (RFC 9002, 7.7).

Theory of operation
-------------------

The window is a rate, not a count: `window` packets may leave in each round trip, evenly spaced. A packet is never held
back until another is answered, because ranks that hold back different slots would wait for each other.

| state | window | after each answer | after a loss or mark that counts |
|---|---|---|---|
| slow start | 10 packets at first, below `ssthresh` | + 1: it doubles in a round trip | congestion avoidance |
| congestion avoidance | `ssthresh` or more | + 1 / window: one packet more in a round trip | congestion avoidance |
| unlimited | infinite, once it has reached the number of slots | | congestion avoidance |

A loss or a mark (CE, RFC 3168) that counts sets window and `ssthresh` to half of the packets in flight. These do not
count:

- A loss of a packet that was first sent before `reduced_at`: the window was already halved for this round trip (RFC
  9002, 7.3.1).
- A mark of a round that began before `reduced_at`: another rank's packet, which may be the marked one, may have left
  when the round began.
- A loss while at most 3 packets are in queues, by Vegas's estimate of flight x (1 - min_rtt / srtt). Where nothing
  queues, nothing overflows, and a packet was lost by chance (TCP Veno).

After a pause, up to 10 packets may follow at once: the unused turns of that time. The next turn always follows from the
present round trip and window: before the first sample, the round trip is taken to be long.
"""

from __future__ import annotations

import math

from p4reduce.protocol.timing import RetransmissionTimer

_INITIAL_WINDOW = 10.0  # packets (RFC 6928); also the most unused turns that may be used after a pause
_MIN_WINDOW = 2.0  # packets
_MAX_BACKLOG = 3  # packets in queues: with no more than these, no queue overflows


class Pace:
    """The congestion window of one worker, which says when a packet may leave."""

    def __init__(self, timer: RetransmissionTimer, slots: int) -> None:
        """Start with the initial window. slots: how many packets can be in flight."""
        self._timer = timer
        self._slots = slots
        self.restart()

    def restart(self, last_turn: float = -math.inf) -> None:
        """Start again with the initial window. last_turn: when the last packet had its turn, used late or not."""
        self._ssthresh = math.inf
        self._reduced_at = -math.inf
        self.window = math.inf  # packets in a round trip
        self._last_turn = last_turn
        self._set_window(_INITIAL_WINDOW)

    def _set_window(self, window: float) -> None:
        self.window = window if window < self._slots else math.inf

    @property
    def _gap(self) -> float:
        return self._timer.estimate / self.window

    @property
    def next_turn(self) -> float:
        """When the next packet may leave, unless an answer changes it."""
        return self._last_turn + self._gap

    def take_turn(self, now: float) -> bool:
        """Return whether a packet may leave now. If so, take the turn."""
        if math.isinf(self.window):
            return True
        next_turn = self.next_turn
        if now < next_turn:
            return False
        self._last_turn = max(next_turn, now - _INITIAL_WINDOW * self._gap)
        return True

    def on_answer(self) -> None:
        """Let the window grow. Not called for an answer that is marked."""
        self._set_window(self.window + (1 if self.window < self._ssthresh else 1 / self.window))

    def on_loss(self, sent_at: float, in_flight: int, now: float) -> bool:
        """Halve the window if the loss counts. Return whether the window is smaller.

        sent_at: when the lost packet was first sent.
        """
        timer = self._timer
        if sent_at < self._reduced_at or timer.srtt is None:
            return False
        if in_flight * (timer.srtt - timer.min_rtt) <= _MAX_BACKLOG * timer.srtt:
            return False
        return self._halve(in_flight, now)

    def on_mark(self, began_at: float, in_flight: int, now: float) -> bool:
        """Halve the window if the mark of an answer counts. Return whether the window is smaller.

        began_at: when this rank began the round.
        """
        return began_at >= self._reduced_at and self._timer.srtt is not None and self._halve(in_flight, now)

    def _halve(self, in_flight: int, now: float) -> bool:
        former = self.window
        self.window = self._ssthresh = max(min(in_flight, former) / 2, _MIN_WINDOW)
        self._reduced_at = now
        return self.window < former
