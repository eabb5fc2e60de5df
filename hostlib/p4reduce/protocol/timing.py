# SPDX-License-Identifier: Apache-2.0
"""The estimate of the round trip and the probe time-out: RFC 6298, with Karn's rule for what may be a sample.

| name | RFC 6298 | meaning |
|---|---|---|
| `srtt` | SRTT | the smoothed round trip |
| `rttvar` | RTTVAR | its mean deviation |
| `min_rtt` | | the shortest sample, which is the path without queues |
| `timeout` | RTO | SRTT + max(SRTT, 4 RTTVAR, margin) |

`Recovery` decides which answers are samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Settings of the time-out, in seconds."""

    initial: float = 0.02
    """The time-out before the first sample."""
    margin: float = 0.0005
    """The least difference between time-out and round trip, because hosts do not wake up to the microsecond."""
    ceiling: float = 1.0
    """The longest time-out, with back-off."""
    poll: float = 0.25
    """The longest time-out while a round waits for stragglers, as a STATUS has said."""

    def __post_init__(self) -> None:
        if not 0 < self.margin <= self.initial <= self.ceiling or not self.margin <= self.poll <= self.ceiling:
            raise ValueError(f"{self}: accepted is 0 < margin <= initial <= ceiling and margin <= poll <= ceiling")


class RetransmissionTimer:
    """The estimate of the round trip and of the time-out, from samples."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.restart()

    def restart(self) -> None:
        """Forget all samples."""
        self.timeout = self.timing.initial
        self.srtt: float | None = None
        self.rttvar = 0.0
        self.min_rtt = math.inf

    @property
    def estimate(self) -> float:
        """SRTT, or the initial time-out before the first sample."""
        return self.timing.initial if self.srtt is None else self.srtt

    def sample(self, round_trip: float) -> None:
        """Update the estimate with one round trip."""
        if self.srtt is None:
            self.srtt = round_trip
            self.rttvar = round_trip / 2
        else:
            self.rttvar += (abs(self.srtt - round_trip) - self.rttvar) / 4
            self.srtt += (round_trip - self.srtt) / 8
        self.min_rtt = min(self.min_rtt, round_trip)
        slack = max(4 * self.rttvar, self.srtt, self.timing.margin)
        self.timeout = min(self.srtt + slack, self.timing.ceiling)

    def backed_off(self, backoff: int, *, polling: bool) -> float:
        """Return the time-out, doubled `backoff` times. polling: whether a round waits for stragglers."""
        limit = self.timing.poll if polling else self.timing.ceiling
        return min(self.timeout * (1 << min(backoff, 30)), limit)

    def kept(self, backoff: int) -> int:
        """Return the doublings that remain after the wait for a late rank: the time-out is then at most `poll`."""
        while backoff > 0 and self.backed_off(backoff, polling=False) > self.timing.poll:
            backoff -= 1
        return backoff
