# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of indirect counters."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4i, p4r
from grpc import StatusCode

from p4reduce_targets.dataplane import Count, DataPlane
from p4reduce_targets.p4runtime.errors import Refused, invalid, unsupported
from p4reduce_targets.p4runtime.program import Counter, Program
from p4reduce_targets.p4runtime.readback import Undo, stored_elsewhere


def read_count(data: p4r.CounterData, counter: Counter) -> Count:
    """Return the count in a message, without the part that is not in the counter's unit."""
    packets = 0 if counter.unit == p4i.CounterSpec.BYTES else data.packet_count
    size = 0 if counter.unit == p4i.CounterSpec.PACKETS else data.byte_count
    if packets < 0 or size < 0:
        raise invalid(f"{counter.name}: a count must not be negative")
    return Count(packets, size)


def write_count(data: p4r.CounterData, count: Count) -> None:
    """Put a count into a message: packets and bytes, whatever the unit, as in BMv2."""
    data.packet_count, data.byte_count = count.packets, count.bytes


class Counters:
    """The indirect counters of a program. Their cells are in the data plane only."""

    def __init__(self, program: Program, data_plane: DataPlane) -> None:
        self._program = program
        self._data_plane = data_plane

    def write(self, kind: int, entry: p4r.CounterEntry) -> Undo:
        """Set a cell. DELETE sets it to 0."""
        counter = self._program.counter(entry.counter_id)
        if not entry.HasField("index"):
            raise unsupported("Wildcard write is not supported for indirect counters")
        index = _index(counter, entry)
        if kind == p4r.Update.INSERT:
            raise invalid("INSERT update type not supported for counters")
        count = Count(0, 0) if kind == p4r.Update.DELETE else read_count(entry.data, counter)
        self._data_plane.write_counter(counter.name, index, count)
        return stored_elsewhere

    def read(self, wanted: p4r.CounterEntry) -> Iterator[p4r.CounterEntry]:
        """Yield one cell, all cells of a counter, or those of every counter (counter id 0)."""
        program = self._program
        counters = [program.counter(wanted.counter_id)] if wanted.counter_id else list(program.counters.values())
        cells = [
            (counter, index)
            for counter in counters
            for index in ([_index(counter, wanted)] if wanted.HasField("index") else range(counter.size))
        ]
        counts = self._data_plane.read_counters([(counter.name, index) for counter, index in cells])
        for (counter, index), count in zip(cells, counts, strict=True):
            entry = p4r.CounterEntry(counter_id=counter.id)
            entry.index.index = index
            write_count(entry.data, count)
            yield entry

    def replay(self, other: Counters) -> None:
        """Copy every cell of `other`; raise Refused if this program has no such counter."""
        for entry in other.read(p4r.CounterEntry()):
            self.write(p4r.Update.MODIFY, entry)


def _index(counter: Counter, entry: p4r.CounterEntry) -> int:
    index = entry.index.index
    if index < 0:
        raise invalid("A negative number is not a valid index value")
    if index >= counter.size:
        raise Refused(StatusCode.UNKNOWN, f"{counter.name} has no index {index}: 0 to {counter.size - 1}")
    return index
