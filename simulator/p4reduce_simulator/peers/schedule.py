# SPDX-License-Identifier: Apache-2.0
"""Schedules: messages between hosts, and which messages each waits for."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence


class Schedule:
    """Messages between ranks, and servers if there are any. Hosts 0 to `ranks` - 1 are the ranks.

    A message may be sent when all messages that it waits for have arrived at its source. A host sends those that may be
    sent one after the other, in the order in which they became so; at the start, in the order of this schedule.

    parts: the number of parts of the tensor. Messages name those whose sums they carry, so that a test can prove that
    each rank receives all of them.
    """

    def __init__(self, ranks: int, servers: int = 0, parts: int = 1) -> None:
        self.ranks, self.servers, self.parts = ranks, servers, parts
        self.sources, self.destinations, self.sizes = array("I"), array("I"), array("Q")
        self._first_parts, self._part_counts = array("I"), array("I")
        self._waits, self._wait_ends = array("I"), array("Q", [0])

    def __len__(self) -> int:
        return len(self.sizes)

    def send(
        self,
        source: int,
        destination: int,
        size: float,
        after: Iterable[int] = (),
        part: int | None = None,
        count: int = 1,
    ) -> int:
        """Add a message of `size` bytes. Return its number.

        after: the messages for which it waits. part, count: the parts that it carries; None: all of them.
        """
        self.sources.append(source)
        self.destinations.append(destination)
        self.sizes.append(round(size))
        self._first_parts.append(0 if part is None else part)
        self._part_counts.append(self.parts if part is None else count)
        self._waits.extend(after)
        self._wait_ends.append(len(self._waits))
        return len(self.sizes) - 1

    def waits(self, message: int) -> Sequence[int]:
        """Return the messages for which a message waits."""
        return self._waits[self._wait_ends[message] : self._wait_ends[message + 1]]

    def all_waits(self) -> tuple[array[int], array[int]]:
        """Return the numbers of all messages that are waited for, and the end of each message's among them."""
        return self._waits, self._wait_ends

    def parts_of(self, message: int) -> range:
        first = self._first_parts[message]
        return range(first, first + self._part_counts[message])

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield each message's source, destination and size."""
        return zip(self.sources, self.destinations, self.sizes, strict=True)

    def sent(self, host: int) -> int:
        """Return the bytes that a host sends."""
        return sum(size for source, _, size in self if source == host)

    def received(self, host: int) -> int:
        """Return the bytes that a host receives."""
        return sum(size for _, destination, size in self if destination == host)
