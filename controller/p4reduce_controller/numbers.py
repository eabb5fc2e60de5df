# SPDX-License-Identifier: Apache-2.0
"""Job numbers and generations: together they name one run of one job, and never another."""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable

GENERATIONS = 1 << 16
LAST_JOB = 4094  # entries of two tables are per job, and the group after the last one is the flood's


class NumbersExhausted(Exception):
    """Every job number is in use or has used up its generations."""


class JobNumbers:
    """Gives the lowest free number with its next generation. A number that has had all generations is retired.

    A number's first generation is random, so that a restarted controller does not repeat the last one's.
    """

    def __init__(
        self, last: int = LAST_JOB, first_generation: Callable[[], int] = lambda: secrets.randbelow(GENERATIONS)
    ) -> None:
        self._last = last
        self._first_generation = first_generation
        self._free: list[int] = []
        self._fresh = 1
        self._generations: dict[int, tuple[int, int]] = {}  # number -> (first, how many are used)

    def take(self) -> tuple[int, int]:
        """A job number and its generation. Raises NumbersExhausted."""
        if self._free:
            number = heapq.heappop(self._free)
        elif self._fresh <= self._last:
            number = self._fresh
            self._fresh += 1
            self._generations[number] = (self._first_generation(), 0)
        else:
            raise NumbersExhausted(f"all {self._last} job numbers are in use")
        first, used = self._generations[number]
        self._generations[number] = (first, used + 1)
        return number, (first + used) % GENERATIONS

    def resume(self, number: int, generation: int) -> None:
        """Takes that number, whose generation was given by an earlier run. In ascending order, before any `take`.

        Raises ValueError for a number that is in use, or none.
        """
        if not self._fresh <= number <= self._last:
            raise ValueError(f"job number {number}: {self._fresh} to {self._last} are free")
        for skipped in range(self._fresh, number):
            self._generations[skipped] = (self._first_generation(), 0)
            heapq.heappush(self._free, skipped)
        self._fresh = number + 1
        self._generations[number] = (generation, 1)

    def give_back(self, number: int) -> None:
        if self._generations[number][1] < GENERATIONS:
            heapq.heappush(self._free, number)
