# SPDX-License-Identifier: Apache-2.0
"""How fast somebody may go: a bucket of tokens, without a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

BURST_S = 10.0  # whose requests may come at once, for all ranks of a job come together


@dataclass(frozen=True)
class Rates:
    """Of one host, a second in the long run: streams begun, other requests, and messages in streams, a longer one
    counting as one for each kilobyte begun. `ranks`: streams at a time."""

    joins: float = 100.0
    calls: float = 100.0
    messages: float = 2000.0
    ranks: float = 4096


class Bucket:
    """`rate` a second in the long run, and those of `burst_s` seconds at once."""

    def __init__(self, rate: float, now: float, burst_s: float = BURST_S) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * burst_s)
        self._left = self._burst
        self._at = now

    def take(self, now: float) -> float:
        """Take one and return 0.0; or none, and return the seconds until there will be one."""
        self._fill(now)
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate

    def owe(self, count: float, now: float) -> float:
        """Take so many, be they there or not, and return the seconds until they are."""
        self._fill(now)
        self._left -= count
        return max(0.0, -self._left / self._rate)

    def _fill(self, now: float) -> None:
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._rate)
        self._at = max(now, self._at)
