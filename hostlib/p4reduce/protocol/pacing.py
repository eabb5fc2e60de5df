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
        self._former = math.inf  # the window, before there was a limit for what was lost
        self._reduced_at = -math.inf
        self.window = math.inf  # packets a round trip
        self.next = -math.inf  # when the next packet may go
        self._set(_FIRST)

    @property
    def limited(self) -> bool:
        """Whether there is a limit for what was lost."""
        return not (math.isinf(self.window) or math.isinf(self._threshold))

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

    def lost(self, sent_at: float, flight: int, now: float) -> bool:
        """A packet was lost, or seems to be, that was first sent at `sent_at`, when `flight` are under way.
        Returns whether the window is smaller for it.
        """
        timer = self._timer
        if sent_at < self._reduced_at or timer.smoothed is None:
            return False  # it was sent by the former window
        # TCP Veno: where nothing queues, nothing overflows, and what is lost is lost by chance.
        if flight * (timer.smoothed - timer.least) <= _BACKLOG * timer.smoothed:
            return False
        former = self.window
        self._reduce(flight, now)
        self.window = self._threshold
        return self.window < former

    def burst_lost(self, lost: int, flight: int, now: float) -> bool:
        """So many of `flight` packets seem to be lost at once: if they are most, and there is a limit for what was lost
        before, begins again. Returns the same.
        """
        if not self.limited or lost <= _FIRST or lost <= flight // 2:
            return False
        former = self.window
        self._reduce(flight, now)
        self.window = min(_FIRST, self._threshold)
        return self.window < former

    def lift(self) -> None:
        """What there is a limit for was not lost: the window is again as large as before."""
        self._set(max(self.window, self._former))
        self._threshold = math.inf
        self._reduced_at = -math.inf

    def _reduce(self, flight: int, now: float) -> None:
        if not self.limited:
            self._former = self.window
        self._threshold = max(min(flight, self.window) / _REDUCTION, _LEAST)
        self._reduced_at = now
