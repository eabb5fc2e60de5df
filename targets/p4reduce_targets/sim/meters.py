# SPDX-License-Identifier: Apache-2.0
"""Indirect meters: two-rate three-colour markers (RFC 2698, colour-blind), exact to the nanosecond."""

from __future__ import annotations

from collections.abc import Callable

from p4reduce_targets.dataplane import MeterConfig

GREEN, YELLOW, RED = range(3)
_SECOND = 1_000_000_000  # in nanoseconds; levels are in billionths of a token, since rates are tokens a second


class _Bucket:
    def __init__(self, rate: int, burst: int, now: int) -> None:
        self._rate, self._room = rate, burst * _SECOND
        self._level, self._last = self._room, now

    def holds(self, amount: int, now: int) -> bool:
        self._level = min(self._room, self._level + (now - self._last) * self._rate)
        self._last = now
        return self._level >= amount * _SECOND

    def take(self, amount: int) -> None:
        self._level -= amount * _SECOND


class MeterArray:
    """An array of `size` meters. `clock` returns nanoseconds. An unconfigured cell is always green."""

    def __init__(self, size: int, clock: Callable[[], int]) -> None:
        self.size = size
        self.colour = GREEN  # result of the last `execute`
        self._clock = clock
        self._cells: dict[int, tuple[_Bucket, _Bucket]] = {}  # peak, committed

    def configure(self, index: int, config: MeterConfig | None) -> None:
        if config is None:
            self._cells.pop(index, None)
        else:
            now = self._clock()
            self._cells[index] = _Bucket(config.pir, config.pburst, now), _Bucket(config.cir, config.cburst, now)

    def execute(self, index: int, amount: int) -> None:
        """Take `amount` tokens from a cell if it has them, and set `colour` to the result."""
        self.colour = GREEN
        for bucket, colour in zip(self._cells.get(index, ()), (RED, YELLOW), strict=False):
            if not bucket.holds(amount, self._clock()):
                self.colour = colour
                return
            bucket.take(amount)
