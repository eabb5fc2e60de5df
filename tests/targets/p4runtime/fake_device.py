# SPDX-License-Identifier: Apache-2.0
"""A data plane that keeps books and nothing else, and a device around it: what the server is tested against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from p4reduce_targets.dataplane import Batch, Call, Count, Key, MeterConfig, Replica

CPU_PORT = 510
EXACT_SIZE = 4


class FakeDataPlane:
    """A data plane in which `constant...` tables refuse writes and `exact...` hold 4 entries, as in conformance.p4.

    A packet-out for egress port p comes out of p; for group g, of all of g's ports. A frame that leaves at the CPU
    port gets the packet-in header of conformance.p4, with the default action's first argument as tag.
    """

    def __init__(self, program: bytes, cpu_port: int) -> None:
        if "pipelines" not in json.loads(program):
            raise ValueError("no pipelines")
        self.cpu_port = cpu_port
        self.entries: dict[str, dict[tuple[Key, int], Call]] = {}
        self.defaults: dict[str, Call | None] = {}
        self.groups: dict[int, Sequence[Replica]] = {}
        self.cells: dict[tuple[object, ...], Count] = {}

    def batch(self) -> AbstractContextManager[Batch]:
        return nullcontext(Batch())

    def insert(self, table: str, key: Key, priority: int, call: Call) -> None:
        entries = self.entries.setdefault(table, {})
        if "constant" in table:
            raise ValueError("the table is constant")
        if "exact" in table and len(entries) == EXACT_SIZE:
            raise ValueError("the table is full")
        assert (key, priority) not in entries
        entries[key, priority] = call

    def modify(self, table: str, key: Key, priority: int, call: Call) -> None:
        assert (key, priority) in self.entries[table]
        self.entries[table][key, priority] = call

    def delete(self, table: str, key: Key, priority: int) -> None:
        del self.entries[table][key, priority]
        self.cells.pop((table, key, priority), None)

    def set_default(self, table: str, call: Call | None) -> None:
        self.defaults[table] = call

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        self.groups[group] = replicas

    def read_counters(self, cells: Sequence[tuple[str, int]]) -> list[Count]:
        return [self.cells.get(cell, Count(0, 0)) for cell in cells]

    def write_counter(self, counter: str, index: int, count: Count) -> None:
        self.cells[counter, index] = count

    def set_meter(self, meter: str, index: int, config: MeterConfig | None) -> None:
        raise AssertionError(f"conformance.p4 has no meter {meter}: {index}, {config}")

    def read_direct_counters(self, entries: Sequence[tuple[str, Key, int]]) -> list[Count]:
        return [self.cells.get(entry, Count(0, 0)) for entry in entries]

    def write_direct_counter(self, table: str, key: Key, priority: int, count: Count) -> None:
        self.cells[table, key, priority] = count

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        assert port == self.cpu_port
        header = int.from_bytes(frame[:4], "big")
        kind, egress, group = header >> 29, header >> 20 & 0x1FF, header & 0xFFFF
        name = "SwitchIngress.cells"
        (before,) = self.read_counters([(name, kind)])
        self.cells[name, kind] = Count(before.packets + 1, before.bytes + len(frame))
        replicas = self.groups.get(group, ()) if group else [Replica(egress, 0)]
        return [(one.port, self._leaving(one, frame[4:])) for one in replicas]

    def _leaving(self, replica: Replica, payload: bytes) -> bytes:
        if replica.port != self.cpu_port:
            return payload
        call = self.defaults.get("SwitchIngress.ternary_table") or Call("", (1, 0))
        packet_in = self.cpu_port << 16 | (sum(call.arguments) & 0xFFF) << 4 | replica.instance
        return packet_in.to_bytes(4, "big") + payload
