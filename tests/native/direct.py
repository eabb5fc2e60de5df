# SPDX-License-Identifier: Apache-2.0
"""A data plane without a server, ports or threads in between, for the data-plane fuzzer's traffic."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from p4reduce_targets.dataplane import Call, Count, DataPlane, Exact, Lpm, MeterConfig, Replica
from tests.support.dataplane import frames
from tests.support.dataplane.p4runtime import Entry, PacketIn, Program
from tests.support.dataplane.switch import (
    FORGERIES,
    HELLOS,
    JOBS,
    LOSSES_IN,
    LOSSES_OUT,
    MAC_ADDRESSES,
    OUTCOME_NAMES,
    OUTCOMES,
    OWN_SOURCES,
    SWITCH,
    HalfState,
    Outputs,
)
from tests.support.dataplane.targets import CPU_PORT, PORTS

_PACKET_IN = struct.Struct("!HI")


class Direct:
    """What `tests.support.dataplane.traffic` needs of a switch, by calls into the data plane."""

    can_be_leaf = True

    def __init__(self, name: str, plane: DataPlane, program: Program) -> None:
        self.name, self.plane, self.program = name, plane, program
        self.lanes, self.block_size, self.halves = program.lanes, program.block_size, program.halves
        self.ports = tuple(range(1, PORTS + 1))
        self.deaf_ports: set[int] = set()
        self.members: list[tuple[Exact | Lpm, ...]] = []  # keys of jobs' entries

    def insert(self, *entries: Entry) -> None:
        for entry in entries:
            self.plane.insert(entry.table, self._key(entry), 0, self._call(entry))
            if entry.table == JOBS:
                self.members.append(self._key(entry))

    def delete(self, *entries: Entry) -> None:
        for entry in entries:
            self.plane.delete(entry.table, self._key(entry), 0)
            if entry.table == JOBS:
                self.members.remove(self._key(entry))

    def insert_group(self, group: int, replicas: Iterable[tuple[int, int]]) -> None:
        self.plane.set_group(group, [Replica(*one) for one in replicas])

    def own_address(self, host: frames.Host = SWITCH) -> None:
        table = "SwitchIngress.own_address.own_addresses"
        action = "SwitchIngress.own_address.own"
        mac = {"mac": frames.mac_number(host.mac)}
        self.insert(Entry(table, {"address": frames.ip_number(host.ip)}, action, mac))
        self.insert(Entry(OWN_SOURCES, {"address": frames.ip_number(host.ip)}, "SwitchIngress.own_address.forged"))

    def forward(self, mac: str, port: int) -> None:
        match = {"mac": frames.mac_number(mac)}
        self.insert(Entry(MAC_ADDRESSES, match, "SwitchIngress.forwarding.forward", {"port": port}))

    def flood_unknown(self, group: int) -> None:
        self.insert_group(group, [(port, 0) for port in self.ports])
        self.plane.set_default(MAC_ADDRESSES, Call("SwitchIngress.forwarding.flood", (group,)))

    def set_loss(self, table: str, port: int, threshold: int) -> Entry:
        entry = Entry(table, {"port": port}, table.replace("loss_rates", "lose"), {"threshold": threshold})
        self.insert(entry)
        return entry

    def limit_hellos(self, port: int, rate: int, burst: int) -> None:
        self.plane.set_meter(HELLOS, port, MeterConfig(rate, burst, rate, burst))

    def reset_halves(self, seqs: dict[int, int]) -> Outputs:
        for half, seq in seqs.items():
            self.packet_out(self.to_switch(frames.Aggregation(op=frames.RESET, slot=half, seq=seq)))
        return Outputs()

    def to_switch(self, packet: frames.Aggregation) -> bytes:
        packet = frames.Aggregation(**{**vars(packet), "keys": packet.keys or (frames.NO_KEY,) * self.lanes})
        return frames.frame(frames.Host("02:5a:00:00:00:02", "10.255.0.2"), SWITCH, packet)

    def exchange(self, *inputs: tuple[int, bytes]) -> Outputs:
        outputs = Outputs()
        for port, frame in inputs:
            for egress, data in self.plane.process(port, frame):
                if egress == CPU_PORT:
                    head, bitmap = _PACKET_IN.unpack_from(data)
                    outputs.packet_ins.append(PacketIn(head & 0x1FF, bitmap, data[_PACKET_IN.size :], head >> 9))
                else:
                    outputs.ports.setdefault(egress, []).append(data)
        return outputs

    def packet_out(
        self, frame: bytes, *, through_pipeline: bool = True, egress_port: int = 0, multicast_group: int = 0
    ) -> Outputs:
        header = struct.pack("!HH", through_pipeline << 15 | egress_port, multicast_group)
        return self.exchange((CPU_PORT, header + frame))

    def let_losses_settle(self) -> None:
        """Nothing queues here."""

    def barrier(self, port: int) -> Outputs:
        del port
        return Outputs()

    def query(self, half: int) -> HalfState:
        import numpy as np

        room = {lane: np.zeros(self.block_size, np.int32) for lane in range(self.lanes)}
        packet = frames.Aggregation(op=frames.QUERY, slot=half, active=(1 << self.lanes) - 1, values=room)
        (answer,) = self.packet_out(self.to_switch(packet)).packet_ins
        return HalfState.of(answer, self.lanes, self.block_size)

    def state(self, halves: Sequence[int]) -> list[Any]:
        """What is in these halves, every counter cell that has counted something, and what each member has sent."""
        counters: dict[tuple[str, int], Count] = {}
        for name, size in ((OUTCOMES, len(OUTCOME_NAMES)), (LOSSES_IN, 512), (LOSSES_OUT, 512), (FORGERIES, 512)):
            cells = {(name, index): self.plane.read_counter(name, index) for index in range(size)}
            counters |= {cell: count for cell, count in cells.items() if count.packets}
        members = {key: self.plane.read_direct_counter(JOBS, key, 0) for key in self.members}
        return [*(self.query(half) for half in halves), counters, members]

    def _key(self, entry: Entry) -> tuple[Exact | Lpm, ...]:
        values = [entry.match[item.name] for item in self.program.tables[entry.table].match_fields]
        return tuple(Exact(value) if isinstance(value, int) else Lpm(*value) for value in values)

    def _call(self, entry: Entry) -> Call:
        params = self.program.actions[entry.action].params
        return Call(entry.action, tuple(entry.params[item.name] for item in params))
