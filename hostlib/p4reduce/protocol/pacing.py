# SPDX-License-Identifier: Apache-2.0
"""How fast packets may follow each other: a congestion window (RFC 5681), spread over a round trip (RFC 9002, 7.7)."""

from __future__ import annotations

import math

from p4reduce.protocol.timing import RetransmissionTimer

_FIRST = 10.0  # packets: the window to begin with (RFC 6928), and how many of the past may follow at once after a pause
_LEAST = 2.0  # packets: the window
_REDUCTION = 2.0  # of the window, after a loss
_BACKLOG = 3  # packets in queues, of which none overflows


class Pace:
    """Says when a packet has its turn. The window grows until there is no limit but that of the slots."""

    def __init__(self, timer: RetransmissionTimer, slots: int) -> None:
        """`slots`: how many packets there can be under way."""
        self._timer = timer
        self._slots = slots
        self._threshold = math.inf  # up to which the window doubles in a round trip
        self._reduced_at = -math.inf
        # What was before the last losses that are not settled, and how many packets that seemed to be lost have yet to
        # turn out to have arrived for them to have been none; 0 if all are settled.
        self._former = (math.inf, math.inf, -math.inf)
        self._doubted = 0
        self.window = math.inf  # packets a round trip
        self.next = -math.inf  # when the next packet may go
        self._set(_FIRST)

    def _set(self, window: float) -> None:
        self.window = window if window < self._slots else math.inf

    def turn(self, now: float) -> bool:
        """Whether a packet may go now, which then has had its turn."""
        if math.isinf(self.window):
            return True
        if now < self.next:
            return False
        gap = self._timer.estimate / self.window
        self.next = max(self.next, now - _FIRST * gap) + gap
        return True

    def answered(self) -> None:
        """A packet was answered: the window doubles in a round trip, or, above the threshold, grows by one packet."""
        self._set(self.window + (1 if self.window < self._threshold else 1 / self.window))

    def lost(self, sent_at: float, flight: int, now: float, *, proved: bool = True) -> bool:
        """A packet seems to be lost that was first sent at `sent_at`, when `flight` are under way. Where there is no
        limit, only what is `proved` counts. Returns whether the window is smaller, and that is settled now.
        """
        timer = self._timer
        settled = proved and self._doubted > 0
        if proved:
            self._doubted = 0
        if sent_at < self._reduced_at or timer.smoothed is None or (math.isinf(self.window) and not proved):
            return settled  # it was sent by the former window
        # TCP Veno: where nothing queues, nothing overflows, and what is lost is lost by chance.
        if flight * (timer.smoothed - timer.least) <= _BACKLOG * timer.smoothed:
            return settled
        self._reduce(flight, math.inf, 0 if proved else 1, now)
        return settled or (proved and self.window < self._former[0])

    def burst_lost(self, lost: int, flight: int, now: float) -> None:
        """So many of `flight` packets seem to be lost at once: if they are most, begins again."""
        if lost > _FIRST and lost > flight // 2:
            self._reduce(flight, _FIRST, lost, now)

    def arrived(self) -> None:
        """A packet that seemed to be lost had arrived."""
        if self._doubted > 0:
            self._doubted -= 1
            if self._doubted == 0:
                self.window, self._threshold, self._reduced_at = self._former

    def _reduce(self, flight: int, most: float, doubted: int, now: float) -> None:
        """doubted: packets that seem to be lost, 0 if it is settled that they are."""
        if self._doubted == 0:
            self._former = (self.window, self._threshold, self._reduced_at)
        self._doubted = self._doubted + doubted if doubted else 0
        self._threshold = max(min(flight, self.window) / _REDUCTION, _LEAST)
        self.window = min(self._threshold, most)
        self._reduced_at = now
