# SPDX-License-Identifier: Apache-2.0
"""Job numbers and generations: together they name one run of one job, and never another."""

from __future__ import annotations

import hashlib
import heapq
import secrets
from collections.abc import Callable

GENERATIONS = 1 << 16
# Switches have tables with 4,096 entries by job number, and a job's multicast group has the job's number. Group 4095 is
# for flooding.
LAST_JOB = 4094
_ROUNDS = 4


class NumbersExhausted(Exception):
    """An error: every job number is in use, or has used up its generations."""


def secret_order(key: bytes) -> Callable[[int, int], int]:
    """Return a function that gives a number's n-th generation, each once, in an order that only the key reveals.

    It is a Feistel network of 16 bits. Past generations of a number do not reveal the next one, so the former owner of
    a number cannot forge packets of its present owner.
    """

    def nth(number: int, n: int) -> int:
        left, right = n >> 8, n & 0xFF
        for turn in range(_ROUNDS):
            message = bytes((turn, right)) + number.to_bytes(2, "big")
            left, right = right, left ^ hashlib.blake2b(message, key=key, digest_size=1).digest()[0]
        return left << 8 | right

    return nth


class JobNumbers:
    """The allocator of job numbers: it gives the lowest free number with its next generation.

    A number that has had all of its generations is retired.
    """

    def __init__(self, last: int = LAST_JOB, nth: Callable[[int, int], int] | None = None) -> None:
        """Create the allocator. `nth`: a function that returns the n-th generation of a number.

        By default the order of generations is secret, and differs from that of the previous controller.
        """
        self._last = last
        self._nth = nth or secret_order(secrets.token_bytes(32))
        self._free: list[int] = []
        self._fresh = 1
        self._used: dict[int, int] = {}  # how many generations each number has had
        self._resumed: dict[int, int] = {}  # by number, the generation of the job that an earlier run left

    def take(self) -> tuple[int, int]:
        """Return a job number and its generation. Raises NumbersExhausted."""
        while True:
            if self._free:
                number = heapq.heappop(self._free)
            elif self._fresh <= self._last:
                number = self._fresh
                self._fresh += 1
            else:
                raise NumbersExhausted(f"all {self._last} job numbers are in use")
            used = self._used.get(number, 0)
            self._used[number] = used + 1
            generation = self._nth(number, used)
            if generation != self._resumed.get(number):
                return number, generation
            # The resumed job had this pair, which may name no other job. The next pass takes the number again, with its
            # next generation, unless it has none left.
            self.give_back(number)

    def resume(self, number: int, generation: int) -> None:
        """Take a number and generation that an earlier run gave. Call in ascending order, before any `take`.

        Raises ValueError for a number that is in use, not above those resumed before, or out of range.
        """
        if not self._fresh <= number <= self._last:
            raise ValueError(f"job number {number}: {self._fresh} to {self._last} are free")
        for skipped in range(self._fresh, number):
            heapq.heappush(self._free, skipped)
        self._fresh = number + 1
        self._resumed[number] = generation

    def give_back(self, number: int) -> None:
        if self._used.get(number, 0) < GENERATIONS:
            heapq.heappush(self._free, number)
