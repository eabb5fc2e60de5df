# SPDX-License-Identifier: Apache-2.0
"""How long nothing may be answered: RFC 6298 for the round trip, Karn's rule for what may be measured."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `initial`: the timeout before anything was measured, and of that from other ranks' part in answers the
    longest. `margin`: how much longer than the round trip it is at least, as hosts do not wake up to the microsecond.
    `ceiling`: the longest timeout, with back-off.

    `poll`: the longest wait between packets that ask after a round whose stragglers the switch waits for.
    """

    initial: float = 0.02
    margin: float = 0.0005
    ceiling: float = 1.0
    poll: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.margin <= self.initial <= self.ceiling or not self.margin <= self.poll <= self.ceiling:
            raise ValueError(f"{self}: accepted is 0 < margin <= initial <= ceiling and margin <= poll <= ceiling")


class RetransmissionTimer:
    """Estimates the timeout from round trips."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.timeout = timing.initial
        self.smoothed: float | None = None
        self.variation = 0.0
        self.least = math.inf
        self.usual = 0.0

    @property
    def estimate(self) -> float:
        """The round trip as it is known."""
        return self.timing.initial if self.smoothed is None else self.smoothed

    def measure(self, round_trip: float) -> None:
        """Takes in one round trip, of a packet that was sent only once (Karn)."""
        if self.smoothed is None:
            self.smoothed = round_trip
            self.variation = round_trip / 2
        else:
            self.variation += (abs(self.smoothed - round_trip) - self.variation) / 4
            self.smoothed += (round_trip - self.smoothed) / 8
        self.least = min(self.least, round_trip)
        self._set_timeout()

    def answered_after(self, elapsed: float) -> None:
        """Takes in how long a packet that was sent only once has waited for its answer, and for other ranks."""
        self.usual += (elapsed - self.usual) / 8
        if self.smoothed is not None:
            self._set_timeout()

    def _set_timeout(self) -> None:
        assert self.smoothed is not None
        timeout = self.smoothed + max(4 * self.variation, self.smoothed, self.timing.margin)
        self.timeout = min(max(timeout, min(2 * self.usual, self.timing.initial)), self.timing.ceiling)

    def wait(self, doublings: int, *, polling: bool) -> float:
        """Seconds until the next packet, after the timeout was doubled so often."""
        limit = self.timing.poll if polling else self.timing.ceiling
        return min(self.timeout * (1 << min(doublings, 30)), limit)
