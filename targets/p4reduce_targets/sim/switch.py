# SPDX-License-Identifier: Apache-2.0
"""The data plane of sim: two generated functions, and the state that they share with the control plane."""

from __future__ import annotations

import linecache
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count

from p4reduce_targets.dataplane import Batch, Call, Count, Key, MeterConfig, Replica
from p4reduce_targets.sim.generate import generate
from p4reduce_targets.sim.program import Program, check_cpu_port, parse
from p4reduce_targets.sim.tables import Table

_numbers = count(1)


class Switch:
    """An implementation of `PacketProcessor`. `source` is the generated Python."""

    def __init__(self, program: Program, cpu_port: int, seed: int | None, clock: Callable[[], int]) -> None:
        start = time.monotonic()
        self.cpu_port = cpu_port
        self._groups: dict[int, tuple[tuple[int, int], ...]] = {}
        shared: dict[str, object] = {
            "groups": self._groups,
            "random_integer": random.Random(seed).randint,
            "microseconds": lambda: int((time.monotonic() - start) * 1e6),
        }
        generated = generate(program, shared, clock)
        self.source = generated.source
        self._tables: dict[str, Table] = generated.tables
        self._counters = generated.counters
        self._meters = generated.meters
        # With this, tracebacks and profilers show the generated lines.
        filename = f"<p4 program {next(_numbers)}>"
        linecache.cache[filename] = (len(self.source), None, self.source.splitlines(keepends=True), filename)
        exec(compile(self.source, filename, "exec"), shared)
        process = shared["process"]
        assert callable(process)
        self._process: Callable[[int, bytes], list[tuple[int, bytes]]] = process

    def batch(self) -> AbstractContextManager[Batch]:
        """Return a context for a group of writes, each of which is done at once."""
        return nullcontext(Batch())

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Add an entry. Raises ValueError if it exists, or the table is full or constant."""
        self._tables[table].insert(key, priority, call)

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        """Change an entry's action. Raises KeyError if there is no such entry."""
        self._tables[table].modify(key, priority, call)

    def delete(self, table: str, key: Key, priority: int) -> None:
        """Remove an entry. Raises KeyError if there is no such entry."""
        self._tables[table].delete(key, priority)

    def set_default(self, table: str, call: Call | None) -> None:
        """Set the default action; None restores the program's own. Raises ValueError if it is constant."""
        self._tables[table].set_default(call)

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Create or replace a multicast group; an empty list of replicas removes it."""
        if not 0 < group < 1 << 16:
            raise ValueError(f"multicast group {group} is not in 1..65535")
        if replicas:
            self._groups[group] = tuple((replica.port, replica.instance) for replica in replicas)
        else:
            self._groups.pop(group, None)

    def read_counters(self, cells: Sequence[tuple[str, int]]) -> list[Count]:
        """Read cells of indirect counters. Raises ValueError if an index is out of range."""
        return [self._read_counter(counter, index) for counter, index in cells]

    def _read_counter(self, counter: str, index: int) -> Count:
        packets, sizes = self._counters[counter]
        _check_index(f"counter {counter}", index, len(packets))
        return Count(packets[index], sizes[index])

    def write_counter(self, counter: str, index: int, count: Count) -> None:
        """Set a cell of an indirect counter. Raises ValueError if the index is out of range."""
        packets, sizes = self._counters[counter]
        _check_index(f"counter {counter}", index, len(packets))
        packets[index], sizes[index] = count.packets, count.bytes

    def set_meter(self, meter: str, index: int, config: MeterConfig | None) -> None:
        """Configure a cell of an indirect meter. Raises ValueError if the index is out of range."""
        cells = self._meters[meter]
        _check_index(f"meter {meter}", index, cells.size)
        cells.configure(index, config)

    def read_direct_counters(self, entries: Sequence[tuple[str, Key, int]]) -> list[Count]:
        """Read direct counters. Raises KeyError without such an entry, ValueError if the table has none."""
        return [Count(*self._tables[table].cell(key, priority)) for table, key, priority in entries]

    def write_direct_counter(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set an entry's direct counter. Raises KeyError without such an entry, ValueError if the table has none."""
        self._tables[table].cell(key, priority)[:] = [count.packets, count.bytes]

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process one frame that arrived at a port; return the frames to send, each with its port."""
        return self._process(port, frame)


def _check_index(what: str, index: int, size: int) -> None:
    if not 0 <= index < size:
        raise ValueError(f"index {index} of {what} is not in 0..{size - 1}")


def load(
    program: str | bytes,
    cpu_port: int = 510,
    seed: int | None = None,
    clock: Callable[[], int] = time.monotonic_ns,
) -> Switch:
    """Return a data plane for the output of p4c-bm2-ss.

    `seed` is for the program's random numbers. `clock` is the meters' clock, in nanoseconds.

    Raises UnsupportedFeature if the program needs a feature that sim lacks, ValueError if the text is not a program, or
    one for another CPU port.
    """
    parsed = parse(program)
    check_cpu_port(parsed.source, cpu_port)
    return Switch(parsed, cpu_port, seed, clock)
