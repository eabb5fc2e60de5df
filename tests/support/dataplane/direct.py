# SPDX-License-Identifier: Apache-2.0
"""A data plane under test without a server, ports or threads: `Switch` calls it directly."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

from p4reduce_targets.dataplane import Call, Exact, Key, Lpm, MeterConfig, PacketProcessor, Replica

from .p4runtime import Entry, PacketIn, number_of
from .switch import COMPILED, Outputs, Switch
from .targets import CPU_PORT

_PACKET_IN = struct.Struct("!HI")


class Direct(Switch):
    """A `Switch` whose outputs are complete when `inject` returns, so `barrier` need not wait."""

    def __init__(self, name: str, plane: PacketProcessor, compiled: Path = COMPILED) -> None:
        super().__init__(name, compiled)
        self.plane = plane
        self.client = _Client(self)
        self._outputs = Outputs()
        self._baseline = self._read_counters()

    def inject(self, port: int, frame: bytes) -> None:
        for egress, data in self.plane.process(port, frame):
            if egress == CPU_PORT:
                head, bitmap = _PACKET_IN.unpack_from(data)
                self._outputs.packet_ins.append(PacketIn(head & 0x1FF, bitmap, data[_PACKET_IN.size :], head >> 9))
            else:
                self._outputs.ports.setdefault(egress, []).append(data)

    def barrier(self, port: int) -> Outputs:
        del port
        outputs, self._outputs = self._outputs, Outputs()
        return outputs

    def let_losses_settle(self) -> None:
        """Return at once, since no packet is ever queued."""


class _Client:
    """The methods of a P4Runtime client that `Switch` calls, on a data plane."""

    def __init__(self, direct: Direct) -> None:
        self._direct, self._plane, self._program = direct, direct.plane, direct.program
        self._keys: dict[str, list[Key]] = {}

    def insert(self, *entries: Entry) -> None:
        for entry in entries:
            self._plane.insert(entry.table, self._key(entry), 0, self._call(entry.action, entry.params))
            self._keys.setdefault(entry.table, []).append(self._key(entry))

    def delete(self, *entries: Entry) -> None:
        for entry in entries:
            self._plane.delete(entry.table, self._key(entry), 0)
            self._keys[entry.table].remove(self._key(entry))

    def set_default(self, table: str, action: str, params: Mapping[str, int | str]) -> None:
        self._plane.set_default(table, self._call(action, params))

    def write_group(self, _kind: int, group: int, replicas: Iterable[tuple[int, int]] = ()) -> None:
        self._plane.set_group(group, [Replica(*one) for one in replicas])

    def write_meter(self, name: str, index: int, config: tuple[int, int, int, int] | None) -> None:
        self._plane.set_meter(name, index, config and MeterConfig(*config))

    def read_counters(self, name: str) -> dict[int, tuple[int, int]]:
        cells = self._plane.read_counters([(name, index) for index in range(self._program.counters[name].size)])
        return {index: (cell.packets, cell.bytes) for index, cell in enumerate(cells) if cell.packets}

    def read_direct_counters(self, table: str) -> dict[Key, object]:
        keys = self._keys.get(table, [])
        return dict(zip(keys, self._plane.read_direct_counters([(table, key, 0) for key in keys]), strict=True))

    def packet_out(
        self, payload: bytes, *, through_pipeline: bool = True, egress_port: int = 0, multicast_group: int = 0
    ) -> None:
        header = struct.pack("!HH", through_pipeline << 15 | egress_port, multicast_group)
        self._direct.inject(CPU_PORT, header + payload)

    def _key(self, entry: Entry) -> Key:
        fields = self._program.tables[entry.table].match_fields
        values = [(entry.match[item.name], item.bitwidth) for item in fields]
        return tuple(Lpm(*one) if isinstance(one, tuple) else Exact(number_of(one, bits)) for one, bits in values)

    def _call(self, action: str, params: Mapping[str, int | str]) -> Call:
        items = self._program.actions[action].params
        return Call(action, tuple(number_of(params[item.name], item.bitwidth) for item in items))
