# SPDX-License-Identifier: Apache-2.0
"""The pool of a switch's slots, shared by jobs: each job has one contiguous range."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


class PoolFull(Exception):
    """An error: no free range is long enough. The message says how many slots are free."""


@dataclass(frozen=True, order=True)
class SlotRange:
    """The slots `first` to `first + count - 1` of a switch."""

    first: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.count

    def joined(self, other: SlotRange) -> list[SlotRange]:
        """Return both ranges, as one if they overlap or touch."""
        low, high = sorted((self, other))
        if low.end < high.first:
            return [low, high]
        return [SlotRange(low.first, max(low.end, high.end) - low.first)]


class SlotPool:
    """The first-fit allocator of slot ranges. The list of free ranges is sorted, and no two of them touch."""

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots={slots}: a switch has at least 1")
        self.slots = slots
        self._free = [SlotRange(0, slots)]
        self._taken: set[SlotRange] = set()
        self._longest: int | None = slots  # None if it has to be computed

    @property
    def free(self) -> int:
        return sum(part.count for part in self._free)

    @property
    def used(self) -> int:
        return self.slots - self.free

    @property
    def longest(self) -> int:
        """The length of the longest free range, which is the most that `take` can give."""
        if self._longest is None:
            self._longest = max((part.count for part in self._free), default=0)
        return self._longest

    def around(self, taken: SlotRange) -> int:
        """Return how long the free range there would be if `taken` were given back."""
        after = bisect_right(self._free, taken)
        touching = [
            part
            for part in self._free[max(0, after - 1) : after + 1]
            if taken.end == part.first or part.end == taken.first
        ]
        return taken.count + sum(part.count for part in touching)

    def find(self, count: int) -> SlotRange:
        """Return the first free range of `count` slots, without taking it.

        Raises PoolFull, or ValueError if count < 1.
        """
        if count < 1:
            raise ValueError(f"count={count}: a job has at least 1 slot")
        if count <= self.longest:
            return SlotRange(next(part.first for part in self._free if part.count >= count), count)
        in_a_row = "" if self.longest == self.free else f", {self.longest} of them in a row"
        raise PoolFull(f"{count} slots asked, {self.free} of {self.slots} free{in_a_row}")

    def copy(self) -> SlotPool:
        """Return an independent copy."""
        copied = SlotPool(self.slots)
        copied._free, copied._taken, copied._longest = list(self._free), set(self._taken), self._longest
        return copied

    def without(self, counts: Iterable[int]) -> SlotPool:
        """Return the pool as a job sees it that must leave free ranges of these lengths.

        The ranges are at the end of the pool. If no free range is long enough, the longest ones are left, up to that
        number of slots.
        """
        seen = self.copy()
        for count in counts:
            fits = [part for part in seen._free if part.count >= count]
            for part in fits[-1:] or sorted(seen._free, key=lambda part: -part.count):
                taken = min(count, part.count)
                seen.take(SlotRange(part.end - taken, taken))
                count -= taken
                if not count:
                    break
        return seen

    def take(self, wanted: SlotRange) -> None:
        """Take exactly this range. Raises ValueError if some of it is not free."""
        index = bisect_right(self._free, wanted.first, key=lambda part: part.first) - 1
        if index >= 0 and wanted.end <= (part := self._free[index]).end and wanted.count > 0:
            before = SlotRange(part.first, wanted.first - part.first)
            after = SlotRange(wanted.end, part.end - wanted.end)
            self._free[index : index + 1] = [rest for rest in (before, after) if rest.count]
            self._taken.add(wanted)
            if part.count == self._longest:
                self._longest = None
            return
        raise ValueError(f"slots {wanted.first} to {wanted.end - 1} are not all free")

    def give_back(self, taken: SlotRange) -> None:
        """Free a range that was taken. Raises ValueError for any other, so that nothing is freed twice."""
        if taken not in self._taken:
            raise ValueError(f"{taken} is not taken")
        self._taken.remove(taken)
        first = last = bisect_right(self._free, taken)
        low, high = taken.first, taken.end
        if first and self._free[first - 1].end == low:
            first -= 1
            low = self._free[first].first
        if last < len(self._free) and self._free[last].first == high:
            high = self._free[last].end
            last += 1
        self._free[first:last] = [SlotRange(low, high - low)]
        if self._longest is not None:
            self._longest = max(self._longest, high - low)
