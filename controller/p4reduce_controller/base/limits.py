# SPDX-License-Identifier: Apache-2.0
"""Rate limits: a token bucket without a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

BURST_S = 10.0  # seconds whose requests may come at once
JOIN_BURST_S = 50.0  # the same for joins, because all ranks of a job start together


@dataclass(frozen=True)
class Rates:
    """Sustained limits per second for one host.

    `joins`: streams begun.
    `calls`: other requests.
    `messages`: messages in streams; a longer one counts as one per kilobyte, rounded up.
    `ranks`: concurrent streams.
    """

    joins: float = 100.0
    calls: float = 100.0
    messages: float = 2000.0
    ranks: float = 8192


class Bucket:
    """A token bucket that gets `rate` tokens a second, and holds those of `burst_s` seconds."""

    def __init__(self, rate: float, now: float, burst_s: float = BURST_S) -> None:
        self._rate = rate
        self._burst = max(1.0, rate * burst_s)
        self._left = self._burst
        self._at = now

    def take(self, now: float) -> float:
        """Take a token and return 0.0; if there is none, return the seconds until there will be one."""
        self._fill(now)
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate

    def owe(self, count: float, now: float) -> float:
        """Take `count` tokens, even if the bucket then owes some, and return the seconds until it owes none."""
        self._fill(now)
        self._left -= count
        return max(0.0, -self._left / self._rate)

    def _fill(self, now: float) -> None:
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._rate)
        self._at = max(now, self._at)
