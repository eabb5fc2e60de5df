# SPDX-License-Identifier: Apache-2.0
"""Which slots are due: a queue by deadline."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from p4reduce.protocol.slot import NEVER, Slot


class Deadlines:
    """The slots that wait for something, by when they are due.

    Most packets are answered long before, so a slot whose deadline moves on, or ends, keeps its place, which is put
    right only when it comes up: what goes well costs nothing.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._heap: list[tuple[float, int]] = []  # times and indexes of slots
        self._times = [NEVER] * len(slots)  # of each slot in the heap, where an entry of another time is void

    def add(self, slot: Slot) -> None:
        """Has the slot come up when it is due, or before."""
        if slot.due_at < self._times[slot.index]:
            self._times[slot.index] = slot.due_at
            heappush(self._heap, (slot.due_at, slot.index))

    def take_due(self, now: float) -> list[Slot]:
        """Takes out the slots that are due, in the order of their indexes."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            slot = self._take_first()
            if slot is not None and slot.due_at <= now:
                due.append(slot)
            elif slot is not None:
                self.add(slot)
        due.sort(key=lambda slot: slot.index)
        return due

    def first(self) -> float:
        """When the first slot is due."""
        while self._heap:
            time, index = self._heap[0]
            if time == self._times[index] == self._slots[index].due_at:
                return time
            slot = self._take_first()
            if slot is not None:
                self.add(slot)
        return NEVER

    def _take_first(self) -> Slot | None:
        time, index = heappop(self._heap)
        if time != self._times[index]:
            return None
        self._times[index] = NEVER
        return self._slots[index]
